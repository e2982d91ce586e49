//! What a sequence keeps: forks, snapshots, going back, growing and giving back, on the tiny model.
mod common;

use common::devices::{Rigged, Strike};
use common::{Setup, alone, assert_same, feed, part, release, reset, some_ids, step_bits};
use engine::Engine;
use models::{Dense, Health, Input, Logits, Part, PartError, State, StateError};
use ops::testing::Late;
use ops::{Activations, NUMERICS_VERSION, Oracle};
use store::{Checkpoint, testing};

/// Positions a latent block holds.
const BLOCK: u32 = 64;

/// An engine with room for `sequences` sequences of `context` positions.
fn engine(context: u32, sequences: u32) -> Engine {
    let mut setup = Setup::new();
    (setup.request.context, setup.request.sequences) = (Some(context), sequences);
    setup.load()
}

/// A state that has seen the ids.
fn state_of(engine: &mut Engine, ids: &[u32]) -> State {
    let mut state = engine.create_state().unwrap();
    go_on(engine, &mut state, ids);
    state
}

/// Feeds ids in steps of at most 64 and wants no logits.
fn go_on(engine: &mut Engine, state: &mut State, ids: &[u32]) {
    for ids in ids.chunks(64) {
        let quiet = Part { logits: Logits::None, ..part(state, ids) };
        engine.step(&mut [quiet]).unwrap().pop().unwrap().unwrap();
    }
}

fn fork(engine: &mut Engine, state: &State) -> Result<State, StateError> {
    let (pool, device) = engine.states();
    pool.fork(device, state)
}

fn snapshot(engine: &mut Engine, state: &State) -> Vec<u8> {
    let (pool, device) = engine.states();
    pool.snapshot(device, state).unwrap()
}

fn restore(engine: &mut Engine, bytes: &[u8]) -> Result<State, StateError> {
    let (pool, device) = engine.states();
    pool.restore(device, bytes)
}

fn truncate(engine: &mut Engine, state: &mut State, position: u32) -> Result<(), StateError> {
    let (pool, device) = engine.states();
    pool.truncate(device, state, position)
}

fn free_blocks(engine: &mut Engine) -> u32 {
    engine.states().0.free_blocks()
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut engine = engine(128, 4);
    for length in [0, 15, 100] {
        let (prefix, mine, yours) = (some_ids(1, length), some_ids(2, 4), some_ids(3, 3));
        let mut original = state_of(&mut engine, &prefix);
        let mut twin = fork(&mut engine, &original).unwrap();
        assert_eq!(twin.position(), length as u32);
        let mut parts = [part(&mut original, &mine), part(&mut twin, &yours)];
        let outcomes = step_bits(&mut engine, &mut parts).unwrap();
        for (outcome, rest) in outcomes.into_iter().zip([&mine, &yours]) {
            let mut fresh = state_of(&mut engine, &prefix);
            let expected = feed(&mut engine, &mut fresh, rest).unwrap();
            release(&mut engine, fresh);
            assert_same(&outcome.unwrap(), &expected, &format!("fork at {length}"));
        }
        release(&mut engine, original);
        release(&mut engine, twin);
    }
    assert_eq!(free_blocks(&mut engine), 8);
}

#[test]
fn a_fork_without_room_is_refused_and_takes_nothing() {
    let mut engine = engine(64, 1);
    let state = state_of(&mut engine, &some_ids(1, 3));
    let held = engine.states().1.memory().allocated;
    let error = fork(&mut engine, &state).unwrap_err();
    assert!(matches!(error, StateError::TooMany { most: 1 }), "{error}");
    assert_eq!((engine.states().1.memory().allocated, free_blocks(&mut engine)), (held, 0));
}

/// A snapshot is restored where it was made and in an engine that differs in everything but its identity.
#[test]
fn a_snapshot_is_as_good_as_the_state() {
    let mut here = engine(128, 4);
    let mut elsewhere = Setup::new().slots(9).device(Late::new(Oracle::new(1).unwrap(), 3)).load();
    let next = some_ids(2, 3);
    for length in [0, 15, 64, 100] {
        let mut state = state_of(&mut here, &some_ids(1, length));
        let bytes = snapshot(&mut here, &state);
        assert_eq!(bytes, snapshot(&mut here, &state), "looking changes nothing");
        let expected = feed(&mut here, &mut state, &next).unwrap();
        for engine in [&mut here, &mut elsewhere] {
            let mut restored = restore(engine, &bytes).unwrap();
            assert_eq!((restored.position(), restored.health()), (length as u32, Health::Ready));
            assert!(snapshot(engine, &restored) == bytes, "the snapshot of what was restored from {length}");
            assert_same(&feed(engine, &mut restored, &next).unwrap(), &expected, &format!("from {length}"));
            release(engine, restored);
        }
        release(&mut here, state);
    }
}

