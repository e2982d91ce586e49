//! The packings of docs/packing.md as kernels see them: blocks of 512 columns, numbers as signed bytes, scales as an
//! exponent and multipliers. It knows no activations.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::machine::Machine;
use ops::packing::{int4, int8, mxfp4};

/// What the scales of `LANES` groups say, one group a lane.
#[derive(Clone, Copy)]
pub(crate) struct Scales<M: Machine> {
    /// The stored exponents; the true ones are [`Format::BIAS`] lower.
    pub(crate) exponents: M::Int,
    /// The multipliers of the even and of the odd columns; unused where the format has none.
    pub(crate) multipliers: [M::Int; 2],
}

/// A packing. Vectors of numbers come as pairs: the even and the odd columns of `LANES / 4` groups.
pub(crate) trait Format: Copy {
    /// Bytes of codes in a block of 512 columns.
    const BLOCK_BYTES: usize;
    /// Bytes of scale of a group.
    const SCALE_BYTES: usize;
    /// Whether a code is a number times a multiplier.
    const MULTIPLIED: bool;
    /// Whether even and odd columns have different multipliers.
    const SPLIT: bool;
    /// Stored exponent minus true exponent.
    const BIAS: i32;
    /// Added to a number it makes an unsigned byte.
    const OFFSET: i32;

    /// What [`Format::numbers`] looks numbers up in; `offset` is 0 or [`Format::OFFSET`].
    fn table<M: Machine>(m: M, offset: i32) -> M::Int;

    /// The numbers of vector `v` of a block, as bytes; with the offset that the table was made with.
    ///
    /// # Safety
    /// The whole block must be readable.
    unsafe fn numbers<M: Machine>(m: M, table: M::Int, block: *const u8, v: usize) -> [M::Int; 2];

    /// The stored bytes of `LANES` groups transposed (see [`Machine::transpose`]), `part` counting such parts of a block.
    ///
    /// # Safety
    /// The whole block must be readable.
    unsafe fn transposed<M: Machine>(m: M, block: *const u8, part: usize) -> [M::Int; 8];

    /// The numbers of columns 8 i to 8 i + 7 of each group as signed bytes, even and odd ones.
    fn bytes<M: Machine>(m: M, table: M::Int, transposed: &[M::Int; 8], i: usize) -> [M::Int; 2];

    /// The number of column 8 i + k of each group.
    fn float<M: Machine>(m: M, transposed: &[M::Int; 8], i: usize, k: usize) -> M::Float;

    /// The scales of `LANES` groups.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M>;

    /// The codes of a block of `cols` columns, the last of its row, as part of a whole block.
    fn pad(codes: &[u8], cols: usize, block: &mut [u8; 512]);
}

/// Checkpoints' own 4-bit floats.
#[derive(Clone, Copy)]
pub(crate) struct Mxfp4;

/// 4-bit numbers of a table.
#[derive(Clone, Copy)]
pub(crate) struct Int4;

/// 8-bit numbers.
#[derive(Clone, Copy)]
pub(crate) struct Int8;

/// A packing whose numbers are looked up by nibble.
trait Nibbles: Copy {
    const NUMBERS: [i8; 16];
    const SCALE_BYTES: usize;
    const MULTIPLIED: bool;
    const BIAS: i32;
    const OFFSET: i32;
    /// Moved up to unsigned bytes.
    const MOVED: [i8; 16] = {
        let mut moved = Self::NUMBERS;
        let mut i = 0;
        while i < 16 {
            moved[i] = (moved[i] as i32 + Self::OFFSET) as i8;
            i += 1;
        }
        moved
    };
    const FLOATS: [f32; 16] = {
        let mut floats = [0.0; 16];
        let mut i = 0;
        while i < 16 {
            floats[i] = Self::NUMBERS[i] as f32;
            i += 1;
        }
        floats
    };

    /// # Safety
    /// The scales of `LANES` groups must be readable.
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M>;
}

