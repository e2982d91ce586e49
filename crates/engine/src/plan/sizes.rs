//! What a model needs, item by item, whatever the memory there is. Chooses nothing.
use super::{CHUNKS, PlanError, Request, show_bytes};
use crate::rehearsal::{Rehearsed, rehearse};
use memory::SlabPlan;
use models::state::StateLayout;
use models::{Family, LoadOptions, Tally};
use ops::{LATENT_BLOCK, Ops, Usage};
use store::{Catalog, Checkpoint};

/// How few slots are still a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// Enough that reads and arithmetic overlap, or what was asked for if that is less.
    Useful,
    /// The least that works.
    OneSlot,
}

/// Rows of a step, once they are chosen.
pub(super) fn rows(request: &Request) -> u32 {
    request.chunk.unwrap_or(CHUNKS[CHUNKS.len() - 1])
}

/// What the model needs whatever the cache and the context.
#[derive(Clone)]
pub(super) struct Sizes {
    pub(super) dense: Tally,
    pub(super) layout: StateLayout,
    pub(super) arena: u64,
    pub(super) largest: u64,
    pub(super) tensors: u64,
    pub(super) slot: Option<(u64, u32)>,
    pub(super) experts_per_layer: u32,
    pub(super) ranks: u32,
    pub(super) copies: u64,
    pub(super) context_most: u32,
}

impl Sizes {
    pub(super) fn of(
        checkpoint: &Checkpoint,
        family: &Family,
        options: &LoadOptions,
        request: &Request,
        catalog: Option<&Catalog>,
    ) -> Result<Self, PlanError> {
        let (model, dense) = family.load(checkpoint, None, options, &mut |_| {})?;
        let Usage { arena, largest, .. } =
            rehearse(&*model, family, Rehearsed::full(rows(request)), Ops::rehearsal())?;
        let tensors = checkpoint.tensor_count() as u64;
        let slot = catalog.map(|c| (c.layout().slot_bytes(), c.experts()));
        let (layout, copies) = (model.state_layout().clone(), request.copies);
        let (ranks, experts_per_layer) = (family.config.ranks, family.config.experts);
        let context_most = family.config.context;
        Ok(Sizes {
            dense,
            layout,
            arena,
            largest,
            tensors,
            slot,
            experts_per_layer,
            ranks,
            copies,
            context_most,
        })
    }

    pub(super) fn items(
        &self,
        request: &Request,
        context: u32,
        slab: Option<&SlabPlan>,
    ) -> Vec<(String, u64)> {
        let (sequences, copies) = (u64::from(request.sequences), self.copies);
        let blocks = context.div_ceil(LATENT_BLOCK) * request.sequences;
        let mut items = vec![
            ("dense weights".to_owned(), self.dense.bytes() * copies),
            (
                format!("recurrent state, {sequences} x {}", show_bytes(self.layout.fixed_bytes())),
                self.layout.fixed_bytes() * sequences * copies,
            ),
            (
                format!("latent cache of {} positions", u64::from(blocks) * u64::from(LATENT_BLOCK)),
                self.layout.latent_bytes(blocks) * copies,
            ),
            ("tables of blocks and slots".to_owned(), self.table_bytes(blocks, slab) * copies),
            (format!("intermediate results of {} rows", rows(request)), self.arena * 4 * copies),
            ("copies while an op runs".to_owned(), self.largest * 4 * COPIES_OF_AN_OP * copies),
            ("buffers while loading".to_owned(), self.dense.buffers),
            (format!("names and places of {} tensors", self.tensors), self.tensors * BYTES_OF_A_TENSOR),
        ];
        if let Some(slab) = slab {
            items.push((format!("routed experts, {} slots", slab.slots()), slab.bytes_committed()));
        }
        items
    }

    /// Four bytes a block of every sequence, eight an expert: of one layer, or of all where all experts stay (which is
    /// also assumed before the slots are known).
    fn table_bytes(&self, blocks: u32, slab: Option<&SlabPlan>) -> u64 {
        let experts = match (self.slot, slab) {
            (None, _) => 0,
            (Some((_, experts)), Some(slab)) if slab.slots() < experts => self.experts_per_layer,
            (Some((_, experts)), _) => experts,
        };
        u64::from(blocks) * 4 + u64::from(experts) * 8
    }

    /// Bytes with the least slots of such a cache; `memory` is the machine's.
    pub(super) fn smallest(&self, request: &Request, context: u32, (cache, memory): (Cache, u64)) -> u64 {
        let rest: u64 = self.items(request, context, None).iter().map(|i| i.1).sum();
        rest + self.least_slots(request, (cache, memory)).map_or(0, |s| s.bytes_committed())
    }

    pub(super) fn least_slots(&self, request: &Request, (cache, memory): (Cache, u64)) -> Option<SlabPlan> {
        let (payload, experts) = self.slot?;
        let asked = request.expert_cache.and_then(|asked| asked.plan(payload, experts, memory).ok());
        let least = match cache {
            Cache::Useful => asked.map_or(experts, |plan| plan.slots()).min(self.ranks * 2),
            Cache::OneSlot => 1,
        };
        SlabPlan::new(least, payload).ok()
    }
}

/// The oracle's copies of an op's input and result, at most: as they are, prepared, by row, in order.
pub(super) const COPIES_OF_AN_OP: u64 = 4;

/// A tensor's name, place and shape, and its share of the sorted table, measured at half a million tensors.
const BYTES_OF_A_TENSOR: u64 = 250;
