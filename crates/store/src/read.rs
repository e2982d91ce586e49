//! Reads of the store's own files with errors that name them. Knows no format but JSON as such.

use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::content::{Content, HEAD_BYTES, recognise};
use crate::error::StoreError;
use crate::files::{FileId, Files};
use crate::reader::{ReadError, read_exact};

/// Length of a file.
pub(crate) fn len(files: &dyn Files, file: FileId) -> Result<u64, StoreError> {
    files.len(file).map_err(|cause| unreadable(files, file, cause))
}

/// Fills `into` from `offset` on.
pub(crate) fn exact(files: &dyn Files, file: FileId, offset: u64, into: &mut [u8]) -> Result<(), StoreError> {
    let bytes = into.len() as u64;
    read_exact(&files, file.0, offset, into).map_err(|error| match error {
        // Nothing is ever abandoned here: there is no owner that could go away.
        ReadError::Truncated { .. } | ReadError::Abandoned { .. } => {
            StoreError::ShortRead { path: files.location(file), offset, bytes }
        }
        ReadError::Failed { source: cause, .. }
            if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
        {
            unreadable(files, file, cause)
        }
        ReadError::Failed { file: path, offset, bytes, attempts, source: cause } => {
            StoreError::Read { path, offset, bytes, attempts, cause }
        }
    })
}

fn unreadable(files: &dyn Files, file: FileId, cause: io::Error) -> StoreError {
    let path = files.location(file);
    let target = files.path(file).and_then(|path| std::fs::read_link(path).ok());
    match target {
        Some(target) if cause.kind() == io::ErrorKind::NotFound => {
            StoreError::BrokenLink { path, target: target.display().to_string() }
        }
        _ => StoreError::Unreadable { path, cause },
    }
}

/// A whole small file; one that is larger than `limit` is refused before memory is taken for it.
pub(crate) fn whole(files: &dyn Files, file: FileId, limit: u64) -> Result<Vec<u8>, StoreError> {
    let found = len(files, file)?;
    if found == 0 {
        return Err(StoreError::EmptyFile { path: files.location(file) });
    }
    if found > limit {
        return Err(StoreError::FileTooLarge { path: files.location(file), found, limit });
    }
    let mut bytes = vec![0; found as usize];
    exact(files, file, 0, &mut bytes)?;
    Ok(bytes)
}

/// Parses JSON; a text that is no JSON at all is recognised for what it is. Nesting is limited to 128 levels by
/// `serde_json`.
pub(crate) fn json<'de, S: DeserializeSeed<'de>>(
    seed: S,
    bytes: &'de [u8],
    path: &str,
) -> Result<S::Value, StoreError> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let parsed = seed.deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    parsed.map_err(|error| match recognise(&bytes[..bytes.len().min(HEAD_BYTES)]) {
        Some(Content::Text(text)) if text.starts_with(['{', '[']) => json_error(path, &error),
        Some(found) => StoreError::WrongContent { path: path.to_owned(), expected: "a JSON file", found },
        None => json_error(path, &error),
    })
}

fn json_error(path: &str, error: &serde_json::Error) -> StoreError {
    StoreError::Json { path: path.to_owned(), reason: error.to_string() }
}

/// Any JSON value, except that an object with a key twice is refused: `serde_json` alone would silently keep the
/// last one.
pub(crate) struct Unambiguous;

impl<'de> DeserializeSeed<'de> for Unambiguous {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Unambiguous)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} occurs twice")));
            }
            let value = entries.next_value_seed(Unambiguous)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
