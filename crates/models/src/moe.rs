//! Mixture of experts, shared by all families: route, read from disk while the device works, apply, combine.
use crate::batch::{self, PartError, Standing};
use crate::clock::{Clock, Section, WaitFor};
use crate::look_ahead::{GuessSource, Guesses, LookAhead, LookAheadStatistics};
use crate::mlp::Mlp;
use crate::step::{Place, Step};
use ops::{
    Activations, Buffer, Device, DeviceError, Expert, Ids, Matrix, NONE, Ops, Pending, Routing, Submission,
    Tensor,
};
use std::sync::Arc;
use std::time::Duration;
use store::cache::governor::Governed;
use store::cache::{Arrival, CacheStatistics, ExpertCache, Lease, Next, Request, WatchReads};
use store::catalog::{Catalog, ExpertId};
use store::routing::{LayerPicks, NO_PICK, RoutingStep};

/// One layer's router, shared experts and the way into and out of the routed ones.
pub struct Moe {
    /// Number of the layer.
    pub layer: u32,
    /// \[experts, width\]
    pub router: Matrix,
    /// Added to the scores for the choice only: \[1, experts\].
    pub bias: Option<Tensor>,
    /// Experts a token.
    pub ranks: u32,
    /// From scores to weights.
    pub routing: Routing,
    /// The space the experts live in, if it is not the model's.
    pub latent: Option<LatentSpace>,
    /// Seen by every token.
    pub shared: Option<Mlp>,
    /// What the routed experts have in common.
    pub expert: Expert,
    /// Of the latent projections.
    pub activations: Activations,
}

/// Projections around the routed experts, and the norm of their weighted sum.
pub struct LatentSpace {
    /// \[latent, width\]
    pub down: Matrix,
    /// \[1, latent\] and epsilon
    pub norm: Option<(Tensor, f32)>,
    /// \[width, latent\]
    pub up: Matrix,
}

impl Moe {
    /// x \[T, width\], normed, to \[T, width\]. `next` is what can be known of the next layer, if that has routed experts.
    ///
    /// # Errors
    /// The device's. An expert that cannot be had fails only the parts that picked it.
    pub fn forward(
        &self,
        step: &mut Step<'_, '_>,
        x: Tensor,
        next: Option<NextLayer<'_>>,
    ) -> Result<Tensor, DeviceError> {
        let logits = step.ops.mat_mul(x, self.router, Activations::Exact);
        let (picks, weights) = step.ops.route(logits, self.bias, self.ranks, self.routing);
        step.tap(self.layer, Place::Picks, picks.0)?;
        step.tap(self.layer, Place::Weights, weights)?;

        // The disk works on the misses and then on guesses, while the device does what every token needs.
        let mut wanted = None;
        if step.experts.overlap {
            let asked = step.experts.request((step.ops, step.clock), &mut step.parts, self.layer, picks)?;
            wanted = Some(asked);
        }
        let guess = step.experts.guess((step.ops, step.clock), next)?;
        let ops = &mut *step.ops;
        let z = self.latent.as_ref().map_or(x, |l| ops.mat_mul(x, l.down, self.activations));
        let shared = self.shared.as_ref().map(|mlp| mlp.forward(ops, x));
        let rows = ops.scratch(x.rows * self.ranks, z.cols);
        let task = Task { out: rows, x: z, picks, expert: self.expert.within(step.experts.slab) };
        let wanted = if let Some(wanted) = wanted {
            wanted
        } else {
            let last = step.ops.submit()?;
            step.ops.device().wait(last, None)?;
            step.experts.request((step.ops, step.clock), &mut step.parts, self.layer, picks)?
        };
        step.experts.read_guessed((step.ops, step.clock), guess)?;
        step.experts.apply(step.ops, step.clock, &mut step.parts, wanted, &task)?;

        let ops = &mut *step.ops;
        let routed = ops.combine(rows, picks, weights);
        let routed = self.latent.as_ref().map_or(routed, |l| {
            let normed = l.norm.map_or(routed, |(gain, eps)| ops.rms_norm(routed, gain, eps));
            ops.mat_mul(normed, l.up, self.activations)
        });
        Ok(shared.map_or(routed, |shared| ops.add(routed, shared)))
    }
}

/// The next layer, as far as it can be known before this one's experts are.
pub struct NextLayer<'a> {
    /// Its router and experts.
    pub moe: &'a Moe,
    /// Gives about what its router will see.
    pub input: Box<dyn FnOnce(&mut Ops) -> Tensor + 'a>,
}

