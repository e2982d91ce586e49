//! The oracle against docs/numerics.md, section 3, read a second time: every op written down again from the page, and
//! equal in every bit. A failure here means that a bit has changed: that needs a new `NUMERICS_VERSION` and other
//! words. Sums and elementary functions are taken from `ops`, whose own tests hold them to the page, as those of
//! `ops::packing` do for integer activations.

use super::desk::Desk;
use ops::lanes::{LANES, Lanes, dot, sum};
use ops::math::{exp, sigmoid, softplus, tanh};
use ops::packing::{GROUP, Prepared, WeightRow, encode, layout};
use ops::{
    Activation, Activations, DecayFormula, Ids, LATENT_BLOCK, LatentCache, NONE, Op, Packing, Routing, Tensor,
};

/// Widths around the 16 lanes.
const WIDTHS: [u32; 6] = [1, 5, 16, 17, 48, 130];

fn desk(seed: u32) -> Desk {
    Desk::new(1, u64::from(seed) + 1)
}

fn same(d: &Desk, found: Tensor, expected: &[f32], what: &str) {
    let expected: Vec<u32> = expected.iter().map(|v| v.to_bits()).collect();
    assert!(d.bits(found) == expected, "{what}: found {:?}, {expected:?} by the words", d.bits(found));
}

/// The rows of a tensor.
fn rows(d: &Desk, t: Tensor) -> Vec<Vec<f32>> {
    d.oracle.load(t).chunks(t.cols as usize).map(<[f32]>::to_vec).collect()
}

/// A row of 20 groups: more than one block. MXFP4 has every kind of scale, the two clamped ones among them.
fn weight_row(d: &mut Desk, packing: Packing) -> WeightRow {
    let cols = 20 * GROUP as u32;
    if packing == Packing::Mxfp4 {
        let sizes = layout(packing, 1, cols);
        let codes: Vec<u8> =
            d.draw(sizes.code_row_bytes as u32, 128.0).iter().map(|b| *b as i8 as u8).collect();
        let scales: Vec<u8> =
            (0..sizes.scale_row_bytes as u8).map(|g| [0, 1, 2, 3][g as usize % 4]).collect();
        return WeightRow::decode(packing, cols as usize, &codes, &scales);
    }
    let (codes, scales) = encode(packing, &d.draw(cols, 0.1), cols).unwrap();
    WeightRow::decode(packing, cols as usize, &codes, &scales)
}

#[test]
fn packed_weights_and_floats() {
    for packing in [Packing::Int8, Packing::Int4, Packing::Mxfp4] {
        for seed in 0..8 {
            let mut d = desk(seed);
            let row = weight_row(&mut d, packing);
            let WeightRow::Codes { codes, exponents } = &row else { panic!("{packing:?} has codes") };
            let x = d.draw(codes.len() as u32, 2.0);
            let mut lanes = [0.0; LANES];
            for (c, (codes, x)) in codes.chunks(GROUP).zip(x.chunks(GROUP)).enumerate() {
                let p = codes.iter().zip(x).fold(0.0, |p, (code, x)| f32::from(*code).mul_add(*x, p));
                let power = f64::powi(2.0, exponents[c].clamp(-126, 127)) as f32;
                let lane = &mut lanes[(c * GROUP % 512) / 32];
                *lane = p.mul_add(power, *lane);
            }
            let found = row.dot(&Prepared::new(&x, Activations::Exact));
            assert_eq!(found.to_bits(), Lanes::from(lanes).fold().to_bits(), "{packing:?}, seed {seed}");
        }
    }
}

