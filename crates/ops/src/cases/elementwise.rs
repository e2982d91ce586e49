//! Cases of the elementwise ops and of `finite` and `combine`.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::op::{Activation, Op};
use crate::tensor::{NONE, Tensor};

const SHAPES: [(u32, u32); 22] = [
    (1, 1),
    (1, 2),
    (3, 5),
    (1, 15),
    (2, 8),
    (1, 17),
    (31, 1),
    (3, 11),
    (7, 9),
    (8, 8),
    (5, 13),
    (1, 127),
    (3, 43),
    (5, 51),
    (10, 100),
    (17, 241),
    (255, 257),
    (256, 256),
    (1, 65537),
    (32, 7168),
    (262_145, 1),
    (1, 262_145),
];

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let limit = if size == Size::Small { 1000 } else { u32::MAX };
    let mut list = Vec::new();
    for (rows, cols) in SHAPES.into_iter().filter(|(rows, cols)| rows * cols <= limit) {
        list.push(Recipe::new(format!("elementwise {rows} x {cols}"), move |case| {
            elementwise(case, rows, cols, Values::Scaled(8.0));
        }));
    }
    let values = [
        ("wide", Values::Wide),
        ("subnormal", Values::Subnormal),
        ("plus zero", Values::Same(0.0)),
        ("minus zero", Values::Same(-0.0)),
        ("large", Values::Scaled(200.0)),
        ("tiny", Values::Scaled(1e-37)),
    ];
    for (name, values) in values {
        list.push(Recipe::new(format!("elementwise {name}"), move |case| elementwise(case, 9, 37, values)));
    }
    list.push(Recipe::new("finite".to_owned(), finite));
    for width in [1, 16, 33, 96, 257, 3584].into_iter().filter(|width| *width <= limit) {
        list.push(Recipe::new(format!("combine of {width}"), move |case| combine(case, width)));
    }
    list
}

fn elementwise(case: &mut Case, rows: u32, cols: u32, values: Values) {
    if matches!(values, Values::Subnormal | Values::Wide | Values::Scaled(1e-37)) {
        case.has_subnormals();
    }
    let x = case.input(rows, cols, values);
    let y = case.view(rows, cols, values);
    for (x, y) in [(x, y), (y, x)] {
        for activation in [Activation::Silu, Activation::Situ { beta: 4.0, linear_beta: 25.0 }] {
            let out = case.output(rows, cols);
            case.push(Op::Glu { out, gate: x, up: y, activation });
        }
        let out = case.output_view(rows, cols);
        case.push(Op::GateMul { out, x, gate: y });
        let out = case.output(rows, cols);
        case.push(Op::Add { out, x, y });
        let out = case.output_view(rows, cols);
        case.push(Op::Copy { out, x });
    }
    chain(case, x, y);
}

/// Ops that wait for the one before them in the same submission.
fn chain(case: &mut Case, x: Tensor, y: Tensor) {
    let [copy, sum, product] = [(); 3].map(|()| case.output(x.rows, x.cols));
    case.push(Op::Copy { out: copy, x });
    case.push(Op::Add { out: sum, x: copy, y });
    case.push(Op::GateMul { out: product, x: sum, gate: copy });
}

fn finite(case: &mut Case) {
    for width in [1, 15, 16, 17, 129, 1000] {
        let x = case.either(width % 2 == 0, 7, width, Values::Unit);
        case.put(x, 1, 0, f32::NAN);
        case.put(x, 2, width - 1, f32::INFINITY);
        case.put(x, 4, width / 2, f32::NEG_INFINITY);
        case.put(x, 5, width / 2, f32::MAX);
        let out = case.output_ids(7, 1);
        case.push(Op::Finite { out, x });
    }
}

fn combine(case: &mut Case, width: u32) {
    for (tokens, ranks) in [(1, 1), (1, 8), (3, 16), (5, 3)] {
        let rows = case.input(tokens * ranks, width, Values::Unit);
        let weights = case.input(tokens, ranks, Values::Positive);
        let mut ids: Vec<u32> = (0..tokens * ranks).map(|_| case.random.below(90)).collect();
        for i in (2..ids.len()).step_by(5) {
            ids[i] = NONE;
            // What lies in the row of no pick does not matter.
            case.fill(rows.rows_at(i as u32, 1), Values::Same(f32::NAN));
        }
        let picks = case.ids(tokens, ranks, &ids);
        let out = case.output(tokens, width);
        case.push(Op::Combine { out, rows, picks, weights });
    }
    let rows = case.input(4, width, Values::Unit);
    let weights = case.input(1, 4, Values::Unit);
    let (picks, out) = (case.ids(1, 4, &[NONE; 4]), case.output(1, width));
    case.push(Op::Combine { out, rows, picks, weights });
}
