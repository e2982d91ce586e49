//! Packed weights times one or a few rows of integer activations: the weights are the larger part, read once from end to
//! end, and all arithmetic hides behind that.
//!
//! A block's 16 groups are the contract's 16 lanes. Products are summed where they arise, four bytes (or two words) to a
//! 32-bit number; the sums of a group's numbers then bring each group into its lane, before the only conversion.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::format::{Format, Padded};
use super::machine::{Codes, Machine};
use super::{Ahead, COLUMNS, GROUPS, Job, Kernel};
use std::marker::PhantomData;

/// Bytes of a plane: one byte for every second column of a block, or a word for every fourth.
pub(crate) const PLANE: usize = 256;

/// Where in a block of a prepared input what lies.
pub(crate) struct Planes;

impl Planes {
    /// Bytes of the planes: h even, h odd, l even, l odd with `halves`; even, odd without; four of words.
    pub(crate) const fn bytes(codes: Codes, halves: bool) -> usize {
        match (codes, halves) {
            (Codes::OffsetBytes | Codes::SignedBytes, false) => 2 * PLANE,
            (Codes::OffsetBytes | Codes::SignedBytes, true) | (Codes::Words, _) => 4 * PLANE,
        }
    }

    /// Bytes of a block: behind the planes lie, 4 bytes a group, k + 127 and the sums of the even and of the odd columns.
    pub(crate) const fn block(codes: Codes, halves: bool) -> usize {
        Self::bytes(codes, halves) + 3 * 4 * GROUPS
    }
}

/// All rows of a job; `HALVES`: the activations are `int15` and come in two bytes.
pub(crate) struct FewRows<F, const HALVES: bool> {
    job: Job,
    format: PhantomData<F>,
}

impl<F: Format, const HALVES: bool> FewRows<F, HALVES> {
    /// # Safety
    /// Everything that the job implies must be there: `job.rows` rows of codes and scales of this format,
    /// `job.count` inputs in the form of [`Planes`] with whole blocks, places for all results.
    pub(crate) unsafe fn new(job: Job) -> Self {
        FewRows { job, format: PhantomData }
    }
}

impl<F: Format, const HALVES: bool> Kernel for FewRows<F, HALVES> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let job = self.job;
        let strip = (STRIP / job.code_row.max(1)).max(2);
        for row in (0..job.rows).step_by(strip) {
            let end = (row + strip).min(job.rows);
            let mut input = 0;
            // SAFETY: all rows and inputs are within the job, which `new` was promised.
            unsafe {
                while input + 2 <= job.count {
                    strip_rows::<M, F, HALVES, 2>(m, &job, (row, end), input);
                    input += 2;
                }
                while input < job.count {
                    strip_rows::<M, F, HALVES, 1>(m, &job, (row, end), input);
                    input += 1;
                }
            }
        }
    }
}

/// Bytes of weights that meet all inputs, two at a time, before the next are read: they stay in the second cache.
const STRIP: usize = 128 << 10;

/// # Safety
/// As [`FewRows::new`]; rows `row` to `end`, `input + T` inputs.
#[inline(always)]
unsafe fn strip_rows<M: Machine, F: Format, const HALVES: bool, const T: usize>(
    m: M,
    job: &Job,
    (mut row, end): (usize, usize),
    input: usize,
) {
    // SAFETY: these rows are in the job.
    unsafe {
        // Two rows share what they load of two inputs, if their sums fit into registers. For one input a single stream
        // of weights is faster.
        if T == 2 && !F::MULTIPLIED {
            while row + 2 <= end {
                some_rows::<M, F, HALVES, 2, T>(m, job, row, input);
                row += 2;
            }
        }
        while row < end {
            some_rows::<M, F, HALVES, 1, T>(m, job, row, input);
            row += 1;
        }
    }
}

/// Where a block of a weight row lies.
#[derive(Clone, Copy)]
struct Block {
    codes: *const u8,
    scales: *const u8,
}

/// Running sums of `N` weight rows and `T` inputs, 16 lanes each.
type Lanes<M, const N: usize, const T: usize> = [[[<M as Machine>::Float; 4]; T]; N];

/// # Safety
/// As [`FewRows::new`]; `row + N` rows, `input + T` inputs.
#[inline(always)]
unsafe fn some_rows<M: Machine, F: Format, const HALVES: bool, const N: usize, const T: usize>(
    m: M,
    job: &Job,
    row: usize,
    input: usize,
) {
    let table = F::table(m, if M::CODES as usize == Codes::OffsetBytes as usize { F::OFFSET } else { 0 });
    let mut lanes: Lanes<M, N, T> = [[[m.zeros(); 4]; T]; N];
    let (whole, rest) = (job.cols / COLUMNS, job.cols % COLUMNS);
    let mut weights = [Block { codes: job.codes, scales: job.scales }; N];
    let mut inputs = [job.inputs; T];
    // SAFETY: all places are inside the job. What is asked for in advance may lie outside.
    unsafe {
        for (n, weight) in weights.iter_mut().enumerate() {
            weight.codes = job.codes.add((row + n) * job.code_row);
            weight.scales = job.scales.add((row + n) * job.scale_row);
        }
        for (t, place) in inputs.iter_mut().enumerate() {
            *place = job.inputs.add((input + t) * job.input_row);
        }
        let ahead = Ahead::new(N, job);
        for at in 0..whole {
            let distance = ahead.at(at * F::BLOCK_BYTES);
            for weight in &mut weights {
                m.prefetch(weight.scales.wrapping_add(ahead.scales));
                for line in 0..F::BLOCK_BYTES / 64 {
                    m.prefetch(weight.codes.wrapping_add(distance + 64 * line));
                }
            }
            block::<M, F, HALVES, N, T>(m, table, &weights, &inputs, &mut lanes);
            for weight in &mut weights {
                weight.codes = weight.codes.add(F::BLOCK_BYTES);
                weight.scales = weight.scales.add(F::SCALE_BYTES * GROUPS);
            }
            for place in &mut inputs {
                *place = place.add(Planes::block(M::CODES, HALVES));
            }
        }
        if rest > 0 {
            let padded: [Padded; N] =
                std::array::from_fn(|n| Padded::new::<F>(weights[n].codes, weights[n].scales, rest));
            for (weight, padded) in weights.iter_mut().zip(&padded) {
                (weight.codes, weight.scales) = padded.places();
            }
            block::<M, F, HALVES, N, T>(m, table, &weights, &inputs, &mut lanes);
        }
        for n in 0..N {
            for t in 0..T {
                *job.out.add((input + t) * job.out_row + row + n) = m.fold(lanes[n][t]);
            }
        }
    }
}

