//! What the tests of this crate share: the tiny model, goldens, engines with small plans.
#![allow(dead_code, reason = "each test binary uses its own part")]
pub(crate) mod devices;
pub(crate) mod readers;

use cpu::Cpu;
use engine::plan::Request;
use engine::{Engine, Limits, Plan, Streaming, plan};
use memory::CacheSize;
use memory::pressure::Gauge;
use models::{Dense, Family, Input, LoadOptions, Logits, LookAhead, Part, PartError, State, StepError};
use ops::{Activations, Device, Oracle};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::cache::CachePolicy;
use store::{Checkpoint, Reader};

pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(path)
}

pub(crate) fn tiny() -> Checkpoint {
    Checkpoint::open(&[data("k3-tiny")]).unwrap()
}

/// What most tests ask for: everything exact and small.
pub(crate) fn request(activations: Activations) -> Request {
    Request {
        options: LoadOptions { activations, ..LoadOptions::default() },
        dense: Some(Dense::Bf16),
        context: Some(256),
        sequences: 4,
        chunk: Some(32),
        expert_cache: Some(CacheSize::All),
        copies: 1,
    }
}

pub(crate) fn make_plan(checkpoint: &Checkpoint, request: &Request) -> Plan {
    let family = Family::recognise(checkpoint).unwrap();
    let limits = Limits { total: 8 << 30, available: 8 << 30 };
    plan(checkpoint, &family, request, limits).unwrap()
}

pub(crate) fn engine_with(
    checkpoint: &Checkpoint,
    request: &Request,
    device: Box<dyn Device>,
    streaming: Streaming,
) -> Engine {
    let family = Family::recognise(checkpoint).unwrap();
    let plan = make_plan(checkpoint, request);
    Engine::load(checkpoint, &family, plan, device, streaming, &mut |_| {}).unwrap()
}

pub(crate) fn engine(request: &Request, device: Box<dyn Device>) -> Engine {
    let checkpoint = tiny();
    let reader = Arc::new(checkpoint.files());
    engine_with(&checkpoint, request, device, Streaming::new(reader, 2))
}

/// The devices that give the same bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Oracle,
    Cpu,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::Oracle, Kind::Cpu];

    pub(crate) fn device(self, threads: usize) -> Box<dyn Device> {
        match self {
            Kind::Oracle => Box::new(Oracle::new(threads).unwrap()),
            Kind::Cpu => Box::new(Cpu::new(threads).unwrap()),
        }
    }
}

/// What an engine of a test is made of.
pub(crate) struct Setup {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) request: Request,
    pub(crate) device: Box<dyn Device>,
    pub(crate) reader: Option<Arc<dyn Reader>>,
    pub(crate) readers: u32,
    pub(crate) look_ahead: LookAhead,
    pub(crate) overlap: bool,
    pub(crate) policy: CachePolicy,
    pub(crate) gauge: Option<Box<dyn Gauge>>,
}

impl Setup {
    /// Everything resident, on the plain oracle, for steps of up to 64 rows.
    pub(crate) fn new() -> Self {
        Setup {
            checkpoint: tiny(),
            request: Request { chunk: Some(64), ..request(Activations::Int15) },
            device: Box::new(Oracle::new(1).unwrap()),
            reader: None,
            readers: 2,
            // Tests count reads, and ops by name; guesses have tests of their own.
            look_ahead: LookAhead::Off,
            overlap: true,
            policy: CachePolicy::default(),
            gauge: None,
        }
    }

    pub(crate) fn policy(mut self, policy: CachePolicy) -> Self {
        self.policy = policy;
        self
    }

    pub(crate) fn slots(mut self, slots: u32) -> Self {
        self.request.expert_cache = Some(CacheSize::Slots(slots));
        self
    }

    pub(crate) fn device(mut self, device: impl Device + 'static) -> Self {
        self.device = Box::new(device);
        self
    }

    pub(crate) fn reader(mut self, reader: Arc<dyn Reader>) -> Self {
        self.reader = Some(reader);
        self
    }

    pub(crate) fn load(self) -> Engine {
        let reader = self.reader.unwrap_or_else(|| readers::plain(&self.checkpoint));
        let Setup { look_ahead, overlap, policy, gauge, .. } = self;
        let streaming =
            Streaming { look_ahead, overlap, policy, gauge, ..Streaming::new(reader, self.readers) };
        engine_with(&self.checkpoint, &self.request, self.device, streaming)
    }
}

/// `count` ids of ordinary tokens, always the same for a seed.
pub(crate) fn some_ids(seed: u64, count: usize) -> Vec<u32> {
    let mut random = devices::Random(seed);
    (0..count).map(|_| random.below(3840) as u32).collect()
}

/// A part that begins where its state stands and wants all logits.
pub(crate) fn part<'a>(state: &'a mut State, ids: &'a [u32]) -> Part<'a> {
    let position = state.position();
    Part { input: Input::Ids(ids), position, state, logits: Logits::All, taps: &[], cancel: None }
}

/// The bits of all logits of every part of one step.
pub(crate) fn step_bits(
    engine: &mut Engine,
    parts: &mut [Part<'_>],
) -> Result<Vec<Result<Vec<u32>, PartError>>, StepError> {
    let outputs = engine.step(parts)?;
    Ok(outputs.into_iter().map(|output| output.map(|o| bits(&o.logits))).collect())
}

/// Feeds ids to one state in one step.
pub(crate) fn feed(engine: &mut Engine, state: &mut State, ids: &[u32]) -> Result<Vec<u32>, PartError> {
    step_bits(engine, &mut [part(state, ids)]).unwrap().pop().unwrap()
}

/// The bits of all logits of a sequence of its own, fed in one step.
pub(crate) fn alone(engine: &mut Engine, ids: &[u32]) -> Vec<u32> {
    let mut state = engine.create_state().unwrap();
    let logits = feed(engine, &mut state, ids).unwrap();
    release(engine, state);
    logits
}

pub(crate) fn release(engine: &mut Engine, state: State) {
    let (pool, device) = engine.states();
    pool.release(device, state).unwrap();
}

pub(crate) fn reset(engine: &mut Engine, state: &mut State) {
    let (pool, device) = engine.states();
    pool.reset(device, state).unwrap();
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Fails without printing thousands of numbers.
#[track_caller]
pub(crate) fn assert_same(got: &[u32], want: &[u32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: numbers");
    let first = got.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(first, None, "{what}: the first number that differs (4096 a row)");
}

/// The tensors of a golden file by name.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        Golden(std::fs::read(data(&format!("k3-tiny/golden/{name}.safetensors"))).unwrap())
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    fn words(&self, name: &str) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

/// `|a - b| / |b|` in L2.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let d: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let n: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (d / n).sqrt()
}