/// The operands of a layer's [`ops::Op::Experts`], whatever the slots.
struct Task {
    out: Tensor,
    x: Tensor,
    picks: Ids,
    expert: Expert,
}

/// What the disk does while the device works; none of it changes a result.
#[derive(Clone, Copy, Debug)]
pub struct Overlap {
    /// Whether it reads at all then. If not, a layer's reads begin when the device has nothing else to do.
    pub overlap: bool,
    /// Experts of the next layer that are read on a guess; none without overlap.
    pub look_ahead: LookAhead,
    /// Experts that a token picks in a layer.
    pub ranks: u32,
}

/// The routed experts of all layers, on the device or on their way there.
pub struct Experts {
    first_layer: u32,
    count: u32,
    /// The slots.
    slab: Buffer,
    /// Whether the disk works while the device does.
    overlap: bool,
    mode: Mode,
    /// Picks since they were taken last, if they are wanted.
    routing: Option<RoutingStep>,
}

enum Mode {
    /// Every expert has its slot for good; picks are never read back. One table a layer.
    Resident { tables: Vec<Ids>, cache: Option<Box<ExpertCache>> },
    /// Nothing is computed; `guesses`: also what streaming does to guess.
    Rehearsed { table: Ids, guesses: bool },
    /// Experts come through the cache; one table that is filled as they arrive.
    Streamed { table: Ids, entries: Vec<[u32; 2]>, cache: Box<ExpertCache>, guesses: Box<Guesses> },
}

/// What a layer waits for.
enum Wanted {
    Resident { table: Ids },
    Streamed { layer: u32, picks: Vec<u32>, request: Request },
}

/// The next layer and rows of ranks of experts that it may pick, on their way from the device.
#[must_use = "the disk is asked for what was guessed by Experts::read_guessed"]
pub(crate) struct Guess(u32, Pending);

const NO_SLOT: [u32; 2] = [NONE, 0];

