//! Attention over the latent cache, in blocks of 64 absolute positions with a running softmax.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::split::{Rows, Split};
use crate::lanes::{Lanes, sum};
use crate::math::exp;
use crate::tensor::{Ids, LATENT_BLOCK, LatentCache, NONE, Tensor};

pub(super) fn append_latent(
    memory: &mut Memory,
    latent: Tensor,
    rope: Option<Tensor>,
    cache: LatentCache,
    position: u32,
) {
    let table = memory.load_ids(cache.table);
    let (width, split) = (cache.pool.cols as usize, cache.latent as usize);
    let (latents, rope) = (memory.load(latent), rope.map(|r| memory.load(r)));
    let pool = memory.view_mut(cache.pool);
    for (t, latent) in latents.chunks_exact(split).enumerate() {
        let row = &mut pool[row_of(&table, position + t as u32) * width..][..width];
        row[..split].copy_from_slice(latent);
        if let Some(rope) = &rope {
            row[split..].copy_from_slice(&rope[t * (width - split)..][..width - split]);
        }
    }
}

fn row_of(table: &[u32], position: u32) -> usize {
    let block = table[(position / LATENT_BLOCK) as usize];
    assert_ne!(block, NONE, "position {position} has no block");
    (block * LATENT_BLOCK + position % LATENT_BLOCK) as usize
}

/// The query side, fields as in [`crate::Op::AttendLatent`].
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) q: Tensor,
    pub(super) q_rope: Option<Tensor>,
    pub(super) position: u32,
    pub(super) selected: Option<Ids>,
    pub(super) heads: u32,
    pub(super) scale: f32,
}

pub(super) fn attend_latent(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    query: Query,
    cache: LatentCache,
) {
    let Query { q, q_rope, position, selected, heads, scale } = query;
    let (latent, width, heads) = (cache.latent as usize, cache.pool.cols as usize, heads as usize);
    let table = memory.load_ids(cache.table);
    let tokens = q.rows as usize / heads;
    let seen: Vec<Vec<u32>> =
        (0..tokens).map(|t| positions(memory, selected, t, position + t as u32)).collect();
    let (q, q_rope) = (memory.load(q), q_rope.map_or_else(Vec::new, |r| memory.load(r)));
    let mut result = vec![0.0; q.len()];
    let work = seen.iter().map(Vec::len).sum::<usize>() * heads * (width + latent);
    let rows = Attention {
        q: &q,
        q_rope: &q_rope,
        seen: &seen,
        table: &table,
        pool: memory.view(cache.pool),
        width,
        heads,
        scale,
    };
    split.rows(&mut result, latent, work as u64, &rows);
    memory.store(out, &result);
}

/// Row `t * heads + h` is the result of head h of token t.
struct Attention<'a> {
    q: &'a [f32],
    q_rope: &'a [f32],
    /// The positions each token sees.
    seen: &'a [Vec<u32>],
    table: &'a [u32],
    pool: &'a [f32],
    /// Numbers in a row of the pool, latent and rope.
    width: usize,
    heads: usize,
    scale: f32,
}

impl Rows for Attention<'_> {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let (latent, width) = (y.len(), self.width);
        let rope = width - latent;
        let mut running = Running { top: f32::NEG_INFINITY, total: 0.0 };
        let (q, q_rope) = (&self.q[r * latent..][..latent], &self.q_rope[r * rope..][..rope]);
        let seen = &self.seen[r / self.heads];
        for block in seen.chunk_by(|a, b| a / LATENT_BLOCK == b / LATENT_BLOCK) {
            let rows = || block.iter().map(|&p| &self.pool[row_of(self.table, p) * width..][..width]);
            let mut scores = [0.0; LATENT_BLOCK as usize];
            let scores = &mut scores[..block.len()];
            for (score, row) in scores.iter_mut().zip(rows()) {
                let mut lanes = Lanes::zero();
                lanes.fma(q, &row[..latent]);
                lanes.fma(q_rope, &row[latent..]);
                *score = lanes.fold() * self.scale;
            }
            running.add_block(scores, y);
            for (share, row) in scores.iter().zip(rows()) {
                for (y, c) in y.iter_mut().zip(row) {
                    *y = share.mul_add(*c, *y);
                }
            }
        }
        for y in y.iter_mut() {
            *y /= running.total;
        }
    }
}

/// The positions a token sees, ascending.
fn positions(memory: &Memory, selected: Option<Ids>, token: usize, own: u32) -> Vec<u32> {
    match selected {
        None => (0..=own).collect(),
        Some(list) => {
            let row = memory.load_ids(Ids(list.0.rows_at(token as u32, 1)));
            row.into_iter().filter(|&p| p <= own).collect()
        }
    }
}

/// Softmax over blocks: the largest score so far and the sum of `exp(score - top)`.
struct Running {
    top: f32,
    total: f32,
}

impl Running {
    /// Turns a block's scores into shares against the new maximum and rescales what was summed before.
    #[inline(always)]
    fn add_block(&mut self, scores: &mut [f32], summed: &mut [f32]) {
        let top = scores.iter().copied().fold(self.top, f32::max);
        let rescale = exp(self.top - top);
        for score in scores.iter_mut() {
            *score = exp(*score - top);
        }
        self.total = self.total * rescale + sum(scores);
        self.top = top;
        for y in summed.iter_mut() {
            *y *= rescale;
        }
    }
}
