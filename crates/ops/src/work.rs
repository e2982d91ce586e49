//! The least that an op must do: bytes that it must move and operations that it must carry out, from its shapes and
//! packings alone. Divided by what a machine can do in a second, they are a floor below which no time can be.
//! It knows no machine and no device.
//!
//! How it is counted:
//! - A weight is read once, as it is stored, however many rows meet it.
//! - What a sequence keeps (recurrent states, cached rows) is read once and, where it moves on, written once.
//! - Activations are counted apart: between two ops they may stay in a cache, so a floor leaves them out.
//! - In f32 one addition, multiplication, multiply-add or division counts one; an elementary function counts the steps
//!   of its formula in [`crate::math`]. Comparisons, copies and what is done once a row or a head count nothing.
//! - Packed weights meet integers as products of bytes: one for a weight and an activation of `int8`, two for `int15`,
//!   whose numbers have two bytes. In f32 remain the rounding of the inputs and one step for a group of 32 columns.
use crate::op::{Activation, DecayFormula, Op};
use crate::packing::GROUP;
use crate::tensor::{Activations, ExpertMatrices, Matrix, Packing, Tensor};
use std::ops::{Add, AddAssign};

/// Steps of [`crate::math::exp`].
const EXP: u64 = 10;
/// Steps of [`crate::math::sigmoid`]: e^-|x|, a sum and a quotient.
const SIGMOID: u64 = EXP + 2;
/// Steps of [`crate::math::tanh`]: both formulas are computed.
const TANH: u64 = 7 + EXP + 4;
/// Steps of [`crate::math::softplus`].
const SOFTPLUS: u64 = EXP + 13;
/// Steps that make an activation an integer: scaled and rounded.
const QUANTISE: u64 = 2;

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights: matrices, gains, taps, biases.
    pub weights: u64,
    /// Bytes of what sequences keep, read and written.
    pub state: u64,
    /// Bytes of inputs and outputs that live within a step.
    pub activations: u64,
    /// Operations in f32.
    pub floats: u64,
    /// Products of bytes.
    pub byte_products: u64,
    /// Multiply-adds of matrix products, in whichever arithmetic: what the same work would be in f32.
    pub multiply_adds: u64,
}

impl Work {
    /// Bytes that must come from memory or go there: a floor counts these.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weights + self.state
    }
}

impl Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            weights: self.weights + other.weights,
            state: self.state + other.state,
            activations: self.activations + other.activations,
            floats: self.floats + other.floats,
            byte_products: self.byte_products + other.byte_products,
            multiply_adds: self.multiply_adds + other.multiply_adds,
        }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        *self = *self + other;
    }
}

/// What an [`Op::Experts`] finds in its picks and its table, which its shapes do not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picked {
    /// Different experts that were picked and have a slot.
    pub experts: u64,
    /// Picks of them, over all tokens.
    pub rows: u64,
}

impl Op {
    /// What it must do at least; `picked` counts for [`Op::Experts`] only.
    #[must_use]
    pub fn work(&self, picked: Picked) -> Work {
        match *self {
            Op::MatMul { out, x, weight, activations } => {
                let product = product(weight, u64::from(x.rows), activations);
                let inputs = rounding(weight, u64::from(x.rows), activations);
                let moved = Work { activations: bytes(&[out, x]), ..in_floats(inputs) };
                Work { weights: weight.layout().bytes, ..moved + product }
            }
            Op::HeadMatMul { out, x, weight, .. } => {
                let steps = out.elements() * u64::from(x.cols);
                let moved = Work { activations: bytes(&[out, x]), ..in_floats(steps) };
                Work { weights: weight.layout().bytes, multiply_adds: steps, ..moved }
            }
            Op::RmsNorm { out, x, gain, .. } => {
                Work { weights: bytes(&[gain]), ..local(&[out, x], 3 * x.elements()) }
            }
            Op::L2Norm { out, x, .. } => local(&[out, x], 2 * x.elements()),
            Op::ShortConv { out, x, window, taps } => {
                let steps = x.elements() * (u64::from(taps.cols) + SIGMOID + 1);
                Work { weights: bytes(&[taps]), state: 2 * bytes(&[window]), ..local(&[out, x], steps) }
            }
            Op::DecayGate { out, f, a_log, dt_bias, formula } => {
                let steps = match formula {
                    DecayFormula::LowerBound(_) => 3 + SIGMOID + EXP,
                    DecayFormula::Softplus => 2 + SOFTPLUS + EXP,
                };
                Work { weights: bytes(&[a_log, dt_bias]), ..local(&[out, f], steps * f.elements()) }
            }
            Op::DeltaRule { out, q, k, v, decay, beta, state } => {
                // For each token: the decay, k^T S, the change and q^T S touch every number of the state.
                let steps = 4 * u64::from(beta.rows) * state.elements();
                Work { state: 2 * bytes(&[state]), ..local(&[out, q, k, v, decay, beta], steps) }
            }
            Op::AppendLatent { latent, rope, .. } => {
                let rows = bytes(&[latent]) + bytes(rope.as_slice());
                Work { state: rows, activations: rows, ..Work::default() }
            }
            Op::AttendLatent { .. } => self.attention(),
            Op::ResidualMix { out, running, count, weight, .. } => {
                let rows = u64::from(count) + 1;
                let moved = bytes(&[out]) + rows * bytes(&[running]);
                let steps = 3 * rows * running.elements();
                Work { weights: bytes(&[weight]), activations: moved, floats: steps, ..Work::default() }
            }
            Op::Glu { out, gate, up, activation } => {
                local(&[out, gate, up], glu_steps(activation) * out.elements())
            }
            Op::GateMul { out, x, gate } => local(&[out, x, gate], (SIGMOID + 1) * out.elements()),
            Op::Route { picks, weights, logits, bias, .. } => {
                let added = u64::from(bias.is_some());
                let moved = local(&[picks.0, weights, logits], (SIGMOID + added) * logits.elements());
                Work { weights: bytes(bias.as_slice()), ..moved }
            }
            Op::Experts { experts, activation, activations, .. } => {
                routed(&experts, activation, activations, picked)
            }
            Op::Combine { out, rows, picks, weights } => {
                local(&[out, rows, picks.0, weights], rows.elements())
            }
            Op::Add { out, x, y } => local(&[out, x, y], out.elements()),
            Op::Copy { out, x } => local(&[out, x], 0),
            Op::Finite { out, x } => local(&[out.0, x], 0),
        }
    }

