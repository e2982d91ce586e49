//! What the cache would have done: requests of a routing trace through the cache's own book of slots, without a byte read.
//! It counts what the cache counts where nothing is guessed and no read fails. It knows no model and no file.

use super::policy::{CachePolicy, Ranking};
use super::slots::Slots;
use crate::routing::{RoutingHead, RoutingTrace};

/// The requests of one trace or of several, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requests {
    layers: u32,
    experts_per_layer: u32,
    expert_bytes: u64,
    /// Steps: passes through all layers.
    steps: u64,
    /// For each request its experts by index, ascending.
    lists: Vec<Vec<u32>>,
    /// Whether each is of a single row: a token by itself.
    alone: Vec<bool>,
}

impl Requests {
    /// None yet, for a model.
    #[must_use]
    pub fn new(head: &RoutingHead) -> Self {
        Self {
            layers: u32::from(head.layers),
            experts_per_layer: u32::from(head.experts_per_layer),
            expert_bytes: head.expert_bytes,
            steps: 0,
            lists: Vec::new(),
            alone: Vec::new(),
        }
    }

    /// Those of a trace.
    #[must_use]
    pub fn of(trace: &RoutingTrace) -> Self {
        let mut requests = Self::new(&trace.head);
        requests.add(trace);
        requests
    }

    /// Adds those of another trace of the same model.
    ///
    /// # Panics
    /// If the traces are of models of different sizes.
    pub fn add(&mut self, trace: &RoutingTrace) {
        let RoutingHead { first_layer, layers, experts_per_layer, ranks, .. } = trace.head;
        let size = (u32::from(layers), u32::from(experts_per_layer));
        assert_eq!(size, (self.layers, self.experts_per_layer), "traces of different models");
        self.steps += trace.steps.len() as u64;
        for layer in trace.steps.iter().flatten() {
            let first = u32::from(layer.layer - first_layer) * self.experts_per_layer;
            self.alone.push(layer.picks.len() <= usize::from(ranks));
            self.lists.push(layer.experts().into_iter().map(|expert| first + u32::from(expert)).collect());
        }
    }

    /// Experts of the model.
    #[must_use]
    pub fn experts(&self) -> u32 {
        self.layers * self.experts_per_layer
    }

    /// Layers with experts.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How often each expert is asked for, as a share of all steps; in the order of layers and experts.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let mut counts = vec![0_u64; self.experts() as usize];
        for &expert in self.lists.iter().flatten() {
            counts[expert as usize] += 1;
        }
        let steps = self.steps.max(1) as f64;
        counts.into_iter().map(|count| count as f64 / steps).collect()
    }
}

/// What the cache would have counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Experts that were there.
    pub hits: u64,
    /// Experts that were read.
    pub misses: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Experts thrown out for others.
    pub evictions: u64,
}

impl Outcome {
    /// Hits of all requests; none of none.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// What is known before the first request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'k> {
    /// How often each expert was asked for in earlier runs, as a share of their steps, in the order of layers and experts;
    /// empty if nothing is known.
    pub shares: &'k [f64],
    /// Whether the experts asked for most keep up to half of the slots once they are there.
    pub pinned: bool,
}

/// Runs a cache with so many empty slots over the requests.
///
/// ```
/// use store::cache::CachePolicy;
/// use store::cache::simulate::{Known, Requests, optimum, simulate};
/// use store::routing::{LayerPicks, RoutingHead, RoutingTrace};
///
/// // One layer, of whose experts 0 is picked at every other token.
/// let head = RoutingHead {
///     identity: [0; 32], first_layer: 1, layers: 1, experts_per_layer: 4, ranks: 1, expert_bytes: 1000,
/// };
/// let step = |pick| vec![LayerPicks { layer: 1, picks: vec![pick] }];
/// let steps = [0, 1, 0, 2, 0, 3, 0, 1].map(step).to_vec();
/// let requests = Requests::of(&RoutingTrace { head, steps, cut: 0 });
/// let lru = simulate("lru".parse::<CachePolicy>()?, 2, &requests, Known::default());
/// assert_eq!((lru.hits, lru.misses, lru.bytes_read), (3, 5, 5000));
/// assert_eq!(optimum(3, &requests).misses, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn simulate(policy: CachePolicy, slots: u32, requests: &Requests, known: Known<'_>) -> Outcome {
    let (layers, slots) = (requests.layers, slots.clamp(1, requests.experts().max(1)));
    let mut slots = Slots::new(slots, Ranking::new(policy, layers, requests.experts_per_layer));
    slots.expect(known.shares);
    if known.pinned {
        slots.fix(&most_used(known.shares));
    }
    run(slots, requests, None).all()
}

/// The outcome of some of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// How many there were: one for each layer of each step.
    pub requests: u64,
    /// Their outcome.
    pub outcome: Outcome,
}

/// The outcome by the rows of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts {
    /// Of several rows: a chunk of a prompt.
    pub chunks: Part,
    /// Of one row: a token by itself.
    pub tokens: Part,
}

impl Parts {
    fn all(self) -> Outcome {
        let Parts { chunks: Part { outcome: a, .. }, tokens: Part { outcome: b, .. } } = self;
        Outcome {
            hits: a.hits + b.hits,
            misses: a.misses + b.misses,
            bytes_read: a.bytes_read + b.bytes_read,
            evictions: a.evictions + b.evictions,
        }
    }
}

