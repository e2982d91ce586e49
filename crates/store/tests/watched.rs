//! What a watcher of reads is told: every byte once, why it was read, how it ended, and what was under way meanwhile.

mod support;

use memory::Slab;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::cache::{ExpertError, Next, ReadCause, ReadEnd, ReadSpan, UnderWay, Waiting, WatchReads};
use store::faulty_reader::{FaultyReader, Gate, MemoryReader};
use store::files::DiskFiles;
use store::{
    Access, Catalog, CatalogBuilder, DiskReader, ExpertCache, ExpertId, ExpertLayout, PieceSpec, Reader,
};
use support::if_allowed;

/// A slice of a guess.
const SLICE: u64 = 1 << 20;
const EXPERT: u64 = 3 * SLICE + 16;
const EXPERTS: u16 = 6;
const START: u64 = 4096;

/// Keeps all that it is told.
#[derive(Default)]
struct Told {
    reads: Mutex<Vec<ReadSpan>>,
    under_way: Mutex<Vec<UnderWay>>,
    waiting: Mutex<Vec<Waiting>>,
}

impl WatchReads for Told {
    fn read(&self, read: &ReadSpan) {
        self.reads.lock().unwrap().push(read.clone());
    }

    fn under_way(&self, counts: &UnderWay) {
        self.under_way.lock().unwrap().push(*counts);
    }

    fn waiting(&self, counts: &Waiting) {
        self.waiting.lock().unwrap().push(*counts);
    }
}

impl Told {
    fn reads(&self) -> Vec<ReadSpan> {
        self.reads.lock().unwrap().clone()
    }

    /// What was told of an expert: why, how it ended, bytes.
    fn of(&self, expert: u16) -> Vec<(ReadCause, ReadEnd, u64)> {
        let reads = self.reads().into_iter().filter(|read| read.id == id(expert));
        reads.map(|read| (read.cause, read.end, read.bytes)).collect()
    }

    fn bytes(&self) -> u64 {
        self.reads().iter().map(|read| read.bytes).sum()
    }

    /// The counts in the order of their instants, which is not that in which threads told of them.
    fn in_time<T: Copy>(counts: &Mutex<Vec<T>>, at: impl Fn(&T) -> Instant) -> Vec<T> {
        let mut counts = counts.lock().unwrap().clone();
        counts.sort_by_key(at);
        counts
    }
}

fn id(expert: u16) -> ExpertId {
    ExpertId { layer: 0, expert }
}

fn catalog() -> Arc<Catalog> {
    let piece = PieceSpec { name: "w".to_owned(), bytes: EXPERT, row_bytes: 1, forbidden: None };
    let mut builder = CatalogBuilder::new(ExpertLayout::new(vec![piece]).unwrap(), 0..1, EXPERTS);
    for expert in 0..EXPERTS {
        builder.place(id(expert), "w", 0, START + u64::from(expert) * EXPERT).unwrap();
    }
    Arc::new(builder.finish().unwrap())
}

fn file() -> Vec<u8> {
    vec![7; (START + u64::from(EXPERTS) * EXPERT) as usize]
}

/// A cache over a file in memory, watched.
fn watched(faults: impl FnOnce(FaultyReader) -> FaultyReader, readers: u32) -> (ExpertCache, Arc<Told>) {
    let reader = faults(FaultyReader::new(Arc::new(MemoryReader::new(vec![file()])), 1));
    let slab = Slab::new(u32::from(EXPERTS), EXPERT).unwrap();
    let cache = ExpertCache::new(catalog(), Arc::new(reader), slab, readers).unwrap();
    let told = Arc::new(Told::default());
    assert!(cache.watch(told.clone()));
    assert!(!cache.watch(Arc::new(Told::default())), "the first one stays");
    (cache, told)
}

/// Gets experts and gives them back; what failed.
fn get(cache: &mut ExpertCache, experts: &[u16]) -> Vec<ExpertError> {
    let ids: Vec<_> = experts.iter().map(|&expert| id(expert)).collect();
    let mut request = cache.request(&ids);
    let mut failed = Vec::new();
    while let Next::Arrived(arrivals) = cache.next(&mut request, None) {
        for arrival in arrivals {
            match arrival.result {
                Ok(lease) => cache.release(lease, 0),
                Err(error) => failed.push(error),
            }
        }
    }
    failed
}

/// Spans of one thread follow each other.
fn assert_one_after_the_other(reads: &[ReadSpan]) {
    let mut by_thread: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for read in reads {
        by_thread.entry((read.drive, read.reader)).or_default().push(read.span.clone());
    }
    for (thread, spans) in by_thread {
        assert!(spans.is_sorted_by(|a, b| a.end <= b.start), "{thread:?}: {spans:?}");
    }
}

#[test]
fn every_byte_is_told_once_and_counts_end_at_nothing() {
    let (mut cache, told) = watched(|reader| reader, 3);
    assert!(get(&mut cache, &[5, 0, 2, 3]).is_empty());
    assert!(get(&mut cache, &[5, 1]).is_empty());
    let statistics = cache.statistics();
    drop(cache);
    let reads = told.reads();
    assert_eq!((reads.len(), told.bytes()), (5, statistics.bytes_read));
    for read in &reads {
        assert_eq!((read.cause, read.end, read.retries), (ReadCause::Demand, ReadEnd::Whole, 0));
        assert_eq!(read.place, (0, START + u64::from(read.id.expert) * EXPERT));
        assert!(read.drive == 0 && read.reader < 3 && read.span.start <= read.span.end);
    }
    assert_one_after_the_other(&reads);
    let under_way = Told::in_time(&told.under_way, |counts| counts.at);
    assert_eq!(under_way.last().map(|counts| (counts.reads, counts.guesses)), Some((0, 0)));
    let most = under_way.iter().map(|counts| counts.reads).max();
    assert_eq!(most, Some(statistics.most_under_way));
    let waiting = Told::in_time(&told.waiting, |counts| counts.at);
    assert_eq!(waiting.last().map(|counts| (counts.demanded, counts.guessed)), Some((0, 0)));
    assert_eq!(waiting.iter().map(|counts| counts.demanded).max(), Some(4));
    assert!(statistics.under_way >= statistics.busy && statistics.guesses_under_way == Duration::ZERO);
}

