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

/// Weight rows of a tile: a multiple of 2, 3 and 6.
const ROWS: usize = 12;
/// Inputs that meet a tile before the next block is decoded.
const BATCH: usize = 64;
/// Tiles that meet the same block of the inputs, one after the other, while it is in the second cache.
const TILES: usize = 4;
/// Cache lines of a row that are asked for together with those of the other rows of a tile.
const AT_ONCE: usize = 4;
/// No tile has larger rows, in bytes.
const TILE_ROW_MAX: usize = 4 * COLUMNS + 4 * GROUPS;

/// How weights and inputs meet.
pub(super) trait Meeting {
    /// Whether 8 inputs and 3 weight rows meet at a time in 32 registers, or else 4 and 6: a first cache holds a tile
    /// and as many inputs if neither are f32.
    const EIGHT_INPUTS: bool;
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
        let together = ROWS * TILES;
        for first in (0..self.job.count).step_by(BATCH) {
            let count = (self.job.count - first).min(BATCH);
            for row in (0..self.job.rows).step_by(together) {
                let rows = (self.job.rows - row).min(together);
                // SAFETY: these rows and inputs are in the job, which `new` was promised.
                unsafe { some_tiles::<M, T>(m, &self.job, (row, rows), (first, count), memory.as_mut_ptr()) };
            }
        }
    }
}

/// A tile, and the sums of all rows and inputs of some tiles.
#[repr(C, align(64))]
struct Memory {
    tile: [[u8; TILE_ROW_MAX]; ROWS],
    lanes: [TileLanes; TILES],
}

/// The sums of a tile.
type TileLanes = [[[f32; GROUPS]; ROWS]; BATCH];

/// All columns of some weight rows for some inputs.
///
/// # Safety
/// The rows and inputs must be in the job; `memory` is writable, and may be uninitialised.
#[inline(always)]
unsafe fn some_tiles<M: Machine, T: Meeting>(
    m: M,
    job: &Job,
    (row, rows): (usize, usize),
    (first, count): (usize, usize),
    memory: *mut Memory,
) {
    // SAFETY: all places lie inside the job or the memory; lanes are zeroed and rows decoded before they are read.
    unsafe {
        let tile = (&raw mut (*memory).tile).cast::<u8>();
        let lanes = |t: usize| (&raw mut (*memory).lanes).cast::<TileLanes>().add(t).cast::<f32>();
        let tiles = rows.div_ceil(ROWS);
        for t in 0..tiles {
            lanes(t).write_bytes(0, count * ROWS * GROUPS);
        }
        for (block, start) in (0..job.cols).step_by(COLUMNS).enumerate() {
            let cols = (job.cols - start).min(COLUMNS);
            let inputs = job.inputs.add(first * job.input_row + block * T::INPUT_BYTES);
            for t in 0..tiles {
                // Rows that are not there are computed as the last one that is.
                let row_of = |n: usize| row + (t * ROWS + n).min(rows - 1);
                decode::<M, T>(m, job, row_of, (block, cols), tile);
                let next = if t + 1 < tiles { (t + 1, block) } else { (0, block + 1) };
                let next = Next::new::<T>(job, row + next.0 * ROWS, next.1);
                for part in 0..GROUPS / M::LANES {
                    let part = (part, T::steps(cols));
                    meet_all::<M, T>(m, tile, (inputs, job.input_row), count, part, lanes(t), next);
                }
            }
        }
        for t in 0..count {
            for n in 0..rows {
                let lanes = lanes(n / ROWS).add((t * ROWS + n % ROWS) * GROUPS);
                let mut sums = [m.zeros(); 4];
                for (part, sum) in sums.iter_mut().enumerate().take(GROUPS / M::LANES) {
                    *sum = T::ordered(m, m.load_floats(lanes.add(part * M::LANES)));
                }
                *job.out.add((first + t) * job.out_row + row + n) = m.fold(sums);
            }
        }
    }
}

/// Brings a block of the rows of a tile into it.
///
/// # Safety
/// The rows must be in the job, the tile writable.
#[inline(always)]
unsafe fn decode<M: Machine, T: Meeting>(
    m: M,
    job: &Job,
    row_of: impl Fn(usize) -> usize,
    (block, cols): (usize, usize),
    tile: *mut u8,
) {
    let [code_bytes, scale_bytes] = T::block_bytes();
    for n in 0..ROWS {
        let row = row_of(n);
        // SAFETY: the block lies in the job.
        unsafe {
            let codes = job.codes.add(row * job.code_row + block * code_bytes);
            let scales = job.scales.wrapping_add(row * job.scale_row + block * scale_bytes);
            T::decode(m, codes, scales, cols, tile.add(n * TILE_ROW_MAX));
        }
    }
}

/// The weights that the next tile is made of.
#[derive(Clone, Copy)]
struct Next {
    first: *const u8,
    code_row: usize,
    /// Cache lines of a row.
    lines: usize,
}

impl Next {
    /// A block of the rows from `row` on, which need not be there.
    #[inline(always)]
    fn new<T: Meeting>(job: &Job, row: usize, block: usize) -> Self {
        let code_bytes = T::block_bytes()[0];
        let first = job.codes.wrapping_add(row * job.code_row + block * code_bytes);
        Next { first, code_row: job.code_row, lines: code_bytes / 64 }
    }

    /// Asks for the lines that come due while inputs `from` to `to` of `count` meet the present tile. All lines of wide
    /// weights at once would be more than a processor waits for at a time.
    #[inline(always)]
    fn ask<M: Machine>(self, m: M, from: usize, to: usize, count: usize) {
        let all = ROWS * self.lines;
        let due = match (self.lines <= AT_ONCE, from) {
            (true, 0) => 0..all,
            (true, _) => 0..0,
            (false, _) => all * from / count..all * to / count,
        };
        for line in due {
            let (row, line) = (line / self.lines, line % self.lines);
            m.prefetch_later(self.first.wrapping_add(row * self.code_row + line * 64));
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
    next: Next,
) {
    let mut t = 0;
    // Of several parts the first asks for all.
    let ask = |t: usize, inputs: usize| {
        if part.0 == 0 {
            next.ask(m, t, t + inputs, count);
        }
    };
    // SAFETY: `t` and the inputs behind it are below `count`.
    unsafe {
        let at = |t: usize| (inputs.add(t * input_row), lanes.add(t * ROWS * GROUPS));
        // Sums of two vectors each, for as many inputs and rows, would lie in memory.
        let many_sums = M::MANY_REGISTERS && size_of::<T::Sum<M>>() == M::BYTES;
        if many_sums {
            while T::EIGHT_INPUTS && t + 8 <= count {
                ask(t, 8);
                let (inputs, lanes) = at(t);
                meet_rows::<M, T, 3, 8>(m, tile, (inputs, input_row), part, lanes);
                t += 8;
            }
        }
        while t + 4 <= count {
            ask(t, 4);
            let (inputs, lanes) = at(t);
            if many_sums {
                meet_rows::<M, T, 6, 4>(m, tile, (inputs, input_row), part, lanes);
            } else if M::MANY_REGISTERS {
                meet_rows::<M, T, 3, 4>(m, tile, (inputs, input_row), part, lanes);
            } else {
                meet_rows::<M, T, 2, 4>(m, tile, (inputs, input_row), part, lanes);
            }
            t += 4;
        }
        while t + 2 <= count {
            ask(t, 2);
            let (inputs, lanes) = at(t);
            meet_rows::<M, T, 3, 2>(m, tile, (inputs, input_row), part, lanes);
            t += 2;
        }
        if t < count {
            ask(t, 1);
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
