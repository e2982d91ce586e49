//! What a tensor of a Kimi K3 checkpoint is for, by its name: for tables of a checkpoint's contents. What is loaded, and
//! in which shape, is said where it is loaded.
use super::KimiK3Config;
use store::ExpertId;

/// How a tensor's bytes hold parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// One number an element.
    Plain,
    /// Two 4-bit codes a byte.
    Codes,
    /// Powers of two that belong to codes; no parameters of their own. Byte 255 stands for NaN.
    Scales,
}

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRole {
    /// The part of the model, in words.
    pub class: &'static str,
    /// The routed expert it belongs to.
    pub expert: Option<ExpertId>,
    /// What its bytes are.
    pub stored: Stored,
}

/// Tensors of one routed expert.
pub const EXPERT_TENSORS: u32 = 6;

/// The class of tensors that a text needs nothing of.
pub const NOT_USED: &str = "not used (vision and others)";

/// What a tensor of this name is for.
#[must_use]
pub fn role(config: &KimiK3Config, name: &str) -> TensorRole {
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let plain = |class| TensorRole { class, expert: None, stored: Stored::Plain };
    let Some((layer, rest)) = numbered(name, "model.layers.") else {
        return plain(match name {
            "model.embed_tokens.weight" => "embedding",
            "lm_head.weight" => "head",
            _ if name.starts_with("model.norm.") || name.starts_with("model.output_attn_res_") => NORMS,
            _ => NOT_USED,
        });
    };
    let Some(delta) = config.delta_layers.get(layer as usize) else { return plain(NOT_USED) };
    if let Some((expert, rest)) = numbered(rest, "block_sparse_moe.experts.") {
        let id = ExpertId { layer: layer as u16, expert: expert as u16 };
        let stored = match rest.rsplit('.').next() {
            Some("weight_packed") => Stored::Codes,
            Some("weight_scale") => Stored::Scales,
            _ => Stored::Plain,
        };
        return TensorRole { class: "routed experts", expert: Some(id), stored };
    }
    let classes = [
        ("self_attn.", if *delta { "attention KDA" } else { "attention MLA" }),
        ("block_sparse_moe.shared_experts.", "shared experts"),
        ("block_sparse_moe.gate.", "router"),
        ("block_sparse_moe.routed_expert_", "latent space of experts"),
        ("mlp.", "dense MLP"),
        ("input_layernorm.", NORMS),
        ("post_attention_layernorm.", NORMS),
        ("self_attention_res_", NORMS),
        ("mlp_res_", NORMS),
    ];
    plain(classes.iter().find(|(start, _)| rest.starts_with(start)).map_or(NOT_USED, |(_, class)| class))
}

const NORMS: &str = "norms and mixes";

/// `start` 12 `.` rest
fn numbered<'n>(name: &'n str, start: &str) -> Option<(u32, &'n str)> {
    let (number, rest) = name.strip_prefix(start)?.split_once('.')?;
    Some((number.parse().ok().filter(|n| u16::try_from(*n).is_ok())?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Checkpoint;

    #[test]
    fn names_tell_what_tensors_are_for() {
        let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
        let checkpoint = Checkpoint::open(&[tiny.into()]).unwrap();
        let config = KimiK3Config::read(checkpoint.config()).unwrap();
        let class = |name| role(&config, name).class;
        assert_eq!(class("language_model.model.layers.2.self_attn.o_proj.weight"), "attention KDA");
        assert_eq!(class("model.layers.3.self_attn.o_proj.weight"), "attention MLA");
        assert_eq!(class("language_model.model.layers.9.self_attn.o_proj.weight"), NOT_USED);
        let packed = role(&config, "model.layers.8.block_sparse_moe.experts.31.w2.weight_packed");
        assert_eq!((packed.expert, packed.stored), (Some(ExpertId { layer: 8, expert: 31 }), Stored::Codes));
        // Only the vision tower, its projector and nothing else is left over.
        for name in checkpoint.names() {
            let vision = name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
            assert_eq!(class(name) == NOT_USED, vision, "{name}");
        }
    }
}
