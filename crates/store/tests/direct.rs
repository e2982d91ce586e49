//! Experts that lie across the blocks of real files, read past the file cache and through it, in slices and in one go, by
//! threads of one drive and of several: the same bytes, each read once.

mod support;

use memory::Slab;
use proptest::prelude::*;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::cache::{Arrival, CacheStatistics, Lease, Next};
use store::disk_reader::DIRECT_ALIGNMENT;
use store::faulty_reader::{FaultyReader, Gate, MemoryReader};
use store::files::{DiskFiles, FileId, Files, ListedFile};
use store::{
    Access, Catalog, CatalogBuilder, DiskReader, ExpertCache, ExpertId, ExpertLayout, PieceSpec, Reader,
};
use support::if_allowed;

/// A slice of a guess.
const SLICE: u64 = 1 << 20;

fn id(expert: u16) -> ExpertId {
    ExpertId { layer: 0, expert }
}

fn piece(name: &str, bytes: u64) -> PieceSpec {
    PieceSpec { name: name.to_owned(), bytes, row_bytes: 1, forbidden: None }
}

/// Experts of two pieces in a file, the first at `start`. The second piece follows the first, or lies before it.
struct Layout {
    start: u64,
    first: u64,
    second: u64,
    experts: u16,
    swapped: bool,
}

impl Layout {
    fn places(&self, expert: u16) -> [u64; 2] {
        let at = self.start + u64::from(expert) * (self.first + self.second);
        if self.swapped { [at + self.second, at] } else { [at, at + self.first] }
    }

    fn catalog(&self, file: u32) -> Arc<Catalog> {
        let layout = ExpertLayout::new(vec![piece("a", self.first), piece("b", self.second)]).unwrap();
        let mut builder = CatalogBuilder::new(layout, 0..1, self.experts);
        for expert in 0..self.experts {
            let [a, b] = self.places(expert);
            builder.place(id(expert), "a", file, a).unwrap();
            builder.place(id(expert), "b", file, b).unwrap();
        }
        Arc::new(builder.finish().unwrap())
    }

