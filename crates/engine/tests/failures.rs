//! A step commits per part or not at all: faults of the disk, of the numbers, of the device and of patience, in every
//! layer in turn, with three parts in the batch.
mod common;

use common::devices::{Controls, Rigged, Strike};
use common::readers::{Changed, Switch, embedding, extent, piece, plain};
use common::{Setup, alone, assert_same, feed, part, reset, some_ids, step_bits, tiny};
use engine::{Engine, EngineError, Streaming};
use models::{Health, LookAhead, Part, PartError, State, StepError};
use ops::testing::{Call, Failing, Late};
use ops::{DeviceError, Oracle};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::cache::{CacheError, ExpertError};
use store::faulty_reader::{FaultyReader, FilesThrough, Gate};
use store::reader::ReadError;
use store::{Checkpoint, Reader};

const LAYERS: u32 = 9;
/// Tokens before the faulty step, and in it, of the three parts.
const BEFORE: usize = 2;
const IN_STEP: [usize; 3] = [1, 4, 2];
/// The part that is meant to fail; it lies between the others.
const VICTIM: usize = 1;
/// So few that no layer's experts are still there when its turn comes again.
const SLOTS: u32 = 24;

/// Everything that stays the same over the faults of one test.
struct Bench {
    engine: Engine,
    checkpoint: Checkpoint,
    disk: Arc<Switch>,
    /// Below everything but the experts; in a step these are the embeddings.
    embeddings: Arc<Switch>,
    controls: Controls,
    ids: [Vec<u32>; 3],
    states: [State; 3],
    /// All logits of the three sequences alone.
    references: [Vec<u32>; 3],
    /// For each part and layer, the experts picked in the step.
    picks: [Vec<Vec<u32>>; 3],
}

type Outcomes = Vec<Result<Vec<u32>, PartError>>;

impl Bench {
    /// `slots`: None keeps all experts resident.
    fn new(slots: Option<u32>) -> Self {
        Self::with(slots, LookAhead::Off)
    }

    fn with(slots: Option<u32>, look_ahead: LookAhead) -> Self {
        let checkpoint = tiny();
        let disk = Switch::new(plain(&checkpoint));
        let embeddings = Switch::new(plain(&checkpoint));
        let (device, controls) = Rigged::new();
        // Under which no expert of few slots is there again.
        let policy = "lru".parse().unwrap();
        let mut setup =
            Setup { look_ahead, ..Setup::new().device(device).reader(disk.clone()).policy(policy) };
        let files = FilesThrough::new(checkpoint.files(), embeddings.clone());
        setup.checkpoint = Checkpoint::from_files(files).unwrap();
        if let Some(slots) = slots {
            setup = setup.slots(slots);
        }
        let mut engine = setup.load();
        let ids = [0, 1, 2].map(|i| some_ids(i as u64 + 11, BEFORE + IN_STEP[i]));
        let references = [0, 1, 2].map(|i: usize| alone(&mut engine, &ids[i]));
        let picks = [0, 1, 2].map(|i: usize| picks_of_step(&mut engine, &ids[i]));
        let states = [0, 1, 2].map(|_| engine.create_state().unwrap());
        Bench { engine, checkpoint, disk, embeddings, controls, ids, states, references, picks }
    }

    /// Starts all over and feeds the tokens before the step.
    fn begin(&mut self) {
        self.disk.set(plain(&self.checkpoint));
        for (state, ids) in self.states.iter_mut().zip(&self.ids) {
            reset(&mut self.engine, state);
            feed(&mut self.engine, state, &ids[..BEFORE]).unwrap();
        }
    }

    /// The step of all three parts.
    fn step(&mut self, cancel: [Option<&AtomicBool>; 3]) -> Result<Outcomes, StepError> {
        let mut parts: Vec<_> =
            self.states.iter_mut().zip(&self.ids).map(|(state, ids)| part(state, &ids[BEFORE..])).collect();
        for (part, cancel) in parts.iter_mut().zip(cancel) {
            part.cancel = cancel;
        }
        step_bits(&mut self.engine, &mut parts)
    }

