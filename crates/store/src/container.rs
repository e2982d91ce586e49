//! What `colibri convert` notes in the files it writes, so that they are opened as what they are: the version, the model they
//! were made from, which tensors are packed and how, and for a thin container where its other tensors lie. Knows names
//! and sizes; what a packing means is the models' matter.
//!
//! A container is a model directory of valid safetensors files. The `__metadata__` of each has `colibri.container` (the
//! version), `colibri.dense` (the packing of dense matrices), `colibri.source` (the identity of the model it was made from) and
//! for each packed tensor, whose type is U8, `colibri.packed.NAME` with `PACKING ROWSxCOLS`. A thin container has
//! a file `colibri.sources` besides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checksums::Checksum;
use crate::error::StoreError;
use crate::files::{DiskFiles, Files, in_first_directory};
use crate::read;

/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
/// How the keys of our metadata begin.
pub const KEYS: &str = "colibri.";
/// The key of the version.
pub const KEY_VERSION: &str = "colibri.container";
/// The key of the dense packing's name.
pub const KEY_DENSE: &str = "colibri.dense";
/// The key of the source's identity.
pub const KEY_SOURCE: &str = "colibri.source";
/// What stands before a packed tensor's name in its key.
pub const KEY_PACKED: &str = "colibri.packed.";
/// The file of a thin container that says where the rest lies.
pub const SOURCES: &str = "colibri.sources";
/// The directory inside a container's in which an unfinished conversion works.
pub const PARTIAL: &str = ".colibri-partial";

const SOURCES_BYTES_MAX: u64 = 4 << 20;

/// What a container says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// How its dense matrices are stored, by the packing's name; bf16 is as in the source.
    pub dense: String,
    /// The identity of the model it was made from, in hexadecimal digits.
    pub source: String,
    /// Packed tensors by name.
    pub packed: BTreeMap<Box<str>, Packed>,
}

/// How a tensor is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The packing's name.
    pub packing: String,
    /// Rows of the matrix.
    pub rows: u32,
    /// Its columns.
    pub cols: u32,
}

impl Packed {
    /// As it stands in the metadata.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} {}x{}", self.packing, self.rows, self.cols)
    }

    fn parse(text: &str) -> Option<Self> {
        let (packing, sizes) = text.split_once(' ')?;
        let (rows, cols) = sizes.split_once('x')?;
        let packed =
            Packed { packing: packing.to_owned(), rows: rows.parse().ok()?, cols: cols.parse().ok()? };
        (packed.text() == text).then_some(packed)
    }
}

/// Adds what the metadata of one shard says; nothing if it is no container's.
pub(crate) fn note(
    container: &mut Option<Container>,
    metadata: &BTreeMap<String, String>,
    path: &str,
) -> Result<(), StoreError> {
    let Some(version) = metadata.get(KEY_VERSION) else { return Ok(()) };
    known(version, path)?;
    let wrong = |what: String| StoreError::Container { path: path.to_owned(), what };
    let field = |key: &str| metadata.get(key).cloned().ok_or_else(|| wrong(format!("its {key} is absent")));
    let (dense, source) = (field(KEY_DENSE)?, field(KEY_SOURCE)?);
    let container = container.get_or_insert_with(|| Container {
        dense: dense.clone(),
        source: source.clone(),
        packed: BTreeMap::new(),
    });
    for (key, found, expected) in
        [(KEY_DENSE, &dense, &container.dense), (KEY_SOURCE, &source, &container.source)]
    {
        if found != expected {
            return Err(wrong(format!("its {key} is {found}, that of other shards {expected}")));
        }
    }
    for (key, value) in metadata {
        let Some(name) = key.strip_prefix(KEY_PACKED) else { continue };
        let packed = Packed::parse(value);
        let packed = packed
            .ok_or_else(|| wrong(format!("{key} is `{value}`, expected a packing, rows and columns")))?;
        container.packed.insert(name.into(), packed);
    }
    Ok(())
}

fn known(version: &str, path: &str) -> Result<(), StoreError> {
    if version == VERSION.to_string() {
        return Ok(());
    }
    let (path, found) = (path.to_owned(), version.to_owned());
    Err(StoreError::ContainerVersion { path, found, known: VERSION })
}

