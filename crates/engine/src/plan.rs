//! How many bytes for what, before anything is allocated; what fits, and what is refused.
use crate::rehearsal::rehearse;
use memory::{CacheSize, SlabPlan, machine};
use models::state::StateLayout;
use models::{Dense, Family, LoadError, LoadOptions, StateError, Tally};
use ops::{DeviceError, LATENT_BLOCK, Ops, Usage};
use std::fmt;
use store::{Catalog, Checkpoint};

/// What is asked for; None leaves the choice to the plan.
#[derive(Clone, Debug)]
pub struct Request {
    /// What changes the numbers, except `dense`, which is below.
    pub options: LoadOptions,
    /// How dense matrices are stored.
    pub dense: Option<Dense>,
    /// Positions a sequence can reach.
    pub context: Option<u32>,
    /// Sequences that can be alive together.
    pub sequences: u32,
    /// Rows of a step.
    pub chunk: Option<u32>,
    /// Memory for routed experts.
    pub expert_cache: Option<CacheSize>,
    /// Devices that hold their own copy of everything resident (the checked device has two).
    pub copies: u64,
}

impl Default for Request {
    /// One sequence, everything else as memory allows: what the program asks for without flags.
    fn default() -> Self {
        Request {
            options: LoadOptions::default(),
            dense: None,
            context: None,
            sequences: 1,
            chunk: None,
            expert_cache: None,
            copies: 1,
        }
    }
}

/// Memory that may be planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the machine or the cgroup.
    pub total: u64,
    /// Of these not in use.
    pub available: u64,
}

impl Limits {
    /// This machine's.
    ///
    /// # Errors
    /// What the system does not tell.
    pub fn of_machine() -> Result<Self, memory::MemoryError> {
        Ok(Limits { total: machine::total_memory()?, available: machine::available_memory()? })
    }

    /// Left to everything else: 256 MiB and 2 % of the whole.
    #[must_use]
    pub fn reserve(&self) -> u64 {
        (256 << 20) + self.total / 50
    }

    /// What a plan may use.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.available.saturating_sub(self.reserve())
    }
}

/// Longest context that is planned without being asked for.
pub const DEFAULT_CONTEXT_MAX: u32 = 8192;

/// Shortest context that is planned without being asked for.
const CONTEXT_LEAST: u32 = 256;

/// Most rows of a step.
pub const CHUNK_MAX: u32 = 4096;

/// Rows of a step where none are asked for, largest first: more rows read an expert for more tokens and take more memory
/// from the cache. Where all experts are resident, more than 128 rows gain nothing and 32 lose a tenth.
pub const CHUNKS: [u32; 5] = [512, 256, 128, 64, 32];

/// The part of the usable memory that the results of such a step may take.
const CHUNK_SHARE: u64 = 50;

/// The plan: choices and bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What changes the numbers, `dense` chosen.
    pub options: LoadOptions,
    /// Positions a sequence can reach.
    pub context: u32,
    /// Positions it could reach at most: the model's own limit.
    pub context_most: u32,
    /// Sequences that can be alive together.
    pub sequences: u32,
    /// Rows of a step.
    pub chunk: u32,
    /// Numbers of the arena.
    pub arena: u64,
    /// Slots of experts; None if the layers in use have no routed experts.
    pub slab: Option<SlabPlan>,
    /// Experts of all layers in use.
    pub experts: u32,
    /// Resident weights by kind and storage.
    pub dense: Tally,
    /// What the bytes are for, in the order of a report.
    pub items: Vec<(String, u64)>,
    /// What was chosen or cut, in words.
    pub notes: Vec<String>,
}

impl Plan {
    /// All items together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Whether every expert has its slot.
    #[must_use]
    pub fn all_resident(&self) -> bool {
        self.slab.as_ref().is_some_and(|s| s.slots() >= self.experts)
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The checkpoint.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A size that cannot be.
    #[error(transparent)]
    Memory(#[from] memory::MemoryError),
    /// The rehearsal.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rehearsal's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A step of the rehearsal.
    #[error(transparent)]
    Step(#[from] models::StepError),
    /// A setting outside its range.
    #[error("{setting} = {found}; expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What was asked.
        found: String,
        /// What would do.
        expected: String,
    },
    /// Not enough memory for anything.
    #[error("{0}")]
    DoesNotFit(NoFit),
}

/// The sum that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFit {
    /// What the machine has.
    pub limits: Limits,
    /// Items of the smallest plan that honours the request.
    pub items: Vec<(String, u64)>,
    /// Needed with each dense packing.
    pub choices: Vec<(Dense, u64)>,
    /// Flags of a plan that fits, if there is one.
    pub fits: Option<String>,
}

impl fmt::Display for NoFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed: u64 = self.items.iter().map(|i| i.1).sum();
        let (usable, reserve) = (self.limits.usable(), self.limits.reserve());
        write!(
            f,
            "the model needs {}, {} can be used ({} are available, {} stay free for everything else):",
            show_bytes(needed),
            show_bytes(usable),
            show_bytes(self.limits.available),
            show_bytes(reserve)
        )?;
        for (what, bytes) in &self.items {
            write!(f, "\n  {:>10}  {what}", show_bytes(*bytes))?;
        }
        for (dense, bytes) in &self.choices {
            let verdict = if *bytes <= usable { "would fit" } else { "does not fit" };
            write!(
                f,
                "\n--dense {} with the smallest cache: {} ({verdict})",
                dense.name(),
                show_bytes(*bytes)
            )?;
        }
        match &self.fits {
            Some(flags) => write!(f, "\nThis would fit: {flags}"),
            None => write!(f, "\nNo setting fits; free memory and try again."),
        }
    }
}

