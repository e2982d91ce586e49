//! Cases in which a NaN or an infinity comes in or arises. Which NaN comes out is not defined; that one does, and that
//! its neighbours stay numbers, is. A row that is not finite never picks an expert.
use super::Size;
use super::case::{Case, Recipe, Values};
use super::linear::{MODES, PACKINGS};
use crate::op::{Activation, DecayFormula, Op, Routing};
use crate::tensor::{LATENT_BLOCK, LatentCache, NONE, Packing, Tensor};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

pub(super) fn recipes(_: Size) -> Vec<Recipe> {
    type Write = fn(&mut Case);
    let list: [(&'static str, Write); 8] = [
        ("mat_mul", mat_muls),
        ("mat_mul that overflows", overflows),
        ("norms", norms),
        ("elementwise", elementwise),
        ("delta", delta),
        ("attend_latent", attend),
        ("route", route),
        ("combine", combine),
    ];
    let recipe = |(name, write): (&'static str, Write)| {
        Recipe::new(format!("not finite: {name}"), move |case| {
            case.has_no_finite_result();
            write(case);
        })
    };
    list.into_iter().map(recipe).collect()
}

/// Rows of which every second has something bad, at another column each time.
fn spoiled(case: &mut Case, rows: u32, cols: u32) -> Tensor {
    let x = case.input(rows, cols, Values::Unit);
    for (i, row) in (0..rows).skip(1).step_by(2).enumerate() {
        case.put(x, row, [0, cols - 1, cols / 2][i % 3], BAD[i % BAD.len()]);
    }
    x
}

fn mat_muls(case: &mut Case) {
    for packing in PACKINGS {
        let weight = case.matrix(packing, 5, 160, Values::Unit);
        let x = spoiled(case, 7, 160);
        for activations in MODES {
            let out = case.output(7, 5);
            case.push(Op::MatMul { out, x, weight, activations });
        }
    }
    let weight = case.matrix(Packing::F32, 2 * 3, 20, Values::Unit);
    let (x, out) = (spoiled(case, 8, 20), case.output(8, 3));
    case.push(Op::HeadMatMul { out, x, weight, heads: 2 });
}

/// Finite operands whose sums leave f32; MXFP4 with every scale.
fn overflows(case: &mut Case) {
    let largest = |packing| match packing {
        Packing::Int4 | Packing::Int8 => Values::Scaled(400.0),
        Packing::Mxfp4 => Values::Wide,
        _ => Values::Scaled(1e30),
    };
    for packing in PACKINGS {
        let weight = case.matrix(packing, 3, 96, largest(packing));
        for size in [1.0, 1e30, f32::MAX] {
            let x = case.input(2, 96, Values::Scaled(size));
            for activations in MODES {
                let out = case.output(2, 3);
                case.push(Op::MatMul { out, x, weight, activations });
            }
        }
    }
    case.has_subnormals();
}

fn norms(case: &mut Case) {
    for width in [1, 17, 64] {
        let x = spoiled(case, 7, width);
        let gain = case.input(1, width, Values::Unit);
        let (rms, l2, mix) = (case.output(7, width), case.output(7, width), case.output(7, width));
        case.push(Op::RmsNorm { out: rms, x, gain, eps: 1e-6 });
        case.push(Op::L2Norm { out: l2, x, eps: 1e-6, scale: 1.0 });
        let snapshots = case.input(14, width, Values::Unit);
        case.put(snapshots, 9, 0, f32::NAN);
        case.push(Op::ResidualMix { out: mix, running: x, snapshots, count: 2, weight: gain, eps: 1e-6 });
    }
}

fn elementwise(case: &mut Case) {
    let (x, y) = (spoiled(case, 7, 9), spoiled(case, 7, 9));
    for (x, y) in [(x, y), (y, x)] {
        for activation in [Activation::Silu, Activation::Situ { beta: 4.0, linear_beta: 25.0 }] {
            let out = case.output(7, 9);
            case.push(Op::Glu { out, gate: x, up: y, activation });
        }
        let (product, sum, copy) = (case.output(7, 9), case.output(7, 9), case.output(7, 9));
        case.push(Op::GateMul { out: product, x, gate: y });
        case.push(Op::Add { out: sum, x, y });
        case.push(Op::Copy { out: copy, x });
        let flags = case.output_ids(7, 1);
        case.push(Op::Finite { out: flags, x: sum });
    }
}

fn delta(case: &mut Case) {
    let (x, window) = (spoiled(case, 7, 20), case.input(20, 3, Values::Unit));
    let (taps, out) = (case.input(20, 4, Values::Unit), case.output(7, 20));
    case.push(Op::ShortConv { out, x, window, taps });
    let (f, a_log, dt_bias) =
        (spoiled(case, 6, 16), case.input(1, 2, Values::Unit), case.input(2, 16, Values::Unit));
    for formula in [DecayFormula::LowerBound(-5.0), DecayFormula::Softplus] {
        let out = case.output(6, 16);
        case.push(Op::DecayGate { out, f, a_log, dt_bias, formula });
    }
    for operand in 0..5 {
        let [q, k, v] = [(); 3].map(|()| case.input(6, 16, Values::Unit));
        let (decay, beta) = (case.input(6, 16, Values::Positive), case.input(3, 2, Values::Unit));
        case.put([q, k, v, decay, beta][operand], 1, 1, BAD[operand % 3]);
        let (state, out) = (case.input(32, 16, Values::Unit), case.output(6, 16));
        case.push(Op::DeltaRule { out, q, k, v, decay, beta, state });
    }
}

/// The token at 66 appends a NaN: it and the later ones see it, the two before do not. One query of the first is bad.
fn attend(case: &mut Case) {
    let pool = case.input(2 * LATENT_BLOCK, 16, Values::Unit);
    let table = case.ids(1, 2, &[1, 0]);
    let cache = LatentCache { pool, table, latent: 16 };
    let latent = case.input(5, 16, Values::Unit);
    case.put(latent, 2, 3, f32::NAN);
    case.push(Op::AppendLatent { latent, rope: None, cache, position: 64 });
    let (q, out) = (case.input(10, 16, Values::Unit), case.output(10, 16));
    case.put(q, 1, 0, f32::INFINITY);
    case.push(Op::AttendLatent {
        out,
        q,
        q_rope: None,
        cache,
        position: 64,
        selected: None,
        heads: 2,
        scale: 0.25,
    });
}

fn route(case: &mut Case) {
    let routing = Routing { renormalize: true, scale: 2.5, keep: 1.0 };
    for experts in [1, 8, 65] {
        let logits = case.room(7, experts);
        for t in 0..7 {
            let row: Vec<f32> =
                case.random.permutation(experts).iter().map(|p| *p as f32 * 7.0 / 65.0 - 3.0).collect();
            case.set(logits.rows_at(t, 1), &row);
        }
        for (row, bad) in [1, 3, 5].into_iter().zip(BAD) {
            case.put(logits, row, row % experts, bad);
        }
        let bias = case.input(1, experts, Values::Same(0.0));
        case.put(bias, 0, experts - 1, f32::NAN);
        for bias in [None, Some(bias)] {
            let k = experts.min(4);
            let (picks, weights) = (case.output_ids(7, k), case.output(7, k));
            case.push(Op::Route { picks, weights, logits, bias, routing });
        }
    }
}

fn combine(case: &mut Case) {
    let rows = spoiled(case, 8, 16);
    let (picks, weights) = (case.ids(4, 2, &[0, 1, 2, 3, 4, 5, 6, 7]), spoiled(case, 4, 2));
    let out = case.output(4, 16);
    case.push(Op::Combine { out, rows, picks, weights });
    // What the router gives for a bad row: the row stays bad.
    let (picks, weights) = (case.ids(2, 2, &[1, 0, NONE, NONE]), case.input(2, 2, Values::Same(f32::NAN)));
    case.fill(weights.rows_at(0, 1), Values::Positive);
    let (rows, out) = (case.input(4, 16, Values::Unit), case.output(2, 16));
    case.push(Op::Combine { out, rows, picks, weights });
}
