//! f32 and bf16 weights times f32: the dot product of docs/numerics.md, section 1.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::machine::Machine;
use super::tiles::Meeting;
use super::{Ahead, COLUMNS, GROUPS, Job, Kernel};
use std::marker::PhantomData;

/// How a float weight is stored.
pub(super) trait Number: Copy {
    /// Bytes of one.
    const BYTES: usize;

    /// `LANES` numbers.
    ///
    /// # Safety
    /// They must be readable.
    unsafe fn load<M: Machine>(m: M, from: *const u8) -> M::Float;
}

/// 4 bytes.
#[derive(Clone, Copy)]
pub(super) struct F32;

/// The upper half of an f32.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Number for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<M: Machine>(m: M, from: *const u8) -> M::Float {
        // SAFETY: the caller promised the bytes.
        m.as_floats(unsafe { m.load(from) })
    }
}

impl Number for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<M: Machine>(m: M, from: *const u8) -> M::Float {
        // SAFETY: the caller promised the bytes.
        m.as_floats(m.shift_left(unsafe { m.widen_words(from) }, 16))
    }
}

/// A last block of 16 that is not full, filled up with zeros.
#[inline(always)]
unsafe fn padded<W: Number>(from: *const u8, cols: usize) -> [u8; 4 * GROUPS] {
    let mut bytes = [0; 4 * GROUPS];
    // SAFETY: the caller promised `cols` numbers, which are fewer than 16.
    let given = unsafe { std::slice::from_raw_parts(from, cols * W::BYTES) };
    bytes[..given.len()].copy_from_slice(given);
    bytes
}

/// All rows of a job, for one or a few inputs.
pub(super) struct FewFloats<W> {
    job: Job,
    number: PhantomData<W>,
}

impl<W: Number> FewFloats<W> {
    /// # Safety
    /// Everything that the job implies must be there: weights of this kind, inputs as floats filled up to blocks of
    /// 16, places for all results.
    pub(super) unsafe fn new(job: Job) -> Self {
        FewFloats { job, number: PhantomData }
    }
}

impl<W: Number> Kernel for FewFloats<W> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let job = self.job;
        let mut input = 0;
        // SAFETY: all rows and inputs are within the job, which `new` was promised.
        unsafe {
            while input + 2 <= job.count {
                all_rows::<M, W, 2>(m, &job, input);
                input += 2;
            }
            if input < job.count {
                all_rows::<M, W, 1>(m, &job, input);
            }
        }
    }
}

/// # Safety
/// As [`FewFloats::new`]; `input + T` inputs.
#[inline(always)]
unsafe fn all_rows<M: Machine, W: Number, const T: usize>(m: M, job: &Job, input: usize) {
    let mut row = 0;
    // SAFETY: these rows are in the job.
    unsafe {
        while row + 2 <= job.rows {
            some_rows::<M, W, 2, T>(m, job, row, input);
            row += 2;
        }
        if row < job.rows {
            some_rows::<M, W, 1, T>(m, job, row, input);
        }
    }
}

/// # Safety
/// As [`FewFloats::new`]; `row + N` rows, `input + T` inputs.
#[inline(always)]
unsafe fn some_rows<M: Machine, W: Number, const N: usize, const T: usize>(
    m: M,
    job: &Job,
    row: usize,
    input: usize,
) {
    let mut lanes = [[[m.zeros(); 4]; T]; N];
    let whole = job.cols / GROUPS;
    let ahead = Ahead::new(N, job);
    // SAFETY: all places are inside the job. What is asked for in advance may lie outside.
    unsafe {
        let weights = job.codes.add(row * job.code_row);
        let inputs = job.inputs.add(input * job.input_row);
        for block in 0..whole {
            for n in 0..N {
                let at = weights.add(n * job.code_row + block * GROUPS * W::BYTES);
                if W::BYTES == 4 || block % 2 == 0 {
                    m.prefetch(at.wrapping_add(ahead.at(block * GROUPS * W::BYTES)));
                }
                one_block::<M, W, T>(m, at, inputs.add(block * 4 * GROUPS), job.input_row, &mut lanes[n]);
            }
        }
        if !job.cols.is_multiple_of(GROUPS) {
            for n in 0..N {
                let at = weights.add(n * job.code_row + whole * GROUPS * W::BYTES);
                let filled = padded::<W>(at, job.cols % GROUPS);
                let inputs = inputs.add(whole * 4 * GROUPS);
                one_block::<M, W, T>(m, filled.as_ptr(), inputs, job.input_row, &mut lanes[n]);
            }
        }
        for n in 0..N {
            for t in 0..T {
                *job.out.add((input + t) * job.out_row + row + n) = m.fold(lanes[n][t]);
            }
        }
    }
}

