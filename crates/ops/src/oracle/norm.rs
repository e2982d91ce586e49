//! Norms, and the attention residual, whose scores are of normed rows.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::split::{Rows, Split};
use crate::lanes::{dot, sum};
use crate::math::exp;
use crate::tensor::Tensor;

pub(super) fn rms_norm(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, gain: Tensor, eps: f32) {
    let rows = RmsNorm { x: memory.load(x), gain: memory.load(gain), eps };
    let mut result = vec![0.0; rows.x.len()];
    split.rows(&mut result, x.cols as usize, x.elements() * 2, &rows);
    memory.store(out, &result);
}

struct RmsNorm {
    x: Vec<f32>,
    gain: Vec<f32>,
    eps: f32,
}

impl Rows for RmsNorm {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let width = y.len();
        let row = &self.x[r * width..][..width];
        let factor = 1.0 / (dot(row, row) / width as f32 + self.eps).sqrt();
        for (y, (x, gain)) in y.iter_mut().zip(row.iter().zip(&self.gain)) {
            *y = x * factor * gain;
        }
    }
}

pub(super) fn l2_norm(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, eps: f32, scale: f32) {
    let rows = L2Norm { x: memory.load(x), eps, scale };
    let mut result = vec![0.0; rows.x.len()];
    split.rows(&mut result, x.cols as usize, x.elements() * 2, &rows);
    memory.store(out, &result);
}

struct L2Norm {
    x: Vec<f32>,
    eps: f32,
    scale: f32,
}

impl Rows for L2Norm {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let row = &self.x[r * y.len()..][..y.len()];
        let factor = 1.0 / (dot(row, row) + self.eps).sqrt() * self.scale;
        for (y, x) in y.iter_mut().zip(row) {
            *y = x * factor;
        }
    }
}

/// In place: `softmax(x)_i = exp(x_i - max) / sum exp(x_j - max)`.
#[inline(always)]
fn softmax(x: &mut [f32]) {
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for v in x.iter_mut() {
        *v = exp(*v - top);
    }
    let total = sum(x);
    for v in x.iter_mut() {
        *v /= total;
    }
}

pub(super) fn residual_mix(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    running: Tensor,
    (snapshots, count): (Tensor, u32),
    weight: Tensor,
    eps: f32,
) {
    let rows = Mix {
        snapshots: memory.load(snapshots.rows_at(0, count * running.rows)),
        running: memory.load(running),
        weight: memory.load(weight),
        tokens: running.rows as usize,
        count: count as usize,
        eps,
    };
    let mut result = vec![0.0; rows.running.len()];
    split.rows(&mut result, running.cols as usize, u64::from(count + 1) * running.elements() * 3, &rows);
    memory.store(out, &result);
}

struct Mix {
    snapshots: Vec<f32>,
    running: Vec<f32>,
    weight: Vec<f32>,
    tokens: usize,
    /// Snapshots of a token.
    count: usize,
    eps: f32,
}

impl Rows for Mix {
    #[inline(always)]
    fn row(&self, t: usize, y: &mut [f32]) {
        let width = y.len();
        let entry = |i: usize| {
            if i < self.count {
                &self.snapshots[(i * self.tokens + t) * width..][..width]
            } else {
                &self.running[t * width..][..width]
            }
        };
        let mut shares = vec![0.0; self.count + 1];
        for (i, share) in shares.iter_mut().enumerate() {
            let v = entry(i);
            *share = dot(v, &self.weight) / (dot(v, v) / width as f32 + self.eps).sqrt();
        }
        softmax(&mut shares);
        for (i, share) in shares.iter().enumerate() {
            for (y, v) in y.iter_mut().zip(entry(i)) {
                *y = share.mul_add(*v, *y);
            }
        }
    }
}
