//! int8: 8-bit numbers, one byte of scale for 32 columns, 8.25 bits a weight. Layout and encoder; what a row means in a
//! product is in `row.rs`.
//!
//! Numbers: signed bytes in blocks of 128 columns. The first half of a block holds the even columns 0, 2, .., 126, the
//! second the odd columns 1, 3, .., 127, so that activations are split into the same two planes as for nibbles. A last
//! block of g groups has halves of 16 g bytes.
//!
//! Scales: one byte a group: bits 0..3 the multiplier - 8, bits 3..8 the exponent + 32.
//! `weight = number * multiplier * 2^exponent`; the code is `number * multiplier`.

use super::{GROUP, exp2, first_beyond, group_exponent, largest_magnitude};

/// Columns of a block of numbers.
pub const BLOCK: usize = 128;
/// Bytes of scale for one group.
pub const SCALE_BYTES: usize = 1;
/// Numbers lie in `-127..=127`; -128 never occurs, so that a number can be negated in a byte.
pub const NUMBER_MAX: i8 = 127;
/// The smallest multiplier.
pub const MULTIPLIER_MIN: i32 = 8;
/// The largest multiplier.
pub const MULTIPLIER_MAX: i32 = 15;
/// Stored exponent minus true exponent.
pub const EXPONENT_BIAS: i32 = 32;
/// The largest weight: 127 * 15 * 2^-1.
pub const WEIGHT_MAX: f32 = 952.5;

/// Where the number of column `c` lies in a row of `cols` columns.
#[must_use]
pub fn position(c: usize, cols: usize) -> usize {
    let block = c - c % BLOCK;
    let half = (cols - block).min(BLOCK) / 2;
    block + (c % 2) * half + (c - block) / 2
}

/// The multiplier of a group.
#[must_use]
pub fn multiplier(scale: u8) -> i32 {
    MULTIPLIER_MIN + i32::from(scale & 7)
}

/// The exponent of a group.
#[must_use]
pub fn exponent(scale: u8) -> i32 {
    i32::from(scale >> 3) - EXPONENT_BIAS
}

/// Packs one row. A group's unit `multiplier * 2^exponent` is the smallest of which its largest weight is at most 127;
/// numbers are rounded to the nearest. Weights below 2^-30 become 0 in a group of such weights.
///
/// # Errors
/// The first column whose weight is not finite or is larger than [`WEIGHT_MAX`].
///
/// # Panics
/// If `codes` is not as long as the row or `scales` has not [`SCALE_BYTES`] for every 32 columns.
pub fn encode_row(weights: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), usize> {
    let cols = weights.len();
    assert_eq!((codes.len(), scales.len()), (cols, SCALE_BYTES * (cols / GROUP)), "sizes of an int8 row");
    if let Some(column) = first_beyond(weights, WEIGHT_MAX) {
        return Err(column);
    }
    let (groups, _) = weights.as_chunks::<GROUP>();
    for (g, (group, stored)) in groups.iter().zip(scales).enumerate() {
        *stored = group_scale(group);
        let numbers = group_numbers(group, *stored);
        for parity in [0, 1] {
            let start = position(g * GROUP + parity, cols);
            for (j, code) in codes[start..start + GROUP / 2].iter_mut().enumerate() {
                *code = numbers[2 * j + parity];
            }
        }
    }
    Ok(())
}

/// The scale with the smallest unit that reaches the largest weight.
fn group_scale(group: &[f32; GROUP]) -> u8 {
    let largest = largest_magnitude(group);
    let exponent = group_exponent(largest, MULTIPLIER_MAX, -EXPONENT_BIAS);
    let reaches = |m: &i32| f64::from(largest) <= f64::from(127 * m) * exp2(exponent);
    let multiplier = (MULTIPLIER_MIN..MULTIPLIER_MAX).find(reaches).unwrap_or(MULTIPLIER_MAX);
    (((exponent + EXPONENT_BIAS) as u8) << 3) | (multiplier - MULTIPLIER_MIN) as u8
}

/// The numbers of a group in the order of its columns.
fn group_numbers(group: &[f32; GROUP], scale: u8) -> [u8; GROUP] {
    // A number added to 1.5 * 2^52 is rounded half to even to an integer, which ends the sum's mantissa. (Rounding by
    // name is a call per weight where the processor's baseline has no instruction for it.)
    const INTEGERS: f64 = 6_755_399_441_055_744.0;
    let inverse = 1.0 / (f64::from(multiplier(scale)) * exp2(exponent(scale)));
    // A loop, for `map` of an array of this length is a call for each element.
    let mut numbers = [0; GROUP];
    for (number, weight) in numbers.iter_mut().zip(group) {
        *number = (f64::from(*weight) * inverse + INTEGERS).to_bits() as u8;
    }
    numbers
}