    /// The file ends with its last expert, wherever in a block that is.
    fn bytes(&self) -> Vec<u8> {
        let bytes = self.start + u64::from(self.experts) * (self.first + self.second);
        (0..bytes).map(|place| (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    }

    fn check(&self, cache: &ExpertCache, lease: &Lease, file: &[u8]) {
        let slot = cache.slab().read(lease.slot());
        let payload = &slot[lease.payload_offset() as usize..];
        let wanted = self.places(lease.id().expert).map(|place| &file[place as usize..]);
        for (number, wanted) in wanted.into_iter().enumerate() {
            let range = cache.catalog().layout().range(number);
            assert!(payload[range.clone()] == wanted[..range.len()], "{} piece {number}", lease.id());
        }
    }
}

fn written(layout: &Layout) -> (tempfile::TempDir, Arc<dyn Files>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = layout.bytes();
    std::fs::write(folder.path().join("experts.safetensors"), &bytes).unwrap();
    let files = DiskFiles::open(&[folder.path().to_owned()]).unwrap();
    (folder, Arc::new(files), bytes)
}

/// Everything that arrives.
fn pump(cache: &mut ExpertCache, ids: &[ExpertId]) -> Vec<Arrival> {
    let mut request = cache.request(ids);
    let mut all = Vec::new();
    loop {
        match cache.next(&mut request, None) {
            Next::Arrived(arrivals) => all.extend(arrivals),
            Next::Finished => return all,
            other => panic!("{other:?}"),
        }
    }
}

/// Gets all experts, one after the other, after guesses; returns what was counted.
fn read_all(layout: &Layout, cache: &mut ExpertCache, bytes: &[u8], guesses: &[ExpertId]) -> CacheStatistics {
    for expert in 0..layout.experts {
        cache.prefetch(guesses);
        for arrival in pump(cache, &[id(expert)]) {
            let lease = arrival.result.unwrap();
            layout.check(cache, &lease, bytes);
            cache.release(lease, 0);
        }
    }
    cache.statistics()
}

#[test]
fn direct_reads_bring_the_blocks_around_an_expert_in_one_go() {
    let layout =
        Layout { start: 4096 * 3 + 968, first: 2_000_000, second: 12_345, experts: 3, swapped: false };
    // In the second slab the slots have no room for the blocks around.
    let payload = layout.catalog(0).layout().payload_bytes();
    for (access, slot_bytes) in [
        (Access::Direct, layout.catalog(0).layout().slot_bytes()),
        (Access::Uring, layout.catalog(0).layout().slot_bytes()),
        (Access::Direct, payload),
        (Access::Uring, payload),
        (Access::Buffered, payload),
    ] {
        let (_folder, files, bytes) = written(&layout);
        let reader = Arc::new(DiskReader::new(files, access));
        let align = reader.alignment(0);
        assert!(access != Access::Buffered || align == 1);
        assert_eq!(reader.notes().is_empty(), align == DIRECT_ALIGNMENT || access == Access::Buffered);
        let slab = Slab::new(1, slot_bytes).unwrap();
        let room = slab.slot_bytes();
        let Some(mut cache) = if_allowed(ExpertCache::new(layout.catalog(0), reader, slab, 2)) else {
            continue;
        };
        let statistics = read_all(&layout, &mut cache, &bytes, &[]);
        let whole = 3 * payload;
        assert!(statistics.bytes_read >= whole && statistics.bytes_demanded == statistics.bytes_read);
        let blocks = |expert| (layout.places(expert)[0] % align + payload).next_multiple_of(align);
        if (0..3).all(|expert| blocks(expert) <= room) {
            assert_eq!(statistics.reads, 3, "one read an expert");
            let arrival = pump(&mut cache, &[id(2)]).remove(0).result.unwrap();
            assert_eq!(arrival.payload_offset(), layout.places(2)[0] % align);
            cache.release(arrival, 0);
        }
    }
}

#[test]
fn a_guess_that_is_wanted_on_its_way_is_read_once() {
    let layout = Layout { start: 8, first: 3 * SLICE, second: 1000, experts: 3, swapped: false };
    let gate = Gate::closed();
    let memory = Arc::new(MemoryReader::new(vec![layout.bytes()]));
    let reader = Arc::new(FaultyReader::new(memory, 1).with_gate(Arc::clone(&gate)));
    let catalog = layout.catalog(0);
    let payload = catalog.layout().payload_bytes();
    let behind = Arc::clone(&reader) as Arc<dyn Reader>;
    let mut cache = ExpertCache::new(catalog, behind, Slab::new(3, payload).unwrap(), 1).unwrap();
    cache.prefetch(&[id(0), id(1)]);
    gate.wait_for(1); // the first slice of expert 0
    let mut request = cache.request(&[id(0)]);
    gate.open();
    let Next::Arrived(arrivals) = cache.next(&mut request, None) else { panic!("it arrives") };
    let lease = arrivals.into_iter().next().unwrap().result.unwrap();
    layout.check(&cache, &lease, &layout.bytes());
    cache.release(lease, 0);
    assert_eq!(reader.calls()[..2], [(0, 8), (0, 8 + SLICE)], "the rest in one read");
    let statistics = cache.statistics();
    assert_eq!((statistics.misses, statistics.misses_on_the_way, statistics.guesses_used), (1, 1, 1));
    assert_eq!((statistics.bytes_guessed_used, statistics.bytes_demanded), (payload, 0));
}

#[test]
fn a_demand_waits_for_one_slice_of_a_guess() {
    let layout = Layout { start: 0, first: 3 * SLICE, second: 16, experts: 4, swapped: false };
    let size = 3 * SLICE + 16;
    let gate = Gate::closed();
    let memory = Arc::new(MemoryReader::new(vec![layout.bytes()]));
    let reader = Arc::new(FaultyReader::new(memory, 1).with_gate(Arc::clone(&gate)));
    let behind = Arc::clone(&reader) as Arc<dyn Reader>;
    let catalog = layout.catalog(0);
    let mut cache = ExpertCache::new(catalog, behind, Slab::new(4, size).unwrap(), 1).unwrap();
    cache.prefetch(&[id(0), id(1)]);
    gate.wait_for(1);
    let mut request = cache.request(&[id(3), id(2)]);
    gate.open();
    let mut arrived = 0;
    while let Next::Arrived(arrivals) = cache.next(&mut request, None) {
        for arrival in arrivals {
            let lease = arrival.result.unwrap();
            layout.check(&cache, &lease, &layout.bytes());
            cache.release(lease, 0);
            arrived += 1;
        }
    }
    assert_eq!(arrived, 2);
    // The guess goes on where it was, and the other one after it.
    for arrival in pump(&mut cache, &[id(0), id(1)]) {
        let lease = arrival.result.unwrap();
        layout.check(&cache, &lease, &layout.bytes());
        cache.release(lease, 0);
    }
    assert_eq!(reader.calls()[..3], [(0, 0), (0, 2 * size), (0, 3 * size)]);
    let of_guess: Vec<_> = reader.calls().into_iter().filter(|call| call.1 < size).collect();
    assert!(of_guess.is_sorted() && of_guess[1] == (0, SLICE), "{of_guess:?}");
    assert_eq!(reader.bytes(), 4 * size, "nothing twice");
}

#[test]
fn a_guess_in_vain_is_counted_when_it_is_thrown_out() {
    let layout = Layout { start: 0, first: 100, second: 28, experts: 3, swapped: false };
    let reader = Arc::new(MemoryReader::new(vec![layout.bytes()]));
    let mut cache = ExpertCache::new(layout.catalog(0), reader, Slab::new(1, 140).unwrap(), 1).unwrap();
    let statistics = read_all(&layout, &mut cache, &layout.bytes(), &[id(0)]);
    let CacheStatistics { guesses, guesses_used, guesses_wasted, guesses_withdrawn, .. } = statistics;
    assert_eq!(guesses, guesses_used + guesses_wasted + guesses_withdrawn, "{statistics:?}");
    assert!(guesses >= 2, "{statistics:?}");
    let CacheStatistics { bytes_demanded, bytes_guessed_used, bytes_guessed_wasted, .. } = statistics;
    assert_eq!(statistics.bytes_read, bytes_demanded + bytes_guessed_used + bytes_guessed_wasted);
}

/// Two files on two drives, one of which hangs.
struct TwoDrives {
    quick: MemoryReader,
    slow: FaultyReader,
}

impl Reader for TwoDrives {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if file == 0 { self.quick.read_at(0, offset, into) } else { self.slow.read_at(0, offset, into) }
    }

    fn file_name(&self, file: u32) -> String {
        format!("file {file}")
    }

    fn drive(&self, file: u32) -> usize {
        file as usize
    }

    fn drives(&self) -> usize {
        2
    }
}

#[test]
fn a_drive_that_hangs_holds_up_no_other() {
    let layout = ExpertLayout::new(vec![piece("a", 64)]).unwrap();
    let mut builder = CatalogBuilder::new(layout, 0..1, 12);
    for expert in 0..12_u16 {
        builder.place(id(expert), "a", u32::from(expert % 2), u64::from(expert / 2) * 64).unwrap();
    }
    let gate = Gate::closed();
    let memory = || MemoryReader::new(vec![vec![7; 6 * 64]]);
    let slow = FaultyReader::new(Arc::new(memory()), 1).with_gate(Arc::clone(&gate));
    let reader = Arc::new(TwoDrives { quick: memory(), slow });
    let slab = Slab::new(12, 64).unwrap();
    let mut cache = ExpertCache::new(Arc::new(builder.finish().unwrap()), reader, slab, 1).unwrap();
    let all: Vec<_> = (0..12).map(id).collect();
    let mut request = cache.request(&all);
    let mut arrived = Vec::new();
    while arrived.len() < 6 {
        let Next::Arrived(arrivals) = cache.next(&mut request, None) else { panic!("the quick drive works") };
        for arrival in arrivals {
            arrived.push(arrival.id.expert);
            cache.release(arrival.result.unwrap(), 0);
        }
    }
    assert!(arrived.iter().all(|expert| expert % 2 == 0), "{arrived:?}");
    assert!(matches!(cache.next(&mut request, Some(Duration::from_millis(1))), Next::TimedOut));
    gate.open();
    while let Next::Arrived(arrivals) = cache.next(&mut request, None) {
        for arrival in arrivals {
            arrived.push(arrival.id.expert);
            cache.release(arrival.result.unwrap(), 0);
        }
    }
    assert_eq!((arrived.len(), cache.statistics().drives), (12, 2));
}

#[test]
fn faults_under_direct_reads_are_survived_or_named() {
    let layout = Layout { start: 968, first: 2_500_000, second: 777, experts: 4, swapped: true };
    let (_folder, files, bytes) = written(&layout);
    let direct = || Arc::new(DiskReader::new(Arc::clone(&files), Access::Direct));
    let start = layout.places(2)[1];
    let reader = FaultyReader::new(direct(), 5)
        .with_short_reads()
        .with_interruptions()
        .failing_once(0, start / 4096 * 4096..start + 1);
    let slab = || Slab::new(2, layout.catalog(0).layout().slot_bytes()).unwrap();
    let mut cache = ExpertCache::new(layout.catalog(0), Arc::new(reader), slab(), 2).unwrap();
    let statistics = read_all(&layout, &mut cache, &bytes, &[id(3), id(1)]);
    assert_eq!((statistics.retries, statistics.failed), (1, 0));
}

#[test]
fn a_file_that_is_cut_off_meanwhile_is_named_and_what_is_left_is_read() {
    for access in Access::ALL {
        for swapped in [false, true] {
            let layout = Layout { start: 968, first: 2_500_000, second: 777, experts: 4, swapped };
            let (folder, files, bytes) = written(&layout);
            let slab = Slab::new(2, layout.catalog(0).layout().slot_bytes()).unwrap();
            let reader = Arc::new(DiskReader::new(files, access));
            let Some(mut cache) = if_allowed(ExpertCache::new(layout.catalog(0), reader, slab, 2)) else {
                continue;
            };
            let path = folder.path().join("experts.safetensors");
            let cut = layout.places(3)[0] + 5;
            std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
            for arrival in pump(&mut cache, &[id(3), id(0)]) {
                if arrival.id == id(0) {
                    let lease = arrival.result.unwrap();
                    layout.check(&cache, &lease, &bytes);
                    cache.release(lease, 0);
                    continue;
                }
                let error = arrival.result.unwrap_err();
                let source = std::error::Error::source(&error).unwrap().to_string();
                let end = format!("experts.safetensors ends at byte {cut},");
                assert!(source.contains(&end) && source.contains("cut off"), "{source}");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_meanwhile_goes_on_giving_what_it_held() {
    let layout = Layout { start: 968, first: 100_000, second: 777, experts: 4, swapped: false };
    let (folder, files, bytes) = written(&layout);
    let reader = Arc::new(DiskReader::new(files, Access::Direct));
    let slab = Slab::new(1, layout.catalog(0).layout().slot_bytes()).unwrap();
    let mut cache = ExpertCache::new(layout.catalog(0), reader, slab, 1).unwrap();
    read_all(&layout, &mut cache, &bytes, &[]);
    // As a program that writes a copy and moves it over the old one does.
    let other = folder.path().join("other");
    std::fs::write(&other, vec![0; bytes.len()]).unwrap();
    std::fs::rename(&other, folder.path().join("experts.safetensors")).unwrap();
    read_all(&layout, &mut cache, &bytes, &[]);
}

#[test]
fn two_caches_read_one_file_at_once() {
    let layout = Layout { start: 968, first: 1_500_000, second: 777, experts: 4, swapped: false };
    let (folder, _, bytes) = written(&layout);
    std::thread::scope(|scope| {
        for access in [Access::Direct, Access::Buffered, Access::Direct] {
            let (layout, bytes, folder) = (&layout, &bytes, folder.path());
            scope.spawn(move || {
                let files: Arc<dyn Files> = Arc::new(DiskFiles::open(&[folder.to_owned()]).unwrap());
                let slab = Slab::new(2, layout.catalog(0).layout().slot_bytes()).unwrap();
                let reader = Arc::new(DiskReader::new(files, access));
                let mut cache = ExpertCache::new(layout.catalog(0), reader, slab, 2).unwrap();
                read_all(layout, &mut cache, bytes, &[id(1), id(2)]);
            });
        }
    });
}

/// One file of the system that takes no direct reads.
#[cfg(target_os = "linux")]
struct Kernel(Vec<ListedFile>);

#[cfg(target_os = "linux")]
impl Files for Kernel {
    fn directories(&self) -> &[String] {
        &[]
    }

    fn list(&self) -> &[ListedFile] {
        &self.0
    }

    fn len(&self, _file: FileId) -> io::Result<u64> {
        Ok(0)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = std::fs::read(self.path(file).unwrap())?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn path(&self, _file: FileId) -> Option<&Path> {
        Some(Path::new("/proc/version"))
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_system_without_direct_reads_is_named_and_read_through_the_cache() {
    let files = Arc::new(Kernel(vec![ListedFile { name: "a.safetensors".to_owned(), directory: 0 }]));
    let reader = DiskReader::new(files, Access::Direct);
    let [note] = reader.notes() else { panic!("{:?}", reader.notes()) };
    assert!(note.starts_with("the file system of /proc takes no direct reads ("), "{note}");
    assert_eq!(reader.alignment(0), 1);
    let mut word = [0; 5];
    assert_eq!(reader.read_at(0, 0, &mut word).unwrap(), 5);
    assert_eq!(&word, b"Linux");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_way_gives_the_same_bytes(
        (start, first, second) in (0..10_000_u64, 1..2_200_000_u64, 1..9_000_u64),
        swapped in any::<bool>(),
        access in proptest::sample::select(&Access::ALL[..]),
        (slots, readers, room) in (1..5_u32, 1..5_u32, any::<bool>()),
        guesses in proptest::collection::vec(0..4_u16, 0..4),
    ) {
        let layout = Layout { start, first, second, experts: 4, swapped };
        let (_folder, files, bytes) = written(&layout);
        let reader = Arc::new(DiskReader::new(files, access));
        let catalog = layout.catalog(0);
        let sizes = catalog.layout();
        let slab = Slab::new(slots, if room { sizes.slot_bytes() } else { sizes.payload_bytes() }).unwrap();
        let guesses: Vec<_> = guesses.into_iter().map(id).collect();
        let Some(mut cache) = if_allowed(ExpertCache::new(catalog, reader, slab, readers)) else { return Ok(()) };
        read_all(&layout, &mut cache, &bytes, &guesses);
    }
}
