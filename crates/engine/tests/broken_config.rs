//! Configs that are broken, odd or disagree with the tensors: each gives its named error or the same model. One line a
//! case; checkpoints whose files are changed are in `odd_checkpoints.rs`.
mod common;

use common::tiny;
use models::kimi_k3::KimiK3Config;
use models::{ConfigError, Family, LoadError, LoadOptions};
use serde_json::Value;
use store::{Checkpoint, StoreError};

/// What a changed config must lead to.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// The same config as without the change, and so the same numbers.
    Same,
    /// [`ConfigError::Missing`] of the key.
    Missing,
    /// [`ConfigError::Invalid`] of the key.
    Invalid,
    /// [`ConfigError::Unsupported`] of the key.
    Unsupported,
    /// [`ConfigError::Layers`] with these words.
    Layers(&'static str),
    /// [`StoreError::WrongShape`] of the tensor of this name.
    Shape(&'static str),
    /// [`StoreError::MissingTensor`] of the tensor of this name.
    Absent(&'static str),
    /// Another model that these tensors fit; its numbers are of no interest here.
    Runs,
}
use Expect::{Absent, Invalid, Layers, Missing, Runs, Same, Shape, Unsupported};

/// Stands for the absence of a key.
const GONE: &str = "";

/// Key in `text_config` (`linear_attn_config.` and `quantization_config.` within it), its new value as JSON, and what
/// must come of it.
const CASES: &[(&str, &str, Expect)] = &[
    // Sizes.
    ("hidden_size", GONE, Missing),
    ("hidden_size", "null", Missing),
    ("hidden_size", "\"192\"", Invalid),
    ("hidden_size", "192.5", Invalid),
    ("hidden_size", "-192", Invalid),
    ("hidden_size", "0", Invalid),
    ("hidden_size", "200", Invalid),
    ("hidden_size", "4294967296", Invalid),
    ("hidden_size", "224", Shape("layers.0.self_attn.q_proj.weight")),
    ("num_hidden_layers", GONE, Missing),
    ("num_hidden_layers", "0", Invalid),
    ("num_hidden_layers", "5000", Invalid),
    ("num_hidden_layers", "[9]", Invalid),
    ("num_hidden_layers", "8", Layers("full_attn_layers names layer 9")),
    ("num_hidden_layers", "10", Layers("layer 10 is in neither")),
    ("vocab_size", GONE, Missing),
    ("vocab_size", "0", Invalid),
    ("vocab_size", "99999999", Invalid),
    ("vocab_size", "4095", Shape("embed_tokens.weight")),
    ("vocab_size", "4097", Shape("embed_tokens.weight")),
    ("intermediate_size", GONE, Missing),
    ("intermediate_size", "570", Invalid),
    ("intermediate_size", "608", Shape("layers.0.mlp.gate_proj.weight")),
    ("max_position_embeddings", GONE, Missing),
    ("max_position_embeddings", "0", Invalid),
    ("max_position_embeddings", "\"long\"", Invalid),
    ("rms_norm_eps", GONE, Missing),
    ("rms_norm_eps", "0", Invalid),
    ("rms_norm_eps", "-1e-5", Invalid),
    ("rms_norm_eps", "2", Invalid),
    ("rms_norm_eps", "\"1e-5\"", Invalid),
    ("attn_res_block_size", GONE, Missing),
    ("attn_res_block_size", "0", Invalid),
    ("attn_res_block_size", "true", Invalid),
    // MLA.
    ("num_attention_heads", GONE, Missing),
    ("num_attention_heads", "0", Invalid),
    ("num_attention_heads", "9", Unsupported), // by num_key_value_heads, which must be the same
    ("num_key_value_heads", GONE, Same),
    ("num_key_value_heads", "8.0", Same),
    ("num_key_value_heads", "4", Unsupported),
    ("q_lora_rank", GONE, Missing),
    ("q_lora_rank", "0", Invalid),
    ("q_lora_rank", "96", Shape("layers.3.self_attn.q_a_proj.weight")),
    ("kv_lora_rank", GONE, Missing),
    ("kv_lora_rank", "{}", Invalid),
    ("kv_lora_rank", "1048576", Invalid), // times the heads
    ("kv_lora_rank", "32", Shape("layers.3.self_attn.kv_a_proj_with_mqa.weight")),
    ("qk_nope_head_dim", GONE, Missing),
    ("qk_nope_head_dim", "0", Invalid),
    ("qk_nope_head_dim", "48", Shape("layers.3.self_attn.q_b_proj.weight")),
    ("qk_rope_head_dim", GONE, Missing),
    ("qk_rope_head_dim", "-1", Invalid),
    ("qk_rope_head_dim", "8", Shape("layers.3.self_attn.q_b_proj.weight")),
    ("v_head_dim", GONE, Missing),
    ("v_head_dim", "0", Invalid),
    ("v_head_dim", "16", Shape("layers.3.self_attn.kv_b_proj.weight")),
    ("v_head_dim", "65536", Shape("layers.3.self_attn.kv_b_proj.weight")),
    ("mla_use_nope", GONE, Missing),
    ("mla_use_nope", "false", Unsupported),
    ("mla_use_output_gate", GONE, Missing),
    ("mla_use_output_gate", "1", Invalid),
    ("mla_use_output_gate", "false", Runs),
    ("attention_bias", "false", Same),
    ("attention_bias", "true", Unsupported),
    ("index_topk", "0", Same),
    ("index_topk", "null", Same),
    ("index_topk", "2048", Unsupported),
    ("index_n_heads", "64", Unsupported),
    ("index_head_dim", "128", Unsupported),
    // KDA.
    ("linear_attn_config", GONE, Missing),
    ("linear_attn_config", "[]", Invalid),
    ("linear_attn_config.num_heads", GONE, Missing),
    ("linear_attn_config.num_heads", "0", Invalid),
    ("linear_attn_config.num_heads", "65536", Invalid), // times their size
    ("linear_attn_config.num_heads", "4", Shape("layers.0.self_attn.q_proj.weight")),
    ("linear_attn_config.head_dim", GONE, Missing),
    ("linear_attn_config.head_dim", "\"32\"", Invalid),
    ("linear_attn_config.head_dim", "64", Shape("layers.0.self_attn.q_proj.weight")),
    ("linear_attn_config.short_conv_kernel_size", GONE, Missing),
    ("linear_attn_config.short_conv_kernel_size", "1", Invalid),
    ("linear_attn_config.short_conv_kernel_size", "3", Shape("layers.0.self_attn.q_conv1d.weight")),
    ("linear_attn_config.gate_lower_bound", GONE, Missing),
    ("linear_attn_config.gate_lower_bound", "0", Invalid),
    ("linear_attn_config.gate_lower_bound", "5.0", Invalid),
    ("linear_attn_config.gate_lower_bound", "\"-5\"", Invalid),
    ("linear_attn_config.gate_lower_bound", "-5", Same),
    ("linear_attn_config.use_full_rank_gate", GONE, Missing),
    ("linear_attn_config.use_full_rank_gate", "\"true\"", Invalid),
    ("linear_attn_config.use_full_rank_gate", "false", Absent("layers.0.self_attn.g_a_proj.weight")),
    ("linear_attn_config.kda_layers", GONE, Missing),
    ("linear_attn_config.kda_layers", "[1, 2, 3, 5, 6, \"7\"]", Invalid),
    ("linear_attn_config.kda_layers", "[7, 6, 5, 3, 2, 1]", Same),
    ("linear_attn_config.kda_layers", "[1, 2, 3, 5, 6]", Layers("layer 7 is in neither")),
    ("linear_attn_config.kda_layers", "[1, 2, 3, 4, 5, 6, 7]", Layers("layer 4 is named twice")),
    ("linear_attn_config.kda_layers", "[1, 1, 2, 3, 5, 6, 7]", Layers("layer 1 is named twice")),
    ("linear_attn_config.kda_layers", "[0, 1, 2, 4, 5, 6]", Layers("kda_layers names layer 0")),
    ("linear_attn_config.full_attn_layers", GONE, Missing),
    ("linear_attn_config.full_attn_layers", "4", Invalid),
    ("linear_attn_config.full_attn_layers", "[4, 8]", Layers("layer 9 is in neither")),
    ("linear_attn_config.full_attn_layers", "[4, 8, 9, 10]", Layers("full_attn_layers names layer 10")),
    // Experts.
    ("first_k_dense_replace", GONE, Missing),
    ("first_k_dense_replace", "10", Invalid),
    ("first_k_dense_replace", "0", Absent("layers.0.block_sparse_moe.routed_expert_norm.weight")),
    ("first_k_dense_replace", "2", Absent("layers.1.mlp.gate_proj.weight")),
    ("moe_layer_freq", GONE, Same),
    ("moe_layer_freq", "2", Unsupported),
    ("num_experts", GONE, Missing),
    ("num_experts", "0", Invalid),
    ("num_experts", "65536", Invalid),
    ("num_experts", "3", Invalid), // fewer than run for a token: named at num_experts_per_token
    ("num_experts", "16", Shape("layers.1.block_sparse_moe.gate.weight")),
    ("num_experts", "40", Shape("layers.1.block_sparse_moe.gate.weight")),
    ("num_experts_per_token", GONE, Missing),
    ("num_experts_per_token", "0", Invalid),
    ("num_experts_per_token", "33", Invalid),
    ("num_experts_per_token", "2", Runs),
    ("moe_intermediate_size", GONE, Missing),
    ("moe_intermediate_size", "50", Invalid),
    ("moe_intermediate_size", "96", Shape("layers.1.block_sparse_moe.shared_experts.gate_proj.weight")),
    ("routed_expert_hidden_size", GONE, Missing),
    ("routed_expert_hidden_size", "100", Invalid),
    ("routed_expert_hidden_size", "64", Shape("layers.1.block_sparse_moe.routed_expert_norm.weight")),
    ("num_shared_experts", GONE, Missing),
    ("num_shared_experts", "65", Invalid),
    ("num_shared_experts", "1", Shape("layers.1.block_sparse_moe.shared_experts.gate_proj.weight")),
    ("latent_moe_use_norm", GONE, Missing),
    ("latent_moe_use_norm", "\"yes\"", Invalid),
    ("latent_moe_use_norm", "false", Runs),
    ("moe_router_activation_func", GONE, Missing),
    ("moe_router_activation_func", "\"softmax\"", Unsupported),
    ("moe_renormalize", GONE, Missing),
    ("moe_renormalize", "0", Invalid),
    ("moe_renormalize", "false", Runs),
    ("routed_scaling_factor", GONE, Missing),
    ("routed_scaling_factor", "0", Invalid),
    ("routed_scaling_factor", "\"2.5\"", Invalid),
    ("routed_scaling_factor", "1", Same),
    ("routed_scaling_factor", "2.5", Runs),
    ("num_expert_group", GONE, Same),
    ("num_expert_group", "8", Unsupported),
    ("topk_group", "4", Unsupported),
    ("topk_method", "\"greedy\"", Unsupported),
    ("use_grouped_topk", GONE, Same), // one group masks nothing
    ("use_grouped_topk", "false", Same),
    ("use_grouped_topk", "\"yes\"", Invalid),
    ("rope_scaling", "null", Same),
    ("rope_scaling", "{\"type\": \"yarn\"}", Unsupported),
    // Activation.
    ("hidden_act", GONE, Missing),
    ("hidden_act", "7", Invalid),
    ("hidden_act", "\"gelu\"", Unsupported),
    ("hidden_act", "\"silu\"", Runs),
    ("activation_situ_beta", GONE, Missing),
    ("activation_situ_beta", "0", Invalid),
    ("activation_situ_linear_beta", GONE, Missing),
    ("activation_situ_linear_beta", "-25", Invalid),
    // Others.
    ("num_nextn_predict_layers", GONE, Same),
    ("num_nextn_predict_layers", "1", Unsupported),
    ("tie_word_embeddings", GONE, Same),
    ("tie_word_embeddings", "\"no\"", Invalid),
    ("eos_token_id", "[3842, 3841]", Same),
    ("eos_token_id", GONE, Same),
    ("model_type", GONE, Same),
    // The experts' packing.
    ("quantization_config", GONE, Same),
    ("quantization_config", "null", Same),
    ("quantization_config", "\"mxfp4\"", Invalid),
    ("quantization_config.quant_method", "\"fp8\"", Unsupported),
    ("quantization_config.format", "\"nvfp4-pack-quantized\"", Unsupported),
    ("quantization_config.ignore", GONE, Same),
    ("quantization_config.config_groups", GONE, Same),
    ("quantization_config.config_groups.group_0.weights.num_bits", "8", Unsupported),
    ("quantization_config.config_groups.group_0.weights.type", "\"int\"", Unsupported),
    ("quantization_config.config_groups.group_0.weights.group_size", "16", Unsupported),
    ("quantization_config.config_groups.group_0.weights.symmetric", "false", Unsupported),
    ("quantization_config.config_groups.group_0.weights", GONE, Missing),
    ("quantization_config.config_groups.group_0.weights.dynamic", "true", Unsupported),
    ("quantization_config.config_groups.group_0.weights.strategy", "\"channel\"", Unsupported),
    ("quantization_config.config_groups.group_0.weights.scale_dtype", "\"torch.float8_e4m3fn\"", Unsupported),
    ("quantization_config.config_groups.group_0.input_activations", "{\"num_bits\": 8}", Unsupported),
    ("quantization_config.config_groups", "[]", Invalid),
    ("quantization_config.kv_cache_scheme", "{\"num_bits\": 8}", Unsupported),
];

/// The tiny model's config: nested as it is, or flat.
fn config(flat: bool) -> Value {
    let mut config = tiny().config().clone();
    if flat { config["text_config"].take() } else { config }
}

fn change(config: &mut Value, path: &str, value: &str) {
    let (parents, key) = path.rsplit_once('.').map_or(("", path), |(parents, key)| (parents, key));
    let parent = parents.split('.').filter(|p| !p.is_empty()).fold(config, |at, name| &mut at[name]);
    if value == GONE {
        parent.as_object_mut().unwrap().remove(key);
    } else {
        parent[key] = serde_json::from_str(value).unwrap();
    }
}

/// Reads the config, and looks for all tensors it wants.
fn read(config: &Value, checkpoint: &Checkpoint) -> Result<KimiK3Config, LoadError> {
    assert!(models::kimi_k3::is_kimi_k3(config));
    let mut family = Family::recognise(checkpoint)?;
    family.config = KimiK3Config::read(config)?;
    family.load(checkpoint, None, &LoadOptions::default(), &mut |_| {})?;
    family.catalog(checkpoint, None)?;
    Ok(family.config)
}

/// The key that an error names, where a limit on one key is stated at another.
fn key_of(error: &ConfigError) -> &str {
    match error {
        ConfigError::Missing { key, .. }
        | ConfigError::Invalid { key, .. }
        | ConfigError::Unsupported { key, .. }
        | ConfigError::Layers { key, .. } => key,
        ConfigError::UnknownFamily { .. } => "model_type",
    }
}

/// Keys whose value makes another key wrong.
const NAMED_AT: &[(&str, &str, &str)] = &[
    ("num_attention_heads", "9", "num_key_value_heads"),
    ("kv_lora_rank", "1048576", "num_attention_heads * sizes of a head"),
    ("linear_attn_config.num_heads", "65536", "linear_attn_config.num_heads * head_dim"),
    ("num_experts", "3", "num_experts_per_token"),
];

fn check_case(flat: bool, (key, value, expect): (&str, &str, Expect), checkpoint: &Checkpoint) {
    let what = format!("{key} = {value:?}, flat {flat}");
    let (mut config, original) = (config(flat), config(flat));
    let path = if flat { key.to_owned() } else { format!("text_config.{key}") };
    change(&mut config, &path, value);
    if flat && !models::kimi_k3::is_kimi_k3(&config) {
        // Without the two keys that only Kimi K3 has, a flat config is another family's.
        assert!(matches!(key, "attn_res_block_size" | "routed_expert_hidden_size"), "{what}");
        return;
    }
    let outcome = read(&config, checkpoint);
    let text = outcome.as_ref().map_or_else(ToString::to_string, |_| String::new());
    assert!(!text.contains('\n'), "{what}: {text}");
    match (expect, outcome) {
        (Same, Ok(same)) => assert_eq!(same, KimiK3Config::read(&original).unwrap(), "{what}"),
        (Runs, Ok(other)) => assert_ne!(other, KimiK3Config::read(&original).unwrap(), "{what}"),
        (Layers(words), Err(LoadError::Config(ConfigError::Layers { found, .. }))) => {
            assert!(found.contains(words), "{what}: {text}");
        }
        (Missing, Err(LoadError::Config(ref error @ ConfigError::Missing { .. })))
        | (Invalid, Err(LoadError::Config(ref error @ ConfigError::Invalid { .. })))
        | (Unsupported, Err(LoadError::Config(ref error @ ConfigError::Unsupported { .. }))) => {
            let elsewhere = NAMED_AT.iter().find(|(k, v, _)| (*k, *v) == (key, value));
            let named = elsewhere.map_or(path.clone(), |(.., at)| path.replace(key, at));
            assert_eq!(key_of(error), named, "{what}: {text}");
        }
        (Shape(tensor), Err(LoadError::Store(StoreError::WrongShape { .. })))
        | (Absent(tensor), Err(LoadError::Store(StoreError::MissingTensor(..)))) => {
            assert!(text.contains(&format!("language_model.model.{tensor}")), "{what}: {text}");
        }
        (_, outcome) => panic!("{what}: {expect:?} expected, but {outcome:?}"),
    }
}

#[test]
fn every_key_is_honoured_or_refused_by_name() {
    let checkpoint = tiny();
    for case in CASES {
        for flat in [false, true] {
            check_case(flat, *case, &checkpoint);
        }
    }
}
