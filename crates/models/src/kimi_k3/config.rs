//! The config of Kimi K3: `text_config` nested or flat. Every flag is honoured or refused by name; one that changes the
//! numbers must be there, because its default elsewhere (Kimi-Linear) would silently make another model.
use super::names::FAMILY;
use crate::config::{ConfigError, Keys};
use crate::delta_attention::DeltaConfig;
use crate::latent_attention::LatentConfig;
use ops::{Activation, DecayFormula, Routing};
use serde_json::{Value, json};

/// Sizes, kinds of layers and formulas.
#[derive(Clone, Debug, PartialEq)]
pub struct KimiK3Config {
    /// D
    pub width: u32,
    /// V
    pub vocabulary: u32,
    /// For each layer whether it is KDA (else MLA).
    pub delta_layers: Vec<bool>,
    /// Layers below have a dense MLP.
    pub first_moe_layer: u32,
    /// Width of the dense MLP.
    pub dense_inner: u32,
    /// KDA.
    pub delta: DeltaConfig,
    /// MLA.
    pub latent: LatentConfig,
    /// Routed experts a layer.
    pub experts: u32,
    /// Of these run for a token.
    pub ranks: u32,
    /// Width of an expert.
    pub expert_inner: u32,
    /// Width of the space the experts live in.
    pub expert_width: u32,
    /// Shared experts, fused into one MLP.
    pub shared_experts: u32,
    /// Whether the weighted sum of experts is normed.
    pub expert_norm: bool,
    /// From scores to weights.
    pub routing: Routing,
    /// Of all MLPs.
    pub activation: Activation,
    /// Layers between snapshots.
    pub snapshot_every: u32,
    /// Of the norms.
    pub eps: f32,
    /// Longest context it was made for.
    pub context: u32,
    /// Whether the head is the embedding.
    pub tied: bool,
}

/// No model is larger; guards size arithmetic.
const SIZE_MAX: u32 = 1 << 20;
const LAYERS_MAX: u32 = 4096;

/// The text part of a config: nested under `text_config`, or the whole of it.
#[must_use]
pub fn text_part(config: &Value) -> (&Value, &'static str) {
    match config.get("text_config") {
        Some(text) if !text.is_null() => (text, "text_config"),
        _ => (config, ""),
    }
}

/// Whether a config is Kimi K3's: it says so, or it is a `kimi_linear` with what only K3 has.
#[must_use]
pub fn is_kimi_k3(config: &Value) -> bool {
    let (text, _) = text_part(config);
    let has = |key: &str| text.get(key).is_some_and(|v| !v.is_null());
    let says = |part: &Value| part.get("model_type").and_then(Value::as_str).map(str::to_owned);
    match (says(config).as_deref(), says(text).as_deref()) {
        (Some(FAMILY), _) | (_, Some(FAMILY)) => true,
        (None | Some("kimi_linear"), None | Some("kimi_linear")) => {
            has("attn_res_block_size") && has("routed_expert_hidden_size")
        }
        _ => false,
    }
}

impl KimiK3Config {
    /// Reads and checks the config.
    ///
    /// # Errors
    /// The first key that is missing, wrong or unsupported.
    pub fn read(config: &Value) -> Result<Self, ConfigError> {
        let (text, path) = text_part(config);
        let keys = Keys::new(text, path)?;
        refuse_unsupported(&keys)?;
        check_quantization(config, &keys)?;
        let layers = keys.number("num_hidden_layers", 1, LAYERS_MAX)?;
        let experts = keys.number("num_experts", 1, u32::from(u16::MAX))?;
        let first = keys.number("first_k_dense_replace", 0, layers)?;
        let linear_path =
            if path.is_empty() { "linear_attn_config" } else { "text_config.linear_attn_config" };
        let linear = keys.object("linear_attn_config", linear_path)?;
        let eps = keys.float("rms_norm_eps", 0.0, 1.0)?;
        let (delta, latent) = (delta_config(&linear, eps)?, latent_config(&keys)?);
        check_products(&linear, &keys, &delta, &latent)?;
        Ok(KimiK3Config {
            width: multiple_of_group(&keys, "hidden_size")?,
            vocabulary: keys.number("vocab_size", 1, 1 << 24)?,
            delta_layers: delta_layers(&linear, layers)?,
            first_moe_layer: first,
            dense_inner: if first > 0 { multiple_of_group(&keys, "intermediate_size")? } else { 0 },
            delta,
            latent,
            experts,
            ranks: keys.number("num_experts_per_token", 1, experts)?,
            expert_inner: multiple_of_group(&keys, "moe_intermediate_size")?,
            expert_width: multiple_of_group(&keys, "routed_expert_hidden_size")?,
            shared_experts: keys.number("num_shared_experts", 0, 64)?,
            expert_norm: keys.needed_flag("latent_moe_use_norm")?,
            routing: Routing {
                renormalize: keys.needed_flag("moe_renormalize")?,
                scale: keys.float("routed_scaling_factor", 0.0, 1e6)?,
                keep: 1.0,
            },
            activation: activation(&keys)?,
            snapshot_every: keys.number("attn_res_block_size", 1, LAYERS_MAX)?,
            eps,
            context: keys.number("max_position_embeddings", 1, 1 << 30)?,
            tied: tied(config, &keys)?,
        })
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.delta_layers.len() as u32
    }
}