/// As [`simulate`] with nothing known before, prompts and single tokens apart.
#[must_use]
pub fn simulate_parts(policy: CachePolicy, slots: u32, requests: &Requests) -> Parts {
    let (layers, slots) = (requests.layers, slots.clamp(1, requests.experts().max(1)));
    let slots = Slots::new(slots, Ranking::new(policy, layers, requests.experts_per_layer));
    run(slots, requests, None)
}

/// The same with the best choice that there is: the expert needed last goes (Belady 1966). It knows the future, and lets go
/// of what it has read at once where the cache reads many experts and waits, so that no policy can have fewer misses.
#[must_use]
pub fn optimum(slots: u32, requests: &Requests) -> Outcome {
    let slots = slots.clamp(1, requests.experts().max(1));
    let ranking = Ranking::optimal(requests.layers, requests.experts_per_layer);
    run(Slots::new(slots, ranking), requests, Some(&next_uses(requests))).all()
}

/// The hit rate to be expected of `steps` steps after a start with empty slots, from what one prompt asked for: its first
/// steps, and again from the beginning with the slots as they are if it was shorter. None if it asked for nothing.
#[must_use]
pub fn forecast(policy: CachePolicy, slots: u32, requests: &Requests, steps: u64) -> Option<f64> {
    let wanted = steps.saturating_mul(u64::from(requests.layers));
    let mut asked = Requests { steps, lists: Vec::new(), alone: Vec::new(), ..requests.clone() };
    if !requests.lists.is_empty() {
        let lists = requests.lists.iter().cycle();
        asked.lists = lists.take(usize::try_from(wanted).unwrap_or(usize::MAX)).cloned().collect();
        asked.alone = requests.alone.iter().cycle().take(asked.lists.len()).copied().collect();
    }
    simulate(policy, slots, &asked, Known::default()).hit_rate()
}

/// Experts that were asked for, most often first; of equal ones that with the smaller number.
pub(super) fn most_used(shares: &[f64]) -> Vec<u32> {
    let mut experts: Vec<u32> = (0..shares.len() as u32).filter(|e| shares[*e as usize] > 0.0).collect();
    experts.sort_by(|a, b| shares[*b as usize].total_cmp(&shares[*a as usize]).then(a.cmp(b)));
    experts
}

/// For each expert of each request the number of the next request that asks for it.
fn next_uses(requests: &Requests) -> Vec<Vec<u64>> {
    let mut next = vec![u64::MAX; requests.experts() as usize];
    let mut uses: Vec<Vec<u64>> = Vec::with_capacity(requests.lists.len());
    for (number, list) in requests.lists.iter().enumerate().rev() {
        uses.push(
            list.iter().map(|&expert| std::mem::replace(&mut next[expert as usize], number as u64)).collect(),
        );
    }
    uses.reverse();
    uses
}

fn run(mut slots: Slots, requests: &Requests, future: Option<&[Vec<u64>]>) -> Parts {
    let mut parts = Parts::default();
    let mut evictions = 0;
    for (number, (list, alone)) in requests.lists.iter().zip(&requests.alone).enumerate() {
        for (&expert, &next) in list.iter().zip(future.map_or(&[][..], |future| &future[number])) {
            slots.foresee(expert, next);
        }
        slots.request(list);
        let hits = list.iter().filter(|expert| slots.has(**expert)).count() as u64;
        let misses = list.len() as u64 - hits;
        if future.is_some() {
            serve_one_by_one(&mut slots, list);
        } else {
            serve(&mut slots, list, number as u64 + 1);
        }
        let part = if *alone { &mut parts.tokens } else { &mut parts.chunks };
        part.requests += 1;
        part.outcome.hits += hits;
        part.outcome.misses += misses;
        part.outcome.bytes_read += misses * requests.expert_bytes;
        part.outcome.evictions += slots.evictions() - evictions;
        evictions = slots.evictions();
    }
    parts
}

/// One request as the cache serves it: what is there is held, what is not gets slots as long as there are any; when all of
/// these have been used and let go, the rest gets them.
fn serve(slots: &mut Slots, list: &[u32], fence: u64) {
    let mut waiting = list.to_vec();
    while !waiting.is_empty() {
        let mut held = Vec::new();
        waiting.retain(|&expert| {
            let there = slots.find(expert);
            if let Some(slot) = there {
                slots.pin(slot);
                held.push(slot);
            }
            there.is_none()
        });
        let assigned = waiting.iter().map_while(|&expert| {
            let slot = slots.take(expert)?;
            slots.pin(slot);
            slots.land(slot, Ok(()));
            held.push(slot);
            Some(())
        });
        let count = assigned.count();
        waiting.drain(..count);
        for slot in held {
            slots.unpin(slot, fence);
        }
        slots.retire(fence);
    }
}

/// The same with as few slots held as can be.
fn serve_one_by_one(slots: &mut Slots, list: &[u32]) {
    let missing: Vec<u32> = list.iter().copied().filter(|expert| !slots.has(*expert)).collect();
    for expert in missing {
        // Nothing is held, so there is always one that may go.
        if let Some(slot) = slots.take(expert) {
            slots.land(slot, Ok(()));
        }
    }
}