/// The words of the refusal; nothing is kept of a snapshot that is refused.
fn refusal(engine: &mut Engine, bytes: &[u8]) -> String {
    let before = (free_blocks(engine), engine.states().1.memory().allocated);
    let error = restore(engine, bytes).err().unwrap_or_else(|| panic!("{} bytes were taken", bytes.len()));
    assert_eq!((free_blocks(engine), engine.states().1.memory().allocated), before, "{error}");
    error.to_string()
}

#[test]
fn a_damaged_snapshot_is_refused_by_name() {
    let mut engine = engine(64, 2);
    let state = state_of(&mut engine, &some_ids(1, 1));
    let good = snapshot(&mut engine, &state);
    let reason = |place: usize| match place {
        0..8 => "do not begin like one",
        8..12 => "version",
        12..16 => "numerics",
        16..48 => "another model, packing or activations mode",
        48..52 => "expected for position",
        _ => "checksum",
    };
    let all = good.len();
    let places = (0..200).chain((200..all).step_by(997)).chain(all - 40..all);
    for place in places {
        let mut bytes = good.clone();
        bytes[place] ^= 1 << (place % 8);
        let text = refusal(&mut engine, &bytes);
        assert!(text.contains(reason(place)), "byte {place}: {text}");
    }
    for length in (0..100).chain([all / 2, all - 33, all - 32, all - 1]) {
        let text = refusal(&mut engine, &good[..length]);
        assert!(text.starts_with("not a usable snapshot: "), "{length} bytes: {text}");
    }
    let longer = [&good[..], &[0]].concat();
    assert!(refusal(&mut engine, &longer).contains("expected for position 1"));
    assert_eq!(restore(&mut engine, &good).unwrap().position(), 1);
}

/// Writes a number into the header and seals it anew, as another build would have made it.
fn resealed(good: &[u8], place: usize, number: u32) -> Vec<u8> {
    let mut bytes = good[..good.len() - 32].to_vec();
    bytes[place..place + 4].copy_from_slice(&number.to_le_bytes());
    let check = blake3::hash(&bytes);
    bytes.extend(check.as_bytes());
    bytes
}

#[test]
fn a_foreign_snapshot_is_refused_by_name() {
    let mut engine = engine(64, 2);
    let state = state_of(&mut engine, &some_ids(1, 1));
    let good = snapshot(&mut engine, &state);
    let text = refusal(&mut engine, &resealed(&good, 8, 2));
    assert!(text.contains("version 2 is not 1"), "{text}");
    let text = refusal(&mut engine, &resealed(&good, 12, NUMERICS_VERSION + 1));
    let versions = format!("made with numerics v{}, this is v{NUMERICS_VERSION}", NUMERICS_VERSION + 1);
    assert!(text.contains(&versions), "{text}");
    let text = refusal(&mut engine, &resealed(&good, 48, u32::MAX));
    assert!(text.contains("expected for position 4294967295"), "{text}");

    let others: [fn(&mut Setup); 4] = [
        |s| s.request.dense = Some(Dense::Int8),
        |s| s.request.options.activations = Activations::Exact,
        |s| s.request.options.layers = Some(8),
        |s| s.request.options.expert_top_p = 0.9,
    ];
    for change in others {
        let mut setup = Setup::new();
        change(&mut setup);
        let text = refusal(&mut setup.load(), &good);
        assert!(text.contains("another model, packing or activations mode"), "{text}");
    }
}

