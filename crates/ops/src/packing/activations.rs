//! Activations as they meet packed weights: integers with a power of two for 32 columns, or f32 as they are. The
//! definition (docs/numerics.md, section 2), scalar; fast devices have their own code for the same numbers.

use super::{GROUP, floor_log2, largest_magnitude, power_of_two};
use crate::tensor::Activations;

/// Largest integer of `int15`: 127 * 128, so that both halves of [`split`] are bytes.
pub const INT15_MAX: i16 = 16256;
/// Largest integer of `int8`.
pub const INT8_MAX: i16 = 127;
/// Smallest exponent of a group.
pub const EXPONENT_MIN: i32 = -126;

/// A row of activations in the form in which it meets a weight row.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// As they are: for f32 and bf16 weights, and in the mode `exact`.
    Floats(Vec<f32>),
    /// Quantised.
    Integers(IntegerRow),
}

impl Prepared {
    /// Prepares a row for one mode.
    ///
    /// # Panics
    /// If the mode has integers and the row is not a multiple of 32 long.
    #[must_use]
    pub fn new(x: &[f32], mode: Activations) -> Self {
        match mode {
            Activations::Exact => Prepared::Floats(x.to_vec()),
            Activations::Int15 => Prepared::Integers(IntegerRow::new(x, INT15_MAX)),
            Activations::Int8 => Prepared::Integers(IntegerRow::new(x, INT8_MAX)),
        }
    }
}

/// `x = q * 2^k` up to rounding, one k for 32 columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegerRow {
    /// One integer a column.
    pub q: Vec<i16>,
    /// One exponent a group.
    pub k: Vec<i32>,
    /// Whether a group is finite throughout. One that is not has q = 0, k = 0, and makes every dot product NaN.
    pub finite: Vec<bool>,
}

impl IntegerRow {
    /// Quantises to integers up to `limit` in size: per group the smallest k >= -126 with which all
    /// `q = round(x * 2^-k)`, half to even, stay within it; a group of zeros has k = 0.
    ///
    /// # Panics
    /// If the row is not a multiple of 32 long, or the limit is not positive.
    #[must_use]
    pub fn new(x: &[f32], limit: i16) -> Self {
        let (groups, rest) = x.as_chunks::<GROUP>();
        assert!(rest.is_empty() && limit > 0, "{} activations, limit {limit}", x.len());
        let mut row = IntegerRow {
            q: Vec::with_capacity(x.len()),
            k: Vec::with_capacity(groups.len()),
            finite: Vec::with_capacity(groups.len()),
        };
        for group in groups {
            row.push(group, limit);
        }
        row
    }

    fn push(&mut self, group: &[f32; GROUP], limit: i16) {
        let finite = group.iter().all(|x| x.is_finite());
        self.finite.push(finite);
        let largest = largest_magnitude(group);
        if !finite || largest == 0.0 {
            self.q.extend([0; GROUP]);
            self.k.push(0);
            return;
        }
        let k = exponent(largest, limit);
        self.k.push(k);
        self.q.extend(group.map(|x| round_scaled(x, k) as i16));
    }
}

/// The smallest k >= -126 with `round(largest * 2^-k) <= limit`.
fn exponent(largest: f32, limit: i16) -> i32 {
    let limit = f32::from(limit);
    // From here on the quotient is below twice the limit's leading power of two; at most one step up follows.
    let k = (floor_log2(largest) - floor_log2(limit)).max(EXPONENT_MIN);
    if round_scaled(largest, k) <= limit { k } else { k + 1 }
}

/// `round(x * 2^-k)`, half to even. The product is exact, or so small that it rounds to 0 either way.
fn round_scaled(x: f32, k: i32) -> f32 {
    (x * power_of_two(-k)).round_ties_even()
}

/// The two bytes (h, l) of an `int15` integer: `q = 128 h + l` with h in -127..=127 and l in -64..=63.
#[must_use]
pub fn split(q: i16) -> (i8, i8) {
    let h = (q + 64) >> 7;
    (h as i8, (q - 128 * h) as i8)
}