fn multiple_of_group(keys: &Keys<'_>, key: &str) -> Result<u32, ConfigError> {
    let size = keys.number(key, 32, SIZE_MAX)?;
    if size.is_multiple_of(32) {
        return Ok(size);
    }
    let (key, found) = (keys.name(key), size.to_string());
    Err(ConfigError::Invalid {
        key,
        expected: "a multiple of 32 (weights are packed in groups of 32)".into(),
        found,
    })
}

/// Keys whose other values mean something that is not computed here.
fn refuse_unsupported(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let only = [
        ("mla_use_nope", json!(true)),
        ("moe_layer_freq", json!(1)),
        ("moe_router_activation_func", json!("sigmoid")),
        ("num_expert_group", json!(1)),
        ("topk_group", json!(1)),
        ("topk_method", json!("noaux_tc")),
        ("num_nextn_predict_layers", json!(0)),
        ("attention_bias", json!(false)),
        ("rope_scaling", Value::Null),
        // Sparse attention (DSA) is another family's.
        ("index_topk", json!(0)),
        ("index_n_heads", json!(0)),
        ("index_head_dim", json!(0)),
    ];
    for (key, value) in &only {
        keys.only(key, value)?;
    }
    // Without these two the release's own code would build another model.
    keys.needed_flag("mla_use_nope")?;
    keys.word("moe_router_activation_func")?;
    // One group masks nothing, so that either value is honoured.
    keys.flag("use_grouped_topk", true)?;
    let heads = keys.number("num_attention_heads", 1, SIZE_MAX)?;
    keys.only("num_key_value_heads", &json!(heads))
}

/// The experts' packing must be the one that is computed; absent, the tensors decide.
fn check_quantization(config: &Value, keys: &Keys<'_>) -> Result<(), ConfigError> {
    let above = Keys::new(config, "")?;
    let (value, path) = match (keys.get("quantization_config"), above.get("quantization_config")) {
        (Some(inside), _) => (inside, keys.name("quantization_config")),
        (None, Some(outside)) => (outside, "quantization_config".into()),
        (None, None) => return Ok(()),
    };
    let quantization = Keys::new(value, &path)?;
    quantization.only("quant_method", &json!("compressed-tensors"))?;
    quantization.only("format", &json!("mxfp4-pack-quantized"))?;
    quantization.only("kv_cache_scheme", &Value::Null)?;
    let Some(groups) = quantization.get("config_groups") else { return Ok(()) };
    let groups_path = format!("{path}.config_groups");
    Keys::new(groups, &groups_path)?;
    for (name, group) in groups.as_object().into_iter().flatten() {
        check_group(group, &format!("{groups_path}.{name}"))?;
    }
    Ok(())
}

/// One group of `config_groups`: how its weights are packed, and that activations are left as they are.
fn check_group(group: &Value, path: &str) -> Result<(), ConfigError> {
    let keys = Keys::new(group, path)?;
    keys.only("format", &json!("mxfp4-pack-quantized"))?;
    keys.only("input_activations", &Value::Null)?;
    keys.only("output_activations", &Value::Null)?;
    let weights_path = format!("{path}.weights");
    let weights = keys.object("weights", &weights_path)?;
    for (key, value) in [
        ("num_bits", json!(4)),
        ("type", json!("float")),
        ("group_size", json!(32)),
        ("strategy", json!("group")),
        ("symmetric", json!(true)),
        ("dynamic", json!(false)),
        ("scale_dtype", json!("torch.uint8")),
    ] {
        weights.only(key, &value)?;
    }
    Ok(())
}

