//! Weights times many rows of activations: some weight rows are decoded, a block of columns at a time, into a tile that
//! stays in the first cache, and then meet all inputs, a few rows and inputs at a time in registers.
//!
//! It knows how a tile is gone through; how weights and inputs meet in it, [`Meeting`]s say.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::machine::Machine;
use super::{COLUMNS, GROUPS, Job, Kernel};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Weight rows of a tile: a multiple of 2, 3, 4 and 6.
const ROWS: usize = 12;
/// Inputs that meet a tile before the next block is decoded.
const BATCH: usize = 64;
/// No tile has larger rows, in bytes.
const TILE_ROW_MAX: usize = 4 * COLUMNS + 4 * GROUPS;

/// How weights and inputs meet.
pub(super) trait Meeting {
    /// Bytes of a block of an input.
    const INPUT_BYTES: usize;
    /// Running sums of vectors.
    type Sum<M: Machine>: Copy;

    /// Products of vectors in a part of a block of `cols` columns. A part has `LANES` lanes.
    fn steps(cols: usize) -> usize;

    /// Where the vectors of a step lie, in a row of the tile and in a block of an input.
    fn place<M: Machine>(part: usize, step: usize) -> usize;

    /// Brings the block of `cols` columns at `codes` into a row of the tile.
    ///
    /// # Safety
    /// The weights must be readable, the row of the tile writable.
    unsafe fn decode<M: Machine>(m: M, codes: *const u8, scales: *const u8, cols: usize, row: *mut u8);

    /// Bytes from a whole block of codes to the next, and the same of scales.
    fn block_bytes() -> [usize; 2];

    /// What a sum begins with.
    ///
    /// # Safety
    /// `lanes` must be readable.
    unsafe fn begin<M: Machine>(m: M, lanes: *const f32) -> Self::Sum<M>;

    /// Adds the products of two vectors.
    fn add<M: Machine>(m: M, sum: Self::Sum<M>, weights: M::Int, inputs: M::Int) -> Self::Sum<M>;

    /// Adds the sum of a part to its lanes.
    ///
    /// # Safety
    /// The row, the input's block and the lanes must be there.
    unsafe fn end<M: Machine>(
        m: M,
        sum: Self::Sum<M>,
        row: *const u8,
        input: *const u8,
        part: usize,
        lanes: *mut f32,
    );

    /// The lanes in the order of the contract.
    fn ordered<M: Machine>(m: M, lanes: M::Float) -> M::Float;
}

/// All rows of a job.
pub(super) struct Tiles<T> {
    job: Job,
    meeting: PhantomData<T>,
}

impl<T: Meeting> Tiles<T> {
    /// # Safety
    /// Everything that the job implies must be there: weights of the meeting's packing, inputs of its form in whole
    /// blocks, places for all results.
    pub(super) unsafe fn new(job: Job) -> Self {
        Tiles { job, meeting: PhantomData }
    }
}

impl<T: Meeting> Kernel for Tiles<T> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let mut memory = MaybeUninit::<Memory>::uninit();
        for first in (0..self.job.count).step_by(BATCH) {
            let count = (self.job.count - first).min(BATCH);
            for row in (0..self.job.rows).step_by(ROWS) {
                let rows = (self.job.rows - row).min(ROWS);
                // SAFETY: these rows and inputs are in the job, which `new` was promised.
                unsafe { tile::<M, T>(m, &self.job, (row, rows), (first, count), memory.as_mut_ptr()) };
            }
        }
    }
}

/// A tile and the sums of all its rows and inputs.
#[repr(C, align(64))]
struct Memory {
    tile: [[u8; TILE_ROW_MAX]; ROWS],
    lanes: [[[f32; GROUPS]; ROWS]; BATCH],
}

