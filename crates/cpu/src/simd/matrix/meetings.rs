//! How packed weights meet integers, and f32 in the mode `exact`, in tiles: one group a lane, so that its products are
//! summed where they arise.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]

use super::format::{Format, Padded};
use super::machine::Machine;
use super::tiles::Meeting;
use super::{COLUMNS, GROUPS};
use std::marker::PhantomData;

/// Codes as words, multiplied by their multipliers, meet integers.
pub(super) struct Integers<F>(PhantomData<F>);

/// Bytes of words of a block, in the tile and in an input; exponents follow.
pub(crate) const WORDS: usize = 2 * COLUMNS;
/// Bytes of floats of a block.
pub(crate) const FLOATS: usize = 4 * COLUMNS;

/// The group of a block whose numbers are in a lane of a part of a transposed block.
#[inline(always)]
pub(crate) fn group_of_lane<M: Machine>(part: usize, lane: usize) -> usize {
    part * M::LANES + lane % 4 * (M::LANES / 4) + lane / 4
}

/// The first of the two columns that vector `step` of words has of each group; the other is four further.
pub(crate) const fn column_of_step(step: usize) -> usize {
    step / 4 * 8 + [0, 2, 1, 3][step % 4]
}

/// Calls `body` with a whole block: where it lies, or a copy that is filled up.
macro_rules! whole_block {
    ($format:ty, $codes:ident, $scales:ident, $cols:ident, $body:expr) => {
        if $cols == COLUMNS {
            $body
        } else {
            let padded = Padded::new::<$format>($codes, $scales, $cols);
            let ($codes, $scales) = padded.places();
            $body
        }
    };
}

impl<F: Format> Meeting for Integers<F> {
    const EIGHT_INPUTS: bool = true;
    const INPUT_BYTES: usize = WORDS + 4 * GROUPS;
    type Sum<M: Machine> = M::Wide;

    #[inline(always)]
    fn steps(_cols: usize) -> usize {
        16
    }

    #[inline(always)]
    fn place<M: Machine>(part: usize, step: usize) -> usize {
        (part * 16 + step) * M::BYTES
    }

    #[inline(always)]
    unsafe fn decode<M: Machine>(m: M, codes: *const u8, scales: *const u8, cols: usize, row: *mut u8) {
        // SAFETY: the caller promised the weights and the row.
        unsafe { whole_block!(F, codes, scales, cols, decode_words::<M, F>(m, codes, scales, row)) }
    }

    #[inline(always)]
    fn block_bytes() -> [usize; 2] {
        [F::BLOCK_BYTES, F::SCALE_BYTES * GROUPS]
    }

    #[inline(always)]
    unsafe fn begin<M: Machine>(m: M, _lanes: *const f32) -> M::Wide {
        m.wide_zero()
    }

    #[inline(always)]
    fn add<M: Machine>(m: M, sum: M::Wide, weights: M::Int, inputs: M::Int) -> M::Wide {
        m.dot_words(sum, weights, inputs)
    }

    #[inline(always)]
    unsafe fn end<M: Machine>(
        m: M,
        sum: M::Wide,
        row: *const u8,
        input: *const u8,
        part: usize,
        lanes: *mut f32,
    ) {
        // SAFETY: behind the words of both lie their exponents.
        unsafe {
            let at = WORDS + part * M::BYTES;
            let scale = m.power_of_two(m.add(m.load(row.add(at)), m.load(input.add(at))));
            m.store_floats(lanes, m.fma(m.to_floats(m.wide_sum(sum)), scale, m.load_floats(lanes)));
        }
    }

    #[inline(always)]
    fn ordered<M: Machine>(m: M, lanes: M::Float) -> M::Float {
        m.unmixed(lanes)
    }
}

/// A block as words and exponents, less their bias.
///
/// # Safety
/// The block must be readable, the row writable.
#[inline(always)]
unsafe fn decode_words<M: Machine, F: Format>(m: M, codes: *const u8, scales: *const u8, row: *mut u8) {
    let table = F::table(m, 0);
    for part in 0..GROUPS / M::LANES {
        // SAFETY: the caller promised the block and the row.
        unsafe {
            let scales = F::scales(m, scales.add(part * M::LANES * F::SCALE_BYTES));
            let exponents = m.sub(scales.exponents, m.splat(F::BIAS));
            m.store(row.add(WORDS + part * M::BYTES), m.mixed(exponents));
            let mut factors = scales.multipliers;
            if F::MULTIPLIED {
                // The same word twice.
                factors = factors
                    .map(|factor| m.multiply(m.and(m.mixed(factor), m.splat(0xffff)), m.splat(0x1_0001)));
            }
            let transposed = F::transposed(m, codes, part);
            for i in 0..4 {
                for (parity, bytes) in F::bytes(m, table, &transposed, i).into_iter().enumerate() {
                    for (half, mut words) in [m.even_bytes(bytes), m.odd_bytes(bytes)].into_iter().enumerate()
                    {
                        if F::MULTIPLIED {
                            words = m.multiply_words(words, factors[parity]);
                        }
                        m.store(row.add((part * 16 + 4 * i + 2 * parity + half) * M::BYTES), words);
                    }
                }
            }
        }
    }
}