/// Bytes for people: `1.23 GB`.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 2 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Makes the plan.
///
/// # Errors
/// What is missing in the checkpoint, a setting outside its range, or the sum that does not fit.
pub fn plan(
    checkpoint: &Checkpoint,
    family: &Family,
    request: &Request,
    limits: Limits,
) -> Result<Plan, PlanError> {
    check_settings(family, request)?;
    let choices = family.dense_choices(checkpoint, request.dense)?;
    let least = CHUNKS[CHUNKS.len() - 1].min(default_context(family, request));
    let asked = request;
    let request = &Request { chunk: Some(asked.chunk.unwrap_or(least)), ..asked.clone() };
    let catalog = family.catalog(checkpoint, request.options.layers)?;
    let candidates: Vec<Dense> = request.dense.map_or(choices.clone(), |d| vec![d]);
    let mut sizes = Vec::new();
    for &dense in &choices {
        let options = LoadOptions { dense, ..request.options.clone() };
        sizes.push((dense, Sizes::of(checkpoint, family, &options, request, catalog.as_ref())?));
    }
    let tries = tries(family, request);
    for &(context, cache) in &tries {
        let fitting = sizes.iter().find(|(dense, sizes)| {
            let needed = sizes.smallest(request, context, (cache, limits.total));
            candidates.contains(dense) && needed <= limits.usable()
        });
        if let Some((dense, sizes)) = fitting {
            let mut plan = finish(request, limits, context, *dense, sizes, catalog.as_ref())?;
            if asked.chunk.is_none() {
                let better =
                    more_rows((checkpoint, family, catalog.as_ref()), request, limits, sizes, &plan)?;
                plan = better.unwrap_or(plan);
            }
            plan.notes.splice(0..0, choices_made(family, request, &plan, &choices));
            tell(&plan, limits);
            return Ok(plan);
        }
    }
    let fits = smallest_plan(checkpoint, family, request, limits, catalog.as_ref())?;
    Err(no_fit(request, limits, tries[tries.len() - 1], &candidates, &sizes, fits))
}

/// The same plan with the most of [`CHUNKS`] whose results leave almost all memory to the experts, and what was asked for
/// them; None if `plan` has as many.
fn more_rows(
    (checkpoint, family, catalog): (&Checkpoint, &Family, Option<&Catalog>),
    request: &Request,
    limits: Limits,
    sizes: &Sizes,
    plan: &Plan,
) -> Result<Option<Plan>, PlanError> {
    let (model, _) = family.load(checkpoint, None, &plan.options, &mut |_| {})?;
    let slots = |plan: &Plan| plan.slab.map_or(0, |slab| slab.slots());
    for rows in CHUNKS.map(|rows| rows.min(plan.context)).into_iter().filter(|rows| *rows > plan.chunk) {
        let usage = rehearse(&*model, family, (rows, true), Ops::rehearsal())?;
        let sizes = Sizes { arena: usage.arena, largest: usage.largest, ..sizes.clone() };
        let request = Request { chunk: Some(rows), ..request.clone() };
        let results = request.copies * 4 * (usage.arena + COPIES_OF_AN_OP * usage.largest);
        let is_small = results <= limits.usable() / CHUNK_SHARE;
        if !is_small
            || sizes.smallest(&request, plan.context, (Cache::Useful, limits.total)) > limits.usable()
        {
            continue;
        }
        let better = finish(&request, limits, plan.context, plan.options.dense, &sizes, catalog)?;
        if request.expert_cache.is_none() || slots(&better) == slots(plan) {
            return Ok(Some(better));
        }
    }
    Ok(None)
}

