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
        for input in 0..job.count {
            let mut row = 0;
            // SAFETY: all rows and inputs are within the job, which `new` was promised.
            unsafe {
                if M::MANY_REGISTERS && !F::MULTIPLIED {
                    while row + 4 <= job.rows {
                        some_rows::<M, F, 4>(m, &job, row, input);
                        row += 4;
                    }
                } else if M::MANY_REGISTERS {
                    while row + 2 <= job.rows {
                        some_rows::<M, F, 2>(m, &job, row, input);
                        row += 2;
                    }
                }
                while row < job.rows {
                    some_rows::<M, F, 1>(m, &job, row, input);
                    row += 1;
                }
            }
        }
    }
}

/// Where a block of a weight row lies: codes and scales.
type Block = (*const u8, *const u8);

/// # Safety
/// As [`FewExact::new`]; `row + N` rows.
#[inline(always)]
unsafe fn some_rows<M: Machine, F: Format, const N: usize>(m: M, job: &Job, row: usize, input: usize) {
    let mut lanes = [[m.zeros(); 4]; N];
    // SAFETY: all places are inside the job. What is asked for in advance may lie outside.
    unsafe {
        let ahead = Ahead::new(N, job.code_row);
        let mut input_block = job.inputs.add(input * job.input_row);
        for (block, start) in (0..job.cols).step_by(COLUMNS).enumerate() {
            let cols = (job.cols - start).min(COLUMNS);
            let mut weights: [Block; N] = [(job.codes, job.scales); N];
            for (n, (codes, scales)) in weights.iter_mut().enumerate() {
                *codes = job.codes.add((row + n) * job.code_row + block * F::BLOCK_BYTES);
                *scales = job.scales.add((row + n) * job.scale_row + block * F::SCALE_BYTES * GROUPS);
                let distance = ahead.at(block * F::BLOCK_BYTES);
                for line in 0..F::BLOCK_BYTES / 64 {
                    m.prefetch(codes.wrapping_add(distance + 64 * line));
                }
            }
            if cols == COLUMNS {
                one_block::<M, F, N>(m, &weights, COLUMNS, input_block, &mut lanes);
            } else {
                let padded: [Padded; N] =
                    std::array::from_fn(|n| Padded::new::<F>(weights[n].0, weights[n].1, cols));
                for (weight, padded) in weights.iter_mut().zip(&padded) {
                    *weight = padded.places();
                }
                one_block::<M, F, N>(m, &weights, cols, input_block, &mut lanes);
            }
            input_block = input_block.add(FLOATS);
        }
        for (n, lanes) in lanes.iter().enumerate() {
            let ordered =
                [m.unmixed(lanes[0]), m.unmixed(lanes[1]), m.unmixed(lanes[2]), m.unmixed(lanes[3])];
            *job.out.add(input * job.out_row + row + n) = m.fold(ordered);
        }
    }
}

/// A block of `N` weight rows and one input. The sums of the rows wait for themselves only, so that several hide their
/// latency.
///
/// # Safety
/// The whole blocks, their scales and the input's block must be readable.
#[inline(always)]
unsafe fn one_block<M: Machine, F: Format, const N: usize>(
    m: M,
    weights: &[Block; N],
    cols: usize,
    input: *const u8,
    lanes: &mut [[M::Float; 4]; N],
) {
    for part in 0..GROUPS / M::LANES {
        let mut transposed = [[m.splat(0); 8]; N];
        let mut scales = [(m.zeros(), [m.zeros(); 2]); N];
        let mut p = [m.zeros(); N];
        // SAFETY: the caller promised the blocks, their scales and the input.
        unsafe {
            for n in 0..N {
                transposed[n] = F::transposed(m, weights[n].0, part);
                scales[n] = exact_scales::<M, F>(m, weights[n].1, part, cols);
            }
            for c in 0..32 {
                let x = m.as_floats(m.load(input.add((part * 32 + c) * M::BYTES)));
                for n in 0..N {
                    p[n] = m.fma(exact_code::<M, F>(m, &transposed[n], &scales[n].1, c), x, p[n]);
                }
            }
        }
        for n in 0..N {
            lanes[n][part] = m.fma(p[n], scales[n].0, lanes[n][part]);
        }
    }
}
