//! Cases of `rms_norm`, `l2_norm` and `residual_mix`: every kind of width around the 16 lanes, extremes, views.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::op::Op;

const WIDTHS: [u32; 28] = [
    1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 255, 257, 512, 576, 1000, 1536,
    2048, 4095, 7168, 16384,
];

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let widths = |limit: u32| WIDTHS.into_iter().filter(move |width| *width <= limit);
    let (limit, rows): (u32, &[u32]) = match size {
        Size::Small => (129, &[1, 3]),
        Size::Quick => (16384, &[1, 2, 3, 5, 8, 32]),
        Size::Thorough => (16384, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64]),
    };
    let mut list = Vec::new();
    for width in widths(limit) {
        let rows = rows.to_vec();
        list.push(Recipe::new(format!("norms of {width}"), move |case| norms(case, width, &rows)));
    }
    for (name, values) in extremes() {
        list.push(Recipe::new(format!("norms of {name}"), move |case| extreme(case, values)));
    }
    for width in widths(limit.min(7168)).step_by(3) {
        list.push(Recipe::new(format!("residual_mix of {width}"), move |case| mixes(case, width)));
    }
    list
}

fn extremes() -> [(&'static str, Values); 5] {
    [
        ("huge numbers", Values::Scaled(1e30)),
        ("tiny numbers", Values::Scaled(1e-30)),
        ("subnormal numbers", Values::Subnormal),
        ("zeros", Values::Same(0.0)),
        ("numbers of all sizes", Values::Wide),
    ]
}

fn norms(case: &mut Case, width: u32, rows: &[u32]) {
    let gain = case.input(1, width, Values::Unit);
    for (i, &rows) in rows.iter().enumerate() {
        let plain = i % 2 == 0;
        let x = case.either(plain, rows, width, Values::Unit);
        let out = case.output(rows, width);
        case.push(Op::RmsNorm { out, x, gain, eps: 1e-5 });
        let out = if plain { case.output_view(rows, width) } else { case.output(rows, width) };
        case.push(Op::L2Norm { out, x, eps: 1e-6, scale: 0.088_388_35 });
    }
}

/// Squares of 1e30 overflow: the factor is then 0. Squares of 1e-30 vanish beside eps, or beside nothing.
fn extreme(case: &mut Case, values: Values) {
    if matches!(values, Values::Subnormal | Values::Scaled(1e-30)) {
        case.has_subnormals();
    }
    for width in [5, 16, 40] {
        let (x, gain) = (case.input(3, width, values), case.input(1, width, Values::Unit));
        for eps in [1e-6, 1e-20] {
            let out = case.output(3, width);
            case.push(Op::RmsNorm { out, x, gain, eps });
            let out = case.output(3, width);
            case.push(Op::L2Norm { out, x, eps, scale: 1.0 });
        }
    }
}

fn mixes(case: &mut Case, width: u32) {
    let weight = case.input(1, width, Values::Unit);
    for count in 0..=8 {
        let rows = [1, 2, 5][count as usize % 3];
        let running = case.either(count % 2 == 0, rows, width, Values::Scaled(3.0));
        // More room than is used: the rest holds no numbers yet.
        let room = case.room(10 * rows, width);
        case.fill(room.rows_at(0, count * rows), Values::Scaled(3.0));
        let out = case.output(rows, width);
        case.push(Op::ResidualMix { out, running, snapshots: room, count, weight, eps: 1e-6 });
    }
}
