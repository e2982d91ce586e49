//! Every tensor of a checkpoint in the Kimi K3 format: name, shape and what it is filled with, shard by shard.
//! Knows no files. Values are scaled so that activations stay finite: a matrix with n columns has deviation
//! n^-0.5, rounded to a power of two.

use super::geometry::{CONVOLUTION, Geometry, SHARED_EXPERTS};
use super::random::{Pool, Random};
use super::router::skewed_biases;

/// Root mean square of the value that a random e2m1 code stands for.
const CODE_DEVIATION: f64 = 2.93;

/// One tensor.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) fill: Fill,
}

/// What a tensor holds.
pub(crate) enum Fill {
    /// These numbers, as F32.
    Values(Vec<f32>),
    /// 1.0, as BF16.
    Ones,
    /// Pieces of a pool: BF16 for normals, U8 for codes and scales.
    Pool(Pool),
}

impl Tensor {
    /// The dtype as safetensors spells it, and its bytes.
    pub(crate) fn dtype(&self) -> (&'static str, usize) {
        match self.fill {
            Fill::Values(_) => ("F32", 4),
            Fill::Ones | Fill::Pool(Pool::Normal { .. }) => ("BF16", 2),
            Fill::Pool(Pool::Codes | Pool::Scales { .. }) => ("U8", 1),
        }
    }

    /// Length of the data in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype().1
    }
}

/// Collects tensors under a prefix.
struct List {
    prefix: String,
    tensors: Vec<Tensor>,
}

impl List {
    fn new(prefix: String) -> List {
        List { prefix, tensors: Vec::new() }
    }

    fn add(&mut self, name: &str, shape: &[usize], fill: Fill) {
        self.tensors.push(Tensor { name: format!("{}{name}", self.prefix), shape: shape.to_vec(), fill });
    }

    /// The weight of a norm.
    fn ones(&mut self, name: &str, width: usize) {
        self.add(name, &[width], Fill::Ones);
    }

    fn values(&mut self, name: &str, shape: &[usize], values: Vec<f32>) {
        self.add(name, shape, Fill::Values(values));
    }

    /// BF16 numbers of the deviation nearest to this one among powers of two.
    fn normal(&mut self, name: &str, shape: &[usize], deviation: f64) {
        self.add(name, shape, Fill::Pool(Pool::Normal { exponent: exponent(deviation) }));
    }

    /// A matrix that keeps the size of what it is applied to.
    fn linear(&mut self, name: &str, rows: usize, columns: usize) {
        self.normal(name, &[rows, columns], (columns as f64).powf(-0.5));
    }

    /// An MXFP4 matrix that does the same: codes, and a scale for every 32 columns.
    fn packed(&mut self, name: &str, rows: usize, columns: usize) {
        let base = 127 + exponent(1.0 / (CODE_DEVIATION * (columns as f64).sqrt()));
        self.add(&format!("{name}.weight_packed"), &[rows, columns / 2], Fill::Pool(Pool::Codes));
        let scales = Pool::Scales { base: u8::try_from(base).unwrap_or(1) };
        self.add(&format!("{name}.weight_scale"), &[rows, columns / 32], Fill::Pool(scales));
    }
}

/// log2, rounded.
fn exponent(deviation: f64) -> i32 {
    deviation.log2().round_ties_even() as i32
}

/// The tensors of one shard in the order of their data: a layer each, then the ends of the model, then what an
/// engine for text must skip.
pub(crate) fn shard(geometry: &Geometry, index: usize, skew: f64, random: &mut Random) -> Vec<Tensor> {
    match index.checked_sub(geometry.layers) {
        None => layer(geometry, index, skew, random),
        Some(0) => ends(geometry),
        Some(_) => vision(),
    }
}

/// How many shards there are.
pub(crate) fn shards(geometry: &Geometry) -> usize {
    geometry.layers + 2
}

