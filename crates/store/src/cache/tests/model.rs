//! Random use of the cache against a model of it: a few lists, without threads and without slots' numbers.
//!
//! What the device would read is locked (as a CPU device locks it) from the arrival until its submission is retired: a
//! slot that were refilled before would fail with `SlotHeld`, and its bytes would differ.

use super::*;
use memory::SlotRead;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
enum Action {
    /// Asks for experts and takes what arrives; what waited before is abandoned.
    Request(Vec<u16>),
    /// Asks for experts and gives the request up when all reads have landed.
    Abandon(Vec<u16>),
    /// Guesses, and waits until they have landed.
    Prefetch(Vec<u16>),
    /// Releases one of the held experts, with a new submission or the last one.
    Release(usize, bool),
    /// Completes some of the submissions that run.
    Retire(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let experts = || vec(0..12_u16, 1..8);
    prop_oneof![
        3 => experts().prop_map(Action::Request),
        1 => experts().prop_map(Action::Abandon),
        1 => experts().prop_map(Action::Prefetch),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(which, new)| Action::Release(which, new)),
        3 => (0..5_u64).prop_map(Action::Retire),
    ]
}

fn nth(number: u16) -> ExpertId {
    id(1 + number / EXPERTS, number % EXPERTS)
}

fn to_ids(numbers: &[u16]) -> Vec<ExpertId> {
    numbers.iter().map(|number| nth(*number)).collect()
}

/// What the cache should be.
#[derive(Debug, Default)]
struct Model {
    free: usize,
    /// Experts that nobody holds, with their fences; the one asked for longest ago first.
    idle: Vec<(ExpertId, u64)>,
    /// When each was asked for or guessed last, by a count of such calls for one expert.
    named: BTreeMap<ExpertId, u64>,
    /// Guesses whose layer has not been asked for since.
    guessed: BTreeSet<ExpertId>,
    /// Experts that somebody holds, with their fences and how often they are held.
    held: BTreeMap<ExpertId, (u64, usize)>,
    waiting: Vec<ExpertId>,
    completed: u64,
    /// Experts whose reads always fail.
    failing: BTreeSet<ExpertId>,
    /// Experts whose next read fails once.
    failing_once: BTreeSet<ExpertId>,
    /// Guesses that are there and that nobody has asked for.
    unused: BTreeSet<ExpertId>,
    statistics: CacheStatistics,
}