    /// Every head meets every position that its token sees; all share the cached rows.
    fn attention(&self) -> Work {
        let Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, .. } = *self else {
            return Work::default();
        };
        let tokens = u64::from(q.rows / heads);
        let last = u64::from(position) + tokens;
        // A list that is given counts as full.
        let listed = selected.map_or(u64::MAX, |list| u64::from(list.0.cols));
        let seen: u64 = (u64::from(position) + 1..=last).map(|own| own.min(listed)).sum();
        let width = u64::from(cache.pool.cols);
        let products = seen * u64::from(heads) * (width + u64::from(cache.latent));
        let rows = last.min(listed.saturating_mul(tokens));
        let moved = bytes(&[out, q]) + bytes(q_rope.as_slice());
        Work {
            state: rows * width * 4,
            activations: moved,
            floats: products + seen * u64::from(heads) * (EXP + 1),
            multiply_adds: products,
            ..Work::default()
        }
    }
}

fn bytes(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|t| t.elements() * 4).sum()
}

/// Of an op with nothing but activations.
fn local(moved: &[Tensor], steps: u64) -> Work {
    Work { activations: bytes(moved), ..in_floats(steps) }
}

fn in_floats(steps: u64) -> Work {
    Work { floats: steps, ..Work::default() }
}

/// Bytes of an activation as it meets the matrix; 0 where it stays an f32.
fn integer_bytes(weight: Matrix, activations: Activations) -> u64 {
    let is_float = matches!(weight.packing, Packing::F32 | Packing::Bf16);
    match activations {
        Activations::Int15 if !is_float => 2,
        Activations::Int8 if !is_float => 1,
        Activations::Exact | Activations::Int15 | Activations::Int8 => 0,
    }
}

/// The operations of `rows` inputs, in their form, with a matrix; no bytes.
fn product(weight: Matrix, rows: u64, activations: Activations) -> Work {
    let multiply_adds = rows * u64::from(weight.rows) * u64::from(weight.cols);
    let factors = integer_bytes(weight, activations);
    let floats = if factors == 0 { multiply_adds } else { multiply_adds / GROUP as u64 };
    Work { floats, byte_products: factors * multiply_adds, multiply_adds, ..Work::default() }
}

/// The steps that bring `rows` inputs into their form.
fn rounding(weight: Matrix, rows: u64, activations: Activations) -> u64 {
    let is_integer = integer_bytes(weight, activations) > 0;
    QUANTISE * rows * u64::from(weight.cols) * u64::from(is_integer)
}

/// Three products and a gate for each row, the weights of each expert once.
fn routed(
    experts: &ExpertMatrices,
    activation: Activation,
    activations: Activations,
    picked: Picked,
) -> Work {
    let ExpertMatrices { gate, up, down } = *experts;
    let inner = u64::from(gate.rows);
    // gate and up meet the same inputs.
    let inputs: u64 = [gate, down].map(|matrix| rounding(matrix, picked.rows, activations)).iter().sum();
    let mut work = in_floats(inputs + glu_steps(activation) * inner * picked.rows);
    for matrix in [gate, up, down] {
        work += product(matrix, picked.rows, activations);
        work.weights += picked.experts * matrix.layout().bytes;
    }
    work.activations = picked.rows * 4 * (u64::from(gate.cols) + u64::from(down.rows));
    work
}

/// For one number of the result.
fn glu_steps(activation: Activation) -> u64 {
    match activation {
        Activation::Silu => SIGMOID + 2,
        // Two quotients, tangents and limits, the sigmoid, two products.
        Activation::Situ { .. } => 2 * (TANH + 2) + SIGMOID + 2,
    }
}

#[cfg(test)]
mod tests;
