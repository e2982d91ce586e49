//! Kimi Delta Attention: the short convolution, the decay gate and the delta rule, token by token.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::split::{Rows, Split};
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
        let rows = Convolution { x: &x, window, taps: &taps, width };
        split.rows(&mut result, channels, (x.len() * width) as u64, &rows);
        for (c, kept) in window.chunks_exact_mut(past).enumerate() {
            for row in x.chunks_exact(channels) {
                kept.rotate_left(1);
                kept[past - 1] = row[c];
            }
        }
    });
    memory.store(out, &result);
}

/// Row t is the result of token t.
struct Convolution<'a> {
    x: &'a [f32],
    window: &'a [f32],
    taps: &'a [f32],
    /// Taps of a channel.
    width: usize,
}

impl Rows for Convolution<'_> {
    #[inline(always)]
    fn row(&self, t: usize, y: &mut [f32]) {
        let (channels, width) = (y.len(), self.width);
        // The input of channel c, `back` tokens before t; before the first token it is in the window.
        let input = |c: usize, back: usize| {
            if t >= back {
                self.x[(t - back) * channels + c]
            } else {
                self.window[c * (width - 1) + width - 1 + t - back]
            }
        };
        for (c, y) in y.iter_mut().enumerate() {
            let mut total = 0.0f32;
            for (j, tap) in self.taps[c * width..][..width].iter().enumerate() {
                total = tap.mul_add(input(c, width - 1 - j), total);
            }
            *y = total * sigmoid(total);
        }
    }
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
    let rows = Decays { f: memory.load(f), a_log: memory.load(a_log), bias: memory.load(dt_bias), formula };
    let mut result = vec![0.0; rows.f.len()];
    split.rows(&mut result, f.cols as usize, f.elements() * 48, &rows);
    memory.store(out, &result);
}

/// Row `t * heads + h` holds the decays of head h of token t.
struct Decays {
    f: Vec<f32>,
    a_log: Vec<f32>,
    bias: Vec<f32>,
    formula: DecayFormula,
}

impl Rows for Decays {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let (width, head) = (y.len(), r % self.a_log.len());
        let a = exp(self.a_log[head]);
        let logits = self.f[r * width..].iter().zip(&self.bias[head * width..]);
        for (y, (f, bias)) in y.iter_mut().zip(logits) {
            let logit = f + bias;
            let log_decay = match self.formula {
                DecayFormula::LowerBound(bound) => bound * sigmoid(a * logit),
                DecayFormula::Softplus => -(a * softplus(logit)),
            };
            *y = exp(log_decay);
        }
    }
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
        let rows = DeltaHeads { q: &q, k: &k, v: &v, decay: &decay, beta: &beta, heads, d, e };
        split.rows(&mut work, per_head, (tokens * heads * d * e * 3) as u64, &rows);
        for (head, part) in work.chunks_exact(per_head).enumerate() {
            state[head * d * e..][..d * e].copy_from_slice(&part[..d * e]);
            for t in 0..tokens {
                result[(t * heads + head) * e..][..e].copy_from_slice(&part[d * e + t * e..][..e]);
            }
        }
    });
    memory.store(out, &result);
}

/// Row h is the state of head h \[d, e\], followed by its results \[tokens, e\].
struct DeltaHeads<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
    heads: usize,
    d: usize,
    e: usize,
}

impl Rows for DeltaHeads<'_> {
    #[inline(always)]
    fn row(&self, head: usize, part: &mut [f32]) {
        let (d, e) = (self.d, self.e);
        let (state, results) = part.split_at_mut(d * e);
        for (t, result) in results.chunks_exact_mut(e).enumerate() {
            let row = t * self.heads + head;
            let token = Token {
                q: &self.q[row * d..][..d],
                k: &self.k[row * d..][..d],
                v: &self.v[row * e..][..e],
                decay: &self.decay[row * d..][..d],
                beta: sigmoid(self.beta[row]),
            };
            delta_step(state, &token, result);
        }
    }
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

/// `x^T S`: column j sums over rows i in lane i mod 16, then the lanes are folded. Rows that a last block of 16 lacks
/// leave their lanes as they are: unlike in the sum over a tensor's row, no +0 is added.
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
