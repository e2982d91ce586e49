//! A checkpoint that is not whole, opened as far as it is there: shards that are absent or damaged are set aside one after
//! the other, and the index is shown without what lies in them. For looking at it, not for running it.
use crate::errors::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use store::checkpoint::{INDEX, SINGLE};
use store::container;
use store::files::{DiskFiles, ListedFile, in_first_directory};
use store::{Checkpoint, FileId, Files, StoreError};

/// Shards by name, with the names of their tensors as far as the index tells.
pub(crate) type Shards = BTreeMap<String, Vec<String>>;

/// A checkpoint without what is wrong with it.
pub(crate) struct Partial {
    /// What can be read.
    pub(crate) checkpoint: Checkpoint,
    /// Shards that are not there.
    pub(crate) absent: Shards,
    /// Shards that are there and of no use.
    pub(crate) damaged: Shards,
    /// Why, and what else was set aside.
    pub(crate) faults: Vec<String>,
}

impl Partial {
    /// One that is whole.
    pub(crate) fn whole(checkpoint: Checkpoint) -> Self {
        Partial { checkpoint, absent: Shards::new(), damaged: Shards::new(), faults: Vec::new() }
    }

    /// Names of tensors that lie in shards that were set aside.
    pub(crate) fn lost(&self) -> impl Iterator<Item = &str> {
        self.absent.values().chain(self.damaged.values()).flatten().map(String::as_str)
    }
}

/// Opens a model of which shards may be absent or damaged.
///
/// # Errors
/// What is not the fault of a shard: no directory, no config, no index.
pub(crate) fn open(directories: &[PathBuf]) -> Result<Partial, Failure> {
    let mut shown = Shown::new(DiskFiles::open(&container::directories(directories)?)?);
    let mut index = None;
    let (mut absent, mut damaged, mut faults) = (Shards::new(), Shards::new(), Vec::new());
    loop {
        let error = match Checkpoint::from_files(Arc::new(shown.clone())) {
            Ok(checkpoint) => return Ok(Partial { checkpoint, absent, damaged, faults }),
            Err(error) => error,
        };
        let mut lost = Shards::new();
        let (progress, aside) = match &error {
            StoreError::MissingShards(missing) => {
                let new = missing.shards.iter().filter(|shard| !absent.contains_key(*shard));
                lost.extend(new.map(|shard| (shard.clone(), Vec::new())));
                (!lost.is_empty(), &mut absent)
            }
            StoreError::Several(several) => {
                (shown.hide(&several.faults, &mut lost, &mut faults), &mut damaged)
            }
            fault => (shown.hide(slice::from_ref(fault), &mut lost, &mut faults), &mut damaged),
        };
        if !progress {
            return Err(error.into());
        }
        shown.forget(&mut lost, &mut index)?;
        aside.append(&mut lost);
    }
}

/// The file that is to blame for an error, and whether the shard of its name is lost with it: not if there is another
/// file of that name, or if the file was no shard at all.
fn culprit(error: &StoreError) -> Option<(&str, bool)> {
    match error {
        StoreError::BrokenLink { path, .. }
        | StoreError::Unreadable { path, .. }
        | StoreError::EmptyFile { path }
        | StoreError::WrongContent { path, .. }
        | StoreError::UnfinishedDownload { path, .. }
        | StoreError::HeaderLength { path, .. }
        | StoreError::TruncatedHeader { path, .. }
        | StoreError::Header { path, .. }
        | StoreError::UnknownDtype { path, .. }
        | StoreError::Offsets { path, .. }
        | StoreError::Overlap { path, .. }
        | StoreError::TrailingBytes { path, .. } => Some((path, true)),
        StoreError::TensorSize(details) => Some((&details.path, true)),
        StoreError::Truncated(details) => Some((&details.path, true)),
        StoreError::NotInShard(details) => Some((&details.shard, true)),
        StoreError::DuplicateTensor { second, .. } => Some((second, true)),
        StoreError::DuplicateShard { second, .. } => Some((second, false)),
        StoreError::UnindexedShard { path, .. } => Some((path, false)),
        _ => None,
    }
}

