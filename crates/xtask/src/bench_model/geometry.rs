//! The sizes of a generated checkpoint: presets, which layer is of which kind, and the config.json that says so.
//! Knows no tensors and no files.

use serde_json::{Value, json};

/// Named sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// About 0.34 GB: 9 layers, 64 experts
    Small,
    /// About 4.1 GB: 17 layers, 144 experts
    Medium,
    /// About 18 GB: 4 layers of Kimi K3's own widths with 224 experts each
    K3Slice,
    /// 1.56 TB: Kimi K3's own sizes, 1.45 TB of it experts; with --sparse it takes 0.13 GB
    K3,
}

impl Preset {
    /// Ids in the vocabulary unless asked otherwise.
    pub(crate) fn vocabulary(self) -> usize {
        match self {
            Preset::Small | Preset::Medium | Preset::K3Slice => 4096,
            Preset::K3 => 163_840,
        }
    }
}

/// The sizes of one checkpoint, in K3's words. All are counts of numbers, heads, layers, experts or tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) kda_heads: usize,
    pub(crate) kda_head: usize,
    pub(crate) mla_heads: usize,
    pub(crate) q_rank: usize,
    pub(crate) kv_rank: usize,
    pub(crate) nope: usize,
    pub(crate) rope: usize,
    pub(crate) value: usize,
    pub(crate) experts: usize,
    pub(crate) top: usize,
    pub(crate) latent: usize,
    pub(crate) expert_width: usize,
    pub(crate) dense_width: usize,
    pub(crate) residual_block: usize,
    pub(crate) vocabulary: usize,
}

/// K3's shared experts: one MLP of twice an expert's width.
pub(crate) const SHARED_EXPERTS: usize = 2;
/// Taps of the short convolution.
pub(crate) const CONVOLUTION: usize = 4;
/// Ids behind the ranks of the tokenizer.
pub(crate) const SPECIALS: usize = 256;

impl Geometry {
    pub(crate) fn of(preset: Preset, vocabulary: usize) -> Geometry {
        let common = Geometry {
            hidden: 1024,
            layers: 9,
            kda_heads: 8,
            kda_head: 128,
            mla_heads: 8,
            q_rank: 512,
            kv_rank: 256,
            nope: 128,
            rope: 64,
            value: 128,
            experts: 64,
            top: 8,
            latent: 512,
            expert_width: 384,
            dense_width: 4096,
            residual_block: 4,
            vocabulary,
        };
        match preset {
            Preset::Small => common,
            Preset::Medium => Geometry {
                hidden: 2048,
                layers: 17,
                kda_heads: 16,
                mla_heads: 16,
                q_rank: 768,
                kv_rank: 512,
                experts: 144,
                latent: 1024,
                expert_width: 768,
                dense_width: 8192,
                ..common
            },
            Preset::K3Slice => Geometry { layers: 4, experts: 224, ..Geometry::of(Preset::K3, vocabulary) },
            Preset::K3 => Geometry {
                hidden: 7168,
                layers: 93,
                kda_heads: 96,
                mla_heads: 96,
                q_rank: 1536,
                kv_rank: 512,
                experts: 896,
                top: 16,
                latent: 3584,
                expert_width: 3072,
                dense_width: 33792,
                residual_block: 12,
                ..common
            },
        }
    }

    /// All columns of KDA's heads together.
    pub(crate) fn kda_width(&self) -> usize {
        self.kda_heads * self.kda_head
    }

    /// Whether a layer (from 0) has full attention: every fourth, and the last one, as in K3.
    pub(crate) fn is_full_attention(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(4) || (layer + 1 == self.layers && self.layers > 4)
    }

    /// Layers of one kind, counted from 1 as config.json does.
    fn numbers(&self, full_attention: bool) -> Vec<usize> {
        (0..self.layers)
            .filter(|layer| self.is_full_attention(*layer) == full_attention)
            .map(|layer| layer + 1)
            .collect()
    }

    /// The ids of `[BOS]`, `<|end_of_msg|>` and `[PAD]`.
    pub(crate) fn special_ids(&self) -> (usize, usize, usize) {
        let ranks = self.vocabulary - SPECIALS;
        (ranks, ranks + 2, ranks + 255)
    }

