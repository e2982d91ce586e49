//! Every op of the oracle against its formula in f64: on all cases of the conformance suite, and on random shapes.

use super::desk::{Desk, error};
use ops::cases::{self, Size};
use ops::{
    Activation, Activations, Allowed, DecayFormula, LATENT_BLOCK, LatentCache, Op, Oracle, Packing, Routing,
};
use proptest::prelude::*;

/// The largest relative L2 distance from f64 that an op may have: a bound on f32 sums, with room over what is measured
/// (docs/op-errors.md).
fn bound(op: &Op) -> f64 {
    match op {
        Op::Copy { .. } | Op::AppendLatent { .. } | Op::Finite { .. } => 0.0,
        // The row between the matrices may be rounded to a neighbouring integer.
        Op::Experts { activations: Activations::Int8, .. } => 1e-2,
        Op::Experts { activations: Activations::Int15, .. } => 1e-4,
        Op::MatMul { .. } | Op::HeadMatMul { .. } | Op::Experts { .. } => 4e-6,
        _ => 2e-6,
    }
}

#[test]
fn all_cases_of_the_suite_agree_with_f64() {
    for recipe in cases::list(Size::Quick) {
        let case = recipe.build(0);
        // Numbers below 2^-126 have fewer digits; results beyond f32 are infinite here and not there.
        if !case.is_finite() || !case.suits(Allowed::Tolerance) || case.name().contains("huge") {
            continue;
        }
        let mut oracle = Oracle::new(1).unwrap();
        case.place(&mut oracle).unwrap();
        for op in &case.ops {
            let found = error(&mut oracle, op);
            assert!(found <= bound(op), "{}: {found:e} from f64, {op:?}", case.name());
        }
    }
}

fn check(desk: &mut Desk, op: Op) -> Result<(), TestCaseError> {
    let found = desk.error(op);
    prop_assert!(found <= bound(&op), "{found:e} from f64: {op:?}");
    Ok(())
}

fn packings() -> impl Strategy<Value = Packing> {
    prop::sample::select(vec![Packing::F32, Packing::Bf16, Packing::Int8, Packing::Int4, Packing::Mxfp4])
}