    /// The logits that a part has alone in the step.
    fn expected(&self, part: usize) -> &[u32] {
        &self.references[part][BEFORE * 4096..]
    }

    /// Parts in `failing` fail as `named` says, the others are right; after a reset the failed ones are as new.
    fn check(
        &mut self,
        outcomes: Outcomes,
        failing: &[usize],
        what: &str,
        named: &dyn Fn(&PartError) -> bool,
    ) {
        for (i, outcome) in outcomes.into_iter().enumerate() {
            let what = format!("{what}, part {i}");
            if !failing.contains(&i) {
                assert_same(&outcome.unwrap_or_else(|e| panic!("{what}: {e}")), self.expected(i), &what);
                assert_eq!(self.states[i].position() as usize, self.ids[i].len(), "{what}");
                continue;
            }
            let error = outcome.expect_err(&what);
            assert!(named(&error), "{what}: {error:?}");
            assert_eq!(self.states[i].position() as usize, BEFORE, "{what}: nothing is committed");
        }
        self.check_recovery(failing, what);
    }

    fn check_recovery(&mut self, failing: &[usize], what: &str) {
        self.disk.set(plain(&self.checkpoint));
        for &i in failing {
            assert_eq!(self.states[i].health(), Health::NeedsRebuild, "{what}, part {i}");
            let refused = feed(&mut self.engine, &mut self.states[i], &self.ids[i][BEFORE..]);
            assert!(matches!(refused, Err(PartError::NeedsRebuild)), "{what}: {refused:?}");
            reset(&mut self.engine, &mut self.states[i]);
            let again = feed(&mut self.engine, &mut self.states[i], &self.ids[i]).unwrap();
            assert_same(&again, &self.references[i], &format!("{what}, part {i} after its reset"));
        }
    }

    /// An expert of a layer that the victim picked and no other part.
    fn only_the_victims(&self, layer: u32) -> u32 {
        let picked = |part: usize, e: u32| self.picks[part][layer as usize].contains(&e);
        let only = (0..32).find(|&e| picked(VICTIM, e) && !picked(0, e) && !picked(2, e));
        only.expect("with 16 picks of 32 experts one is the victim's alone")
    }

    /// Parts that picked any of the experts.
    fn parts_with(&self, layer: u32, experts: &[u32]) -> Vec<usize> {
        let picks = |part: usize| &self.picks[part][layer as usize];
        (0..3).filter(|&part| experts.iter().any(|e| picks(part).contains(e))).collect()
    }

    fn faulty(&self) -> FaultyReader {
        FaultyReader::new(plain(&self.checkpoint), 1)
    }

    /// One step with a fault of the disk that hits the embeddings of `tokens`. Nothing has been computed for the parts
    /// that fail, so they go on from where they stand.
    fn embedding_fault(
        &mut self,
        tokens: impl Fn(u32) -> bool,
        fault: Arc<dyn Reader>,
        named: &dyn Fn(&ReadError) -> bool,
    ) {
        self.begin();
        self.embeddings.set(fault);
        let outcomes = self.step([None; 3]).unwrap();
        self.embeddings.set(plain(&self.checkpoint));
        for (i, outcome) in outcomes.into_iter().enumerate() {
            let ids = &self.ids[i][BEFORE..];
            let Some(&bad) = ids.iter().find(|id| tokens(**id)) else {
                assert_same(&outcome.unwrap(), self.expected(i), &format!("part {i}"));
                continue;
            };
            let error = outcome.expect_err(&format!("part {i}"));
            let PartError::Embedding { id, source } = &error else { panic!("part {i}: {error:?}") };
            assert!(*id == bad && named(source), "part {i}: {error:?}");
            assert_eq!(
                (self.states[i].position() as usize, self.states[i].health()),
                (BEFORE, Health::Ready)
            );
            let again = feed(&mut self.engine, &mut self.states[i], ids).unwrap();
            assert_same(&again, self.expected(i), &format!("part {i} once its embeddings are there"));
        }
    }