#[test]
fn norms() {
    for width in WIDTHS {
        let mut d = desk(width);
        let (x, gain, out) = (d.random(3, width, 5.0), d.random(1, width, 2.0), d.output(3, width));
        let (input, gains) = (rows(&d, x), d.oracle.load(gain));
        d.oracle.run(&Op::RmsNorm { out, x, gain, eps: 1e-5 });
        let rms = |x: &Vec<f32>| {
            let factor = 1.0 / (dot(x, x) / width as f32 + 1e-5).sqrt();
            x.iter().zip(&gains).map(|(x, gain)| (x * factor) * gain).collect::<Vec<f32>>()
        };
        same(&d, out, &input.iter().flat_map(rms).collect::<Vec<f32>>(), "rms_norm");
        d.oracle.run(&Op::L2Norm { out, x, eps: 1e-6, scale: 0.3 });
        let l2 = |x: &Vec<f32>| {
            let factor = (1.0 / (dot(x, x) + 1e-6).sqrt()) * 0.3;
            x.iter().map(|x| x * factor).collect::<Vec<f32>>()
        };
        same(&d, out, &input.iter().flat_map(l2).collect::<Vec<f32>>(), "l2_norm");
    }
}

#[test]
fn a_norm_beyond_f32_makes_zeros() {
    let mut d = desk(0);
    let (x, gain, out) = (d.numbers(1, 2, &[2e19, 1.0]), d.numbers(1, 2, &[1.0; 2]), d.output(1, 2));
    d.oracle.run(&Op::RmsNorm { out, x, gain, eps: 1e-6 });
    assert_eq!(d.oracle.load(out), [0.0; 2]);
}

#[test]
fn short_conv() {
    let (mut d, tokens, channels, taps) = (desk(1), 6, 9, 4);
    let (x, window) = (d.random(tokens, channels, 2.0), d.random(channels, taps - 1, 2.0));
    let (weights, out) = (d.random(channels, taps, 1.0), d.output(tokens, channels));
    let (inputs, before, weight) = (rows(&d, x), rows(&d, window), rows(&d, weights));
    d.oracle.run(&Op::ShortConv { out, x, window, taps: weights });
    let mut expected = Vec::new();
    for t in 0..tokens as usize {
        for c in 0..channels as usize {
            let all: Vec<f32> = before[c].iter().copied().chain(inputs.iter().map(|row| row[c])).collect();
            let s = (0..taps as usize).fold(0.0, |s, j| weight[c][j].mul_add(all[t + j], s));
            expected.push(s * sigmoid(s));
        }
    }
    same(&d, out, &expected, "short_conv");
}

#[test]
fn decay_gates() {
    let (mut d, heads, width) = (desk(2), 3, 21);
    let (f, a_log) = (d.random(2 * heads, width, 6.0), d.random(1, heads, 2.0));
    let (dt_bias, out) = (d.random(heads, width, 2.0), d.output(2 * heads, width));
    let (logits, a, bias) = (rows(&d, f), d.oracle.load(a_log), rows(&d, dt_bias));
    for formula in [DecayFormula::LowerBound(-5.0), DecayFormula::Softplus] {
        d.oracle.run(&Op::DecayGate { out, f, a_log, dt_bias, formula });
        let mut expected = Vec::new();
        for (r, row) in logits.iter().enumerate() {
            let head = r % heads as usize;
            expected.extend(row.iter().zip(&bias[head]).map(|(f, bias)| match formula {
                DecayFormula::LowerBound(bound) => exp(bound * sigmoid(exp(a[head]) * (f + bias))),
                DecayFormula::Softplus => exp(-(exp(a[head]) * softplus(f + bias))),
            }));
        }
        same(&d, out, &expected, &format!("{formula:?}"));
    }
}

/// Over the keys: `lane (i mod 16) = fma(x_i, S_ij, lane)` from +0, folded. Absent keys are not filled in.
fn over_keys(x: &[f32], state: &[Vec<f32>], j: usize) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, (x, row)) in x.iter().zip(state).enumerate() {
        lanes[i % LANES] = x.mul_add(row[j], lanes[i % LANES]);
    }
    Lanes::from(lanes).fold()
}