fn modes() -> impl Strategy<Value = Activations> {
    prop::sample::select(vec![Activations::Int15, Activations::Int8, Activations::Exact])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn norms(seed in 1..u64::MAX, rows in 1..9_u32, cols in 1..600_u32, size in 0.01..100.0_f32) {
        let mut desk = Desk::new(1, seed);
        let (x, gain) = (desk.random(rows, cols, size), desk.random(1, cols, 2.0));
        let (a, b, c) = (desk.output(rows, cols), desk.output(rows, cols), desk.output(rows, cols));
        check(&mut desk, Op::RmsNorm { out: a, x, gain, eps: 1e-5 })?;
        check(&mut desk, Op::L2Norm { out: b, x, eps: 1e-6, scale: 0.7 })?;
        let count = seed as u32 % 9;
        let snapshots = desk.random(9 * rows, cols, size);
        // Scores of about 1 in size, as trained ones are.
        let weight = desk.random(1, cols, 1.0 / (cols as f32).sqrt());
        check(&mut desk, Op::ResidualMix { out: c, running: x, snapshots, count, weight, eps: 1e-6 })?;
    }

    #[test]
    fn elementwise(seed in 1..u64::MAX, rows in 1..9_u32, cols in 1..200_u32, size in 0.01..60.0_f32) {
        let mut desk = Desk::new(1, seed);
        let (x, y) = (desk.random(rows, cols, size), desk.random(rows, cols, size));
        let out = desk.output(rows, cols);
        for activation in [Activation::Silu, Activation::Situ { beta: 4.0, linear_beta: 25.0 }] {
            check(&mut desk, Op::Glu { out, gate: x, up: y, activation })?;
        }
        check(&mut desk, Op::GateMul { out, x, gate: y })?;
        check(&mut desk, Op::Add { out, x, y })?;
        check(&mut desk, Op::Copy { out, x })?;
        let (a_log, dt_bias) = (desk.random(1, rows, 1.0), desk.random(rows, cols, 1.0));
        for formula in [DecayFormula::LowerBound(-5.0), DecayFormula::Softplus] {
            check(&mut desk, Op::DecayGate { out, f: x, a_log, dt_bias, formula })?;
        }
    }

    #[test]
    fn short_conv(seed in 1..u64::MAX, tokens in 1..12_u32, channels in 1..70_u32, width in 2..7_u32) {
        let mut desk = Desk::new(1, seed);
        let (x, out) = (desk.random(tokens, channels, 2.0), desk.output(tokens, channels));
        let (taps, window) = (desk.random(channels, width, 1.0), desk.random(channels, width - 1, 2.0));
        check(&mut desk, Op::ShortConv { out, x, window, taps })?;
    }

    #[test]
    fn delta_rule(
        seed in 1..u64::MAX, tokens in 1..7_u32, heads in 1..4_u32, d in 1..40_u32, e in 1..40_u32,
    ) {
        let mut desk = Desk::new(1, seed);
        let unit = (3.0 / d as f32).sqrt();
        let (q, k) = (desk.random(tokens * heads, d, unit), desk.random(tokens * heads, d, unit));
        let (v, out) = (desk.random(tokens * heads, e, 1.0), desk.output(tokens * heads, e));
        let shares: Vec<f32> = desk.draw(tokens * heads * d, 1.0).into_iter().map(f32::abs).collect();
        let decay = desk.numbers(tokens * heads, d, &shares);
        let (beta, state) = (desk.random(tokens, heads, 4.0), desk.random(heads * d, e, 1.0));
        check(&mut desk, Op::DeltaRule { out, q, k, v, decay, beta, state })?;
    }

    #[test]
    fn attend_latent(
        seed in 1..u64::MAX, position in 0..200_u32, tokens in 1..5_u32, heads in 1..4_u32, latent in 1..50_u32,
        rope in 0..10_u32,
    ) {
        let mut desk = Desk::new(1, seed);
        let blocks = (position + tokens).div_ceil(LATENT_BLOCK);
        let pool = desk.random(blocks * LATENT_BLOCK, latent + rope, 1.0);
        let table: Vec<u32> = (0..blocks).rev().collect();
        let cache = LatentCache { pool, table: desk.ids(1, blocks, &table), latent };
        let (q, out) = (desk.random(tokens * heads, latent, 2.0), desk.output(tokens * heads, latent));
        let q_rope = (rope > 0).then(|| desk.random(tokens * heads, rope, 2.0));
        let scale = 1.0 / ((latent + rope) as f32).sqrt();
        check(&mut desk, Op::AttendLatent { out, q, q_rope, cache, position, selected: None, heads, scale })?;
    }

    #[test]
    fn mat_mul(
        seed in 1..u64::MAX, packing in packings(), activations in modes(), rows in 1..6_u32, outputs in 1..9_u32,
        groups in 1..40_u32,
    ) {
        let mut desk = Desk::new(1, seed);
        let weight = desk.matrix(packing, outputs, groups * 32);
        let (x, out) = (desk.random(rows, groups * 32, 2.0), desk.output(rows, outputs));
        let expected = ops::testing::textbook(&mut desk.oracle, &Op::MatMul { out, x, weight, activations });
        desk.oracle.run(&Op::MatMul { out, x, weight, activations });
        // A sum may come out near 0: the distance counts against the size of its products.
        let products = 0.1 * f64::from(groups * 32).sqrt();
        for (found, expected) in desk.oracle.load(out).iter().zip(&expected.unwrap()[0]) {
            prop_assert!((f64::from(*found) - expected).abs() <= 2e-6 * products.max(expected.abs()));
        }
    }

    #[test]
    fn head_mat_mul(seed in 1..u64::MAX, tokens in 1..5_u32, heads in 1..5_u32, outputs in 8..20_u32, cols in 1..80_u32) {
        let mut desk = Desk::new(1, seed);
        let weight = desk.matrix(Packing::Bf16, heads * outputs, cols);
        let (x, out) = (desk.random(tokens * heads, cols, 2.0), desk.output(tokens * heads, outputs));
        check(&mut desk, Op::HeadMatMul { out, x, weight, heads })?;
    }

    #[test]
    fn route_and_combine(
        seed in 1..u64::MAX, tokens in 1..5_u32, experts in 1..100_u32, k in 1..9_u32, renormalize: bool, keep in 0.0..1.5_f32,
    ) {
        let mut desk = Desk::new(1, seed);
        let k = k.min(experts);
        let (logits, bias) = (desk.random(tokens, experts, 4.0), desk.random(1, experts, 0.5));
        let (picks, weights) = (desk.ids(tokens, k, &vec![0; (tokens * k) as usize]), desk.output(tokens, k));
        let routing = Routing { renormalize, scale: 2.5, keep };
        check(&mut desk, Op::Route { picks, weights, logits, bias: Some(bias), routing })?;
        let (rows, out) = (desk.random(tokens * k, 33, 1.0), desk.output(tokens, 33));
        check(&mut desk, Op::Combine { out, rows, picks, weights })?;
    }
}
