//! The same bits whatever the device, the chunks, the company, the slots, the readers, the threads, the order, the delays and the
//! memory that is left.
mod common;
#[path = "../../../tests/seeds.rs"]
mod seeds;

use common::devices::Random;
use common::{Kind, Setup, assert_same, part, some_ids, step_bits};
use cpu::Cpu;
use engine::Engine;
use memory::pressure::{Gauge, Pressure};
use models::{Dense, LookAhead, Part, State};
use ops::testing::Late;
use ops::{Activations, Device, Oracle};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use seeds::seeds;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::cache::CachePolicy;
use store::cache::governor::Governed;
use store::faulty_reader::FaultyReader;
use store::{Access, DiskReader, Reader};

/// Tokens of the three sequences; the first is longer than the largest chunk.
const LENGTHS: [usize; 3] = [34, 9, 12];
const CHUNKS: [usize; 4] = [1, 2, 7, 32];
/// What changes the numbers, and so has a reference of its own.
const KINDS: [(Activations, Dense); 2] =
    [(Activations::Int15, Dense::Bf16), (Activations::Exact, Dense::Int8)];

const LOOK_AHEADS: [LookAhead; 4] =
    [LookAhead::Off, LookAhead::Auto, LookAhead::Ranks(1), LookAhead::Ranks(LookAhead::MOST)];

/// What changes no bit.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a dimension of its own")]
struct Case {
    /// Index of [`KINDS`].
    kind: usize,
    device: Kind,
    /// None: all experts are resident.
    slots: Option<u32>,
    /// Which expert leaves.
    policy: CachePolicy,
    readers: u32,
    look_ahead: LookAhead,
    overlap: bool,
    threads: usize,
    /// Whether memory is short now and then, so that slots are given back and taken again.
    short_memory: bool,
    /// Whether the device works late.
    late: bool,
    /// Whether reads are delayed, cut and interrupted, unless the kernel does them by itself (`io_uring`).
    slow_reads: bool,
    /// Direct and through `io_uring`: reads bring the blocks around an expert along.
    access: Access,
    /// Sequences that run: the first one, or all.
    sequences: usize,
    /// Sizes of the chunks of each sequence, in turn.
    chunks: [[usize; 2]; 3],
    /// For the order of the parts, for who takes part in a step, and for all delays.
    seed: u64,
}

/// Ways to read. Many containers forbid `io_uring`, so that it is among them only with `COLIBRI_TEST_URING`.
fn accesses() -> &'static [Access] {
    const ALL: [Access; 3] = [Access::Buffered, Access::Direct, Access::Uring];
    if std::env::var_os("COLIBRI_TEST_URING").is_some() { &ALL } else { &ALL[..2] }
}

fn setup(kind: usize) -> Setup {
    let mut setup = Setup::new();
    setup.request.options.activations = KINDS[kind].0;
    setup.request.dense = Some(KINDS[kind].1);
    setup
}

fn sequence(index: usize) -> Vec<u32> {
    some_ids(index as u64 + 1, LENGTHS[index])
}

/// All logits of a sequence alone in one step on the oracle, everything resident.
fn reference(kind: usize, index: usize) -> &'static [u32] {
    static REFERENCES: [OnceLock<[Vec<u32>; 3]>; 2] = [OnceLock::new(), OnceLock::new()];
    let all = REFERENCES[kind].get_or_init(|| {
        let mut engine = setup(kind).load();
        [0, 1, 2].map(|i| common::alone(&mut engine, &sequence(i)))
    });
    &all[index]
}

fn load(case: &Case) -> Engine {
    let mut setup = setup(case.kind);
    setup.readers = case.readers;
    (setup.look_ahead, setup.overlap) = (case.look_ahead, case.overlap);
    setup.policy = case.policy;
    if case.short_memory {
        setup.gauge = Some(Box::new(Moods { random: Random(case.seed), now: Duration::ZERO }));
    }
    if let Some(slots) = case.slots {
        setup = setup.slots(slots);
    }
    let mut reader: Arc<dyn Reader> = Arc::new(DiskReader::new(common::tiny().files(), case.access));
    if case.slow_reads && case.access != Access::Uring {
        let slow = FaultyReader::new(reader, case.seed).with_delays(Duration::from_micros(300));
        reader = Arc::new(slow.with_short_reads().with_interruptions());
    }
    setup = setup.reader(reader);
    let device = match case.device {
        Kind::Oracle => late_or_not(Oracle::new(case.threads).unwrap(), case),
        Kind::Cpu => late_or_not(Cpu::new(case.threads).unwrap(), case),
    };
    Setup { device, ..setup }.load()
}

