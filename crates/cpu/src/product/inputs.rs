//! Activations in the form in which they meet weights: quantised once for a product, laid out for its kernels, in memory
//! that is used again. The numbers are those of `ops::packing::activations`. It knows no weight and no thread.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]

use crate::level::Level;
use crate::simd::matrix::{
    COLUMNS, Codes, FLOATS, Form, GROUPS, Kernel, Machine, Planes, WORDS, column_of_step, group_of_lane,
    many_integers, run,
};
use ops::packing::{GROUP, activations};
use ops::{Activations, Packing};

/// What rows are prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The instructions of the kernels.
    pub level: Level,
    /// How they lie.
    pub form: Form,
    /// Count of rows.
    pub rows: usize,
    /// Numbers in a row.
    pub cols: usize,
}

impl Shape {
    /// What `rows` rows of `cols` numbers are to be like, to meet weights of a packing.
    #[must_use]
    pub fn new(level: Level, packing: Packing, activations: Activations, rows: usize, cols: usize) -> Self {
        let few = rows < many_integers(level, packing);
        let form = match (packing, activations) {
            (Packing::F32 | Packing::Bf16, _) => Form::Floats,
            (_, Activations::Exact) => Form::Transposed,
            (_, Activations::Int15) if few => Form::Int15Planes,
            (_, Activations::Int15) => Form::Int15Words,
            (_, Activations::Int8) if few => Form::Int8Planes,
            (_, Activations::Int8) => Form::Int8Words,
        };
        Shape { level, form, rows, cols }
    }

    /// Bytes of a prepared row: a multiple of 64, and odd multiples, so that the same columns of many rows do not
    /// compete for the same places of a cache.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        let bytes = self.form.bytes(self.level, self.cols);
        // One more line tells whether all numbers were finite.
        (bytes.div_ceil(64) | 1) * 64 + 128
    }

    /// Prepares one row into `bytes`, [`Shape::row_bytes`] that start at a multiple of 64.
    ///
    /// # Panics
    /// If a slice is not as long as a row.
    pub fn fill(&self, x: &[f32], bytes: &mut [u8]) {
        assert!(x.len() == self.cols && bytes.len() == self.row_bytes(), "a row of {} in {self:?}", x.len());
        run(self.level, Fill { x, bytes, form: self.form });
    }
}

/// Rows of activations, prepared, where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Prepared<'a> {
    shape: Shape,
    bytes: &'a [u8],
    /// Bytes from a row to the next.
    distance: usize,
}

impl<'a> Prepared<'a> {
    /// The rows of a shape, each of which [`Shape::fill`] has filled.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[must_use]
    pub fn new(shape: Shape, bytes: &'a [u8]) -> Self {
        Self::spaced(shape, bytes, shape.row_bytes())
    }

    /// The same for rows `distance` bytes apart.
    ///
    /// # Panics
    /// If there are fewer bytes, or rows overlap.
    #[must_use]
    pub fn spaced(shape: Shape, bytes: &'a [u8], distance: usize) -> Self {
        let fits = distance >= shape.row_bytes() && bytes.len() >= shape.rows * distance;
        assert!(fits, "{} bytes for {shape:?}, a row every {distance}", bytes.len());
        Prepared { shape, bytes: &bytes[..shape.rows * distance], distance }
    }

    /// Rows `first`, `first + step` and so on.
    #[must_use]
    pub fn every(self, first: usize, step: usize) -> Self {
        let rows = self.shape.rows.saturating_sub(first).div_ceil(step);
        let bytes = if rows == 0 { &[] } else { &self.bytes[first * self.distance..] };
        Prepared { shape: Shape { rows, ..self.shape }, bytes, distance: self.distance * step }
    }

    /// What the rows are like.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Their bytes, and how many there are from a row to the next.
    pub(super) fn bytes(&self) -> (&'a [u8], usize) {
        (self.bytes, self.distance)
    }

    /// Whether a row of integers was made of finite numbers.
    pub(super) fn is_finite(&self, row: usize) -> bool {
        self.bytes[row * self.distance + self.shape.row_bytes() - 64] == FINITE
    }
}

/// Bytes at a multiple of 64, used again and again.
#[derive(Debug, Default)]
pub struct Room {
    /// Grows, never shrinks.
    memory: Vec<u8>,
}

