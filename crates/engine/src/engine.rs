//! The loaded model with everything it works with: one owner, one step at a time.
use crate::plan::{Limits, Plan};
use crate::routing::Recorder;
use crate::sampler::{Sampler, Sampling, SamplingError};
use crate::watch::Watch;
use memory::pressure::Gauge;
use memory::{Slab, machine};
use models::step::{self, Workplace};
use models::{
    Capacity, Clock, Experts, Family, GuessSource, LoadError, LookAhead, LookAheadStatistics, Model, Output,
    Part, PartError, State, StateError, StatePool, StepError, moe::Overlap,
};
use ops::{Device, DeviceError, LATENT_BLOCK, NUMERICS_VERSION, Ops, Usage};
use std::sync::Arc;
use std::time::Instant;
use store::cache::governor::{Governed, Governor};
use store::cache::{CacheError, CachePolicy, CacheStatistics};
use store::checksums::List;
use store::history::History;
use store::routing::RoutingStep;
use store::{Catalog, Checkpoint, ExpertCache, Reader};

/// What can go wrong while a planned model is loaded and used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The checkpoint.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The slots.
    #[error(transparent)]
    Memory(#[from] memory::MemoryError),
    /// The cache, or an expert that cannot be had where all are to stay.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A sequence's part of a step.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A sequence's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A choice of a token.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Bytes that are no saved session of this model.
    #[error("not a usable saved session: {0}")]
    BadSession(String),
    /// The prompt and what is to follow do not fit.
    #[error(
        "{tokens} tokens do not fit into the context of {context}; {}",
        if context < most {
            format!("shorten the prompt or raise --context, up to {most}")
        } else {
            "this model reaches no further, so shorten the prompt".into()
        }
    )]
    TooLong {
        /// Tokens asked for.
        tokens: u64,
        /// Positions there are.
        context: u32,
        /// Positions the model can reach.
        most: u32,
    },
    /// A routing trace that cannot be begun.
    #[error("the routing trace cannot be written: {0}")]
    Routing(std::io::Error),
    /// Nothing to trace.
    #[error("none of the layers in use has routed experts, so there is no routing to trace; use more layers")]
    NoExperts,
    /// Nothing to go on from.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
}

/// How loading goes on: bytes of dense weights, then experts that stay.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Dense bytes resident, of all.
    Dense(u64, u64),
    /// Experts read, of all.
    Experts(u32, u32),
}

/// How experts come from disk; nothing of it changes a result. Where all stay it matters for loading only.
pub struct Streaming {
    /// Gives experts' bytes: the checkpoint's own files unless a test injects faults.
    pub reader: Arc<dyn Reader>,
    /// Threads that read.
    pub readers: u32,
    /// How many experts of the next layer are read on a guess.
    pub look_ahead: LookAhead,
    /// Whether anything is read while the device computes.
    pub overlap: bool,
    /// Which expert leaves its slot for another.
    pub policy: CachePolicy,
    /// Whether each expert is compared with its checksum when it is read for the first time.
    pub check: bool,
    /// Who says when memory is short, so that slots are given back; nobody, and they never are.
    pub gauge: Option<Box<dyn Gauge>>,
}

impl Streaming {
    /// By so many threads, everything else as usual.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>, readers: u32) -> Self {
        let policy = CachePolicy::default();
        let look_ahead = LookAhead::Auto;
        Streaming { reader, readers, look_ahead, overlap: true, policy, check: false, gauge: None }
    }
}

/// A model that is loaded.
pub struct Engine {
    model: Box<dyn Model>,
    ops: Ops,
    pub(crate) experts: Experts,
    pool: StatePool,
    pub(crate) clock: Clock,
    plan: Plan,
    /// Picks a token and layer.
    pub(crate) ranks: u32,
    pub(crate) identities: Identities,
    pub(crate) recorder: Option<Recorder>,
    /// Picks for [`Engine::picks_of`].
    pub(crate) kept: Option<RoutingStep>,
    pub(crate) history: Option<History>,
    pub(crate) watch: Option<Arc<dyn Watch>>,
}

