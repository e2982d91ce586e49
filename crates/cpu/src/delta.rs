//! Kimi Delta Attention: the short convolution, the decay gate and the delta rule.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::device::Machine;
use crate::math::{exp, sigmoid, softplus};
use crate::memory::{Cut, View, ViewMut};
use crate::simd::lanes::{Block, Kernel, LANES, Simd, load, store};
use ops::DecayFormula;
use std::ops::Range;

/// Channels of a part of the convolution.
const CHANNELS: usize = 512;

pub(crate) fn short_conv(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    window: ViewMut<'_, f32>,
    taps: View<'_, f32>,
) {
    let (tokens, channels, width, level) = (x.rows(), x.cols(), taps.cols(), machine.level);
    let size = (tokens.max(1), CHANNELS);
    let parts = (out.cut(Cut::Blocks(size.0, size.1)), window.cut(Cut::Blocks(CHANNELS, width.max(2) - 1)));
    let cost = (tokens * channels * (width + 24)) as u64;
    machine.pool.each(cost, parts, |i, (out, window)| {
        let [rows, cols] = Cut::block(size, i, tokens, channels);
        let (x, taps) = (x.block(rows, cols.clone()), taps.block(cols, 0..width));
        if width == 4 && window.is_contiguous() && taps.is_contiguous() {
            level.run(FourTaps { out, x, window, taps });
        } else {
            level.run(AnyTaps { out, x, window, taps });
        }
    });
}

/// Some channels of all tokens, four taps: the usual convolution, its inputs in registers from token to token.
struct FourTaps<'a> {
    out: ViewMut<'a, f32>,
    x: View<'a, f32>,
    window: ViewMut<'a, f32>,
    taps: View<'a, f32>,
}

impl Kernel for FourTaps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let FourTaps { mut out, x, window, taps } = self;
        let channels = x.cols();
        let mut window = window.flat();
        let (window, taps) = (window.row(0), taps.flat().row(0));
        for c in (0..channels).step_by(LANES) {
            let n = LANES.min(channels - c);
            let (mut kept, mut tap) = ([[0.0; LANES]; 3], [[0.0; LANES]; 4]);
            kept.as_flattened_mut()[..3 * n].copy_from_slice(&window[3 * c..][..3 * n]);
            tap.as_flattened_mut()[..4 * n].copy_from_slice(&taps[4 * c..][..4 * n]);
            let tap = s.split_4(&tap);
            let mut past = s.split_3(&kept);
            for t in 0..x.rows() {
                let now = load(s, &x.row(t)[c..][..n]);
                let sum = s.fma(tap[0], past[0], s.splat(0.0));
                let sum = s.fma(tap[1], past[1], sum);
                let sum = s.fma(tap[2], past[2], sum);
                let sum = s.fma(tap[3], now, sum);
                store(s, s.mul(sum, sigmoid(s, sum)), &mut out.row(t)[c..][..n]);
                past = [past[1], past[2], now];
            }
            s.join_3(past, &mut kept);
            window[3 * c..][..3 * n].copy_from_slice(&kept.as_flattened()[..3 * n]);
        }
    }
}

/// The same with any count of taps and any views.
struct AnyTaps<'a> {
    out: ViewMut<'a, f32>,
    x: View<'a, f32>,
    window: ViewMut<'a, f32>,
    taps: View<'a, f32>,
}

impl Kernel for AnyTaps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AnyTaps { mut out, x, mut window, taps } = self;
        let (tokens, channels, past) = (x.rows(), x.cols(), window.cols());
        for c in (0..channels).step_by(LANES) {
            let n = LANES.min(channels - c);
            for t in 0..tokens {
                let mut sum = s.splat(0.0);
                for j in 0..=past {
                    // The input `past - j` tokens before; before the first token it is in the window.
                    let mut input = [0.0; LANES];
                    if t + j >= past {
                        input[..n].copy_from_slice(&x.row(t + j - past)[c..][..n]);
                    } else {
                        for (i, input) in input[..n].iter_mut().enumerate() {
                            *input = window.row(c + i)[t + j];
                        }
                    }
                    let mut tap = [0.0; LANES];
                    for (i, tap) in tap[..n].iter_mut().enumerate() {
                        *tap = taps.row(c + i)[j];
                    }
                    sum = s.fma(s.load(&tap), s.load(&input), sum);
                }
                store(s, s.mul(sum, sigmoid(s, sum)), &mut out.row(t)[c..][..n]);
            }
        }
        for c in 0..channels {
            let kept = window.row(c);
            let new = tokens.min(past);
            kept.copy_within(new.., 0);
            for (i, kept) in kept[past - new..].iter_mut().enumerate() {
                *kept = x.row(tokens - new + i)[c];
            }
        }
    }
}

