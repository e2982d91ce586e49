//! JSON as conversations need it: as Python reads and writes it, because that is what the models were trained on.
//! Keys keep their order, integers may have any length, `NaN` and `Infinity` are numbers. `serde_json` has the first
//! two only as features that change every other reader in the program, and the third not at all; hence a type of
//! our own. It deliberately knows no conversation.

mod read;
mod write;

pub use self::read::JsonError;
pub(crate) use self::write::{Style, escape_into, without_spaces};

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON value. `Display` writes it compactly, its keys in their order and its numbers as they were spelled.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number by its spelling: JSON's, or `NaN`, `Infinity`, `-Infinity`.
    Number(String),
    /// A string; halves of surrogate pairs have become U+FFFD.
    String(String),
    /// A list.
    Array(Vec<Json>),
    /// An object: of equal keys the last value counts, at the place of the first.
    Object(IndexMap<String, Json>),
}

impl Json {
    /// Reads one value with nothing but white space around it.
    ///
    /// # Errors
    /// One that names line and column: what was expected there and what was found.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        read::parse(text)
    }

    /// The member of an object; `None` for `null`, an absent member and anything that is no object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.get(key).filter(|value| **value != Json::Null),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// What it is, for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "a list",
            Json::Object(_) => "an object",
        }
    }

    /// An object of these members.
    pub(crate) fn object<'k>(members: impl IntoIterator<Item = (&'k str, Json)>) -> Self {
        Json::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// A string.
    pub(crate) fn string(text: impl Into<String>) -> Self {
        Json::String(text.into())
    }
}

/// The text itself goes to the serializer, so that no spelling changes; `NaN` and its like, which no JSON reader
/// must take, become `null`, as JavaScript writes them. Only `serde_json` can do this.
impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = write::to_string(self, Style::STRICT);
        RawValue::from_string(text).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// The text itself is read, so that no spelling changes. Only `serde_json` can do this.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Json::parse(text.get()).map_err(serde::de::Error::custom)
    }
}
