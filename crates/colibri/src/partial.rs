//! A checkpoint some of whose shards are absent, opened as far as it is there: the index is shown without what lies in
//! them. For looking at it, not for running it.
use crate::errors::Failure;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::files::{DiskFiles, ListedFile, find};
use store::{Checkpoint, FileId, Files, StoreError};

const INDEX: &str = "model.safetensors.index.json";

/// Absent shards by name, with the names of their tensors.
pub(crate) type Missing = BTreeMap<String, Vec<String>>;

/// Opens a model of which shards may be absent.
pub(crate) fn open(directories: &[PathBuf]) -> Result<(Checkpoint, Missing), Failure> {
    let missing = match Checkpoint::open(directories) {
        Ok(checkpoint) => return Ok((checkpoint, Missing::new())),
        Err(StoreError::MissingShards(missing)) => missing,
        Err(error) => return Err(error.into()),
    };
    let files = DiskFiles::open(directories)?;
    // That shards are missing was read from this very file.
    let Some(index) = find(&files, INDEX).next() else {
        return Err(StoreError::MissingShards(missing).into());
    };
    let location = files.location(index);
    let read = |source| Failure::Io { what: format!("reading {location}"), source };
    let mut bytes = vec![0; files.len(index).map_err(read)? as usize];
    files.read_exact_at(index, 0, &mut bytes).map_err(read)?;
    let (rest, lost) = split(&bytes, &missing.shards).map_err(|e| read(io::Error::other(e)))?;
    let shown = Shown { files, index, bytes: rest };
    Ok((Checkpoint::from_files(Arc::new(shown))?, lost))
}

/// An index without the tensors of some shards, and these.
fn split(bytes: &[u8], shards: &[String]) -> Result<(Vec<u8>, Missing), serde_json::Error> {
    let mut index: Value = serde_json::from_slice(bytes)?;
    let mut lost: Missing = shards.iter().map(|shard| (shard.clone(), Vec::new())).collect();
    // Its sum is of all shards.
    index["metadata"] = Value::Null;
    if let Some(map) = index["weight_map"].as_object_mut() {
        map.retain(|tensor, shard| {
            let place = shard.as_str().and_then(|shard| lost.get_mut(shard));
            place.map(|tensors| tensors.push(tensor.clone())).is_none()
        });
    }
    Ok((serde_json::to_vec(&index)?, lost))
}

/// Files of which one, the index, has other bytes.
struct Shown {
    files: DiskFiles,
    index: FileId,
    bytes: Vec<u8>,
}

impl Files for Shown {
    fn directories(&self) -> &[String] {
        self.files.directories()
    }

    fn list(&self) -> &[ListedFile] {
        self.files.list()
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        if file == self.index { Ok(self.bytes.len() as u64) } else { self.files.len(file) }
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if file != self.index {
            return self.files.read_at(file, offset, into);
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let count = into.len().min(self.bytes.len() - start);
        into[..count].copy_from_slice(&self.bytes[start..start + count]);
        Ok(count)
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        self.files.path(file)
    }
}
