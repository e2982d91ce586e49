//! Handles: what an op names. A handle is small and copied freely; the numbers lie on the device.

use crate::packing;

/// One allocation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buffer(pub u32);

/// f32 numbers on a device: `rows` rows of `cols` numbers, one row every `stride` numbers.
///
/// A head is a row: `q` of T tokens and H heads of d numbers is `T * H` rows of d, row `t * H + h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The allocation it lies in.
    pub buffer: Buffer,
    /// Its first number, counted in numbers of 4 bytes from the start of the buffer.
    pub offset: u64,
    /// Number of rows.
    pub rows: u32,
    /// Numbers in a row.
    pub cols: u32,
    /// Numbers from the start of a row to the start of the next.
    pub stride: u32,
}

/// u32 numbers on a device (picks, tables), in the shape of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids(pub Tensor);

/// The id that stands for "none": no pick, no slot, no block.
pub const NONE: u32 = u32::MAX;

impl Tensor {
    /// Consecutive rows from `offset` on.
    #[must_use]
    pub fn new(buffer: Buffer, offset: u64, rows: u32, cols: u32) -> Self {
        Tensor { buffer, offset, rows, cols, stride: cols }
    }

    /// Rows `start..start + rows`.
    #[must_use]
    pub fn rows_at(self, start: u32, rows: u32) -> Self {
        assert!(start + rows <= self.rows, "rows {start}..{} of {self:?}", start + rows);
        Tensor { offset: self.offset + u64::from(start) * u64::from(self.stride), rows, ..self }
    }

    /// Columns `start..start + cols` of every row.
    #[must_use]
    pub fn columns_at(self, start: u32, cols: u32) -> Self {
        assert!(start + cols <= self.cols, "columns {start}..{} of {self:?}", start + cols);
        Tensor { offset: self.offset + u64::from(start), cols, ..self }
    }

    /// The same numbers as `rows` rows of `cols`; for rows that follow each other without gaps.
    #[must_use]
    pub fn reshape(self, rows: u32, cols: u32) -> Self {
        assert!(self.is_contiguous(), "a reshaped tensor has no gaps between rows: {self:?}");
        assert_eq!(u64::from(rows) * u64::from(cols), self.elements(), "reshape of {self:?}");
        Tensor { rows, cols, stride: cols, ..self }
    }

    /// Every row of `cols` numbers as `cols / width` rows of `width`: one row a head.
    #[must_use]
    pub fn heads(self, width: u32) -> Self {
        assert_eq!(self.cols % width, 0, "heads of {width} in {self:?}");
        self.reshape(self.rows * (self.cols / width), width)
    }

    /// Whether rows follow each other without gaps.
    #[must_use]
    pub fn is_contiguous(self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// Count of its numbers.
    #[must_use]
    pub fn elements(self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols)
    }

    /// First byte and the byte after the last, in its buffer; gaps between rows lie inside.
    #[must_use]
    pub fn byte_range(self) -> (u64, u64) {
        if self.elements() == 0 {
            return (self.offset * 4, self.offset * 4);
        }
        let last = u64::from(self.rows - 1) * u64::from(self.stride) + u64::from(self.cols);
        (self.offset * 4, (self.offset + last) * 4)
    }
}

/// How the numbers of a weight are stored. Layouts: `docs/packing.md`, code: [`crate::packing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Packing {
    /// 4 bytes a weight.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// 8-bit codes in groups of columns.
    Int8,
    /// 4-bit codes in groups of columns.
    Int4,
    /// OCP microscaling FP4: e2m1 codes, one ue8m0 scale for 32 columns.
    Mxfp4,
}

impl Packing {
    /// The name used in settings and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Packing::F32 => "f32",
            Packing::Bf16 => "bf16",
            Packing::Int8 => "int8",
            Packing::Int4 => "int4",
            Packing::Mxfp4 => "mxfp4",
        }
    }
}

/// A weight matrix, `rows` outputs by `cols` inputs, row-major, with codes and scales in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The allocation it lies in.
    pub buffer: Buffer,
    /// First byte of the weights or codes.
    pub codes: u64,
    /// First byte of the scales; unused where the packing has none.
    pub scales: u64,
    /// Outputs.
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
    /// How it is stored.
    pub packing: Packing,
}

impl Matrix {
    /// Bytes of its rows of codes and scales.
    #[must_use]
    pub fn layout(&self) -> packing::Layout {
        packing::layout(self.packing, self.rows, self.cols)
    }
}

/// The three matrices of a routed expert; offsets count from the start of its payload in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMatrices {
    /// \[inner, width\]
    pub gate: Matrix,
    /// \[inner, width\]
    pub up: Matrix,
    /// \[width, inner\]
    pub down: Matrix,
}

/// What activations become before they meet packed weights (f32 and bf16 weights always meet f32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// 15-bit integers with one power of two for 32 columns.
    #[default]
    Int15,
    /// 8-bit integers with one power of two for 32 columns.
    Int8,
    /// f32 as they are.
    Exact,
}

impl Activations {
    /// The name used in settings and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Activations::Int15 => "int15",
            Activations::Int8 => "int8",
            Activations::Exact => "exact",
        }
    }
}

/// Cached rows of one latent-attention layer: blocks of [`LATENT_BLOCK`] positions behind a table.
///
/// Position p of the sequence lies in row `table[p / 64] * 64 + p % 64` of `pool`, its first `latent` numbers the
/// normed latent, the rest the rope part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentCache {
    /// All blocks of the layer, shared by all sequences: \[blocks * 64, latent + rope\].
    pub pool: Tensor,
    /// The sequence's block ids in order of position: \[1, blocks\].
    pub table: Ids,
    /// Numbers of the latent part in a row.
    pub latent: u32,
}

/// Positions in a block of the latent cache, and in a step of the running softmax.
pub const LATENT_BLOCK: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_name_the_numbers_they_say() {
        let t = Tensor::new(Buffer(0), 10, 4, 6);
        assert_eq!(t.rows_at(1, 2), Tensor { offset: 16, rows: 2, ..t });
        let part = t.columns_at(2, 3);
        assert_eq!((part.offset, part.cols, part.stride), (12, 3, 6));
        assert!(!part.is_contiguous());
        assert_eq!(part.byte_range(), (48, (12 + 3 * 6 + 3) * 4));
        assert_eq!(t.heads(2), Tensor::new(Buffer(0), 10, 12, 2));
    }

    #[test]
    #[should_panic(expected = "no gaps")]
    fn a_view_with_gaps_is_not_reshaped() {
        let _ = Tensor::new(Buffer(0), 0, 4, 6).columns_at(0, 3).reshape(2, 6);
    }
}
