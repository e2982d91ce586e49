//! Why a conversation is refused. It deliberately knows no format: each message names the field.

use crate::error::excerpt;
use crate::{Json, JsonError};

/// A conversation or option that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A field has another value or type than can be used.
    #[error("{place}: expected {expected}, found {found}; correct it or leave it out")]
    Unexpected {
        /// The field, such as `messages[2].content`.
        place: String,
        /// What could be used.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// No JSON where it must be.
    #[error("{place}: {source}")]
    NotJson {
        /// The field, or what was read.
        place: String,
        /// Where and why.
        source: JsonError,
    },
    /// Sizes of images and parts that are images differ in number.
    #[error(
        "options.images: expected {parts} sizes, one for each image in the messages, found {sizes}; give the width and height of every image in order"
    )]
    Images {
        /// Parts of messages that are images.
        parts: usize,
        /// Sizes given.
        sizes: usize,
    },
    /// A tool's result that names neither its tool nor a call.
    #[error(
        "{place}: expected `tool_call_id` of a call in the message before, or `tool` or `name`, found none; say which tool this is the result of"
    )]
    UnnamedResult {
        /// The message.
        place: String,
    },
}

impl ChatError {
    /// [`Unexpected`](ChatError::Unexpected) with the value in words.
    pub(crate) fn unexpected(place: impl Into<String>, expected: &'static str, found: &Json) -> Self {
        let found = match found {
            Json::String(text) => format!("`{}`", excerpt(text.as_bytes())),
            Json::Number(spelling) => format!("`{}`", excerpt(spelling.as_bytes())),
            other => other.kind().to_owned(),
        };
        ChatError::Unexpected { place: place.into(), expected, found }
    }

    /// That a field is not there.
    pub(crate) fn missing(place: impl Into<String>, expected: &'static str) -> Self {
        ChatError::Unexpected { place: place.into(), expected, found: "nothing".to_owned() }
    }
}
