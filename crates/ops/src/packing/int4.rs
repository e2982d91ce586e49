//! int4: 4-bit codes, 2 bytes of scale for 32 columns, 4.5 bits a weight. Layout, tables and encoder; what a row means
//! in a product is in `row.rs`, how the tables were made and what they are worth in docs/packing.md.
//!
//! Codes: byte j of a row holds column 2j in its low and column 2j + 1 in its high nibble, as in MXFP4.
//!
//! Scales: one little-endian u16 a group: bits 0..5 the table of the group's even columns, bits 5..10 that of its odd
//! columns, bits 10..16 the exponent + 56. `weight = table[nibble] * 2^exponent`. The tables differ in size, by steps
//! of about 6 %, and in sign, so the choice of a table is at once a fine scale for 16 columns.

use super::{GROUP, largest_magnitude, unit_exponent};

/// Bytes of scale for one group.
pub const SCALE_BYTES: usize = 2;
/// Stored exponent minus true exponent.
pub const EXPONENT_BIAS: i32 = 56;
/// The largest weight: 127 * 2^7.
pub const WEIGHT_MAX: f32 = 16256.0;
/// Tables to choose from: table t + 16 is table t with all signs turned.
pub const TABLES: usize = 32;

/// The codes of tables 0 to 15. Nibble 8 is 0 in each. Trained once, by Lloyd's algorithm over all tables together,
/// on Gaussian, Student and Laplace numbers; part of the format.
#[rustfmt::skip]
pub const CODES: [[i8; 16]; TABLES / 2] = [
    [-120, -104, -84, -65, -49, -35, -23, -13, 0, 8, 20, 31, 44, 59, 76, 108],
    [-120, -99, -76, -58, -44, -32, -21, -12, 0, 8, 18, 29, 41, 53, 69, 93],
    [-113, -91, -70, -55, -42, -31, -20, -10, 0, 8, 17, 27, 38, 52, 67, 85],
    [-104, -85, -67, -52, -40, -29, -19, -10, 0, 7, 16, 25, 36, 47, 62, 85],
    [-97, -81, -62, -50, -37, -26, -18, -9, 0, 6, 15, 24, 34, 45, 59, 78],
    [-92, -75, -59, -46, -35, -26, -17, -9, 0, 6, 14, 23, 32, 42, 55, 70],
    [-86, -70, -55, -43, -33, -23, -15, -8, 0, 6, 13, 21, 31, 39, 49, 71],
    [-79, -65, -52, -41, -31, -23, -15, -8, 0, 5, 13, 20, 29, 39, 50, 63],
    [-77, -63, -48, -38, -29, -21, -14, -7, 0, 5, 12, 19, 27, 35, 45, 59],
    [-71, -58, -46, -36, -27, -20, -13, -8, 0, 4, 10, 18, 25, 33, 41, 59],
    [-68, -50, -40, -32, -24, -18, -11, -6, 0, 4, 10, 15, 22, 28, 37, 49],
    [-65, -53, -43, -34, -26, -19, -12, -6, 0, 5, 10, 17, 23, 31, 41, 55],
    [-62, -45, -37, -30, -22, -17, -11, -6, 0, 4, 9, 15, 21, 28, 35, 48],
    [-55, -45, -36, -29, -22, -16, -10, -6, 0, 4, 9, 14, 20, 27, 35, 43],
    [-51, -41, -33, -27, -20, -15, -10, -6, 0, 3, 8, 13, 18, 24, 31, 43],
    [-48, -39, -31, -25, -19, -14, -9, -5, 0, 3, 8, 12, 17, 23, 29, 38],
];

/// The codes of table t.
///
/// # Panics
/// If t is not below [`TABLES`].
#[must_use]
pub fn codes(t: usize) -> [i8; 16] {
    let table = CODES[t % (TABLES / 2)];
    assert!(t < TABLES, "table {t} of {TABLES}");
    if t < TABLES / 2 { table } else { table.map(|code| -code) }
}

/// The tables of a group's even and of its odd columns.
#[must_use]
pub fn tables(scale: u16) -> [usize; 2] {
    [usize::from(scale & 31), usize::from((scale >> 5) & 31)]
}

/// The exponent of a group.
#[must_use]
pub fn exponent(scale: u16) -> i32 {
    i32::from(scale >> 10) - EXPONENT_BIAS
}

