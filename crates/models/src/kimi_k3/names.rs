//! What a tensor of a Kimi K3 checkpoint is for, by its name, and which names are missing from a list: for tables of a
//! checkpoint's contents. What is loaded, and in which shape, is said where it is loaded.
use super::KimiK3Config;
use std::collections::{BTreeMap, BTreeSet};
use store::ExpertId;

/// What the family is called, as in [`Family::name`](crate::Family::name); also where a checkpoint lacks the tensors
/// that make it one.
pub const FAMILY: &str = "kimi_k3";

/// Before all names of the language model in the release; some re-exports go without.
pub(super) const PREFIX: &str = "language_model.";
const LAYERS: &str = "model.layers.";
const ATTENTION: &str = "self_attn.";
const DENSE_MLP: &str = "mlp.";
const MOE: &str = "block_sparse_moe.";
const EXPERTS: &str = "block_sparse_moe.experts.";

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
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    let plain = |class| TensorRole { class, expert: None, stored: Stored::Plain };
    let Some((layer, rest)) = numbered(name, LAYERS) else {
        return plain(match name {
            "model.embed_tokens.weight" => "embedding",
            "lm_head.weight" => "head",
            _ if name.starts_with("model.norm.") || name.starts_with("model.output_attn_res_") => NORMS,
            _ => NOT_USED,
        });
    };
    let Some(delta) = config.delta_layers.get(layer as usize) else { return plain(NOT_USED) };
    if let Some((expert, rest)) = numbered(rest, EXPERTS) {
        let id = ExpertId { layer: layer as u16, expert: expert as u16 };
        let stored = match rest.rsplit('.').next() {
            Some("weight_packed") => Stored::Codes,
            Some("weight_scale") => Stored::Scales,
            _ => Stored::Plain,
        };
        return TensorRole { class: "routed experts", expert: Some(id), stored };
    }
    let classes = [
        (ATTENTION, if *delta { "attention KDA" } else { "attention MLA" }),
        ("block_sparse_moe.shared_experts.", "shared experts"),
        ("block_sparse_moe.gate.", "router"),
        ("block_sparse_moe.routed_expert_", "latent space of experts"),
        (DENSE_MLP, "dense MLP"),
        ("input_layernorm.", NORMS),
        ("post_attention_layernorm.", NORMS),
        ("self_attention_res_", NORMS),
        ("mlp_res_", NORMS),
    ];
    plain(classes.iter().find(|(start, _)| rest.starts_with(start)).map_or(NOT_USED, |(_, class)| class))
}

/// The layer that a tensor of this name belongs to, whether the config has it or not.
#[must_use]
pub fn layer(name: &str) -> Option<u32> {
    numbered(name.strip_prefix(PREFIX).unwrap_or(name), LAYERS).map(|(layer, _)| layer)
}

const NORMS: &str = "norms and mixes";

/// `start` 12 `.` rest
fn numbered<'n>(name: &'n str, start: &str) -> Option<(u32, &'n str)> {
    let (number, rest) = name.strip_prefix(start)?.split_once('.')?;
    Some((number.parse().ok().filter(|n| u16::try_from(*n).is_ok())?, rest))
}

/// The names that a layer or an expert lacks while others of its kind have them, in the order of the layers. What all
/// lack is not noticed.
pub fn gaps<'n>(config: &KimiK3Config, names: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    let (mut of_layers, mut of_experts) = (BTreeMap::<_, BTreeSet<&str>>::new(), BTreeSet::new());
    let mut prefix = "";
    for name in names.iter().filter(|name| role(config, name).class != NOT_USED) {
        let plain = name.strip_prefix(PREFIX).unwrap_or(name);
        let Some((layer, rest)) = numbered(plain, LAYERS) else { continue };
        prefix = &name[..name.len() - plain.len()];
        if let Some((_, rest)) = numbered(rest, EXPERTS) {
            of_experts.insert(rest);
        } else {
            of_layers.entry(kind(config, layer, rest)).or_default().insert(rest);
        }
    }
    let mut gaps = Vec::new();
    let mut note = |name: String| {
        if !names.contains(name.as_str()) {
            gaps.push(name);
        }
    };
    // Without a name of any layer there is nothing to expect of the others.
    for layer in 0..config.layers() {
        for (kind_of, rests) in &of_layers {
            for rest in rests.iter().filter(|rest| *kind_of == kind(config, layer, rest)) {
                note(format!("{prefix}{LAYERS}{layer}.{rest}"));
            }
        }
        let experts = if layer < config.first_moe_layer { 0 } else { config.experts };
        for expert in 0..experts {
            for rest in &of_experts {
                note(format!("{prefix}{LAYERS}{layer}.{EXPERTS}{expert}.{rest}"));
            }
        }
    }
    gaps
}

/// Layers that have a tensor in common: those with the same attention, the same MLP, or all.
fn kind(config: &KimiK3Config, layer: u32, rest: &str) -> (&'static str, bool) {
    if rest.starts_with(ATTENTION) {
        return ("attention", config.delta_layers.get(layer as usize).copied().unwrap_or_default());
    }
    let mlp = rest.starts_with(DENSE_MLP) || rest.starts_with(MOE);
    if mlp { ("mlp", layer < config.first_moe_layer) } else { ("all", true) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Family;
    use store::Checkpoint;

    fn tiny() -> (Checkpoint, KimiK3Config) {
        let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
        let checkpoint = Checkpoint::open(&[tiny.into()]).unwrap();
        let config = KimiK3Config::read(checkpoint.config()).unwrap();
        (checkpoint, config)
    }

    #[test]
    fn the_family_has_one_name() {
        assert_eq!(Family::recognise(&tiny().0).unwrap().name(), FAMILY);
    }

    #[test]
    fn gaps_are_what_others_of_their_kind_have() {
        let (checkpoint, config) = tiny();
        let absent = [
            "model.layers.2.input_layernorm.weight",
            "model.layers.3.self_attn.o_proj.weight",
            "model.layers.4.self_attn.q_proj.weight",
            "model.layers.6.block_sparse_moe.experts.9.w3.weight_scale",
            "model.layers.7.block_sparse_moe.gate.weight",
        ];
        // Layer 0 is the only one with a dense MLP: nothing tells that it should have one.
        let unnoticed = "model.layers.0.mlp.up_proj.weight";
        for prefix in [PREFIX, ""] {
            let all = checkpoint.names().map(|name| {
                let plain = name.strip_prefix(PREFIX);
                plain.map_or_else(|| name.to_owned(), |plain| format!("{prefix}{plain}"))
            });
            let all: Vec<String> = all.collect();
            assert!(gaps(&config, all.iter().map(String::as_str)).is_empty());
            let lost: Vec<String> = absent.iter().map(|name| format!("{prefix}{name}")).collect();
            let unnoticed = format!("{prefix}{unnoticed}");
            let left: Vec<&str> = all
                .iter()
                .filter(|name| !lost.contains(name) && **name != unnoticed)
                .map(String::as_str)
                .collect();
            assert_eq!(left.len() + absent.len() + 1, all.len());
            assert_eq!(gaps(&config, left), lost);
        }
        assert!(gaps(&config, []).is_empty());
    }

    #[test]
    fn names_tell_what_tensors_are_for() {
        let (checkpoint, config) = tiny();
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
