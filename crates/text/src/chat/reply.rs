//! What goes into a reader of replies and what comes out. It deliberately knows no format.

use super::{Content, Message, Role, ToolCall};
use crate::{Json, OwnedSegment, TextError, Tokenizer};
use std::hash::{BuildHasher, RandomState};

/// A piece of a reply: a token as the tokenizer knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'p> {
    /// A control token, by its name.
    Special(&'p str),
    /// Bytes of text, not necessarily whole characters.
    Bytes(&'p [u8]),
}

impl<'p> Piece<'p> {
    /// The piece of a token.
    ///
    /// # Errors
    /// [`TextError::UnknownId`] for an id past the vocabulary.
    pub fn of(tokenizer: &'p dyn Tokenizer, id: u32) -> Result<Self, TextError> {
        let bytes = tokenizer.known_bytes(id)?;
        match std::str::from_utf8(bytes) {
            Ok(name) if tokenizer.is_special(id) => Ok(Piece::Special(name)),
            _ => Ok(Piece::Bytes(bytes)),
        }
    }
}

/// What a piece adds to a reply. No text in it is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// Thought.
    Reasoning(String),
    /// Answer.
    Content(String),
    /// A call begins.
    Call {
        /// Counted from 0.
        index: usize,
        /// From the caller's source.
        id: String,
        /// Of the tool.
        name: String,
    },
    /// More of the JSON text of a call's arguments.
    Arguments {
        /// Of the call.
        index: usize,
        /// Goes behind what came before.
        text: String,
    },
}

/// Why no more pieces come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model ended its turn, or a stop string was found.
    Stop,
    /// A limit of tokens or context.
    Length,
    /// The caller gave up.
    Cancelled,
}

/// `finish_reason` of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The answer is whole, cut at a stop string, or given up.
    Stop,
    /// A limit was reached.
    Length,
    /// The model waits for results of its calls.
    ToolCalls,
}

impl FinishReason {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
        }
    }
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// None if there is none.
    pub reasoning: Option<String>,
    /// None if there is none.
    pub content: Option<String>,
    /// In order.
    pub tool_calls: Vec<ReplyCall>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// A call in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyCall {
    /// From the caller's source.
    pub id: String,
    /// Of the tool.
    pub name: String,
    /// JSON text; not whole if a limit cut it.
    pub arguments: String,
}

impl From<Reply> for Message {
    /// The message with which the conversation goes on.
    fn from(reply: Reply) -> Message {
        let call = |call: ReplyCall| ToolCall {
            id: Some(call.id),
            name: call.name,
            arguments: Json::String(call.arguments),
        };
        Message {
            content: reply.content.map_or(Content::Nothing, Content::Text),
            reasoning: reply.reasoning,
            tool_calls: reply.tool_calls.into_iter().map(call).collect(),
            ..Message::new(Role::Assistant, "")
        }
    }
}

/// Where the ids of calls come from; each must be new in the conversation.
pub type CallIds = Box<dyn FnMut() -> String + Send>;

/// `call_` and 24 random hexadecimal digits.
#[must_use]
pub fn random_call_id() -> String {
    // The standard library's keys of hash maps are from the system's random numbers.
    let [high, low] = [(); 2].map(|()| RandomState::new().hash_one("call"));
    format!("call_{high:016x}{:08x}", low as u32)
}

/// Reads a reply piece by piece.
///
/// ```
/// use text::chat::{ChatFormat as _, ChatOptions, Delta, End, FinishReason, Piece};
/// use text::{StopStrings, kimi_k3::KimiK3};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Pieces come from `Piece::of` of a tokenizer; the prompt has opened the thoughts.
/// let mut parser = KimiK3.parser(&ChatOptions::default(), StopStrings::new(Vec::new())?, Box::new(String::new));
/// assert_eq!(parser.push(Piece::Bytes(b"An easy one.")), [Delta::Reasoning("An easy one.".into())]);
/// for piece in ["<|close|>", "think", "<|sep|>", "<|open|>", "response", "<|sep|>"] {
///     let tag = if piece.starts_with('<') { Piece::Special(piece) } else { Piece::Bytes(piece.as_bytes()) };
///     assert_eq!(parser.push(tag), []);
/// }
/// assert_eq!(parser.push(Piece::Bytes(b"Four")), [Delta::Content("Four".into())]);
///
/// // Cut off here, the message still has to be closed before the conversation can go on.
/// parser.finish(End::Length);
/// assert!(!parser.closing().is_empty());
/// let reply = parser.reply();
/// assert_eq!((reply.content.as_deref(), reply.finish_reason), (Some("Four"), FinishReason::Length));
/// # Ok(())
/// # }
/// ```
pub trait ReplyParser: Send {
    /// Takes the next piece and gives what is certain now. After the end of the turn or a stop string nothing
    /// counts any more.
    fn push(&mut self, piece: Piece<'_>) -> Vec<Delta>;

    /// Whether nothing that comes can count: a stop string was found, or the turn has ended.
    fn ended(&self) -> bool;

    /// Ends the reply and gives what was held back.
    fn finish(&mut self, end: End) -> Vec<Delta>;

    /// Everything so far, as one message.
    fn reply(&self) -> Reply;

    /// The segments that close what is open, so that the pieces so far and they are a whole message: what a
    /// session needs after an interrupted answer before the conversation goes on. None after a whole message. A
    /// token that ended the turn otherwise, such as `[EOS]`, is no part of the message: leave it out of the session.
    fn closing(&self) -> Vec<OwnedSegment>;
}

#[cfg(test)]
mod tests {
    use super::random_call_id;
    use std::collections::HashSet;

    #[test]
    fn ids_of_calls_differ() {
        let ids: HashSet<String> = (0..1000).map(|_| random_call_id()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            let digits = id.strip_prefix("call_").expect("the prefix");
            assert!(digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        }
    }
}