#[test]
fn delta_rule() {
    let (tokens, values) = (5, 7);
    for keys in WIDTHS {
        let mut d = desk(keys);
        let [q, k, decay] = [(); 3].map(|()| d.random(tokens, keys, 0.9));
        let [v, out] = [(); 2].map(|()| d.random(tokens, values, 1.0));
        let (beta, state) = (d.random(tokens, 1, 2.0), d.random(keys, values, 1.0));
        let [mut s, q_rows, k_rows, v_rows, decays] = [state, q, k, v, decay].map(|t| rows(&d, t));
        let betas = d.oracle.load(beta);
        d.oracle.run(&Op::DeltaRule { out, q, k, v, decay, beta, state });
        let mut expected = Vec::new();
        for t in 0..tokens as usize {
            for (row, decay) in s.iter_mut().zip(&decays[t]) {
                for s in row {
                    *s *= decay;
                }
            }
            let learn = |j: usize| sigmoid(betas[t]) * (v_rows[t][j] - over_keys(&k_rows[t], &s, j));
            let new: Vec<f32> = (0..values as usize).map(learn).collect();
            for (row, k) in s.iter_mut().zip(&k_rows[t]) {
                for (s, new) in row.iter_mut().zip(&new) {
                    *s = k.mul_add(*new, *s);
                }
            }
            expected.extend((0..values as usize).map(|j| over_keys(&q_rows[t], &s, j)));
        }
        same(&d, out, &expected, "delta_rule");
        same(&d, state, &s.concat(), "the state of delta_rule");
    }
}

#[test]
fn absent_keys_of_the_delta_rule_add_no_zero() {
    // 17 products of -1e-60 leave -0 in every lane; a +0 for the keys 17 to 31 would make +0 of it.
    let (mut d, keys) = (desk(3), 17);
    let (q, k) = (d.numbers(1, keys, &[1e-30; 17]), d.numbers(1, keys, &[0.0; 17]));
    let (decay, state) = (d.numbers(1, keys, &[1.0; 17]), d.numbers(keys, 1, &[-1e-30; 17]));
    let (v, beta, out) = (d.numbers(1, 1, &[0.0]), d.numbers(1, 1, &[0.0]), d.output(1, 1));
    d.oracle.run(&Op::DeltaRule { out, q, k, v, decay, beta, state });
    same(&d, out, &[-0.0], "a sum of products too small for f32");
}

/// One head of one token over the rows it sees, `seen` = positions in ascending order.
fn attend(q: &[f32], q_rope: &[f32], cache: &[Vec<f32>], seen: &[u32], scale: f32) -> Vec<f32> {
    let latent = q.len();
    // The rope part begins at lane 0 again: as if the latent part were filled up to whole blocks of lanes.
    let joined = |latent: &[f32], rope: &[f32]| {
        let mut all = latent.to_vec();
        all.resize(latent.len().next_multiple_of(LANES), 0.0);
        all.extend(rope);
        all
    };
    let query = joined(q, q_rope);
    let (mut top, mut total, mut y) = (f32::NEG_INFINITY, 0.0, vec![0.0; latent]);
    for block in 0..=cache.len() as u32 / LATENT_BLOCK {
        let block: Vec<&Vec<f32>> =
            seen.iter().filter(|p| **p / LATENT_BLOCK == block).map(|p| &cache[*p as usize]).collect();
        if block.is_empty() {
            continue;
        }
        let score = |row: &&Vec<f32>| dot(&query, &joined(&row[..latent], &row[latent..])) * scale;
        let scores: Vec<f32> = block.iter().map(score).collect();
        let new_top = scores.iter().copied().fold(top, f32::max);
        let rescale = exp(top - new_top);
        let shares: Vec<f32> = scores.iter().map(|score| exp(score - new_top)).collect();
        total = (total * rescale) + sum(&shares);
        for (c, y) in y.iter_mut().enumerate() {
            *y = shares.iter().zip(&block).fold(*y * rescale, |y, (share, row)| share.mul_add(row[c], y));
        }
        top = new_top;
    }
    y.iter().map(|y| y / total).collect()
}

/// Which positions each of three tokens from `position` on lists; some are beyond its own.
fn lists(position: u32) -> [Vec<u32>; 3] {
    [0, 1, 2].map(|t| (0..position + 3).filter(|p| (p * 7 + t) % 5 < 2 || *p == position + t).collect())
}

