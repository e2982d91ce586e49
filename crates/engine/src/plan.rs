//! How many bytes for what, before anything is allocated; what fits, and what is refused.
mod error;
mod sizes;

use crate::rehearsal::{Rehearsed, rehearse};
pub use error::{NoFit, PlanError, show_bytes};
use memory::{CacheSize, SlabPlan, machine};
use models::{Dense, Family, LoadOptions, Tally};
use ops::{LATENT_BLOCK, Ops};
use sizes::{COPIES_OF_AN_OP, Cache, Sizes, rows, total};
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
    /// Bytes of one of them on disk; 0 if there are none.
    pub expert_bytes: u64,
    /// Resident weights by kind and storage.
    pub dense: Tally,
    /// What the bytes are for, in the order of a report.
    pub items: Vec<(String, u64)>,
    /// What was chosen or cut, in words.
    pub notes: Vec<String>,
    /// Every storage of dense weights that could be asked for, with the bytes of the smallest plan in it.
    pub choices: Vec<(Dense, u64)>,
    /// Whether weights are packed while they are loaded in any of these: each thread that packs takes memory.
    pub packs: bool,
}

impl Plan {
    /// All items together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        total(&self.items)
    }

    /// Bytes of mapped weights for which the rest of the plan leaves no room in `available` bytes: about so many at least are
    /// read again in every step, for a step needs them all. What stays free for everything else is room for them, too: the system
    /// keeps files there until somebody else wants it.
    #[must_use]
    pub fn mapped_without_room(&self, available: u64) -> u64 {
        let needed = self.bytes().saturating_add(self.dense.mapped);
        needed.saturating_sub(available).min(self.dense.mapped)
    }

    /// Whether every expert has its slot.
    #[must_use]
    pub fn all_resident(&self) -> bool {
        self.slab.as_ref().is_some_and(|s| s.slots() >= self.experts)
    }

    /// Whether experts come and go: there are fewer slots than experts.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.slab.is_some() && !self.all_resident()
    }
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
    let choices = family.dense_choices(checkpoint, request.dense, request.options.residency)?;
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
        if let Some((dense, own)) = fitting {
            let mut plan = finish(request, limits, context, *dense, own, catalog.as_ref())?;
            if asked.chunk.is_none() {
                let better = more_rows((checkpoint, family, catalog.as_ref()), request, limits, own, &plan)?;
                plan = better.unwrap_or(plan);
            }
            plan.choices = smallest(request, (context, cache, limits.total), &sizes);
            plan.packs = sizes.iter().any(|(_, sizes)| !sizes.dense.packed.is_empty());
            plan.notes.splice(0..0, choices_made(family, request, &plan, &choices));
            tell(&plan, limits);
            return Ok(plan);
        }
    }
    let last = tries[tries.len() - 1];
    let fits = smallest_plan(checkpoint, family, request, limits, catalog.as_ref())?;
    let mut refusal = no_fit(request, limits, last, &candidates, &sizes, fits);
    if let Some((dense, own)) = sizes.iter().rev().find(|(dense, _)| candidates.contains(dense)) {
        let options = LoadOptions { dense: *dense, ..request.options.clone() };
        refusal.numbers = numbers_that_fit((checkpoint, family), asked, (limits, last), &options, own)?;
    }
    Err(PlanError::DoesNotFit(refusal))
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
        let usage = rehearse(&*model, family, Rehearsed::full(rows), Ops::rehearsal())?;
        let sizes = Sizes { arena: usage.arena, largest: usage.largest, ..sizes.clone() };
        let request = Request { chunk: Some(rows), ..request.clone() };
        let numbers = usage.arena.saturating_add(usage.largest.saturating_mul(COPIES_OF_AN_OP));
        let results = numbers.saturating_mul(4 * request.copies);
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

fn finish(
    request: &Request,
    limits: Limits,
    context: u32,
    dense: Dense,
    sizes: &Sizes,
    catalog: Option<&Catalog>,
) -> Result<Plan, PlanError> {
    let mut notes = sizes.dense.notes.clone();
    let rest = sizes.items(request, context, None);
    let left = limits.usable().saturating_sub(total(&rest));
    // Mapped weights are wanted for every token, so slots that nobody asked for take what those leave, down to the least.
    let least = sizes.smallest(request, context, (Cache::Useful, limits.total)).saturating_sub(total(&rest));
    let mapped = if request.expert_cache.is_none() { sizes.dense.mapped } else { 0 };
    let left = left.saturating_sub(mapped).max(least.min(left));
    let slab = match catalog {
        None => None,
        Some(catalog) => {
            let room = Room { rest: &rest, left, tables_of_all: sizes.tables_of_all() };
            Some(slots(request, limits, room, catalog, &mut notes)?)
        }
    };
    Ok(Plan {
        options: LoadOptions { dense, ..request.options.clone() },
        context,
        context_most: sizes.context_most,
        sequences: request.sequences,
        chunk: rows(request),
        arena: sizes.arena,
        experts: catalog.map_or(0, Catalog::experts),
        expert_bytes: catalog.map_or(0, |catalog| catalog.layout().payload_bytes()),
        dense: sizes.dense.clone(),
        items: sizes.items(request, context, slab.as_ref()),
        slab,
        notes,
        choices: Vec::new(),
        packs: false,
    })
}

