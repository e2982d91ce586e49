//! What must not change a bit: chunks, company, threads, block tables, arrival order.

use super::desk::Desk;
use ops::cases::{self, Size};
use ops::{
    Activations, DecayFormula, Ids, LATENT_BLOCK, LatentCache, NONE, Op, Oracle, Packing, Routing, Tensor,
};
use proptest::prelude::*;

/// Ways for seven tokens to come in.
const CHUNKS: [&[u32]; 4] = [&[7], &[1, 1, 1, 1, 1, 1, 1], &[2, 5], &[6, 1]];
const TOKENS: u32 = 7;

/// Runs `op` once for every chunk, with the rows of the tokens of that chunk.
fn in_chunks(chunks: &[u32], mut run: impl FnMut(u32, u32)) {
    let mut start = 0;
    for &count in chunks {
        run(start, count);
        start += count;
    }
    assert_eq!(start, TOKENS);
}

/// All ways to come in give the same bits: `run(chunks)` makes them.
fn same_in_all_chunks(run: impl Fn(&[u32]) -> Vec<u32>) {
    let whole = run(CHUNKS[0]);
    for chunks in &CHUNKS[1..] {
        assert!(run(chunks) == whole, "chunks {chunks:?} give other bits");
    }
}

#[test]
fn short_conv_in_chunks() {
    same_in_all_chunks(|chunks| {
        let mut d = Desk::new(1, 11);
        let (x, out) = (d.random(TOKENS, 33, 2.0), d.output(TOKENS, 33));
        let (window, taps) = (d.random(33, 3, 2.0), d.random(33, 4, 1.0));
        in_chunks(chunks, |start, count| {
            let [x, out] = [x, out].map(|t| t.rows_at(start, count));
            d.oracle.run(&Op::ShortConv { out, x, window, taps });
        });
        [d.bits(out), d.bits(window)].concat()
    });
}

#[test]
fn delta_rule_in_chunks() {
    same_in_all_chunks(|chunks| {
        let (mut d, heads) = (Desk::new(1, 12), 3);
        let [q, k, decay] = [(); 3].map(|()| d.random(TOKENS * heads, 17, 0.4));
        let [v, out] = [(); 2].map(|()| d.random(TOKENS * heads, 9, 1.0));
        let (beta, state) = (d.random(TOKENS, heads, 2.0), d.random(heads * 17, 9, 1.0));
        in_chunks(chunks, |start, count| {
            let [q, k, v, decay, out] =
                [q, k, v, decay, out].map(|t| t.rows_at(start * heads, count * heads));
            let beta = beta.rows_at(start, count);
            d.oracle.run(&Op::DeltaRule { out, q, k, v, decay, beta, state });
        });
        [d.bits(out), d.bits(state)].concat()
    });
}

/// Attention of seven tokens from position 61 on, over blocks that lie where `table` says.
fn attention(chunks: &[u32], table: &[u32]) -> Vec<u32> {
    let (mut d, heads, first) = (Desk::new(1, 13), 2, 61);
    let pool = d.output(5 * LATENT_BLOCK, 12);
    let cache = LatentCache { pool, table: d.ids(1, 2, table), latent: 8 };
    let past = (d.random(first, 8, 1.0), d.random(first, 4, 1.0));
    d.oracle.run(&Op::AppendLatent { latent: past.0, rope: Some(past.1), cache, position: 0 });
    let (latent, rope) = (d.random(TOKENS, 8, 1.0), d.random(TOKENS, 4, 1.0));
    let (q, q_rope) = (d.random(TOKENS * heads, 8, 3.0), d.random(TOKENS * heads, 4, 3.0));
    let out = d.output(TOKENS * heads, 8);
    in_chunks(chunks, |start, count| {
        let position = first + start;
        let (latent, rope) = (latent.rows_at(start, count), Some(rope.rows_at(start, count)));
        d.oracle.run(&Op::AppendLatent { latent, rope, cache, position });
        let [q, q_rope, out] = [q, q_rope, out].map(|t| t.rows_at(start * heads, count * heads));
        let (q_rope, selected, scale) = (Some(q_rope), None, 0.3);
        d.oracle.run(&Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale });
    });
    d.bits(out)
}

#[test]
fn attention_in_chunks_and_over_blocks_in_any_order() {
    same_in_all_chunks(|chunks| attention(chunks, &[0, 1]));
    let straight = attention(&[7], &[0, 1]);
    for table in [[1, 0], [4, 2], [0, 3]] {
        assert!(attention(&[7], &table) == straight, "the table {table:?} gives other bits");
    }
}

