//! Cases of `experts`: tables that have only a part, duplicates, no picks, payloads anywhere in a slot.
use super::Size;
use super::case::{Case, Recipe, Values};
use super::linear::MODES;
use crate::op::{Activation, Op};
use crate::tensor::{Activations, ExpertMatrices, Ids, NONE, Packing, Tensor};

/// Experts of a case; each has a slot, whether or not the table says so.
const EXPERTS: u32 = 5;

/// Sizes of one expert: of a token's row and of what lies between the matrices.
#[derive(Clone, Copy)]
struct Shape {
    packing: Packing,
    width: u32,
    inner: u32,
}

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let shape = |packing, width, inner| Shape { packing, width, inner };
    let mut shapes = vec![
        shape(Packing::Mxfp4, 32, 32),
        shape(Packing::Mxfp4, 96, 64),
        shape(Packing::Mxfp4, 64, 160),
        shape(Packing::Bf16, 64, 32),
        shape(Packing::Int8, 64, 32),
        shape(Packing::Int4, 32, 64),
        shape(Packing::F32, 32, 32),
    ];
    if size != Size::Small {
        shapes.extend([shape(Packing::Mxfp4, 544, 512), shape(Packing::Mxfp4, 1056, 288)]);
    }
    let mut list = Vec::new();
    for shape in shapes {
        let Shape { packing, width, inner } = shape;
        for activations in MODES {
            let mode = activations.name();
            let name = format!("experts {} {width} x {inner} {mode}", packing.name());
            list.push(Recipe::new(name, move |case| experts(case, shape, activations)));
        }
    }
    list
}

/// Fills the slots; the expert of the payloads, and where each slot's payload begins.
fn slots(case: &mut Case, shape: Shape) -> (ExpertMatrices, Vec<u32>) {
    let Shape { packing, width, inner } = shape;
    let mut matrices = None;
    let (mut payloads, mut starts) = (Vec::new(), Vec::new());
    for slot in 0..EXPERTS {
        let start = [0, 16, 48, 4096, 1008][slot as usize];
        let mut payload = Vec::new();
        let sizes = [(inner, width), (inner, width), (width, inner)];
        let [gate, up, down] =
            sizes.map(|size| case.stored(&mut payload, packing, size, Values::Scaled(0.1)));
        matrices = Some(ExpertMatrices { gate, up, down });
        payloads.push([vec![0xff; start], payload].concat());
        starts.push(start as u32);
    }
    case.adopt_slots(&payloads);
    let ExpertMatrices { gate, up, down } = matrices.expect("there are experts");
    let [gate, up, down] =
        [gate, up, down].map(|matrix| crate::Matrix { buffer: case.slab_buffer(), ..matrix });
    (ExpertMatrices { gate, up, down }, starts)
}

fn experts(case: &mut Case, shape: Shape, activations: Activations) {
    let (matrices, starts) = slots(case, shape);
    // Ids are not slots: expert 2 i + 1 lies in slot 4 - i, the even ones are nowhere.
    let mut full = vec![NONE; 4 * EXPERTS as usize];
    for i in 0..EXPERTS as usize {
        let slot = EXPERTS as usize - 1 - i;
        full[(2 * i + 1) * 2] = slot as u32;
        full[(2 * i + 1) * 2 + 1] = starts[slot];
    }
    let id = |i: u32| 2 * i + 1;
    let different: Vec<u32> = [0, 1, 2, 3, 4, 2, 0, 1, 4, 3, 2, 1].map(id).to_vec();
    let partly: Vec<u32> = vec![id(0), NONE, 4, id(0), id(3), id(3), NONE, NONE, NONE, 0, 2, id(4)];
    let same = vec![id(2); 9];
    let picks =
        [(different, 4, 3), (partly, 3, 4), (same, 9, 1), (vec![id(1), id(3)], 1, 2), (vec![NONE], 1, 1)];
    let activation = match activations {
        Activations::Int8 => Activation::Silu,
        _ => Activation::Situ { beta: 4.0, linear_beta: 25.0 },
    };
    for (ids, tokens, ranks) in picks {
        let x = case.either(ranks != 3, tokens, shape.width, Values::Scaled(2.0));
        let picks = case.ids(tokens, ranks, &ids);
        let out = case.output(tokens * ranks, shape.width);
        for table in tables(case, &full) {
            case.push(Op::Experts { out, x, picks, table, experts: matrices, activation, activations });
        }
        combine(case, out, picks);
    }
}

/// The same experts arriving in three groups, one of them empty: together they fill what one table fills.
fn tables(case: &mut Case, full: &[u32]) -> Vec<Ids> {
    let part = |keep: fn(usize) -> bool| -> Vec<u32> {
        full.iter().enumerate().map(|(i, word)| if keep(i / 4 % 3) { *word } else { NONE }).collect()
    };
    let parts = [part(|i| i == 1), part(|_| false), part(|i| i != 1)];
    parts.iter().map(|table| case.ids(table.len() as u32 / 2, 2, table)).collect()
}

fn combine(case: &mut Case, rows: Tensor, picks: Ids) {
    let weights = case.input(picks.0.rows, picks.0.cols, Values::Positive);
    let out = case.output(picks.0.rows, rows.cols);
    case.push(Op::Combine { out, rows, picks, weights });
}