    /// One step with a fault of the disk that hits these experts of a layer.
    fn disk_fault(
        &mut self,
        (layer, experts): (u32, &[u32]),
        fault: Arc<dyn Reader>,
        what: &str,
        named: &dyn Fn(&ExpertError) -> bool,
    ) {
        let what = format!("{what} in layer {layer}");
        self.begin();
        self.disk.set(fault);
        let failing = self.parts_with(layer, experts);
        assert!(failing.contains(&VICTIM), "{what}");
        let outcomes = self.step([None; 3]).unwrap();
        self.check(outcomes, &failing, &what, &|error| {
            let PartError::Expert(error) = error else { return false };
            let id = error.id();
            u32::from(id.layer) == layer && experts.contains(&u32::from(id.expert)) && named(error)
        });
    }
}

/// For each layer the experts that the tokens of the step pick.
fn picks_of_step(engine: &mut Engine, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut state = engine.create_state().unwrap();
    let layers: Vec<u32> = (0..LAYERS).collect();
    let mut part = part(&mut state, ids);
    part.taps = &layers;
    let output = engine.step(&mut [part]).unwrap().pop().unwrap().unwrap();
    common::release(engine, state);
    output.taps.iter().map(|tap| tap.picks.get(BEFORE * 4..).unwrap_or_default().to_vec()).collect()
}

#[test]
fn a_read_error_that_stays() {
    let mut bench = Bench::new(Some(SLOTS));
    for layer in 1..LAYERS {
        let expert = bench.only_the_victims(layer);
        let (file, bytes) = extent(&bench.checkpoint, layer, expert);
        let fault = Arc::new(bench.faulty().failing(file, bytes));
        bench.disk_fault((layer, &[expert]), fault, "EIO", &|error| {
            matches!(error, ExpertError::Read { source, .. } if matches!(**source, ReadError::Failed { attempts: 4, .. }))
        });
    }
}

#[test]
fn a_read_error_of_an_expert_that_two_parts_share() {
    let mut bench = Bench::new(Some(SLOTS));
    let shared = (1..LAYERS).find_map(|layer| {
        let experts = (0..32).find(|&e| bench.parts_with(layer, &[e]) == [0, VICTIM])?;
        Some((layer, experts))
    });
    let (layer, expert) = shared.expect("some expert is picked by two parts");
    let (file, bytes) = extent(&bench.checkpoint, layer, expert);
    let fault = Arc::new(bench.faulty().failing(file, bytes));
    bench.disk_fault((layer, &[expert]), fault, "EIO", &|error| matches!(error, ExpertError::Read { .. }));
}

#[test]
fn a_read_error_that_passes_is_not_noticed() {
    let mut bench = Bench::new(Some(SLOTS));
    for layer in 1..LAYERS {
        let expert = bench.only_the_victims(layer);
        let (file, bytes) = extent(&bench.checkpoint, layer, expert);
        bench.begin();
        let retries = bench.engine.cache_statistics().retries;
        bench.disk.set(Arc::new(bench.faulty().failing_once(file, bytes)));
        let outcomes = bench.step([None; 3]).unwrap();
        bench.check(outcomes, &[], "EIO once", &|_| false);
        assert_eq!(bench.engine.cache_statistics().retries, retries + 1, "layer {layer}");
    }
}

#[test]
fn faults_of_the_disk_below_the_embeddings() {
    let mut bench = Bench::new(None);
    let token = bench.ids[VICTIM][BEFORE + 1];
    let (file, bytes) = embedding(&bench.checkpoint, token);
    let passing = Arc::new(bench.faulty().failing_once(file, bytes.clone()));
    bench.embedding_fault(|_| false, passing.clone(), &|_| false);
    let tries = passing.calls().iter().filter(|call| **call == (file, bytes.start)).count();
    assert_eq!(tries, 2, "the fault has struck");
    let lasting = Arc::new(bench.faulty().failing(file, bytes.clone()));
    bench.embedding_fault(
        |id| id == token,
        lasting,
        &|error| matches!(error, ReadError::Failed { offset, attempts: 4, .. } if *offset == bytes.start),
    );
    let (first, row) = (*bench.ids[VICTIM][BEFORE..].iter().max().unwrap(), bytes.end - bytes.start);
    let (_, cut) = embedding(&bench.checkpoint, first);
    let ending = Arc::new(bench.faulty().truncated(file, cut.end - 1));
    bench.embedding_fault(|id| id >= first, ending, &|error| {
        let ReadError::Truncated { file, bytes, .. } = error else { return false };
        file.ends_with("model-00010-of-000012.safetensors") && *bytes == row
    });
}