/// Whether the head is the embedding: said in the text part, above it, or both alike.
fn tied(config: &Value, keys: &Keys<'_>) -> Result<bool, ConfigError> {
    let above = Keys::new(config, "")?.flag("tie_word_embeddings", false)?;
    let tied = keys.flag("tie_word_embeddings", above)?;
    let said_above = config.get("tie_word_embeddings").is_some_and(|value| !value.is_null());
    if said_above && tied != above {
        let (key, found) = (keys.name("tie_word_embeddings"), tied.to_string());
        let expected = format!("{above}, as `tie_word_embeddings` above it says");
        return Err(ConfigError::Invalid { key, expected, found });
    }
    Ok(tied)
}

fn delta_layers(linear: &Keys<'_>, layers: u32) -> Result<Vec<bool>, ConfigError> {
    let wrong = |found: String| ConfigError::Layers {
        key: linear.name("kda_layers, full_attn_layers"),
        layers,
        found,
    };
    let mut kinds = vec![None; layers as usize];
    for (key, is_delta) in [("kda_layers", true), ("full_attn_layers", false)] {
        for layer in linear.numbers(key)? {
            match kinds.get_mut((layer as usize).wrapping_sub(1)) {
                None => return Err(wrong(format!("{key} names layer {layer}"))),
                Some(Some(_)) => return Err(wrong(format!("layer {layer} is named twice"))),
                Some(kind) => *kind = Some(is_delta),
            }
        }
    }
    let missing = kinds.iter().position(Option::is_none);
    if let Some(layer) = missing {
        return Err(wrong(format!("layer {} is in neither", layer + 1)));
    }
    Ok(kinds.into_iter().flatten().collect())
}

fn delta_config(linear: &Keys<'_>, eps: f32) -> Result<DeltaConfig, ConfigError> {
    Ok(DeltaConfig {
        heads: linear.number("num_heads", 1, 65536)?,
        head_dim: linear.number("head_dim", 1, 65536)?,
        taps: linear.number("short_conv_kernel_size", 2, 64)?,
        decay: DecayFormula::LowerBound(linear.float("gate_lower_bound", -1e3, 0.0)?),
        full_rank_gate: linear.needed_flag("use_full_rank_gate")?,
        eps,
    })
}

fn latent_config(keys: &Keys<'_>) -> Result<LatentConfig, ConfigError> {
    Ok(LatentConfig {
        heads: keys.number("num_attention_heads", 1, 65536)?,
        q_rank: keys.number("q_lora_rank", 1, SIZE_MAX)?,
        kv_rank: keys.number("kv_lora_rank", 1, SIZE_MAX)?,
        nope: keys.number("qk_nope_head_dim", 1, 65536)?,
        rope: keys.number("qk_rope_head_dim", 0, 65536)?,
        value: keys.number("v_head_dim", 1, 65536)?,
        output_gate: keys.needed_flag("mla_use_output_gate")?,
    })
}

/// Heads times their sizes stay sizes.
fn check_products(
    linear: &Keys<'_>,
    keys: &Keys<'_>,
    delta: &DeltaConfig,
    latent: &LatentConfig,
) -> Result<(), ConfigError> {
    let per_head = u64::from(latent.nope + latent.rope.max(latent.value)).max(latent.kv_rank.into());
    let products = [
        (linear.name("num_heads * head_dim"), u64::from(delta.heads) * u64::from(delta.head_dim)),
        (keys.name("num_attention_heads * sizes of a head"), u64::from(latent.heads) * per_head),
    ];
    for (key, product) in products {
        if product > u64::from(SIZE_MAX) {
            let expected = format!("at most {SIZE_MAX}");
            return Err(ConfigError::Invalid { key, expected, found: product.to_string() });
        }
    }
    Ok(())
}

fn activation(keys: &Keys<'_>) -> Result<Activation, ConfigError> {
    match keys.word("hidden_act")? {
        "situ" => Ok(Activation::Situ {
            beta: keys.float("activation_situ_beta", 0.0, 1e6)?,
            linear_beta: keys.float("activation_situ_linear_beta", 0.0, 1e6)?,
        }),
        "silu" => Ok(Activation::Silu),
        other => Err(ConfigError::Unsupported {
            key: keys.name("hidden_act"),
            found: other.into(),
            supported: "situ, silu".into(),
        }),
    }
}
