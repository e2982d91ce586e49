//! Tensors where they lie in their files, mapped instead of read. Knows files and places; no tensor's meaning.

use std::collections::HashMap;
use std::sync::Arc;

use memory::{MappedFile, MappedPart};

use crate::error::StoreError;
use crate::files::{FileId, Files};
use crate::safetensors::Entry;

/// Maps files as a whole, each when a tensor of it is first asked for.
pub struct Mappings {
    files: Arc<dyn Files>,
    mapped: HashMap<FileId, Arc<MappedFile>>,
}

impl Mappings {
    /// None yet, of these files.
    #[must_use]
    pub fn new(files: Arc<dyn Files>) -> Self {
        Mappings { files, mapped: HashMap::new() }
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// [`StoreError::Mapping`] if the file lies on no disk, cannot be mapped, or has become too short.
    pub fn part(&mut self, entry: &Entry) -> Result<MappedPart, StoreError> {
        let failed = |error: memory::MemoryError| StoreError::Mapping { what: error.to_string() };
        let file = if let Some(file) = self.mapped.get(&entry.file) {
            Arc::clone(file)
        } else {
            let what = || format!("{} lies in memory, not on a disk", self.files.location(entry.file));
            let path = self.files.path(entry.file).ok_or_else(|| StoreError::Mapping { what: what() })?;
            let file = MappedFile::open(path).map_err(failed)?;
            self.mapped.insert(entry.file, Arc::clone(&file));
            file
        };
        MappedPart::new(&file, entry.offset, entry.bytes).map_err(failed)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use std::path::PathBuf;

    #[test]
    fn tensors_are_mapped_as_they_are_read() {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny");
        let checkpoint = Checkpoint::open(&[directory]).unwrap();
        let mut mappings = Mappings::new(checkpoint.files());
        for (name, entry) in checkpoint.under("").take(50) {
            let part = mappings.part(entry).unwrap();
            assert!(part.as_slice() == checkpoint.read_vec(entry).unwrap(), "{name}");
        }
        assert!(mappings.mapped.len() < 12, "a file for each shard at most");
    }

    #[test]
    fn what_lies_in_memory_is_not_mapped() {
        let files = crate::files::MemoryFiles::new([("a".to_owned(), b"abc".into())]);
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny");
        let checkpoint = Checkpoint::open(&[directory]).unwrap();
        let entry = Entry { file: FileId(0), ..checkpoint.under("").next().unwrap().1.clone() };
        let error = Mappings::new(Arc::new(files)).part(&entry).unwrap_err().to_string();
        assert!(error.contains("a lies in memory"), "{error}");
    }
}