/// A file that ends early: everything behind the cut is missing.
#[test]
fn a_file_that_was_cut_off() {
    let mut bench = Bench::new(Some(SLOTS));
    let mut survivors = 0;
    for layer in 1..LAYERS {
        let expert = bench.only_the_victims(layer);
        let (file, Range { start, end }) = extent(&bench.checkpoint, layer, expert);
        let behind = |&e: &u32| extent(&bench.checkpoint, layer, e).1.start >= start;
        let missing: Vec<u32> = (0..32).filter(behind).collect();
        survivors += 3 - bench.parts_with(layer, &missing).len();
        let fault = Arc::new(bench.faulty().truncated(file, end - 1));
        bench.disk_fault((layer, &missing), fault, "truncated file", &|error| {
            matches!(error, ExpertError::Read { source, .. } if matches!(**source, ReadError::Truncated { .. }))
        });
    }
    assert!(survivors > 0, "some part has no expert behind some cut");
}

#[test]
fn a_scale_that_is_not_a_number() {
    let mut bench = Bench::new(Some(SLOTS));
    for layer in 1..LAYERS {
        let expert = bench.only_the_victims(layer);
        let name = ["w1.weight_scale", "w2.weight_scale", "w3.weight_scale"][layer as usize % 3];
        let (file, bytes) = piece(&bench.checkpoint, layer, expert, name);
        let reader = plain(&bench.checkpoint);
        let fault = Arc::new(Changed { reader, file, place: bytes.end - 1, byte: 255 });
        bench.disk_fault((layer, &[expert]), fault, "scale 255", &|error| {
            matches!(error, ExpertError::ForbiddenByte { piece, byte: 255, offset, .. } if piece == name && *offset == bytes.end - 1)
        });
    }
}

/// Where everything is resident the same faults are found while loading.
#[test]
fn faults_of_the_disk_while_all_experts_are_loaded() {
    let checkpoint = tiny();
    let (file, bytes) = extent(&checkpoint, 5, 17);
    let faulty = || FaultyReader::new(plain(&checkpoint), 1);
    let (scale_file, scale) = piece(&checkpoint, 8, 31, "w2.weight_scale");
    let changed = Changed { reader: plain(&checkpoint), file: scale_file, place: scale.start, byte: 255 };
    let readers: [(Arc<dyn Reader>, &str); 3] = [
        (Arc::new(faulty().failing(file, bytes.clone())), "layer 5 expert 17"),
        (Arc::new(faulty().truncated(file, bytes.end - 1)), "could not be read"),
        (Arc::new(changed), "layer 8 expert 31"),
    ];
    for (reader, named) in readers {
        let request = common::request(ops::Activations::Int15);
        let plan = common::make_plan(&checkpoint, &request);
        let family = models::Family::recognise(&checkpoint).unwrap();
        let device = Box::new(Oracle::new(1).unwrap());
        let loaded = Engine::load(&checkpoint, &family, plan, device, Streaming::new(reader, 2), &mut |_| {});
        let Err(EngineError::Cache(CacheError::Expert(error))) = loaded else {
            panic!("{named}: not refused")
        };
        assert!(error.to_string().contains(named), "{error}");
    }
}

