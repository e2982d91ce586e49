//! What a step reads and how often it waits: counts, no times.
mod common;

use common::devices::{Controls, Rigged};
use common::{Setup, assert_same, part, some_ids};
use engine::Engine;
use models::{Logits, Output};

const MOE_LAYERS: u64 = 8;
/// The check of the rows after the last layer, and the logits.
const WAITS_AT_THE_END: u64 = 2;

/// One step in a fresh sequence that wants the last logits; with or without the picks of all layers.
fn step(engine: &mut Engine, ids: &[u32], taps: &[u32]) -> Output {
    let mut state = engine.create_state().unwrap();
    let mut part = part(&mut state, ids);
    (part.logits, part.taps) = (Logits::Last, taps);
    let output = engine.step(&mut [part]).unwrap().pop().unwrap().unwrap();
    common::release(engine, state);
    output
}

/// How many experts the tokens pick, each counted once a layer.
fn distinct_experts(ids: &[u32]) -> u64 {
    let layers: Vec<u32> = (0..9).collect();
    let output = step(&mut Setup::new().load(), ids, &layers);
    let distinct = |picks: &[u32]| picks.iter().collect::<std::collections::BTreeSet<_>>().len() as u64;
    output.taps.iter().map(|tap| distinct(&tap.picks)).sum()
}

/// Reads waited for and other waits since the counts `before`.
fn since(before: (u64, u64), controls: &Controls) -> (u64, u64) {
    let now = controls.waits();
    (now.0 - before.0, now.1 - before.1)
}

#[test]
fn each_expert_of_a_chunk_is_read_once_however_few_slots_there_are() {
    let ids = some_ids(3, 40);
    let distinct = distinct_experts(&ids);
    assert!(distinct > MOE_LAYERS * 24, "a chunk that needs many experts: {distinct}");
    let reference = step(&mut Setup::new().load(), &ids, &[]);
    for slots in [1, 2, 3, 31, 100] {
        let mut engine = Setup::new().slots(slots).load();
        let output = step(&mut engine, &ids, &[]);
        assert_same(
            &common::bits(&output.logits),
            &common::bits(&reference.logits),
            &format!("{slots} slots"),
        );
        let seen = engine.cache_statistics();
        assert_eq!((seen.reads, seen.misses, seen.hits), (distinct, distinct, 0), "{slots} slots");
        assert_eq!(seen.evictions, distinct.saturating_sub(slots.into()), "{slots} slots");
        assert_eq!((seen.lost_leases, seen.failed, seen.retries), (0, 0, 0), "{slots} slots");
    }
}

#[test]
fn resident_experts_are_neither_waited_for_nor_read() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().device(device).load();
    let loaded = engine.cache_statistics();
    assert_eq!((loaded.reads, engine.plan().experts), (256, 256));
    let before = controls.waits();
    step(&mut engine, &some_ids(3, 20), &[]);
    assert_eq!(since(before, &controls), (WAITS_AT_THE_END, 0));
    assert_eq!(engine.cache_statistics(), loaded);
}

#[test]
fn streamed_experts_cost_one_wait_a_layer() {
    // Room for all experts of the step, but not of the model.
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().slots(255).device(device).load();
    let ids = some_ids(3, 20);
    for turn in 0..2 {
        let before = controls.waits();
        step(&mut engine, &ids, &[]);
        assert_eq!(since(before, &controls), (MOE_LAYERS + WAITS_AT_THE_END, 0), "turn {turn}");
    }
    // The second time everything was there.
    let (seen, distinct) = (engine.cache_statistics(), distinct_experts(&ids));
    assert_eq!((seen.reads, seen.hits, seen.misses), (distinct, distinct, distinct));
}

#[test]
fn a_wave_costs_one_wait_for_slots() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().slots(1).device(device).load();
    let ids = some_ids(3, 1);
    let before = controls.waits();
    step(&mut engine, &ids, &[]);
    // One token picks four experts: after each but the last the slot is waited for. The layer's own wait for its picks
    // frees the slot for the first.
    assert_eq!(since(before, &controls), (MOE_LAYERS + WAITS_AT_THE_END, MOE_LAYERS * 3));
}

/// The planned bytes are what the device then holds; slots are adopted and counted apart.
#[test]
fn the_device_holds_what_was_planned() {
    for (slots, context) in [(None, 256), (Some(7), 100), (Some(1), 1), (None, 65)] {
        let (device, controls) = Rigged::new();
        let mut setup = Setup::new().device(device);
        setup.request.context = Some(context);
        if let Some(slots) = slots {
            setup = setup.slots(slots);
        }
        let mut engine = setup.load();
        let states: Vec<_> = (0..4).map(|_| engine.create_state().unwrap()).collect();
        let host_only = ["buffers while loading", "routed experts", "copies while", "names and places"];
        let on_device =
            engine.plan().items.iter().filter(|(what, _)| !host_only.iter().any(|h| what.starts_with(h)));
        let planned: u64 = on_device.map(|(_, bytes)| bytes).sum();
        let held = engine.states().1.memory().allocated;
        assert_eq!(held, planned, "{slots:?}, context {context}: {:#?}", engine.plan().items);
        // Nothing grows afterwards: not in a step, not in a reset.
        for mut state in states {
            common::feed(&mut engine, &mut state, &some_ids(1, 1)).unwrap();
            common::reset(&mut engine, &mut state);
        }
        assert_eq!(controls.lock().most_allocated, planned, "the most that was ever held");
    }
}

/// The rehearsed arena is the one that a full chunk with all logits takes.
#[test]
fn the_arena_is_as_large_as_planned() {
    for (chunk, slots) in [(1, None), (5, Some(3)), (32, None), (32, Some(255))] {
        let mut setup = Setup::new();
        setup.request.chunk = Some(chunk);
        if let Some(slots) = slots {
            setup = setup.slots(slots);
        }
        let mut engine = setup.load();
        common::alone(&mut engine, &some_ids(9, chunk as usize));
        assert_eq!(engine.usage().arena, engine.plan().arena, "chunk {chunk}, {slots:?}");
    }
}
