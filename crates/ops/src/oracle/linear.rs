//! Matrix products. What a packed weight and an integer activation mean is in [`crate::packing`].

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::split::{Rows, Split};
use crate::lanes::dot;
use crate::packing::{Prepared, WeightRow, decode_floats};
use crate::tensor::{Activations, Matrix, Packing, Tensor};

pub(super) fn mat_mul(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    x: Tensor,
    weight: Matrix,
    activations: Activations,
) {
    let values = memory.load(x);
    let inputs = prepare(&values, weight, activations);
    let bytes = matrix_bytes(memory, weight);
    let result = product(split, bytes, weight, &inputs);
    memory.store(out, &result);
}

/// The codes and scales of a resident matrix.
fn matrix_bytes(memory: &Memory, weight: Matrix) -> MatrixBytes<'_> {
    let layout = weight.layout();
    let range = |start, bytes| {
        memory.range(weight.buffer, start, bytes).unwrap_or_else(|e| panic!("{weight:?}: {e}"))
    };
    let rows = u64::from(weight.rows);
    MatrixBytes {
        codes: range(weight.codes, rows * layout.code_row_bytes),
        scales: range(weight.scales, rows * layout.scale_row_bytes),
    }
}

/// The bytes of a matrix, wherever they lie.
#[derive(Clone, Copy)]
pub(super) struct MatrixBytes<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
}

/// Rows of activations in the form in which they meet a weight.
pub(super) fn prepare(values: &[f32], weight: Matrix, activations: Activations) -> Vec<Prepared> {
    let rows = values.chunks_exact(weight.cols as usize);
    match weight.packing {
        Packing::F32 | Packing::Bf16 => rows.map(|row| Prepared::new(row, Activations::Exact)).collect(),
        _ => rows.map(|row| Prepared::new(row, activations)).collect(),
    }
}

/// `W x` for every prepared row: \[inputs, rows\].
pub(super) fn product(
    split: &Split,
    bytes: MatrixBytes<'_>,
    weight: Matrix,
    inputs: &[Prepared],
) -> Vec<f32> {
    let (rows, count) = (weight.rows as usize, inputs.len());
    let work = rows as u64 * count as u64 * u64::from(weight.cols);
    let mut by_row = vec![0.0; rows * count];
    split.rows(&mut by_row, count, work, &Products { bytes, weight, inputs });
    transpose(&by_row, count)
}

/// Row r is what output r gives for every input: a weight row is decoded once.
struct Products<'a> {
    bytes: MatrixBytes<'a>,
    weight: Matrix,
    inputs: &'a [Prepared],
}

impl Rows for Products<'_> {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let layout = self.weight.layout();
        let (code_row, scale_row) = (layout.code_row_bytes as usize, layout.scale_row_bytes as usize);
        let codes = &self.bytes.codes[r * code_row..][..code_row];
        let scales = &self.bytes.scales[r * scale_row..][..scale_row];
        let row = WeightRow::decode(self.weight.packing, self.weight.cols as usize, codes, scales);
        for (y, input) in y.iter_mut().zip(self.inputs) {
            *y = row.dot(input);
        }
    }
}

/// \[n, width\] to \[width, n\].
fn transpose(values: &[f32], width: usize) -> Vec<f32> {
    if width == 1 {
        return values.to_vec();
    }
    (0..width).flat_map(|c| values.iter().skip(c).step_by(width)).copied().collect()
}

pub(super) fn head_mat_mul(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    x: Tensor,
    weight: Matrix,
    heads: u32,
) {
    let values = memory.load(x);
    let bytes = matrix_bytes(memory, weight);
    let (heads, cols) = (heads as usize, weight.cols as usize);
    let (outputs, tokens) = (weight.rows as usize / heads, x.rows as usize / heads);
    let mut by_row = vec![0.0; weight.rows as usize * tokens];
    let rows = HeadProducts { codes: bytes.codes, weight, values: &values, heads, outputs };
    split.rows(&mut by_row, tokens, u64::from(weight.rows) * tokens as u64 * cols as u64, &rows);
    // Row t of the transposed holds the outputs of all heads of token t: the rows t H + h side by side.
    let result = transpose(&by_row, tokens);
    memory.store(out, &result);
}

/// Row `h * outputs + o` is what output o of head h gives for every token.
struct HeadProducts<'a> {
    codes: &'a [u8],
    weight: Matrix,
    values: &'a [f32],
    heads: usize,
    outputs: usize,
}

impl Rows for HeadProducts<'_> {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let row_bytes = self.weight.layout().code_row_bytes as usize;
        let row = decode_floats(self.weight.packing, &self.codes[r * row_bytes..][..row_bytes]);
        for (t, y) in y.iter_mut().enumerate() {
            let input = t * self.heads + r / self.outputs;
            *y = dot(&row, &self.values[input * row.len()..][..row.len()]);
        }
    }
}
