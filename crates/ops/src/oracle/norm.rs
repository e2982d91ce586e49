//! Norms, and the attention residual, whose scores are of normed rows.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::Split;
use super::memory::Memory;
use crate::lanes::{dot, sum};
use crate::math::exp;
use crate::tensor::Tensor;

pub(super) fn rms_norm(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, gain: Tensor, eps: f32) {
    let (values, gain, width) = (memory.load(x), memory.load(gain), x.cols as usize);
    let mut result = vec![0.0; values.len()];
    split.rows(&mut result, width, values.len() as u64 * 2, |r, y| {
        let row = &values[r * width..][..width];
        let factor = 1.0 / (dot(row, row) / width as f32 + eps).sqrt();
        for (y, (x, g)) in y.iter_mut().zip(row.iter().zip(&gain)) {
            *y = x * factor * g;
        }
    });
    memory.store(out, &result);
}

pub(super) fn l2_norm(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, eps: f32, scale: f32) {
    let (values, width) = (memory.load(x), x.cols as usize);
    let mut result = vec![0.0; values.len()];
    split.rows(&mut result, width, values.len() as u64 * 2, |r, y| {
        let row = &values[r * width..][..width];
        let factor = 1.0 / (dot(row, row) + eps).sqrt() * scale;
        for (y, x) in y.iter_mut().zip(row) {
            *y = x * factor;
        }
    });
    memory.store(out, &result);
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
    let (width, rows) = (running.cols as usize, running.rows as usize);
    let kept = memory.load(snapshots.rows_at(0, count * running.rows));
    let (running, weight) = (memory.load(running), memory.load(weight));
    let entry = |i: usize, t: usize| {
        if i < count as usize {
            &kept[(i * rows + t) * width..][..width]
        } else {
            &running[t * width..][..width]
        }
    };
    let entries = count as usize + 1;
    let mut result = vec![0.0; running.len()];
    split.rows(&mut result, width, (entries * running.len()) as u64 * 3, |t, y| {
        let mut share: Vec<f32> = (0..entries)
            .map(|i| {
                let v = entry(i, t);
                dot(v, &weight) / (dot(v, v) / width as f32 + eps).sqrt()
            })
            .collect();
        softmax(&mut share);
        for (i, share) in share.iter().enumerate() {
            for (y, v) in y.iter_mut().zip(entry(i, t)) {
                *y = share.mul_add(*v, *y);
            }
        }
    });
    memory.store(out, &result);
}
