//! The oracle against numbers worked out by hand. Numbers are chosen so that most results are exact in f32.

use super::desk::Desk;
use ops::{
    Activation, Activations, DecayFormula, Device, ExpertMatrices, LatentCache, Matrix, NONE, Op, Packing,
    Routing,
};

fn desk() -> Desk {
    Desk::new(1, 1)
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 2e-7 * e.abs().max(1e-3), "found {found:?}, expected {expected:?}");
    }
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let mut d = desk();
    // mean of squares of (3, 4, 0, 0, ...) over 16 = 25 / 16; its root is 5/4.
    let mut row = [0.0; 16];
    (row[0], row[1]) = (3.0, 4.0);
    let (x, gain, out) = (d.numbers(1, 16, &row), d.numbers(1, 16, &[0.5; 16]), d.output(1, 16));
    d.oracle.run(&Op::RmsNorm { out, x, gain, eps: 0.0 });
    close(&d.oracle.load(out)[..3], &[1.2, 1.6, 0.0]);
    // With eps = 39/16 the root is 2.
    d.oracle.run(&Op::RmsNorm { out, x, gain, eps: 39.0 / 16.0 });
    close(&d.oracle.load(out)[..3], &[0.75, 1.0, 0.0]);
}

#[test]
fn l2_norm_divides_by_the_length() {
    let mut d = desk();
    // length 5; with eps = 11 the root is 6.
    let (x, out) = (d.numbers(2, 2, &[3.0, 4.0, 0.0, 0.0]), d.output(2, 2));
    d.oracle.run(&Op::L2Norm { out, x, eps: 0.0, scale: 10.0 });
    close(&d.oracle.load(out)[..2], &[6.0, 8.0]);
    d.oracle.run(&Op::L2Norm { out, x, eps: 11.0, scale: 6.0 });
    close(&d.oracle.load(out), &[3.0, 4.0, 0.0, 0.0]);
}

#[test]
fn short_conv_sees_the_window_then_itself_and_moves_the_window() {
    let mut d = desk();
    // One channel, taps (1, 10, 100), window (1, 2), inputs 3, 4: sums 1 + 20 + 300 = 321 and 2 + 30 + 400 = 432.
    // sigmoid of so much is 1.
    let (x, window) = (d.numbers(2, 1, &[3.0, 4.0]), d.numbers(1, 2, &[1.0, 2.0]));
    let (taps, out) = (d.numbers(1, 3, &[1.0, 10.0, 100.0]), d.output(2, 1));
    d.oracle.run(&Op::ShortConv { out, x, window, taps });
    assert_eq!(d.oracle.load(out), [321.0, 432.0]);
    assert_eq!(d.oracle.load(window), [3.0, 4.0]);
    // A sum of 0 gives 0 * sigmoid(0) = 0; a sum of -1 gives -1 / (1 + e).
    let (zero, out) = (d.numbers(1, 1, &[0.0]), d.output(1, 1));
    let (window, taps) = (d.numbers(1, 2, &[-1.0, 0.0]), d.numbers(1, 3, &[1.0, 10.0, 100.0]));
    d.oracle.run(&Op::ShortConv { out, x: zero, window, taps });
    close(&d.oracle.load(out), &[-0.268_941_43]);
}

#[test]
fn decay_gates_follow_their_formulas() {
    let mut d = desk();
    // a = exp(0) = 1; f + bias = 0: sigmoid = 1/2, so exp(-5 / 2); softplus = ln 2, so exp(-ln 2) = 1/2.
    let (f, a_log, dt_bias) =
        (d.numbers(2, 1, &[1.0, -2.0]), d.numbers(1, 2, &[0.0; 2]), d.numbers(2, 1, &[-1.0, 2.0]));
    let out = d.output(2, 1);
    d.oracle.run(&Op::DecayGate { out, f, a_log, dt_bias, formula: DecayFormula::LowerBound(-5.0) });
    close(&d.oracle.load(out), &[0.082_085; 2]);
    d.oracle.run(&Op::DecayGate { out, f, a_log, dt_bias, formula: DecayFormula::Softplus });
    close(&d.oracle.load(out), &[0.5; 2]);
    // The second head has a = exp(ln 3) = 3: exp(-3 ln 2) = 1/8.
    let a_log = d.numbers(1, 2, &[0.0, 3.0_f32.ln()]);
    d.oracle.run(&Op::DecayGate { out, f, a_log, dt_bias, formula: DecayFormula::Softplus });
    close(&d.oracle.load(out), &[0.5, 0.125]);
}

