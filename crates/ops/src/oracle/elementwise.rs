//! Ops that treat every number, or every row, by itself.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::split::{Rows, Split};
use crate::math::{sigmoid, tanh};
use crate::op::Activation;
use crate::tensor::{Ids, NONE, Tensor};

/// Multiply-adds an elementary function is worth when work is split.
const FUNCTION: u64 = 24;

impl Activation {
    /// The gated unit of one gate and one linear number.
    #[inline(always)]
    pub(crate) fn apply(self, gate: f32, up: f32) -> f32 {
        match self {
            Activation::Silu => gate * sigmoid(gate) * up,
            Activation::Situ { beta, linear_beta } => {
                beta * tanh(gate / beta) * sigmoid(gate) * (linear_beta * tanh(up / linear_beta))
            }
        }
    }
}

pub(super) fn glu(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    gate: Tensor,
    up: Tensor,
    activation: Activation,
) {
    let (width, gate, up) = (gate.cols as usize, memory.load(gate), memory.load(up));
    let result = gated_units(split, &gate, &up, width, activation);
    memory.store(out, &result);
}

/// `activation(gate, up)` for rows of `width` numbers.
pub(super) fn gated_units(
    split: &Split,
    gate: &[f32],
    up: &[f32],
    width: usize,
    activation: Activation,
) -> Vec<f32> {
    let mut result = vec![0.0; gate.len()];
    split.rows(&mut result, width, gate.len() as u64 * 3 * FUNCTION, &GatedUnits { gate, up, activation });
    result
}

struct GatedUnits<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    activation: Activation,
}

impl Rows for GatedUnits<'_> {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let start = r * y.len();
        for (y, (gate, up)) in y.iter_mut().zip(self.gate[start..].iter().zip(&self.up[start..])) {
            *y = self.activation.apply(*gate, *up);
        }
    }
}

pub(super) fn gate_mul(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, gate: Tensor) {
    let (width, rows) = (x.cols as usize, Gated { x: memory.load(x), gate: memory.load(gate) });
    let mut result = vec![0.0; rows.x.len()];
    split.rows(&mut result, width, x.elements() * FUNCTION, &rows);
    memory.store(out, &result);
}

struct Gated {
    x: Vec<f32>,
    gate: Vec<f32>,
}

impl Rows for Gated {
    #[inline(always)]
    fn row(&self, r: usize, y: &mut [f32]) {
        let start = r * y.len();
        for (y, (x, gate)) in y.iter_mut().zip(self.x[start..].iter().zip(&self.gate[start..])) {
            *y = x * sigmoid(*gate);
        }
    }
}

pub(super) fn combine(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    rows: Tensor,
    picks: Ids,
    weights: Tensor,
) {
    let sums = WeightedSums {
        rows: memory.load(rows),
        picks: memory.load_ids(picks),
        weights: memory.load(weights),
        ranks: weights.cols as usize,
    };
    let mut result = vec![0.0; out.elements() as usize];
    split.rows(&mut result, rows.cols as usize, rows.elements(), &sums);
    memory.store(out, &result);
}

/// Row t is the sum of the token's ranks; a rank without a pick counts as zeros.
struct WeightedSums {
    rows: Vec<f32>,
    picks: Vec<u32>,
    weights: Vec<f32>,
    ranks: usize,
}

impl Rows for WeightedSums {
    #[inline(always)]
    fn row(&self, t: usize, y: &mut [f32]) {
        let width = y.len();
        for rank in t * self.ranks..(t + 1) * self.ranks {
            let picked = self.picks[rank] != NONE;
            for (y, x) in y.iter_mut().zip(&self.rows[rank * width..][..width]) {
                *y = self.weights[rank].mul_add(if picked { *x } else { 0.0 }, *y);
            }
        }
    }
}

pub(super) fn add(memory: &mut Memory, out: Tensor, x: Tensor, y: Tensor) {
    let (x, y) = (memory.load(x), memory.load(y));
    let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    memory.store(out, &sums);
}

pub(super) fn finite(memory: &mut Memory, out: Ids, x: Tensor) {
    let values = memory.load(x);
    let rows = values.chunks_exact(x.cols as usize);
    let flags: Vec<u32> = rows.map(|row| u32::from(row.iter().all(|v| v.is_finite()))).collect();
    memory.store(out.0, &flags);
}
