//! Ops that treat every number, or every row, by itself.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::device::Machine;
use crate::level::Level;
use crate::math::{sigmoid, tanh};
use crate::memory::{Cut, View, ViewMut};
use crate::simd::lanes::{Kernel, LANES, Simd, load, store};
use ops::{Activation, NONE};

/// Multiply-adds that an elementary function is worth.
const FUNCTION: u64 = 24;
/// Numbers of a part: enough to be worth a claim, few enough to balance.
const PART: usize = 2048;

/// A function of two numbers.
trait Function: Copy + Sync {
    /// Multiply-adds it is worth.
    const COST: u64;
    fn apply<S: Simd>(self, s: S, x: S::Floats, y: S::Floats) -> S::Floats;
}

#[derive(Clone, Copy)]
struct Silu;

impl Function for Silu {
    const COST: u64 = FUNCTION;
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::Floats, up: S::Floats) -> S::Floats {
        s.mul(s.mul(gate, sigmoid(s, gate)), up)
    }
}

#[derive(Clone, Copy)]
struct Situ {
    beta: f32,
    linear_beta: f32,
}

impl Function for Situ {
    const COST: u64 = 3 * FUNCTION;
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, gate: S::Floats, up: S::Floats) -> S::Floats {
        let (beta, linear_beta) = (s.splat(self.beta), s.splat(self.linear_beta));
        let gated = s.mul(s.mul(beta, tanh(s, s.div(gate, beta))), sigmoid(s, gate));
        s.mul(gated, s.mul(linear_beta, tanh(s, s.div(up, linear_beta))))
    }
}

#[derive(Clone, Copy)]
struct Gate;

impl Function for Gate {
    const COST: u64 = FUNCTION;
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Floats, gate: S::Floats) -> S::Floats {
        s.mul(x, sigmoid(s, gate))
    }
}

#[derive(Clone, Copy)]
struct Sum;

impl Function for Sum {
    const COST: u64 = 2;
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Floats, y: S::Floats) -> S::Floats {
        s.add(x, y)
    }
}

/// A function of two rows.
struct Apply<'a, F> {
    function: F,
    x: &'a [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl<F: Function> Kernel for Apply<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x_blocks, x_rest) = self.x.as_chunks::<LANES>();
        let (y_blocks, y_rest) = self.y.as_chunks::<LANES>();
        let (out_blocks, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((x, y), out) in x_blocks.iter().zip(y_blocks).zip(out_blocks) {
            s.store(self.function.apply(s, s.load(x), s.load(y)), out);
        }
        if !out_rest.is_empty() {
            let result = self.function.apply(s, s.load_part(x_rest), s.load_part(y_rest));
            s.store_part(result, out_rest);
        }
    }
}

/// A function of two rows, in the place of the first.
struct InPlace<'a, F> {
    function: F,
    x: &'a mut [f32],
    y: &'a [f32],
}

impl<F: Function> Kernel for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x_blocks, x_rest) = self.x.as_chunks_mut::<LANES>();
        let (y_blocks, y_rest) = self.y.as_chunks::<LANES>();
        for (x, y) in x_blocks.iter_mut().zip(y_blocks) {
            s.store(self.function.apply(s, s.load(x), s.load(y)), x);
        }
        if !x_rest.is_empty() {
            let result = self.function.apply(s, s.load_part(x_rest), s.load_part(y_rest));
            s.store_part(result, x_rest);
        }
    }
}

/// `out = function(x, y)` for every number.
fn apply<F: Function>(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    y: View<'_, f32>,
    function: F,
) {
    let (out, [x, y]) = flattened(out, [x, y]);
    let (rows, cols, level) = (out.rows(), out.cols(), machine.level);
    let size = part_size(cols, PART);
    let cost = (rows * cols) as u64 * F::COST;
    machine.pool.each(cost, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [rows, cols] = Cut::block(size, i, rows, cols);
        let (x, y) = (x.block(rows.clone(), cols.clone()), y.block(rows, cols));
        for r in 0..out.rows() {
            level.run(Apply { function, x: x.row(r), y: y.row(r), out: out.row(r) });
        }
    });
}

/// Everything as one row, if no operand has gaps between rows.
fn flattened<'a, const N: usize>(
    out: ViewMut<'a, f32>,
    inputs: [View<'a, f32>; N],
) -> (ViewMut<'a, f32>, [View<'a, f32>; N]) {
    if out.is_contiguous() && inputs.iter().all(View::is_contiguous) {
        (out.flat(), inputs.map(View::flat))
    } else {
        (out, inputs)
    }
}

