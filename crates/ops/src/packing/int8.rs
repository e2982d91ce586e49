//! int8: 8-bit codes, 2 bytes of scale for 32 columns, 8.5 bits a weight. Layout and encoder; what a row means in a
//! product is in `row.rs`.
//!
//! Codes: a block of 128 columns is 128 bytes, signed. The first half holds the even columns 0, 2, .., 126, the second
//! the odd columns 1, 3, .., 127: word j of either half (4 bytes) belongs to lane j. A last block of g groups has
//! halves of 16 g bytes.
//!
//! Scales: one little-endian u16 a group: bits 8..16 the group's exponent + 133, bits 2i, 2i + 1 the shift of lane i
//! (0 to 3). `weight = code * 2^(exponent - shift)`: a power of two wastes up to one bit of a code, and lanes of small
//! weights win it back with their shift.

use super::{BLOCK, GROUP, LANE, LANES_OF_GROUP, largest_magnitude, unit_exponent};

/// Bytes of scale for one group.
pub const SCALE_BYTES: usize = 2;
/// Codes lie in `-127..=127`; -128 never occurs, so that a code can be negated in a byte.
pub const CODE_MAX: i8 = 127;
/// Stored exponent minus true exponent; with it every finite f32 has an exponent that fits.
pub const EXPONENT_BIAS: i32 = 133;
/// The largest shift of a lane.
pub const SHIFT_MAX: i32 = 3;

/// Where the code of column `c` lies in a row of `cols` columns.
#[must_use]
pub fn position(c: usize, cols: usize) -> usize {
    let block = c - c % BLOCK;
    let half = (cols - block).min(BLOCK) / 2;
    block + (c % 2) * half + (c - block) / 2
}

/// The exponents of a group's four lanes from its scale.
#[must_use]
pub fn lane_exponents(scale: u16) -> [i32; LANES_OF_GROUP] {
    let exponent = i32::from(scale >> 8) - EXPONENT_BIAS;
    std::array::from_fn(|lane| exponent - i32::from((scale >> (2 * lane)) & 3))
}

/// Packs one row. A lane's exponent is the smallest with which its largest weight still has a code, at most
/// [`SHIFT_MAX`] below that of its group; codes are rounded half to even. Packing a decoded row again gives the
/// same bytes.
///
/// # Errors
/// The first column whose weight is not finite.
///
/// # Panics
/// If `codes` is not as long as the row or `scales` has not [`SCALE_BYTES`] for every 32 columns.
pub fn encode_row(weights: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), usize> {
    let cols = weights.len();
    assert_eq!((codes.len(), scales.len()), (cols, SCALE_BYTES * (cols / GROUP)), "sizes of an int8 row");
    if let Some(column) = weights.iter().position(|w| !w.is_finite()) {
        return Err(column);
    }
    let (groups, _) = weights.as_chunks::<GROUP>();
    for (g, (group, stored)) in groups.iter().zip(scales.as_chunks_mut().0).enumerate() {
        let scale = group_scale(group);
        *stored = scale.to_le_bytes();
        let rounded = group_codes(group, lane_exponents(scale));
        for parity in [0, 1] {
            let start = position(g * GROUP + parity, cols);
            for (j, code) in codes[start..start + GROUP / 2].iter_mut().enumerate() {
                *code = rounded[2 * j + parity];
            }
        }
    }
    Ok(())
}

/// The codes of a group in the order of its columns.
fn group_codes(group: &[f32; GROUP], exponents: [i32; LANES_OF_GROUP]) -> [u8; GROUP] {
    // A number added to 1.5 * 2^52 is rounded half to even to an integer, which ends the sum's mantissa. (Rounding by
    // name is a call per weight where the processor's baseline has no instruction for it.)
    const INTEGERS: f64 = 6_755_399_441_055_744.0;
    let mut codes = [0; GROUP];
    let lanes = group.as_chunks::<LANE>().0.iter().zip(codes.as_chunks_mut::<LANE>().0);
    for ((weights, codes), exponent) in lanes.zip(exponents) {
        // 2^-exponent can lie beyond f32 at either end; in f64 the product is exact.
        let inverse = super::exp2(-exponent);
        *codes = weights.map(|weight| (f64::from(weight) * inverse + INTEGERS).to_bits() as u8);
    }
    codes
}

/// The scale of a group: its exponent and the shifts of its lanes.
fn group_scale(group: &[f32; GROUP]) -> u16 {
    let exponent = unit_exponent(largest_magnitude(group), SHIFT_MAX - EXPONENT_BIAS);
    let mut scale = ((exponent + EXPONENT_BIAS) as u16) << 8;
    for (lane, weights) in group.as_chunks::<LANE>().0.iter().enumerate() {
        let own = unit_exponent(largest_magnitude(weights), exponent - SHIFT_MAX);
        scale |= ((exponent - own) as u16) << (2 * lane);
    }
    scale
}