/// The same files elsewhere are the same model; one with the same config and sizes but other weights is another.
#[test]
fn a_snapshot_of_other_weights_is_refused() {
    let mut here = engine(64, 2);
    let state = state_of(&mut here, &some_ids(1, 1));
    let good = snapshot(&mut here, &state);
    let directory = tempfile::tempdir().unwrap();
    testing::copy_model(&common::data("k3-tiny"), directory.path()).unwrap();
    let load = || {
        let checkpoint = Checkpoint::open(&[directory.path().to_owned()]).unwrap();
        let (setup, reader) = (Setup::new(), common::readers::plain(&checkpoint));
        common::engine_with(&checkpoint, &setup.request, setup.device, engine::Streaming::new(reader, 2))
    };
    assert_eq!(restore(&mut load(), &good).unwrap().position(), 1);
    for name in ["layers.3.self_attn.o_proj.weight", "layers.7.block_sparse_moe.experts.0.w2.weight_packed"] {
        let name = format!("language_model.model.{name}");
        let shard = directory.path().join(testing::shard_of(directory.path(), &name).unwrap());
        let change = |tensors: &mut Vec<testing::PlainTensor>| {
            tensors.iter_mut().find(|t| t.name == name).unwrap().bytes[10] ^= 1;
        };
        testing::edit_shard(&shard, change).unwrap();
        let text = refusal(&mut load(), &good);
        assert!(text.contains("another model"), "{name}: {text}");
        testing::edit_shard(&shard, change).unwrap();
    }
    assert_eq!(restore(&mut load(), &good).unwrap().position(), 1);
}

#[test]
fn a_snapshot_longer_than_the_context_is_refused() {
    let (mut large, mut small) = (engine(128, 1), engine(64, 4));
    let state = state_of(&mut large, &some_ids(1, 65));
    let bytes = snapshot(&mut large, &state);
    let text = refusal(&mut small, &bytes);
    assert!(text.contains("no room for position 65") && text.contains("--context"), "{text}");
}

#[test]
fn going_back_is_possible_to_nowhere_and_to_the_start() {
    let mut engine = engine(128, 2);
    let ids = some_ids(1, 15);
    let mut state = state_of(&mut engine, &ids);
    truncate(&mut engine, &mut state, 15).unwrap();
    assert_eq!(state.position(), 15);
    for wanted in [1, 14] {
        let error = truncate(&mut engine, &mut state, wanted).unwrap_err();
        let StateError::CannotRewind { stands: 15, field, .. } = &error else { panic!("{error:?}") };
        assert_eq!(field, "layer 0 q window");
        assert!(error.to_string().contains("layer 0 q window is recurrent"), "{error}");
    }
    let error = truncate(&mut engine, &mut state, 16).unwrap_err();
    assert!(matches!(error, StateError::NotReached { wanted: 16, stands: 15 }), "{error:?}");
    let next = some_ids(2, 2);
    let continued = feed(&mut engine, &mut state, &next).unwrap();
    let expected = alone(&mut engine, &[&ids[..], &next].concat());
    assert_same(&continued, &expected[15 * 4096..], "after refusals");
    truncate(&mut engine, &mut state, 0).unwrap();
    assert_eq!((state.position(), free_blocks(&mut engine)), (0, 4));
    assert_same(&feed(&mut engine, &mut state, &ids).unwrap(), &expected[..15 * 4096], "from the start");
}

#[test]
fn growing_moves_nothing() {
    let mut engine = engine(128, 2);
    let ids = some_ids(1, 15);
    let mut state = state_of(&mut engine, &ids);
    // Another sequence takes the next block, so that this one's blocks do not lie side by side.
    let other = state_of(&mut engine, &ids);
    let before = snapshot(&mut engine, &state);
    let field = |engine: &mut Engine, state: &State| {
        let fixed = engine.states().0.fixed_field(state, 0);
        (fixed, engine.states().0.latent_field(state, 2))
    };
    let places = field(&mut engine, &state);
    let (pool, device) = engine.states();
    pool.grow(device, &mut state, 128).unwrap();
    assert_eq!(field(&mut engine, &state), places);
    assert!(snapshot(&mut engine, &state) == before);
    let mut fed_as_it_grows = other;
    let next = some_ids(2, 52);
    let grown = feed(&mut engine, &mut state, &next).unwrap();
    assert_same(
        &grown,
        &feed(&mut engine, &mut fed_as_it_grows, &next).unwrap(),
        "grown before and while fed",
    );
}

/// Three sequences whose blocks lie between each other's.
#[test]
fn sequences_that_grow_in_turns_stay_apart() {
    let mut engine = engine(128, 3);
    let ids: Vec<Vec<u32>> = (0..3).map(|i| some_ids(20 + i, 80)).collect();
    let mut states: Vec<State> = (0..3).map(|_| engine.create_state().unwrap()).collect();
    // By these lengths, so that blocks are taken in another order than states were made.
    for lengths in [[15, 60, 30], [60, 64, 64], [76, 76, 76]] {
        for (i, length) in lengths.into_iter().enumerate() {
            let position = states[i].position() as usize;
            go_on(&mut engine, &mut states[i], &ids[i][position..length]);
        }
    }
    for (mut state, ids) in states.into_iter().zip(&ids) {
        let grown = feed(&mut engine, &mut state, &ids[76..]).unwrap();
        release(&mut engine, state);
        let mut fresh = state_of(&mut engine, &ids[..76]);
        assert_same(&grown, &feed(&mut engine, &mut fresh, &ids[76..]).unwrap(), "a sequence alone");
        release(&mut engine, fresh);
    }
    assert_eq!(free_blocks(&mut engine), 6);
}