#[test]
fn attend_latent() {
    for (position, latent, rope) in [(0, 5, 3), (15, 16, 4), (62, 17, 20), (63, 33, 1), (130, 40, 16)] {
        // A fused sum of exponentials shows in few of the results.
        for seed in 0..8 {
            for listed in [false, true] {
                attention(&mut desk(seed), (position, latent, rope), listed);
            }
        }
    }
}

/// Three tokens of two heads from `position` on.
fn attention(d: &mut Desk, (position, latent, rope): (u32, u32, u32), listed: bool) {
    let (tokens, heads, scale, blocks) = (3, 2, 0.4, 3);
    let pool = d.random(blocks * LATENT_BLOCK, latent + rope, 1.0);
    let cache = LatentCache { pool, table: d.ids(1, blocks, &[0, 1, 2]), latent };
    let (q, q_rope) = (d.random(tokens * heads, latent, 3.0), d.random(tokens * heads, rope, 3.0));
    let out = d.output(tokens * heads, latent);
    let padded = lists(position).map(|mut list| {
        list.resize(position as usize + 3, NONE);
        list
    });
    let selected = listed.then(|| d.ids(tokens, position + 3, &padded.concat()));
    let rope = Some(q_rope);
    d.oracle.run(&Op::AttendLatent { out, q, q_rope: rope, cache, position, selected, heads, scale });
    let (queries, ropes, cached) = (rows(d, q), rows(d, q_rope), rows(d, pool));
    let mut expected = Vec::new();
    for r in 0..(tokens * heads) as usize {
        let (token, own) = (r / heads as usize, position + r as u32 / heads);
        let list = if listed { lists(position)[token].clone() } else { (0..=own).collect() };
        let seen: Vec<u32> = list.into_iter().filter(|p| *p <= own).collect();
        expected.extend(attend(&queries[r], &ropes[r], &cached, &seen, scale));
    }
    same(d, out, &expected, &format!("attention at {position}, listed: {listed}"));
}

#[test]
fn residual_mix() {
    for width in WIDTHS {
        for count in [0, 1, 6] {
            let mut d = desk(width + count);
            let (tokens, eps) = (2, 1e-5);
            let (snapshots, running) =
                (d.random(tokens * count.max(1), width, 4.0), d.random(tokens, width, 4.0));
            let (weight, out) = (d.random(1, width, 1.0), d.output(tokens, width));
            d.oracle.run(&Op::ResidualMix { out, running, snapshots, count, weight, eps });
            let (kept, last, w) = (rows(&d, snapshots), rows(&d, running), d.oracle.load(weight));
            let mut expected = Vec::new();
            for t in 0..tokens as usize {
                let mut entries: Vec<&Vec<f32>> =
                    (0..count as usize).map(|i| &kept[i * tokens as usize + t]).collect();
                entries.push(&last[t]);
                let score = |v: &&Vec<f32>| dot(v, &w) / (dot(v, v) / width as f32 + eps).sqrt();
                let scores: Vec<f32> = entries.iter().map(score).collect();
                let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let e: Vec<f32> = scores.iter().map(|score| exp(score - top)).collect();
                let share = |i: usize| e[i] / sum(&e);
                let mix = |c: usize| (0..e.len()).fold(0.0, |y, i| share(i).mul_add(entries[i][c], y));
                expected.extend((0..width as usize).map(mix));
            }
            same(&d, out, &expected, &format!("{count} snapshots of {width}"));
        }
    }
}

#[test]
fn gates() {
    let mut d = desk(4);
    let (gate, up, out) = (d.random(3, 50, 30.0), d.random(3, 50, 60.0), d.output(3, 50));
    let pairs: Vec<(f32, f32)> = d.oracle.load(gate).into_iter().zip(d.oracle.load(up)).collect();
    let all = |f: fn(f32, f32) -> f32| pairs.iter().map(|(g, u)| f(*g, *u)).collect::<Vec<f32>>();
    d.oracle.run(&Op::Glu { out, gate, up, activation: Activation::Silu });
    same(&d, out, &all(|g, u| (g * sigmoid(g)) * u), "silu");
    let activation = Activation::Situ { beta: 3.7, linear_beta: 24.9 };
    d.oracle.run(&Op::Glu { out, gate, up, activation });
    let situ = |g: f32, u: f32| ((3.7 * tanh(g / 3.7)) * sigmoid(g)) * (24.9 * tanh(u / 24.9));
    same(&d, out, &all(situ), "situ");
    d.oracle.run(&Op::GateMul { out, x: up, gate });
    same(&d, out, &all(|g, u| u * sigmoid(g)), "gate_mul");
    d.oracle.run(&Op::Add { out, x: up, y: gate });
    same(&d, out, &all(|g, u| u + g), "add");
}