impl Nibbles for Mxfp4 {
    const NUMBERS: [i8; 16] = mxfp4::CODES;
    const SCALE_BYTES: usize = 1;
    const MULTIPLIED: bool = false;
    const BIAS: i32 = mxfp4::EXPONENT_BIAS;
    const OFFSET: i32 = 12;

    #[inline(always)]
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M> {
        // SAFETY: the caller promised the bytes.
        let exponents = unsafe { m.widen_bytes(from) };
        Scales { exponents, multipliers: [exponents; 2] }
    }
}

impl Nibbles for Int4 {
    const NUMBERS: [i8; 16] = int4::NUMBERS;
    const SCALE_BYTES: usize = int4::SCALE_BYTES;
    const MULTIPLIED: bool = true;
    const BIAS: i32 = int4::EXPONENT_BIAS;
    const OFFSET: i32 = 127;

    #[inline(always)]
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M> {
        // SAFETY: the caller promised the bytes.
        let scales = unsafe { m.widen_words(from) };
        let multipliers = [m.int4_multipliers(scales), m.int4_multipliers(m.shift_right(scales, 5))];
        Scales { exponents: m.shift_right(scales, 10), multipliers }
    }
}

impl<N: Nibbles> Format for N {
    const BLOCK_BYTES: usize = 256;
    const SCALE_BYTES: usize = N::SCALE_BYTES;
    const MULTIPLIED: bool = N::MULTIPLIED;
    const SPLIT: bool = N::MULTIPLIED;
    const BIAS: i32 = N::BIAS;
    const OFFSET: i32 = N::OFFSET;

    #[inline(always)]
    fn table<M: Machine>(m: M, offset: i32) -> M::Int {
        m.table(if offset == 0 { &N::NUMBERS } else { &N::MOVED })
    }

    #[inline(always)]
    unsafe fn numbers<M: Machine>(m: M, table: M::Int, block: *const u8, v: usize) -> [M::Int; 2] {
        // SAFETY: the vector lies in the block, which the caller promised.
        let stored = unsafe { m.load(block.add(v * M::BYTES)) };
        [m.lookup(table, m.low_nibbles(stored)), m.lookup(table, m.high_nibbles(stored))]
    }

    #[inline(always)]
    unsafe fn transposed<M: Machine>(m: M, block: *const u8, part: usize) -> [M::Int; 8] {
        let mut groups = [m.splat(0); 4];
        for (i, group) in groups.iter_mut().enumerate() {
            // SAFETY: the vector lies in the block, which the caller promised.
            *group = unsafe { m.load(block.add((4 * part + i) * M::BYTES)) };
        }
        let [a, b, c, d] = m.transpose(groups);
        [a, b, c, d, a, b, c, d]
    }

    #[inline(always)]
    fn bytes<M: Machine>(m: M, table: M::Int, transposed: &[M::Int; 8], i: usize) -> [M::Int; 2] {
        let stored = transposed[i];
        [m.lookup(table, m.low_nibbles(stored)), m.lookup(table, m.high_nibbles(stored))]
    }

    #[inline(always)]
    fn float<M: Machine>(m: M, transposed: &[M::Int; 8], i: usize, k: usize) -> M::Float {
        m.nibble_floats(&N::FLOATS, transposed[i], k as u32)
    }

    #[inline(always)]
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M> {
        // SAFETY: the same promise.
        unsafe { <N as Nibbles>::scales(m, from) }
    }

    fn pad(codes: &[u8], _cols: usize, block: &mut [u8; 512]) {
        block[..codes.len()].copy_from_slice(codes);
    }
}

/// Where the even numbers of the group `first` begin in a block; the odd ones follow 64 bytes later.
const fn int8_place(first: usize) -> usize {
    first / 4 * int8::BLOCK + first % 4 * 16
}

impl Format for Int8 {
    const BLOCK_BYTES: usize = 512;
    const SCALE_BYTES: usize = int8::SCALE_BYTES;
    const MULTIPLIED: bool = true;
    const SPLIT: bool = false;
    const BIAS: i32 = int8::EXPONENT_BIAS;
    const OFFSET: i32 = 128;