/// Packs one row. The exponent is the smallest that leaves no weight beyond 127; then the even and the odd columns
/// each take the table with the smallest sum of squared errors (the first of equals), and every weight its nearest
/// code. Weights below 2^-57 may become 0.
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
    // A NaN is not within the limit either.
    let holds = |weight: &f32| weight.abs() <= WEIGHT_MAX;
    if let Some(column) = weights.iter().position(|weight| !holds(weight)) {
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
    let exponent = unit_exponent(largest_magnitude(weights), -EXPONENT_BIAS);
    let halves = super::power_of_two(1 - exponent);
    let bins = weights.map(|weight| (floor(weight * halves) + BINS as i32 / 2) as usize);
    let [even, odd] = [0, 1].map(|parity| best_table(&bins, parity));
    for (j, byte) in codes.iter_mut().enumerate() {
        *byte = nearest(even, bins[2 * j]) | (nearest(odd, bins[2 * j + 1]) << 4);
    }
    (((exponent + EXPONENT_BIAS) as u16) << 10) | ((odd as u16) << 5) | even as u16
}

/// `floor(x)`, without the call that `f32::floor` is where the processor's baseline has no instruction for it.
fn floor(x: f32) -> i32 {
    let towards_zero = x as i32;
    towards_zero - i32::from(towards_zero as f32 > x)
}

/// The table with the smallest error over the columns of one parity, the first of equals.
fn best_table(bins: &[usize; GROUP], parity: usize) -> usize {
    let mut errors = [0_u16; TABLES];
    for pair in bins.as_chunks::<2>().0 {
        for (error, more) in errors.iter_mut().zip(&ERRORS[pair[parity]]) {
            // Saturated errors belong to tables that are no candidates.
            *error = error.saturating_add(*more);
        }
    }
    // The smallest error first and its table then: both are loops over several tables at a time.
    let least = errors.iter().fold(u16::MAX, |least, error| least.min(*error));
    errors.iter().position(|error| *error == least).unwrap_or(0)
}

/// The nibble of table t whose code is nearest to the numbers of a bin.
fn nearest(t: usize, bin: usize) -> u8 {
    if t < TABLES / 2 { NEAREST[t][bin] } else { NEAREST[t - TABLES / 2][mirrored(bin)] }
}

/// The encoder sees weights in units of 2^exponent, cut into bins of half a unit: codes are integers, so the border
/// between two codes is the border of a bin, and one nearest code serves the whole bin. Bin b holds the numbers from
/// (b - 256) / 2 up to the next.
const BINS: usize = 512;

/// The bin of the same numbers with their signs turned.
const fn mirrored(bin: usize) -> usize {
    BINS - 1 - bin
}

/// Nearest nibble by table and bin. A weight on the border of two codes belongs to the bin above it.
static NEAREST: [[u8; BINS]; TABLES / 2] = nearest_nibbles();

/// Squared error by bin and table: with d the distance in quarters of a unit from the middle of the bin to the nearest
/// code, an odd number, it is (d^2 - 1) / 8.
static ERRORS: [[u16; TABLES]; BINS] = squared_errors();

/// Quarters of a unit from a code to the middle of a bin.
const fn distance(bin: usize, code: i8) -> i32 {
    2 * (bin as i32 - BINS as i32 / 2) + 1 - 4 * code as i32
}

const fn nearest_nibbles() -> [[u8; BINS]; TABLES / 2] {
    let mut nibbles = [[0; BINS]; TABLES / 2];
    let mut t = 0;
    while t < TABLES / 2 {
        let (mut bin, mut nibble) = (0, 0);
        while bin < BINS {
            // Codes ascend, so the nearest one does too.
            while nibble < 15
                && distance(bin, CODES[t][nibble + 1]).abs() <= distance(bin, CODES[t][nibble]).abs()
            {
                nibble += 1;
            }
            nibbles[t][bin] = nibble as u8;
            bin += 1;
        }
        t += 1;
    }
    nibbles
}

#[expect(clippy::large_stack_arrays, reason = "runs in the compiler, which has room for 32 KiB")]
const fn squared_errors() -> [[u16; TABLES]; BINS] {
    let mut errors = [[0; TABLES]; BINS];
    let mut bin = 0;
    while bin < BINS {
        let mut t = 0;
        while t < TABLES / 2 {
            let d = distance(bin, CODES[t][NEAREST[t][bin] as usize]);
            let error = ((d * d - 1) / 8) as u16;
            errors[bin][t] = error;
            errors[mirrored(bin)][t + TABLES / 2] = error;
            t += 1;
        }
        bin += 1;
    }
    errors
}
