//! MXFP4: the checkpoint's own bytes, read and never written. Byte j of a row of codes holds column 2j in its low and
//! column 2j + 1 in its high nibble; one ue8m0 scale byte for 32 columns.
//!
//! Source: OCP Microscaling Formats (MX) 1.0. The code here is twice the e2m1 value, so that it is an integer, and the
//! exponent one lower.

/// Code of each nibble: twice the e2m1 value; nibble 8 is -0 and counts as 0.
pub const CODES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scale byte that stands for NaN.
pub const SCALE_NAN: u8 = 255;

/// Stored exponent minus true exponent.
pub const EXPONENT_BIAS: i32 = 128;

/// `weight = code * 2^exponent`.
#[must_use]
pub fn exponent(scale: u8) -> i32 {
    i32::from(scale) - EXPONENT_BIAS
}