/// Rows and columns of parts of about `numbers` numbers.
fn part_size(cols: usize, numbers: usize) -> (usize, usize) {
    (numbers.div_ceil(cols.max(1)), cols.clamp(1, numbers))
}

pub(crate) fn glu(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    gate: View<'_, f32>,
    up: View<'_, f32>,
    activation: Activation,
) {
    match activation {
        Activation::Silu => apply(machine, out, gate, up, Silu),
        Activation::Situ { beta, linear_beta } => apply(machine, out, gate, up, Situ { beta, linear_beta }),
    }
}

/// The gated unit of two rows, in the place of the gate.
pub(crate) fn glu_row(level: Level, gate: &mut [f32], up: &[f32], activation: Activation) {
    match activation {
        Activation::Silu => level.run(InPlace { function: Silu, x: gate, y: up }),
        Activation::Situ { beta, linear_beta } => {
            level.run(InPlace { function: Situ { beta, linear_beta }, x: gate, y: up });
        }
    }
}

pub(crate) fn gate_mul(machine: &mut Machine, out: ViewMut<'_, f32>, x: View<'_, f32>, gate: View<'_, f32>) {
    apply(machine, out, x, gate, Gate);
}

pub(crate) fn add(machine: &mut Machine, out: ViewMut<'_, f32>, x: View<'_, f32>, y: View<'_, f32>) {
    apply(machine, out, x, y, Sum);
}

pub(crate) fn copy(machine: &mut Machine, out: ViewMut<'_, f32>, x: View<'_, f32>) {
    let (out, [x]) = flattened(out, [x]);
    let (rows, cols) = (out.rows(), out.cols());
    let size = part_size(cols, 8 * PART);
    machine.pool.each((rows * cols) as u64, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [rows, cols] = Cut::block(size, i, rows, cols);
        let x = x.block(rows, cols);
        for r in 0..out.rows() {
            out.row(r).copy_from_slice(x.row(r));
        }
    });
}

pub(crate) fn combine(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    rows: View<'_, f32>,
    picks: View<'_, u32>,
    weights: View<'_, f32>,
) {
    let (tokens, cols, ranks, level) = (out.rows(), out.cols(), weights.cols(), machine.level);
    let size = (1, (PART / ranks.max(1)).next_multiple_of(LANES));
    let cost = (tokens * cols * ranks) as u64 * 2;
    machine.pool.each(cost, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [token, cols] = Cut::block(size, i, tokens, cols);
        let t = token.start;
        let rows = rows.block(t * ranks..(t + 1) * ranks, cols);
        level.run(Combine { rows, picks: picks.row(t), weights: weights.row(t), out: out.row(0) });
    });
}

/// Columns of the weighted sum of one token's ranks.
struct Combine<'a> {
    rows: View<'a, f32>,
    picks: &'a [u32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Combine { rows, picks, weights, out } = self;
        for (b, out) in out.chunks_mut(LANES).enumerate() {
            let mut sum = s.splat(0.0);
            for (r, (pick, weight)) in picks.iter().zip(weights).enumerate() {
                // A pick of NONE counts as zeros; a NaN in its weight shows.
                let x = if *pick == NONE {
                    s.splat(0.0)
                } else {
                    let x = &rows.row(r)[b * LANES..][..out.len()];
                    load(s, x)
                };
                sum = s.fma(s.splat(*weight), x, sum);
            }
            store(s, sum, out);
        }
    }
}

pub(crate) fn finite(machine: &mut Machine, out: ViewMut<'_, u32>, x: View<'_, f32>) {
    let (level, rows) = (machine.level, x.rows());
    let size = (PART.div_ceil(x.cols().max(1)), 1);
    machine.pool.each((rows * x.cols()) as u64, out.cut(Cut::Blocks(size.0, size.1)), |i, mut out| {
        let [part, _] = Cut::block(size, i, rows, 1);
        for (r, row) in part.enumerate() {
            out.row(r)[0] = u32::from(level.run(IsFinite(x.row(row))));
        }
    });
}

/// Whether all numbers are finite.
pub(crate) struct IsFinite<'a>(pub(crate) &'a [f32]);

impl Kernel for IsFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        // x - x is 0, or a NaN if x is not finite; a NaN stays in a sum.
        let (blocks, rest) = self.0.as_chunks::<LANES>();
        let mut sum = s.splat(0.0);
        for x in blocks {
            let x = s.load(x);
            sum = s.add(sum, s.sub(x, x));
        }
        let x = s.load_part(rest);
        sum = s.add(sum, s.sub(x, x));
        s.mask_bits(s.is_nan(sum)) == 0
    }
}
