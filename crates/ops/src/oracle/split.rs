//! Rows of a result over threads, in code for the widest fma. It knows no op: rows are independent, and nothing inside
//! a row is ever split.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::dispatch::{Kernel, with_fma};
use super::memory::NAME;
use crate::device::DeviceError;
use rayon::prelude::*;

/// A result whose rows can be computed each by itself.
pub(super) trait Rows: Sync {
    /// Fills row `r`, which holds zeros (or what the op put there). To be `#[inline(always)]`, as [`Kernel::run`].
    fn row(&self, r: usize, out: &mut [f32]);
}

/// Splits rows over threads.
pub(super) struct Split {
    pool: Option<rayon::ThreadPool>,
}

/// Multiply-adds under which a split costs more than it saves.
const SPLIT_FROM: u64 = 1 << 17;

impl Split {
    pub(super) fn new(threads: usize) -> Result<Self, DeviceError> {
        if threads <= 1 {
            return Ok(Split { pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let reason = |e: rayon::ThreadPoolBuildError| format!("{threads} threads cannot be started: {e}");
        Ok(Split {
            pool: Some(pool.map_err(|e| DeviceError::Failed { device: NAME.into(), reason: reason(e) })?),
        })
    }

    /// Fills every row of `width` numbers in `out`; `work` = multiply-adds of all rows together.
    pub(super) fn rows(&self, out: &mut [f32], width: usize, work: u64, rows: &impl Rows) {
        let count = out.len() / width.max(1);
        match &self.pool {
            Some(pool) if work >= SPLIT_FROM && count > 1 => {
                let share = count.div_ceil(pool.current_num_threads() * 4);
                pool.install(|| {
                    out.par_chunks_mut(share * width).enumerate().for_each(|(i, out)| {
                        with_fma(Part { rows, first: i * share, width, out });
                    });
                });
            }
            _ => with_fma(Part { rows, first: 0, width, out }),
        }
    }
}

/// Consecutive rows from `first` on.
struct Part<'a, R> {
    rows: &'a R,
    first: usize,
    width: usize,
    out: &'a mut [f32],
}

impl<R: Rows> Kernel for Part<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (i, out) in self.out.chunks_exact_mut(self.width).enumerate() {
            self.rows.row(self.first + i, out);
        }
    }
}