/// The mix before attention of layer l > 0 is the mix number 2 l - 1, the one before its experts number 2 l.
#[test]
fn a_number_that_is_not_finite() {
    for slots in [None, Some(SLOTS)] {
        let mut bench = Bench::new(slots);
        for mix in 0..2 * u64::from(LAYERS) {
            bench.begin();
            let rows = IN_STEP.iter().sum::<usize>() as u32;
            let row = (IN_STEP[0] + 1) as u32;
            bench.controls.strike("residual_mix", mix, Strike::Poison { row, rows });
            let outcomes = bench.step([None; 3]).unwrap();
            assert!(bench.controls.has_struck());
            // Picks are looked at in the layer; without them the rows after the last layer are.
            let layer = mix.div_ceil(2).max(1);
            let expected = match slots {
                Some(_) if layer < u64::from(LAYERS) => format!("layer {layer} router"),
                _ => "after the last layer".to_owned(),
            };
            bench.check(outcomes, &[VICTIM], &format!("NaN in mix {mix}, {slots:?}"), &|error| {
                let PartError::NotFinite { place, position } = error else { return false };
                *place == expected && *position as usize == BEFORE + 1
            });
        }
    }
}

/// A NaN that only the router sees: its row picks nothing, and must not pass for one that needs no expert. Products of
/// matrices: 11 in layer 0, before a router 8 in a KDA layer and 5 in an MLA layer (3), 6 from there to the layer's end.
/// A guess decides only what is read. Of the mixes of a layer the last is that of a guess; layer 0 has none before attention.
#[test]
fn a_guess_that_is_not_finite_harms_nobody() {
    let mut bench = Bench::with(Some(SLOTS), LookAhead::Ranks(4));
    for layer in 0..u64::from(LAYERS) - 1 {
        bench.begin();
        let rows = IN_STEP.iter().sum::<usize>() as u32;
        bench.controls.strike("residual_mix", 3 * layer + 1, Strike::Poison { row: 0, rows });
        let outcomes = bench.step([None; 3]).unwrap();
        assert!(bench.controls.has_struck());
        bench.check(outcomes, &[], &format!("NaN in the guess of layer {layer}"), &|_| false);
    }
}

#[test]
fn a_router_whose_scores_are_not_finite() {
    for slots in [None, Some(SLOTS)] {
        let mut bench = Bench::new(slots);
        for (layer, product) in [(1, 11 + 8), (3, 11 + 2 * 14 + 5), (4, 11 + 2 * 14 + 11 + 8)] {
            bench.begin();
            let rows = IN_STEP.iter().sum::<usize>() as u32;
            bench.controls.strike("mat_mul", product, Strike::Poison { row: (IN_STEP[0] + 1) as u32, rows });
            let outcomes = bench.step([None; 3]).unwrap();
            assert!(bench.controls.has_struck());
            let expected = match slots {
                Some(_) => format!("layer {layer} router"),
                None => "after the last layer".to_owned(),
            };
            bench.check(outcomes, &[VICTIM], &format!("router of layer {layer}, {slots:?}"), &|error| {
                let PartError::NotFinite { place, position } = error else { return false };
                *place == expected && *position as usize == BEFORE + 1
            });
        }
    }
}

/// Blocks of the latent cache and slots that held a NaN are given to others, who must not notice.
#[test]
fn numbers_that_are_not_finite_leave_no_trace() {
    let mut bench = Bench::new(None);
    let ids = some_ids(77, 3);
    let clean = alone(&mut bench.engine, &ids);
    bench.begin();
    bench.controls.strike("residual_mix", 1, Strike::Poison { row: 1, rows: 7 });
    bench.step([None; 3]).unwrap();
    assert!(bench.controls.has_struck());
    reset(&mut bench.engine, &mut bench.states[VICTIM]);
    // The blocks let go last are the ones taken next.
    assert_same(&alone(&mut bench.engine, &ids), &clean, "a sequence in used blocks");
}