#[test]
fn a_guess_is_told_as_what_became_of_it() {
    let gate = Gate::closed();
    let (mut cache, told) = watched(|reader| reader.with_gate(Arc::clone(&gate)), 1);
    cache.prefetch(&[id(0), id(1)]);
    gate.wait_for(1); // the first slice of expert 0
    let mut request = cache.request(&[id(0)]);
    gate.open();
    while let Next::Arrived(arrivals) = cache.next(&mut request, None) {
        for arrival in arrivals {
            cache.release(arrival.result.unwrap(), 0);
        }
    }
    assert_eq!(told.of(0), [(ReadCause::WantedGuess, ReadEnd::Whole, EXPERT)]);
    // The other guess is let go on until it is there.
    while cache.place_of(id(1)).is_none() {
        cache.prefetch(&[]);
        std::thread::yield_now();
    }
    assert_eq!(told.of(1), [(ReadCause::Guess, ReadEnd::Whole, EXPERT)]);
    assert!(told.under_way.lock().unwrap().iter().any(|counts| (counts.reads, counts.guesses) == (1, 1)));
    assert!(told.waiting.lock().unwrap().iter().any(|counts| counts.guessed == 2));
    assert!(cache.statistics().guesses_under_way > Duration::ZERO);
}

#[test]
fn a_guess_that_gives_way_is_told_in_parts() {
    let gate = Gate::closed();
    let (mut cache, told) = watched(|reader| reader.with_gate(Arc::clone(&gate)), 1);
    cache.prefetch(&[id(0)]);
    gate.wait_for(1);
    let mut request = cache.request(&[id(3)]);
    gate.open();
    while let Next::Arrived(arrivals) = cache.next(&mut request, None) {
        for arrival in arrivals {
            cache.release(arrival.result.unwrap(), 0);
        }
    }
    assert!(get(&mut cache, &[0]).is_empty());
    let parts = told.of(0);
    assert_eq!(parts[0], (ReadCause::Guess, ReadEnd::Part, SLICE));
    assert_eq!(parts.iter().map(|part| part.2).sum::<u64>(), EXPERT);
    // Whether it is asked for before the last slice is a matter of time.
    assert!(parts.len() == 2 && parts[1].0 != ReadCause::Demand && parts[1].1 == ReadEnd::Whole, "{parts:?}");
    assert_eq!(told.of(3), [(ReadCause::Demand, ReadEnd::Whole, EXPERT)]);
    assert_one_after_the_other(&told.reads());
}

#[test]
fn failures_and_repetitions_are_told() {
    let place = |expert: u64| START + expert * EXPERT..START + (expert + 1) * EXPERT;
    let (mut cache, told) =
        watched(|reader| reader.failing_once(0, place(1)).failing(0, place(2).start + 100..place(2).end), 2);
    assert_eq!(get(&mut cache, &[0, 1, 2]).len(), 1);
    let of = |expert| told.reads().into_iter().find(|read| read.id == id(expert)).unwrap();
    assert_eq!((of(1).end, of(1).retries, of(1).bytes), (ReadEnd::Whole, 1, EXPERT));
    assert_eq!((of(2).end, of(2).retries, of(2).bytes), (ReadEnd::Failed, 3, 100));
    assert_eq!(told.bytes(), cache.statistics().bytes_read);
}

/// A ring has several experts under way in one thread, so their times overlap.
#[test]
fn reads_of_a_ring_are_told_as_those_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("experts.safetensors"), file()).unwrap();
    let files = Arc::new(DiskFiles::open(&[folder.path().to_owned()]).unwrap());
    let reader: Arc<dyn Reader> = Arc::new(DiskReader::new(files, Access::Uring));
    let slab = Slab::new(u32::from(EXPERTS), catalog().layout().slot_bytes()).unwrap();
    let Some(mut cache) = if_allowed(ExpertCache::new(catalog(), reader, slab, 3)) else { return };
    let told = Arc::new(Told::default());
    cache.watch(told.clone());
    cache.prefetch(&[id(4)]);
    assert!(get(&mut cache, &[0, 1, 2, 3, 5]).is_empty());
    assert!(get(&mut cache, &[4]).is_empty());
    let statistics = cache.statistics();
    drop(cache);
    assert_eq!(told.bytes(), statistics.bytes_read);
    for expert in 0..EXPERTS {
        let parts = told.of(expert);
        assert_eq!(parts.iter().filter(|part| part.1 == ReadEnd::Whole).count(), 1, "{expert}: {parts:?}");
        // Whether the guess has its turn before it is asked for is a matter of time.
        let was_guess = expert == 4 && statistics.guesses_used == 1;
        assert_eq!(was_guess, parts[0].0 != ReadCause::Demand, "{expert}: {parts:?}");
    }
    let under_way = Told::in_time(&told.under_way, |counts| counts.at);
    assert_eq!(under_way.last().map(|counts| (counts.reads, counts.guesses)), Some((0, 0)));
    assert!(under_way.iter().all(|counts| counts.reads <= 3), "no more than the ring may have");
}