impl Model {
    fn each_once(ids: &[u16]) -> Vec<ExpertId> {
        ids.iter().map(|number| nth(*number)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn name(&mut self, id: ExpertId) {
        let count = self.named.values().max().unwrap_or(&0) + 1;
        self.named.insert(id, count);
    }

    /// The idle ones stand in the order of leaving.
    fn order(&mut self) {
        self.idle.sort_by_key(|(id, _)| (self.guessed.contains(id), self.named[id]));
    }

    fn has(&self, id: ExpertId) -> bool {
        self.held.contains_key(&id) || self.idle.iter().any(|(idle, _)| *idle == id)
    }

    fn pin(&mut self, id: ExpertId, fence: u64) {
        let place = self.idle.iter().position(|(idle, _)| *idle == id);
        let fence = place.map_or(fence, |place| self.idle.remove(place).1);
        self.held.entry(id).or_insert((fence, 0)).1 += 1;
    }

    fn unpin(&mut self, id: ExpertId, fence: u64) {
        let entry = self.held.get_mut(&id).unwrap();
        *entry = (entry.0.max(fence), entry.1 - 1);
        if entry.1 == 0 {
            let fence = self.held.remove(&id).unwrap().0;
            self.idle.push((id, fence));
            self.order();
        }
    }

    fn take_slot(&mut self) -> bool {
        if self.free > 0 {
            self.free -= 1;
            return true;
        }
        let Some(place) = self.idle.iter().position(|(_, fence)| *fence <= self.completed) else {
            return false;
        };
        let (evicted, _) = self.idle.remove(place);
        self.statistics.evictions += 1;
        if self.unused.remove(&evicted) {
            self.statistics.guesses_wasted += 1;
            self.statistics.bytes_guessed_wasted += PAYLOAD_BYTES;
        }
        true
    }

    /// Reads an expert into a slot taken for it; false if that fails.
    fn read(&mut self, id: ExpertId) -> bool {
        self.statistics.reads += 1;
        if self.failing.contains(&id) {
            self.statistics.retries += 3;
            self.statistics.failed += 1;
            self.free += 1;
            return false;
        }
        self.statistics.retries += u64::from(self.failing_once.remove(&id));
        self.statistics.bytes_read += PAYLOAD_BYTES;
        true
    }

    /// What arrives at once: the hits, then what gets a slot; with `true` for each that is whole.
    fn request(&mut self, ids: &[u16]) -> Vec<(ExpertId, bool)> {
        let (hits, misses): (Vec<_>, Vec<_>) = Self::each_once(ids).into_iter().partition(|id| self.has(*id));
        let both = Self::each_once(ids);
        self.guessed.retain(|id| both.iter().all(|asked| asked.layer != id.layer));
        for id in both {
            self.name(id);
        }
        self.order();
        self.statistics.hits += hits.len() as u64;
        self.statistics.misses += misses.len() as u64;
        for id in &hits {
            self.pin(*id, 0);
            if self.unused.remove(id) {
                self.statistics.hits_guessed += 1;
                self.statistics.guesses_used += 1;
                self.statistics.bytes_guessed_used += PAYLOAD_BYTES;
            }
        }
        self.waiting = misses;
        hits.into_iter().map(|id| (id, true)).chain(self.assign()).collect()
    }

    /// Gives slots to what waits, once. The slots of those that fail are free only afterwards.
    fn assign(&mut self) -> Vec<(ExpertId, bool)> {
        let waiting = std::mem::take(&mut self.waiting);
        let slots = waiting.iter().take_while(|_| self.take_slot()).count();
        self.waiting = waiting[slots..].to_vec();
        let mut arrived = Vec::new();
        for id in &waiting[..slots] {
            let whole = self.read(*id);
            if whole {
                self.pin(*id, 0);
                self.statistics.bytes_demanded += PAYLOAD_BYTES;
            }
            arrived.push((*id, whole));
        }
        arrived
    }

    /// Everything that arrives until the rest needs slots.
    fn pump(&mut self, mut arrived: Vec<(ExpertId, bool)>) -> Vec<(ExpertId, bool)> {
        loop {
            let more = self.assign();
            if more.is_empty() {
                arrived.sort_unstable();
                return arrived;
            }
            arrived.extend(more);
        }
    }

    fn prefetch(&mut self, ids: &[u16]) {
        if !self.waiting.is_empty() {
            return;
        }
        let (there, guesses): (Vec<_>, Vec<_>) =
            Self::each_once(ids).into_iter().partition(|id| self.has(*id));
        for id in &there {
            self.pin(*id, 0);
        }
        let slots = guesses.iter().take_while(|_| self.take_slot()).count();
        for id in &there {
            self.unpin(*id, 0);
        }
        for id in Self::each_once(ids) {
            if there.contains(&id) || guesses[..slots].contains(&id) {
                self.name(id);
                self.guessed.insert(id);
            }
        }
        let mut read = guesses[..slots].to_vec();
        read.sort_by_key(|id| (file(*id), start(*id)));
        for id in read {
            self.statistics.guesses += 1;
            if self.read(id) {
                self.idle.push((id, 0));
                self.unused.insert(id);
            } else {
                self.statistics.guesses_wasted += 1;
            }
        }
        self.order();
    }
}

/// A lease and the lock on what it leases, which stays until the fence is completed.
struct Use<'s> {
    lease: Option<Lease>,
    id: ExpertId,
    fence: u64,
    bytes: SlotRead<'s>,
}

/// The cache under test beside the model.
struct Pair<'s> {
    cache: ExpertCache,
    reader: Arc<FaultyReader>,
    slab: &'s Slab,
    model: Model,
    request: Option<Request>,
    uses: Vec<Use<'s>>,
    submitted: u64,
}

