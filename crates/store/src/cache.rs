//! Experts on disk, read by threads into slots that devices use. It knows bytes and slots; no tensor, no device.
//!
//! One owner asks ([`ExpertCache::request`]), takes what arrives ([`ExpertCache::next`]), lets the device compute, and
//! gives the slots back with the number of the last submission that uses them ([`ExpertCache::release`]). Once it has
//! seen a submission complete it says so ([`ExpertCache::retire`]); only then may the slot be filled with another expert.
//! What is evicted is decided by a [policy](CachePolicy) from what was asked for and nothing else: when reads end changes no
//! count of hits. None of this changes a result, only when it is there.

mod busy;
mod causes;
mod counts;
mod error;
mod fetch;
#[cfg(target_os = "linux")]
mod fetch_ring;
pub mod governor;
pub mod policy;
mod preload;
mod pressure;
mod queue;
mod request;
pub mod simulate;
mod slots;
mod start;
#[cfg(test)]
mod tests;
mod watch;

pub use causes::CacheStatistics;
pub use error::{CacheError, ExpertError};
pub use policy::CachePolicy;
pub use request::{Arrival, Lease, Next, Request};
pub use watch::{ReadCause, ReadEnd, ReadSpan, UnderWay, Waiting, WatchReads};

use crate::catalog::{Catalog, ExpertId};
use crate::reader::{FIRST_PAUSE, Reader};
use busy::{Busy, BusyTime};
use causes::Causes;
use fetch::{Fetcher, Landing};
use governor::Governor;
use memory::Slab;
use policy::Ranking;
use queue::{Job, Promotion, Queue};
use request::{Event, Held, Pending};
use slots::{Slots, State};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watch::Watched;

/// The cache. Its reader threads end with it; what they have not begun is dropped.
///
/// ```
/// use memory::Slab;
/// use std::sync::Arc;
/// use store::cache::Next;
/// use store::files::{Files, MemoryFiles};
/// use store::{CatalogBuilder, ExpertCache, ExpertId, ExpertLayout, PieceSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Three experts of one piece each, one after the other in a file; a real catalog comes from a model's family.
/// let files: Arc<dyn Files> = Arc::new(MemoryFiles::new([("experts".into(), b"aaaabbbbcccc".into())]));
/// let piece = PieceSpec { name: "w".into(), bytes: 4, row_bytes: 4, forbidden: None };
/// let mut catalog = CatalogBuilder::new(ExpertLayout::new(vec![piece])?, 0..1, 3);
/// let id = |expert| ExpertId { layer: 0, expert };
/// for expert in 0..3 {
///     catalog.place(id(expert), "w", 0, u64::from(expert) * 4)?;
/// }
///
/// // Two slots and one thread that reads.
/// let slab = Slab::new(2, 4)?;
/// let mut cache = ExpertCache::new(Arc::new(catalog.finish()?), Arc::new(files), Arc::clone(&slab), 1)?;
/// let mut request = cache.request(&[id(2), id(0)]);
/// while let Next::Arrived(experts) = cache.next(&mut request, None) {
///     for arrival in experts {
///         let lease = arrival.result?;
///         let letter = slab.read(lease.slot())[lease.payload_offset() as usize];
///         assert_eq!(letter, if arrival.id == id(2) { b'c' } else { b'a' });
///         // The submission of a device that uses it last; its slot is filled again when that is done.
///         cache.release(lease, 1);
///     }
/// }
/// cache.retire(1);
/// assert_eq!((cache.statistics().misses, cache.statistics().bytes_read), (2, 8));
/// # Ok(())
/// # }
/// ```
pub struct ExpertCache {
    catalog: Arc<Catalog>,
    slab: Arc<Slab>,
    slots: Slots,
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// Kept to be given to requests and leases.
    events: Sender<Event>,
    arrivals: Receiver<Event>,
    /// Jobs that were queued and have neither landed nor been taken back.
    in_flight: usize,
    /// Experts without a slot, over all requests.
    waiting: usize,
    /// Slots of leases that were dropped.
    lost: Vec<u32>,
    /// For every slot where the payload begins in it.
    payloads: Vec<u64>,
    /// For every slot why its expert was read.
    causes: Causes,
    /// The clocks of the drives.
    busy: Arc<[Busy]>,
    /// Who is told of reads.
    watched: Watched,
    /// Knows which drive a file lies on.
    reader: Arc<dyn Reader>,
    statistics: CacheStatistics,
    /// Who watches memory, if anybody does.
    governor: Option<Box<Governor>>,
    /// The fewest slots that were to be used so far.
    slots_least: u32,
    /// Room for the experts of one call, kept from call to call.
    sorted: Vec<u32>,
    /// Room for the jobs of one call.
    jobs: Vec<Job>,
}

