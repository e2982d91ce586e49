//! The experts of the tiny model through the cache, against the same tensors read one by one.

use std::path::Path;
use std::sync::Arc;

use memory::Slab;
use store::cache::{Lease, Next};
use store::faulty_reader::FaultyReader;
use store::{
    Catalog, CatalogBuilder, Checkpoint, Entry, ExpertCache, ExpertId, ExpertLayout, PieceSpec, Reader,
};

const LAYERS: std::ops::Range<u16> = 1..9;
const EXPERTS: u16 = 32;
const PIECES: [&str; 6] = [
    "w1.weight_packed",
    "w1.weight_scale",
    "w2.weight_packed",
    "w2.weight_scale",
    "w3.weight_packed",
    "w3.weight_scale",
];

fn checkpoint() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny");
    Checkpoint::open(&[folder]).expect("the tiny model opens")
}

fn all() -> impl Iterator<Item = ExpertId> {
    LAYERS.flat_map(|layer| (0..EXPERTS).map(move |expert| ExpertId { layer, expert }))
}

fn entry<'c>(checkpoint: &'c Checkpoint, id: ExpertId, piece: &str) -> &'c Entry {
    let ExpertId { layer, expert } = id;
    let name = format!("language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{piece}");
    checkpoint.find(&name).expect("the tensor is there")
}

/// The catalog of the tiny model with its pieces in the order given.
fn catalog(checkpoint: &Checkpoint, pieces: &[&str]) -> Arc<Catalog> {
    let first = ExpertId { layer: LAYERS.start, expert: 0 };
    let specs = pieces.iter().map(|piece| {
        let Entry { shape, bytes, .. } = entry(checkpoint, first, piece);
        let forbidden = piece.ends_with("scale").then_some(255);
        PieceSpec { name: (*piece).to_owned(), bytes: *bytes, row_bytes: shape[1], forbidden }
    });
    let mut builder = CatalogBuilder::new(ExpertLayout::new(specs.collect()).unwrap(), LAYERS, EXPERTS);
    for id in all() {
        for piece in pieces {
            let Entry { file, offset, .. } = entry(checkpoint, id, piece);
            builder.place(id, piece, file.0, *offset).unwrap();
        }
    }
    Arc::new(builder.finish().unwrap())
}

/// Requests `ids` with as few slots as there are, checks every piece, and returns the statistics' number of reads.
fn read_all(pieces: &[&str], slots: u32) -> u64 {
    let checkpoint = checkpoint();
    let catalog = catalog(&checkpoint, pieces);
    let slab = Slab::new(slots, catalog.layout().payload_bytes()).unwrap();
    let files: Arc<dyn Reader> = Arc::new(checkpoint.files());
    let reader = Arc::new(FaultyReader::new(files, 3).with_short_reads().with_interruptions());
    let mut cache = ExpertCache::new(Arc::clone(&catalog), reader, slab, 4).unwrap();
    let ids: Vec<_> = all().collect();
    let (mut request, mut arrived, mut fence) = (cache.request(&ids), 0, 0);
    let mut held: Vec<Lease> = Vec::new();
    loop {
        match cache.next(&mut request, None) {
            Next::Arrived(arrivals) => {
                held.extend(arrivals.into_iter().map(|arrival| arrival.result.unwrap()));
            }
            Next::NeedsSlots => {
                arrived += held.len();
                fence += 1;
                release_all(&mut cache, &mut held, &checkpoint, fence);
                cache.retire(fence);
            }
            Next::Finished => break,
            Next::TimedOut => unreachable!("there is no deadline"),
        }
    }
    arrived += held.len();
    release_all(&mut cache, &mut held, &checkpoint, fence);
    assert_eq!(arrived, ids.len());
    let statistics = cache.statistics();
    assert_eq!(statistics.bytes_read, ids.len() as u64 * catalog.layout().payload_bytes());
    statistics.reads
}

fn release_all(cache: &mut ExpertCache, held: &mut Vec<Lease>, checkpoint: &Checkpoint, fence: u64) {
    for lease in held.drain(..) {
        let slot = cache.slab().read(lease.slot());
        let payload = &slot[lease.payload_offset() as usize..];
        for (number, piece) in cache.catalog().layout().pieces().iter().enumerate() {
            let wanted = checkpoint.read_vec(entry(checkpoint, lease.id(), &piece.name)).unwrap();
            assert!(
                payload[cache.catalog().layout().range(number)] == wanted,
                "{} {}",
                lease.id(),
                piece.name
            );
        }
        drop(slot);
        cache.release(lease, fence);
    }
}

#[test]
fn the_released_order_is_one_read_an_expert() {
    for slots in [5, 256] {
        assert_eq!(read_all(&PIECES, slots), 256);
    }
}

#[test]
fn another_order_of_pieces_takes_more_reads_and_gives_the_same_tensors() {
    let mut pieces = PIECES;
    pieces.reverse();
    assert_eq!(read_all(&pieces, 40), 6 * 256);
}
