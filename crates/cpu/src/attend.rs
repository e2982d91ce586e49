//! Attention over the latent cache: tokens and groups of heads over threads, all heads of a group sharing each row of
//! the cache. Positions go by in spans, so that a span's rows are still in the processor's caches when the next group
//! of heads needs them.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::device::Machine;
use crate::math::exp;
use crate::memory::{Access, Cut, View, ViewMut};
use crate::simd::lanes::{Block, Kernel, LANES, Simd, load, store};
use ops::{DeviceError, LATENT_BLOCK, LatentCache, NONE, Tensor};
use std::array::from_fn;
use std::ops::Range;

/// Positions in a block of the running softmax.
const BLOCK: usize = LATENT_BLOCK as usize;
/// Blocks of a span: with K3's rows 1.2 MB.
const SPAN_BLOCKS: usize = 8;
/// The most heads of a part.
const HEADS_MAX: usize = 16;

/// The cache of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a> {
    pool: View<'a, f32>,
    table: &'a [u32],
    /// Numbers of the latent part of a row.
    latent: usize,
}

impl<'a> Cache<'a> {
    /// The cache of a sequence, to be read.
    pub(crate) fn read(memory: &mut Access<'a>, cache: LatentCache) -> Result<Self, DeviceError> {
        let (pool, table) = (memory.read(cache.pool)?, memory.read_ids(cache.table)?);
        Ok(Cache { pool, table: table.row(0), latent: cache.latent as usize })
    }

    /// The row of a position.
    #[inline(always)]
    fn row(&self, position: usize) -> &'a [f32] {
        self.pool.row(place(self.table, position))
    }
}

/// The row of the pool in which a position lies.
#[inline(always)]
fn place(table: &[u32], position: usize) -> usize {
    let block = table[position / BLOCK];
    assert_ne!(block, NONE, "position {position} has no block");
    block as usize * BLOCK + position % BLOCK
}

pub(crate) fn append_latent(
    memory: &mut Access<'_>,
    (latent, rope): (Tensor, Option<Tensor>),
    cache: LatentCache,
    position: u32,
) -> Result<(), DeviceError> {
    let (latent, rope) = (memory.read(latent)?, memory.read_some(rope)?);
    let (mut pool, table) = (memory.write(cache.pool)?, memory.read_ids(cache.table)?.row(0));
    for t in 0..latent.rows() {
        let (first, rest) = pool.row(place(table, position as usize + t)).split_at_mut(latent.cols());
        first.copy_from_slice(latent.row(t));
        if let Some(rope) = rope {
            rest.copy_from_slice(rope.row(t));
        }
    }
    Ok(())
}

/// The query side, fields as in [`ops::Op::AttendLatent`].
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub(crate) q: View<'a, f32>,
    pub(crate) q_rope: Option<View<'a, f32>>,
    pub(crate) position: u32,
    pub(crate) selected: Option<View<'a, u32>>,
    pub(crate) heads: u32,
    pub(crate) scale: f32,
}

pub(crate) fn attend_latent(
    machine: &mut Machine,
    mut out: ViewMut<'_, f32>,
    query: Query<'_>,
    cache: Cache<'_>,
) {
    let (rows, latent, level) = (query.q.rows(), cache.latent, machine.level);
    let tokens = rows / query.heads as usize;
    let group = heads_of_a_part(query.heads as usize, tokens, machine.pool.threads());
    let end = query.position as usize + tokens;
    let running = machine.scratch.numbers(2 * rows);
    let span = SPAN_BLOCKS * BLOCK;
    for start in (0..end).step_by(span) {
        let parts = (
            out.borrow().cut(Cut::Blocks(group, latent)),
            ViewMut::from_slice(running, rows, 2).cut(Cut::Blocks(group, 2)),
        );
        let cost = rows * span.min(end - start) * (cache.pool.cols() + latent) / LANES;
        machine.pool.each(cost as u64, parts, |i, (out, running)| {
            let positions = start..end.min(start + span);
            level.run(Part { out, running, query, cache, first_row: i * group, positions });
        });
    }
}

/// As many heads as share a row well, in parts of equal size, and enough parts for all threads.
fn heads_of_a_part(heads: usize, tokens: usize, threads: usize) -> usize {
    let is_enough = |group: usize| threads == 1 || tokens * (heads / group) >= threads;
    let divides = |group: &usize| heads.is_multiple_of(*group);
    (1..=HEADS_MAX.min(heads)).rev().filter(divides).find(|group| is_enough(*group)).unwrap_or(1)
}

