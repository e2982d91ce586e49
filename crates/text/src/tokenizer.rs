//! What the engine asks of any tokenizer: segments to ids, ids to bytes, names to control tokens.
//! It deliberately knows no file format and no merge rule.

use crate::TextError;
use serde::Serialize;

/// A stretch of a prompt. Only the program writes `Special`; what a user typed is `Text`, so that no text can
/// become a control token, whatever it spells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'t> {
    /// The exact name of a control token, such as `<|open|>`.
    Special(&'t str),
    /// Ordinary text. It is encoded by itself: no token reaches from one segment into the next.
    Text(&'t str),
}

/// A [`Segment`] that owns its text, as chat formats make them. The name of a control token is one that is
/// spelled in this program: no text from outside can be one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnedSegment {
    /// The exact name of a control token.
    Special(&'static str),
    /// Ordinary text.
    Text(String),
}

impl OwnedSegment {
    /// The same, borrowed.
    #[must_use]
    pub fn as_segment(&self) -> Segment<'_> {
        match self {
            OwnedSegment::Special(name) => Segment::Special(name),
            OwnedSegment::Text(text) => Segment::Text(text),
        }
    }
}

/// Strings to ids and back. Ids count from 0; the control tokens are among them.
pub trait Tokenizer: Send + Sync {
    /// The ids of the segments, one after the other. The result depends on the segments alone.
    ///
    /// # Errors
    /// [`TextError::UnknownSpecial`] if a [`Segment::Special`] names no control token.
    fn encode(&self, segments: &[Segment<'_>]) -> Result<Vec<u32>, TextError>;

    /// [`encode`](Tokenizer::encode) of segments that own their text.
    ///
    /// # Errors
    /// As there.
    fn encode_owned(&self, segments: &[OwnedSegment]) -> Result<Vec<u32>, TextError> {
        self.encode(&segments.iter().map(OwnedSegment::as_segment).collect::<Vec<_>>())
    }

    /// The bytes an id stands for: its name for a control token, `None` past the vocabulary. The bytes of one
    /// id need not be whole characters; see [`StreamDecoder`](crate::StreamDecoder).
    fn bytes(&self, id: u32) -> Option<&[u8]>;

    /// The id of the control token of this exact name.
    fn special(&self, name: &str) -> Option<u32>;

    /// Whether the id is a control token, so that it never came from a user's text.
    fn is_special(&self, id: u32) -> bool;

    /// The number of ids, control tokens included.
    fn vocabulary(&self) -> u32;

    /// The text of all ids together, names of control tokens included; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TextError::UnknownId`] for an id past the vocabulary.
    fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.known_bytes(id)?);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// [`bytes`](Tokenizer::bytes) with the error that says what is wrong.
    ///
    /// # Errors
    /// [`TextError::UnknownId`] for an id past the vocabulary.
    fn known_bytes(&self, id: u32) -> Result<&[u8], TextError> {
        self.bytes(id).ok_or_else(|| TextError::UnknownId { id, vocabulary: self.vocabulary() })
    }

    /// Checks that a model of `rows` logits goes with this tokenizer (`vocab_size` of config.json).
    ///
    /// # Errors
    /// [`TextError::VocabularyMismatch`] if the numbers differ.
    fn expect_vocabulary(&self, rows: u32) -> Result<(), TextError> {
        let vocabulary = self.vocabulary();
        if vocabulary == rows { Ok(()) } else { Err(TextError::VocabularyMismatch { vocabulary, rows }) }
    }
}