impl Pair<'_> {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Request(ids) => {
                self.give_up();
                let mut request = self.cache.request(&to_ids(ids));
                let arrived = self.model.request(ids);
                self.take_arrivals(&mut request, arrived);
                self.request = Some(request);
            }
            Action::Abandon(ids) => {
                self.give_up();
                let request = self.cache.request(&to_ids(ids));
                self.cache.settle();
                self.cache.abandon(request);
                let arrived = self.model.request(ids);
                for (id, _) in arrived.into_iter().filter(|(_, whole)| *whole) {
                    self.model.unpin(id, 0);
                }
                self.model.waiting.clear();
            }
            Action::Prefetch(ids) => {
                self.cache.prefetch(&to_ids(ids));
                self.cache.settle();
                self.model.prefetch(ids);
            }
            Action::Release(which, new) => self.release(*which, *new),
            Action::Retire(back) => {
                let completed = self.submitted.saturating_sub(*back);
                self.drop_completed(completed);
                self.cache.retire(completed);
                self.model.completed = self.model.completed.max(completed);
            }
        }
        self.go_on();
    }

    fn give_up(&mut self) {
        if let Some(request) = self.request.take() {
            self.cache.abandon(request);
        }
        self.model.waiting.clear();
    }

    fn release(&mut self, which: usize, new: bool) {
        let held: Vec<_> = (0..self.uses.len()).filter(|place| self.uses[*place].lease.is_some()).collect();
        if held.is_empty() {
            return;
        }
        self.submitted += u64::from(new);
        let released = &mut self.uses[held[which % held.len()]];
        released.fence = self.submitted;
        let (id, lease) = (released.id, released.lease.take().unwrap());
        self.drop_completed(self.model.completed);
        self.cache.release(lease, self.submitted);
        self.model.unpin(id, self.submitted);
    }

    /// The device lets go of what its completed submissions used.
    fn drop_completed(&mut self, completed: u64) {
        self.uses.retain(|held| held.lease.is_some() || held.fence > completed);
    }

    /// A request that waits for slots gets those that have become free.
    fn go_on(&mut self) {
        if let Some(mut request) = self.request.take() {
            self.take_arrivals(&mut request, Vec::new());
            self.request = (request.remaining() > 0).then_some(request);
        }
    }

    fn take_arrivals(&mut self, request: &mut Request, arrived: Vec<(ExpertId, bool)>) {
        let mut arrivals = Vec::new();
        let finished = self.cache.pump(request, &mut arrivals);
        let expected_arrivals = self.model.pump(arrived);
        let mut seen: Vec<_> = arrivals.iter().map(|arrival| (arrival.id, arrival.result.is_ok())).collect();
        seen.sort_unstable();
        assert_eq!(seen, expected_arrivals);
        assert_eq!(finished, self.model.waiting.is_empty());
        for arrival in arrivals {
            let Ok(lease) = arrival.result else { continue };
            let bytes = self.slab.read(lease.slot());
            self.uses.push(Use { id: lease.id(), lease: Some(lease), fence: 0, bytes });
        }
    }

    fn check(&self) {
        let statistics = CacheStatistics {
            wait: Duration::ZERO,
            busy: Duration::ZERO,
            under_way: Duration::ZERO,
            guesses_under_way: Duration::ZERO,
            most_under_way: 0,
            drives: 0,
            ..self.cache.statistics()
        };
        assert_eq!(statistics, self.model.statistics);
        assert_eq!(self.reader.bytes(), statistics.bytes_read);
        let idle: Vec<_> =
            self.cache.slots.idle_experts().iter().map(|e| self.cache.catalog.id(*e)).collect();
        assert_eq!(idle, self.model.idle.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        assert_eq!(self.cache.cached(), all().filter(|id| self.model.has(*id)).collect::<Vec<_>>());
        let slots: BTreeSet<_> = all().filter_map(|id| self.cache.place_of(id)).collect();
        assert_eq!(slots.len(), self.cache.cached().len(), "two experts in one slot");
        for held in &self.uses {
            assert_eq!(held.bytes[..PAYLOAD_BYTES as usize], expected(held.id), "{}", held.id);
        }
    }
}

#[derive(Debug, Clone)]
struct Setup {
    slots: u32,
    readers: u32,
    delays: bool,
    seed: u64,
    failing: BTreeSet<u16>,
    failing_once: BTreeSet<u16>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let experts = || proptest::collection::btree_set(0..12_u16, 0..3);
    let readers = prop_oneof![Just(1_u32), Just(8)];
    (1..10_u32, readers, any::<bool>(), any::<u64>(), experts(), experts()).prop_map(
        |(slots, readers, delays, seed, failing, failing_once)| {
            let failing_once = &failing_once - &failing;
            Setup { slots, readers, delays, seed, failing, failing_once }
        },
    )
}

fn reader(setup: &Setup) -> FaultyReader {
    let mut reader = FaultyReader::new(Arc::new(MemoryReader::new(files())), setup.seed)
        .with_short_reads()
        .with_interruptions();
    if setup.delays {
        reader = reader.with_delays(Duration::from_micros(50));
    }
    // The faults strike where an expert starts, so that the model knows that no byte of it came.
    for id in setup.failing.iter().map(|number| nth(*number)) {
        reader = reader.failing(file(id), start(id)..start(id) + 1);
    }
    for id in setup.failing_once.iter().map(|number| nth(*number)) {
        reader = reader.failing_once(file(id), start(id)..start(id) + 1);
    }
    reader
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_cache_is_what_the_model_says(setup in setup(), actions in vec(action(), 1..40)) {
        let (cache, reader) = cache(reader(&setup), setup.slots, setup.readers);
        // Every policy has a model of its own in the tests of the slots.
        let cache = cache.with_policy(CachePolicy::ALL[0]);
        let slab = Arc::clone(cache.slab());
        let to_set = |numbers: &BTreeSet<u16>| numbers.iter().map(|number| nth(*number)).collect();
        let model = Model {
            free: setup.slots as usize,
            failing: to_set(&setup.failing),
            failing_once: to_set(&setup.failing_once),
            ..Model::default()
        };
        let mut pair = Pair { cache, reader, slab: &slab, model, request: None, uses: Vec::new(), submitted: 0 };
        for action in &actions {
            // Several readers land guesses in any order, which shows in the order of eviction.
            if setup.readers > 1 && matches!(action, Action::Prefetch(_)) {
                continue;
            }
            pair.act(action);
            pair.check();
        }
    }
}
