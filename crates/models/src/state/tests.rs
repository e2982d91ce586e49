//! States of made-up layouts on the oracle: what only families without recurrent layers, or without a latent cache,
//! would show. The tiny model's own states are tested with its engine.
use super::*;
use ops::{Ops, Oracle};

const CONTEXT: u32 = 200;
const CAPACITY: Capacity = Capacity { context: CONTEXT, sequences: 3, positions: 2 * 256 };

/// Two latent caches, and a recurrent field on demand.
fn layout(recurrent: bool) -> StateLayout {
    let mut layout = StateLayout::default();
    layout.latent("layer 0 latent".into(), 5, 3);
    layout.latent("layer 1 latent".into(), 4, 0);
    if recurrent {
        layout.fixed("layer 2 state".into(), 3, 7);
    }
    layout
}

/// A pool for three sequences with blocks for two of 200 positions, with its device.
fn bench(layout: StateLayout) -> (StatePool, Ops) {
    let mut ops = Ops::new(Box::new(Oracle::new(1).unwrap()), 1 << 16).unwrap();
    let pool = StatePool::new(ops.device(), layout, [7; 32], CAPACITY).unwrap();
    (pool, ops)
}

/// The number at a position and column of a field's rows in a sequence of its own kind.
fn number(sequence: u32, position: u32, column: u32) -> f32 {
    (sequence * 100_000 + position * 10 + column) as f32
}

/// Goes on to a position with rows that say where they belong, as a step would.
fn go_on(pool: &mut StatePool, ops: &mut Ops, state: &mut State, sequence: u32, to: u32) {
    let (from, mark) = (state.position, ops.mark());
    pool.grow(ops.device(), state, to).unwrap();
    for index in 0..pool.layout().latent.len() {
        let LatentField { latent, rope, .. } = pool.layout().latent[index].clone();
        let rows = |first: u32, columns: u32| -> Vec<f32> {
            (from..to).flat_map(|p| (first..first + columns).map(move |c| number(sequence, p, c))).collect()
        };
        let values = ops.input(to - from, latent, &rows(0, latent)).unwrap();
        let keys = (rope > 0).then(|| ops.input(to - from, rope, &rows(latent, rope)).unwrap());
        ops.append_latent(values, keys, pool.latent_field(state, index), from);
    }
    ops.submit().unwrap();
    ops.release(mark);
    state.commit(to - from);
}

/// Every row of every cache is the one that was written.
fn check(pool: &StatePool, ops: &mut Ops, state: &State, sequence: u32) {
    for (index, field) in pool.layout().latent.iter().enumerate() {
        let columns = field.latent + field.rope;
        let rows = pool.latent_rows(ops.device(), state, index).unwrap();
        let expected: Vec<f32> =
            (0..state.position).flat_map(|p| (0..columns).map(move |c| number(sequence, p, c))).collect();
        assert_eq!(rows, expected, "{} up to {}", field.name, state.position);
    }
}

#[test]
fn without_recurrent_fields_a_state_can_go_back_anywhere() {
    let (mut pool, mut ops) = bench(layout(false));
    let mut state = pool.create(ops.device()).unwrap();
    let mut other = pool.create(ops.device()).unwrap();
    let all = pool.free_blocks();
    go_on(&mut pool, &mut ops, &mut state, 1, 60);
    go_on(&mut pool, &mut ops, &mut other, 2, 70);
    go_on(&mut pool, &mut ops, &mut state, 1, 200);
    for (position, blocks) in
        [(200, 4), (199, 4), (193, 4), (192, 3), (100, 2), (65, 2), (64, 1), (63, 1), (1, 1)]
    {
        pool.truncate(ops.device(), &mut state, position).unwrap();
        assert_eq!((state.position, state.blocks.len()), (position, blocks));
        assert_eq!(pool.free_blocks(), all - blocks as u32 - 2, "blocks past {position} are given back");
        check(&pool, &mut ops, &state, 1);
        check(&pool, &mut ops, &other, 2);
    }
    let error = pool.truncate(ops.device(), &mut state, 2).unwrap_err();
    assert!(matches!(error, StateError::NotReached { wanted: 2, stands: 1 }), "{error}");
    // And from there on again, over what was there before.
    go_on(&mut pool, &mut ops, &mut state, 1, 130);
    check(&pool, &mut ops, &state, 1);
    pool.truncate(ops.device(), &mut state, 0).unwrap();
    assert_eq!((state.position, pool.free_blocks()), (0, all - 2));
    check(&pool, &mut ops, &other, 2);
    pool.release(ops.device(), state).unwrap();
    pool.release(ops.device(), other).unwrap();
    assert_eq!(pool.free_blocks(), all);
}

