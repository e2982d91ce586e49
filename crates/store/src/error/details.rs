//! The errors that carry more than a few fields, and how they read. Knows no file system; `error.rs` lists when each
//! of them is given.

use std::fmt;

use super::StoreError;
use crate::safetensors::Dtype;

/// Details of [`StoreError::MissingShards`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingShards {
    /// The index that names them.
    pub index: String,
    /// Plain names of the missing shards.
    pub shards: Vec<String>,
    /// How many shards the index names.
    pub named: usize,
    /// How many tensors lie in the missing ones.
    pub tensors: usize,
    /// Where they were looked for.
    pub directories: Vec<String>,
    /// Unfinished downloads that were seen.
    pub leftovers: Vec<String>,
}

impl fmt::Display for MissingShards {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingShards { index, shards, named, tensors, directories, leftovers } = self;
        write!(
            out,
            "{} of the {named} shards that {index} names are missing, with {tensors} tensors: {}; looked in {}",
            shards.len(),
            some(shards, 100),
            some(directories, 100)
        )?;
        if leftovers.is_empty() {
            return write!(out, "; download them, or add the directory that holds them");
        }
        write!(out, "; unfinished downloads were seen: {}: let the download finish", some(leftovers, 8))
    }
}

/// Details of [`StoreError::TensorSize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSize {
    /// The shard.
    pub path: String,
    /// The tensor.
    pub tensor: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Bytes by shape and type; `None` when that is not a whole number of bytes below 2^64.
    pub expected: Option<u64>,
    /// Bytes by its offsets.
    pub found: u64,
}

impl fmt::Display for TensorSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorSize { path, tensor, dtype, shape, expected, found } = self;
        write!(out, "tensor {tensor} in {path} is {dtype} {shape:?}, ")?;
        match expected {
            Some(bytes) => write!(out, "which takes {bytes} bytes, but its offsets give it {found}")?,
            None => write!(out, "which is no possible size; its offsets give it {found} bytes")?,
        }
        write!(out, "; the header is damaged: download the file anew")
    }
}

/// Details of [`StoreError::Truncated`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The shard.
    pub path: String,
    /// Length according to the header.
    pub expected: u64,
    /// Length of the file.
    pub found: u64,
    /// The tensors that are cut or absent, in the order of the file; the first eight of them.
    pub tensors: Vec<String>,
    /// How many tensors are cut or absent.
    pub count: usize,
}

impl fmt::Display for Truncated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Truncated { path, expected, found, tensors, count } = self;
        write!(
            out,
            "{path} is cut: it has {found} bytes, {} of {expected} are missing, and with them all or part of {count} \
             tensors, from {} on; the download was not finished or the drive ran full: resume it or download the \
             file anew",
            expected - found,
            tensors.first().map_or("", String::as_str)
        )
    }
}

/// Details of [`StoreError::NotInShard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInShard {
    /// The index.
    pub index: String,
    /// The first such tensor, by name.
    pub tensor: String,
    /// The shard in which it should be.
    pub shard: String,
    /// The shard in which it is, if there is one.
    pub elsewhere: Option<String>,
    /// How many tensors are not in their shards.
    pub count: usize,
}

impl fmt::Display for NotInShard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotInShard { index, tensor, shard, elsewhere, count } = self;
        write!(out, "{index} says that tensor {tensor} lies in {shard}, but ")?;
        match elsewhere {
            Some(other) => write!(out, "it lies in {other}")?,
            None => write!(out, "neither this nor any other shard holds it")?,
        }
        write!(
            out,
            " ({count} tensors are misplaced or missing in all); the index and the shards are of different "
        )?;
        write!(out, "releases or conversions, or a conversion dropped it: get both from the same place")
    }
}

/// Details of [`StoreError::MissingTensor`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTensor {
    /// The name that was asked for.
    pub tensor: String,
    /// The longest beginning of the name, up to a dot, under which there are tensors; may be empty.
    pub nearest: String,
    /// The shards in which those tensors lie; the first eight of them.
    pub shards: Vec<String>,
    /// A file that holds the tensor without being one of the checkpoint's shards.
    pub unindexed: Option<String>,
    /// Shards that should exist by the numbering of the others' names.
    pub absent_numbers: Vec<String>,
}

impl fmt::Display for MissingTensor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingTensor { tensor, nearest, shards, unindexed, absent_numbers } = self;
        write!(out, "tensor {tensor} is missing")?;
        if let Some(path) = unindexed {
            return write!(
                out,
                "; {path} holds it, but the index does not name that file: get the release's index"
            );
        }
        if !nearest.is_empty() {
            write!(out, "; its nearest relations, {nearest}*, lie in {}", some(shards, 8))?;
        }
        if !absent_numbers.is_empty() {
            return write!(
                out,
                "; by the numbering of the files, {} should exist too, and the index knows nothing of them: get the \
                 release's index and the missing files",
                some(absent_numbers, 8)
            );
        }
        if nearest.is_empty() {
            return write!(out, "; no name begins like it: the config does not belong to these weights");
        }
        write!(
            out,
            "; a conversion dropped it, or the config does not belong to these weights: get both anew"
        )
    }
}

/// Details of [`StoreError::Several`].
#[derive(Debug)]
pub struct Several {
    /// What is wrong with each damaged shard, at least two.
    pub faults: Vec<StoreError>,
}

impl fmt::Display for Several {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} shards are damaged", self.faults.len())?;
        for (place, fault) in self.faults.iter().take(8).enumerate() {
            write!(out, "; {}) {fault}", place + 1)?;
        }
        if self.faults.len() > 8 { write!(out, "; and so on") } else { Ok(()) }
    }
}

/// The first `limit` names and how many more there are.
fn some(names: &[String], limit: usize) -> String {
    let shown = names[..names.len().min(limit)].join(", ");
    match names.len().saturating_sub(limit) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
