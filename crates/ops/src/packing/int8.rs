//! int8: 8-bit codes, 2 bytes of scale for 32 columns, 8.5 bits a weight. Layout and encoder; what a row means in a
//! product is in `row.rs`.
//!
//! Codes: a block of 128 columns is 128 bytes, signed. The first half holds the even columns 0, 2, .., 126, the second
//! the odd columns 1, 3, .., 127, so that activations are split into the same two planes as for nibbles. A last block of
//! g groups has halves of 16 g bytes.
//!
//! Scales: one little-endian u16 a group: bits 8..16 the group's exponent + 133, bits 2i, 2i + 1 the shift of octet i
//! (0 to 3). `weight = code * 2^(exponent - shift)`: a power of two wastes up to one bit of a code, and octets (8
//! neighbouring columns) of small weights win it back with their shift. In a product the shift is an integer one to the
//! left: `weight = (code << (3 - shift)) * 2^(exponent - 3)`.

use super::{GROUP, largest_magnitude, unit_exponent};

/// Columns of a block of codes.
pub const BLOCK: usize = 128;
/// Neighbouring columns that share a shift.
pub const OCTET: usize = 8;
/// Octets of a group.
pub const OCTETS: usize = GROUP / OCTET;
/// Bytes of scale for one group.
pub const SCALE_BYTES: usize = 2;
/// Codes lie in `-127..=127`; -128 never occurs, so that a code can be negated in a byte.
pub const CODE_MAX: i8 = 127;
/// Stored exponent minus true exponent; with it every finite f32 has an exponent that fits.
pub const EXPONENT_BIAS: i32 = 133;
/// The largest shift of an octet.
pub const SHIFT_MAX: i32 = 3;

/// Where the code of column `c` lies in a row of `cols` columns.
#[must_use]
pub fn position(c: usize, cols: usize) -> usize {
    let block = c - c % BLOCK;
    let half = (cols - block).min(BLOCK) / 2;
    block + (c % 2) * half + (c - block) / 2
}

/// The shifts of a group's four octets.
#[must_use]
pub fn shifts(scale: u16) -> [i32; OCTETS] {
    std::array::from_fn(|octet| i32::from((scale >> (2 * octet)) & 3))
}

/// The exponents of a group's four octets.
fn octet_exponents(scale: u16) -> [i32; OCTETS] {
    let exponent = i32::from(scale >> 8) - EXPONENT_BIAS;
    shifts(scale).map(|shift| exponent - shift)
}

/// By how much the codes of a group's four octets are shifted to the left in a product.
#[must_use]
pub fn left_shifts(scale: u16) -> [i32; OCTETS] {
    shifts(scale).map(|shift| SHIFT_MAX - shift)
}

/// The exponent that belongs to codes shifted so.
#[must_use]
pub fn exponent(scale: u16) -> i32 {
    i32::from(scale >> 8) - EXPONENT_BIAS - SHIFT_MAX
}

/// Packs one row. An octet's exponent is the smallest with which its largest weight still has a code, at most
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
        let rounded = group_codes(group, octet_exponents(scale));
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
fn group_codes(group: &[f32; GROUP], exponents: [i32; OCTETS]) -> [u8; GROUP] {
    // A number added to 1.5 * 2^52 is rounded half to even to an integer, which ends the sum's mantissa. (Rounding by
    // name is a call per weight where the processor's baseline has no instruction for it.)
    const INTEGERS: f64 = 6_755_399_441_055_744.0;
    let mut codes = [0; GROUP];
    let octets = group.as_chunks::<OCTET>().0.iter().zip(codes.as_chunks_mut::<OCTET>().0);
    for ((weights, codes), exponent) in octets.zip(exponents) {
        // 2^-exponent can lie beyond f32 at either end; in f64 the product is exact.
        let inverse = super::exp2(-exponent);
        *codes = weights.map(|weight| (f64::from(weight) * inverse + INTEGERS).to_bits() as u8);
    }
    codes
}

/// The scale of a group: its exponent and the shifts of its octets.
fn group_scale(group: &[f32; GROUP]) -> u16 {
    let exponent = unit_exponent(largest_magnitude(group), SHIFT_MAX - EXPONENT_BIAS);
    let mut scale = ((exponent + EXPONENT_BIAS) as u16) << 8;
    for (octet, weights) in group.as_chunks::<OCTET>().0.iter().enumerate() {
        let own = unit_exponent(largest_magnitude(weights), exponent - SHIFT_MAX);
        scale |= ((exponent - own) as u16) << (2 * octet);
    }
    scale
}
