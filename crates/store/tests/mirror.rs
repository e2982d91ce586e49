//! Two places of the same files: the same bytes whatever one of them does.

use proptest::prelude::*;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::faulty_reader::{FaultyReader, Gate, MemoryReader};
use store::reader::read_exact;
use store::{Access, Checkpoint, MirroredReader, Reader, StoreError};

fn bytes() -> Vec<u8> {
    (0..200_000_u32).map(|place| (place.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect()
}

fn place() -> FaultyReader {
    FaultyReader::new(Arc::new(MemoryReader::new(vec![bytes()])), 3)
}

fn mirrored(primary: &Arc<FaultyReader>, mirror: &Arc<FaultyReader>) -> MirroredReader {
    let (primary, mirror) = (Arc::clone(primary), Arc::clone(mirror));
    MirroredReader::new(primary, mirror, vec![Some(0)]).with_patience(Duration::from_mins(1))
}

fn read(reader: &dyn Reader, offset: u64, count: usize) -> Vec<u8> {
    let mut into = vec![0; count];
    read_exact(reader, 0, offset, &mut into).unwrap();
    into
}

#[test]
fn both_places_give_a_part() {
    let (primary, mirror) = (Arc::new(place()), Arc::new(place()));
    let reader = mirrored(&primary, &mirror);
    assert!(read(&reader, 1000, 150_000) == bytes()[1000..151_000]);
    assert!(primary.bytes() > 50_000 && mirror.bytes() > 50_000);
    // At the end of the file a read that goes past it ends there.
    let mut into = vec![0; 8192];
    assert_eq!(reader.read_at(0, 196_000, &mut into).unwrap(), 4000);
    assert!(into[..4000] == bytes()[196_000..]);
    assert_eq!(reader.read_at(0, 200_000, &mut into).unwrap(), 0);
}

#[test]
fn an_error_of_the_mirror_that_passes_is_not_seen_and_one_that_stays_leaves_the_primary() {
    let (primary, mirror) = (Arc::new(place()), Arc::new(place().failing_once(0, 0..200_000)));
    let reader = mirrored(&primary, &mirror);
    assert!(read(&reader, 0, 100_000) == bytes()[..100_000]);
    assert!(mirror.bytes() > 0);

    let (primary, mirror) = (Arc::new(place()), Arc::new(place().failing(0, 0..200_000)));
    let reader = mirrored(&primary, &mirror);
    assert!(read(&reader, 0, 100_000) == bytes()[..100_000]);
    let calls = mirror.calls().len();
    assert!(calls > 0);
    assert!(read(&reader, 7, 100_000) == bytes()[7..100_007]);
    assert_eq!(mirror.calls().len(), calls, "it is not asked again");
    assert_eq!(primary.bytes(), 200_000);
}

#[test]
fn a_mirror_that_hangs_is_given_up() {
    let gate = Gate::closed();
    let (primary, mirror) = (Arc::new(place()), Arc::new(place().with_gate(Arc::clone(&gate))));
    let reader = mirrored(&primary, &mirror).with_patience(Duration::from_millis(1));
    assert!(read(&reader, 0, 100_000) == bytes()[..100_000]);
    assert_eq!(primary.bytes(), 100_000);
    gate.open();
}

#[test]
fn a_mirror_that_was_cut_off_is_given_up() {
    let (primary, mirror) = (Arc::new(place()), Arc::new(place().truncated(0, 90_000)));
    let reader = mirrored(&primary, &mirror);
    assert!(read(&reader, 0, 200_000) == bytes());
    assert!(read(&reader, 95_000, 1000) == bytes()[95_000..96_000]);
}

#[test]
fn an_error_of_the_primary_is_answered_by_the_mirror() {
    let (primary, mirror) = (Arc::new(place().failing(0, 0..200_000)), Arc::new(place()));
    let reader = mirrored(&primary, &mirror);
    assert!(read(&reader, 3, 150_000) == bytes()[3..150_003]);
    // Where both fail it is the primary's error that is told.
    let both = Arc::new(place().failing(0, 0..200_000));
    let error = read_exact(&mirrored(&both, &both), 0, 0, &mut [0; 10_000]).unwrap_err();
    assert!(error.to_string().contains("memory file 0 failed 4 times"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn short_and_interrupted_reads_of_both_give_the_same_bytes(offset in 0..100_000_u64, count in 0..100_000_usize) {
        let faulty = || Arc::new(place().with_short_reads().with_interruptions());
        let reader = mirrored(&faulty(), &faulty());
        prop_assert!(read(&reader, offset, count) == bytes()[offset as usize..offset as usize + count]);
    }
}

/// A copy of the tiny model.
fn copy() -> io::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for entry in std::fs::read_dir(tiny())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
        }
    }
    Ok(folder)
}

fn tiny() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny")
}

#[test]
fn a_mirror_is_the_same_model_or_refused_by_name() {
    let checkpoint = Checkpoint::open(&[tiny()]).unwrap();
    let open =
        |folder: &Path| MirroredReader::open(&checkpoint, &[folder.to_owned()], Access::Direct).map(|_| ());
    let folder = copy().unwrap();
    open(folder.path()).unwrap();
    let told = |folder: &Path| {
        let error = open(folder).unwrap_err();
        assert!(matches!(error, StoreError::Mirror { .. }), "{error}");
        error.to_string()
    };
    assert!(told(&tiny()).contains("are one file"));
    let shard = folder.path().join("model-00003-of-000012.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    let mut other = whole.clone();
    let place = whole.iter().position(|byte| *byte == b'.').unwrap();
    other[place] = b'_';
    std::fs::write(&shard, &other).unwrap();
    assert!(told(folder.path()).contains("model-00003-of-000012.safetensors has another header than"));
    std::fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    assert!(told(folder.path()).contains(&format!("has {} bytes, but", whole.len())));
    std::fs::remove_file(&shard).unwrap();
    assert!(told(folder.path()).contains("model-00003-of-000012.safetensors is not in"));
}