impl Engine {
    /// Loads what was planned.
    ///
    /// # Errors
    /// What cannot be read or allocated.
    pub fn load(
        checkpoint: &Checkpoint,
        family: &Family,
        plan: Plan,
        mut device: Box<dyn Device>,
        streaming: Streaming,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, EngineError> {
        // Before anything is loaded: it may be refused.
        let catalog = catalog(checkpoint, family, &plan, streaming.check)?;
        let total = plan.dense.bytes();
        let mut done = |bytes| progress(Progress::Dense(bytes, total));
        let start = Instant::now();
        let (model, _) = family.load(checkpoint, Some(&mut *device), &plan.options, &mut done)?;
        tracing::info!(bytes = total, took = ?start.elapsed(), "dense weights are loaded");
        let (readers, policy) = (streaming.readers, streaming.policy);
        let experts = load_experts((catalog, family.config.ranks), &plan, &mut *device, streaming, progress)?;
        let (slots, all) = (plan.slab.map_or(0, |slab| slab.slots()), plan.experts);
        tracing::info!(slots, experts = all, readers, %policy, took = ?start.elapsed(), "experts can be had");
        let identities = Identities::of(checkpoint, family, &plan)?;
        let layout = model.state_layout().clone();
        let Plan { context, sequences, .. } = plan;
        // Whole blocks for every sequence, as planned.
        let positions = context.next_multiple_of(LATENT_BLOCK) * sequences;
        let capacity = Capacity { context, sequences, positions };
        let pool = StatePool::new(&mut *device, layout, identities.session, capacity)?;
        let ops = Ops::new(device, plan.arena)?;
        let (clock, ranks) = (Clock::default(), family.config.ranks);
        Ok(Engine {
            model,
            ops,
            experts,
            pool,
            clock,
            plan,
            ranks,
            identities,
            recorder: None,
            kept: None,
            history: None,
            watch: None,
        })
    }

    /// The plan it was loaded by.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Tells this model, with the layers in use, from others, however its weights are packed.
    #[must_use]
    pub fn model_identity(&self) -> &[u8; 32] {
        &self.identities.model
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Time by section, so far.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What the expert cache counted.
    #[must_use]
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.experts.statistics().unwrap_or_default()
    }

    /// What was guessed of the experts to come; None where they do not come and go.
    #[must_use]
    pub fn look_ahead_statistics(&self) -> Option<LookAheadStatistics> {
        self.experts.look_ahead_statistics()
    }

    /// What the cache gave back while memory was short; None where experts do not come and go.
    #[must_use]
    pub fn governed(&self) -> Option<Governed> {
        self.experts.governed()
    }

    /// From now on guesses of the experts to come are these, for measurements. They change no result.
    pub fn guess_from(&mut self, source: GuessSource) {
        self.experts.guess_from(source);
    }

    /// What steps needed so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.ops.usage()
    }

    /// Chooses tokens of one sequence of this model.
    ///
    /// # Errors
    /// A setting outside its range.
    pub fn sampler(&self, sampling: Sampling) -> Result<Sampler, SamplingError> {
        Sampler::new(sampling, self.model.vocabulary())
    }

