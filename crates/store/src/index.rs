//! `model.safetensors.index.json`: which shard holds which tensor. Knows the file names that are safe to look up,
//! not whether the files exist.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Number;

use crate::error::StoreError;
use crate::read;

/// Largest index we read: the half million tensors of a frontier model take a quarter of it.
pub(crate) const INDEX_BYTES_MAX: u64 = 256 << 20;

/// A parsed index.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Plain file names, in the order in which the index mentions them.
    pub(crate) shards: Vec<Box<str>>,
    /// Tensor names with the place of their shard in `shards`; sorted, each name once.
    pub(crate) tensors: Vec<(Box<str>, u32)>,
    /// `metadata.total_size`, when there is one.
    pub(crate) total_size: Option<u64>,
}

impl Index {
    /// The place in `shards` of the shard that holds a tensor.
    pub(crate) fn shard_of(&self, name: &str) -> Option<u32> {
        let place = self.tensors.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        Some(self.tensors[place].1)
    }

    /// Parses and checks an index; `path` is for messages.
    pub(crate) fn parse(bytes: &[u8], path: &str) -> Result<Index, StoreError> {
        let mut index = read::json(IndexSeed, bytes, path)?;
        for (place, shard) in index.shards.iter().enumerate() {
            if let Some(reason) = unsafe_name(shard) {
                let tensor = index.tensors.iter().find(|(_, shard)| *shard as usize == place);
                return Err(StoreError::ShardName {
                    index: path.to_owned(),
                    tensor: tensor.map(|(name, _)| name.to_string()).unwrap_or_default(),
                    name: shard.to_string(),
                    reason,
                });
            }
        }
        index.tensors.sort();
        let twice = index.tensors.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some(pair) = twice {
            let tensor = pair[0].0.to_string();
            return Err(StoreError::IndexDuplicate { index: path.to_owned(), tensor });
        }
        Ok(index)
    }
}

/// Why a name is not a plain shard name that every system takes for a file in the directory itself; `None` when it
/// is one.
fn unsafe_name(name: &str) -> Option<&'static str> {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let numbered = stem.len() == 4 && stem.ends_with(|last: char| last.is_ascii_digit());
    let device = matches!(stem.as_str(), "con" | "prn" | "aux" | "nul")
        || numbered && (stem.starts_with("com") || stem.starts_with("lpt"));
    if name.is_empty() {
        Some("is empty")
    } else if name.contains(['/', '\\']) {
        Some("contains a path separator")
    } else if name.chars().any(char::is_control) {
        Some("contains a control character")
    } else if name.contains([':', '<', '>', '"', '|', '?', '*']) {
        Some("contains a character that Windows forbids in file names")
    } else if name.len() > 255 {
        Some("is longer than a file name can be")
    } else if device {
        Some("is a device name on Windows")
    } else if name.starts_with('.') {
        Some("begins with a dot")
    } else if !name.ends_with(".safetensors") {
        Some("does not end in .safetensors")
    } else {
        None
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object with total_size")]
struct Metadata {
    total_size: Option<Number>,
}

struct IndexSeed;

impl<'de> DeserializeSeed<'de> for IndexSeed {
    type Value = Index;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Index, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed {
    type Value = Index;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let mut index = None;
        let mut total_size = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" if index.is_some() => return Err(A::Error::custom("weight_map occurs twice")),
                "weight_map" => index = Some(map.next_value_seed(WeightMapSeed)?),
                "metadata" => {
                    // Some tools write the size as a float; that is as good as none.
                    let metadata: Option<Metadata> = map.next_value()?;
                    total_size = metadata.and_then(|metadata| metadata.total_size?.as_u64());
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let index = index.ok_or_else(|| A::Error::missing_field("weight_map"))?;
        Ok(Index { total_size, ..index })
    }
}

struct WeightMapSeed;

impl<'de> DeserializeSeed<'de> for WeightMapSeed {
    type Value = Index;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Index, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed {
    type Value = Index;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensor names and shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let mut index = Index::default();
        let mut places: HashMap<Box<str>, u32> = HashMap::new();
        while let Some(tensor) = map.next_key::<Box<str>>()? {
            let shard: Box<str> = map
                .next_value()
                .map_err(|error| A::Error::custom(format_args!("weight_map of {tensor}: {error}")))?;
            let place = *places.entry(shard).or_insert_with_key(|shard| {
                index.shards.push(shard.clone());
                (index.shards.len() - 1) as u32
            });
            index.tensors.push((tensor, place));
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_pass() {
        for name in
            ["model.safetensors", "model-00001-of-000096.safetensors", "con-1.safetensors", "コ.safetensors"]
        {
            assert_eq!(unsafe_name(name), None, "{name}");
        }
        assert_eq!(unsafe_name("communication.safetensors"), None);
        assert_eq!(unsafe_name("com12.safetensors"), None);
    }

    #[test]
    fn unsafe_names_are_refused() {
        let names = [
            "",
            ".",
            "..",
            "../model.safetensors",
            "a/b.safetensors",
            "/model.safetensors",
            "a\\b.safetensors",
            "C:model.safetensors",
            "model\0.safetensors",
            "model\n.safetensors",
            "NUL.safetensors",
            "con.x.safetensors",
            "Com1.safetensors",
            "model.safetensors ",
            "model.safetensors.",
            "model.bin",
            ".safetensors",
            "model?.safetensors",
        ];
        for name in names {
            assert!(unsafe_name(name).is_some(), "{name:?} passed");
        }
        assert!(unsafe_name(&format!("{}.safetensors", "x".repeat(250))).is_some());
    }
}
