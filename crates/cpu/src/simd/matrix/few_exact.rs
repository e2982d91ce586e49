//! Packed weights times one or a few rows of f32, in the mode `exact`: one group a lane, its columns one after the other.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::format::{Format, Padded};
use super::machine::Machine;
use super::meetings::{FLOATS, exact_code, exact_scales};
use super::{Ahead, COLUMNS, GROUPS, Job, Kernel};
use std::marker::PhantomData;

/// All rows of a job, input after input.
pub(super) struct FewExact<F> {
    job: Job,
    format: PhantomData<F>,
}

impl<F: Format> FewExact<F> {
    /// # Safety
    /// Everything that the job implies must be there: weights of this format, inputs as transposed floats in whole
    /// blocks, places for all results.
    pub(super) unsafe fn new(job: Job) -> Self {
        FewExact { job, format: PhantomData }
    }
}

impl<F: Format> Kernel for FewExact<F> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let job = self.job;
        let mut input = 0;
        // SAFETY: all inputs are within the job, which `new` was promised.
        unsafe {
            while input + 2 <= job.count {
                all_rows::<M, F, 2>(m, &job, input);
                input += 2;
            }
            while input < job.count {
                all_rows::<M, F, 1>(m, &job, input);
                input += 1;
            }
        }
    }
}

/// # Safety
/// As [`FewExact::new`]; `input + T` inputs.
#[inline(always)]
unsafe fn all_rows<M: Machine, F: Format, const T: usize>(m: M, job: &Job, input: usize) {
    let mut row = 0;
    // SAFETY: these rows are in the job.
    unsafe {
        // Four sums at a time hide their latency.
        if M::MANY_REGISTERS && T == 1 {
            while row + 4 <= job.rows {
                some_rows::<M, F, 4, T>(m, job, row, input);
                row += 4;
            }
        } else if M::MANY_REGISTERS {
            while row + 2 <= job.rows {
                some_rows::<M, F, 2, T>(m, job, row, input);
                row += 2;
            }
        }
        while row < job.rows {
            some_rows::<M, F, 1, T>(m, job, row, input);
            row += 1;
        }
    }
}

/// Where a block of a weight row lies: codes and scales.
type Block = (*const u8, *const u8);

/// Running sums of `N` weight rows and `T` inputs, 16 lanes each.
type Lanes<M, const N: usize, const T: usize> = [[[<M as Machine>::Float; 4]; T]; N];

/// # Safety
/// As [`FewExact::new`]; `row + N` rows, `input + T` inputs.
#[inline(always)]
unsafe fn some_rows<M: Machine, F: Format, const N: usize, const T: usize>(
    m: M,
    job: &Job,
    row: usize,
    input: usize,
) {
    let mut lanes: Lanes<M, N, T> = [[[m.zeros(); 4]; T]; N];
    // SAFETY: all places are inside the job. What is asked for in advance may lie outside.
    unsafe {
        let ahead = Ahead::new(N, job);
        for (block, start) in (0..job.cols).step_by(COLUMNS).enumerate() {
            let cols = (job.cols - start).min(COLUMNS);
            let inputs: [*const u8; T] =
                std::array::from_fn(|t| job.inputs.add((input + t) * job.input_row + block * FLOATS));
            let mut weights: [Block; N] = [(job.codes, job.scales); N];
            for (n, (codes, scales)) in weights.iter_mut().enumerate() {
                *codes = job.codes.add((row + n) * job.code_row + block * F::BLOCK_BYTES);
                *scales = job.scales.add((row + n) * job.scale_row + block * F::SCALE_BYTES * GROUPS);
                m.prefetch(scales.wrapping_add(ahead.scales));
                let distance = ahead.at(block * F::BLOCK_BYTES);
                for line in 0..F::BLOCK_BYTES / 64 {
                    m.prefetch(codes.wrapping_add(distance + 64 * line));
                }
            }
            if cols == COLUMNS {
                one_block::<M, F, N, T>(m, &weights, COLUMNS, &inputs, &mut lanes);
            } else {
                let padded: [Padded; N] =
                    std::array::from_fn(|n| Padded::new::<F>(weights[n].0, weights[n].1, cols));
                for (weight, padded) in weights.iter_mut().zip(&padded) {
                    *weight = padded.places();
                }
                one_block::<M, F, N, T>(m, &weights, cols, &inputs, &mut lanes);
            }
        }
        for n in 0..N {
            for t in 0..T {
                *job.out.add((input + t) * job.out_row + row + n) =
                    m.fold(lanes[n][t].map(|lane| m.unmixed(lane)));
            }
        }
    }
}

/// A block of `N` weight rows and `T` inputs.
///
/// # Safety
/// The whole blocks, their scales and the inputs' blocks must be readable.
#[inline(always)]
unsafe fn one_block<M: Machine, F: Format, const N: usize, const T: usize>(
    m: M,
    weights: &[Block; N],
    cols: usize,
    inputs: &[*const u8; T],
    lanes: &mut Lanes<M, N, T>,
) {
    for part in 0..GROUPS / M::LANES {
        let mut transposed = [[m.splat(0); 8]; N];
        let mut scales = [(m.zeros(), [m.zeros(); 2]); N];
        let mut p = [[m.zeros(); T]; N];
        // SAFETY: the caller promised the blocks, their scales and the inputs.
        unsafe {
            for n in 0..N {
                transposed[n] = F::transposed(m, weights[n].0, part);
                scales[n] = exact_scales::<M, F>(m, weights[n].1, part, cols);
            }
            // Loops over 8 columns are unrolled by the compiler, so that shifts are by constants; over 32 they are not.
            for word in 0..4 {
                for k in 0..8 {
                    let c = 8 * word + k;
                    let x: [M::Float; T] = std::array::from_fn(|t| {
                        m.as_floats(m.load(inputs[t].add((part * 32 + c) * M::BYTES)))
                    });
                    for n in 0..N {
                        let code = exact_code::<M, F>(m, &transposed[n], &scales[n].1, c);
                        for t in 0..T {
                            p[n][t] = m.fma(code, x[t], p[n][t]);
                        }
                    }
                }
            }
        }
        for n in 0..N {
            for t in 0..T {
                lanes[n][t][part] = m.fma(p[n][t], scales[n].0, lanes[n][t][part]);
            }
        }
    }
}