/// 16 columns of one weight row and `T` inputs.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn one_block<M: Machine, W: Number, const T: usize>(
    m: M,
    weights: *const u8,
    inputs: *const u8,
    input_row: usize,
    lanes: &mut [[M::Float; 4]; T],
) {
    for part in 0..GROUPS / M::LANES {
        // SAFETY: the caller promised the block.
        unsafe {
            let weight = W::load(m, weights.add(part * M::LANES * W::BYTES));
            for (t, lanes) in lanes.iter_mut().enumerate() {
                let x = m.as_floats(m.load(inputs.add(t * input_row + part * M::BYTES)));
                lanes[part] = m.fma(weight, x, lanes[part]);
            }
        }
    }
}

/// Widened weights meet floats in tiles.
pub(super) struct Floats<W>(PhantomData<W>);

impl<W: Number> Meeting for Floats<W> {
    const EIGHT_INPUTS: bool = false;
    const INPUT_BYTES: usize = 4 * COLUMNS;
    type Sum<M: Machine> = M::Float;

    /// Not those beyond a last block of 16: they would add +0 to a lane, which turns -0 into +0.
    #[inline(always)]
    fn steps(cols: usize) -> usize {
        cols.div_ceil(GROUPS)
    }

    #[inline(always)]
    fn place<M: Machine>(part: usize, step: usize) -> usize {
        step * 4 * GROUPS + part * M::BYTES
    }

    #[inline(always)]
    unsafe fn decode<M: Machine>(m: M, codes: *const u8, _scales: *const u8, cols: usize, row: *mut u8) {
        // SAFETY: the caller promised the weights and the row.
        unsafe {
            let store = |c: usize, numbers| m.store(row.add(4 * c), m.to_bits(numbers));
            for c in (0..cols - cols % GROUPS).step_by(M::LANES) {
                store(c, W::load(m, codes.add(c * W::BYTES)));
            }
            if !cols.is_multiple_of(GROUPS) {
                let first = cols - cols % GROUPS;
                let filled = padded::<W>(codes.add(first * W::BYTES), cols % GROUPS);
                for c in (0..GROUPS).step_by(M::LANES) {
                    store(first + c, W::load(m, filled.as_ptr().add(c * W::BYTES)));
                }
            }
        }
    }

    #[inline(always)]
    fn block_bytes() -> [usize; 2] {
        [COLUMNS * W::BYTES, 0]
    }

    #[inline(always)]
    unsafe fn begin<M: Machine>(m: M, lanes: *const f32) -> M::Float {
        // SAFETY: the caller promised the lanes.
        unsafe { m.load_floats(lanes) }
    }

    #[inline(always)]
    fn add<M: Machine>(m: M, sum: M::Float, weights: M::Int, inputs: M::Int) -> M::Float {
        m.fma(m.as_floats(weights), m.as_floats(inputs), sum)
    }

    #[inline(always)]
    unsafe fn end<M: Machine>(
        m: M,
        sum: M::Float,
        _row: *const u8,
        _input: *const u8,
        _part: usize,
        lanes: *mut f32,
    ) {
        // SAFETY: the caller promised the lanes.
        unsafe { m.store_floats(lanes, sum) };
    }

    #[inline(always)]
    fn ordered<M: Machine>(_m: M, lanes: M::Float) -> M::Float {
        lanes
    }
}
