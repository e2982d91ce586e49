//! What a checkpoint holds, counted by class of tensor, and which of it is missing. Reads no tensor.
use models::kimi_k3::KimiK3Config;
use models::kimi_k3::names::{EXPERT_TENSORS, NOT_USED, Stored, role};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use store::{Checkpoint, Entry, ExpertId};

/// Tensors of one class.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Class {
    pub(crate) tensors: u64,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
    /// Bytes by how they are stored.
    pub(crate) packing: BTreeMap<&'static str, u64>,
    /// Tensors that lie in absent shards.
    pub(crate) missing: u64,
}

/// Routed experts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Experts {
    /// As many as the config says.
    pub(crate) total: u64,
    /// In each layer that has any.
    pub(crate) per_layer: u32,
    /// That run for a token.
    pub(crate) per_token: u32,
    /// Fused ones that run for every token.
    pub(crate) shared: u32,
    /// Bytes of each; None if they differ or none is whole.
    pub(crate) bytes_each: Option<u64>,
    /// All of whose tensors are there.
    pub(crate) whole: u64,
    /// Whole ones that lie in one piece on disk: one read brings them.
    pub(crate) contiguous: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inventory {
    pub(crate) classes: BTreeMap<&'static str, Class>,
    pub(crate) experts: Experts,
}

impl Inventory {
    /// Counts what is there, and names of tensors that are not.
    pub(crate) fn new<'m>(
        checkpoint: &Checkpoint,
        config: &KimiK3Config,
        missing: impl Iterator<Item = &'m str>,
    ) -> Self {
        let mut classes: BTreeMap<&'static str, Class> = BTreeMap::new();
        let mut experts = ExpertCount::default();
        // Sorted by name: the tensors of an expert follow each other, in the order in which a slot holds them.
        for (name, entry) in checkpoint.under("") {
            let role = role(config, name);
            let class = classes.entry(role.class).or_default();
            let elements: u64 = entry.shape.iter().product();
            let (parameters, packing) = match role.stored {
                Stored::Plain => (elements, entry.dtype.name()),
                Stored::Codes => (elements * 2, "MXFP4"),
                Stored::Scales => (0, "MXFP4"),
            };
            class.tensors += 1;
            class.parameters += parameters;
            class.bytes += entry.bytes;
            *class.packing.entry(packing).or_default() += entry.bytes;
            if let Some(id) = role.expert {
                experts.add(id, entry);
            }
        }
        for name in missing {
            classes.entry(role(config, name).class).or_default().missing += 1;
        }
        Inventory { classes, experts: experts.finish(config) }
    }
}

/// Experts, as their tensors come.
#[derive(Default)]
struct ExpertCount {
    current: Option<Current>,
    whole: u64,
    contiguous: u64,
    sizes: Vec<u64>,
}

struct Current {
    id: ExpertId,
    tensors: u32,
    bytes: u64,
    last: Entry,
    contiguous: bool,
}

impl ExpertCount {
    fn add(&mut self, id: ExpertId, entry: &Entry) {
        if let Some(current) = self.current.as_mut().filter(|current| current.id == id) {
            let follows =
                entry.file == current.last.file && entry.offset == current.last.offset + current.last.bytes;
            current.contiguous &= follows;
            current.tensors += 1;
            current.bytes += entry.bytes;
            current.last = entry.clone();
            return;
        }
        self.close();
        let last = entry.clone();
        self.current = Some(Current { id, tensors: 1, bytes: entry.bytes, last, contiguous: true });
    }

    fn close(&mut self) {
        let Some(current) = self.current.take().filter(|c| c.tensors == EXPERT_TENSORS) else { return };
        self.whole += 1;
        self.contiguous += u64::from(current.contiguous);
        if !self.sizes.contains(&current.bytes) {
            self.sizes.push(current.bytes);
        }
    }

    fn finish(mut self, config: &KimiK3Config) -> Experts {
        self.close();
        let layers = config.layers().saturating_sub(config.first_moe_layer);
        Experts {
            total: u64::from(layers) * u64::from(config.experts),
            per_layer: config.experts,
            per_token: config.ranks,
            shared: config.shared_experts,
            bytes_each: if let [only] = self.sizes.as_slice() { Some(*only) } else { None },
            whole: self.whole,
            contiguous: self.contiguous,
        }
    }
}

/// Tensors that a layer or an expert lacks while others of its kind have them. What all lack is not noticed.
pub(crate) fn gaps(checkpoint: &Checkpoint, config: &KimiK3Config) -> Vec<String> {
    let names: BTreeSet<&str> = checkpoint.names().collect();
    let (mut of_layers, mut of_experts) = (BTreeMap::<_, BTreeSet<&str>>::new(), BTreeSet::new());
    let mut start = None;
    for name in &names {
        let role = role(config, name);
        let Some((before, layer, rest)) = numbered(name, "layers.").filter(|_| role.class != NOT_USED) else {
            continue;
        };
        start = Some(before);
        if role.expert.is_some() {
            of_experts.extend(numbered(rest, "experts.").map(|(before, _, rest)| (before, rest)));
        } else {
            of_layers.entry(kind(config, layer, rest)).or_default().insert(rest);
        }
    }
    let Some(start) = start else { return Vec::new() };
    let mut gaps = Vec::new();
    let mut note = |name: String| {
        if !names.contains(name.as_str()) {
            gaps.push(name);
        }
    };
    for layer in 0..config.layers() {
        let of_kind =
            of_layers.iter().flat_map(|(kind_of, rests)| rests.iter().map(move |rest| (*kind_of, *rest)));
        for (_, rest) in of_kind.filter(|(kind_of, rest)| *kind_of == kind(config, layer, rest)) {
            note(format!("{start}layers.{layer}.{rest}"));
        }
        let experts = if layer < config.first_moe_layer { 0 } else { config.experts };
        for (expert, (before, rest)) in (0..experts).flat_map(|e| of_experts.iter().map(move |of| (e, *of))) {
            note(format!("{start}layers.{layer}.{before}experts.{expert}.{rest}"));
        }
    }
    gaps
}

/// Layers that have a tensor in common: those with the same attention, the same MLP, or all.
fn kind(config: &KimiK3Config, layer: u32, rest: &str) -> (&'static str, bool) {
    if rest.starts_with("self_attn.") {
        return ("attention", config.delta_layers.get(layer as usize).copied().unwrap_or_default());
    }
    let mlp = rest.starts_with("mlp.") || rest.starts_with("block_sparse_moe.");
    if mlp { ("mlp", layer < config.first_moe_layer) } else { ("all", true) }
}

/// What stands before `word`, the number after it, and what follows its dot.
fn numbered<'n>(name: &'n str, word: &str) -> Option<(&'n str, u32, &'n str)> {
    let (before, after) = name.split_once(word)?;
    let (number, rest) = after.split_once('.')?;
    Some((before, number.parse().ok()?, rest))
}