#[test]
fn a_recurrent_field_names_itself_when_it_cannot_go_back() {
    let (mut pool, mut ops) = bench(layout(true));
    let mut state = pool.create(ops.device()).unwrap();
    go_on(&mut pool, &mut ops, &mut state, 1, 70);
    let error = pool.truncate(ops.device(), &mut state, 64).unwrap_err();
    let StateError::CannotRewind { wanted: 64, stands: 70, field } = &error else { panic!("{error}") };
    assert_eq!(field, "layer 2 state");
    assert_eq!((state.position, state.blocks.len()), (70, 2), "nothing has changed");
    check(&pool, &mut ops, &state, 1);
    pool.release(ops.device(), state).unwrap();
}

#[test]
fn a_spoiled_state_can_only_be_reset() {
    for recurrent in [false, true] {
        let (mut pool, mut ops) = bench(layout(recurrent));
        let mut state = pool.create(ops.device()).unwrap();
        go_on(&mut pool, &mut ops, &mut state, 1, 70);
        state.spoil();
        for refused in [
            pool.truncate(ops.device(), &mut state, 64).err(),
            pool.truncate(ops.device(), &mut state, 70).err(),
            pool.fork(ops.device(), &state).err(),
            pool.snapshot(ops.device(), &state).err(),
        ] {
            assert!(matches!(refused, Some(StateError::NeedsRebuild)), "{refused:?}");
        }
        pool.truncate(ops.device(), &mut state, 0).unwrap();
        assert_eq!((state.health, state.position), (Health::Ready, 0));
        go_on(&mut pool, &mut ops, &mut state, 3, 70);
        check(&pool, &mut ops, &state, 3);
        pool.release(ops.device(), state).unwrap();
    }
}

/// Forks and snapshots where one of the two kinds of fields is missing.
#[test]
fn every_kind_of_layout_is_copied() {
    let mut recurrent_only = StateLayout::default();
    recurrent_only.fixed("layer 0 state".into(), 2, 3);
    for layout in [layout(false), layout(true), recurrent_only, StateLayout::default()] {
        let (mut pool, mut ops) = bench(layout.clone());
        let mut state = pool.create(ops.device()).unwrap();
        go_on(&mut pool, &mut ops, &mut state, 1, 100);
        let fixed: Vec<u8> = (0..layout.fixed_bytes()).map(|b| b as u8).collect();
        ops.device().write(state.fixed, 0, &fixed).unwrap();
        let bytes = pool.snapshot(ops.device(), &state).unwrap();
        for restored in [false, true] {
            let copy = if restored {
                pool.restore(ops.device(), &bytes).unwrap()
            } else {
                pool.fork(ops.device(), &state).unwrap()
            };
            assert_eq!(pool.snapshot(ops.device(), &copy).unwrap(), bytes, "{layout:?}");
            check(&pool, &mut ops, &copy, 1);
            pool.release(ops.device(), copy).unwrap();
        }
        pool.release(ops.device(), state).unwrap();
    }
}

#[test]
fn states_and_blocks_are_as_many_as_planned() {
    let (mut pool, mut ops) = bench(layout(true));
    let mut states: Vec<State> = (0..3).map(|_| pool.create(ops.device()).unwrap()).collect();
    let error = pool.create(ops.device()).unwrap_err();
    assert!(matches!(error, StateError::TooMany { most: 3 }), "{error}");
    pool.grow(ops.device(), &mut states[0], CONTEXT).unwrap();
    pool.grow(ops.device(), &mut states[1], CONTEXT).unwrap();
    let error = pool.grow(ops.device(), &mut states[2], 1).unwrap_err();
    let StateError::Full { wanted: 1, reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("1 blocks of 64 positions are needed, 0 of"), "{error}");
    pool.release(ops.device(), states.remove(0)).unwrap();
    pool.grow(ops.device(), &mut states[1], 1).unwrap();
    assert!(pool.create(ops.device()).is_ok());
}
