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

/// Bytes of all items. Sizes come from files, so that sums and products that no machine could hold stay at the largest number:
/// that is more than any memory, and refused as such.
pub(super) fn total(items: &[(String, u64)]) -> u64 {
    items.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
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
        let sequences = u64::from(request.sequences);
        let copied = |bytes: u64| bytes.saturating_mul(self.copies);
        let blocks = context.div_ceil(LATENT_BLOCK) * request.sequences;
        let mut items = vec![
            ("dense weights".to_owned(), copied(self.dense.bytes())),
            (
                format!("recurrent state, {sequences} x {}", show_bytes(self.layout.fixed_bytes())),
                copied(self.layout.fixed_bytes().saturating_mul(sequences)),
            ),
            (
                format!("latent cache of {} positions", u64::from(blocks) * u64::from(LATENT_BLOCK)),
                copied(self.layout.latent_bytes(blocks)),
            ),
            ("tables of blocks and slots".to_owned(), copied(self.table_bytes(blocks, slab))),
            (format!("intermediate results of {} rows", rows(request)), copied(self.arena.saturating_mul(4))),
            ("copies while an op runs".to_owned(), copied(self.largest.saturating_mul(4 * COPIES_OF_AN_OP))),
            ("buffers while loading".to_owned(), self.dense.buffers),
            (
                format!("names and places of {} tensors", self.tensors),
                self.tensors.saturating_mul(BYTES_OF_A_TENSOR),
            ),
        ];
        if let Some(slab) = slab {
            items.push((format!("routed experts, {} slots", slab.slots()), slab.bytes_committed()));
        }
        items
    }

    /// Four bytes a block of every sequence, and an entry for each expert: of one layer, or of all where all experts stay (which
    /// is not assumed before the slots are known).
    fn table_bytes(&self, blocks: u32, slab: Option<&SlabPlan>) -> u64 {
        let experts = match (self.slot, slab) {
            (None, _) => 0,
            (Some((_, experts)), Some(slab)) if slab.slots() >= experts => experts,
            (Some(_), _) => self.experts_per_layer,
        };
        u64::from(blocks) * 4 + u64::from(experts) * BYTES_OF_AN_ENTRY
    }

    /// What the tables take more where all experts stay.
    pub(super) fn tables_of_all(&self) -> u64 {
        let more = self.slot.map_or(0, |(_, experts)| experts.saturating_sub(self.experts_per_layer));
        self.copies.saturating_mul(u64::from(more) * BYTES_OF_AN_ENTRY)
    }

    /// Bytes with the least slots of such a cache; `memory` is the machine's.
    pub(super) fn smallest(&self, request: &Request, context: u32, (cache, memory): (Cache, u64)) -> u64 {
        total(&self.items(request, context, self.least_slots(request, (cache, memory)).as_ref()))
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

/// Of a table: where an expert is.
const BYTES_OF_AN_ENTRY: u64 = 8;

/// A tensor's name, place and shape, and its share of the sorted table, measured at half a million tensors.
const BYTES_OF_A_TENSOR: u64 = 250;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a file may claim: any number, and often one of the largest.
    fn bytes() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), u64::MAX - 9..=u64::MAX, 0..1_000_000_u64]
    }

    fn layout() -> impl Strategy<Value = StateLayout> {
        let field = prop::collection::vec((any::<u32>(), any::<u32>()), 0..40);
        (field.clone(), field).prop_map(|(fixed, latent)| {
            let mut layout = StateLayout::default();
            for (rows, cols) in fixed {
                layout.fixed(String::new(), rows, cols);
            }
            for (columns, rope) in latent {
                layout.latent(String::new(), columns, rope);
            }
            layout
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn sums_are_exact_or_the_largest_number(
            layout in layout(),
            numbers in prop::array::uniform6(bytes()),
            slot in prop::option::of((1..=memory::WINDOW_BYTES, any::<u32>())),
            (context, sequences, copies) in (1..=1_u32 << 20, 1..=1024_u32, 1..=2_u64),
        ) {
            let [weights, buffers, arena, largest, tensors, memory] = numbers;
            let rows = [(("kind", "f32"), (0, weights)), (("kind", "bf16"), (0, weights / 2))].into();
            let dense = Tally { rows, buffers, ..Tally::default() };
            let (experts_per_layer, ranks, context_most) = (896, 16, context);
            let sizes = Sizes {
                dense, layout, arena, largest, tensors, slot, experts_per_layer, ranks, copies, context_most,
            };
            let request = Request { sequences, copies, ..Request::default() };
            let items = sizes.items(&request, context, None);
            let exact: u128 = items.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
            prop_assert_eq!(u128::from(total(&items)), exact.min(u64::MAX.into()));
            for bytes in [weights, buffers, arena, largest, tensors] {
                prop_assert!(total(&items) >= bytes);
            }
            for cache in [Cache::Useful, Cache::OneSlot] {
                let slab = sizes.least_slots(&request, (cache, memory));
                let items = sizes.items(&request, context, slab.as_ref());
                let exact: u128 = items.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
                let smallest = sizes.smallest(&request, context, (cache, memory));
                prop_assert_eq!(u128::from(smallest), exact.min(u64::MAX.into()));
            }
            let exact = u128::from(weights) + u128::from(weights / 2);
            prop_assert_eq!(u128::from(items[0].1), (exact * u128::from(copies)).min(u64::MAX.into()));
        }
    }
}
