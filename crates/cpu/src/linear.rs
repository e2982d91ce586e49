//! Matrix products: inputs prepared once, outputs shared out among threads.

use crate::device::Machine;
use crate::memory::{Cut, View, ViewMut};
use crate::pool::Pool;
use crate::product::{Prepared, Room, Shape, Weight, multiply};
use ops::{Activations, Matrix};

/// Codes and scales of a matrix.
pub(crate) type Bytes<'a> = [&'a [u8]; 2];

/// Outputs of a part are a multiple of this: kernels take as many weight rows at a time.
const TOGETHER: usize = 12;
/// Parts for a thread, so that one that is slow or late does fewer.
const PARTS: usize = 4;
/// What preparing a number costs, in multiply-adds.
pub(crate) const PREPARE_COST: usize = 8;

/// How many outputs a part has, if `products` of `outputs` each are to keep `threads` busy.
pub(crate) fn part_outputs(outputs: usize, products: usize, threads: usize) -> usize {
    let parts = if threads == 1 { 1 } else { (threads * PARTS).div_ceil(products.max(1)) };
    outputs.div_ceil(parts).next_multiple_of(TOGETHER).max(TOGETHER)
}

/// Prepares rows of inputs; `x` gives them by number.
pub(crate) fn prepare<'r, 'x>(
    pool: &mut Pool,
    room: &'r mut Room,
    shape: Shape,
    x: impl Fn(usize) -> &'x [f32] + Sync,
) -> Prepared<'r> {
    let row_bytes = shape.row_bytes();
    let bytes = room.bytes(shape.rows * row_bytes);
    let rows = ViewMut::from_slice(&mut *bytes, shape.rows, row_bytes);
    let cost = (shape.rows * shape.cols * PREPARE_COST) as u64;
    pool.each(cost, rows.cut(Cut::Blocks(1, row_bytes)), |r, mut row| shape.fill(x(r), row.row(0)));
    Prepared::new(shape, bytes)
}

pub(crate) fn mat_mul(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    bytes: Bytes<'_>,
    weight: Matrix,
    activations: Activations,
) {
    let weight = Weight::new(weight.packing, weight.rows, weight.cols, bytes[0], bytes[1]);
    let Machine { level, pool, scratch } = machine;
    let shape = Shape::new(*level, weight.packing(), activations, x.rows(), weight.cols());
    let inputs = prepare(pool, &mut scratch.inputs, shape, |r| x.row(r));
    let (rows, cols) = (out.rows(), out.cols());
    let size = (rows.max(1), part_outputs(cols, 1, pool.threads()));
    let cost = (rows * cols * x.cols()) as u64;
    pool.each(cost, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [_, outputs] = Cut::block(size, i, rows, cols);
        multiply(weight, outputs, inputs, out.outputs());
    });
}

pub(crate) fn head_mat_mul(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    codes: &[u8],
    weight: Matrix,
    heads: usize,
) {
    let weight = Weight::new(weight.packing, weight.rows, weight.cols, codes, &[]);
    let Machine { level, pool, scratch } = machine;
    let shape = Shape::new(*level, weight.packing(), Activations::Exact, x.rows(), weight.cols());
    let inputs = prepare(pool, &mut scratch.inputs, shape, |r| x.row(r));
    let outputs = out.cols();
    let cost = (out.rows() * outputs * x.cols()) as u64;
    pool.each(cost, out.cut(Cut::Every(heads)), |head, mut out| {
        let rows = head * outputs..(head + 1) * outputs;
        multiply(weight, rows, inputs.every(head, heads), out.outputs());
    });
}