/// All columns of some weight rows for some inputs.
///
/// # Safety
/// The rows and inputs must be in the job; `memory` is writable, and may be uninitialised.
#[inline(always)]
unsafe fn tile<M: Machine, T: Meeting>(
    m: M,
    job: &Job,
    (row, rows): (usize, usize),
    (first, count): (usize, usize),
    memory: *mut Memory,
) {
    // SAFETY: all places lie inside the job or the memory; lanes are zeroed and rows decoded before they are read.
    unsafe {
        let (tile, lanes) =
            ((&raw mut (*memory).tile).cast::<u8>(), (&raw mut (*memory).lanes).cast::<f32>());
        lanes.write_bytes(0, count * ROWS * GROUPS);
        let [code_bytes, scale_bytes] = T::block_bytes();
        for (block, start) in (0..job.cols).step_by(COLUMNS).enumerate() {
            let cols = (job.cols - start).min(COLUMNS);
            for n in 0..ROWS {
                // Rows that are not there are computed as the last one that is.
                let r = row + n.min(rows - 1);
                let codes = job.codes.add(r * job.code_row + block * code_bytes);
                let scales = job.scales.wrapping_add(r * job.scale_row + block * scale_bytes);
                // The same columns of the next tile.
                for line in (0..code_bytes).step_by(64) {
                    m.prefetch_later(codes.wrapping_add(ROWS * job.code_row + line));
                }
                T::decode(m, codes, scales, cols, tile.add(n * TILE_ROW_MAX));
            }
            let inputs = job.inputs.add(first * job.input_row + block * T::INPUT_BYTES);
            for part in 0..GROUPS / M::LANES {
                meet_all::<M, T>(m, tile, (inputs, job.input_row), count, (part, T::steps(cols)), lanes);
            }
        }
        for t in 0..count {
            for n in 0..rows {
                let mut sums = [m.zeros(); 4];
                for (part, sum) in sums.iter_mut().enumerate().take(GROUPS / M::LANES) {
                    let at = lanes.add((t * ROWS + n) * GROUPS + part * M::LANES);
                    *sum = T::ordered(m, m.load_floats(at));
                }
                *job.out.add((first + t) * job.out_row + row + n) = m.fold(sums);
            }
        }
    }
}

/// A part of a block: all rows of the tile meet all inputs.
///
/// # Safety
/// The tile, the inputs and the lanes must be there.
#[inline(always)]
unsafe fn meet_all<M: Machine, T: Meeting>(
    m: M,
    tile: *const u8,
    (inputs, input_row): (*const u8, usize),
    count: usize,
    part: (usize, usize),
    lanes: *mut f32,
) {
    let mut t = 0;
    // SAFETY: `t` and the inputs behind it are below `count`.
    unsafe {
        let at = |t: usize| (inputs.add(t * input_row), lanes.add(t * ROWS * GROUPS));
        if M::MANY_REGISTERS {
            while t + 8 <= count {
                let (inputs, lanes) = at(t);
                meet_rows::<M, T, 3, 8>(m, tile, (inputs, input_row), part, lanes);
                t += 8;
            }
        }
        while t + 4 <= count {
            let (inputs, lanes) = at(t);
            if M::MANY_REGISTERS {
                meet_rows::<M, T, 6, 4>(m, tile, (inputs, input_row), part, lanes);
            } else {
                meet_rows::<M, T, 2, 4>(m, tile, (inputs, input_row), part, lanes);
            }
            t += 4;
        }
        while t + 2 <= count {
            let (inputs, lanes) = at(t);
            meet_rows::<M, T, 4, 2>(m, tile, (inputs, input_row), part, lanes);
            t += 2;
        }
        if t < count {
            let (inputs, lanes) = at(t);
            meet_rows::<M, T, 6, 1>(m, tile, (inputs, input_row), part, lanes);
        }
    }
}

/// All rows of the tile, `R` at a time, meet `I` inputs.
///
/// # Safety
/// As [`meet_all`].
#[inline(always)]
unsafe fn meet_rows<M: Machine, T: Meeting, const R: usize, const I: usize>(
    m: M,
    tile: *const u8,
    (inputs, input_row): (*const u8, usize),
    (part, steps): (usize, usize),
    lanes: *mut f32,
) {
    for n in (0..ROWS).step_by(R) {
        // SAFETY: rows n to n + R are in the tile, I inputs were promised; lanes are those of the same rows and inputs.
        unsafe {
            let rows = tile.add(n * TILE_ROW_MAX);
            let place = |r: usize, i: usize| lanes.add((i * ROWS + n + r) * GROUPS + part * M::LANES);
            let mut sums = [[T::begin(m, lanes); I]; R];
            for r in 0..R {
                for i in 0..I {
                    sums[r][i] = T::begin(m, place(r, i));
                }
            }
            for step in 0..steps {
                let at = T::place::<M>(part, step);
                let mut weights = [m.splat(0); R];
                for (r, weight) in weights.iter_mut().enumerate() {
                    *weight = m.load(rows.add(r * TILE_ROW_MAX + at));
                }
                for i in 0..I {
                    let input = m.load(inputs.add(i * input_row + at));
                    for r in 0..R {
                        sums[r][i] = T::add(m, sums[r][i], weights[r], input);
                    }
                }
            }
            for r in 0..R {
                for i in 0..I {
                    let row = rows.add(r * TILE_ROW_MAX);
                    T::end(m, sums[r][i], row, inputs.add(i * input_row), part, place(r, i));
                }
            }
        }
    }
}
