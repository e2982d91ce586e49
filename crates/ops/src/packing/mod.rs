//! How weights are stored and what their bytes mean: f32, bf16, int8, int4 and the checkpoint's MXFP4. The layouts
//! in tables, and the measurements behind them, are in docs/packing.md.
//!
//! The packed kinds share one geometry (docs/numerics.md, section 2): groups of 32 columns with one exponent, integer
//! codes, `weight = code * 2^exponent`; a group's products are summed as integers. int8 and int4 store a code in two
//! factors: a small number for each column and a multiplier in the scale. Even and odd columns lie apart or in the
//! two nibbles of a byte, so that activations are split into the same two planes for every packing.
//!
//! This module knows no device, no file and no tensor name.

pub mod activations;
pub mod int4;
pub mod int8;
pub mod mxfp4;
mod row;
#[cfg(test)]
mod tests;

pub use activations::{IntegerRow, Prepared};
pub use row::WeightRow;

use crate::tensor::Packing;
use rayon::prelude::*;

/// Columns that share a scale.
pub const GROUP: usize = 32;
/// Largest size of a code: 32 * 4128 * 16256 < 2^31, so that the sum of a group is exact in an i32, and
/// 32 * 4128 * 127 < 2^24, so that the sums of the two bytes of an `int15` activation are exact in an f32.
pub const CODE_MAX: i32 = 4128;

/// Sizes of a stored matrix: all rows of codes, then all rows of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the whole matrix.
    pub bytes: u64,
    /// Where the scales begin, counted from the first code: a multiple of 16 in every packing that has them.
    pub scales: u64,
    /// Bytes from one row of codes (or floats) to the next.
    pub code_row_bytes: u64,
    /// Bytes from one row of scales to the next; 0 where the packing has none.
    pub scale_row_bytes: u64,
}

/// The sizes of a matrix \[rows, cols\].
///
/// # Panics
/// If `cols` is not a multiple of [`GROUP`] and the packing has groups.
#[must_use]
pub fn layout(packing: Packing, rows: u32, cols: u32) -> Layout {
    let (rows, cols) = (u64::from(rows), u64::from(cols));
    let groups = cols / GROUP as u64;
    let (code_row_bytes, scale_row_bytes) = match packing {
        Packing::F32 => (4 * cols, 0),
        Packing::Bf16 => (2 * cols, 0),
        Packing::Int8 => (cols, int8::SCALE_BYTES as u64 * groups),
        Packing::Int4 => (cols / 2, int4::SCALE_BYTES as u64 * groups),
        Packing::Mxfp4 => (cols / 2, groups),
    };
    let whole = scale_row_bytes == 0 || cols == groups * GROUP as u64;
    assert!(whole, "{} needs columns in groups of {GROUP}, found {cols} columns", packing.name());
    let scales = rows * code_row_bytes;
    Layout { bytes: scales + rows * scale_row_bytes, scales, code_row_bytes, scale_row_bytes }
}

/// A weight that a packing cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the weight {value} in row {row}, column {column} cannot be packed: {}",
    if value.is_finite() {
        "int8 holds sizes up to 952.5, int4 up to 24384; load the dense matrices as bf16"
    } else {
        "weights must be finite; the checkpoint is damaged"
    }
)]
pub struct PackError {
    /// Its row, counted from the first row that was given.
    pub row: usize,
    /// Its column.
    pub column: usize,
    /// The weight itself.
    pub value: f32,
}

/// Packs rows of `cols` weights to int8 or int4: all rows of codes and all rows of scales, as in [`layout`]. Rows are
/// shared out among rayon's threads; the bytes do not depend on how.
///
/// # Errors
/// The first weight in row order that is not finite, or is too large for the packing.
///
/// # Panics
/// For other packings (nothing is ever encoded to MXFP4, and floats are stored as they come), and if `weights` is not
/// whole rows.
pub fn encode(packing: Packing, weights: &[f32], cols: u32) -> Result<(Vec<u8>, Vec<u8>), PackError> {
    let width = cols as usize;
    assert!(width > 0 && weights.len().is_multiple_of(width), "{} weights in rows of {cols}", weights.len());
    let rows = weights.len() / width;
    let sizes = layout(packing, 1, cols);
    let mut codes = vec![0; rows * sizes.code_row_bytes as usize];
    let mut scales = vec![0; rows * sizes.scale_row_bytes as usize];
    encode_rows(packing, cols, (&mut codes, &mut scales), |row, into| {
        into.copy_from_slice(&weights[row * width..][..width]);
    })?;
    Ok((codes, scales))
}