fn layer(geometry: &Geometry, layer: usize, skew: f64, random: &mut Random) -> Vec<Tensor> {
    let hidden = geometry.hidden;
    let mut list = List::new(format!("language_model.model.layers.{layer}."));
    for norm in ["input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"] {
        list.ones(&format!("{norm}.weight"), hidden);
    }
    list.normal("self_attention_res_proj.weight", &[1, hidden], 0.02);
    list.normal("mlp_res_proj.weight", &[1, hidden], 0.02);
    if geometry.is_full_attention(layer) {
        latent_attention(&mut list, geometry);
    } else {
        delta_attention(&mut list, geometry, random);
    }
    if layer == 0 {
        mlp(&mut list, "mlp", hidden, geometry.dense_width);
    } else {
        mixture(&mut list, geometry, skew, random);
    }
    list.tensors
}

/// Kimi Delta Attention.
fn delta_attention(list: &mut List, geometry: &Geometry, random: &mut Random) {
    let (hidden, heads, head, width) =
        (geometry.hidden, geometry.kda_heads, geometry.kda_head, geometry.kda_width());
    // One number a head, padded with zeros to a head's width as in the release.
    let mut decay: Vec<f32> = (0..heads).map(|_| random.uniform(0.0, 1.4)).collect();
    decay.resize(head.max(heads), 0.0);
    list.values("self_attn.A_log", &[decay.len()], decay);
    list.values("self_attn.dt_bias", &[width], (0..width).map(|_| random.uniform(-4.0, 0.0)).collect());
    list.values("self_attn.o_norm.weight", &[head], vec![1.0; head]);
    for name in ["q", "k", "v"] {
        let taps = (0..width * CONVOLUTION).map(|_| random.normal() * 0.5).collect();
        list.values(&format!("self_attn.{name}_conv1d.weight"), &[width, 1, CONVOLUTION], taps);
    }
    for name in ["q", "k", "v", "g"] {
        list.linear(&format!("self_attn.{name}_proj.weight"), width, hidden);
    }
    list.linear("self_attn.o_proj.weight", hidden, width);
    list.linear("self_attn.b_proj.weight", heads, hidden);
    list.linear("self_attn.f_a_proj.weight", head, hidden);
    list.linear("self_attn.f_b_proj.weight", width, head);
}

/// Multi-head latent attention with an output gate.
fn latent_attention(list: &mut List, geometry: &Geometry) {
    let Geometry { hidden, mla_heads: heads, q_rank, kv_rank, nope, rope, value, .. } = *geometry;
    list.linear("self_attn.q_a_proj.weight", q_rank, hidden);
    list.ones("self_attn.q_a_layernorm.weight", q_rank);
    list.linear("self_attn.q_b_proj.weight", heads * (nope + rope), q_rank);
    list.linear("self_attn.kv_a_proj_with_mqa.weight", kv_rank + rope, hidden);
    list.ones("self_attn.kv_a_layernorm.weight", kv_rank);
    list.linear("self_attn.kv_b_proj.weight", heads * (nope + value), kv_rank);
    list.linear("self_attn.g_proj.weight", heads * value, hidden);
    list.linear("self_attn.o_proj.weight", hidden, heads * value);
}

fn mlp(list: &mut List, name: &str, hidden: usize, width: usize) {
    list.linear(&format!("{name}.gate_proj.weight"), width, hidden);
    list.linear(&format!("{name}.up_proj.weight"), width, hidden);
    list.linear(&format!("{name}.down_proj.weight"), hidden, width);
}

