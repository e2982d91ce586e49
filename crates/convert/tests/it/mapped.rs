//! Weights that are mapped instead of read: the same bits, and a file that cannot be read is an error that names it, after which
//! everything goes on.
use crate::support::{converted, family, open, original};
use cpu::Cpu;
use engine::plan::Request;
use engine::{Engine, Limits, Plan, PlanError, Streaming, plan};
use memory::CacheSize;
use models::{Dense, Input, LoadOptions, Logits, Part, PartError, Residency, State};
use ops::testing::Late;
use ops::{Allowed, Checked, Device, Oracle};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PROMPT: [u32; 14] = [5, 900, 17, 3000, 44, 45, 46, 2, 1999, 812, 13, 77, 1, 4000];

fn planned(directory: &Path, dense: Option<Dense>, residency: Residency) -> Result<Plan, PlanError> {
    let checkpoint = open(directory);
    let request = Request {
        options: LoadOptions { residency, ..LoadOptions::default() },
        dense,
        context: Some(64),
        sequences: 2,
        chunk: Some(16),
        expert_cache: Some(CacheSize::Slots(40)),
        ..Request::default()
    };
    let limits = Limits { total: 8 << 30, available: 8 << 30 };
    plan(&checkpoint, &family(&checkpoint), &request, limits)
}

fn load(directory: &Path, residency: Residency, device: Box<dyn Device>) -> Engine {
    let checkpoint = open(directory);
    let plan = planned(directory, None, residency).unwrap();
    let streaming = Streaming::new(Arc::new(checkpoint.files()), 2);
    Engine::load(&checkpoint, &family(&checkpoint), plan, device, streaming, &mut |_| {}).unwrap()
}

fn cpu() -> Cpu {
    Cpu::new(2).unwrap()
}

fn devices() -> Vec<Box<dyn Device>> {
    let oracle = || Oracle::new(1).unwrap();
    let checked = Checked::new(oracle(), cpu(), Allowed::Nothing);
    vec![Box::new(oracle()), Box::new(cpu()), Box::new(Late::new(cpu(), 3)), Box::new(checked)]
}

/// Logits of the last of these tokens, or why there are none.
fn feed(engine: &mut Engine, state: &mut State, ids: &[u32]) -> Result<Vec<u32>, PartError> {
    let position = state.position();
    let part =
        Part { input: Input::Ids(ids), position, state, logits: Logits::Last, taps: &[], cancel: None };
    let output = engine.step(&mut [part]).unwrap().remove(0)?;
    Ok(output.logits.iter().map(|logit| logit.to_bits()).collect())
}

fn reset(engine: &mut Engine, state: &mut State) {
    let (pool, device) = engine.states();
    pool.reset(device, state).unwrap();
}

/// Logits of the prompt in two steps.
fn logits(engine: &mut Engine, state: &mut State) -> Vec<Vec<u32>> {
    reset(engine, state);
    let (first, second) = PROMPT.split_at(9);
    [first, second].map(|ids| feed(engine, state, ids).unwrap()).to_vec()
}

#[test]
fn mapped_weights_give_the_bits_of_loaded_ones_on_every_device() {
    for (dense, thin) in [(Dense::Int4, true), (Dense::Int8, false), (Dense::Bf16, false)] {
        let (_folder, place) = converted(dense, thin);
        let mut loaded = load(&place, Residency::Ram, Box::new(cpu()));
        let mut state = loaded.create_state().unwrap();
        let expected = logits(&mut loaded, &mut state);
        for device in devices() {
            let name = device.name().to_owned();
            let mut engine = load(&place, Residency::Mapped, device);
            let weights = &engine.plan().dense;
            assert!(
                weights.mapped > 2 * weights.bytes(),
                "{dense:?}: {} {}",
                weights.mapped,
                weights.bytes()
            );
            let mut state = engine.create_state().unwrap();
            assert_eq!(logits(&mut engine, &mut state), expected, "{dense:?}, {name}");
        }
    }
}

