//! Questions to an opened checkpoint: which tensors there are, whether one is what it should be, and its bytes.
//! Knows no family: which names and shapes are needed is the caller's matter.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{ABSENT, Checkpoint, lookup};
use crate::error::{MissingTensor, StoreError};
use crate::files::FileId;
use crate::read;
use crate::safetensors::{Dtype, Entry, Named};

impl Checkpoint {
    /// The tensor of this name, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Entry> {
        lookup(&self.tensors, name)
    }

    /// All names, sorted by byte value.
    #[must_use]
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|(name, _)| &**name)
    }

    /// Names and entries of the tensors whose names begin with `prefix`, sorted.
    #[must_use]
    pub fn under<'c>(
        &'c self,
        prefix: &str,
    ) -> impl ExactSizeIterator<Item = (&'c str, &'c Entry)> + use<'c> {
        self.range(prefix).iter().map(|(name, entry)| (&**name, entry))
    }

    /// Whether there is a tensor of this name, or the index says that an absent shard has one.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensor(name).is_some() || self.is_promised(name)
    }

    /// How many tensors there are, those of absent shards among them.
    #[must_use]
    pub fn tensor_count(&self) -> usize {
        self.tensors.len() + self.promised.len()
    }

    fn is_promised(&self, name: &str) -> bool {
        self.promised.binary_search_by(|other| (**other).cmp(name)).is_ok()
    }

    /// The tensor of this name, which must exist.
    ///
    /// # Errors
    /// [`StoreError::MissingTensor`], with what the surroundings of the name say about the cause.
    pub fn find(&self, name: &str) -> Result<&Entry, StoreError> {
        self.tensor(name).ok_or_else(|| self.missing(name))
    }

    /// The tensor of this name, which must exist, with one of the types and this very shape.
    ///
    /// # Errors
    /// [`StoreError::MissingTensor`], [`StoreError::WrongDtype`] or [`StoreError::WrongShape`].
    pub fn require(&self, name: &str, dtypes: &[Dtype], shape: &[u64]) -> Result<&Entry, StoreError> {
        self.require_any(name, dtypes, &[shape])
    }

    /// The same where several shapes will do.
    ///
    /// # Errors
    /// As [`Checkpoint::require`].
    pub fn require_any(&self, name: &str, dtypes: &[Dtype], shapes: &[&[u64]]) -> Result<&Entry, StoreError> {
        let entry = self.find(name)?;
        let (tensor, path) = (|| name.to_owned(), || self.file_name(entry.file));
        if !dtypes.contains(&entry.dtype) {
            let expected = dtypes.to_vec();
            return Err(StoreError::WrongDtype {
                tensor: tensor(),
                path: path(),
                found: entry.dtype,
                expected,
            });
        }
        if !shapes.contains(&&*entry.shape) {
            let (found, expected) =
                (entry.shape.to_vec(), shapes.iter().map(|shape| shape.to_vec()).collect());
            return Err(StoreError::WrongShape { tensor: tensor(), path: path(), found, expected });
        }
        Ok(entry)
    }

    /// The same, where a shard may be absent: what it holds is taken to have the first type and the first shape, and lies
    /// in the file [`ABSENT`], of which nothing can be read.
    ///
    /// # Errors
    /// As [`Checkpoint::require`].
    pub fn entry_any(&self, name: &str, dtypes: &[Dtype], shapes: &[&[u64]]) -> Result<Entry, StoreError> {
        let (Some(&dtype), Some(&shape), true) = (dtypes.first(), shapes.first(), self.is_promised(name))
        else {
            return self.require_any(name, dtypes, shapes).cloned();
        };
        let elements = shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
        let bytes = elements.saturating_mul(dtype.bits()) / 8;
        Ok(Entry { dtype, shape: shape.into(), file: ABSENT, offset: 0, bytes })
    }

    /// Reads a whole tensor; `into` must have its length.
    ///
    /// # Errors
    /// [`StoreError::Range`] for a wrong length, otherwise what the file system says.
    pub fn read(&self, entry: &Entry, into: &mut [u8]) -> Result<(), StoreError> {
        if into.len() as u64 != entry.bytes {
            return Err(self.out_of_range(entry, 0, into.len() as u64));
        }
        self.read_range(entry, 0, into)
    }

    /// Reads a whole tensor into new memory.
    ///
    /// # Errors
    /// [`StoreError::OutOfMemory`], or what the file system says.
    pub fn read_vec(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        let count = usize::try_from(entry.bytes).unwrap_or(usize::MAX);
        if bytes.try_reserve_exact(count).is_err() {
            return Err(StoreError::OutOfMemory { path: self.file_name(entry.file), bytes: entry.bytes });
        }
        bytes.resize(count, 0);
        self.read(entry, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads `into.len()` bytes of a tensor from its byte `start` on.
    ///
    /// # Errors
    /// [`StoreError::Range`] when they are not all inside the tensor, otherwise what the file system says.
    pub fn read_range(&self, entry: &Entry, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = start.saturating_add(into.len() as u64);
        if end > entry.bytes {
            return Err(self.out_of_range(entry, start, end));
        }
        read::exact(&*self.files(), entry.file, entry.offset + start, into)
    }

    fn out_of_range(&self, entry: &Entry, start: u64, end: u64) -> StoreError {
        StoreError::Range { path: self.file_name(entry.file), start, end, bytes: entry.bytes }
    }

    /// The part of the table whose names begin with `prefix`.
    fn range(&self, prefix: &str) -> &[Named] {
        let start = self.tensors.partition_point(|(name, _)| &**name < prefix);
        let rest = &self.tensors[start..];
        &rest[..rest.partition_point(|(name, _)| name.starts_with(prefix))]
    }

    fn missing(&self, name: &str) -> StoreError {
        let unindexed = self.unindexed.binary_search_by(|(other, _)| (**other).cmp(name)).ok();
        let dots = name.rmatch_indices('.').map(|(place, _)| &name[..=place]);
        let nearest = dots.map(|prefix| (prefix, self.range(prefix))).find(|(_, range)| !range.is_empty());
        let (nearest, relations) = nearest.unwrap_or_default();
        let shards: BTreeSet<FileId> = relations.iter().map(|(_, entry)| entry.file).collect();
        StoreError::MissingTensor(Box::new(MissingTensor {
            tensor: name.to_owned(),
            nearest: nearest.to_owned(),
            shards: shards.into_iter().take(8).map(|file| self.file_name(file)).collect(),
            unindexed: unindexed.map(|place| self.file_name(self.unindexed[place].1)),
            absent_numbers: self.absent_numbers(),
        }))
    }

    /// Shards that should exist by the numbers in the others' names, `...-00003-of-000096.safetensors`.
    fn absent_numbers(&self) -> Vec<String> {
        let files = self.files();
        let mut series: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
        for shard in &self.shards {
            let Some(listed) = files.list().get(shard.0 as usize) else { continue };
            if let Some((stem, number, of)) = numbered(&listed.name) {
                series.entry((stem, of)).or_default().insert(number);
            }
        }
        let mut absent = Vec::new();
        for ((stem, of), present) in &series {
            // An absurd count in a name must not make a list of that length.
            let numbers = (1..=*of).filter(|number| !present.contains(number)).take(100);
            absent.extend(numbers.map(|number| format!("{stem}, number {number} of {of}")));
        }
        absent
    }
}

/// Splits `model-00003-of-000096.safetensors` into `model`, 3 and 96.
fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, of) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn shard_numbers_are_read_in_any_width() {
        assert_eq!(numbered("model-00003-of-000096.safetensors"), Some(("model", 3, 96)));
        assert_eq!(numbered("a-b-1-of-2.safetensors"), Some(("a-b", 1, 2)));
        assert_eq!(numbered("model.safetensors"), None);
        assert_eq!(numbered("model-x-of-2.safetensors"), None);
    }
}