#[test]
fn a_range_is_cleared_and_no_more() {
    let mut engine = engine(128, 2);
    let state = state_of(&mut engine, &some_ids(1, 70));
    let rows = |engine: &mut Engine, field| {
        let (pool, device) = engine.states();
        pool.latent_rows(device, &state, field).unwrap()
    };
    let before: Vec<_> = (0..3).map(|field| rows(&mut engine, field)).collect();
    let (pool, device) = engine.states();
    pool.clear(device, &state, 10, 66).unwrap();
    pool.clear(device, &state, 3, 3).unwrap();
    for (field, before) in before.iter().enumerate() {
        let after = rows(&mut engine, field);
        assert_eq!(after.len(), 70 * 80);
        for (position, (after, before)) in after.chunks(80).zip(before.chunks(80)).enumerate() {
            let cleared = (10..66).contains(&position);
            assert!(before.iter().any(|v| *v != 0.0));
            assert!(
                if cleared { after.iter().all(|v| *v == 0.0) } else { after == before },
                "{field}, {position}"
            );
        }
    }
    assert_eq!(state.position(), 70);
}

#[test]
fn what_was_reset_is_as_new() {
    let mut engine = engine(128, 1);
    let ids = some_ids(1, 70);
    let mut state = state_of(&mut engine, &some_ids(5, 100));
    reset(&mut engine, &mut state);
    assert_eq!((state.position(), free_blocks(&mut engine)), (0, 2));
    let empty = snapshot(&mut engine, &state);
    go_on(&mut engine, &mut state, &ids[..66]);
    let again = feed(&mut engine, &mut state, &ids[66..]).unwrap();
    reset(&mut engine, &mut state);
    assert!(snapshot(&mut engine, &state) == empty);
    let mut other = Setup::new().load();
    let mut fresh = state_of(&mut other, &ids[..66]);
    assert_same(&again, &feed(&mut other, &mut fresh, &ids[66..]).unwrap(), "a fresh one");
}

#[test]
fn a_full_context_concerns_one_part() {
    let mut engine = engine(64, 2);
    let (ids, other) = (some_ids(1, 60), some_ids(2, 3));
    let expected = alone(&mut engine, &other);
    let mut full = state_of(&mut engine, &ids);
    let mut free = engine.create_state().unwrap();
    let rest = some_ids(3, 5);
    let mut parts = [part(&mut full, &rest), part(&mut free, &other)];
    let mut outcomes = step_bits(&mut engine, &mut parts).unwrap();
    assert_same(&outcomes.pop().unwrap().unwrap(), &expected, "the other part");
    let error = outcomes.pop().unwrap().unwrap_err();
    let PartError::ContextFull { wanted: 65, reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("planned for 64 positions") && reason.contains("--context"), "{error}");
    assert_eq!((full.position(), full.health()), (60, Health::Ready));
    feed(&mut engine, &mut full, &rest[..4]).unwrap();
}

#[test]
fn only_as_many_sequences_as_planned_are_alive() {
    let mut engine = engine(128, 2);
    let ids = some_ids(1, 65);
    let (first, second) = (state_of(&mut engine, &ids), state_of(&mut engine, &ids));
    assert_eq!(free_blocks(&mut engine), 0);
    let error = engine.create_state().unwrap_err();
    assert!(matches!(error, StateError::TooMany { most: 2 }), "{error}");
    release(&mut engine, first);
    let mut third = engine.create_state().unwrap();
    let logits = feed(&mut engine, &mut third, &ids[..4]).unwrap();
    release(&mut engine, second);
    release(&mut engine, third);
    assert_eq!(free_blocks(&mut engine), 4);
    assert_same(&alone(&mut Setup::new().load(), &ids[..4]), &logits, "in blocks that came back");
}

/// Every sequence that was planned has its whole context, also where that is no whole number of blocks.
#[test]
fn all_sequences_have_their_context() {
    let mut engine = engine(100, 3);
    let mut states: Vec<State> = (0..3).map(|_| engine.create_state().unwrap()).collect();
    let (pool, device) = engine.states();
    for state in &mut states {
        pool.grow(device, state, 100).unwrap();
    }
    assert_eq!(pool.free_blocks(), 3 * 100u32.div_ceil(BLOCK) - 6);
}

