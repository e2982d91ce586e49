//! Cases of `mat_mul` and `head_mat_mul`: every packing with every kind of activations, columns around groups and
//! blocks, one row and many.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::op::Op;
use crate::tensor::{Activations, Packing};

pub(super) const PACKINGS: [Packing; 5] =
    [Packing::F32, Packing::Bf16, Packing::Int8, Packing::Int4, Packing::Mxfp4];
pub(super) const MODES: [Activations; 3] = [Activations::Int15, Activations::Int8, Activations::Exact];
/// Columns of packed matrices.
const COLUMNS: [u32; 12] = [32, 64, 96, 128, 160, 288, 384, 512, 544, 1056, 2048, 7168];
/// Columns that only unpacked matrices may have.
const ODD_COLUMNS: [u32; 9] = [1, 2, 15, 16, 17, 31, 33, 129, 1001];
/// Rows of weights: around the tiles that kernels like.
const OUTPUTS: [u32; 8] = [1, 2, 3, 5, 8, 17, 33, 64];

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let (limit, rows): (u32, &[u32]) = match size {
        Size::Small => (160, &[1, 3]),
        Size::Quick => (7168, &[1, 2, 3, 7, 32]),
        Size::Thorough => (7168, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65]),
    };
    let mut list = Vec::new();
    for packing in PACKINGS {
        let mut columns: Vec<u32> = COLUMNS.to_vec();
        if matches!(packing, Packing::F32 | Packing::Bf16) {
            columns.extend(ODD_COLUMNS);
        } else if size == Size::Thorough {
            columns.extend((6..36).map(|groups| groups * 32));
        }
        for (i, cols) in columns.into_iter().filter(|cols| *cols <= limit).enumerate() {
            let rows = rows.to_vec();
            let outputs = if cols > 2000 { 5 } else { OUTPUTS[i % OUTPUTS.len()] };
            let name = format!("mat_mul {} {outputs} x {cols}", packing.name());
            list.push(Recipe::new(name, move |case| mat_muls(case, packing, (outputs, cols), &rows)));
        }
        for (name, weights, inputs) in extremes() {
            let name = format!("mat_mul {} {name}", packing.name());
            list.push(Recipe::new(name, move |case| extreme(case, packing, weights, inputs)));
        }
        let name = format!("mat_mul {} where a group is zero", packing.name());
        list.push(Recipe::new(name, move |case| zero_groups(case, packing)));
    }
    for packing in [Packing::F32, Packing::Bf16] {
        let name = format!("head_mat_mul {}", packing.name());
        list.push(Recipe::new(name, move |case| head_mat_muls(case, packing, size)));
    }
    list
}

fn mat_muls(case: &mut Case, packing: Packing, (outputs, cols): (u32, u32), rows: &[u32]) {
    let weight = case.matrix(packing, outputs, cols, Values::Scaled(0.06));
    for (i, &rows) in rows.iter().enumerate() {
        let x = case.either(i % 2 == 0, rows, cols, Values::Scaled(2.0));
        for activations in MODES {
            let out = if i % 3 == 1 { case.output_view(rows, outputs) } else { case.output(rows, outputs) };
            case.push(Op::MatMul { out, x, weight, activations });
        }
    }
}

/// Sizes of weights and of activations at which every product is still a number.
fn extremes() -> [(&'static str, Values, Values); 6] {
    [
        ("with large activations", Values::Scaled(0.01), Values::Scaled(1e34)),
        ("with activations of all sizes", Values::Scaled(0.01), Values::Wide),
        ("with tiny activations", Values::Unit, Values::Scaled(1e-36)),
        ("with subnormal activations", Values::Unit, Values::Subnormal),
        ("with small weights", Values::Scaled(1e-12), Values::Unit),
        ("with large weights", Values::Scaled(400.0), Values::Scaled(1e20)),
    ]
}

fn extreme(case: &mut Case, packing: Packing, weights: Values, inputs: Values) {
    if matches!(inputs, Values::Subnormal | Values::Scaled(1e-36)) {
        case.has_subnormals();
    }
    let weight = case.matrix(packing, 4, 160, weights);
    for rows in [1, 3] {
        let x = case.input(rows, 160, inputs);
        for activations in MODES {
            let out = case.output(rows, 4);
            case.push(Op::MatMul { out, x, weight, activations });
        }
    }
}

/// Groups of zeros among others on both sides, and a whole row of each sign of zero.
fn zero_groups(case: &mut Case, packing: Packing) {
    let weight = case.matrix(packing, 3, 544, Values::Scaled(0.1));
    let x = case.input(4, 544, Values::Unit);
    for start in [0, 64, 512] {
        case.fill(x.columns_at(start, 32), Values::Same(0.0));
    }
    case.fill(x.rows_at(1, 1), Values::Same(0.0));
    case.fill(x.rows_at(2, 1), Values::Same(-0.0));
    let nothing = case.matrix(packing, 2, 544, Values::Same(0.0));
    for weight in [weight, nothing] {
        for activations in MODES {
            let out = case.output(4, weight.rows);
            case.push(Op::MatMul { out, x, weight, activations });
        }
    }
}

fn head_mat_muls(case: &mut Case, packing: Packing, size: Size) {
    let mut shapes = vec![(1, 5, 7), (2, 16, 16), (3, 4, 33), (8, 12, 24)];
    if size != Size::Small {
        shapes.extend([(4, 128, 128), (3, 512, 192)]);
    }
    for (heads, outputs, cols) in shapes {
        let weight = case.matrix(packing, heads * outputs, cols, Values::Unit);
        for tokens in [1, 2, 5] {
            // A query's parts are columns of its heads.
            let x = case.either(tokens == 1, tokens * heads, cols, Values::Unit);
            let out = case.output(tokens * heads, outputs);
            case.push(Op::HeadMatMul { out, x, weight, heads });
        }
    }
}