#[test]
fn delta_rule_decays_learns_and_reads() {
    let mut d = desk();
    // S = [[2, 4], [6, 8]] (keys down, values across), decay (1/2, 1): [[1, 2], [6, 8]].
    // k = (1, 0): k^T S = (1, 2). v = (3, 6), sigmoid(0) = 1/2: change = 1/2 (2, 4) = (1, 2).
    // S = [[2, 4], [6, 8]] again. q = (1, 10): out = (2 + 60, 4 + 80).
    let state = d.numbers(2, 2, &[2.0, 4.0, 6.0, 8.0]);
    let (q, k) = (d.numbers(1, 2, &[1.0, 10.0]), d.numbers(1, 2, &[1.0, 0.0]));
    let (v, decay) = (d.numbers(1, 2, &[3.0, 6.0]), d.numbers(1, 2, &[0.5, 1.0]));
    let (beta, out) = (d.numbers(1, 1, &[0.0]), d.output(1, 2));
    d.oracle.run(&Op::DeltaRule { out, q, k, v, decay, beta, state });
    assert_eq!(d.oracle.load(out), [62.0, 84.0]);
    assert_eq!(d.oracle.load(state), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn attention_weighs_the_rows_it_sees() {
    let mut d = desk();
    // Latents 1 and 2 with rope parts 0 and ln 3: scores of a query (0; 1) are 0 and ln 3, shares 1/4 and 3/4.
    let pool = d.output(128, 2);
    let table = d.ids(1, 1, &[1]);
    let cache = LatentCache { pool, table, latent: 1 };
    let (latent, rope) = (d.numbers(2, 1, &[1.0, 2.0]), d.numbers(2, 1, &[0.0, 3.0_f32.ln()]));
    d.oracle.run(&Op::AppendLatent { latent, rope: Some(rope), cache, position: 0 });
    assert_eq!(d.oracle.load(pool.rows_at(64, 2)), [1.0, 0.0, 2.0, 3.0_f32.ln()], "block 0 lies in block 1");
    assert_eq!(d.oracle.load(pool.rows_at(0, 64)), [0.0; 128]);
    let (q, q_rope, out) = (d.numbers(2, 1, &[0.0; 2]), d.numbers(2, 1, &[1.0; 2]), d.output(2, 1));
    let attend = |selected| Op::AttendLatent {
        out,
        q,
        q_rope: Some(q_rope),
        cache,
        position: 0,
        selected,
        heads: 1,
        scale: 1.0,
    };
    d.oracle.run(&attend(None));
    // The first token sees itself only.
    close(&d.oracle.load(out), &[1.0, 0.25 + 1.5]);
    // Listed: the first sees 0 (1 is to come), the second only 1.
    let list = d.ids(2, 2, &[0, 1, 1, NONE]);
    d.oracle.run(&attend(Some(list)));
    assert_eq!(d.oracle.load(out), [1.0, 2.0]);
}

#[test]
fn residual_mix_is_a_softmax_over_normed_rows() {
    let mut d = desk();
    // Snapshot 3, running row 5, width 1: both have the normed score 1 * weight, so shares of 1/2.
    let (snapshots, running) = (d.numbers(1, 1, &[3.0]), d.numbers(1, 1, &[5.0]));
    let (weight, out) = (d.numbers(1, 1, &[7.0]), d.output(1, 1));
    d.oracle.run(&Op::ResidualMix { out, running, snapshots, count: 1, weight, eps: 0.0 });
    assert_eq!(d.oracle.load(out), [4.0]);
    // A snapshot of -3 has the score -weight: with 2 weight = ln 3 the shares are 1/4 and 3/4.
    let (snapshots, weight) = (d.numbers(1, 1, &[-3.0]), d.numbers(1, 1, &[3.0_f32.ln() / 2.0]));
    d.oracle.run(&Op::ResidualMix { out, running, snapshots, count: 1, weight, eps: 0.0 });
    close(&d.oracle.load(out), &[3.0]);
    // Without snapshots it is the running row.
    d.oracle.run(&Op::ResidualMix { out, running, snapshots, count: 0, weight, eps: 0.0 });
    assert_eq!(d.oracle.load(out), [5.0]);
}

#[test]
fn elementwise_ops_do_one_thing_each() {
    let mut d = desk();
    let (x, y, out) = (d.numbers(1, 2, &[0.0, 100.0]), d.numbers(1, 2, &[8.0, -2.0]), d.output(1, 2));
    // silu(0) = 0, silu(100) = 100.
    d.oracle.run(&Op::Glu { out, gate: x, up: y, activation: Activation::Silu });
    assert_eq!(d.oracle.load(out), [0.0, -200.0]);
    // 4 tanh(100 / 4) sigmoid(100) = 4; 25 tanh(-2 / 25) = -25 * 0.079829769.
    d.oracle.run(&Op::Glu {
        out,
        gate: x,
        up: y,
        activation: Activation::Situ { beta: 4.0, linear_beta: 25.0 },
    });
    close(&d.oracle.load(out), &[0.0, -7.982_977]);
    d.oracle.run(&Op::GateMul { out, x: y, gate: x });
    assert_eq!(d.oracle.load(out), [4.0, -2.0]);
    d.oracle.run(&Op::Add { out, x, y });
    assert_eq!(d.oracle.load(out), [8.0, 98.0]);
    d.oracle.run(&Op::Copy { out, x });
    assert_eq!(d.oracle.load(out), [0.0, 100.0]);
    let flags = d.ids(3, 1, &[7; 3]);
    let rows = d.numbers(3, 2, &[0.0, f32::MAX, f32::NAN, 0.0, 0.0, f32::NEG_INFINITY]);
    d.oracle.run(&Op::Finite { out: flags, x: rows });
    assert_eq!(d.oracle.load_ids(flags), [1, 0, 0]);
}

#[test]
fn a_view_is_read_and_written_where_it_lies() {
    let mut d = desk();
    let room = d.numbers(3, 4, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    let (left, right) = (room.columns_at(0, 2), room.columns_at(2, 2));
    d.oracle.run(&Op::Copy { out: left.rows_at(1, 2), x: right.rows_at(0, 2) });
    assert_eq!(d.oracle.load(room), [0.0, 1.0, 2.0, 3.0, 2.0, 3.0, 6.0, 7.0, 6.0, 7.0, 10.0, 11.0]);
}

#[test]
fn mat_mul_multiplies_rows_by_rows() {
    let mut d = desk();
    // W = [[1, 2], [3, 4], [5, 6]]; x = (1, 10) and (2, 0).
    let weights = d.numbers(3, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let at = weights.offset * 4;
    let weight =
        Matrix { buffer: weights.buffer, codes: at, scales: at, rows: 3, cols: 2, packing: Packing::F32 };
    let (x, out) = (d.numbers(2, 2, &[1.0, 10.0, 2.0, 0.0]), d.output(2, 3));
    d.oracle.run(&Op::MatMul { out, x, weight, activations: Activations::Int15 });
    assert_eq!(d.oracle.load(out), [21.0, 43.0, 65.0, 2.0, 6.0, 10.0]);
    // As one output of each of 3 heads: x has a row a head.
    let (x, out) = (d.numbers(3, 2, &[1.0, 10.0, 2.0, 0.0, 0.0, 1.0]), d.output(3, 1));
    d.oracle.run(&Op::HeadMatMul { out, x, weight, heads: 3 });
    assert_eq!(d.oracle.load(out), [21.0, 6.0, 6.0]);
}

/// 32 x 32 of MXFP4: every row is ones (nibble 2, scale 2^0), but for the first weight of row r, which is e2m1 of
/// nibble r mod 16 times 2^(r / 16).
fn mxfp4() -> (Vec<u8>, Vec<u8>) {
    let mut codes = vec![0x22_u8; 32 * 16];
    let mut scales = vec![127_u8; 32];
    for r in 0..32 {
        codes[r * 16] = 0x20 | (r % 16) as u8;
        scales[r] += (r / 16) as u8;
    }
    (codes, scales)
}

/// Nibble n stands for this.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

#[test]
fn every_mxfp4_code_has_its_value() {
    let mut d = desk();
    let (codes, scales) = mxfp4();
    let room = d.output(1, 256);
    let at = room.offset * 4;
    d.oracle.write(room.buffer, at, &[codes, scales].concat()).unwrap();
    let weight = Matrix {
        buffer: room.buffer,
        codes: at,
        scales: at + 512,
        rows: 32,
        cols: 32,
        packing: Packing::Mxfp4,
    };
    // x = (100, 1, 0, 0, ...): 100 times the first weight, plus one.
    let mut row = [0.0; 32];
    (row[0], row[1]) = (100.0, 1.0);
    let (x, out) = (d.numbers(1, 32, &row), d.output(1, 32));
    let expected: Vec<f32> = (0..32).map(|r| (100.0 * E2M1[r % 16] + 1.0) * [1.0, 2.0][r / 16]).collect();
    for activations in [Activations::Int15, Activations::Exact] {
        d.oracle.run(&Op::MatMul { out, x, weight, activations });
        assert_eq!(d.oracle.load(out), expected, "{activations:?}");
    }
}

#[test]
fn route_picks_the_largest_biased_and_weighs_the_unbiased() {
    let mut d = desk();
    // Scores 1/2, 3/4, 1/4, 1/2; the bias lifts the last to the top.
    let logits = d.numbers(1, 4, &[0.0, 3.0_f32.ln(), -(3.0_f32.ln()), 0.0]);
    let bias = d.numbers(1, 4, &[0.0, 0.0, 0.0, 0.5]);
    let (picks, weights) = (d.ids(1, 3, &[0; 3]), d.output(1, 3));
    let routing = Routing { renormalize: true, scale: 7.0, keep: 1.0 };
    d.oracle.run(&Op::Route { picks, weights, logits, bias: Some(bias), routing });
    assert_eq!(d.oracle.load_ids(picks), [3, 1, 0]);
    // 7 * (1/2, 3/4, 1/2) / (7/4) = (2, 3, 2).
    close(&d.oracle.load(weights), &[2.0, 3.0, 2.0]);
    // Kept are the heaviest that hold the share of the whole; a share of nothing still keeps one.
    for keep in [0.4, 0.0] {
        let routing = Routing { keep, ..routing };
        d.oracle.run(&Op::Route { picks, weights, logits, bias: Some(bias), routing });
        assert_eq!(d.oracle.load_ids(picks), [NONE, 1, NONE], "keep {keep}");
        close(&d.oracle.load(weights), &[0.0, 3.0, 0.0]);
    }
}

#[test]
fn experts_fill_the_rows_whose_pick_has_a_slot_and_combine_weighs_them() {
    let mut d = desk();
    // gate = up = down = the matrix above, silu with large sums: with x = (1, 0, ...) row r gives its first weight.
    let (codes, scales) = mxfp4();
    let one = [codes, scales].concat();
    let payload = [vec![0; 32], one.clone(), one.clone(), one].concat();
    let slab = memory::Slab::new(2, payload.len() as u64).unwrap();
    slab.write(1).unwrap()[..payload.len()].copy_from_slice(&payload);
    let buffer = d.oracle.adopt(&slab, "experts").unwrap();
    let matrix = |start: u64| Matrix {
        buffer,
        codes: start,
        scales: start + 512,
        rows: 32,
        cols: 32,
        packing: Packing::Mxfp4,
    };
    let experts = ExpertMatrices { gate: matrix(0), up: matrix(544), down: matrix(1088) };
    let mut row = [0.0; 32];
    row[0] = 64.0;
    let (x, out) = (d.numbers(1, 32, &row), d.numbers(3, 32, &[-5.0; 96]));
    // Expert 2 lies in slot 1 from byte 32 on; expert 0 has no slot; the third pick is none.
    let table = d.ids(3, 2, &[NONE, 0, NONE, 0, 1, 32]);
    let picks = d.ids(1, 3, &[2, 0, NONE]);
    let (activation, activations) = (Activation::Silu, Activations::Exact);
    d.oracle.run(&Op::Experts { out, x, picks, table, experts, activation, activations });
    // Row r between the matrices is silu(64 w) * 64 w = (64 w)^2 for w > 0 and as good as 0 else, w the first weight.
    // Row r of the result is w_r inner_0 + s_r (inner_1 + ... + inner_31) with inner_0 = 0.
    let inner = |r: usize| (64.0 * E2M1[r % 16].max(0.0) * [1.0, 2.0][r / 16]).powi(2);
    let rest: f32 = (1..32).map(inner).sum();
    let found = d.oracle.load(out);
    for r in 0..32 {
        let expected = rest * [1.0, 2.0][r / 16];
        assert!((found[r] - expected).abs() < 1e-6 * expected, "row {r}: {} instead of {expected}", found[r]);
    }
    assert_eq!(found[32..], [-5.0; 64], "rows without a slot stay as they are");
    // 2 * first row + 10 * (-5); a pick of none counts as zeros, so that only a weight of NaN is seen.
    for (weight, expected) in [(7.0, Some(2.0 * found[0] - 50.0)), (f32::NAN, None)] {
        let (weights, sum) = (d.numbers(1, 3, &[2.0, 10.0, weight]), d.output(1, 32));
        d.oracle.run(&Op::Combine { out: sum, rows: out, picks, weights });
        let first = d.oracle.load(sum)[0];
        assert!(expected.map_or(first.is_nan(), |expected| first == expected), "{first}");
    }
}