/// The index, parsed once, without the shards that were set aside.
struct Index {
    file: FileId,
    content: Value,
}

/// Files of which some are not shown, and of which one, the index, may have other bytes.
#[derive(Clone)]
struct Shown {
    files: Arc<DiskFiles>,
    /// A file that is not shown has no name; an index that is not there is the last.
    list: Vec<ListedFile>,
    index: Option<(FileId, Arc<[u8]>)>,
}

impl Shown {
    fn new(files: DiskFiles) -> Self {
        let list = files.list().to_vec();
        Shown { files: Arc::new(files), list, index: None }
    }

    /// Hides the files that are to blame, and names the shards that are lost with them; whether there was one.
    fn hide(&mut self, errors: &[StoreError], lost: &mut Shards, faults: &mut Vec<String>) -> bool {
        let before = faults.len();
        for fault in errors {
            let Some((path, with_shard)) = culprit(fault) else { continue };
            let shown = |place: &usize| {
                let name = &self.list[*place].name;
                name.ends_with(".safetensors") && self.files.location(FileId(*place as u32)) == path
            };
            let Some(place) = (0..self.files.list().len()).find(shown) else { continue };
            let name = std::mem::take(&mut self.list[place].name);
            faults.push(fault.to_string());
            if with_shard {
                lost.insert(name, Vec::new());
            }
        }
        faults.len() > before
    }

    /// Takes shards out of the index, all in one pass, for it may have half a million entries; notes the names of their
    /// tensors. `index` is what this left of it the last time.
    fn forget(&mut self, lost: &mut Shards, index: &mut Option<Index>) -> Result<(), Failure> {
        if lost.is_empty() {
            return Ok(());
        }
        if index.is_none() {
            *index = self.index_without_sum(lost)?;
        }
        let Some(index) = index else { return Ok(()) };
        if let Some(map) = index.content.get_mut("weight_map").and_then(Value::as_object_mut) {
            map.retain(|tensor, shard| {
                let tensors = shard.as_str().and_then(|shard| lost.get_mut(shard));
                tensors.map(|tensors| tensors.push(tensor.clone())).is_none()
            });
        }
        self.index = Some((index.file, index.content.to_string().into_bytes().into()));
        Ok(())
    }

    /// The index as it is on disk, or an empty one if the only shard of a model without an index is lost; without its
    /// sum of all shards.
    fn index_without_sum(&mut self, lost: &Shards) -> Result<Option<Index>, Failure> {
        let (file, mut content) = match in_first_directory(&*self.files, INDEX) {
            Some(file) => (file, self.parse(file)?),
            None if lost.contains_key(SINGLE) => {
                self.list.push(ListedFile { name: INDEX.to_owned(), directory: 0 });
                (FileId(self.list.len() as u32 - 1), json!({ "weight_map": {} }))
            }
            None => return Ok(None),
        };
        if let Some(fields) = content.as_object_mut() {
            fields.remove("metadata");
        }
        Ok(Some(Index { file, content }))
    }

    fn parse(&self, index: FileId) -> Result<Value, Failure> {
        let location = self.location(index);
        let failed = |source| Failure::Io { what: format!("reading {location}"), source };
        let mut bytes = vec![0; self.len(index).map_err(failed)? as usize];
        self.read_exact_at(index, 0, &mut bytes).map_err(failed)?;
        serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))
    }

    fn replaced(&self, file: FileId) -> Option<&[u8]> {
        self.index.as_ref().filter(|(index, _)| *index == file).map(|(_, bytes)| &**bytes)
    }
}

impl Files for Shown {
    fn directories(&self) -> &[String] {
        self.files.directories()
    }

    fn list(&self) -> &[ListedFile] {
        &self.list
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        self.replaced(file).map_or_else(|| self.files.len(file), |bytes| Ok(bytes.len() as u64))
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(bytes) = self.replaced(file) else { return self.files.read_at(file, offset, into) };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let count = into.len().min(bytes.len() - start);
        into[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        let on_disk = (file.0 as usize) < self.files.list().len();
        if on_disk { self.files.path(file) } else { None }
    }
}