/// Codes as f32 meet f32.
pub(super) struct Exact<F>(PhantomData<F>);

impl<F: Format> Meeting for Exact<F> {
    const EIGHT_INPUTS: bool = false;
    const INPUT_BYTES: usize = FLOATS;
    type Sum<M: Machine> = M::Float;

    #[inline(always)]
    fn steps(_cols: usize) -> usize {
        32
    }

    #[inline(always)]
    fn place<M: Machine>(part: usize, step: usize) -> usize {
        (part * 32 + step) * M::BYTES
    }

    #[inline(always)]
    unsafe fn decode<M: Machine>(m: M, codes: *const u8, scales: *const u8, cols: usize, row: *mut u8) {
        // SAFETY: the caller promised the weights and the row.
        unsafe { whole_block!(F, codes, scales, cols, decode_floats::<M, F>(m, codes, scales, cols, row)) }
    }

    #[inline(always)]
    fn block_bytes() -> [usize; 2] {
        [F::BLOCK_BYTES, F::SCALE_BYTES * GROUPS]
    }

    #[inline(always)]
    unsafe fn begin<M: Machine>(m: M, _lanes: *const f32) -> M::Float {
        m.zeros()
    }

    #[inline(always)]
    fn add<M: Machine>(m: M, sum: M::Float, weights: M::Int, inputs: M::Int) -> M::Float {
        m.fma(m.as_floats(weights), m.as_floats(inputs), sum)
    }

    #[inline(always)]
    unsafe fn end<M: Machine>(
        m: M,
        sum: M::Float,
        row: *const u8,
        _input: *const u8,
        part: usize,
        lanes: *mut f32,
    ) {
        // SAFETY: behind the floats of the row lie its scales.
        unsafe {
            let scale = m.as_floats(m.load(row.add(FLOATS + part * M::BYTES)));
            m.store_floats(lanes, m.fma(sum, scale, m.load_floats(lanes)));
        }
    }

    #[inline(always)]
    fn ordered<M: Machine>(m: M, lanes: M::Float) -> M::Float {
        m.unmixed(lanes)
    }
}

/// A block as floats and scales.
///
/// # Safety
/// The block must be readable, the row writable.
#[inline(always)]
unsafe fn decode_floats<M: Machine, F: Format>(
    m: M,
    codes: *const u8,
    scales: *const u8,
    cols: usize,
    row: *mut u8,
) {
    for part in 0..GROUPS / M::LANES {
        // SAFETY: the caller promised the block and the row.
        unsafe {
            let (scale, factors) = exact_scales::<M, F>(m, scales, part, cols);
            m.store(row.add(FLOATS + part * M::BYTES), m.to_bits(scale));
            let transposed = F::transposed(m, codes, part);
            for c in 0..32 {
                let code = exact_code::<M, F>(m, &transposed, &factors, c);
                m.store(row.add((part * 32 + c) * M::BYTES), m.to_bits(code));
            }
        }
    }
}

/// The powers of two of a part of a block of `cols` columns, and the multipliers of even and odd columns.
///
/// Lanes of groups that are not there are to stay as they are, even a -0. The sum of their products is +0; times a scale
/// of -0 it is -0, which added changes nothing.
///
/// # Safety
/// The scales of the block must be readable.
#[inline(always)]
pub(super) unsafe fn exact_scales<M: Machine, F: Format>(
    m: M,
    scales: *const u8,
    part: usize,
    cols: usize,
) -> (M::Float, [M::Float; 2]) {
    // SAFETY: the caller promised the bytes.
    let scales = unsafe { F::scales(m, scales.add(part * M::LANES * F::SCALE_BYTES)) };
    let mut scale = m.power_of_two(m.add(m.mixed(scales.exponents), m.splat(127 - F::BIAS)));
    if cols < COLUMNS {
        let mut lanes = [1.0; GROUPS];
        for (lane, present) in lanes.iter_mut().enumerate().take(M::LANES) {
            if group_of_lane::<M>(part, lane) * 32 >= cols {
                *present = -0.0;
            }
        }
        // SAFETY: there are 16 numbers. A scale times 1 is itself, times -0 it is -0.
        scale = m.mul(scale, unsafe { m.load_floats(lanes.as_ptr()) });
    }
    (scale, scales.multipliers.map(|factor| m.to_floats(m.mixed(factor))))
}

/// The codes of column `c` of each group.
#[inline(always)]
pub(super) fn exact_code<M: Machine, F: Format>(
    m: M,
    transposed: &[M::Int; 8],
    factors: &[M::Float; 2],
    c: usize,
) -> M::Float {
    let number = F::float(m, transposed, c / 8, c % 8);
    if F::MULTIPLIED { m.mul(number, factors[c % 2]) } else { number }
}
