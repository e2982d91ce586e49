//! Every op in f64, by the formula its documentation states and no other rule: no lanes, no order, no blocks. Written
//! apart from the oracle, so that an error in one is not in the other.
//!
//! What it shares with the oracle is how weights are decoded and how activations are rounded to integers, which have
//! their own tests; and results of `exp` and `sigmoid` below 2^-126 are 0, as `ops::math` says.
mod layers;
mod linear;

use crate::device::DeviceError;
use crate::op::{Activation, Op, Routing};
use crate::oracle::Oracle;
use crate::tensor::{Ids, NONE, Tensor};

/// What an op will write, from the numbers that lie on the oracle now: for each operand of [`Op::writes`] its numbers,
/// row after row; ids as numbers.
///
/// # Errors
/// Those of the oracle, for an op that names what is not there.
///
/// # Panics
/// If the op names an expert whose slot does not hold the whole payload.
pub fn textbook(oracle: &mut Oracle, op: &Op) -> Result<Vec<Vec<f64>>, DeviceError> {
    let o = &*oracle;
    let result = match *op {
        Op::MatMul { x, weight, activations, .. } => {
            return Ok(vec![linear::mat_mul(oracle, x, weight, activations)?]);
        }
        Op::HeadMatMul { x, weight, heads, .. } => {
            return Ok(vec![linear::head_mat_mul(oracle, x, weight, heads)?]);
        }
        Op::Experts { out, x, picks, table, experts, activation, activations } => {
            let expert = crate::Expert { experts, activation, activations };
            return Ok(vec![linear::experts(o, out, x, (picks, table), expert)]);
        }
        Op::RmsNorm { x, gain, eps, .. } => vec![rms_norm(o, x, gain, eps)],
        Op::L2Norm { x, eps, scale, .. } => vec![l2_norm(o, x, eps, scale)],
        Op::ShortConv { x, window, taps, .. } => layers::short_conv(o, x, window, taps),
        Op::DecayGate { f, a_log, dt_bias, formula, .. } => {
            vec![layers::decay_gate(o, f, a_log, dt_bias, formula)]
        }
        Op::DeltaRule { q, k, v, decay, beta, state, .. } => {
            layers::delta_rule(o, [q, k, v, decay, beta], state)
        }
        Op::AppendLatent { latent, rope, cache, position } => {
            vec![layers::append_latent(o, latent, rope, cache, position)]
        }
        Op::AttendLatent { q, q_rope, cache, position, selected, heads, scale, .. } => {
            vec![layers::attend_latent(o, (q, q_rope), cache, (position, selected), (heads, scale))]
        }
        Op::ResidualMix { running, snapshots, count, weight, eps, .. } => {
            vec![layers::residual_mix(o, running, snapshots.rows_at(0, count * running.rows), weight, eps)]
        }
        Op::Glu { gate, up, activation, .. } => vec![pairs(o, gate, up, |g, u| glu(activation, g, u))],
        Op::GateMul { x, gate, .. } => vec![pairs(o, x, gate, |x, gate| x * sigmoid(gate))],
        Op::Route { weights, logits, bias, routing, .. } => route(o, logits, bias, weights.cols, routing),
        Op::Combine { rows, picks, weights, .. } => vec![combine(o, rows, picks, weights)],
        Op::Add { x, y, .. } => vec![pairs(o, x, y, |x, y| x + y)],
        Op::Copy { x, .. } => vec![numbers(o, x)],
        Op::Finite { x, .. } => vec![
            numbers(o, x)
                .chunks_exact(x.cols as usize)
                .map(|row| f64::from(u8::from(row.iter().all(|v| v.is_finite()))))
                .collect(),
        ],
    };
    Ok(result)
}

fn numbers(oracle: &Oracle, t: Tensor) -> Vec<f64> {
    oracle.load(t).into_iter().map(f64::from).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// e^x; below 2^-126 it is 0.
fn exp(x: f64) -> f64 {
    let value = x.exp();
    if value < f64::from(f32::MIN_POSITIVE) { 0.0 } else { value }
}

fn sigmoid(x: f64) -> f64 {
    let value = 1.0 / (1.0 + (-x).exp());
    if value < f64::from(f32::MIN_POSITIVE) { 0.0 } else { value }
}

fn glu(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::Situ { beta, linear_beta } => {
            let limited = |x: f64, limit: f32| f64::from(limit) * (x / f64::from(limit)).tanh();
            limited(gate, beta) * sigmoid(gate) * limited(up, linear_beta)
        }
    }
}

