//! Matrix products over slices: any range of outputs for all inputs, so that threads can share a product by outputs.
//! The numbers are those of docs/numerics.md, sections 1 and 2, bit for bit. It knows no device, no buffer and no
//! thread.
mod inputs;
#[cfg(test)]
mod tests;

pub use crate::simd::matrix::Form;
pub use crate::simd::outputs::Outputs;
pub use inputs::{Prepared, Room, Shape};

use crate::simd::matrix::{Rows, kernel};
use ops::Packing;
use ops::packing;
use std::ops::Range;

/// A weight matrix where it lies: `rows` outputs by `cols` inputs.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'w> {
    codes: &'w [u8],
    scales: &'w [u8],
    rows: usize,
    cols: usize,
    packing: Packing,
}

impl<'w> Weight<'w> {
    /// A matrix whose codes begin with `codes` and whose scales begin with `scales`, laid out as
    /// [`ops::packing::layout`] says; the slices may go on behind it, and may begin at any address.
    ///
    /// # Panics
    /// If a slice is shorter than the matrix.
    #[must_use]
    pub fn new(packing: Packing, rows: u32, cols: u32, codes: &'w [u8], scales: &'w [u8]) -> Self {
        let layout = packing::layout(packing, rows, cols);
        let (code_bytes, scale_bytes) = (layout.scales as usize, (layout.bytes - layout.scales) as usize);
        assert!(
            codes.len() >= code_bytes && scales.len() >= scale_bytes,
            "{} bytes of codes and {} of scales for a {} matrix of {rows} x {cols}",
            codes.len(),
            scales.len(),
            packing.name()
        );
        let (codes, scales) = (&codes[..code_bytes], &scales[..scale_bytes]);
        Weight { codes, scales, rows: rows as usize, cols: cols as usize, packing }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How it is stored.
    #[must_use]
    pub fn packing(&self) -> Packing {
        self.packing
    }
}

/// What the weight rows `rows` give for every input: column i of `out` is weight row `rows.start + i`.
///
/// # Panics
/// If the inputs were prepared for another kind of weight or number of columns, or if `rows` or `out` do not fit.
pub fn multiply(weight: Weight<'_>, rows: Range<usize>, inputs: Prepared<'_>, mut out: Outputs<'_>) {
    let shape = inputs.shape();
    assert!(rows.start <= rows.end && rows.end <= weight.rows, "rows {rows:?} of {}", weight.rows);
    assert!(shape.cols == weight.cols, "inputs of {} for a matrix of {}", shape.cols, weight.cols);
    assert!(
        out.rows() == shape.rows && out.cols() == rows.len(),
        "a place for {rows:?} of {} inputs",
        shape.rows
    );
    if rows.is_empty() || shape.rows == 0 {
        return;
    }
    let layout = packing::layout(weight.packing, weight.rows as u32, weight.cols as u32);
    let rows = Rows {
        codes: &weight.codes[rows.start * layout.code_row_bytes as usize..],
        scales: &weight.scales[rows.start * layout.scale_row_bytes as usize..],
        packing: weight.packing,
        cols: weight.cols,
    };
    kernel(rows, shape.level, shape.form, inputs.bytes(), &mut out);
    for row in (0..shape.rows).filter(|row| !inputs.is_finite(*row)) {
        out.row_mut(row).fill(f32::NAN);
    }
}