/// The picks and weights of one row.
fn pick(logits: &[f32], bias: &[f32], count: usize, routing: Routing) -> (Vec<u32>, Vec<f32>) {
    let scores: Vec<f32> = logits.iter().map(|l| sigmoid(*l)).collect();
    let choice: Vec<f32> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let mut picks: Vec<u32> = (0..logits.len() as u32).collect();
    picks.sort_by(|a, b| choice[*b as usize].total_cmp(&choice[*a as usize]));
    picks.truncate(count);
    let mut w: Vec<f32> = picks.iter().map(|e| scores[*e as usize]).collect();
    if routing.renormalize {
        let total = sum(&w) + 1e-20;
        for w in &mut w {
            *w /= total;
        }
    }
    for w in &mut w {
        *w *= routing.scale;
    }
    let enough = routing.keep * sum(&w);
    let mut falling: Vec<usize> = (0..count).collect();
    falling.sort_by(|a, b| w[*b].total_cmp(&w[*a]));
    let mut held = w[falling[0]];
    for rank in falling.into_iter().skip(1) {
        if routing.keep < 1.0 && held >= enough {
            (picks[rank], w[rank]) = (NONE, 0.0);
        } else {
            held += w[rank];
        }
    }
    (picks, w)
}

#[test]
fn route_and_combine() {
    let (tokens, experts, count, width) = (9, 70, 18, 11);
    for (renormalize, keep) in [(true, 1.0), (false, 1.0), (true, 0.8), (false, 0.3)] {
        let mut d = desk(5);
        let (logits, bias) = (d.random(tokens, experts, 3.0), d.random(1, experts, 0.3));
        let (picks, weights) = (Ids(d.output(tokens, count)), d.output(tokens, count));
        // Scores of about 1e-20, beside which the 1e-20 of the sum counts.
        let small = d.draw(experts, 1.0).iter().map(|l| l - 46.0).collect::<Vec<f32>>();
        d.oracle.store(logits.rows_at(1, 1), &small);
        let routing = Routing { renormalize, scale: 2.827, keep };
        d.oracle.run(&Op::Route { picks, weights, logits, bias: Some(bias), routing });
        let biases = d.oracle.load(bias);
        let row = |row: &Vec<f32>| pick(row, &biases, count as usize, routing);
        let (ids, w): (Vec<_>, Vec<_>) = rows(&d, logits).iter().map(row).unzip();
        assert_eq!(d.oracle.load_ids(picks), ids.concat(), "picks, {routing:?}");
        same(&d, weights, &w.concat(), &format!("{routing:?}"));
        assert_eq!(keep < 1.0, ids.concat().contains(&NONE), "picks are dropped where they may be");

        let (results, out) = (d.random(tokens * count, width, 1.0), d.output(tokens, width));
        d.oracle.run(&Op::Combine { out, rows: results, picks, weights });
        let (results, ids, w) = (rows(&d, results), ids.concat(), w.concat());
        let mut expected = Vec::new();
        for ranks in (0..ids.len()).collect::<Vec<usize>>().chunks(count as usize) {
            let row = |rank: usize, c: usize| if ids[rank] == NONE { 0.0 } else { results[rank][c] };
            let sum = |c: usize| ranks.iter().fold(0.0, |y, rank| w[*rank].mul_add(row(*rank, c), y));
            expected.extend((0..width as usize).map(sum));
        }
        same(&d, out, &expected, "combine");
    }
}