#[test]
fn one_part_is_cancelled_between_layers() {
    for slots in [None, Some(SLOTS)] {
        let mut bench = Bench::new(slots);
        for layer in 0..u64::from(LAYERS) {
            bench.begin();
            let flag = Arc::new(AtomicBool::new(false));
            // A layer has one gated unit outside its routed experts.
            bench.controls.strike("glu", layer, Strike::Raise(Arc::clone(&flag)));
            let outcomes = bench.step([None, Some(&flag), None]).unwrap();
            assert!(bench.controls.has_struck());
            // Nobody looks after the last layer, unless it waits for experts.
            let failing: &[usize] = if flag_is_seen(layer, slots) { &[VICTIM] } else { &[] };
            let cancelled = |error: &PartError| matches!(error, PartError::Cancelled);
            bench.check(outcomes, failing, &format!("cancel in layer {layer}, {slots:?}"), &cancelled);
        }
    }
}

/// From the layer on in which a part has failed only what the others picked is read.
#[test]
fn nothing_is_read_for_a_part_that_has_failed() {
    let mut bench = Bench::new(Some(SLOTS));
    let distinct = |parts: &[usize]| -> usize {
        let of_layer = |layer| {
            (0..32).filter(|&e| bench.parts_with(layer, &[e]).iter().any(|p| parts.contains(p))).count()
        };
        (1..LAYERS).map(of_layer).sum()
    };
    let (all, others) = (distinct(&[0, VICTIM, 2]), distinct(&[0, 2]));
    assert!(others < all);
    for (cancelled, expected) in [(false, all), (true, others)] {
        bench.begin();
        let flag = Arc::new(AtomicBool::new(false));
        if cancelled {
            bench.controls.strike("glu", 0, Strike::Raise(Arc::clone(&flag)));
        }
        let before = bench.engine.cache_statistics().reads;
        bench.step([None, Some(&flag), None]).unwrap();
        let reads = bench.engine.cache_statistics().reads - before;
        assert_eq!(reads, expected as u64, "cancelled in layer 0: {cancelled}");
    }
}

/// Every layer looks at the flags before it begins, and where it waits for experts.
fn flag_is_seen(layer: u64, slots: Option<u32>) -> bool {
    layer + 1 < u64::from(LAYERS) || slots.is_some()
}

#[test]
fn all_parts_are_cancelled_in_every_layer() {
    let mut bench = Bench::new(Some(SLOTS));
    for layer in 0..u64::from(LAYERS) - 1 {
        bench.begin();
        let flag = Arc::new(AtomicBool::new(false));
        bench.controls.strike("rms_norm", layer, Strike::Raise(Arc::clone(&flag)));
        let outcomes = bench.step([Some(&flag); 3]).unwrap();
        assert!(bench.controls.has_struck());
        let cancelled = |error: &PartError| matches!(error, PartError::Cancelled);
        bench.check(outcomes, &[0, 1, 2], &format!("cancel at norm {layer}"), &cancelled);
    }
}

/// Reads hang until the gate opens, which is after the step has returned.
#[test]
fn a_cancel_ends_the_wait_for_experts() {
    let mut bench = Bench::new(Some(SLOTS));
    bench.begin();
    let gate = Gate::closed();
    let disk = Arc::new(bench.faulty().with_gate(Arc::clone(&gate)));
    bench.disk.set(disk.clone());
    let flag = AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            gate.wait_for(1);
            flag.store(true, Ordering::Relaxed);
        });
        bench.step([Some(&flag); 3]).unwrap()
    });
    assert_eq!(disk.calls(), [], "the step has not waited for what it asked for");
    // The reads that hang land from now on.
    gate.open();
    let cancelled = |error: &PartError| matches!(error, PartError::Cancelled);
    bench.check(outcomes, &[0, 1, 2], "cancel while experts are read", &cancelled);
}