/// The same for weights that `fill(row, weights)` writes when they are wanted, into places for codes and scales, whose
/// length says how many rows there are.
///
/// # Errors
/// As [`encode`].
///
/// # Panics
/// For other packings, and if the places are not whole rows, as many of codes as of scales.
pub fn encode_rows(
    packing: Packing,
    cols: u32,
    (codes, scales): (&mut [u8], &mut [u8]),
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<(), PackError> {
    type EncodeRow = fn(&[f32], &mut [u8], &mut [u8]) -> Result<(), usize>;
    let encode_row: EncodeRow = match packing {
        Packing::Int8 => int8::encode_row,
        Packing::Int4 => int4::encode_row,
        Packing::F32 | Packing::Bf16 | Packing::Mxfp4 => {
            panic!("encode packs to int8 or int4, asked was {}", packing.name())
        }
    };
    let sizes = layout(packing, 1, cols);
    let (code_row, scale_row) = (sizes.code_row_bytes as usize, sizes.scale_row_bytes as usize);
    let rows = codes.len() / code_row;
    assert_eq!((codes.len(), scales.len()), (rows * code_row, rows * scale_row), "rows of codes and scales");
    let refused = codes
        .par_chunks_exact_mut(code_row)
        .zip(scales.par_chunks_exact_mut(scale_row))
        .enumerate()
        .map_init(
            || vec![0.0; cols as usize],
            |weights, (row, (codes, scales))| {
                fill(row, weights);
                let column = encode_row(weights, codes, scales).err()?;
                Some(PackError { row, column, value: weights[column] })
            },
        )
        .flatten()
        .min_by_key(|error| error.row);
    refused.map_or(Ok(()), Err)
}

/// The floats of an f32 or bf16 row (little-endian).
///
/// # Panics
/// For packed kinds, whose rows [`WeightRow::decode`] reads.
#[must_use]
pub fn decode_floats(packing: Packing, bytes: &[u8]) -> Vec<f32> {
    match packing {
        Packing::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Packing::Bf16 => {
            let widen = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            bytes.as_chunks().0.iter().map(widen).collect()
        }
        Packing::Int8 | Packing::Int4 | Packing::Mxfp4 => panic!("{} rows hold no floats", packing.name()),
    }
}

/// 2^e as an f32, for e in -126..=127.
#[must_use]
pub(crate) fn power_of_two(e: i32) -> f32 {
    debug_assert!((-126..=127).contains(&e), "2^{e} is not a normal f32");
    f32::from_bits(((e + 127) as u32) << 23)
}

/// `floor(log2(x))` of a finite x > 0, subnormal or not.
fn floor_log2(x: f32) -> i32 {
    ((f64::from(x).to_bits() >> 52) as i32) - 1023
}

/// The smallest e >= `least` with `largest <= 127 * units * 2^e`, for 8 to 31 units; `least` for 0.
fn group_exponent(largest: f32, units: i32, least: i32) -> i32 {
    if largest == 0.0 {
        return least;
    }
    // 127 * units lies between 2^9 and 2^12, so the first e is too small or the one, and at most three steps up follow.
    let fits = |e: i32| f64::from(largest) <= f64::from(127 * units) * exp2(e);
    let mut e = floor_log2(largest) - 11;
    while !fits(e) {
        e += 1;
    }
    e.max(least)
}

/// 2^e as an f64, for e in -1022..=1023.
fn exp2(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The largest magnitude of finite numbers. Without a sign their bits order as they do, and a maximum of integers is
/// computed several at a time.
fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(
        values.iter().fold(0, |largest, value| value.abs().to_bits().cast_signed().max(largest)) as u32
    )
}

/// The first weight that is not finite or is larger than `limit`.
fn first_beyond(weights: &[f32], limit: f32) -> Option<usize> {
    // A NaN is not within the limit either.
    let holds = |weight: &f32| weight.abs() <= limit;
    weights.iter().position(|weight| !holds(weight))
}
