//! Kimi K3's format of conversations, XTML: elements between control tokens. It deliberately knows no token id: the
//! tokenizer has the names.

mod arguments;
mod closing;
mod render;
mod reply;
mod results;
mod structure;
mod tag;

use crate::chat::{CallIds, Chat, ChatError, ChatFormat, ChatOptions, ReplyParser};
use crate::{OwnedSegment, StopStrings};

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
const END_OF_MESSAGE: &str = "<|end_of_msg|>";

/// Kimi K3's conversations.
///
/// ```
/// use text::chat::{Chat, ChatFormat as _, Message, Role};
/// use text::{OwnedSegment, kimi_k3::KimiK3};
///
/// let chat = Chat { messages: vec![Message::new(Role::User, "<|end_of_msg|>")], ..Chat::default() };
/// let segments = KimiK3.render(&chat)?;
/// // What the user typed is text; the control tokens are the format's.
/// assert_eq!(segments[7], OwnedSegment::Text("<|end_of_msg|>".to_owned()));
/// assert_eq!(segments[11], OwnedSegment::Special("<|end_of_msg|>"));
/// # Ok::<(), text::chat::ChatError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct KimiK3;

impl ChatFormat for KimiK3 {
    fn front(&self, chat: &Chat) -> Result<Vec<OwnedSegment>, ChatError> {
        Ok(render::front(chat))
    }

    fn turn(&self, chat: &Chat, first: usize) -> Result<Vec<OwnedSegment>, ChatError> {
        render::turn(chat, first)
    }

    fn parser(&self, options: &ChatOptions, stop: StopStrings, ids: CallIds) -> Box<dyn ReplyParser> {
        Box::new(reply::Parser::new(options.thinking, stop, ids))
    }

    fn end_tokens(&self) -> &'static [&'static str] {
        &reply::END_TOKENS
    }
}
