//! Kimi Delta Attention (KDA): linear attention with a gated delta rule and a decay per key channel.
use crate::state::StateLayout;
use crate::step::Step;
use crate::{LoadError, Loader};
use ops::{Activations, DecayFormula, Matrix, Tensor};

/// Sizes and flags, from `linear_attn_config`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaConfig {
    /// Heads.
    pub heads: u32,
    /// Numbers of a head's q, k and v.
    pub head_dim: u32,
    /// Taps of the short convolution.
    pub taps: u32,
    /// How the decay follows from its logit.
    pub decay: DecayFormula,
    /// One output gate matrix, or a pair through `head_dim` numbers.
    pub full_rank_gate: bool,
    /// Of the output norm.
    pub eps: f32,
}

/// Of the L2 norm of q and k: added to the sum of squares.
const L2_EPS: f32 = 1e-6;

enum OutputGate {
    Full(Matrix),
    LowRank(Matrix, Matrix),
}

/// One layer's KDA.
pub struct DeltaAttention {
    config: DeltaConfig,
    qkv: [Matrix; 3],
    taps: [Tensor; 3],
    decay_in: Matrix,
    decay_out: Matrix,
    dt_bias: Tensor,
    a_log: Tensor,
    beta: Matrix,
    gate: OutputGate,
    norm: Tensor,
    out: Matrix,
    activations: Activations,
    windows: [usize; 3],
    state: usize,
}

const KIND: &str = "kda";

impl DeltaAttention {
    /// Loads the layer from `{name}.q_proj` and so on, and adds its fields to the states.
    ///
    /// # Errors
    /// The loader's.
    pub fn load(
        loader: &mut Loader<'_>,
        layout: &mut StateLayout,
        (layer, name): (u32, &str),
        width: u32,
        config: &DeltaConfig,
        activations: Activations,
    ) -> Result<Self, LoadError> {
        let DeltaConfig { heads, head_dim, taps, .. } = *config;
        let inner = heads * head_dim;
        let at = |part: &str| format!("{name}.{part}");
        let mut qkv = Vec::new();
        let mut conv = Vec::new();
        let mut windows = Vec::new();
        for part in ["q", "k", "v"] {
            qkv.push(loader.dense(KIND, &at(&format!("{part}_proj.weight")), inner, width)?);
            let (channels, count) = (u64::from(inner), u64::from(taps));
            let shapes: [&[u64]; 2] = [&[channels, 1, count], &[channels, count]];
            conv.push(loader.numbers(KIND, &at(&format!("{part}_conv1d.weight")), (inner, taps), &shapes)?);
            windows.push(layout.fixed(format!("layer {layer} {part} window"), inner, taps - 1));
        }
        let gate = if config.full_rank_gate {
            OutputGate::Full(loader.dense(KIND, &at("g_proj.weight"), inner, width)?)
        } else {
            OutputGate::LowRank(
                loader.exact(KIND, &at("g_a_proj.weight"), head_dim, width)?,
                loader.exact(KIND, &at("g_b_proj.weight"), inner, head_dim)?,
            )
        };
        let (h, n) = (u64::from(heads), u64::from(inner));
        Ok(DeltaAttention {
            qkv: three(qkv),
            taps: three(conv),
            windows: three(windows),
            decay_in: loader.exact(KIND, &at("f_a_proj.weight"), head_dim, width)?,
            decay_out: loader.exact(KIND, &at("f_b_proj.weight"), inner, head_dim)?,
            dt_bias: loader.numbers(
                KIND,
                &at("dt_bias"),
                (heads, head_dim),
                &[&[n], &[h, head_dim.into()]],
            )?,
            // Padded in the release, [1, 1, heads, 1] in Kimi-Linear.
            a_log: loader.padded(KIND, &at("A_log"), heads, &[1, 1, h, 1])?,
            beta: loader.exact(KIND, &at("b_proj.weight"), heads, width)?,
            gate,
            norm: loader.gain(&at("o_norm.weight"), head_dim)?,
            out: loader.dense(KIND, &at("o_proj.weight"), width, inner)?,
            activations,
            state: layout.fixed(format!("layer {layer} state"), inner, head_dim),
            config: config.clone(),
        })
    }

    /// x \[T, width\], normed, to \[T, width\].
    pub fn forward(&self, step: &mut Step<'_, '_>, x: Tensor) -> Tensor {
        let DeltaConfig { heads, head_dim, decay: formula, eps, .. } = self.config;
        let ops = &mut *step.ops;
        let projected = self.qkv.map(|w| ops.mat_mul(x, w, self.activations));
        let [q, k, v] = projected.map(|u| ops.scratch(u.rows, u.cols));
        step.for_each_part(|ops, part| {
            for (i, (u, y)) in projected.iter().zip([q, k, v]).enumerate() {
                ops.short_conv_into(part.of(y), part.of(*u), part.fixed(self.windows[i]), self.taps[i]);
            }
        });
        let ops = &mut *step.ops;
        let q = ops.l2_norm(q.heads(head_dim), L2_EPS, 1.0 / (head_dim as f32).sqrt());
        let k = ops.l2_norm(k.heads(head_dim), L2_EPS, 1.0);
        let v = v.heads(head_dim);
        let logit = ops.mat_mul(x, self.decay_in, Activations::Exact);
        let logit = ops.mat_mul(logit, self.decay_out, Activations::Exact);
        let decay = ops.decay_gate(logit.heads(head_dim), self.a_log, self.dt_bias, formula);
        let beta = ops.mat_mul(x, self.beta, Activations::Exact);
        let o = ops.scratch(v.rows, v.cols);
        step.for_each_part(|ops, part| {
            let head_rows = |t| part.of_heads(t, heads);
            let (q, k, v, decay) = (head_rows(q), head_rows(k), head_rows(v), head_rows(decay));
            ops.delta_rule_into(head_rows(o), (q, k), v, decay, part.of(beta), part.fixed(self.state));
        });
        let ops = &mut *step.ops;
        let normed = ops.rms_norm(o, self.norm, eps).reshape(x.rows, heads * head_dim);
        let gate = match self.gate {
            OutputGate::Full(w) => ops.mat_mul(x, w, self.activations),
            OutputGate::LowRank(a, b) => {
                let low = ops.mat_mul(x, a, Activations::Exact);
                ops.mat_mul(low, b, Activations::Exact)
            }
        };
        let gated = ops.gate_mul(normed, gate);
        ops.mat_mul(gated, self.out, self.activations)
    }

    /// Field of the state \[heads * key, value\], and of the windows of q, k, v.
    #[must_use]
    pub fn fields(&self) -> (usize, [usize; 3]) {
        (self.state, self.windows)
    }
}

fn three<T: std::fmt::Debug>(list: Vec<T>) -> [T; 3] {
    list.try_into().expect("q, k and v are three")
}
