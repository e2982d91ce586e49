//! The language models are written in: one value an op, "one sentence of the paper" each. No behaviour.
//!
//! What an op means is the oracle's function of the same name in [`crate::oracle`]. Shapes are checked by the
//! recorder, [`crate::Ops`], and nowhere else.
use crate::tensor::{Activations, ExpertMatrices, Ids, LatentCache, Matrix, Tensor};

/// The gate function of a GLU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(g) * u`.
    Silu,
    /// Kimi K3: `beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)`.
    Situ {
        /// Limit of the gate's magnitude.
        beta: f32,
        /// Limit of the linear part's magnitude.
        linear_beta: f32,
    },
}

/// How the decay of the delta rule follows from its logit `f`; `a = exp(a_log[head])`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayFormula {
    /// Kimi K3: log decay `= lower_bound * sigmoid(a f)`.
    LowerBound(f32),
    /// Kimi-Linear: log decay `= -a softplus(f)`.
    Softplus,
}

/// How router logits become picks and weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Weights are divided by their sum (plus 1e-20).
    pub renormalize: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Lossy: picks past this share of the row's weight are dropped (1 keeps all).
    pub keep: f32,
}

/// One step of work. Every device implements all of them: a `match` without a wildcard arm.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "each op's formula names all its fields with their shapes")]
pub enum Op {
    /// `out[t] = W x[t]`; x \[T, in\], out \[T, outputs\].
    MatMul { out: Tensor, x: Tensor, weight: Matrix, activations: Activations },
    /// `out[t, h] = W_h x[t, h]`; x \[T H, in\], weight \[H outputs, in\] (f32 or bf16), out \[T H, outputs\].
    HeadMatMul { out: Tensor, x: Tensor, weight: Matrix, heads: u32 },
    /// `out = x / sqrt(mean(x^2) + eps) * gain`, a row at a time; gain \[1, cols\].
    RmsNorm { out: Tensor, x: Tensor, gain: Tensor, eps: f32 },
    /// `out = x / sqrt(sum(x^2) + eps) * scale`, a row at a time.
    L2Norm { out: Tensor, x: Tensor, eps: f32, scale: f32 },
    /// Causal depthwise convolution over K taps, then `SiLU`:
    /// `out[t][c] = silu(sum_j taps[c][j] x[t - (K - 1) + j][c])`; x, out \[T, C\], taps \[C, K\].
    /// `window` \[C, K - 1\] holds the inputs before x, oldest first, and moves on.
    ShortConv { out: Tensor, x: Tensor, window: Tensor, taps: Tensor },
    /// Decay of the delta rule for every key channel: `out = exp(log decay)`; f, out \[T H, d\], `dt_bias` \[H, d\] is
    /// added to f first, `a_log` \[1, H\].
    DecayGate { out: Tensor, f: Tensor, a_log: Tensor, dt_bias: Tensor, formula: DecayFormula },
    /// The gated delta rule, tokens in order, for each head:
    /// `S = diag(decay) S;  S = S + k (sigmoid(beta) (v - k^T S))^T;  out = q^T S`.
    /// q, k, decay \[T H, d\], v, out \[T H, e\], beta \[T, H\] logits, state \[H d, e\] moves on.
    DeltaRule { out: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor },
    /// Rows into the cache at `position..position + T`; latent \[T, latent\], rope \[T, rope\].
    AppendLatent { latent: Tensor, rope: Option<Tensor>, cache: LatentCache, position: u32 },
    /// Causal softmax attention over the latent cache, all heads sharing its rows:
    /// `score(p) = (q . latent(p) + q_rope . rope(p)) scale`, `out = sum_p softmax(score)(p) latent(p)`;
    /// q, out \[T H, latent\], `q_rope` \[T H, rope\], token t at `position + t` sees positions up to its own, of
    /// these only the listed ones if `selected` \[T, n\] is given (ascending, padded with NONE).
    AttendLatent {
        out: Tensor,
        q: Tensor,
        q_rope: Option<Tensor>,
        cache: LatentCache,
        position: u32,
        selected: Option<Ids>,
        heads: u32,
        scale: f32,
    },
    /// Attention residual: a softmax over the snapshots and the running row,
    /// `s_i = (V_i . weight) / sqrt(mean(V_i^2) + eps)`, `out = sum_i softmax(s)_i V_i`;
    /// running, out \[T, D\], snapshots \[count T, D\] oldest first, weight \[1, D\].
    ResidualMix { out: Tensor, running: Tensor, snapshots: Tensor, count: u32, weight: Tensor, eps: f32 },
    /// `out = activation(gate, up)`, elementwise.
    Glu { out: Tensor, gate: Tensor, up: Tensor, activation: Activation },
    /// `out = x * sigmoid(gate)`, elementwise.
    GateMul { out: Tensor, x: Tensor, gate: Tensor },
    /// The router: `s = sigmoid(logits)`; picks = the K largest of `s + bias` (ties: lowest id), best first; weights
    /// from the unbiased s. logits \[T, E\], bias \[1, E\], picks, weights \[T, K\]. A row with a number that is not
    /// finite picks NONE with weights of NaN, so that it stays known by its numbers.
    Route { picks: Ids, weights: Tensor, logits: Tensor, bias: Option<Tensor>, routing: Routing },
    /// Routed experts: for each token t and rank r whose pick has a slot,
    /// `out[t K + r] = W_down activation(W_gate x[t], W_up x[t])`; rows without a slot stay as they are.
    /// x \[T, width\], picks \[T, K\], table \[E, 2\] = (slot or NONE, first byte of the payload in the slot).
    Experts {
        out: Tensor,
        x: Tensor,
        picks: Ids,
        table: Ids,
        experts: ExpertMatrices,
        activation: Activation,
        activations: Activations,
    },
    /// `out[t] = sum_r weights[t][r] rows[t K + r]`, in rank order, a pick of NONE counting as a row of zeros; rows \[T K, D\].
    Combine { out: Tensor, rows: Tensor, picks: Ids, weights: Tensor },
    /// `out = x + y`, elementwise.
    Add { out: Tensor, x: Tensor, y: Tensor },
    /// `out = x`.
    Copy { out: Tensor, x: Tensor },
    /// `out[t] = 1` if all numbers of row t are finite, else 0; x \[T, D\], out \[T, 1\].
    Finite { out: Ids, x: Tensor },
}