    /// What turns the sign bit, which adds 128.
    #[inline(always)]
    fn table<M: Machine>(m: M, offset: i32) -> M::Int {
        m.splat(if offset == 0 { 0 } else { i32::from_ne_bytes([0x80; 4]) })
    }

    #[inline(always)]
    unsafe fn numbers<M: Machine>(m: M, table: M::Int, block: *const u8, v: usize) -> [M::Int; 2] {
        // SAFETY: both vectors lie in the block, which the caller promised.
        let [even, odd] = unsafe {
            let even = block.add(int8_place(v * M::LANES / 4));
            [m.load(even), m.load(even.add(int8::BLOCK / 2))]
        };
        [m.xor(even, table), m.xor(odd, table)]
    }

    #[inline(always)]
    unsafe fn transposed<M: Machine>(m: M, block: *const u8, part: usize) -> [M::Int; 8] {
        let mut planes = [[m.splat(0); 4]; 2];
        for i in 0..4 {
            // SAFETY: the same promise.
            [planes[0][i], planes[1][i]] = unsafe { Self::numbers(m, m.splat(0), block, 4 * part + i) };
        }
        let ([a, b, c, d], [e, f, g, h]) = (m.transpose(planes[0]), m.transpose(planes[1]));
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn bytes<M: Machine>(_m: M, _table: M::Int, transposed: &[M::Int; 8], i: usize) -> [M::Int; 2] {
        [transposed[i], transposed[4 + i]]
    }

    #[inline(always)]
    fn float<M: Machine>(m: M, transposed: &[M::Int; 8], i: usize, k: usize) -> M::Float {
        let plane = transposed[4 * (k % 2) + i];
        m.to_floats(m.shift_right_signed(m.shift_left(plane, 24 - 8 * (k as u32 / 2)), 24))
    }

    #[inline(always)]
    unsafe fn scales<M: Machine>(m: M, from: *const u8) -> Scales<M> {
        // SAFETY: the caller promised the bytes.
        let scales = unsafe { m.widen_bytes(from) };
        let multiplier = m.add(m.and(scales, m.splat(7)), m.splat(int8::MULTIPLIER_MIN));
        Scales { exponents: m.shift_right(scales, 3), multipliers: [multiplier; 2] }
    }

    /// The halves of the last 128 columns lie closer together if these are not whole.
    fn pad(codes: &[u8], cols: usize, block: &mut [u8; 512]) {
        let whole = cols - cols % int8::BLOCK;
        let half = (cols - whole) / 2;
        let (first, second) = (whole, whole + int8::BLOCK / 2);
        block[..whole].copy_from_slice(&codes[..whole]);
        block[first..first + half].copy_from_slice(&codes[whole..whole + half]);
        if half > 0 {
            block[second..second + half].copy_from_slice(&codes[whole + half..]);
        }
    }
}

/// A last block that is not full, filled up with zeros: the inputs there are zeros too.
pub(crate) struct Padded {
    codes: [u8; 512],
    scales: [u8; 32],
}

impl Padded {
    /// # Safety
    /// The bytes of `cols` columns, a multiple of 32, and their scales must be readable.
    #[inline(never)]
    pub(crate) unsafe fn new<F: Format>(codes: *const u8, scales: *const u8, cols: usize) -> Self {
        let mut padded = Padded { codes: [0; 512], scales: [0; 32] };
        // SAFETY: the caller promised them.
        let (codes, scales) = unsafe {
            (
                std::slice::from_raw_parts(codes, F::BLOCK_BYTES * cols / 512),
                std::slice::from_raw_parts(scales, F::SCALE_BYTES * cols / 32),
            )
        };
        padded.scales[..scales.len()].copy_from_slice(scales);
        F::pad(codes, cols, &mut padded.codes);
        padded
    }

    /// Where its codes and its scales are.
    pub(crate) fn places(&self) -> (*const u8, *const u8) {
        (self.codes.as_ptr(), self.scales.as_ptr())
    }
}