impl ExpertCache {
    /// Starts `readers` threads for each drive that read the experts of `catalog` through `reader` into the slots of `slab`;
    /// with a ring one thread that has so many reads under way.
    ///
    /// # Errors
    /// [`CacheError::SlotTooSmall`], [`CacheError::NoReaders`], [`CacheError::Thread`], [`CacheError::Memory`],
    /// [`CacheError::Ring`].
    pub fn new(
        catalog: Arc<Catalog>,
        reader: Arc<dyn Reader>,
        slab: Arc<Slab>,
        readers: u32,
    ) -> Result<Self, CacheError> {
        Self::with_pause(catalog, reader, slab, readers, FIRST_PAUSE)
    }

    /// As [`ExpertCache::new`] with the pause before the first repetition of a failed read.
    fn with_pause(
        catalog: Arc<Catalog>,
        reader: Arc<dyn Reader>,
        slab: Arc<Slab>,
        readers: u32,
        first_pause: Duration,
    ) -> Result<Self, CacheError> {
        let (payload_bytes, slot_bytes) = (catalog.layout().payload_bytes(), slab.slot_bytes());
        if payload_bytes > slot_bytes {
            return Err(CacheError::SlotTooSmall { payload_bytes, slot_bytes });
        }
        if readers == 0 {
            return Err(CacheError::NoReaders);
        }
        let (events, arrivals) = mpsc::channel();
        let drives = reader.drives();
        let watched = Watched::default();
        let queue = Arc::new(Queue::new(drives, &watched));
        let busy: Arc<[Busy]> = (0..drives).map(|drive| Busy::new(drive, &watched)).collect();
        let mut cache = Self {
            slots: Slots::new(slab.slots(), ranking(CachePolicy::default(), &catalog)),
            catalog: Arc::clone(&catalog),
            slab: Arc::clone(&slab),
            queue: Arc::clone(&queue),
            threads: Vec::new(),
            events: events.clone(),
            arrivals,
            in_flight: 0,
            waiting: 0,
            lost: Vec::new(),
            payloads: vec![0; slab.slots() as usize],
            causes: Causes::new(slab.slots()),
            busy: Arc::clone(&busy),
            watched: watched.clone(),
            reader: Arc::clone(&reader),
            statistics: CacheStatistics { drives: drives as u32, ..CacheStatistics::default() },
            governor: None,
            slots_least: slab.slots(),
            sorted: Vec::new(),
            jobs: Vec::new(),
        };
        // On an error the cache is dropped, which ends the threads that have been started.
        let fetcher = Fetcher { catalog, reader, slab, queue, events, busy, first_pause, watched, number: 0 };
        cache.start(&fetcher, readers)?;
        Ok(cache)
    }

    /// The same with another policy; for a cache that has not been used.
    #[must_use]
    pub fn with_policy(mut self, policy: CachePolicy) -> Self {
        self.slots = Slots::new(self.slab.slots(), ranking(policy, &self.catalog));
        self
    }

    /// It is known from earlier runs in which share of all steps each expert is asked for, in the order of layers and experts.
    /// Policies that count begin with that.
    pub fn expect(&mut self, shares: &[f64]) {
        self.slots.expect(shares);
    }

    /// Keeps experts for good once they are there: those of the list, from its start, that leave half of the slots (those of
    /// their layers, where layers share slots out) to others. How many these are. Unknown experts are ignored.
    pub fn keep(&mut self, ids: &[ExpertId]) -> u32 {
        let experts: Vec<u32> = ids.iter().filter_map(|id| self.catalog.index(*id)).collect();
        self.slots.fix(&experts)
    }

