//! Drives that fail: interrupted, short, passing and lasting failures of reads under the checkpoint.

mod support;

use std::sync::Arc;

use store::faulty_reader::{FaultyReader, FilesThrough};
use store::files::{DiskFiles, find};
use store::{Checkpoint, Entry, Files, StoreError};
use support::{original, shard};

const HEAD: &str = "language_model.lm_head.weight";

/// The tiny model's files, and the number of one of its shards.
fn files(number: u32) -> (Arc<dyn Files>, u32) {
    let files = DiskFiles::open(&[original()]).unwrap();
    let file = find(&files, &shard(number)).next().unwrap();
    (Arc::new(files), file.0)
}

/// The tiny model on a drive with faults, which are told the number of the shard.
fn open(
    number: u32,
    faults: impl FnOnce(FaultyReader, u32) -> FaultyReader,
) -> (Result<Checkpoint, StoreError>, Arc<FaultyReader>) {
    let (files, file) = files(number);
    let faulty = Arc::new(faults(FaultyReader::new(Arc::new(Arc::clone(&files)), 3), file));
    (Checkpoint::from_files(FilesThrough::new(files, faulty.clone())), faulty)
}

/// The checkpoint without faults, and its head with its bytes; the head lies in shard 10.
fn sound() -> (Checkpoint, Entry, Vec<u8>) {
    let checkpoint = Checkpoint::open(&[original()]).unwrap();
    let head = checkpoint.find(HEAD).unwrap().clone();
    let bytes = checkpoint.read_vec(&head).unwrap();
    (checkpoint, head, bytes)
}

#[test]
fn interrupted_and_short_reads_change_nothing() {
    let (stuttering, faulty) = open(1, |faulty, _| faulty.with_interruptions().with_short_reads());
    let (stuttering, (sound, ..)) = (stuttering.unwrap(), sound());
    for name in [HEAD, "language_model.model.layers.2.self_attn.A_log"] {
        let (one, other) = (stuttering.find(name).unwrap(), sound.find(name).unwrap());
        assert_eq!(stuttering.read_vec(one).unwrap(), sound.read_vec(other).unwrap());
    }
    assert!(faulty.interruptions() > 0);
}

#[test]
fn failures_that_pass_are_not_noticed() {
    let (_, head, bytes) = sound();
    let place = head.offset + head.bytes / 2;
    let (checkpoint, faulty) = open(10, |faulty, file| {
        // Three times at the start, which takes all repetitions, and once in a tensor.
        faulty.failing_times(file, 0..1, 3).failing_once(file, place..place + 1)
    });
    assert_eq!(checkpoint.unwrap().read_vec(&head).unwrap(), bytes);
    let tries = |offset| faulty.calls().iter().filter(|call| **call == (head.file.0, offset)).count();
    // The length of the header is read by itself, and then the whole header, for its checksum.
    assert_eq!((tries(0), tries(place)), (4 + 1, 2));
}

#[test]
fn failures_that_stay_name_the_shard_and_blame_the_drive() {
    let (opened, faulty) = open(8, |faulty, file| faulty.failing(file, 0..u64::MAX));
    let error = opened.err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&shard(8)) && text.contains("failed 4 times: injected"), "{text}");
    assert!(text.contains("check the drive"), "{text}");
    assert!(matches!(error, StoreError::Read { offset: 0, attempts: 4, .. }), "{error:?}");
    let file = files(8).1;
    assert_eq!(faulty.calls().iter().filter(|call| call.0 == file).count(), 4);
}

#[test]
fn failures_and_ends_inside_a_tensor_are_named() {
    let (_, head, _) = sound();
    let place = head.offset + 1000;
    let (failing, _) = open(10, |faulty, file| faulty.failing(file, place..place + 1));
    let error = failing.unwrap().read_vec(&head).unwrap_err();
    assert!(error.to_string().contains(&shard(10)), "{error}");
    assert!(matches!(error, StoreError::Read { offset, attempts: 4, .. } if offset == place), "{error:?}");
    let (cut, _) = open(10, |faulty, file| faulty.truncated(file, place));
    let error = cut.unwrap().read_vec(&head).unwrap_err();
    assert!(error.to_string().contains(&shard(10)), "{error}");
    assert!(matches!(error, StoreError::ShortRead { offset, .. } if offset == head.offset), "{error:?}");
}

#[test]
fn many_threads_read_at_once() {
    let sound = Checkpoint::open(&[original()]).unwrap();
    let expected: Vec<Vec<u8>> = sound.under("").map(|(_, entry)| sound.read_vec(entry).unwrap()).collect();
    // A fresh list of files: the threads race to open each of them.
    let files = DiskFiles::open(&[original()]).unwrap();
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (files, sound, expected) = (&files, &sound, &expected);
            scope.spawn(move || {
                for ((_, entry), expected) in sound.under("").zip(expected).skip(first) {
                    let mut bytes = vec![0; expected.len()];
                    files.read_exact_at(entry.file, entry.offset, &mut bytes).unwrap();
                    assert_eq!(&bytes, expected);
                }
            });
        }
    });
}