/// Router, shared experts and routed experts. An expert's six tensors lie back to back; experts do not lie in
/// the order of their ids. Both as in the release.
fn mixture(list: &mut List, geometry: &Geometry, skew: f64, random: &mut Random) {
    let Geometry { hidden, experts, top, latent, expert_width, .. } = *geometry;
    list.linear("block_sparse_moe.gate.weight", experts, hidden);
    let biases = if skew > 0.0 {
        let deviation = 2_f32.powi(exponent((hidden as f64).powf(-0.5))) * (hidden as f32).sqrt();
        skewed_biases(experts, top, skew, deviation, random)
    } else {
        (0..experts).map(|_| random.normal() * 0.01).collect()
    };
    list.values("block_sparse_moe.gate.e_score_correction_bias", &[experts], biases);
    list.linear("block_sparse_moe.routed_expert_down_proj.weight", latent, hidden);
    list.ones("block_sparse_moe.routed_expert_norm.weight", latent);
    list.linear("block_sparse_moe.routed_expert_up_proj.weight", hidden, latent);
    mlp(list, "block_sparse_moe.shared_experts", hidden, SHARED_EXPERTS * expert_width);
    for expert in random.permutation(experts) {
        let name = format!("block_sparse_moe.experts.{expert}");
        list.packed(&format!("{name}.w1"), expert_width, latent);
        list.packed(&format!("{name}.w2"), latent, expert_width);
        list.packed(&format!("{name}.w3"), expert_width, latent);
    }
}

/// Embedding, output and the last norms.
fn ends(geometry: &Geometry) -> Vec<Tensor> {
    let Geometry { hidden, vocabulary, .. } = *geometry;
    let mut list = List::new("language_model.".to_owned());
    list.linear("lm_head.weight", vocabulary, hidden);
    list.normal("model.embed_tokens.weight", &[vocabulary, hidden], 1.0);
    list.ones("model.norm.weight", hidden);
    list.ones("model.output_attn_res_norm.weight", hidden);
    list.normal("model.output_attn_res_proj.weight", &[1, hidden], 0.02);
    list.tensors
}

/// Two tensors in the names of the vision part.
fn vision() -> Vec<Tensor> {
    let mut list = List::new(String::new());
    list.normal("mm_projector.proj.0.weight", &[64, 64], 0.05);
    list.ones("vision_tower.encoder.final_layernorm.weight", 16);
    list.tensors
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Preset;
    use super::*;

    #[test]
    fn an_expert_of_the_slice_has_the_releases_bytes() {
        let geometry = Geometry::of(Preset::K3Slice, 4096);
        let tensors = shard(&geometry, 1, 0.0, &mut Random::new(1));
        let expert = tensors.iter().filter(|tensor| tensor.name.contains(".experts.17."));
        assert_eq!(expert.map(Tensor::bytes).sum::<usize>(), 17_547_264);
    }

    #[test]
    fn a_checkpoint_has_the_names_and_kinds_of_the_embedded_model() {
        let geometry = Geometry { experts: 32, ..Geometry::of(Preset::Small, 4096) };
        let mut random = Random::new(1);
        let mut names: Vec<String> = (0..shards(&geometry))
            .flat_map(|index| shard(&geometry, index, 0.0, &mut random))
            .map(|tensor| tensor.name)
            .filter(|name| name.starts_with("language_model."))
            .collect();
        names.sort_unstable();
        let index = include_str!("../../../../data/k3-tiny/model.safetensors.index.json");
        let index: serde_json::Value = serde_json::from_str(index).expect("the index is JSON");
        let tiny = index["weight_map"].as_object().expect("an object").keys();
        let tiny: Vec<&String> = tiny.filter(|name| name.starts_with("language_model.")).collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), tiny);
    }

    #[test]
    fn presets_have_the_stated_sizes() {
        let sizes =
            [(Preset::Small, 0.34), (Preset::Medium, 4.1), (Preset::K3Slice, 18.0), (Preset::K3, 1559.9)];
        for (preset, gigabytes) in sizes {
            let geometry = Geometry::of(preset, preset.vocabulary());
            let mut random = Random::new(1);
            let bytes: usize = (0..shards(&geometry))
                .flat_map(|index| shard(&geometry, index, 0.0, &mut random))
                .map(|tensor| tensor.bytes())
                .sum();
            let found = bytes as f64 / 1e9;
            assert!((found / gigabytes - 1.0).abs() < 0.05, "{preset:?}: {found} GB");
        }
    }
}