impl Room {
    /// Some bytes, which hold whatever was there. Takes new memory only if it needs more than ever before.
    pub fn bytes(&mut self, count: usize) -> &mut [u8] {
        if count + 63 > self.memory.len() {
            self.memory = vec![0; count + 63];
        }
        let skip = self.memory.as_ptr().align_offset(64);
        &mut self.memory[skip..skip + count]
    }

    /// Bytes it holds.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Prepares all rows of `x`, one every `stride` numbers.
    ///
    /// # Panics
    /// If `x` is too short.
    pub fn prepare(&mut self, shape: Shape, x: &[f32], stride: usize) -> Prepared<'_> {
        let row_bytes = shape.row_bytes();
        let bytes = self.bytes(shape.rows * row_bytes);
        for (r, bytes) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            shape.fill(&x[r * stride..][..shape.cols], bytes);
        }
        Prepared::new(shape, bytes)
    }
}

/// The mark of rows that may meet weights.
const FINITE: u8 = 1;

/// Prepares one row.
struct Fill<'a> {
    x: &'a [f32],
    bytes: &'a mut [u8],
    form: Form,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) {
        let (bytes, mark) = self.bytes.split_at_mut(self.bytes.len() - 64);
        let finite = match self.form {
            Form::Floats => {
                let floats: &mut [f32] = bytemuck::cast_slice_mut(bytes);
                floats[..self.x.len()].copy_from_slice(self.x);
                floats[self.x.len()..self.x.len().next_multiple_of(GROUPS)].fill(0.0);
                true
            }
            Form::Int15Planes => planes::<true>(M::CODES, self.x, bytes),
            Form::Int8Planes => planes::<false>(M::CODES, self.x, bytes),
            Form::Int15Words => words::<M>(self.x, activations::INT15_MAX, bytes),
            Form::Int8Words => words::<M>(self.x, activations::INT8_MAX, bytes),
            Form::Transposed => {
                transposed::<M>(self.x, bytes);
                true
            }
        };
        mark[0] = if finite { FINITE } else { 0 };
    }
}

/// A block of integers.
struct Block {
    q: [i16; COLUMNS],
    /// k + 127: what a stored exponent of weights is added to.
    k: [i32; GROUPS],
    finite: bool,
}

impl Block {
    /// Quantises up to a block of columns; groups that are not there are zeros.
    #[inline(always)]
    fn new(x: &[f32], limit: i16) -> Self {
        let mut block = Block { q: [0; COLUMNS], k: [127; GROUPS], finite: true };
        let groups = block.q.as_chunks_mut::<GROUP>().0.iter_mut().zip(&mut block.k);
        for (x, (q, k)) in x.as_chunks::<GROUP>().0.iter().zip(groups) {
            let largest =
                x.iter().fold(0, |largest, x| (x.to_bits() & 0x7fff_ffff).cast_signed().max(largest));
            if largest >= f32::INFINITY.to_bits().cast_signed() {
                block.finite = false;
            } else if largest > 0 {
                *k = quantise(x, largest, limit, q);
            }
        }
        block
    }
}

/// Quantises a group whose largest magnitude, given as its bits, is not 0, and gives k + 127: k is the smallest, at least
/// -126, with which no integer is above the limit.
#[inline(always)]
fn quantise(x: &[f32; GROUP], largest: i32, limit: i16, q: &mut [i16; GROUP]) -> i32 {
    let power = |biased: i32| f32::from_bits(biased.cast_unsigned() << 23); // 2^(biased - 127)
    // The limit lies just below a power of two, so that this exponent is right or one too low. That of a subnormal
    // number is too large by little, and -126 all the same.
    let smallest = ((largest >> 23) - limit.ilog2().cast_signed()).max(127 + activations::EXPONENT_MIN);
    let scaled = f32::from_bits(largest.cast_unsigned()) * power(254 - smallest);
    let k = if scaled.round_ties_even() <= f32::from(limit) { smallest } else { smallest + 1 };
    let factor = power(254 - k);
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * factor).round_ties_even() as i16;
    }
    k
}

