//! Norms, and the attention residual, whose scores are of normed rows.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::device::Machine;
use crate::math::exp;
use crate::memory::{Cut, View, ViewMut};
use crate::simd::lanes::{Kernel, LANES, Simd, load, store};

/// Numbers of a part.
const PART: usize = 4096;

pub(crate) fn rms_norm(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    gain: View<'_, f32>,
    eps: f32,
) {
    let level = machine.level;
    each_row(machine, out, x, |x, out| level.run(RmsNorm { x, gain: gain.row(0), eps, out }));
}

pub(crate) fn l2_norm(machine: &mut Machine, out: ViewMut<'_, f32>, x: View<'_, f32>, eps: f32, scale: f32) {
    let level = machine.level;
    each_row(machine, out, x, |x, out| level.run(L2Norm { x, eps, scale, out }));
}

fn each_row(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    norm: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    let (rows, cols) = (out.rows(), out.cols());
    let size = (PART.div_ceil(cols.max(1)), cols.max(1));
    machine.pool.each((rows * cols) as u64 * 4, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [part, _] = Cut::block(size, i, rows, cols);
        for (r, row) in part.enumerate() {
            norm(x.row(row), out.row(r));
        }
    });
}

/// The dot products of `x` with each of `y`, side by side because one sum alone waits for its own multiply-adds.
#[inline(always)]
fn dots<S: Simd, const N: usize>(s: S, pairs: [(&[f32], &[f32]); N]) -> [f32; N] {
    let mut sums = [s.splat(0.0); N];
    let n = pairs[0].0.len();
    let blocks = pairs.map(|(x, y)| (x.as_chunks::<LANES>().0, y.as_chunks::<LANES>().0));
    for b in 0..n / LANES {
        for (sum, (x, y)) in sums.iter_mut().zip(&blocks) {
            *sum = s.fma(s.load(&x[b]), s.load(&y[b]), *sum);
        }
    }
    if !n.is_multiple_of(LANES) {
        let rest = n / LANES * LANES;
        for (sum, (x, y)) in sums.iter_mut().zip(pairs) {
            *sum = s.fma(s.load_part(&x[rest..]), s.load_part(&y[rest..]), *sum);
        }
    }
    sums.map(|sum| s.fold(sum))
}

struct RmsNorm<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [square] = dots(s, [(self.x, self.x)]);
        let factor = s.splat(1.0 / (square / self.x.len() as f32 + self.eps).sqrt());
        let (x_blocks, x_rest) = self.x.as_chunks::<LANES>();
        let (gain_blocks, gain_rest) = self.gain.as_chunks::<LANES>();
        let (out_blocks, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((x, gain), out) in x_blocks.iter().zip(gain_blocks).zip(out_blocks) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(gain)), out);
        }
        let rest = s.mul(s.mul(s.load_part(x_rest), factor), s.load_part(gain_rest));
        s.store_part(rest, out_rest);
    }
}

struct L2Norm<'a> {
    x: &'a [f32],
    eps: f32,
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for L2Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [square] = dots(s, [(self.x, self.x)]);
        let factor = s.splat(1.0 / (square + self.eps).sqrt() * self.scale);
        let (x_blocks, x_rest) = self.x.as_chunks::<LANES>();
        let (out_blocks, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (x, out) in x_blocks.iter().zip(out_blocks) {
            s.store(s.mul(s.load(x), factor), out);
        }
        s.store_part(s.mul(s.load_part(x_rest), factor), out_rest);
    }
}

/// Columns of a residual mix that are summed side by side.
const STRIP: usize = 4 * LANES;
/// Entries of a residual mix whose scores are on the stack: more than any model has.
const ENTRIES_MAX: usize = 64;

