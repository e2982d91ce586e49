//! A fresh copy of the tiny model for each test, and caches that the kernel may forbid.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::io;
use std::path::{Path, PathBuf};

use store::cache::CacheError;
use store::{Checkpoint, ExpertCache, StoreError, testing};
use tempfile::TempDir;

/// The tiny model in the repository.
pub(crate) fn original() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny")
}

/// The cache; `None` where the kernel forbids `io_uring`, as it does in many containers, unless it must be there
/// (`COLIBRI_TEST_URING`).
pub(crate) fn if_allowed(cache: Result<ExpertCache, CacheError>) -> Option<ExpertCache> {
    let forbidden = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
    match cache {
        Err(CacheError::Ring { source })
            if forbidden.contains(&source.kind()) && std::env::var_os("COLIBRI_TEST_URING").is_none() =>
        {
            None
        }
        cache => Some(cache.unwrap()),
    }
}

/// A copy of the tiny model; it goes away when this is dropped.
pub(crate) struct Model {
    folder: TempDir,
}

impl Model {
    pub(crate) fn new() -> Model {
        let folder = tempfile::tempdir().expect("temporary folder");
        testing::copy_model(&original(), &folder.path().join("model")).expect("copy");
        Model { folder }
    }

    /// The model directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// A file of the model.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Another place in the same temporary folder.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn open(&self) -> Result<Checkpoint, StoreError> {
        Checkpoint::open(&[self.path()])
    }

    /// The error that opening must give.
    pub(crate) fn refused(&self) -> StoreError {
        self.open().err().expect("the fault was not seen")
    }
}

/// Name of shard `number` of the tiny model.
pub(crate) fn shard(number: u32) -> String {
    format!("model-{number:05}-of-000012.safetensors")
}