/// For who follows the choices.
fn tell(plan: &Plan, limits: Limits) {
    for (what, bytes) in &plan.items {
        tracing::debug!(what, bytes, "memory is planned");
    }
    tracing::info!(
        dense = plan.options.dense.name(),
        context = plan.context,
        chunk = plan.chunk,
        slots = plan.slab.map_or(0, |slab| slab.slots()),
        experts = plan.experts,
        bytes = plan.bytes(),
        usable = limits.usable(),
        "the plan is made"
    );
}

/// Contexts and caches from the best on: a context that was not asked for is halved down to [`CONTEXT_LEAST`]; a cache that was
/// asked for may shrink to one slot, but only where no context leaves more.
fn tries(family: &Family, request: &Request) -> Vec<(u32, Cache)> {
    let usual = default_context(family, request);
    let halve =
        |context: &u32| (request.context.is_none() && *context > CONTEXT_LEAST).then_some(context / 2);
    let contexts: Vec<u32> = std::iter::successors(Some(usual), halve).collect();
    let caches: &[Cache] =
        if request.expert_cache.is_some() { &[Cache::Useful, Cache::OneSlot] } else { &[Cache::Useful] };
    caches.iter().flat_map(|cache| contexts.iter().map(|context| (*context, *cache))).collect()
}

/// How few slots are still a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// Enough that reads and arithmetic overlap, or what was asked for if that is less.
    Useful,
    /// The least that works.
    OneSlot,
}

fn check_settings(family: &Family, request: &Request) -> Result<(), PlanError> {
    let most = family.config.context;
    let ranges = [
        ("--context", request.context.unwrap_or(1), 1, most),
        ("--chunk", request.chunk.unwrap_or(1), 1, CHUNK_MAX),
        ("--layers", request.options.layers.unwrap_or(1), 1, family.config.layers()),
        ("sequences", request.sequences, 1, 1024),
    ];
    for (setting, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            let models = setting == "--context" || setting == "--layers";
            let expected =
                format!("{least} to {most}{}", if models { ", this model's own limit" } else { "" });
            return Err(PlanError::Setting { setting, found: value.to_string(), expected });
        }
    }
    let context = u64::from(default_context(family, request).next_multiple_of(LATENT_BLOCK));
    if context * u64::from(request.sequences) > u64::from(u32::MAX) {
        let (setting, found) = ("--context", format!("{context} for {} sequences", request.sequences));
        let expected = "fewer than 2^32 positions of all sequences together".into();
        return Err(PlanError::Setting { setting, found, expected });
    }
    Ok(())
}

fn default_context(family: &Family, request: &Request) -> u32 {
    request.context.unwrap_or_else(|| family.config.context.min(DEFAULT_CONTEXT_MAX))
}

/// Rows of a step, once they are chosen.
fn rows(request: &Request) -> u32 {
    request.chunk.unwrap_or(CHUNKS[CHUNKS.len() - 1])
}

/// What the model needs whatever the cache and the context.
#[derive(Clone)]
struct Sizes {
    dense: Tally,
    layout: StateLayout,
    arena: u64,
    largest: u64,
    tensors: u64,
    slot: Option<(u64, u32)>,
    experts_per_layer: u32,
    ranks: u32,
    copies: u64,
    context_most: u32,
}