/// The ops that treat every row by itself, on random rows: the bits of the rows' results, op after op.
fn row_by_row(d: &mut Desk, x: Tensor, y: Tensor, chunks: &[u32]) -> Vec<u32> {
    let cols = x.cols;
    let (gain, a_log) = (d.random(1, cols, 1.0), d.random(1, 1, 1.0));
    let outs = [(); 7].map(|()| d.output(TOKENS, cols));
    let (picks, weights) = (Ids(d.output(TOKENS, 3)), d.output(TOKENS, 3));
    let routing = Routing { renormalize: true, scale: 1.0, keep: 0.8 };
    in_chunks(chunks, |start, count| {
        let part = |t: Tensor| t.rows_at(start, count);
        let (x, y) = (part(x), part(y));
        let [a, b, c, e, f, g, h] = outs.map(part);
        let (picks, weights) = (Ids(part(picks.0)), part(weights));
        let formula = DecayFormula::Softplus;
        for op in [
            Op::RmsNorm { out: a, x, gain, eps: 1e-6 },
            Op::L2Norm { out: b, x, eps: 1e-6, scale: 2.0 },
            Op::DecayGate { out: c, f: x, a_log, dt_bias: gain, formula },
            Op::Glu { out: e, gate: x, up: y, activation: ops::Activation::Silu },
            Op::GateMul { out: f, x, gate: y },
            Op::Add { out: g, x, y },
            Op::ResidualMix { out: h, running: x, snapshots: y, count: 1, weight: gain, eps: 1e-6 },
            Op::Route { picks, weights, logits: x, bias: Some(gain), routing },
        ] {
            d.oracle.run(&op);
        }
    });
    outs.into_iter().chain([picks.0, weights]).flat_map(|t| d.bits(t)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_together_or_one_by_one(seed in 1..u64::MAX, cols in 3..200_u32) {
        same_in_all_chunks(|chunks| {
            let mut d = Desk::new(1, seed);
            let (x, y) = (d.random(TOKENS, cols, 3.0), d.random(TOKENS, cols, 3.0));
            row_by_row(&mut d, x, y, chunks)
        });
    }

    #[test]
    fn products_of_rows_together_or_one_by_one(seed in 1..u64::MAX, outputs in 1..12_u32, groups in 1..40_u32) {
        for packing in [Packing::F32, Packing::Bf16, Packing::Int8, Packing::Int4, Packing::Mxfp4] {
            for activations in [Activations::Int15, Activations::Int8, Activations::Exact] {
                same_in_all_chunks(|chunks| {
                    let mut d = Desk::new(1, seed);
                    let weight = d.matrix(packing, outputs, groups * 32);
                    let (x, out) = (d.random(TOKENS, groups * 32, 2.0), d.output(TOKENS, outputs));
                    in_chunks(chunks, |start, count| {
                        let [x, out] = [x, out].map(|t| t.rows_at(start, count));
                        d.oracle.run(&Op::MatMul { out, x, weight, activations });
                    });
                    d.bits(out)
                });
            }
        }
    }
}

#[test]
fn products_of_heads_in_chunks() {
    same_in_all_chunks(|chunks| {
        let (mut d, heads) = (Desk::new(1, 14), 3);
        let weight = d.matrix(Packing::Bf16, heads * 5, 21);
        let (x, out) = (d.random(TOKENS * heads, 21, 2.0), d.output(TOKENS * heads, 5));
        in_chunks(chunks, |start, count| {
            let [x, out] = [x, out].map(|t| t.rows_at(start * heads, count * heads));
            d.oracle.run(&Op::HeadMatMul { out, x, weight, heads });
        });
        d.bits(out)
    });
}

#[test]
fn threads_change_no_bit() {
    for recipe in cases::list(Size::Quick) {
        let case = recipe.build(0);
        let [one, two, eight] =
            [1, 2, 8].map(|threads| case.run(&mut Oracle::new(threads).unwrap()).unwrap());
        assert!(one == two && one == eight, "{}", case.name());
    }
}

/// Every op of experts in the suite, once with its own table and once with one expert at a time, in any order.
#[test]
fn experts_that_arrive_one_by_one_give_the_same_bits() {
    let mut seen = 0;
    for recipe in cases::list(Size::Small).into_iter().filter(|recipe| recipe.name().starts_with("experts")) {
        let case = recipe.build(0);
        let expected = case.run(&mut Oracle::new(1).unwrap()).unwrap();
        let mut oracle = Oracle::new(1).unwrap();
        case.place(&mut oracle).unwrap();
        for op in &case.ops {
            let Op::Experts { out, x, picks, table, experts, activation, activations } = *op else {
                continue;
            };
            seen += 1;
            let words = oracle.load_ids(table);
            for expert in (0..words.len()).step_by(2).rev() {
                let mut alone = vec![NONE; words.len()];
                alone[expert..expert + 2].copy_from_slice(&words[expert..expert + 2]);
                oracle.store(table.0, bytemuck::cast_slice(&alone));
                oracle.run(&Op::Experts { out, x, picks, table, experts, activation, activations });
            }
            let start = out.offset as usize;
            assert!(oracle.load_ids(Ids(out)).len() == out.elements() as usize && out.is_contiguous());
            // The last of the groups of a result completes it.
            if !case
                .ops
                .iter()
                .skip_while(|o| *o != op)
                .skip(1)
                .any(|later| later.writes().iter().any(|w| w.tensor == out))
            {
                assert!(
                    oracle.load_ids(Ids(out)) == expected[start..start + out.elements() as usize],
                    "{}",
                    case.name()
                );
            }
        }
    }
    assert!(seen > 100, "{seen} ops of experts");
}