/// Rows of a part of the decay gate.
const GATE_ROWS: usize = 16;

pub(crate) fn decay_gate(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    f: View<'_, f32>,
    a_log: View<'_, f32>,
    dt_bias: View<'_, f32>,
    formula: DecayFormula,
) {
    let (rows, cols, heads, level) = (f.rows(), f.cols(), a_log.cols(), machine.level);
    let size = (GATE_ROWS, cols.max(1));
    machine.pool.each((rows * cols) as u64 * 48, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [part, _] = Cut::block(size, i, rows, cols);
        for (r, row) in part.enumerate() {
            let head = row % heads;
            let (f, bias, a_log) = (f.row(row), dt_bias.row(head), a_log.row(0)[head]);
            level.run(DecayRow { f, bias, a_log, formula, out: out.row(r) });
        }
    });
}

/// The decays of one head of one token.
struct DecayRow<'a> {
    f: &'a [f32],
    bias: &'a [f32],
    a_log: f32,
    formula: DecayFormula,
    out: &'a mut [f32],
}

impl Kernel for DecayRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let a = exp(s, s.splat(self.a_log));
        for (c, out) in self.out.chunks_mut(LANES).enumerate() {
            let part = c * LANES..c * LANES + out.len();
            let logit = s.add(load(s, &self.f[part.clone()]), load(s, &self.bias[part]));
            let log_decay = match self.formula {
                DecayFormula::LowerBound(bound) => s.mul(s.splat(bound), sigmoid(s, s.mul(a, logit))),
                DecayFormula::Softplus => s.mul(s.splat(-1.0), s.mul(a, softplus(s, logit))),
            };
            store(s, exp(s, log_decay), out);
        }
    }
}

/// The inputs of the delta rule, fields as in [`ops::Op::DeltaRule`].
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) q: View<'a, f32>,
    pub(crate) k: View<'a, f32>,
    pub(crate) v: View<'a, f32>,
    pub(crate) decay: View<'a, f32>,
    pub(crate) beta: View<'a, f32>,
}

/// Keys of a head whose state's columns fit the stack.
const KEYS: usize = 256;

pub(crate) fn delta_rule(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    inputs: Inputs<'_>,
    state: ViewMut<'_, f32>,
) {
    let (heads, tokens, level) = (inputs.beta.cols(), inputs.beta.rows(), machine.level);
    let (keys, values) = (inputs.q.cols(), inputs.v.cols());
    let cost = (heads * tokens * keys * values) as u64 / 4;
    let ahead = machine.pool.threads() * keys * values;
    let parts = (out.cut(Cut::Every(heads)), state.cut(Cut::Blocks(keys, values)));
    machine.pool.each(cost, parts, |head, (out, state)| {
        let Inputs { q, k, v, decay, beta } = inputs;
        let [q, k, v, decay] = [q, k, v, decay].map(|view| view.every(head, heads));
        let inputs = Inputs { q, k, v, decay, beta };
        if keys <= KEYS {
            level.run(DeltaHead { head, out, inputs, state, work: &mut [[0.0; LANES]; KEYS][..keys], ahead });
        } else {
            // No model has so many keys, and the system gives the memory as well.
            level.run(DeltaHead { head, out, inputs, state, work: &mut vec![[0.0; LANES]; keys], ahead });
        }
    });
}

/// One head: its state \[keys, values\] and its row of every token.
struct DeltaHead<'a> {
    head: usize,
    out: ViewMut<'a, f32>,
    inputs: Inputs<'a>,
    state: ViewMut<'a, f32>,
    /// Sixteen columns of the state, while all tokens pass.
    work: &'a mut [Block],
    /// Numbers from this head's state to that of the head that this thread is likely to have next.
    ahead: usize,
}

impl Kernel for DeltaHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let DeltaHead { head, mut out, inputs, state, work, ahead } = self;
        let (tokens, keys, values) = (out.rows(), state.rows(), state.cols());
        let mut columns = Columns { state, cols: 0..0, work, ahead };
        for c in (0..values).step_by(LANES) {
            columns.cols = c..values.min(c + LANES);
            let cols = c..values.min(c + LANES);
            for t in 0..tokens {
                let beta = sigmoid(s, s.splat(inputs.beta.row(t)[head]));
                let (q, k, decay) = (inputs.q.row(t), inputs.k.row(t), inputs.decay.row(t));
                let (q, k, decay) = (&q[..keys], &k[..keys], &decay[..keys]);
                let seen = if t == 0 {
                    columns.decay_and_see::<S, true>(s, decay, k)
                } else {
                    columns.decay_and_see::<S, false>(s, decay, k)
                };
                let new = s.mul(beta, s.sub(load(s, &inputs.v.row(t)[cols.clone()]), seen));
                let result = if t + 1 == tokens {
                    columns.learn_and_ask::<S, true>(s, (k, new), q)
                } else {
                    columns.learn_and_ask::<S, false>(s, (k, new), q)
                };
                store(s, result, &mut out.row(t)[cols.clone()]);
            }
        }
    }
}

