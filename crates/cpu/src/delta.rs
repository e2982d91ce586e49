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
        let DeltaHead { head, mut out, inputs, mut state, work, ahead } = self;
        let (keys, values) = (state.rows(), state.cols());
        let blocks = values.div_ceil(LANES);
        for b in 0..blocks {
            let cols = b * LANES..values.min((b + 1) * LANES);
            let fetched = b * keys / blocks..(b + 1) * keys / blocks;
            for i in fetched {
                for number in state.row(i).iter().step_by(LANES) {
                    s.prefetch(std::ptr::from_ref(number).wrapping_add(ahead));
                }
            }
            for (i, work) in work.iter_mut().enumerate() {
                s.store(load(s, &state.row(i)[cols.clone()]), work);
            }
            for t in 0..out.rows() {
                let beta = sigmoid(s, s.splat(inputs.beta.row(t)[head]));
                let (q, k, decay) = (inputs.q.row(t), inputs.k.row(t), inputs.decay.row(t));
                let seen = decay_and_see(s, work, decay, k);
                let v = load(s, &inputs.v.row(t)[cols.clone()]);
                let new = s.mul(beta, s.sub(v, seen));
                let result = learn_and_ask(s, work, (k, new), q);
                store(s, result, &mut out.row(t)[cols.clone()]);
            }
            for (i, work) in work.iter().enumerate() {
                store(s, s.load(work), &mut state.row(i)[cols.clone()]);
            }
        }
    }
}

/// `S_i = S_i * decay_i`, and the sum of `k_i S_i` over the keys.
#[inline(always)]
fn decay_and_see<S: Simd>(s: S, state: &mut [Block], decay: &[f32], k: &[f32]) -> S::Floats {
    let mut lanes = [s.splat(0.0); LANES];
    let blocks = state.chunks_mut(LANES).zip(decay.chunks(LANES)).zip(k.chunks(LANES));
    for ((state, decay), k) in blocks {
        if let (Some(state), Some(decay), Some(k)) =
            (state.as_mut_array::<LANES>(), decay.as_array::<LANES>(), k.as_array::<LANES>())
        {
            for i in 0..LANES {
                let row = s.mul(s.load(&state[i]), s.splat(decay[i]));
                s.store(row, &mut state[i]);
                lanes[i] = s.fma(s.splat(k[i]), row, lanes[i]);
            }
        } else {
            for (i, state) in state.iter_mut().enumerate() {
                let row = s.mul(s.load(state), s.splat(decay[i]));
                s.store(row, state);
                lanes[i] = s.fma(s.splat(k[i]), row, lanes[i]);
            }
        }
    }
    fold_vectors(s, lanes)
}

/// `S_i = S_i + k_i new`, and the sum of `q_i S_i` over the keys.
#[inline(always)]
fn learn_and_ask<S: Simd>(s: S, state: &mut [Block], (k, new): (&[f32], S::Floats), q: &[f32]) -> S::Floats {
    let mut lanes = [s.splat(0.0); LANES];
    let blocks = state.chunks_mut(LANES).zip(k.chunks(LANES)).zip(q.chunks(LANES));
    for ((state, k), q) in blocks {
        if let (Some(state), Some(k), Some(q)) =
            (state.as_mut_array::<LANES>(), k.as_array::<LANES>(), q.as_array::<LANES>())
        {
            for i in 0..LANES {
                let row = s.fma(s.splat(k[i]), new, s.load(&state[i]));
                s.store(row, &mut state[i]);
                lanes[i] = s.fma(s.splat(q[i]), row, lanes[i]);
            }
        } else {
            for (i, state) in state.iter_mut().enumerate() {
                let row = s.fma(s.splat(k[i]), new, s.load(state));
                s.store(row, state);
                lanes[i] = s.fma(s.splat(q[i]), row, lanes[i]);
            }
        }
    }
    fold_vectors(s, lanes)
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
