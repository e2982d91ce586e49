//! Kimi Delta Attention: the short convolution, the decay gate and the delta rule, token by token.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::Split;
use super::memory::Memory;
use crate::lanes::LANES;
use crate::math::{exp, sigmoid, softplus};
use crate::op::DecayFormula;
use crate::tensor::Tensor;

pub(super) fn short_conv(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    x: Tensor,
    window: Tensor,
    taps: Tensor,
) {
    let (channels, past, width) = (x.cols as usize, window.cols as usize, taps.cols as usize);
    let (x, taps) = (memory.load(x), memory.load(taps));
    let mut result = vec![0.0; x.len()];
    memory.update(window, |_, window| {
        let input = |window: &[f32], t: usize, c: usize, back: usize| {
            if t >= back { x[(t - back) * channels + c] } else { window[c * past + past + t - back] }
        };
        split.rows(&mut result, channels, (x.len() * width) as u64, |t, y| {
            for (c, y) in y.iter_mut().enumerate() {
                let mut total = 0.0f32;
                for (j, tap) in taps[c * width..][..width].iter().enumerate() {
                    total = tap.mul_add(input(window, t, c, width - 1 - j), total);
                }
                *y = total * sigmoid(total);
            }
        });
        for (c, kept) in window.chunks_exact_mut(past).enumerate() {
            for row in x.chunks_exact(channels) {
                kept.rotate_left(1);
                kept[past - 1] = row[c];
            }
        }
    });
    memory.store(out, &result);
}

pub(super) fn decay_gate(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    f: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    formula: DecayFormula,
) {
    let (heads, width) = (a_log.cols as usize, f.cols as usize);
    let (f, a_log, bias) = (memory.load(f), memory.load(a_log), memory.load(dt_bias));
    let mut result = vec![0.0; f.len()];
    split.rows(&mut result, width, f.len() as u64 * 48, |r, y| {
        let head = r % heads;
        let a = exp(a_log[head]);
        for (i, y) in y.iter_mut().enumerate() {
            let logit = f[r * width + i] + bias[head * width + i];
            let log_decay = match formula {
                DecayFormula::LowerBound(bound) => bound * sigmoid(a * logit),
                DecayFormula::Softplus => -(a * softplus(logit)),
            };
            *y = exp(log_decay);
        }
    });
    memory.store(out, &result);
}

/// The inputs of the delta rule, fields as in [`crate::Op::DeltaRule`].
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) decay: Tensor,
    pub(super) beta: Tensor,
}

pub(super) fn delta_rule(memory: &mut Memory, split: &Split, out: Tensor, inputs: Inputs, state: Tensor) {
    let Inputs { q, k, v, decay, beta } = inputs;
    let (heads, tokens) = (beta.cols as usize, beta.rows as usize);
    let (d, e) = (q.cols as usize, v.cols as usize);
    let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(|t| memory.load(t));
    let mut result = vec![0.0; v.len()];
    memory.update(state, |_, state| {
        // A head's state and its results lie side by side, so that one thread has both.
        let mut work: Vec<f32> = Vec::with_capacity(state.len() + v.len());
        let per_head = d * e + tokens * e;
        for head in state.chunks_exact(d * e) {
            work.extend(head);
            work.resize(work.len() + tokens * e, 0.0);
        }
        split.rows(&mut work, per_head, (tokens * heads * d * e * 3) as u64, |head, part| {
            let (state, results) = part.split_at_mut(d * e);
            for (t, result) in results.chunks_exact_mut(e).enumerate() {
                let row = t * heads + head;
                let token = Token {
                    q: &q[row * d..][..d],
                    k: &k[row * d..][..d],
                    v: &v[row * e..][..e],
                    decay: &decay[row * d..][..d],
                    beta: sigmoid(beta[row]),
                };
                delta_step(state, &token, result);
            }
        });
        for (head, part) in work.chunks_exact(per_head).enumerate() {
            state[head * d * e..][..d * e].copy_from_slice(&part[..d * e]);
            for t in 0..tokens {
                result[(t * heads + head) * e..][..e].copy_from_slice(&part[d * e + t * e..][..e]);
            }
        }
    });
    memory.store(out, &result);
}

/// What one token brings to one head.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: f32,
}

/// One token on one head's state \[d, e\]; sums over the key axis have 16 lanes like all others.
#[inline(always)]
fn delta_step(state: &mut [f32], token: &Token<'_>, out: &mut [f32]) {
    let e = out.len();
    for (row, decay) in state.chunks_exact_mut(e).zip(token.decay) {
        for s in row {
            *s *= decay;
        }
    }
    let seen = transposed_product(state, token.k, e);
    let change: Vec<f32> = token.v.iter().zip(&seen).map(|(v, seen)| token.beta * (v - seen)).collect();
    for (row, k) in state.chunks_exact_mut(e).zip(token.k) {
        for (s, change) in row.iter_mut().zip(&change) {
            *s = k.mul_add(*change, *s);
        }
    }
    out.copy_from_slice(&transposed_product(state, token.q, e));
}

/// `x^T S`: column j sums over rows i in lane i mod 16, then the lanes are folded.
#[inline(always)]
fn transposed_product(state: &[f32], x: &[f32], e: usize) -> Vec<f32> {
    let mut lanes = vec![0.0f32; LANES * e];
    for (i, (row, x)) in state.chunks_exact(e).zip(x).enumerate() {
        let lane = &mut lanes[i % LANES * e..][..e];
        for (lane, s) in lane.iter_mut().zip(row) {
            *lane = x.mul_add(*s, *lane);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        let (lower, upper) = lanes.split_at_mut(half * e);
        for (a, b) in lower.iter_mut().zip(upper) {
            *a += *b;
        }
        half /= 2;
    }
    lanes.truncate(e);
    lanes
}
