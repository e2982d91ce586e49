//! Tests of the cache against files in memory. The experts here have two pieces and lie in their files in another order
//! than that of their numbers, as those of real checkpoints do.

mod arrivals;
mod book;
mod faults;
mod governed;
mod model;
mod simulated;
mod slots;

use super::*;
use crate::catalog::{CatalogBuilder, ExpertLayout, PieceSpec};
use crate::faulty_reader::{FaultyReader, Gate, MemoryReader};

const EXPERTS: u16 = 6;
const PACKED_BYTES: u64 = 96;
const PAYLOAD_BYTES: u64 = 128;
/// Offset of the first expert in a file: no multiple of anything.
const FILE_START: u64 = 13;

/// Layers 1 and 2 with six experts each; layer 1 lies in file 0, layer 2 in file 1.
fn catalog() -> Arc<Catalog> {
    let piece = |name: &str, bytes, row_bytes, forbidden| PieceSpec {
        name: name.to_owned(),
        bytes,
        row_bytes,
        forbidden,
    };
    let layout = ExpertLayout::new(vec![
        piece("packed", PACKED_BYTES, 16, None),
        piece("scale", PAYLOAD_BYTES - PACKED_BYTES, 8, Some(255)),
    ]);
    let mut builder = CatalogBuilder::new(layout.unwrap(), 1..3, EXPERTS);
    for id in all() {
        builder.place(id, "scale", file(id), start(id) + PACKED_BYTES).unwrap();
        builder.place(id, "packed", file(id), start(id)).unwrap();
    }
    Arc::new(builder.finish().unwrap())
}

fn id(layer: u16, expert: u16) -> ExpertId {
    ExpertId { layer, expert }
}

fn all() -> impl Iterator<Item = ExpertId> {
    (1..3).flat_map(|layer| (0..EXPERTS).map(move |expert| id(layer, expert)))
}

fn file(id: ExpertId) -> u32 {
    u32::from(id.layer) - 1
}

/// Where an expert starts in its file. The order on disk is 0 5 4 3 2 1.
fn start(id: ExpertId) -> u64 {
    FILE_START + u64::from((EXPERTS - id.expert) % EXPERTS) * PAYLOAD_BYTES
}

/// The calls that read these experts one after the other.
fn places(ids: &[ExpertId]) -> Vec<(u32, u64)> {
    ids.iter().map(|id| (file(*id), start(*id))).collect()
}

fn span(id: ExpertId) -> std::ops::Range<u64> {
    start(id)..start(id) + PAYLOAD_BYTES
}

/// Bytes that differ between experts and are never 255.
fn files() -> Vec<Vec<u8>> {
    let bytes = FILE_START + u64::from(EXPERTS) * PAYLOAD_BYTES;
    (0..2)
        .map(|file| (0..bytes).map(|place| ((place * 31 + file * 77 + place / 128) % 251) as u8).collect())
        .collect()
}

fn expected(id: ExpertId) -> Vec<u8> {
    let span = span(id);
    files()[file(id) as usize][span.start as usize..span.end as usize].to_vec()
}

fn faulty() -> FaultyReader {
    FaultyReader::new(Arc::new(MemoryReader::new(files())), 1)
}

/// A cache and the reader behind it.
fn cache(reader: FaultyReader, slots: u32, readers: u32) -> (ExpertCache, Arc<FaultyReader>) {
    let (slab, reader) = (Slab::new(slots, PAYLOAD_BYTES).unwrap(), Arc::new(reader));
    let behind = Arc::clone(&reader) as Arc<dyn Reader>;
    (ExpertCache::with_pause(catalog(), behind, slab, readers, Duration::ZERO).unwrap(), reader)
}

impl ExpertCache {
    /// Waits until nothing is on its way.
    fn settle(&mut self) {
        self.drain();
        while self.in_flight > 0 {
            self.wait(None);
        }
    }

    fn bytes(&self, lease: &Lease) -> Vec<u8> {
        let start = lease.payload_offset() as usize;
        self.slab.read(lease.slot())[start..start + PAYLOAD_BYTES as usize].to_vec()
    }

    /// Takes what arrives until nothing more does; true if the request is finished.
    fn pump(&mut self, request: &mut Request, into: &mut Vec<Arrival>) -> bool {
        loop {
            match self.next(request, None) {
                Next::Arrived(arrivals) => into.extend(arrivals),
                Next::NeedsSlots => return false,
                Next::Finished => return true,
                Next::TimedOut => panic!("there was no deadline"),
            }
        }
    }

    /// Requests experts of which all must arrive, checks their bytes and returns the leases by id.
    fn get(&mut self, ids: &[ExpertId]) -> Vec<Lease> {
        let (mut request, mut arrivals) = (self.request(ids), Vec::new());
        assert!(self.pump(&mut request, &mut arrivals));
        let mut leases: Vec<_> = arrivals.into_iter().map(|arrival| arrival.result.unwrap()).collect();
        leases.sort_by_key(Lease::id);
        for lease in &leases {
            assert_eq!(self.bytes(lease), expected(lease.id()), "{}", lease.id());
        }
        leases
    }

    /// Requests experts and releases them at once.
    fn touch(&mut self, ids: &[ExpertId]) {
        let leases = self.get(ids);
        self.release_leases(leases);
    }

    fn release_leases(&mut self, leases: Vec<Lease>) {
        for lease in leases {
            self.release(lease, 0);
        }
    }

    /// Requests one expert that must fail.
    fn fail(&mut self, id: ExpertId) -> ExpertError {
        let (mut request, mut arrivals) = (self.request(&[id]), Vec::new());
        assert!(self.pump(&mut request, &mut arrivals));
        assert_eq!((arrivals.len(), arrivals[0].id), (1, id));
        arrivals.remove(0).result.unwrap_err()
    }

    fn cached(&self) -> Vec<ExpertId> {
        all().filter(|id| self.place_of(*id).is_some()).collect()
    }
}
