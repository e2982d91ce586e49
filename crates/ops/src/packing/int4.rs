//! int4: 4-bit numbers, 2 bytes of scale for 32 columns, 4.5 bits a weight. Layout, table and encoder; what a row means
//! in a product is in `row.rs`, what it is worth in docs/packing.md.
//!
//! Nibbles: byte j of a row holds column 2j in its low and column 2j + 1 in its high nibble, as in MXFP4.
//!
//! Scales: one little-endian u16 a group: bits 0..5 the multiplier of the group's even columns, bits 5..10 that of its
//! odd columns, bits 10..16 the exponent + 60. Of a multiplier, bits 0..3 are m, bit 3 is x, bit 4 the sign: it is
//! `(8 + m) * 2^x`, 8 to 30 in size. `weight = NUMBERS[nibble] * multiplier * 2^exponent`; the code is
//! `NUMBERS[nibble] * multiplier`.
//!
//! The table reaches further down than up, because the largest of 16 weights stands alone; the sign of the multiplier
//! turns the table to the side on which it stands.

use super::{GROUP, exp2, first_beyond, group_exponent, largest_magnitude};

/// Bytes of scale for one group.
pub const SCALE_BYTES: usize = 2;
/// Stored exponent minus true exponent.
pub const EXPONENT_BIAS: i32 = 60;
/// The largest weight: 127 * 24 * 2^3.
pub const WEIGHT_MAX: f32 = 24384.0;
/// What the nibbles stand for. Made once, by Lloyd's algorithm under this file's choice of multipliers, on Gaussian,
/// Student and Laplace numbers; part of the format.
pub const NUMBERS: [i8; 16] = [-127, -104, -82, -64, -48, -35, -23, -12, 0, 8, 19, 31, 44, 58, 74, 98];
/// Multipliers to choose from.
pub const MULTIPLIERS: usize = 32;

/// The exponent is chosen so that the largest weight lies within 127 times this many units: in the upper half of the
/// multipliers' reach, where the columns of the other parity find smaller ones and the sign a larger one.
const UNITS: i32 = 24;

/// The multiplier that the lower 5 bits of a field stand for.
#[must_use]
pub const fn multiplier(field: u16) -> i32 {
    let size = (8 + (field & 7) as i32) << ((field >> 3) & 1);
    if field & 16 == 0 { size } else { -size }
}

/// The multipliers of a group's even and of its odd columns.
#[must_use]
pub fn multipliers(scale: u16) -> [i32; 2] {
    [multiplier(scale), multiplier(scale >> 5)]
}

/// The exponent of a group.
#[must_use]
pub fn exponent(scale: u16) -> i32 {
    i32::from(scale >> 10) - EXPONENT_BIAS
}

