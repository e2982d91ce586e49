//! Multi-head latent attention (MLA) in absorbed form: the cache holds one latent row a position for all heads, the
//! key half of `kv_b` is applied to the query and the value half to the result.
use crate::state::StateLayout;
use crate::step::Step;
use crate::{LoadError, Loader};
use ops::{Activations, Matrix, Tensor};

/// Sizes and flags.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// Heads.
    pub heads: u32,
    /// Numbers between `q_a` and `q_b`.
    pub q_rank: u32,
    /// Numbers of the latent.
    pub kv_rank: u32,
    /// Numbers of a head's query that meet the latent's key.
    pub nope: u32,
    /// Numbers of a head's query that meet the shared key as it is ("rope", never rotated in K3).
    pub rope: u32,
    /// Numbers of a head's value.
    pub value: u32,
    /// Whether the output passes a sigmoid gate.
    pub output_gate: bool,
}

/// Of the two norms of low rank: the norm class's default, not `rms_norm_eps`.
const LOW_RANK_EPS: f32 = 1e-6;

/// One layer's MLA.
pub struct LatentAttention {
    config: LatentConfig,
    q_in: Matrix,
    q_norm: Tensor,
    q_out: Matrix,
    kv_in: Matrix,
    kv_norm: Tensor,
    /// \[heads * `kv_rank`, nope\]: per head the key half of `kv_b`, transposed.
    key: Matrix,
    /// \[heads * value, `kv_rank`\]: per head the value half of `kv_b`.
    value: Matrix,
    gate: Option<Matrix>,
    out: Matrix,
    activations: Activations,
    cache: usize,
}

const KIND: &str = "mla";

impl LatentAttention {
    /// Loads the layer from `{name}.q_a_proj` and so on, and adds its cache to the states.
    ///
    /// # Errors
    /// The loader's.
    pub fn load(
        loader: &mut Loader<'_>,
        layout: &mut StateLayout,
        (layer, name): (u32, &str),
        width: u32,
        config: &LatentConfig,
        activations: Activations,
    ) -> Result<Self, LoadError> {
        let LatentConfig { heads, q_rank, kv_rank, nope, rope, value, .. } = *config;
        let at = |part: &str| format!("{name}.{part}.weight");
        let kv_b = (heads * (nope + value), kv_rank);
        let (gate, kv_b_name) = (at("g_proj"), at("kv_b_proj"));
        Ok(LatentAttention {
            q_in: loader.dense(KIND, &at("q_a_proj"), q_rank, width)?,
            q_norm: loader.gain(&at("q_a_layernorm"), q_rank)?,
            q_out: loader.dense(KIND, &at("q_b_proj"), heads * (nope + rope), q_rank)?,
            kv_in: loader.dense(KIND, &at("kv_a_proj_with_mqa"), kv_rank + rope, width)?,
            kv_norm: loader.gain(&at("kv_a_layernorm"), kv_rank)?,
            key: loader.rearranged(KIND, &kv_b_name, kv_b, (heads * kv_rank, nope), |row, col| {
                (row / kv_rank * (nope + value) + col, row % kv_rank)
            })?,
            value: loader.rearranged(KIND, &kv_b_name, kv_b, (heads * value, kv_rank), |row, col| {
                (row / value * (nope + value) + nope + row % value, col)
            })?,
            gate: if config.output_gate {
                Some(loader.dense(KIND, &gate, heads * value, width)?)
            } else {
                None
            },
            out: loader.dense(KIND, &at("o_proj"), width, heads * value)?,
            activations,
            cache: layout.latent(format!("layer {layer} latent"), kv_rank, rope),
            config: config.clone(),
        })
    }

    /// x \[T, width\], normed, to \[T, width\].
    pub fn forward(&self, step: &mut Step<'_, '_>, x: Tensor) -> Tensor {
        let LatentConfig { heads, kv_rank, nope, rope, value, .. } = self.config;
        let ops = &mut *step.ops;
        let q = ops.mat_mul(x, self.q_in, self.activations);
        let q = ops.rms_norm(q, self.q_norm, LOW_RANK_EPS);
        let q = ops.mat_mul(q, self.q_out, self.activations).heads(nope + rope);
        let q_latent = ops.head_mat_mul(q.columns_at(0, nope), self.key, heads);
        let q_rope = q.columns_at(nope, rope);

        let kv = ops.mat_mul(x, self.kv_in, self.activations);
        let latent = ops.rms_norm(kv.columns_at(0, kv_rank), self.kv_norm, LOW_RANK_EPS);
        let shared_key = kv.columns_at(kv_rank, rope);

        let context = ops.scratch(q_latent.rows, kv_rank);
        let scale = 1.0 / ((nope + rope) as f32).sqrt();
        step.for_each_part(|ops, part| {
            let cache = part.latent(self.cache);
            ops.append_latent(part.of(latent), Some(part.of(shared_key)), cache, part.position);
            let query = (part.of_heads(q_latent, heads), Some(part.of_heads(q_rope, heads)));
            let out = part.of_heads(context, heads);
            ops.attend_latent_into(out, query, cache, part.position, None, (heads, scale));
        });
        let ops = &mut *step.ops;
        let o = ops.head_mat_mul(context, self.value, heads).reshape(x.rows, heads * value);
        let o = match self.gate {
            Some(gate) => {
                let gate = ops.mat_mul(x, gate, self.activations);
                ops.gate_mul(o, gate)
            }
            None => o,
        };
        ops.mat_mul(o, self.out, self.activations)
    }

    /// Index of its cache in the states.
    #[must_use]
    pub fn field(&self) -> usize {
        self.cache
    }
}
