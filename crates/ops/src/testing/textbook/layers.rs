//! The ops of the attention layers in f64: convolution, delta rule, attention over all positions at once.
use super::{dot, exp, numbers, sigmoid, softmax};
use crate::op::DecayFormula;
use crate::oracle::Oracle;
use crate::tensor::{Ids, LATENT_BLOCK, LatentCache, Tensor};

/// Results and the window afterwards.
pub(super) fn short_conv(oracle: &Oracle, x: Tensor, window: Tensor, taps: Tensor) -> Vec<Vec<f64>> {
    let (channels, past, tokens) = (x.cols as usize, window.cols as usize, x.rows as usize);
    let (x, taps, window) = (numbers(oracle, x), numbers(oracle, taps), numbers(oracle, window));
    let (mut out, mut kept) = (vec![0.0; x.len()], Vec::new());
    for c in 0..channels {
        // All that the channel ever saw and sees, in order of time.
        let mut history = window[c * past..][..past].to_vec();
        history.extend((0..tokens).map(|t| x[t * channels + c]));
        for t in 0..tokens {
            let total = dot(&taps[c * (past + 1)..][..=past], &history[t..]);
            out[t * channels + c] = total * sigmoid(total);
        }
        kept.extend(&history[tokens..]);
    }
    vec![out, kept]
}

pub(super) fn decay_gate(
    oracle: &Oracle,
    f: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    formula: DecayFormula,
) -> Vec<f64> {
    let (width, bias) = (f.cols as usize, numbers(oracle, dt_bias));
    let a: Vec<f64> = numbers(oracle, a_log).into_iter().map(f64::exp).collect();
    let decay = |(i, f): (usize, f64)| {
        let (head, logit) = (i / width % a.len(), f + bias[i % bias.len()]);
        exp(match formula {
            DecayFormula::LowerBound(bound) => f64::from(bound) * sigmoid(a[head] * logit),
            DecayFormula::Softplus => -a[head] * (logit.max(0.0) + (-logit.abs()).exp().ln_1p()),
        })
    };
    numbers(oracle, f).into_iter().enumerate().map(decay).collect()
}

/// Results and the state afterwards: `S_ij` decays by row, then learns what it lacks of v at k, then is read at q.
pub(super) fn delta_rule(oracle: &Oracle, inputs: [Tensor; 5], state: Tensor) -> Vec<Vec<f64>> {
    let (d, e) = (inputs[0].cols as usize, inputs[2].cols as usize);
    let (tokens, heads) = (inputs[4].rows as usize, inputs[4].cols as usize);
    let [q, k, v, decay, beta] = inputs.map(|t| numbers(oracle, t));
    let mut state = numbers(oracle, state);
    let mut out = vec![0.0; v.len()];
    for row in (0..tokens).flat_map(|t| (0..heads).map(move |h| t * heads + h)) {
        let s = &mut state[row % heads * d * e..][..d * e];
        for i in 0..d * e {
            s[i] *= decay[row * d + i / e];
        }
        for j in 0..e {
            let seen: f64 = (0..d).map(|i| k[row * d + i] * s[i * e + j]).sum();
            let change = sigmoid(beta[row]) * (v[row * e + j] - seen);
            for i in 0..d {
                s[i * e + j] += k[row * d + i] * change;
            }
            out[row * e + j] = (0..d).map(|i| q[row * d + i] * s[i * e + j]).sum();
        }
    }
    vec![out, state]
}

/// The row of the pool that holds a position.
fn row_of(table: &[u32], position: u32) -> usize {
    (table[(position / LATENT_BLOCK) as usize] * LATENT_BLOCK + position % LATENT_BLOCK) as usize
}

pub(super) fn append_latent(
    oracle: &Oracle,
    latent: Tensor,
    rope: Option<Tensor>,
    cache: LatentCache,
    position: u32,
) -> Vec<f64> {
    let (width, table) = (cache.pool.cols as usize, oracle.load_ids(cache.table));
    let mut pool = numbers(oracle, cache.pool);
    for t in 0..latent.rows {
        let mut row = numbers(oracle, latent.rows_at(t, 1));
        row.extend(rope.map_or_else(Vec::new, |rope| numbers(oracle, rope.rows_at(t, 1))));
        pool[row_of(&table, position + t) * width..][..width].copy_from_slice(&row);
    }
    pool
}

pub(super) fn attend_latent(
    oracle: &Oracle,
    (q, q_rope): (Tensor, Option<Tensor>),
    cache: LatentCache,
    (position, selected): (u32, Option<Ids>),
    (heads, scale): (u32, f32),
) -> Vec<f64> {
    let (pool, table) = (numbers(oracle, cache.pool), oracle.load_ids(cache.table));
    let (width, latent) = (cache.pool.cols as usize, cache.latent as usize);
    let mut out = Vec::new();
    for row in 0..q.rows {
        let (token, own) = (row / heads, position + row / heads);
        let listed = selected.map(|list| oracle.load_ids(Ids(list.0.rows_at(token, 1))));
        let seen = (0..=own).filter(|p| listed.as_ref().is_none_or(|list| list.contains(p)));
        let rows: Vec<&[f64]> = seen.map(|p| &pool[row_of(&table, p) * width..][..width]).collect();
        let mut query = numbers(oracle, q.rows_at(row, 1));
        query.extend(q_rope.map_or_else(Vec::new, |rope| numbers(oracle, rope.rows_at(row, 1))));
        let mut shares: Vec<f64> = rows.iter().map(|r| dot(&query, r) * f64::from(scale)).collect();
        softmax(&mut shares);
        out.extend((0..latent).map(|c| shares.iter().zip(&rows).map(|(s, r)| s * r[c]).sum::<f64>()));
    }
    out
}

pub(super) fn residual_mix(
    oracle: &Oracle,
    running: Tensor,
    snapshots: Tensor,
    weight: Tensor,
    eps: f32,
) -> Vec<f64> {
    let (width, rows) = (running.cols as usize, running.rows as usize);
    let weight = numbers(oracle, weight);
    let mut layers = numbers(oracle, snapshots);
    layers.extend(numbers(oracle, running));
    let mut out = Vec::new();
    for t in 0..rows {
        let entries: Vec<&[f64]> = layers.chunks_exact(width).skip(t).step_by(rows).collect();
        let score = |v: &&[f64]| dot(v, &weight) / (dot(v, v) / width as f64 + f64::from(eps)).sqrt();
        let mut shares: Vec<f64> = entries.iter().map(score).collect();
        softmax(&mut shares);
        out.extend((0..width).map(|c| shares.iter().zip(&entries).map(|(s, v)| s * v[c]).sum::<f64>()));
    }
    out
}