/// One block of `N` weight rows and `T` inputs.
///
/// # Safety
/// All blocks must be readable.
#[inline(always)]
unsafe fn block<M: Machine, F: Format, const HALVES: bool, const N: usize, const T: usize>(
    m: M,
    table: M::Int,
    weights: &[Block; N],
    inputs: &[*const u8; T],
    lanes: &mut Lanes<M, N, T>,
) {
    for part in 0..GROUPS / M::LANES {
        let mut sums = [[[[m.splat(0); 4]; 2]; T]; N];
        for i in 0..4 {
            let v = 4 * part + i;
            for n in 0..N {
                // SAFETY: the caller promised the blocks.
                let numbers = unsafe { F::numbers(m, table, weights[n].codes, v) };
                for t in 0..T {
                    // SAFETY: the caller promised the blocks.
                    let [even, odd] = unsafe { products::<M, F, HALVES>(m, numbers, inputs[t], v) };
                    (sums[n][t][0][i], sums[n][t][1][i]) = (even, odd);
                }
            }
        }
        let first = part * M::LANES;
        for n in 0..N {
            // SAFETY: the caller promised the blocks.
            let scales = unsafe { F::scales(m, weights[n].scales.add(F::SCALE_BYTES * first)) };
            for t in 0..T {
                // SAFETY: the caller promised the blocks; behind the planes lie three numbers a group.
                let [k, even, odd] = unsafe {
                    let behind = inputs[t].add(Planes::bytes(M::CODES, HALVES) + 4 * first);
                    [m.load(behind), m.load(behind.add(4 * GROUPS)), m.load(behind.add(8 * GROUPS))]
                };
                let mut p = m.group_sums(sums[n][t][0]);
                if F::SPLIT {
                    let mut p_odd = m.group_sums(sums[n][t][1]);
                    if matches!(M::CODES, Codes::OffsetBytes) {
                        p = m.sub(p, m.multiply(even, m.splat(F::OFFSET)));
                        p_odd = m.sub(p_odd, m.multiply(odd, m.splat(F::OFFSET)));
                    }
                    let [a, b] = scales.multipliers;
                    p = m.add(m.multiply(p, a), m.multiply(p_odd, b));
                } else {
                    if matches!(M::CODES, Codes::OffsetBytes) {
                        p = m.sub(p, m.multiply(m.add(even, odd), m.splat(F::OFFSET)));
                    }
                    if F::MULTIPLIED {
                        p = m.multiply(p, scales.multipliers[0]);
                    }
                }
                let biased = m.add(scales.exponents, m.sub(k, m.splat(F::BIAS)));
                lanes[n][t][part] = m.fma(m.to_floats(p), m.power_of_two(biased), lanes[n][t][part]);
            }
        }
    }
}

/// The products of a vector of even and one of odd columns with an input: of both, or all in the first, if the format
/// does not tell them apart.
///
/// # Safety
/// The planes must be readable.
#[inline(always)]
unsafe fn products<M: Machine, F: Format, const HALVES: bool>(
    m: M,
    [even, odd]: [M::Int; 2],
    planes: *const u8,
    v: usize,
) -> [M::Int; 2] {
    // SAFETY: the caller promised the planes.
    let plane = |i: usize| unsafe { m.load(planes.add(i * PLANE + v * M::BYTES)) };
    let zero = m.splat(0);
    if matches!(M::CODES, Codes::Words) {
        let products = |sums, numbers, i| {
            m.dot_words(
                m.dot_words(sums, m.even_bytes(numbers), plane(i)),
                m.odd_bytes(numbers),
                plane(i + 1),
            )
        };
        let sums = products(m.wide_zero(), even, 0);
        return if F::SPLIT {
            [m.wide_sum(sums), m.wide_sum(products(m.wide_zero(), odd, 2))]
        } else {
            [m.wide_sum(products(sums, odd, 2)), zero]
        };
    }
    let low = if HALVES { 2 } else { 0 };
    if F::SPLIT {
        let one = |numbers, i| {
            let high = if HALVES { m.shift_left(m.dot_bytes(zero, numbers, plane(i)), 7) } else { zero };
            m.dot_bytes(high, numbers, plane(low + i))
        };
        return [one(even, 0), one(odd, 1)];
    }
    let both = |sums, i| m.dot_bytes(m.dot_bytes(sums, even, plane(i)), odd, plane(i + 1));
    let high = if HALVES { m.shift_left(both(zero, 0), 7) } else { zero };
    [both(high, low), zero]
}