/// Sixteen columns of a head's state, or what is left of them.
struct Columns<'a> {
    state: ViewMut<'a, f32>,
    cols: Range<usize>,
    /// They, one row after the other, while tokens pass: read from the state by the first, written back by the last.
    work: &'a mut [Block],
    ahead: usize,
}

impl Columns<'_> {
    /// `S_i = S_i * decay_i`, and the sum of `k_i S_i` over the keys.
    #[inline(always)]
    fn decay_and_see<S: Simd, const FIRST: bool>(&mut self, s: S, decay: &[f32], k: &[f32]) -> S::Floats {
        let mut lanes = [s.splat(0.0); LANES];
        let whole = k.len() / LANES * LANES;
        for first in (0..whole).step_by(LANES) {
            for (lane, sum) in lanes.iter_mut().enumerate() {
                let i = first + lane;
                *sum = s.fma(s.splat(k[i]), self.decayed::<S, FIRST>(s, i, decay[i]), *sum);
            }
        }
        for i in whole..k.len() {
            let sum = &mut lanes[i - whole];
            *sum = s.fma(s.splat(k[i]), self.decayed::<S, FIRST>(s, i, decay[i]), *sum);
        }
        fold_vectors(s, lanes)
    }

    /// A row after the decay.
    #[inline(always)]
    fn decayed<S: Simd, const FIRST: bool>(&mut self, s: S, i: usize, decay: f32) -> S::Floats {
        let row = if FIRST {
            // One line for each that is read, so that the state ahead comes as evenly as this one goes.
            let line = self.cols.start * self.state.rows() + i * LANES;
            let row = self.state.row(i);
            s.prefetch(row.as_ptr().wrapping_sub(i * row.len()).wrapping_add(self.ahead + line));
            load(s, &row[self.cols.clone()])
        } else {
            s.load(&self.work[i])
        };
        let row = s.mul(row, s.splat(decay));
        s.store(row, &mut self.work[i]);
        row
    }

    /// `S_i = S_i + k_i new`, and the sum of `q_i S_i` over the keys.
    #[inline(always)]
    fn learn_and_ask<S: Simd, const LAST: bool>(
        &mut self,
        s: S,
        (k, new): (&[f32], S::Floats),
        q: &[f32],
    ) -> S::Floats {
        let mut lanes = [s.splat(0.0); LANES];
        let whole = k.len() / LANES * LANES;
        for first in (0..whole).step_by(LANES) {
            for (lane, sum) in lanes.iter_mut().enumerate() {
                let i = first + lane;
                *sum = s.fma(s.splat(q[i]), self.learned::<S, LAST>(s, i, k[i], new), *sum);
            }
        }
        for i in whole..k.len() {
            let sum = &mut lanes[i - whole];
            *sum = s.fma(s.splat(q[i]), self.learned::<S, LAST>(s, i, k[i], new), *sum);
        }
        fold_vectors(s, lanes)
    }

    /// A row after the update.
    #[inline(always)]
    fn learned<S: Simd, const LAST: bool>(&mut self, s: S, i: usize, k: f32, new: S::Floats) -> S::Floats {
        let row = s.fma(s.splat(k), new, s.load(&self.work[i]));
        if LAST {
            store(s, row, &mut self.state.row(i)[self.cols.clone()]);
        } else {
            s.store(row, &mut self.work[i]);
        }
        row
    }
}

/// The fold over the keys: the upper half of the vectors onto the lower, four times.
#[inline(always)]
fn fold_vectors<S: Simd>(s: S, x: [S::Floats; LANES]) -> S::Floats {
    let eight: [S::Floats; 8] = [
        s.add(x[0], x[8]),
        s.add(x[1], x[9]),
        s.add(x[2], x[10]),
        s.add(x[3], x[11]),
        s.add(x[4], x[12]),
        s.add(x[5], x[13]),
        s.add(x[6], x[14]),
        s.add(x[7], x[15]),
    ];
    let four = [
        s.add(eight[0], eight[4]),
        s.add(eight[1], eight[5]),
        s.add(eight[2], eight[6]),
        s.add(eight[3], eight[7]),
    ];
    s.add(s.add(four[0], four[2]), s.add(four[1], four[3]))
}