/// Where slots go.
#[derive(Clone, Copy)]
struct Room<'a> {
    /// All other items, the tables as where experts come and go.
    rest: &'a [(String, u64)],
    /// What these leave.
    left: u64,
    /// What the tables take of that where all experts stay.
    tables_of_all: u64,
}

/// The slots asked for, cut to what is left; or all that is left.
fn slots(
    request: &Request,
    limits: Limits,
    room: Room<'_>,
    catalog: &Catalog,
    notes: &mut Vec<String>,
) -> Result<SlabPlan, PlanError> {
    let Room { rest, left, tables_of_all } = room;
    let taken = total(rest);
    let (payload, experts) = (catalog.layout().slot_bytes(), catalog.experts());
    let mut most = SlabPlan::fitting(left, payload, experts)?;
    if most.slots() == experts && most.bytes_committed().saturating_add(tables_of_all) > left {
        most = SlabPlan::fitting(left, payload, experts - 1)?;
    }
    let Some(asked) = request.expert_cache else { return Ok(most) };
    let wanted = asked.plan(payload, experts, limits.total)?;
    if wanted.slots() <= most.slots() {
        return Ok(wanted);
    }
    notes.push(format!(
        "--expert-cache cut from {} slots ({}) to {} ({}): {} are available, {} stay in reserve, the rest of the plan \
         takes {} ({}); --expert-cache {}x would do",
        wanted.slots(),
        show_bytes(wanted.bytes_committed()),
        most.slots(),
        show_bytes(most.bytes_committed()),
        show_bytes(limits.available),
        show_bytes(limits.reserve()),
        show_bytes(taken),
        largest(rest, taken),
        most.slots(),
    ));
    Ok(most)
}

/// The items that matter, largest first: each is a hundredth of all or more.
fn largest(items: &[(String, u64)], all: u64) -> String {
    let mut large: Vec<&(String, u64)> = items.iter().filter(|(_, bytes)| *bytes >= all / 100).collect();
    large.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let words = large.iter().map(|(what, bytes)| format!("{what} {}", show_bytes(*bytes)));
    words.collect::<Vec<_>>().join(", ")
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
    let choices = family.dense_choices(checkpoint, request.dense, request.options.residency)?;
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

/// For each number that was asked for: the largest that would do if nothing else changed, as a flag.
fn numbers_that_fit(
    (checkpoint, family): (&Checkpoint, &Family),
    asked: &Request,
    (limits, (context, cache)): (Limits, (u32, Cache)),
    options: &LoadOptions,
    own: &Sizes,
) -> Result<Vec<String>, PlanError> {
    let fits = |request: &Request, sizes: &Sizes, context| {
        sizes.smallest(request, context, (cache, limits.total)) <= limits.usable()
    };
    let mut numbers = Vec::new();
    if asked.context.is_some() {
        let request = Request { chunk: Some(rows(asked)), ..asked.clone() };
        // More positions never take fewer bytes.
        let (mut least, mut most) = (0, context / LATENT_BLOCK);
        while least < most {
            let middle = most - (most - least) / 2;
            let does = fits(&request, own, middle * LATENT_BLOCK);
            (least, most) = if does { (middle, most) } else { (least, middle - 1) };
        }
        numbers.extend((least > 0).then(|| format!("--context {}", least * LATENT_BLOCK)));
    }
    if let Some(chunk) = asked.chunk {
        let (model, _) = family.load(checkpoint, None, options, &mut |_| {})?;
        let fewer = |rows: &u32| (*rows > 1).then_some(rows / 2);
        for rows in std::iter::successors(fewer(&chunk), fewer) {
            let usage = rehearse(&*model, family, Rehearsed::full(rows), Ops::rehearsal())?;
            let sizes = Sizes { arena: usage.arena, largest: usage.largest, ..own.clone() };
            if fits(&Request { chunk: Some(rows), ..asked.clone() }, &sizes, context) {
                numbers.push(format!("--chunk {rows}"));
                break;
            }
        }
    }
    Ok(numbers)
}

/// Bytes of the least that works in each storage.
fn smallest(
    request: &Request,
    (context, cache, total): (u32, Cache, u64),
    sizes: &[(Dense, Sizes)],
) -> Vec<(Dense, u64)> {
    sizes.iter().map(|(dense, sizes)| (*dense, sizes.smallest(request, context, (cache, total)))).collect()
}

fn no_fit(
    request: &Request,
    limits: Limits,
    (context, cache): (u32, Cache),
    candidates: &[Dense],
    sizes: &[(Dense, Sizes)],
    fits: Option<String>,
) -> NoFit {
    let choices = smallest(request, (context, cache, limits.total), sizes);
    let cache = (cache, limits.total);
    let last = sizes.iter().rev().find(|(dense, _)| candidates.contains(dense));
    let items =
        last.map_or(Vec::new(), |(_, s)| s.items(request, context, s.least_slots(request, cache).as_ref()));
    NoFit { limits, items, choices, numbers: Vec::new(), fits }
}