/// Memory that is short for some time and plenty for some, by a clock that runs a minute with every look.
struct Moods {
    random: Random,
    now: Duration,
}

impl Gauge for Moods {
    fn now(&mut self) -> Duration {
        self.now += Duration::from_secs(61);
        self.now
    }

    fn read(&mut self) -> Pressure {
        let short = self.random.below(3) == 0;
        Pressure { available: Some(if short { 0 } else { u64::MAX }), ..Pressure::default() }
    }
}

fn late_or_not<D: Device + 'static>(device: D, case: &Case) -> Box<dyn Device> {
    if case.late { Box::new(Late::new(device, case.seed)) } else { Box::new(device) }
}

/// A sequence on its way.
struct Running {
    index: usize,
    ids: Vec<u32>,
    state: State,
    fed: usize,
    turns: usize,
    logits: Vec<u32>,
}

impl Running {
    fn new(engine: &mut Engine, index: usize) -> Self {
        let state = engine.create_state().unwrap();
        Running { index, ids: sequence(index), state, fed: 0, turns: 0, logits: Vec::new() }
    }

    fn chunk(&self, sizes: [usize; 2]) -> usize {
        sizes[self.turns % 2].min(self.ids.len() - self.fed)
    }
}

/// Runs a case and compares every sequence with its reference; what its cache gave back.
fn check(case: &Case) -> Option<Governed> {
    let mut engine = load(case);
    let mut random = Random(case.seed);
    let mut all: Vec<Running> = (0..case.sequences).map(|i| Running::new(&mut engine, i)).collect();
    while all.iter().any(|r| r.fed < r.ids.len()) {
        for i in (1..all.len()).rev() {
            all.swap(i, random.below(i as u64 + 1) as usize);
        }
        // Now and then one stays away; at least one takes part.
        let mut batch: Vec<&mut Running> = all.iter_mut().filter(|r| r.fed < r.ids.len()).collect();
        if batch.len() > 1 && random.below(3) == 0 {
            batch.pop();
        }
        let counts: Vec<usize> = batch.iter().map(|r| r.chunk(case.chunks[r.index])).collect();
        let mut parts: Vec<Part<'_>> = batch
            .iter_mut()
            .zip(&counts)
            .map(|(r, n)| part(&mut r.state, &r.ids[r.fed..r.fed + n]))
            .collect();
        let outputs = step_bits(&mut engine, &mut parts).unwrap();
        for ((running, count), logits) in batch.into_iter().zip(counts).zip(outputs) {
            running.logits.extend(logits.unwrap());
            running.fed += count;
            running.turns += 1;
        }
    }
    for running in &all {
        let what = format!("{case:?}, sequence {}", running.index);
        assert_same(&running.logits, reference(case.kind, running.index), &what);
    }
    engine.governed()
}

const PLAIN: Case = Case {
    kind: 0,
    device: Kind::Oracle,
    slots: None,
    policy: CachePolicy::ALL[0],
    readers: 1,
    look_ahead: LookAhead::Off,
    overlap: true,
    threads: 1,
    short_memory: false,
    late: false,
    slow_reads: false,
    access: Access::Buffered,
    sequences: 1,
    chunks: [[32, 32]; 3],
    seed: 1,
};

