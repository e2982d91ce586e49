//! Ops that treat every number, or every row, by itself.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::Split;
use super::memory::Memory;
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
    let (gate, up) = (memory.load(gate), memory.load(up));
    let mut result = vec![0.0; gate.len()];
    split.rows(&mut result, 1, gate.len() as u64 * 3 * FUNCTION, |i, y| {
        y[0] = activation.apply(gate[i], up[i]);
    });
    memory.store(out, &result);
}

pub(super) fn gate_mul(memory: &mut Memory, split: &Split, out: Tensor, x: Tensor, gate: Tensor) {
    let (x, gate) = (memory.load(x), memory.load(gate));
    let mut result = vec![0.0; x.len()];
    split.rows(&mut result, 1, x.len() as u64 * FUNCTION, |i, y| y[0] = x[i] * sigmoid(gate[i]));
    memory.store(out, &result);
}

pub(super) fn combine(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    rows: Tensor,
    picks: Ids,
    weights: Tensor,
) {
    let (values, picks, weights) = (memory.load(rows), memory.load_ids(picks), memory.load(weights));
    let (width, ranks) = (rows.cols as usize, rows.rows as usize / out.rows as usize);
    let mut result = vec![0.0; out.elements() as usize];
    split.rows(&mut result, width, values.len() as u64, |t, y| {
        for rank in (t * ranks..(t + 1) * ranks).filter(|&r| picks[r] != NONE) {
            for (y, x) in y.iter_mut().zip(&values[rank * width..][..width]) {
                *y = weights[rank].mul_add(*x, *y);
            }
        }
    });
    memory.store(out, &result);
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