/// The device fails at one call of many: all states need a rebuild, and the engine goes on. With all experts resident a
/// step makes always the same calls; how many more it makes otherwise depends on which experts arrive together.
#[test]
fn a_failure_of_the_device() {
    let mut calls = 0;
    for slots in [None, Some(SLOTS), Some(2)] {
        let mut bench = Bench::new(slots);
        bench.begin();
        let before = bench.controls.lock().calls;
        bench.step([None; 3]).unwrap();
        let made = bench.controls.lock().calls - before;
        calls = if slots.is_none() { made } else { calls };
        assert!(300 < calls && calls <= made, "{made} calls a step, {calls} at least");
        for place in (0..calls).step_by(calls as usize / 12) {
            bench.begin();
            bench.controls.strike("", place, Strike::Fail);
            let outcome = bench.step([None; 3]);
            assert!(bench.controls.has_struck());
            let failed = matches!(outcome, Err(StepError::Device(DeviceError::Failed { .. })));
            assert!(failed, "call {place} of {calls}: {outcome:?}");
            bench.check_recovery(&[0, 1, 2], &format!("failure at call {place} of {calls}, {slots:?}"));
        }
    }
}

/// Rows kept of layers are forgotten with their step, at whatever call of the device it ends.
#[test]
fn a_failed_step_leaves_no_read_waiting() {
    let layers: Vec<u32> = (0..LAYERS).collect();
    let mut bench = Bench::new(None);
    bench.begin();
    let mut step = |place: Option<u64>| {
        reset(&mut bench.engine, &mut bench.states[VICTIM]);
        let before = bench.controls.lock().calls;
        if let Some(place) = place {
            bench.controls.strike("", place, Strike::Fail);
        }
        let part = Part { taps: &layers, ..part(&mut bench.states[VICTIM], &bench.ids[VICTIM]) };
        assert_eq!(bench.engine.step(&mut [part]).is_err(), place.is_some());
        let rig = bench.controls.lock();
        assert_eq!(rig.reads - rig.takes, 0, "reads that wait after a failure at call {place:?}");
        rig.calls - before
    };
    let calls = step(None);
    for place in (0..calls).step_by(calls as usize / 20) {
        step(Some(place));
    }
}

/// A device that is lost stays lost: every step says so, at once or when it is waited for, and none hangs.
#[test]
fn a_lost_device() {
    let oracle = || Oracle::new(1).unwrap();
    let ids = some_ids(1, 3);
    for nth in [1, 5, 20] {
        let late = |seed| Late::new(Failing::new(oracle(), Call::Submit, nth), seed);
        let setups = [
            Setup::new().device(Failing::new(oracle(), Call::Take, nth.min(2))),
            Setup::new().slots(2).device(Failing::new(oracle(), Call::Take, nth.min(8))),
            Setup::new().slots(1).device(Failing::new(oracle(), Call::Wait, nth)),
            Setup::new().device(late(nth)),
            Setup::new().slots(3).device(late(nth + 1)),
        ];
        for (number, setup) in setups.into_iter().enumerate() {
            let mut engine = setup.load();
            let mut state = engine.create_state().unwrap();
            for attempt in 0..3 {
                let outcome = step_bits(&mut engine, &mut [part(&mut state, &ids)]);
                let failed = matches!(outcome, Err(StepError::Device(DeviceError::Failed { .. })));
                assert!(failed, "device {number}, failing from {nth} on, attempt {attempt}: {outcome:?}");
                assert_eq!((state.position(), state.health()), (0, Health::NeedsRebuild));
                let (pool, device) = engine.states();
                pool.reset(device, &mut state).unwrap(); // only writes, which do not fail here
            }
        }
    }
}

/// A failure of a part is told with its causes, each once.
#[test]
fn errors_name_their_causes_once() {
    let mut bench = Bench::new(Some(SLOTS));
    let expert = bench.only_the_victims(3);
    let (file, bytes) = extent(&bench.checkpoint, 3, expert);
    bench.begin();
    bench.disk.set(Arc::new(bench.faulty().failing(file, bytes)));
    let error = bench.step([None; 3]).unwrap().swap_remove(VICTIM).unwrap_err();
    let mut lines = vec![error.to_string()];
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        lines.push(error.to_string());
        cause = error.source();
    }
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].contains(&format!("layer 3 expert {expert}")), "{lines:#?}");
    assert!(lines[1].contains("model-00004-of-000012.safetensors"), "{lines:#?}");
    assert!(lines[2].contains("injected"), "{lines:#?}");
}