/// The shards that a thin container refers to, and the directories that held them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The version.
    #[serde(rename = "colibri.container")]
    pub version: u32,
    /// Absolute paths.
    pub directories: Vec<String>,
    /// By plain name.
    pub shards: BTreeMap<String, SourceShard>,
}

/// A shard as it was when the container was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceShard {
    /// Its length.
    pub bytes: u64,
    /// The checksum of its header, with the length before it.
    pub header: String,
}

impl Sources {
    /// Parses the file; `path` is for messages.
    ///
    /// # Errors
    /// Another version, or not what this one writes.
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self, StoreError> {
        let value: Value = read::json(read::Unambiguous, bytes, path)?;
        let version = &value[KEY_VERSION];
        if !version.is_null() {
            known(&version.to_string(), path)?;
        }
        let wrong = |error: serde_json::Error| StoreError::Container {
            path: path.to_owned(),
            what: format!("it does not say where the source lies: {error}"),
        };
        serde_json::from_value(value).map_err(wrong)
    }

    /// A shard must be the one that the container was made from.
    pub(crate) fn check(
        &self,
        name: &str,
        bytes: u64,
        header: Checksum,
        path: &str,
    ) -> Result<(), StoreError> {
        let what = match self.shards.get(name) {
            None => "it was not there".to_owned(),
            Some(shard) if shard.bytes != bytes => format!("it had {} bytes and has {bytes}", shard.bytes),
            Some(shard) if shard.header != header.to_string() => "its header is another one".to_owned(),
            Some(_) => return Ok(()),
        };
        Err(StoreError::SourceChanged { path: path.to_owned(), what })
    }
}

/// The references of a thin container; `None` for everything else.
pub(crate) fn sources(files: &dyn Files) -> Result<Option<Sources>, StoreError> {
    let Some(file) = in_first_directory(files, SOURCES) else { return Ok(None) };
    let bytes = read::whole(files, file, SOURCES_BYTES_MAX)?;
    Sources::parse(&bytes, &files.location(file)).map(Some)
}

/// The directories of a model: those given, and if that is a thin container alone, those it names.
///
/// # Errors
/// A directory that cannot be listed, and [`StoreError::SourceMoved`].
pub fn directories(given: &[PathBuf]) -> Result<Vec<PathBuf>, StoreError> {
    let mut directories = given.to_vec();
    if let [only] = given
        && only.join(SOURCES).is_file()
        && let Some(sources) = sources(&DiskFiles::open(given)?)?
    {
        for directory in sources.directories {
            if !PathBuf::from(&directory).is_dir() {
                return Err(StoreError::SourceMoved { container: only.display().to_string(), directory });
            }
            directories.push(directory.into());
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
        fields.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    const GOOD: [(&str, &str); 3] = [(KEY_VERSION, "1"), (KEY_DENSE, "int4"), (KEY_SOURCE, "ab")];

    #[test]
    fn shards_add_what_they_say() {
        let mut container = None;
        note(&mut container, &metadata(&[]), "a").unwrap();
        assert_eq!(container, None);
        let one = [&GOOD[..], &[("colibri.packed.w", "int4 3x64")]].concat();
        note(&mut container, &metadata(&one), "a").unwrap();
        note(&mut container, &metadata(&GOOD), "b").unwrap();
        let found = container.clone().unwrap();
        assert_eq!((found.dense.as_str(), found.packed.len()), ("int4", 1));
        assert_eq!(found.packed["w"], Packed { packing: "int4".into(), rows: 3, cols: 64 });
        let other = metadata(&[GOOD[0], (KEY_DENSE, "int8"), GOOD[2]]);
        let error = note(&mut container, &other, "c").unwrap_err().to_string();
        assert!(error.contains("c: its colibri.dense is int8, that of other shards int4"), "{error}");
    }

    #[test]
    fn what_no_version_writes_is_refused_by_name() {
        let refused =
            |fields: &[(&str, &str)]| note(&mut None, &metadata(fields), "a").unwrap_err().to_string();
        assert!(refused(&[(KEY_VERSION, "2")]).contains("version 2"));
        assert!(refused(&GOOD[..2]).contains("colibri.source is absent"));
        for value in ["int4", "int4 3", "int4 3x", "int4 +3x4", "int4 3x4294967296", "int4 3x4 "] {
            let error = refused(&[&GOOD[..], &[("colibri.packed.w", value)]].concat());
            assert!(error.contains("colibri.packed.w"), "{error}");
        }
    }
}
