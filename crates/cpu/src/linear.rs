//! Matrix products.

#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the instructions")]

use crate::device::Machine;
use crate::memory::{Cut, View, ViewMut};
use ops::packing::{Prepared, WeightRow, decode_floats};
use ops::{Activations, Kernel, Matrix, Packing, lanes, with_fma};

/// Codes and scales of a matrix.
pub(crate) type Bytes<'a> = [&'a [u8]; 2];

/// Outputs of a part.
const OUTPUTS: usize = 16;

pub(crate) fn mat_mul(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    bytes: Bytes<'_>,
    weight: Matrix,
    activations: Activations,
) {
    let activations = match weight.packing {
        Packing::F32 | Packing::Bf16 => Activations::Exact,
        _ => activations,
    };
    let inputs: Vec<Prepared> = (0..x.rows()).map(|r| Prepared::new(x.row(r), activations)).collect();
    let (rows, cols) = (out.rows(), out.cols());
    let size = (rows.max(1), OUTPUTS);
    let cost = (rows * cols * x.cols()) as u64;
    machine.pool.each(cost, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [_, outputs] = Cut::block(size, i, rows, cols);
        for (o, output) in outputs.enumerate() {
            let row = weight_row(bytes, weight, output);
            for (r, input) in inputs.iter().enumerate() {
                out.row(r)[o] = with_fma(Dot(&row, input));
            }
        }
    });
}

fn weight_row(bytes: Bytes<'_>, weight: Matrix, row: usize) -> WeightRow {
    let layout = weight.layout();
    let (codes, scales) = (layout.code_row_bytes as usize, layout.scale_row_bytes as usize);
    let (codes, scales) = (&bytes[0][row * codes..][..codes], &bytes[1][row * scales..][..scales]);
    WeightRow::decode(weight.packing, weight.cols as usize, codes, scales)
}

struct Dot<'a>(&'a WeightRow, &'a Prepared);

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        self.0.dot(self.1)
    }
}

pub(crate) fn head_mat_mul(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    codes: &[u8],
    weight: Matrix,
    heads: usize,
) {
    let row_bytes = weight.layout().code_row_bytes as usize;
    let cost = (out.rows() * out.cols() * x.cols()) as u64;
    machine.pool.each(cost, out.cut(Cut::Every(heads)), |head, mut out| {
        let x = x.every(head, heads);
        for o in 0..out.cols() {
            let row =
                decode_floats(weight.packing, &codes[(head * out.cols() + o) * row_bytes..][..row_bytes]);
            for t in 0..out.rows() {
                out.row(t)[o] = with_fma(FloatDot(&row, x.row(t)));
            }
        }
    });
}

struct FloatDot<'a>(&'a [f32], &'a [f32]);

impl Kernel for FloatDot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        lanes::dot(self.0, self.1)
    }
}