#[test]
fn the_plan_counts_mapped_weights_apart() {
    let (_folder, place) = converted(Dense::Int4, true);
    let plan = |residency| planned(&place, None, residency).unwrap();
    let (ram, mapped) = (plan(Residency::Ram), plan(Residency::Mapped));
    assert_eq!((ram.dense.mapped, ram.dense.bytes()), (0, mapped.dense.bytes() + mapped.dense.mapped));
    let (what, bytes) = &mapped.items[0];
    assert_eq!((&**what, *bytes), ("dense weights", mapped.dense.bytes()));
    assert!(mapped.bytes() < ram.bytes());
}

#[test]
fn slots_leave_room_for_mapped_weights_before_they_grow() {
    let (_folder, place) = converted(Dense::Int8, true);
    let checkpoint = open(&place);
    let slots = |residency, available| {
        let options = LoadOptions { residency, ..LoadOptions::default() };
        let request = Request { options, context: Some(64), chunk: Some(1), ..Request::default() };
        let limits = Limits { total: 0, available: available + (256 << 20) };
        let plan = plan(&checkpoint, &family(&checkpoint), &request, limits).unwrap();
        (plan.slab.unwrap(), plan.dense.mapped, plan.bytes())
    };
    let (slab, mapped, bytes) = slots(Residency::Mapped, 1 << 30);
    let all = slab.slots();
    assert_eq!(all, 256);
    assert_eq!(slots(Residency::Mapped, bytes + mapped).0.slots(), all, "there is room for both");
    let some = slots(Residency::Mapped, bytes + mapped / 2).0.slots();
    assert!(some < all && some > 8, "{some}");
    let room_for_twelve = bytes - (u64::from(all) - 12) * slab.slot_bytes();
    assert_eq!(slots(Residency::Mapped, room_for_twelve).0.slots(), 8, "the least that is a cache");
}

#[test]
fn what_does_not_lie_as_needed_is_refused_with_the_command() {
    let (_folder, stored) = converted(Dense::Bf16, false);
    for (place, dense, command) in [
        (&original(), None, "colibri convert --thin --dense int4 SRC DST"),
        (&original(), Some(Dense::Bf16), "colibri convert --dense bf16 SRC DST"),
        (&stored, Some(Dense::Int8), "colibri convert --thin --dense int8 SRC DST"),
    ] {
        let error = planned(place, dense, Residency::Mapped).unwrap_err().to_string();
        assert!(error.contains("--dense-residency mapped") && error.contains(command), "{error}");
    }
}

/// The longest file of a container.
fn largest(directory: &Path) -> PathBuf {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

#[test]
fn a_file_that_is_cut_off_fails_its_steps_by_name_and_nothing_else() {
    let (_folder, place) = converted(Dense::Int4, true);
    let file = largest(&place);
    let whole = fs::read(&file).unwrap();
    let mut other = load(&place, Residency::Ram, Box::new(cpu()));
    let mut others_state = other.create_state().unwrap();
    let expected = logits(&mut other, &mut others_state);
    for device in devices() {
        let name = device.name().to_owned();
        let mut engine = load(&place, Residency::Mapped, device);
        let (mut waits, mut works) = (engine.create_state().unwrap(), engine.create_state().unwrap());
        assert_eq!(feed(&mut engine, &mut waits, &PROMPT[..9]).unwrap(), expected[0], "{name}");

        OpenOptions::new().write(true).open(&file).unwrap().set_len(0).unwrap();
        for _ in 0..2 {
            let error = feed(&mut engine, &mut works, &PROMPT[..9]).unwrap_err();
            assert!(matches!(error, PartError::Weights { .. }), "{name}: {error}");
            assert!(error.to_string().contains(&*file.display().to_string()), "{name}: {error}");
            let error = feed(&mut engine, &mut works, &PROMPT[..9]).unwrap_err();
            assert!(matches!(error, PartError::NeedsRebuild), "{name}: {error}");
            reset(&mut engine, &mut works);
        }
        assert_eq!(logits(&mut other, &mut others_state), expected, "another model goes on");

        OpenOptions::new().write(true).open(&file).unwrap().write_all(&whole).unwrap();
        assert_eq!(logits(&mut engine, &mut works), expected, "{name}");
        assert_eq!(feed(&mut engine, &mut waits, &PROMPT[9..]).unwrap(), expected[1], "{name}");
    }
}