fn pairs(oracle: &Oracle, a: Tensor, b: Tensor, formula: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    numbers(oracle, a).into_iter().zip(numbers(oracle, b)).map(|(a, b)| formula(a, b)).collect()
}

fn rms_norm(oracle: &Oracle, x: Tensor, gain: Tensor, eps: f32) -> Vec<f64> {
    let (x, gain) = (numbers(oracle, x), numbers(oracle, gain));
    let rows = x.chunks_exact(gain.len());
    rows.flat_map(|row| {
        let root = (dot(row, row) / row.len() as f64 + f64::from(eps)).sqrt();
        row.iter().zip(&gain).map(move |(x, gain)| x / root * gain).collect::<Vec<_>>()
    })
    .collect()
}

fn l2_norm(oracle: &Oracle, x: Tensor, eps: f32, scale: f32) -> Vec<f64> {
    let values = numbers(oracle, x);
    let rows = values.chunks_exact(x.cols as usize);
    rows.flat_map(|row| {
        let root = (dot(row, row) + f64::from(eps)).sqrt();
        row.iter().map(move |x| x / root * f64::from(scale))
    })
    .collect()
}

/// In place: shares of the whole by exponentials.
fn softmax(scores: &mut [f64]) {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
    for score in scores {
        *score = (*score - top).exp() / total;
    }
}

fn combine(oracle: &Oracle, rows: Tensor, picks: Ids, weights: Tensor) -> Vec<f64> {
    let width = rows.cols as usize;
    let (values, picks) = (numbers(oracle, rows), oracle.load_ids(picks));
    let mut out = vec![0.0; width * weights.rows as usize];
    for (i, weight) in numbers(oracle, weights).into_iter().enumerate() {
        let token = i / weights.cols as usize;
        for c in 0..width {
            out[token * width + c] += weight * if picks[i] == NONE { 0.0 } else { values[i * width + c] };
        }
    }
    out
}

/// Picks and weights.
fn route(oracle: &Oracle, logits: Tensor, bias: Option<Tensor>, k: u32, routing: Routing) -> Vec<Vec<f64>> {
    let bias = bias.map_or_else(|| vec![0.0; logits.cols as usize], |bias| numbers(oracle, bias));
    let (mut picks, mut weights) = (Vec::new(), Vec::new());
    for row in numbers(oracle, logits).chunks_exact(logits.cols as usize) {
        for (pick, weight) in route_row(row, &bias, k as usize, routing) {
            picks.push(f64::from(pick));
            weights.push(weight);
        }
    }
    vec![picks, weights]
}

fn route_row(logits: &[f64], bias: &[f64], k: usize, routing: Routing) -> Vec<(u32, f64)> {
    if !logits.iter().chain(bias).all(|v| v.is_finite()) {
        return vec![(NONE, f64::NAN); k];
    }
    let scores: Vec<f64> = logits.iter().map(|l| sigmoid(*l)).collect();
    let mut left: Vec<usize> = (0..scores.len()).collect();
    let mut row: Vec<(u32, f64)> = Vec::new();
    for _ in 0..k {
        // The first of the best that are left.
        let choice = |e: usize| scores[e] + bias[e];
        let best = left.iter().copied().reduce(|a, b| if choice(b) > choice(a) { b } else { a });
        let Some(best) = best else { break };
        left.retain(|e| *e != best);
        row.push((best as u32, scores[best]));
    }
    let total: f64 = row.iter().map(|(_, s)| s).sum();
    for (_, share) in &mut row {
        *share *= f64::from(routing.scale) / if routing.renormalize { total + 1e-20 } else { 1.0 };
    }
    drop_tail(&mut row, f64::from(routing.keep));
    row
}

/// Of the picks from the heaviest on, the first stays and those before which the share `keep` was not reached.
fn drop_tail(row: &mut [(u32, f64)], keep: f64) {
    if keep >= 1.0 {
        return;
    }
    let total: f64 = row.iter().map(|(_, share)| share).sum();
    let shares: Vec<f64> = row.iter().map(|(_, share)| *share).collect();
    for (i, pick) in row.iter_mut().enumerate() {
        let before = |j: &usize| shares[*j] > shares[i] || shares[*j] == shares[i] && *j < i;
        let heavier: Vec<f64> = (0..shares.len()).filter(before).map(|j| shares[j]).collect();
        if !heavier.is_empty() && heavier.iter().sum::<f64>() >= keep * total {
            *pick = (NONE, 0.0);
        }
    }
}