/// A state that could not grow, be copied or be reset keeps or gives back what it holds, and the next try is right.
#[test]
fn a_failure_of_the_device_outside_a_step_loses_nothing() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().device(device).load();
    let ids = some_ids(1, 68);
    let mut state = state_of(&mut engine, &ids[..5]);
    let held = |engine: &mut Engine| (free_blocks(engine), engine.states().1.memory().allocated);
    let before = held(&mut engine);

    controls.strike("write", 0, Strike::Fail);
    let (pool, device) = engine.states();
    let error = pool.grow(device, &mut state, 65).unwrap_err();
    assert!(matches!(error, StateError::Device(_)), "{error:?}");
    assert_eq!((held(&mut engine), state.health()), (before, Health::Ready));

    // The recurrent part is copied first, then the rows of each latent cache.
    for copy in 0..3 {
        controls.strike("copy bytes", copy, Strike::Fail);
        let error = fork(&mut engine, &state).unwrap_err();
        assert!(matches!(error, StateError::Device(_)), "{error:?}");
        assert!(controls.has_struck() && held(&mut engine) == before, "copy {copy}");
    }
    go_on(&mut engine, &mut state, &ids[5..66]);
    let rest = feed(&mut engine, &mut state, &ids[66..]).unwrap();
    let mut other = Setup::new().load();
    let mut fresh = state_of(&mut other, &ids[..66]);
    assert_same(&rest, &feed(&mut other, &mut fresh, &ids[66..]).unwrap(), "after failures");

    for write in 0..2 {
        controls.strike("write", write, Strike::Fail);
        let (pool, device) = engine.states();
        pool.reset(device, &mut state).unwrap_err();
        assert!(controls.has_struck());
        assert_eq!(state.health(), Health::NeedsRebuild, "write {write}");
    }
    reset(&mut engine, &mut state);
    assert_same(
        &feed(&mut engine, &mut state, &ids[..2]).unwrap(),
        &alone(&mut other, &ids[..2]),
        "after resets",
    );
}

/// Rows of another width and layers that are not there are refused before anything is computed.
#[test]
fn a_part_is_refused_for_rows_and_layers_that_cannot_be() {
    let mut engine = engine(64, 1);
    let mut state = engine.create_state().unwrap();
    let (ids, rows) = (some_ids(1, 2), vec![0.0; 193]);
    let mut refused = |input: Input<'_>, taps: &[u32]| {
        let mut part = part(&mut state, &ids);
        (part.input, part.taps) = (input, taps);
        engine.step(&mut [part]).unwrap().pop().unwrap().unwrap_err()
    };
    let error = refused(Input::Rows(&rows), &[]);
    assert!(matches!(error, PartError::Width { numbers: 193, width: 192 }), "{error}");
    let error = refused(Input::Ids(&ids), &[0, 9]);
    assert!(matches!(error, PartError::UnknownLayer { layer: 9, last: 8 }), "{error}");
    assert_eq!((state.position(), state.health()), (0, Health::Ready));
    feed(&mut engine, &mut state, &ids).unwrap();
}

#[test]
fn a_part_must_begin_where_its_state_stands() {
    let mut engine = engine(64, 1);
    let ids = some_ids(1, 4);
    let mut state = state_of(&mut engine, &ids[..3]);
    let mut wrong = part(&mut state, &ids[3..]);
    wrong.position = 2;
    let error = engine.step(&mut [wrong]).unwrap().pop().unwrap().unwrap_err();
    assert!(matches!(error, PartError::Position { asked: 2, stands: 3 }), "{error:?}");
    let error = feed(&mut engine, &mut state, &[]).unwrap_err();
    assert!(matches!(error, PartError::Empty), "{error:?}");
    let error = feed(&mut engine, &mut state, &[7, 4096]).unwrap_err();
    assert!(matches!(error, PartError::UnknownToken { id: 4096, vocabulary: 4096 }), "{error:?}");
    assert_eq!(state.health(), Health::Ready);
    feed(&mut engine, &mut state, &ids[3..]).unwrap();
    let error = step_bits(&mut engine, &mut [part(&mut state, &some_ids(1, 65))]).unwrap_err();
    assert!(error.to_string().contains("a step of 65 rows was asked for, 64 were planned"), "{error}");
    assert_eq!(state.health(), Health::Ready);
}