/// What kind of numbers an operand holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32 numbers.
    F32,
    /// u32 numbers.
    U32,
}

/// An activation or state that an op reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Where.
    pub tensor: Tensor,
    /// What.
    pub kind: Kind,
}

/// The operands of one op: at most eight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    list: [Option<Operand>; 8],
    count: usize,
}

impl Operands {
    fn add(&mut self, tensor: Tensor, kind: Kind) -> &mut Self {
        self.list[self.count] = Some(Operand { tensor, kind });
        self.count += 1;
        self
    }
    fn f32(&mut self, tensors: &[Tensor]) -> &mut Self {
        for &t in tensors {
            self.add(t, Kind::F32);
        }
        self
    }
    fn u32(&mut self, ids: &[Ids]) -> &mut Self {
        for id in ids {
            self.add(id.0, Kind::U32);
        }
        self
    }
    /// In the order of the op's fields.
    pub fn iter(&self) -> impl Iterator<Item = Operand> + '_ {
        self.list[..self.count].iter().flatten().copied()
    }
}

impl Op {
    /// The op's name in errors, tables and traces.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::MatMul { .. } => "mat_mul",
            Op::HeadMatMul { .. } => "head_mat_mul",
            Op::RmsNorm { .. } => "rms_norm",
            Op::L2Norm { .. } => "l2_norm",
            Op::ShortConv { .. } => "short_conv",
            Op::DecayGate { .. } => "decay_gate",
            Op::DeltaRule { .. } => "delta_rule",
            Op::AppendLatent { .. } => "append_latent",
            Op::AttendLatent { .. } => "attend_latent",
            Op::ResidualMix { .. } => "residual_mix",
            Op::Glu { .. } => "glu",
            Op::GateMul { .. } => "gate_mul",
            Op::Route { .. } => "route",
            Op::Experts { .. } => "experts",
            Op::Combine { .. } => "combine",
            Op::Add { .. } => "add",
            Op::Copy { .. } => "copy",
            Op::Finite { .. } => "finite",
        }
    }

    /// Every activation and state the op looks at: what it keeps of its outputs included.
    #[must_use]
    pub fn reads(&self) -> Operands {
        let mut list = Operands::default();
        match *self {
            Op::MatMul { x, .. }
            | Op::HeadMatMul { x, .. }
            | Op::L2Norm { x, .. }
            | Op::Copy { x, .. }
            | Op::Finite { x, .. } => list.f32(&[x]),
            Op::RmsNorm { x, gain, .. } => list.f32(&[x, gain]),
            Op::ShortConv { x, window, taps, .. } => list.f32(&[x, window, taps]),
            Op::DecayGate { f, a_log, dt_bias, .. } => list.f32(&[f, a_log, dt_bias]),
            Op::DeltaRule { q, k, v, decay, beta, state, .. } => list.f32(&[q, k, v, decay, beta, state]),
            Op::AppendLatent { latent, rope, cache, .. } => {
                list.f32(&[latent, cache.pool]).u32(&[cache.table]).f32(rope.as_slice())
            }
            Op::AttendLatent { q, q_rope, cache, selected, .. } => {
                list.f32(&[q, cache.pool]).u32(&[cache.table]).f32(q_rope.as_slice()).u32(selected.as_slice())
            }
            Op::ResidualMix { running, snapshots, count, weight, .. } => {
                list.f32(&[running, snapshots.rows_at(0, count * running.rows), weight])
            }
            Op::Glu { gate, up, .. } => list.f32(&[gate, up]),
            Op::GateMul { x, gate, .. } => list.f32(&[x, gate]),
            Op::Route { logits, bias, .. } => list.f32(&[logits]).f32(bias.as_slice()),
            Op::Experts { out, x, picks, table, .. } => list.f32(&[out, x]).u32(&[picks, table]),
            Op::Combine { rows, picks, weights, .. } => list.f32(&[rows, weights]).u32(&[picks]),
            Op::Add { x, y, .. } => list.f32(&[x, y]),
        };
        list
    }

    /// Everything the op writes: its result and the state it moves on.
    #[must_use]
    pub fn writes(&self) -> Operands {
        let mut list = Operands::default();
        match *self {
            Op::MatMul { out, .. }
            | Op::HeadMatMul { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::L2Norm { out, .. }
            | Op::DecayGate { out, .. }
            | Op::AttendLatent { out, .. }
            | Op::ResidualMix { out, .. }
            | Op::Glu { out, .. }
            | Op::GateMul { out, .. }
            | Op::Experts { out, .. }
            | Op::Combine { out, .. }
            | Op::Add { out, .. }
            | Op::Copy { out, .. } => list.f32(&[out]),
            Op::ShortConv { out, window, .. } => list.f32(&[out, window]),
            Op::DeltaRule { out, state, .. } => list.f32(&[out, state]),
            Op::AppendLatent { cache, .. } => list.f32(&[cache.pool]),
            Op::Route { picks, weights, .. } => list.u32(&[picks]).f32(&[weights]),
            Op::Finite { out, .. } => list.u32(&[out]),
        };
        list
    }

    /// The weight matrices it multiplies with, as handles (an expert's count from its payload).
    #[must_use]
    pub fn matrices(&self) -> Vec<Matrix> {
        match *self {
            Op::MatMul { weight, .. } | Op::HeadMatMul { weight, .. } => vec![weight],
            Op::Experts { experts, .. } => vec![experts.gate, experts.up, experts.down],
            _ => Vec::new(),
        }
    }

    /// Largest relative L2 distance from the oracle that a device without the contract's order may have, with
    /// its reason. The CPU devices are held to zero instead.
    #[must_use]
    pub fn tolerance(&self) -> f32 {
        match self {
            // Moved bytes, comparisons and single correctly rounded operations.
            Op::Copy { .. } | Op::Add { .. } | Op::Finite { .. } | Op::AppendLatent { .. } => 0.0,
            // Sums of many products in another order; an integer activation may round to its neighbour.
            Op::MatMul { .. } | Op::HeadMatMul { .. } | Op::Experts { .. } => 1e-5,
            // Short sums, divisions and elementary functions that may differ in the last bits.
            _ => 2e-6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Buffer;

    #[test]
    fn state_is_read_and_written() {
        let t = |offset| Tensor::new(Buffer(1), offset, 2, 4);
        let op = Op::ShortConv { out: t(0), x: t(8), window: t(16), taps: t(24) };
        assert!(op.reads().iter().any(|o| o.tensor == t(16)));
        assert!(op.writes().iter().any(|o| o.tensor == t(16)));
    }
}