/// Some heads of one token against a span of positions.
struct Part<'a> {
    /// What is summed so far; the result after the span in which the token itself stands.
    out: ViewMut<'a, f32>,
    /// The largest score so far and the sum of the shares, for each head.
    running: ViewMut<'a, f32>,
    query: Query<'a>,
    cache: Cache<'a>,
    first_row: usize,
    positions: Range<usize>,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let token = self.first_row / self.query.heads as usize;
        let own = self.query.position as usize + token;
        if self.positions.start == 0 {
            for h in 0..self.out.rows() {
                self.out.row(h).fill(0.0);
                self.running.row(h).copy_from_slice(&[f32::NEG_INFINITY, 0.0]);
            }
        }
        let list = self.query.selected.map_or(&[][..], |list| list.row(token));
        let is_listed = self.query.selected.is_some();
        let mut listed =
            list[list.partition_point(|p| (*p as usize) < self.positions.start)..].iter().peekable();
        let end = self.positions.end.min(own + 1);
        let (mut rows, mut scores) = ([&[][..]; BLOCK], [[[0.0; LANES]; BLOCK / LANES]; HEADS_MAX]);
        for start in (self.positions.start..end).step_by(BLOCK) {
            let mut count = 0;
            let mut push = |p: usize| {
                rows[count] = self.cache.row(p);
                count += 1;
            };
            if is_listed {
                while let Some(p) = listed.next_if(|p| (**p as usize) < end.min(start + BLOCK)) {
                    push(*p as usize);
                }
            } else {
                (start..end.min(start + BLOCK)).for_each(push);
            }
            if count > 0 {
                self.block(s, &rows[..count], &mut scores);
            }
        }
        if self.positions.contains(&own) {
            self.finish(s);
        }
    }
}

/// Scores, then shares, of a block: a row a head.
type Scores = [[Block; BLOCK / LANES]; HEADS_MAX];

impl Part<'_> {
    /// The positions of one block, whose rows of the cache are given.
    #[inline(always)]
    fn block<S: Simd>(&mut self, s: S, rows: &[&[f32]], scores: &mut Scores) {
        let heads = self.out.rows();
        // Tiles of 16 sums; those of several heads need fewer loads.
        let mut h = 0;
        while h < heads {
            h += match heads - h {
                4.. if S::WIDE => self.scores::<S, 4, 4>(s, h, rows, scores),
                2.. => self.scores::<S, 2, 8>(s, h, rows, scores),
                _ => self.scores::<S, 1, 16>(s, h, rows, scores),
            };
        }
        let mut rescales = [0.0; HEADS_MAX];
        for (h, rescale) in rescales[..heads].iter_mut().enumerate() {
            *rescale = self.shares(s, h, rows.len(), &mut scores[h]);
        }
        let mut h = 0;
        while h < heads {
            h += match heads - h {
                4.. if S::WIDE => self.context::<S, 4, 4>(s, h, rows, scores, &rescales),
                2.. if S::WIDE => self.context::<S, 2, 8>(s, h, rows, scores, &rescales),
                2.. => self.context::<S, 2, 2>(s, h, rows, scores, &rescales),
                _ => self.context::<S, 1, 4>(s, h, rows, scores, &rescales),
            };
        }
    }

    /// The scores of `A` heads from head `h` on, `B` positions at a time; gives `A`.
    #[inline(always)]
    fn scores<S: Simd, const A: usize, const B: usize>(
        &self,
        s: S,
        h: usize,
        rows: &[&[f32]],
        scores: &mut Scores,
    ) -> usize {
        let latent = self.cache.latent;
        let first = self.first_row + h;
        let q: [&[f32]; A] = from_fn(|a| self.query.q.row(first + a));
        let q_rope: [&[f32]; A] = from_fn(|a| self.query.q_rope.map_or(&[][..], |rope| rope.row(first + a)));
        for (b, part) in rows.chunks(B).enumerate() {
            // The last one stands in for rows that are not there; its sums are not looked at.
            let k: [&[f32]; B] = from_fn(|j| part[j.min(part.len() - 1)]);
            let mut sums = [[s.splat(0.0); B]; A];
            products(s, q, k.map(|k| &k[..latent]), &mut sums);
            products(s, q_rope, k.map(|k| &k[latent..]), &mut sums);
            let folded = s.fold_all(from_fn(|i| sums[i / B][i % B]));
            let mut folds = [0.0; LANES];
            s.store(s.mul(folded, s.splat(self.query.scale)), &mut folds);
            for a in 0..A {
                let to = &mut scores[h + a].as_flattened_mut()[b * B..][..B];
                to.copy_from_slice(&folds[a * B..][..B]);
            }
        }
        A
    }

    /// Turns a head's scores into shares against the new maximum; gives the factor for what was summed before.
    #[inline(always)]
    fn shares<S: Simd>(&mut self, s: S, h: usize, count: usize, scores: &mut [Block; BLOCK / LANES]) -> f32 {
        let [top, total] = *self.running.row(h) else { unreachable!("two numbers a head") };
        // What is not there has no share.
        scores.as_flattened_mut()[count..].fill(f32::NEG_INFINITY);
        let scores = &mut scores[..count.div_ceil(LANES)];
        let mut tops = s.splat(top);
        for score in &*scores {
            tops = s.max_or(s.load(score), tops);
        }
        let new_top = s.largest(tops);
        let mut sum = s.splat(0.0);
        for score in scores {
            let share = exp(s, s.sub(s.load(score), s.splat(new_top)));
            s.store(share, score);
            sum = s.add(sum, share);
        }
        let mut rescale = [0.0; LANES];
        s.store(exp(s, s.splat(top - new_top)), &mut rescale);
        self.running.row(h).copy_from_slice(&[new_top, total * rescale[0] + s.fold(sum)]);
        rescale[0]
    }

    /// Adds the shares' rows to the results of `A` heads from head `h` on, `C` blocks of columns at a time; gives `A`.
    #[inline(always)]
    fn context<S: Simd, const A: usize, const C: usize>(
        &mut self,
        s: S,
        h: usize,
        rows: &[&[f32]],
        scores: &Scores,
        rescales: &[f32; HEADS_MAX],
    ) -> usize {
        let latent = self.out.cols();
        let shares: [&[f32]; A] = from_fn(|a| &scores[h + a].as_flattened()[..rows.len()]);
        let width = C * LANES;
        let whole = latent / width * width;
        for c in (0..whole).step_by(width) {
            let mut sums = [[s.splat(0.0); C]; A];
            for (a, sums) in sums.iter_mut().enumerate() {
                let y = self.out.row(h + a)[c..][..width].as_chunks().0;
                for (sum, y) in sums.iter_mut().zip(y) {
                    *sum = s.mul(s.load(y), s.splat(rescales[h + a]));
                }
            }
            for (p, row) in rows.iter().enumerate() {
                let row = row[c..][..width].as_chunks().0;
                let mut columns = [s.splat(0.0); C];
                for (column, row) in columns.iter_mut().zip(row) {
                    *column = s.load(row);
                }
                for (sums, shares) in sums.iter_mut().zip(&shares) {
                    let share = s.splat(shares[p]);
                    for (sum, x) in sums.iter_mut().zip(&columns) {
                        *sum = s.fma(share, *x, *sum);
                    }
                }
            }
            for (a, sums) in sums.iter().enumerate() {
                let y = self.out.row(h + a)[c..][..width].as_chunks_mut().0;
                for (sum, y) in sums.iter().zip(y) {
                    s.store(*sum, y);
                }
            }
        }
        for c in (whole..latent).step_by(LANES) {
            for (a, shares) in shares.iter().enumerate() {
                let y = &mut self.out.row(h + a)[c..latent.min(c + LANES)];
                let mut sum = s.mul(load(s, y), s.splat(rescales[h + a]));
                for (row, share) in rows.iter().zip(*shares) {
                    sum = s.fma(s.splat(*share), load(s, &row[c..][..y.len()]), sum);
                }
                store(s, sum, y);
            }
        }
        A
    }

    /// Divides by the sum of the shares.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S) {
        for h in 0..self.out.rows() {
            let total = s.splat(self.running.row(h)[1]);
            for y in self.out.row(h).chunks_mut(LANES) {
                store(s, s.div(load(s, y), total), y);
            }
        }
    }
}