pub(crate) fn residual_mix(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    running: View<'_, f32>,
    snapshots: View<'_, f32>,
    weight: View<'_, f32>,
    eps: f32,
) {
    let (tokens, cols, level) = (out.rows(), out.cols(), machine.level);
    let entries = snapshots.rows() / tokens.max(1) + 1;
    assert!(entries <= ENTRIES_MAX, "residual_mix of {entries} entries, the most are {ENTRIES_MAX}");
    let cost = (entries * tokens * cols) as u64 * 3;
    machine.pool.each(cost, out.cut(Cut::Blocks(1, cols.max(1))), |t, mut out| {
        let entries = Entries { snapshots, running, token: t, count: entries };
        level.run(Mix { entries, weight: weight.row(0), eps, out: out.row(0) });
    });
}

/// The rows that one token mixes: its snapshots, oldest first, then its running row.
#[derive(Clone, Copy)]
struct Entries<'a> {
    snapshots: View<'a, f32>,
    running: View<'a, f32>,
    token: usize,
    count: usize,
}

impl<'a> Entries<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        if i + 1 < self.count {
            self.snapshots.row(i * self.running.rows() + self.token)
        } else {
            self.running.row(self.token)
        }
    }
}

struct Mix<'a> {
    entries: Entries<'a>,
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Mix { entries, weight, eps, out } = self;
        let (count, width) = (entries.count, out.len() as f32);
        // Scores, then shares, in whole blocks: what lies beyond the count is +0 in a sum.
        let mut shares = [[0.0; LANES]; ENTRIES_MAX / LANES];
        let scores = shares.as_flattened_mut();
        let score = |dot: f32, square: f32| dot / (square / width + eps).sqrt();
        for i in (0..count).step_by(4) {
            // The last one stands in for entries that are not there.
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| entries.row((i + j).min(count - 1)));
            let pairs = [(a, weight), (a, a), (b, weight), (b, b), (c, weight), (c, c), (d, weight), (d, d)];
            let sums = dots(s, pairs);
            for (score_of, sums) in scores[i..count].iter_mut().zip(sums.as_chunks::<2>().0) {
                *score_of = score(sums[0], sums[1]);
            }
        }
        softmax(s, &mut shares, count);
        let shares = &shares.as_flattened()[..count];
        let (strips, rest) = out.as_chunks_mut::<STRIP>();
        let rest_start = strips.len() * STRIP;
        for (b, strip) in strips.iter_mut().enumerate() {
            let mut sums = [s.splat(0.0); STRIP / LANES];
            for (i, share) in shares.iter().enumerate() {
                let x = &entries.row(i)[b * STRIP..][..STRIP];
                for (sum, x) in sums.iter_mut().zip(x.as_chunks().0) {
                    *sum = s.fma(s.splat(*share), s.load(x), *sum);
                }
            }
            for (sum, out) in sums.iter().zip(strip.as_chunks_mut().0) {
                s.store(*sum, out);
            }
        }
        for (b, out) in rest.chunks_mut(LANES).enumerate() {
            let mut sum = s.splat(0.0);
            for (i, share) in shares.iter().enumerate() {
                let x = &entries.row(i)[rest_start + b * LANES..][..out.len()];
                sum = s.fma(s.splat(*share), load(s, x), sum);
            }
            store(s, sum, out);
        }
    }
}

/// In place, for the first `count` numbers: `exp(x_i - max) / sum exp(x_j - max)`.
#[inline(always)]
fn softmax<S: Simd>(s: S, x: &mut [[f32; LANES]], count: usize) {
    let top = x.as_flattened()[..count].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = s.splat(0.0);
    let blocks = count.div_ceil(LANES);
    for (b, block) in x[..blocks].iter_mut().enumerate() {
        let mut shares = [0.0; LANES];
        s.store(exp(s, s.sub(s.load(block), s.splat(top))), &mut shares);
        shares[LANES.min(count - b * LANES)..].fill(0.0);
        *block = shares;
        total = s.add(total, s.load(block));
    }
    let total = s.splat(s.fold(total));
    for block in &mut x[..blocks] {
        let share = s.div(s.load(block), total);
        s.store(share, block);
    }
}