/// Packs one row. The exponent is the smallest that leaves the largest weight of a group within 127 * 24 units; then its
/// even and its odd columns each take the multiplier with the smallest sum of squared errors (the first of equals), and
/// every weight its nearest number. Weights below 2^-55 become 0 in a group of such weights.
///
/// # Errors
/// The first column whose weight is not finite or is larger than [`WEIGHT_MAX`].
///
/// # Panics
/// If `codes` has not half a byte a weight or `scales` has not [`SCALE_BYTES`] for every 32 columns.
pub fn encode_row(weights: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<(), usize> {
    let cols = weights.len();
    let sizes = (cols / 2, SCALE_BYTES * (cols / GROUP));
    assert_eq!((codes.len(), scales.len()), sizes, "sizes of an int4 row of {cols}");
    if let Some(column) = first_beyond(weights, WEIGHT_MAX) {
        return Err(column);
    }
    let (groups, _) = weights.as_chunks::<GROUP>();
    let outputs = codes.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
    for (group, (codes, scale)) in groups.iter().zip(outputs) {
        *scale = encode_group(group, codes).to_le_bytes();
    }
    Ok(())
}

fn encode_group(weights: &[f32; GROUP], codes: &mut [u8; GROUP / 2]) -> u16 {
    let exponent = group_exponent(largest_magnitude(weights), UNITS, -EXPONENT_BIAS);
    let to_units = exp2(-exponent) as f32;
    // A loop, for `map` of an array of this length is a call for each element.
    let (mut units, mut bins) = ([0.0; GROUP], [0; GROUP]);
    for ((unit, bin), weight) in units.iter_mut().zip(&mut bins).zip(weights) {
        *unit = weight * to_units;
        *bin = (floor(*unit / BIN) + BINS as i32 / 2) as usize;
    }
    let fields = [0, 1].map(|parity| best_multiplier(&bins, parity));
    let inverses = fields.map(|field| 2.0 / multiplier(field) as f32);
    for (j, byte) in codes.iter_mut().enumerate() {
        *byte = nearest(units[2 * j] * inverses[0]) | (nearest(units[2 * j + 1] * inverses[1]) << 4);
    }
    (((exponent + EXPONENT_BIAS) as u16) << 10) | (fields[1] << 5) | fields[0]
}

/// `floor(x)` of a number below 2^22 in size. `f32::floor` is a call where the processor's baseline has no instruction for
/// it, and a conversion, which asks for infinities and NaN, is done for one number at a time.
fn floor(x: f32) -> i32 {
    // 1.5 * 2^23: a number added to it is rounded to an integer, which ends the sum's mantissa.
    const INTEGERS: f32 = 12_582_912.0;
    let sum = x + INTEGERS;
    let rounded = sum.to_bits().wrapping_sub(INTEGERS.to_bits()).cast_signed();
    rounded - i32::from(sum - INTEGERS > x)
}

/// The multiplier with the smallest error over the columns of one parity, the first of equals.
fn best_multiplier(bins: &[usize; GROUP], parity: usize) -> u16 {
    let mut errors = [0_u16; MULTIPLIERS];
    for pair in bins.as_chunks::<2>().0 {
        for (error, more) in errors.iter_mut().zip(&ERRORS[pair[parity]]) {
            // Saturated errors belong to multipliers that are no candidates.
            *error = error.saturating_add(*more);
        }
    }
    // The smallest error first and its place then: both are loops over several multipliers at a time.
    let least = errors.iter().fold(u16::MAX, |least, error| least.min(*error));
    errors.iter().position(|error| *error == least).unwrap_or(0) as u16
}

/// The nibble whose number is nearest to half of `twice`.
fn nearest(twice: f32) -> u8 {
    let half = HALVES as i32 / 2;
    NEAREST[(floor(twice).clamp(-half, half - 1) + half) as usize]
}

/// Halves from -128 to 128. Numbers are integers, so that the border between two of them is a multiple of a half, and
/// one nearest number serves all between two such borders.
const HALVES: usize = 512;

/// Nearest nibble by half.
static NEAREST: [u8; HALVES] = nearest_nibbles();

const fn nearest_nibbles() -> [u8; HALVES] {
    let mut nibbles = [0; HALVES];
    let (mut half, mut nibble) = (0, 0);
    while half < HALVES {
        // Four times the middle of the half against four times the border to the next number.
        let middle = 2 * (half as i32 - HALVES as i32 / 2) + 1;
        while nibble < 15 && middle > 2 * (NUMBERS[nibble] as i32 + NUMBERS[nibble + 1] as i32) {
            nibble += 1;
        }
        nibbles[half] = nibble as u8;
        half += 1;
    }
    nibbles
}

/// For the choice of the multiplier, weights in units of 2^exponent are cut into bins 8 units wide: an eighth of the
/// smallest distance between codes. 127 * 24 units lie within 381 bins on either side.
const BIN: f32 = 8.0;
const BINS: usize = 768;

/// By bin and multiplier, the squared distance in units from the middle of the bin to the nearest code, divided by 32:
/// under the multiplier 30 no weight is further than 360 units from a code, so that its sum over 16 never saturates and
/// there always is a candidate.
static ERRORS: [[u16; MULTIPLIERS]; BINS] = squared_errors();

#[expect(clippy::large_stack_arrays, reason = "runs in the compiler, which has room for 48 KiB")]
const fn squared_errors() -> [[u16; MULTIPLIERS]; BINS] {
    let mut errors = [[0; MULTIPLIERS]; BINS];
    let mut field = 0;
    while field < MULTIPLIERS / 2 {
        let mut bin = 0;
        while bin < BINS {
            let middle = 8 * (bin as i32 - BINS as i32 / 2) + 4;
            let distance = nearest_distance(middle, multiplier(field as u16));
            let error = (distance * distance + 16) / 32;
            let error = if error > u16::MAX as i32 { u16::MAX } else { error as u16 };
            errors[bin][field] = error;
            // With all signs turned, the same distance lies in the bin on the other side.
            errors[BINS - 1 - bin][field + MULTIPLIERS / 2] = error;
            bin += 1;
        }
        field += 1;
    }
    errors
}

const fn nearest_distance(units: i32, multiplier: i32) -> i32 {
    let mut nearest = i32::MAX;
    let mut nibble = 0;
    while nibble < 16 {
        let distance = (units - NUMBERS[nibble] as i32 * multiplier).abs();
        if distance < nearest {
            nearest = distance;
        }
        nibble += 1;
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::floor;

    #[test]
    fn floor_is_the_integer_below() {
        for i in -30_000..30_000 {
            for x in [
                i as f32 / 8.0,
                i as f32 / 8.0 + 1e-3,
                (i as f32 / 8.0).next_up(),
                (i as f32 / 8.0).next_down(),
            ] {
                assert_eq!(floor(x), x.floor() as i32, "{x}");
            }
        }
        assert_eq!((floor(-0.0), floor(-1e-30), floor(4_194_303.5)), (0, -1, 4_194_303));
    }
}