/// How often a wait looks at the cancel flags.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Experts {
    /// For layers without routed experts.
    #[must_use]
    pub fn none() -> Self {
        let mode = Mode::Resident { tables: Vec::new(), cache: None };
        Experts { first_layer: 0, count: 0, slab: Buffer(0), overlap: true, mode, routing: None }
    }

    /// For a rehearsal, in which nothing is computed: as if all experts stayed, `guesses`: or if they did not.
    #[must_use]
    pub fn rehearsal(table: Ids, guesses: bool) -> Self {
        let mode = Mode::Rehearsed { table, guesses };
        Experts { first_layer: 0, count: table.0.rows, slab: Buffer(0), overlap: true, mode, routing: None }
    }

    /// Experts that stay: `cache` holds all of them, `slab` is its memory on the device.
    ///
    /// # Errors
    /// The device's.
    pub fn resident(device: &mut dyn Device, slab: Buffer, cache: ExpertCache) -> Result<Self, DeviceError> {
        let (layers, count) = (cache.catalog().layers(), u32::from(cache.catalog().experts_per_layer()));
        let mut tables = Vec::new();
        for layer in layers.clone() {
            let slot = |expert| {
                let id = ExpertId { layer, expert: expert as u16 };
                cache.place_of(id).map_or(NO_SLOT, |(slot, payload)| [slot, payload as u32])
            };
            let entries: Vec<[u32; 2]> = (0..count).map(slot).collect();
            let table = new_table(device, count)?;
            device.write(table.0.buffer, 0, bytemuck::cast_slice(&entries))?;
            tables.push(table);
        }
        let mode = Mode::Resident { tables, cache: Some(Box::new(cache)) };
        Ok(Experts { first_layer: u32::from(layers.start), count, slab, overlap: true, mode, routing: None })
    }

    /// Experts that come and go.
    ///
    /// # Errors
    /// The device's.
    pub fn streamed(
        device: &mut dyn Device,
        slab: Buffer,
        cache: ExpertCache,
        Overlap { overlap, look_ahead, ranks }: Overlap,
    ) -> Result<Self, DeviceError> {
        let count = u32::from(cache.catalog().experts_per_layer());
        let table = new_table(device, count)?;
        let entries = vec![NO_SLOT; count as usize];
        let first_layer = u32::from(cache.catalog().layers().start);
        let guesses = Guesses::new(if overlap { look_ahead } else { LookAhead::Off }, ranks, count);
        let mode = Mode::Streamed { table, entries, cache: Box::new(cache), guesses: Box::new(guesses) };
        Ok(Experts { first_layer, count, slab, overlap, mode, routing: None })
    }

    /// What the cache counted.
    #[must_use]
    pub fn statistics(&self) -> Option<CacheStatistics> {
        match &self.mode {
            Mode::Resident { cache, .. } => cache.as_ref().map(|c| c.statistics()),
            Mode::Rehearsed { .. } => None,
            Mode::Streamed { cache, .. } => Some(cache.statistics()),
        }
    }

    /// What was guessed; None where experts do not come and go.
    #[must_use]
    pub fn look_ahead_statistics(&self) -> Option<LookAheadStatistics> {
        match &self.mode {
            Mode::Resident { .. } | Mode::Rehearsed { .. } => None,
            Mode::Streamed { guesses, .. } => Some(guesses.statistics()),
        }
    }

    /// What was given back while memory was short; None where experts do not come and go.
    #[must_use]
    pub fn governed(&self) -> Option<Governed> {
        match &self.mode {
            Mode::Resident { .. } | Mode::Rehearsed { .. } => None,
            Mode::Streamed { cache, .. } => Some(cache.governed()),
        }
    }

    /// From now on guesses come from there, for measurements; without effect where experts do not come and go.
    pub fn guess_from(&mut self, source: GuessSource) {
        if let Mode::Streamed { guesses, .. } = &mut self.mode {
            guesses.come_from(source);
        }
    }

    /// Tells `watch` of every read from now on; the first watcher stays.
    pub fn watch_reads(&self, watch: Arc<dyn WatchReads>) {
        if let Mode::Streamed { cache, .. } | Mode::Resident { cache: Some(cache), .. } = &self.mode {
            cache.watch(watch);
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) {
        if let Mode::Streamed { guesses, .. } = &mut self.mode {
            guesses.begin();
        }
    }

    /// The places of the experts, if there are any.
    #[must_use]
    pub fn catalog(&self) -> Option<&Catalog> {
        match &self.mode {
            Mode::Resident { cache, .. } => cache.as_deref().map(|cache| &**cache.catalog()),
            Mode::Rehearsed { .. } => None,
            Mode::Streamed { cache, .. } => Some(cache.catalog()),
        }
    }

    /// Whether nothing is computed, so that no number is worth keeping.
    pub(crate) fn is_rehearsal(&self) -> bool {
        matches!(self.mode, Mode::Rehearsed { .. })
    }

    /// Whether experts come and go.
    #[must_use]
    pub fn come_and_go(&self) -> bool {
        matches!(self.mode, Mode::Streamed { .. })
    }

    /// Tells the cache what is known from before; see [`ExpertCache::expect`].
    pub fn expect(&mut self, shares: &[f64]) {
        if let Mode::Streamed { cache, .. } = &mut self.mode {
            cache.expect(shares);
        }
    }

    /// Keeps the picks of every layer from now on, or no longer. Where all experts stay, that makes every layer wait for its
    /// router.
    pub fn keep_routing(&mut self, keep: bool) {
        self.routing = keep.then(Vec::new);
    }

    /// The picks that were kept since the last call.
    pub fn take_routing(&mut self) -> RoutingStep {
        self.routing.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Slots whose last use is completed may be filled again.
    pub(crate) fn retire(&mut self, completed: Submission) {
        if let Mode::Streamed { cache, .. } = &mut self.mode {
            cache.retire(completed.0);
        }
    }

    /// Keeps a layer's picks of the rows that count.
    fn note_routing(&mut self, parts: &[Standing<'_>], layer: u32, picks: &[u32], ranks: u32) {
        let Some(routing) = &mut self.routing else { return };
        let rows = picks.chunks_exact(ranks as usize).enumerate();
        let counting = rows.filter(|(row, _)| counts(parts, *row as u32)).flat_map(|(_, picks)| picks);
        let picks = counting.map(|&pick| if pick == NONE { NO_PICK } else { pick as u16 }).collect();
        routing.push(LayerPicks { layer: layer as u16, picks });
    }

    /// Starts the reads of a layer's picks: the layer's one wait, unless all experts stay and nobody wants to know.
    fn request(
        &mut self,
        (ops, clock): (&mut Ops, &mut Clock),
        parts: &mut [Standing<'_>],
        layer: u32,
        picks: Ids,
    ) -> Result<Wanted, DeviceError> {
        match &self.mode {
            Mode::Resident { tables, .. } => {
                let table = tables[(layer - self.first_layer) as usize];
                if self.routing.is_some() {
                    let list = ops.read_ids(picks)?;
                    self.note_routing(parts, layer, &list, picks.0.cols);
                }
                return Ok(Wanted::Resident { table });
            }
            Mode::Rehearsed { table, .. } => return Ok(Wanted::Resident { table: *table }),
            Mode::Streamed { .. } => {}
        }
        let pending = ops.read_later(picks.0)?;
        let completed = pending.ticket.after;
        let begins = clock.wait_begins();
        let list = ops.take_ids(pending)?;
        clock.waited(WaitFor::Picks, begins);
        fail_pickless_rows(parts, layer, &list, picks.0.cols);
        batch::any_alive(parts);
        self.note_routing(parts, layer, &list, picks.0.cols);
        let Mode::Streamed { cache, guesses, .. } = &mut self.mode else {
            unreachable!("experts that do not stay are streamed")
        };
        cache.retire(completed.0);
        let mut wanted = vec![false; self.count as usize];
        for (row, ranks) in list.chunks_exact(picks.0.cols as usize).enumerate() {
            let counting = counts(parts, row as u32);
            for &expert in ranks.iter().filter(|&&e| counting && e != NONE) {
                wanted[expert as usize] = true;
            }
        }
        let ids: Vec<ExpertId> = (0..self.count as u16)
            .filter(|&e| wanted[usize::from(e)])
            .map(|expert| ExpertId { layer: layer as u16, expert })
            .collect();
        let begins = clock.wait_begins();
        let request = cache.request(&ids);
        cache.forget_guesses();
        clock.waited(WaitFor::Cache, begins);
        guesses.compare(layer, &wanted);
        Ok(Wanted::Streamed { layer, picks: list, request })
    }

    /// Lets the device guess what the next layer will pick. Where the answer is there at once, or was given, it is read at
    /// once; else [`Experts::read_guessed`] takes it when the device has got its other work.
    pub(crate) fn guess(
        &mut self,
        (ops, clock): (&mut Ops, &mut Clock),
        next: Option<NextLayer<'_>>,
    ) -> Result<Option<Guess>, DeviceError> {
        let Some(NextLayer { moe, input }) = next.filter(|_| self.overlap) else { return Ok(None) };
        if let Mode::Streamed { guesses, cache, .. } = &mut self.mode
            && let Some(given) = guesses.given(moe.layer)
        {
            prefetch((cache, clock), moe.layer, &given);
            return Ok(None);
        }
        let ranks = match &self.mode {
            Mode::Resident { .. } => None,
            // As many as can be asked for, so that there is room for all.
            Mode::Rehearsed { guesses, .. } => guesses.then_some(self.count.min(LookAhead::MOST)),
            Mode::Streamed { guesses, .. } => guesses.ranks(),
        };
        let Some(ranks) = ranks else { return Ok(None) };
        let mark = ops.mark();
        let input = input(ops);
        let logits = ops.mat_mul(input, moe.router, Activations::Exact);
        let (picks, _) = ops.route(logits, moe.bias, ranks, moe.routing);
        let guess = Guess(moe.layer, ops.read_later(picks.0)?);
        ops.release(mark);
        if ops.device().done(guess.1.ticket.after)? {
            self.read_guessed((ops, clock), Some(guess))?;
            return Ok(None);
        }
        Ok(Some(guess))
    }

    /// Sends the device what was recorded, and the disk what was guessed.
    pub(crate) fn read_guessed(
        &mut self,
        (ops, clock): (&mut Ops, &mut Clock),
        guess: Option<Guess>,
    ) -> Result<(), DeviceError> {
        let Some(Guess(layer, pending)) = guess else { return Ok(()) };
        ops.submit()?;
        let begins = clock.wait_begins();
        let picks = ops.take_ids(pending)?;
        clock.waited(WaitFor::Picks, begins);
        if let Mode::Streamed { cache, guesses, .. } = &mut self.mode {
            let slots = cache.limit();
            prefetch((cache, clock), layer, guesses.take(layer, picks, slots));
        }
        Ok(())
    }

    /// Applies the experts to the rows that picked them: all at once, or in the order in which they arrive. Each token
    /// and rank has its own row, so that the order changes nothing.
    fn apply(
        &mut self,
        ops: &mut Ops,
        clock: &mut Clock,
        parts: &mut [Standing<'_>],
        wanted: Wanted,
        task: &Task,
    ) -> Result<(), DeviceError> {
        let (layer, picks, mut request) = match wanted {
            Wanted::Resident { table } => {
                ops.experts_into(task.out, task.x, task.picks, table, task.expert);
                return Ok(());
            }
            Wanted::Streamed { layer, picks, request } => (layer, picks, request),
        };
        let Mode::Streamed { table, entries, cache, .. } = &mut self.mode else {
            unreachable!("a streamed request comes from a streamed cache")
        };
        ops.submit()?;
        let ranks = task.picks.0.cols as usize;
        loop {
            clock.enter(ops, Section::ExpertWait);
            let next = cache.next(&mut request, Some(LOOK_EVERY));
            clock.enter(ops, Section::Moe);
            match next {
                Next::Arrived(arrivals) => {
                    let group = admit(arrivals, entries, parts, layer, (&picks, ranks));
                    let result = apply_group(ops, task, *table, entries);
                    let fence = ops.device().last();
                    for lease in group {
                        entries[usize::from(lease.id().expert)] = NO_SLOT;
                        cache.release(lease, fence.0);
                    }
                    if let Err(error) = result {
                        cache.abandon(request);
                        return Err(error);
                    }
                }
                // The wave ends with a fence: what it used may then be filled again.
                Next::NeedsSlots => {
                    let (fence, begins) = (ops.device().last(), clock.wait_begins());
                    if ops.device().wait(fence, Some(LOOK_EVERY))? {
                        cache.retire(fence.0);
                    }
                    clock.waited(WaitFor::Slots, begins);
                }
                Next::TimedOut => {}
                Next::Finished => return Ok(()),
            }
            if !batch::any_alive(parts) {
                cache.abandon(request);
                return Ok(());
            }
        }
    }
}

/// Asks for what a layer is guessed to pick.
fn prefetch((cache, clock): (&mut ExpertCache, &mut Clock), layer: u32, experts: &[u32]) {
    let id = |expert: &u32| ExpertId { layer: layer as u16, expert: *expert as u16 };
    let ids: Vec<ExpertId> = experts.iter().map(id).collect();
    if !ids.is_empty() {
        let begins = clock.wait_begins();
        cache.prefetch(&ids);
        clock.waited(WaitFor::Cache, begins);
    }
}

fn new_table(device: &mut dyn Device, count: u32) -> Result<Ids, DeviceError> {
    let buffer = device.allocate(u64::from(count) * 8, "table of expert slots")?;
    Ok(Ids(Tensor::new(buffer, 0, count, 2)))
}

/// Whether a row belongs to a part that has not failed.
fn counts(parts: &[Standing<'_>], row: u32) -> bool {
    parts.iter().any(|part| part.error.is_none() && part.holds(row))
}

/// A row that picked nothing at all held a number that is not finite.
fn fail_pickless_rows(parts: &mut [Standing<'_>], layer: u32, picks: &[u32], ranks: u32) {
    for (row, picks) in picks.chunks_exact(ranks as usize).enumerate() {
        if picks.iter().all(|&p| p == NONE) {
            batch::fail_not_finite(parts, row as u32, &format!("layer {layer} router"));
        }
    }
}

/// Enters arrived experts into the table; one that failed fails the parts that picked it.
fn admit(
    arrivals: Vec<Arrival>,
    entries: &mut [[u32; 2]],
    parts: &mut [Standing<'_>],
    layer: u32,
    (picks, ranks): (&[u32], usize),
) -> Vec<Lease> {
    debug_assert!(arrivals.iter().all(|a| u32::from(a.id.layer) == layer));
    let mut leases = Vec::with_capacity(arrivals.len());
    for Arrival { id, result } in arrivals {
        match result {
            Ok(lease) => {
                entries[usize::from(id.expert)] = [lease.slot(), lease.payload_offset() as u32];
                leases.push(lease);
            }
            Err(error) => {
                for part in parts.iter_mut().filter(|p| p.error.is_none()) {
                    let rows = part.start as usize * ranks..(part.start + part.rows) as usize * ranks;
                    if picks[rows].contains(&u32::from(id.expert)) {
                        part.error = Some(PartError::Expert(error.clone()));
                    }
                }
            }
        }
    }
    leases
}

fn apply_group(ops: &mut Ops, task: &Task, table: Ids, entries: &[[u32; 2]]) -> Result<(), DeviceError> {
    ops.write(table.0.buffer, 0, bytemuck::cast_slice(entries))?;
    ops.experts_into(task.out, task.x, task.picks, table, task.expert);
    ops.submit()?;
    Ok(())
}