/// A row in planes (see [`Planes`]); whether it is finite.
#[inline(always)]
fn planes<const HALVES: bool>(codes: Codes, x: &[f32], bytes: &mut [u8]) -> bool {
    let limit = if HALVES { activations::INT15_MAX } else { activations::INT8_MAX };
    let mut finite = true;
    let blocks = bytes.chunks_exact_mut(Planes::block(codes, HALVES));
    for (x, bytes) in x.chunks(COLUMNS).zip(blocks) {
        let block = Block::new(x, limit);
        finite &= block.finite;
        let (planes, behind) = bytes.split_at_mut(Planes::bytes(codes, HALVES));
        match codes {
            Codes::Words => word_planes(&block.q, bytemuck::cast_slice_mut(planes)),
            Codes::OffsetBytes | Codes::SignedBytes if HALVES => byte_halves(&block.q, planes),
            Codes::OffsetBytes | Codes::SignedBytes => byte_planes(&block.q, planes),
        }
        let behind: &mut [i32] = bytemuck::cast_slice_mut(behind);
        behind[..GROUPS].copy_from_slice(&block.k);
        for (g, q) in block.q.as_chunks::<GROUP>().0.iter().enumerate() {
            let pairs = q.as_chunks::<2>().0;
            behind[GROUPS + g] = pairs.iter().map(|pair| i32::from(pair[0])).sum();
            behind[2 * GROUPS + g] = pairs.iter().map(|pair| i32::from(pair[1])).sum();
        }
    }
    finite
}

/// Four planes of every fourth column: the columns in which bytes of weights lie as words are taken apart.
#[inline(always)]
fn word_planes(q: &[i16; COLUMNS], planes: &mut [i16]) {
    let (planes, _) = planes.as_chunks_mut::<{ COLUMNS / 4 }>();
    for (plane, first) in planes.iter_mut().zip([0, 2, 1, 3]) {
        for (place, four) in plane.iter_mut().zip(q.as_chunks::<4>().0) {
            *place = four[first];
        }
    }
}

/// The even and the odd columns.
#[inline(always)]
fn byte_planes(q: &[i16; COLUMNS], planes: &mut [u8]) {
    let (even, odd) = planes.split_at_mut(COLUMNS / 2);
    for ((even, odd), pair) in even.iter_mut().zip(odd).zip(q.as_chunks::<2>().0) {
        (*even, *odd) = (pair[0] as u8, pair[1] as u8);
    }
}

/// The upper bytes of the even and of the odd columns, then the lower ones: `q = 128 h + l`.
#[inline(always)]
fn byte_halves(q: &[i16; COLUMNS], planes: &mut [u8]) {
    let (upper, lower) = planes.split_at_mut(COLUMNS);
    byte_planes(&q.map(|q| (q + 64) >> 7), upper);
    byte_planes(&q.map(|q| q - (((q + 64) >> 7) << 7)), lower);
}

/// A row in pairs of words, one group a lane, with exponents behind each block; whether it is finite.
#[inline(always)]
fn words<M: Machine>(x: &[f32], limit: i16, bytes: &mut [u8]) -> bool {
    let mut finite = true;
    for (x, bytes) in x.chunks(COLUMNS).zip(bytes.chunks_exact_mut(WORDS + 4 * GROUPS)) {
        let block = Block::new(x, limit);
        finite &= block.finite;
        let (places, exponents) = bytemuck::cast_slice_mut::<u8, i32>(bytes).split_at_mut(WORDS / 4);
        for (i, exponent) in exponents.iter_mut().enumerate() {
            let group = group_of_lane::<M>(i / M::LANES, i % M::LANES);
            *exponent = block.k[group];
            let q = &block.q[group * GROUP..][..GROUP];
            for step in 0..16 {
                let c = column_of_step(step);
                let place = &mut places[(i / M::LANES * 16 + step) * M::LANES + i % M::LANES];
                *place = i32::from(q[c] as u16) | i32::from(q[c + 4]) << 16;
            }
        }
    }
    finite
}

/// A row of f32, one group a lane; groups that are not there are zeros.
#[inline(always)]
fn transposed<M: Machine>(x: &[f32], bytes: &mut [u8]) {
    for (x, bytes) in x.chunks(COLUMNS).zip(bytes.chunks_exact_mut(FLOATS)) {
        let places: &mut [f32] = bytemuck::cast_slice_mut(bytes);
        for i in 0..GROUPS {
            let first = group_of_lane::<M>(i / M::LANES, i % M::LANES) * GROUP;
            for c in 0..GROUP {
                let value = x.get(first + c).copied().unwrap_or(0.0);
                places[(i / M::LANES * GROUP + c) * M::LANES + i % M::LANES] = value;
            }
        }
    }
}