/// Adds the products of each of `A` rows with each of `B` rows to the lanes of their sums.
#[inline(always)]
fn products<S: Simd, const A: usize, const B: usize>(
    s: S,
    x: [&[f32]; A],
    y: [&[f32]; B],
    sums: &mut [[S::Floats; B]; A],
) {
    let n = x[0].len();
    let (blocks, rest) = (n / LANES, n / LANES * LANES);
    let x_blocks = x.map(|x| &x.as_chunks::<LANES>().0[..blocks]);
    let y_blocks = y.map(|y| &y.as_chunks::<LANES>().0[..blocks]);
    for b in 0..blocks {
        let mut y = [s.splat(0.0); B];
        for (y, blocks) in y.iter_mut().zip(&y_blocks) {
            *y = s.load(&blocks[b]);
        }
        for (sums, x) in sums.iter_mut().zip(&x_blocks) {
            let x = s.load(&x[b]);
            for (sum, y) in sums.iter_mut().zip(&y) {
                *sum = s.fma(x, *y, *sum);
            }
        }
    }
    if rest < n {
        let mut parts = [s.splat(0.0); B];
        for (part, y) in parts.iter_mut().zip(&y) {
            *part = s.load_part(&y[rest..n]);
        }
        for (sums, x) in sums.iter_mut().zip(&x) {
            let x = s.load_part(&x[rest..n]);
            for (sum, y) in sums.iter_mut().zip(&parts) {
                *sum = s.fma(x, *y, *sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_shared_out_in_equal_parts_that_keep_threads_busy() {
        // One token of K3's 96 heads on 1, 2, 5, 16 and 96 threads, then many tokens.
        for (tokens, threads, expected) in
            [(1, 1, 16), (1, 2, 16), (1, 5, 16), (1, 16, 6), (1, 96, 1), (1, 200, 1), (32, 16, 16)]
        {
            assert_eq!(heads_of_a_part(96, tokens, threads), expected, "{tokens} tokens, {threads} threads");
        }
        assert_eq!(heads_of_a_part(7, 1, 2), 1);
        assert_eq!(heads_of_a_part(17, 4, 2), 1);
    }
}