/// Each dimension by itself, so that a failure names its cause.
#[test]
fn one_change_at_a_time() {
    for device in Kind::ALL {
        let plain = Case { device, ..PLAIN };
        for chunk in CHUNKS {
            check(&Case { chunks: [[chunk; 2]; 3], ..plain });
        }
        check(&Case { sequences: 3, ..plain });
        check(&Case { threads: 2, ..plain });
        check(&Case { late: true, ..plain });
        check(&Case { kind: 1, ..plain });
        check(&Case { slots: Some(40), ..plain });
        check(&Case { slots: Some(40), readers: 8, ..plain });
        for policy in CachePolicy::ALL {
            check(&Case { slots: Some(13), policy, ..plain });
        }
        check(&Case { slots: Some(40), slow_reads: true, ..plain });
        let short = Case { slots: Some(100), short_memory: true, chunks: [[1; 2]; 3], ..plain };
        for case in [short.clone(), Case { late: true, ..short }] {
            let Governed { given_back, taken_back, slots_least } = check(&case).unwrap();
            assert!(given_back > 100 && taken_back > 50 && slots_least < 50, "{given_back} {taken_back}");
        }
        check(&Case { slots: Some(40), overlap: false, ..plain });
        for look_ahead in LOOK_AHEADS {
            check(&Case { slots: Some(40), look_ahead, ..plain });
            check(&Case { slots: Some(40), look_ahead, chunks: [[1; 2]; 3], slow_reads: true, ..plain });
        }
        for &access in accesses() {
            check(&Case { access, ..plain });
            check(&Case { slots: Some(40), readers: 8, access, look_ahead: LookAhead::Ranks(4), ..plain });
        }
    }
}

/// A slot is filled again only after the submission that reads it, however late that is: otherwise another expert's
/// bytes would be read, or the slot would be found in use.
#[test]
fn few_slots_and_a_late_device() {
    for (slots, device) in [(1, Kind::Oracle), (2, Kind::Cpu), (3, Kind::Oracle)] {
        let case =
            Case { slots: Some(slots), late: true, readers: 8, seed: u64::from(slots), device, ..PLAIN };
        check(&case);
        check(&Case { sequences: 3, chunks: [[7, 2]; 3], slow_reads: true, ..case });
    }
}

/// Prefill and decode of three sequences in the same steps, from the first token.
#[test]
fn three_sequences_interleaved_from_the_first_token() {
    let case = Case { sequences: 3, chunks: [[7, 1], [1, 1], [2, 1]], ..PLAIN };
    check(&case);
    check(&Case { device: Kind::Cpu, threads: 2, ..case });
    check(&Case { slots: Some(12), late: true, seed: 5, ..case });
}

fn any_case() -> impl Strategy<Value = Case> {
    let chunk = || prop::sample::select(&CHUNKS[..]);
    let chunks = prop::array::uniform3([chunk(), chunk()]);
    let slots = prop::sample::select(&[None, Some(1), Some(2), Some(5), Some(12), Some(100)][..]);
    let device = prop::sample::select(&Kind::ALL[..]);
    let cache = (slots, prop::sample::select(&CachePolicy::ALL[..]));
    let reading = (prop::sample::select(&[1u32, 8][..]), prop::sample::select(accesses()));
    let how = (0..KINDS.len(), device, cache, reading, 1..=3usize);
    let ahead = (prop::sample::select(&LOOK_AHEADS[..]), any::<bool>());
    let delays = (any::<bool>(), any::<bool>(), any::<bool>());
    (how, ahead, delays, prop::sample::select(&[1usize, 3][..]), chunks, any::<u64>()).prop_map(
        |(
            (kind, device, (slots, policy), (readers, access), threads),
            (look_ahead, overlap),
            (late, slow_reads, short_memory),
            sequences,
            chunks,
            seed,
        )| Case {
            kind,
            device,
            slots,
            policy,
            readers,
            look_ahead,
            overlap,
            threads,
            short_memory,
            late,
            slow_reads,
            access,
            sequences,
            chunks,
            seed,
        },
    )
}

/// With `COLIBRI_TEST_FUZZ_SECONDS` it goes on for that long.
#[test]
fn no_number_is_damaged_by_all_changes_together() {
    for seed in seeds(24) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let chance = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let one = Config { cases: 1, failure_persistence: None, max_shrink_iters: 20, ..Config::default() };
        let outcome = TestRunner::new_with_rng(one, chance).run(&any_case(), |case| {
            check(&case);
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
