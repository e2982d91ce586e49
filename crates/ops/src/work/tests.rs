//! Hand values for every op.
use super::*;
use crate::op::Routing;
use crate::tensor::{Buffer, Ids, LatentCache};

fn t(rows: u32, cols: u32) -> Tensor {
    Tensor::new(Buffer(0), 0, rows, cols)
}

fn matrix(packing: Packing, rows: u32, cols: u32) -> Matrix {
    Matrix { buffer: Buffer(0), codes: 0, scales: 0, rows, cols, packing }
}

fn alone(op: &Op) -> Work {
    op.work(Picked::default())
}

fn mat_mul(packing: Packing, activations: Activations, rows: u32) -> Work {
    let weight = matrix(packing, 10, 64);
    alone(&Op::MatMul { out: t(rows, 10), x: t(rows, 64), weight, activations })
}

#[test]
fn products_of_floats() {
    let expected = Work {
        weights: 10 * 64 * 2,
        state: 0,
        activations: 3 * (64 + 10) * 4,
        floats: 3 * 640,
        byte_products: 0,
        multiply_adds: 3 * 640,
    };
    // Floats meet f32 whatever the mode.
    for mode in [Activations::Exact, Activations::Int15, Activations::Int8] {
        assert_eq!(mat_mul(Packing::Bf16, mode, 3), expected);
    }
    assert_eq!(mat_mul(Packing::F32, Activations::Exact, 1).weights, 10 * 64 * 4);
}

#[test]
fn products_of_packed_weights() {
    // 2 groups a row: 17 bytes of MXFP4, 33 of int8 (one scale byte), 18 of int4 (two) for a group's 16, 32, 16 of codes.
    let weights = [Packing::Mxfp4, Packing::Int8, Packing::Int4]
        .map(|packing| mat_mul(packing, Activations::Int15, 5).weights);
    assert_eq!(weights, [10 * 2 * 17, 10 * 2 * 33, 10 * 2 * 18]);
    let work = mat_mul(Packing::Mxfp4, Activations::Int15, 5);
    assert_eq!((work.byte_products, work.multiply_adds), (2 * 5 * 640, 5 * 640));
    assert_eq!(work.floats, 5 * 640 / 32 + 5 * 64 * 2);
    let work = mat_mul(Packing::Int4, Activations::Int8, 5);
    assert_eq!(work.byte_products, 5 * 640);
    let work = mat_mul(Packing::Int4, Activations::Exact, 5);
    assert_eq!((work.byte_products, work.floats), (0, 5 * 640));
}

#[test]
fn products_of_heads() {
    // 2 tokens of 3 heads, 8 numbers in, 4 out.
    let weight = matrix(Packing::Bf16, 12, 8);
    let work = alone(&Op::HeadMatMul { out: t(6, 4), x: t(6, 8), weight, heads: 3 });
    assert_eq!((work.weights, work.multiply_adds, work.floats), (12 * 8 * 2, 6 * 32, 6 * 32));
    assert_eq!(work.activations, (6 * 4 + 6 * 8) * 4);
}

#[test]
fn norms_and_mixes() {
    let (x, gain) = (t(2, 8), t(1, 8));
    let work = alone(&Op::RmsNorm { out: x, x, gain, eps: 0.0 });
    assert_eq!((work.weights, work.activations, work.floats), (32, 128, 48));
    let work = alone(&Op::L2Norm { out: x, x, eps: 0.0, scale: 1.0 });
    assert_eq!((work.weights, work.activations, work.floats), (0, 128, 32));
    let mix = Op::ResidualMix { out: x, running: x, snapshots: t(12, 8), count: 5, weight: gain, eps: 0.0 };
    let work = alone(&mix);
    assert_eq!((work.weights, work.activations, work.floats), (32, 7 * 64, 3 * 6 * 16));
}

#[test]
fn the_parts_of_the_delta_rule() {
    // 2 tokens, 3 heads, 4 keys, 5 values.
    let (keys, values) = (t(6, 4), t(6, 5));
    let state = t(12, 5);
    let rule = Op::DeltaRule { out: values, q: keys, k: keys, v: values, decay: keys, beta: t(2, 3), state };
    let work = alone(&rule);
    assert_eq!((work.state, work.floats), (2 * 60 * 4, 4 * 2 * 60));
    assert_eq!(work.activations, (3 * 24 + 2 * 30 + 6) * 4);

    let work = alone(&Op::ShortConv { out: t(2, 7), x: t(2, 7), window: t(7, 3), taps: t(7, 4) });
    assert_eq!((work.weights, work.state), (7 * 4 * 4, 2 * 7 * 3 * 4));
    assert_eq!(work.floats, 14 * (4 + 12 + 1));

    let decay =
        |formula| alone(&Op::DecayGate { out: keys, f: keys, a_log: t(1, 3), dt_bias: t(3, 4), formula });
    let work = decay(DecayFormula::LowerBound(-5.0));
    assert_eq!((work.weights, work.floats), ((3 + 12) * 4, 24 * 25));
    assert_eq!(decay(DecayFormula::Softplus).floats, 24 * 35);
}