    /// Runs one step; see [`step::run`].
    ///
    /// # Errors
    /// A failure of the device, or more rows than planned.
    pub fn step(&mut self, batch: &mut [Part<'_>]) -> Result<Vec<Result<Output, PartError>>, StepError> {
        let width = self.model.width() as usize;
        let rows: u64 = batch.iter().map(|part| part.input.rows(width) as u64).sum();
        if rows > u64::from(self.plan.chunk) {
            return Err(StepError::TooManyRows { rows, most: self.plan.chunk });
        }
        let place = Workplace {
            ops: &mut self.ops,
            experts: &mut self.experts,
            pool: &mut self.pool,
            clock: &mut self.clock,
        };
        let (start, position) = (Instant::now(), batch.first().map_or(0, |part| part.position));
        let outcome = step::run(&*self.model, place, batch);
        self.note_routing();
        self.tell_watch(start, position, batch.len(), rows);
        tell(batch.len(), rows, start, &outcome);
        outcome
    }

    /// The states' memory and the device, for what lies outside steps.
    pub fn states(&mut self) -> (&mut StatePool, &mut dyn Device) {
        (&mut self.pool, self.ops.device())
    }

    /// An empty state.
    ///
    /// # Errors
    /// As many as planned are alive, or the device's.
    pub fn create_state(&mut self) -> Result<State, StateError> {
        self.pool.create(self.ops.device())
    }
}

/// For who follows the steps.
fn tell(
    parts: usize,
    rows: u64,
    start: Instant,
    outcome: &Result<Vec<Result<Output, PartError>>, StepError>,
) {
    let took = start.elapsed();
    match outcome {
        Ok(outputs) => {
            for error in outputs.iter().filter_map(|output| output.as_ref().err()) {
                tracing::info!(%error, "a part of a step failed");
            }
            tracing::debug!(parts, rows, ?took, "a step is done");
        }
        Err(error) => tracing::error!(parts, rows, ?took, %error, "a step failed"),
    }
}

/// Where the experts in use lie, with the checksums that they are compared with if they are.
fn catalog(
    checkpoint: &Checkpoint,
    family: &Family,
    plan: &Plan,
    check: bool,
) -> Result<Option<Catalog>, LoadError> {
    let mut catalog = family.catalog(checkpoint, plan.options.layers)?;
    if let Some(catalog) = catalog.as_mut().filter(|_| check) {
        let list = List::read(&*checkpoint.files())?;
        catalog.check_with(list.iter().flat_map(List::experts))?;
    }
    Ok(catalog)
}

fn load_experts(
    (catalog, ranks): (Option<Catalog>, u32),
    plan: &Plan,
    device: &mut dyn Device,
    streaming: Streaming,
    progress: &mut dyn FnMut(Progress),
) -> Result<Experts, EngineError> {
    let (Some(catalog), Some(slab)) = (catalog, plan.slab) else {
        return Ok(Experts::none());
    };
    let slab = Slab::from_plan(slab)?;
    let buffer = device.adopt(&slab, "slots of routed experts")?;
    let Streaming { reader, readers, look_ahead, overlap, policy, gauge, .. } = streaming;
    let mut cache = ExpertCache::new(Arc::new(catalog), reader, slab, readers)?;
    if plan.all_resident() {
        cache.preload(&mut |done, total| progress(Progress::Experts(done, total)))?;
        return Ok(Experts::resident(device, buffer, cache)?);
    }
    cache = cache.with_policy(policy);
    if let Some(gauge) = gauge {
        let reserve = Limits { total: machine::total_memory()?, available: 0 }.reserve();
        // What two tokens of a step pick at once is the least that a plan calls a cache.
        cache = cache.govern_by(Governor::new(gauge, ranks * 2, reserve));
    }
    let overlap = Overlap { overlap, look_ahead, ranks };
    Ok(Experts::streamed(device, buffer, cache, overlap)?)
}

/// What a loaded model is told from others by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identities {
    /// Model and layers in use, whatever the packing: what a history of picks belongs to.
    pub(crate) model: [u8; 32],
    /// Model, packing and numerics: snapshots of one such identity can be exchanged.
    pub(crate) session: [u8; 32],
}

impl Identities {
    fn of(checkpoint: &Checkpoint, family: &Family, plan: &Plan) -> Result<Self, LoadError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(family.identity(checkpoint)?.as_bytes());
        let options = &plan.options;
        let with = |settings: String| *hasher.clone().update(settings.as_bytes()).finalize().as_bytes();
        Ok(Identities {
            model: with(format!("layers {:?}", options.layers)),
            session: with(format!(
                "numerics {NUMERICS_VERSION}, dense {}, activations {}, layers {:?}, top-p {}",
                options.dense.name(),
                options.activations.name(),
                options.layers,
                options.expert_top_p,
            )),
        })
    }
}