impl Sizes {
    fn of(
        checkpoint: &Checkpoint,
        family: &Family,
        options: &LoadOptions,
        request: &Request,
        catalog: Option<&Catalog>,
    ) -> Result<Self, PlanError> {
        let (model, dense) = family.load(checkpoint, None, options, &mut |_| {})?;
        let Usage { arena, largest, .. } =
            rehearse(&*model, family, (rows(request), true), Ops::rehearsal())?;
        let tensors = checkpoint.names().len() as u64;
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

    fn items(&self, request: &Request, context: u32, slab: Option<&SlabPlan>) -> Vec<(String, u64)> {
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
    fn smallest(&self, request: &Request, context: u32, (cache, memory): (Cache, u64)) -> u64 {
        let rest: u64 = self.items(request, context, None).iter().map(|i| i.1).sum();
        rest + self.least_slots(request, (cache, memory)).map_or(0, |s| s.bytes_committed())
    }

    fn least_slots(&self, request: &Request, (cache, memory): (Cache, u64)) -> Option<SlabPlan> {
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
const COPIES_OF_AN_OP: u64 = 4;

/// A tensor's name, place and shape, and its share of the sorted table, measured at half a million tensors.
const BYTES_OF_A_TENSOR: u64 = 250;

fn finish(
    request: &Request,
    limits: Limits,
    context: u32,
    dense: Dense,
    sizes: &Sizes,
    catalog: Option<&Catalog>,
) -> Result<Plan, PlanError> {
    let mut notes = sizes.dense.notes.clone();
    let without: u64 = sizes.items(request, context, None).iter().map(|i| i.1).sum();
    let slab = match catalog {
        None => None,
        Some(catalog) => Some(slots(request, limits, limits.usable() - without, catalog, &mut notes)?),
    };
    Ok(Plan {
        options: LoadOptions { dense, ..request.options.clone() },
        context,
        context_most: sizes.context_most,
        sequences: request.sequences,
        chunk: rows(request),
        arena: sizes.arena,
        experts: catalog.map_or(0, Catalog::experts),
        dense: sizes.dense.clone(),
        items: sizes.items(request, context, slab.as_ref()),
        slab,
        notes,
    })
}

/// The slots asked for, cut to what is left; or all that is left.
fn slots(
    request: &Request,
    limits: Limits,
    left: u64,
    catalog: &Catalog,
    notes: &mut Vec<String>,
) -> Result<SlabPlan, PlanError> {
    let (payload, experts) = (catalog.layout().slot_bytes(), catalog.experts());
    let most = SlabPlan::fitting(left, payload, experts)?;
    let Some(asked) = request.expert_cache else { return Ok(most) };
    let wanted = asked.plan(payload, experts, limits.total)?;
    if wanted.slots() <= most.slots() {
        return Ok(wanted);
    }
    notes.push(format!(
        "--expert-cache cut from {} slots ({}) to {} ({}): {} are available, {} stay in reserve, the rest of the plan \
         takes {}",
        wanted.slots(),
        show_bytes(wanted.bytes_committed()),
        most.slots(),
        show_bytes(most.bytes_committed()),
        show_bytes(limits.available),
        show_bytes(limits.reserve()),
        show_bytes(limits.usable() - left),
    ));
    Ok(most)
}

/// What the plan chose where nothing was asked for; a choice that memory forced says so.
fn choices_made(family: &Family, request: &Request, plan: &Plan, choices: &[Dense]) -> Vec<String> {
    let mut notes = Vec::new();
    if request.dense.is_none() {
        let dense = plan.options.dense;
        notes.push(match dense {
            _ if choices.len() == 1 => format!("dense weights: {}, as this container has them", dense.name()),
            Dense::Bf16 => "dense weights: bf16, as stored".into(),
            _ => format!(
                "dense weights: packed to {}, since memory is short: results differ from those of more memory; \
                 --dense fixes the choice",
                dense.name()
            ),
        });
    }
    if request.context.is_none() {
        let usual = default_context(family, request);
        notes.push(match plan.context {
            context if context == usual => format!("context: {context} positions"),
            context => format!("context: {context} positions instead of {usual}, since memory is short"),
        });
    }
    notes
}

/// The flags of the smallest plan that keeps what was asked for by name, if it fits. (A context that was asked for is
/// what the prompt needs; a packing that was asked for is what the command allows.)
fn smallest_plan(
    checkpoint: &Checkpoint,
    family: &Family,
    request: &Request,
    limits: Limits,
    catalog: Option<&Catalog>,
) -> Result<Option<String>, PlanError> {
    let choices = family.dense_choices(checkpoint, request.dense)?;
    let dense = request.dense.unwrap_or(choices[choices.len() - 1]);
    let context = request.context.unwrap_or(family.config.context.min(CONTEXT_LEAST));
    let options = LoadOptions { dense, ..request.options.clone() };
    let cache = catalog.map(|_| CacheSize::Slots(1));
    let small = Request { chunk: Some(1), expert_cache: cache, ..request.clone() };
    let sizes = Sizes::of(checkpoint, family, &options, &small, catalog)?;
    let bytes = sizes.smallest(&small, context, (Cache::OneSlot, limits.total));
    let flags: Vec<String> = [
        request.dense.is_none().then(|| format!("--dense {}", dense.name())),
        request.context.is_none().then(|| format!("--context {context}")),
        Some("--chunk 1".to_owned()),
        cache.map(|_| "--expert-cache 1x".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    Ok((bytes <= limits.usable()).then(|| format!("{} ({})", flags.join(" "), show_bytes(bytes))))
}

fn no_fit(
    request: &Request,
    limits: Limits,
    (context, cache): (u32, Cache),
    candidates: &[Dense],
    sizes: &[(Dense, Sizes)],
    fits: Option<String>,
) -> PlanError {
    let cache = (cache, limits.total);
    let last = sizes.iter().rev().find(|(dense, _)| candidates.contains(dense));
    let items =
        last.map_or(Vec::new(), |(_, s)| s.items(request, context, s.least_slots(request, cache).as_ref()));
    let choices =
        sizes.iter().map(|(dense, sizes)| (*dense, sizes.smallest(request, context, cache))).collect();
    PlanError::DoesNotFit(NoFit { limits, items, choices, fits })
}