    /// `generation_config.json`.
    pub(crate) fn generation_config(&self) -> Value {
        let (bos, eos, pad) = self.special_ids();
        json!({ "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad })
    }

    /// `config.json`, with the keys of the release that an engine reads.
    pub(crate) fn config(&self) -> Value {
        let (bos, eos, pad) = self.special_ids();
        json!({
            "architectures": ["KimiK3ForConditionalGeneration"],
            "bos_token_id": bos,
            "dtype": "bfloat16",
            "eos_token_id": eos,
            "model_type": "kimi_k3",
            "pad_token_id": pad,
            "text_config": self.text_config(),
            "tie_word_embeddings": false,
        })
    }

    fn text_config(&self) -> Value {
        let (bos, eos, pad) = self.special_ids();
        let mut text = json!({
            "activation_situ_beta": 4.0,
            "activation_situ_linear_beta": 25.0,
            "architectures": ["KimiLinearForCausalLM"],
            "attn_res_block_size": self.residual_block,
            "bos_token_id": bos,
            "dtype": "bfloat16",
            "eos_token_id": eos,
            "hidden_act": "situ",
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "kv_lora_rank": self.kv_rank,
            "linear_attn_config": self.linear_attention_config(),
            "max_position_embeddings": 1_048_576,
            "mla_use_nope": true,
            "mla_use_output_gate": true,
            "model_type": "kimi_linear",
            "num_attention_heads": self.mla_heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.mla_heads,
            "num_nextn_predict_layers": 0,
            "pad_token_id": pad,
            "q_lora_rank": self.q_rank,
            "qk_nope_head_dim": self.nope,
            "qk_rope_head_dim": self.rope,
            "quantization_config": quantization_config(),
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": false,
            "v_head_dim": self.value,
            "vocab_size": self.vocabulary,
        });
        if let (Value::Object(text), Value::Object(experts)) = (&mut text, self.expert_config()) {
            text.extend(experts);
        }
        text
    }

    fn expert_config(&self) -> Value {
        json!({
            "first_k_dense_replace": 1,
            "latent_moe_use_norm": true,
            "moe_intermediate_size": self.expert_width,
            "moe_layer_freq": 1,
            "moe_renormalize": true,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "num_experts": self.experts,
            "num_experts_per_token": self.top,
            "num_shared_experts": SHARED_EXPERTS,
            "routed_expert_hidden_size": self.latent,
            "routed_scaling_factor": 1.0,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "use_grouped_topk": true,
        })
    }

    fn linear_attention_config(&self) -> Value {
        json!({
            "full_attn_layers": self.numbers(true),
            "gate_lower_bound": -5.0,
            "head_dim": self.kda_head,
            "kda_layers": self.numbers(false),
            "num_heads": self.kda_heads,
            "short_conv_kernel_size": CONVOLUTION,
            "use_full_rank_gate": true,
        })
    }
}

fn quantization_config() -> Value {
    json!({
        "config_groups": { "group_0": {
            "format": "mxfp4-pack-quantized",
            "targets": ["Linear"],
            "weights": {
                "group_size": 32,
                "num_bits": 4,
                "scale_dtype": "torch.uint8",
                "strategy": "group",
                "symmetric": true,
                "type": "float",
            },
        } },
        "format": "mxfp4-pack-quantized",
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_layers_follow_the_release() {
        let small = Geometry::of(Preset::Small, 4096);
        assert_eq!((small.numbers(true), small.numbers(false)), (vec![4, 8, 9], vec![1, 2, 3, 5, 6, 7]));
        let slice = Geometry::of(Preset::K3Slice, 4096);
        assert_eq!((slice.numbers(true), slice.numbers(false)), (vec![4], vec![1, 2, 3]));
        let release = Geometry::of(Preset::K3, 163_840);
        assert_eq!(release.numbers(true).len(), 24);
        assert_eq!(release.numbers(true)[22..], [92, 93]);
        assert_eq!(Geometry { layers: 3, ..slice }.numbers(true), [0; 0]);
    }

    #[test]
    fn the_config_has_the_keys_of_the_embedded_model() {
        let tiny = include_str!("../../../../data/k3-tiny/config.json");
        let tiny: Value = serde_json::from_str(tiny).expect("config.json is JSON");
        let config = Geometry::of(Preset::Medium, 4096).config();
        // Keys that name files of the release's Python code, or that no engine reads.
        let unread = ["_name_or_path", "initializer_range", "use_cache"];
        let keys = tiny["text_config"].as_object().expect("an object").keys();
        for key in keys.filter(|key| !unread.contains(&key.as_str())) {
            assert!(!config["text_config"][key].is_null(), "{key}");
        }
        for key in ["bos_token_id", "eos_token_id", "pad_token_id", "model_type"] {
            assert_eq!(config[key], tiny[key], "{key}");
        }
    }
}
