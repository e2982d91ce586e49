//! What a processor can do at most: loops that only multiply, or only read. They compute nothing of use.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]

use super::machine::{Codes, Machine};
use super::{Kernel, run};
use crate::level::Level;
use std::hint::black_box;

/// Independent sums: enough to hide the latency of every processor's multiply-adds.
const CHAINS: usize = 12;

/// Multiply-adds of f32 that `rounds` of [`fma_rounds`] do.
#[must_use]
pub fn fma_count(level: Level, rounds: usize) -> u64 {
    (rounds * CHAINS * run(level, Lanes)) as u64
}

/// Does nothing but fused multiply-adds.
pub fn fma_rounds(level: Level, rounds: usize) {
    run(level, Fma(rounds));
}

/// Products of small integers (bytes, or words where sums of byte products are no instruction) that `rounds` of
/// [`integer_rounds`] do.
#[must_use]
pub fn integer_count(level: Level, rounds: usize) -> u64 {
    let products = if matches!(run(level, AskCodes), Codes::Words) { 2 } else { 4 };
    products * fma_count(level, rounds)
}

/// Does nothing but sum products of small integers.
pub fn integer_rounds(level: Level, rounds: usize) {
    run(level, Integers(rounds));
}

/// Reads all bytes once, asking for those `ahead` bytes further if that is not 0.
pub fn read(level: Level, bytes: &[u8], ahead: usize) {
    run(level, Read { bytes, ahead });
}

/// The machine's width.
struct Lanes;

impl Kernel for Lanes {
    type Output = usize;

    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) -> usize {
        M::LANES
    }
}

/// How the machine takes codes.
pub(crate) struct AskCodes;

impl Kernel for AskCodes {
    type Output = Codes;

    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) -> Codes {
        M::CODES
    }
}

struct Fma(usize);

impl Kernel for Fma {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let one = m.to_floats(black_box(m.splat(1)));
        let mut sums = [m.zeros(); CHAINS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = m.fma(one, one, *sum);
            }
        }
        black_box(sums);
    }
}

struct Integers(usize);

impl Kernel for Integers {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let one = black_box(m.splat(1));
        if matches!(M::CODES, Codes::Words) {
            let mut sums = [m.wide_zero(); CHAINS];
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = m.dot_words(*sum, one, one);
                }
            }
            black_box(sums);
        } else {
            let mut sums = [m.splat(0); CHAINS];
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = m.dot_bytes(*sum, one, one);
                }
            }
            black_box(sums);
        }
    }
}

struct Read<'a> {
    bytes: &'a [u8],
    ahead: usize,
}

impl Kernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, m: M) {
        let mut sums = [m.splat(0); 4];
        for piece in self.bytes.chunks_exact(256) {
            if self.ahead > 0 {
                for line in 0..4 {
                    m.prefetch(piece.as_ptr().wrapping_add(self.ahead + 64 * line));
                }
            }
            for start in (0..256).step_by(4 * M::BYTES) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `piece` has 256 bytes, a multiple of four vectors.
                    *sum = m.xor(*sum, unsafe { m.load(piece.as_ptr().add(start + i * M::BYTES)) });
                }
            }
        }
        black_box(sums);
    }
}
