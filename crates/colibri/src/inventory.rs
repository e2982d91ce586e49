//! What a checkpoint holds, counted by class of tensor. Reads no tensor and knows no tensor's name.
use models::Dense;
use models::kimi_k3::KimiK3Config;
use models::kimi_k3::names::{EXPERT_TENSORS, Stored, role};
use serde::Serialize;
use std::collections::BTreeMap;
use store::{Checkpoint, Entry, ExpertId, Packed};

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
            let packed = checkpoint.packed(name);
            let (parameters, packing) = match role.stored {
                Stored::Plain => packed.map_or((elements, entry.dtype.name()), parameters_of_packed),
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

/// Of a matrix that a container holds packed: its numbers, not its bytes.
fn parameters_of_packed(packed: &Packed) -> (u64, &'static str) {
    let name = Dense::named(&packed.packing).map_or("packed", Dense::name);
    (u64::from(packed.rows) * u64::from(packed.cols), name)
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
