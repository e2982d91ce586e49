//! Drives that fail: interrupted, short and failing reads under the checkpoint.

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use store::files::{DiskFiles, ListedFile};
use store::{Checkpoint, FileId, Files, StoreError};
use support::{original, shard};

/// What the drive does.
#[derive(Clone, Copy)]
enum Fault {
    /// Every second read is interrupted, the others give seven bytes at most.
    Stutters,
    /// Reads of the named shard fail.
    FailsIn(u32),
}

struct Faulty {
    files: DiskFiles,
    fault: Fault,
    reads: AtomicU32,
}

impl Files for Faulty {
    fn directories(&self) -> &[String] {
        self.files.directories()
    }

    fn list(&self) -> &[ListedFile] {
        self.files.list()
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        self.files.len(file)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Stutters if read.is_multiple_of(2) => Err(io::ErrorKind::Interrupted.into()),
            Fault::Stutters => {
                let count = into.len().min(1 + (read as usize * 7919) % 100_000);
                self.files.read_at(file, offset, &mut into[..count])
            }
            Fault::FailsIn(number) if self.list()[file.0 as usize].name == shard(number) => {
                Err(io::Error::other("Input/output error"))
            }
            Fault::FailsIn(_) => self.files.read_at(file, offset, into),
        }
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        self.files.path(file)
    }
}

fn open(fault: Fault) -> Result<Checkpoint, StoreError> {
    let files = DiskFiles::open(&[original()])?;
    Checkpoint::from_files(Arc::new(Faulty { files, fault, reads: AtomicU32::new(0) }))
}

#[test]
fn interrupted_and_short_reads_change_nothing() {
    let stuttering = open(Fault::Stutters).unwrap();
    let sound = Checkpoint::open(&[original()]).unwrap();
    for name in ["language_model.lm_head.weight", "language_model.model.layers.2.self_attn.A_log"] {
        let (one, other) = (stuttering.find(name).unwrap(), sound.find(name).unwrap());
        assert_eq!(stuttering.read_vec(one).unwrap(), sound.read_vec(other).unwrap());
    }
}

#[test]
fn failing_reads_name_the_shard_and_blame_the_drive() {
    let error = open(Fault::FailsIn(8)).err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&shard(8)) && text.contains("check the drive"), "{text}");
    assert!(matches!(error, StoreError::Read { offset: 0, .. }), "{error:?}");
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