#[test]
fn attention_over_the_cache() {
    let cache = LatentCache { pool: t(128, 6), table: Ids(t(1, 2)), latent: 4 };
    let append = Op::AppendLatent { latent: t(2, 4), rope: Some(t(2, 2)), cache, position: 10 };
    assert_eq!((alone(&append).state, alone(&append).floats), (2 * 6 * 4, 0));
    // 2 tokens at positions 10 and 11 see 11 and 12 rows; 3 heads.
    let attend = |selected| Op::AttendLatent {
        out: t(6, 4),
        q: t(6, 4),
        q_rope: Some(t(6, 2)),
        cache,
        position: 10,
        selected,
        heads: 3,
        scale: 1.0,
    };
    let work = alone(&attend(None));
    assert_eq!((work.state, work.multiply_adds), (12 * 6 * 4, 23 * 3 * 10));
    assert_eq!(work.floats, 23 * 3 * (10 + 11));
    assert_eq!(work.activations, (24 + 24 + 12) * 4);
    // Lists of 5 positions.
    let work = alone(&attend(Some(Ids(t(2, 5)))));
    assert_eq!((work.state, work.multiply_adds), (10 * 6 * 4, 10 * 3 * 10));
}

#[test]
fn gates_and_sums() {
    let x = t(2, 8);
    let glu = |activation| alone(&Op::Glu { out: x, gate: x, up: x, activation });
    assert_eq!((glu(Activation::Silu).floats, glu(Activation::Silu).activations), (16 * 14, 3 * 64));
    assert_eq!(glu(Activation::Situ { beta: 1.0, linear_beta: 1.0 }).floats, 16 * 60);
    assert_eq!(alone(&Op::GateMul { out: x, x, gate: x }).floats, 16 * 13);
    assert_eq!(alone(&Op::Add { out: x, x, y: x }).floats, 16);
    assert_eq!(alone(&Op::Copy { out: x, x }), Work { activations: 128, ..Work::default() });
    let finite = alone(&Op::Finite { out: Ids(t(2, 1)), x });
    assert_eq!(finite, Work { activations: 72, ..Work::default() });
    let combine = Op::Combine { out: x, rows: t(6, 8), picks: Ids(t(2, 3)), weights: t(2, 3) };
    assert_eq!((alone(&combine).floats, alone(&combine).activations), (48, (16 + 48 + 6 + 6) * 4));
}

#[test]
fn routes_and_experts() {
    let routing = Routing { renormalize: true, scale: 1.0, keep: 1.0 };
    let route = |bias| Op::Route { picks: Ids(t(2, 3)), weights: t(2, 3), logits: t(2, 9), bias, routing };
    assert_eq!((alone(&route(None)).floats, alone(&route(None)).weights), (18 * 12, 0));
    assert_eq!((alone(&route(Some(t(1, 9)))).floats, alone(&route(Some(t(1, 9)))).weights), (18 * 13, 36));

    let m = |rows, cols| matrix(Packing::Mxfp4, rows, cols);
    let experts = ExpertMatrices { gate: m(64, 32), up: m(64, 32), down: m(32, 64) };
    let op = Op::Experts {
        out: t(6, 32),
        x: t(2, 32),
        picks: Ids(t(2, 3)),
        table: Ids(t(9, 2)),
        experts,
        activation: Activation::Silu,
        activations: Activations::Int15,
    };
    assert_eq!(alone(&op), Work::default());
    let work = op.work(Picked { experts: 4, rows: 6 });
    // Each expert: 64 + 64 rows of one group, 32 rows of two.
    assert_eq!(work.weights, 4 * (128 * 17 + 32 * 34));
    assert_eq!((work.multiply_adds, work.byte_products), (6 * 3 * 2048, 2 * 6 * 3 * 2048));
    assert_eq!(work.floats, 6 * (3 * 64 + 2 * (32 + 64) + 64 * 14));
    assert_eq!(work.activations, 6 * 4 * 64);
}

#[test]
fn work_adds_up() {
    let one = Work { weights: 1, state: 2, activations: 3, floats: 4, byte_products: 5, multiply_adds: 6 };
    let mut sum = one;
    sum += one;
    assert_eq!((sum.bytes(), sum.activations, sum.floats), (6, 6, 8));
    assert_eq!((sum.byte_products, sum.multiply_adds), (10, 12));
}