    /// The catalog it reads by.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The memory it reads into.
    #[must_use]
    pub fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Counts since the cache was made. Landings are counted when the owner next calls the cache.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let times = self.busy.iter().map(Busy::so_far).fold(BusyTime::default(), |sum, drive| sum + drive);
        let BusyTime { busy, reads, guesses, most } = times;
        let evictions = self.slots.evictions();
        CacheStatistics {
            evictions,
            busy,
            under_way: reads,
            guesses_under_way: guesses,
            most_under_way: most,
            ..self.statistics
        }
    }

    /// The slot of an expert that is there, and where its payload begins in it ([`Lease::payload_offset`]). It stays
    /// there only while a lease is held, or for good when every expert has been loaded ([`ExpertCache::preload`]).
    #[must_use]
    pub fn place_of(&self, id: ExpertId) -> Option<(u32, u64)> {
        let slot = self.slots.find(self.catalog.index(id)?)?;
        self.slots.is_ready(slot).then(|| (slot, self.payloads[slot as usize]))
    }

    /// A read of an expert into a slot, by the drive on which it begins.
    fn job(&self, slot: u32, expert: u32) -> Job {
        let (file, _) = self.catalog.disk_order(expert);
        Job::new(slot, expert, self.reader.drive(file))
    }

    /// Asks for experts, each once however often it is named. Those that are there are held from now on. Those that are
    /// not get free slots, else those of the experts that the policy lets go, and are read in disk order; those for which
    /// there is no slot wait inside the request. All of them, and what goes wrong, come through [`ExpertCache::next`].
    pub fn request(&mut self, ids: &[ExpertId]) -> Request {
        self.drain();
        self.govern();
        let mut request = Request::new(self.events.clone());
        self.sort(ids, &mut request.held.refused);
        let sorted = std::mem::take(&mut self.sorted);
        self.slots.request(&sorted);
        for &expert in &sorted {
            self.count_request(expert);
        }
        self.probe(&sorted);
        request.held.waiting.extend_from_slice(&sorted);
        self.sorted = sorted;
        let wanted = request.held.waiting.len();
        self.waiting += wanted;
        self.assign(&mut request.held);
        tracing::trace!(
            wanted,
            waiting = request.held.waiting.len(),
            in_flight = self.in_flight,
            "experts are requested"
        );
        request
    }

    fn count_request(&mut self, expert: u32) {
        let slot = self.slots.find(expert);
        let counts = &mut self.statistics;
        match slot {
            Some(slot) if self.slots.is_ready(slot) => {
                counts.hits += 1;
                counts.hits_guessed += u64::from(self.causes.is_guess(slot));
            }
            Some(_) => {
                counts.misses += 1;
                counts.misses_on_the_way += 1;
            }
            None => counts.misses += 1,
        }
    }

    /// Returns every expert of the request that is here, and waits for one if there is none yet, at most for `deadline`
    /// if there is one.
    pub fn next(&mut self, request: &mut Request, deadline: Option<Duration>) -> Next {
        let until = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        loop {
            self.drain();
            self.assign(&mut request.held);
            let arrivals = self.collect(&mut request.held);
            if !arrivals.is_empty() {
                return Next::Arrived(arrivals);
            }
            if request.held.is_empty() {
                return Next::Finished;
            }
            if self.in_flight == 0 {
                tracing::debug!(
                    waiting = request.held.waiting.len(),
                    slots = self.slots.len(),
                    "a wave ends: slots are needed"
                );
                return Next::NeedsSlots;
            }
            if !self.wait(until) {
                return Next::TimedOut;
            }
        }
    }

    /// Gives a slot back. `fence` is the number of the last submission that uses it, 0 if none does.
    ///
    /// # Panics
    /// If the lease comes from another cache.
    pub fn release(&mut self, lease: Lease, fence: u64) {
        self.slots.unpin(lease.end(), fence);
        self.trim();
    }

    /// Says that all submissions up to number `completed` have ended: slots they used may be filled anew.
    pub fn retire(&mut self, completed: u64) {
        self.slots.retire(completed);
        self.trim();
    }

    /// Gives back what a request holds. Reads that have begun land and stay in the cache; others are dropped.
    pub fn abandon(&mut self, mut request: Request) {
        let held = std::mem::take(&mut request.held);
        self.let_go(&held);
    }

    /// Makes the slots of leases that were dropped usable again and returns how many there were. Nobody knows which
    /// submissions use them, so the caller vouches that every submission has ended. For the way out of a failed step.
    pub fn reclaim_lost(&mut self) -> usize {
        self.drain();
        let lost = std::mem::take(&mut self.lost);
        for &slot in &lost {
            self.slots.unpin(slot, 0);
        }
        lost.len()
    }

    /// Reads experts that may be wanted soon, as far as there are free slots or experts that nobody holds, and as long as
    /// no request waits for a slot. Those already there become the last to be evicted. Unknown experts are ignored.
    pub fn prefetch(&mut self, ids: &[ExpertId]) {
        self.drain();
        if self.waiting > 0 {
            return;
        }
        self.sort(ids, &mut Vec::new());
        let sorted = std::mem::take(&mut self.sorted);
        // Held while slots are looked for, so that one guess does not evict another.
        let held: Vec<u32> = sorted.iter().filter_map(|&expert| self.slots.find(expert)).collect();
        for &slot in &held {
            self.slots.pin(slot);
        }
        self.jobs.clear();
        for &expert in &sorted {
            if self.slots.find(expert).is_none() {
                let Some(slot) = self.slots.take(expert) else { break };
                self.causes.refill(slot, true, &mut self.statistics);
                self.jobs.push(self.job(slot, expert));
            }
        }
        for slot in held {
            self.slots.unpin(slot, 0);
        }
        for &expert in &sorted {
            if self.slots.find(expert).is_some() {
                self.slots.guess(expert);
            }
        }
        self.sorted = sorted;
        self.jobs.sort_unstable_by_key(|job| self.catalog.disk_order(job.expert));
        self.in_flight += self.jobs.len();
        self.queue.guess(&self.jobs);
    }

    /// Drops guesses that no thread is at: what they were for has been asked for by now.
    pub fn forget_guesses(&mut self) {
        while let Some(guess) = self.queue.take_last_guess() {
            self.give_up(&guess);
        }
    }

    /// Puts the indices of `ids` into `self.sorted`, in ascending order and each once.
    fn sort(&mut self, ids: &[ExpertId], refused: &mut Vec<ExpertError>) {
        self.sorted.clear();
        for &id in ids {
            match self.catalog.index(id) {
                Some(expert) => self.sorted.push(expert),
                None if refused.iter().any(|error| error.id() == id) => {}
                None => {
                    let (layers, experts) = (self.catalog.layers(), self.catalog.experts_per_layer());
                    refused.push(ExpertError::Unknown { id, layers, experts });
                }
            }
        }
        self.sorted.sort_unstable();
        self.sorted.dedup();
    }

    /// Gives slots to what waits in a request, as far as there are any, and queues the reads.
    fn assign(&mut self, held: &mut Held) {
        if held.waiting.is_empty() {
            return;
        }
        self.waiting -= held.waiting.len();
        self.jobs.clear();
        // First what has a slot, so that no expert of this request is evicted for another one.
        let waiting = std::mem::take(&mut held.waiting);
        for expert in waiting {
            let Some(slot) = self.slots.find(expert) else {
                held.waiting.push(expert);
                continue;
            };
            self.ask(slot);
            self.slots.pin(slot);
            held.pending.push(Pending { expert, slot });
        }
        let mut assigned = 0;
        for &expert in &held.waiting {
            let Some(slot) = self.take(expert) else { break };
            self.slots.pin(slot);
            held.pending.push(Pending { expert, slot });
            self.jobs.push(self.job(slot, expert));
            assigned += 1;
        }
        held.waiting.drain(..assigned);
        self.waiting += held.waiting.len();
        self.jobs.sort_unstable_by_key(|job| self.catalog.disk_order(job.expert));
        self.in_flight += self.jobs.len();
        self.queue.demand(&self.jobs);
    }

    /// Somebody asks for an expert that has a slot. A guess that waits takes its place among the demanded, one that is
    /// being read goes on as if it had been demanded.
    fn ask(&mut self, slot: u32) {
        let ready = self.slots.is_ready(slot);
        let mut begun = true;
        if !ready && let Promotion::Waited(job) = self.queue.promote(slot) {
            begun = job.has_begun();
            self.jobs.push(job);
            self.in_flight -= 1;
        }
        self.causes.ask(slot, begun, ready, &mut self.statistics);
    }

    /// A slot for an expert that somebody waits for; in need that of a guess that no thread is at.
    fn take(&mut self, expert: u32) -> Option<u32> {
        let slot = self.slots.take(expert).or_else(|| {
            let guess = self.queue.take_last_guess()?;
            self.give_up(&guess);
            self.slots.take(expert)
        })?;
        self.causes.refill(slot, false, &mut self.statistics);
        Some(slot)
    }

    /// A job was taken back: its slot is free again.
    fn give_up(&mut self, job: &Job) {
        self.in_flight -= 1;
        self.slots.withdraw(job.slot);
        if job.has_begun() {
            self.causes.count(job.slot, &job.count, &mut self.statistics);
            self.causes.waste(job.slot, &mut self.statistics);
        } else {
            self.causes.withdraw(job.slot, &mut self.statistics);
        }
    }

    /// Takes everything out of a request that has landed.
    fn collect(&mut self, held: &mut Held) -> Vec<Arrival> {
        let refused = held.refused.drain(..);
        let mut arrivals: Vec<_> =
            refused.map(|error| Arrival { id: error.id(), result: Err(error) }).collect();
        held.pending.retain(|&Pending { expert, slot }| {
            let id = self.catalog.id(expert);
            let result = match self.slots.state(slot) {
                State::Free | State::Reading => return true,
                State::Ready => {
                    let place = (slot, self.payloads[slot as usize]);
                    Ok(Lease::new(id, place, self.events.clone()))
                }
                State::Failed(error) => Err(error.clone()),
            };
            if result.is_err() {
                self.slots.unpin(slot, 0);
            }
            arrivals.push(Arrival { id, result });
            false
        });
        arrivals
    }

    /// Waits for an event and takes it in; false if the time was over first.
    fn wait(&mut self, until: Option<Instant>) -> bool {
        let start = Instant::now();
        let event = match until {
            Some(until) => self.arrivals.recv_timeout(until.saturating_duration_since(start)).ok(),
            // It cannot be disconnected: the cache holds a sender itself.
            None => self.arrivals.recv().ok(),
        };
        self.statistics.wait += start.elapsed();
        let Some(event) = event else { return false };
        self.take_in(event);
        true
    }

    /// Takes in all events that are here.
    fn drain(&mut self) {
        while let Ok(event) = self.arrivals.try_recv() {
            self.take_in(event);
        }
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Landed(Landing { slot, result, count }) => {
                self.in_flight -= 1;
                self.causes.count(slot, &count, &mut self.statistics);
                if result.is_err() {
                    self.statistics.failed += 1;
                    self.causes.waste(slot, &mut self.statistics);
                }
                let landed = result.map(|payload| self.payloads[slot as usize] = payload);
                self.slots.land(slot, landed);
            }
            Event::Dropped(held) => self.let_go(&held),
            Event::Lost(slot) => {
                self.statistics.lost_leases += 1;
                self.lost.push(slot);
            }
        }
    }

    /// Gives back the pins of a request and drops its reads that have not begun, unless somebody else waits for them.
    fn let_go(&mut self, held: &Held) {
        self.waiting -= held.waiting.len();
        for &Pending { slot, .. } in &held.pending {
            self.slots.unpin(slot, 0);
            if self.slots.is_unwanted_read(slot)
                && let Some(job) = self.queue.take(slot)
            {
                self.give_up(&job);
            }
        }
    }
}

fn ranking(policy: CachePolicy, catalog: &Catalog) -> Ranking {
    Ranking::new(policy, catalog.layers().len() as u32, u32::from(catalog.experts_per_layer()))
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // Panics of readers are caught and reported as errors of their experts.
            let _ = thread.join();
        }
    }
}
