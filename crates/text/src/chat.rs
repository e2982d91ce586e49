//! Conversations as `OpenAI`'s JSON has them, whatever a model makes of them, and what a chat format is: a
//! conversation becomes segments, and the pieces of a reply become reasoning, content and calls.
//! It deliberately knows no model's format; see [`kimi_k3`](crate::kimi_k3).

mod error;
mod options;
mod read;
mod reply;
mod request;
mod write;

pub use self::error::ChatError;
pub use self::options::{ChatOptions, Effort, ResponseFormat, ToolChoice};
pub use self::reply::{
    CallIds, Delta, End, FinishReason, Piece, Reply, ReplyCall, ReplyParser, random_call_id,
};
pub use self::request::request_options;

use crate::{Json, OwnedSegment, StopStrings};
use serde::{Deserialize, Serialize};

/// A conversation with all that a prompt is made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub struct Chat {
    /// From first to last.
    pub messages: Vec<Message>,
    /// Declarations of tools, every field as the client sent it.
    pub tools: Vec<Json>,
    /// How to render it.
    pub options: ChatOptions,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What was said.
    pub content: Content,
    /// `name`, if it is not empty.
    pub name: Option<String>,
    /// `reasoning_content`, or where that is missing or empty `reasoning`.
    pub reasoning: Option<String>,
    /// What an assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the call it answers (`tool_call_id`, else `id`).
    pub tool_call_id: Option<String>,
    /// Of a tool's result: the tool's name.
    pub tool: Option<String>,
    /// Of a system message: tools that it declares from here on.
    pub tools: Vec<Json>,
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// `system`
    System,
    /// `user`
    User,
    /// `assistant`
    Assistant,
    /// `tool`
    Tool,
    /// Any other; formats may render nothing for it.
    Other(String),
}

/// What was said.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Content {
    /// `null` or absent.
    #[default]
    Nothing,
    /// A text.
    Text(String),
    /// Texts and images.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// `{"type": "text", "text": ..}`
    Text(String),
    /// The whole part of type `image` or `image_url`.
    Image(Json),
}

/// A call in an assistant's message.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// What results refer to.
    pub id: Option<String>,
    /// Of the tool.
    pub name: String,
    /// An object, JSON text, or `null`.
    pub arguments: Json,
}

impl Message {
    /// A message that is only text.
    #[must_use]
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Message {
            role,
            content: Content::Text(text.into()),
            name: None,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tool: None,
            tools: Vec::new(),
        }
    }
}

/// How a family of models writes conversations and replies.
pub trait ChatFormat: Send + Sync {
    /// The segments of a whole prompt.
    ///
    /// # Errors
    /// A [`ChatError`] that names the message and field that cannot be rendered.
    fn render(&self, chat: &Chat) -> Result<Vec<OwnedSegment>, ChatError> {
        let mut segments = self.front(chat)?;
        segments.extend(self.turn(chat, 0)?);
        Ok(segments)
    }

    /// What stands before the first message: declarations and notes that hold for the whole conversation.
    ///
    /// # Errors
    /// As [`render`](ChatFormat::render).
    fn front(&self, chat: &Chat) -> Result<Vec<OwnedSegment>, ChatError>;

    /// The messages from number `first` (counted from 0) on and the beginning of the answer, without the front: what
    /// a session that holds everything before it must still see. Results in it are matched with earlier calls.
    ///
    /// # Errors
    /// As [`render`](ChatFormat::render).
    fn turn(&self, chat: &Chat, first: usize) -> Result<Vec<OwnedSegment>, ChatError>;

    /// A reader of the answer to a prompt with these options. Calls get their ids from `ids`.
    fn parser(&self, options: &ChatOptions, stop: StopStrings, ids: CallIds) -> Box<dyn ReplyParser>;

    /// The names of the control tokens that end an answer.
    fn end_tokens(&self) -> &'static [&'static str];
}
