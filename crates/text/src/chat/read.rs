//! From `OpenAI`'s JSON to conversations; what has no meaning there is refused by name. It deliberately renders
//! nothing, and keeps roles and arguments that only a format can judge.

use super::{Chat, ChatError, ChatOptions, Content, Message, Part, Role, ToolCall, request};
use crate::Json;

impl Chat {
    /// Reads a conversation: a list of messages, or an object with `messages`, and perhaps `tools` and `options`. An
    /// object without `options` but with fields of a chat request (`model`, `temperature`, `tool_choice`, ...) is read
    /// as [`from_request`](Chat::from_request) reads it, with effort max. Other fields are refused.
    ///
    /// # Errors
    /// A [`ChatError`] that names the field which is not as expected.
    pub fn from_json(json: &Json) -> Result<Self, ChatError> {
        let members = match json {
            Json::Array(_) => return Ok(Chat { messages: messages_of(json)?, ..Chat::default() }),
            Json::Object(members) => members,
            other => return Err(ChatError::unexpected("the conversation", "an object or a list", other)),
        };
        let messages =
            json.get("messages").ok_or_else(|| ChatError::missing("messages", "a list of messages"))?;
        let mut others = members.iter().filter(|(name, _)| !OWN_FIELDS.contains(&name.as_str()));
        let options = json.get("options");
        let refused = others.clone().find(|(name, _)| options.is_some() || !request::is_field(name));
        if let Some((name, value)) = refused {
            let expected = if options.is_some() {
                "nothing beside `options`, which says it all"
            } else {
                "a field of conversations or of chat requests; options of the prompt belong under `options`"
            };
            return Err(ChatError::unexpected(name.as_str(), expected, value));
        }
        if others.next().is_some() {
            return Chat::from_request(json, Some(super::Effort::Max));
        }
        Ok(Chat {
            messages: messages_of(messages)?,
            tools: list(json, "tools", "")?,
            options: ChatOptions::try_from(options.cloned().unwrap_or(Json::Null))?,
        })
    }
}

/// Fields of a conversation, and those that stand beside one in a list of rendered examples: its name and what came
/// out of it.
const OWN_FIELDS: [&str; 7] = ["messages", "tools", "options", "name", "segments", "ids", "refuse"];

impl TryFrom<Json> for Chat {
    type Error = ChatError;

    fn try_from(json: Json) -> Result<Self, ChatError> {
        Chat::from_json(&json)
    }
}

impl TryFrom<Json> for Message {
    type Error = ChatError;

    fn try_from(json: Json) -> Result<Self, ChatError> {
        message(&json, "message")
    }
}

/// The list in `messages`.
pub(super) fn messages_of(value: &Json) -> Result<Vec<Message>, ChatError> {
    let Json::Array(messages) = value else {
        return Err(ChatError::unexpected("messages", "a list of messages", value));
    };
    let read = |(index, value)| message(value, &format!("messages[{index}]"));
    messages.iter().enumerate().map(read).collect()
}

fn message(value: &Json, place: &str) -> Result<Message, ChatError> {
    if !matches!(value, Json::Object(_)) {
        return Err(ChatError::unexpected(place, "a message, an object", value));
    }
    let role = text(value, "role", place)?;
    let role = role.ok_or_else(|| ChatError::missing(format!("{place}.role"), "a role"))?;
    let role = Role::named(&role);
    // Fields of other roles have no meaning, so they may be anything.
    let only = |of: Role| if role == of { value } else { &Json::Null };
    let (assistant, tool, system) = (only(Role::Assistant), only(Role::Tool), only(Role::System));
    let reasoning = text(assistant, "reasoning_content", place)?;
    let tool_call_id = text(tool, "tool_call_id", place)?;
    Ok(Message {
        content: content(value, place)?,
        name: text(value, "name", place)?,
        reasoning: reasoning.map_or_else(|| text(assistant, "reasoning", place), |text| Ok(Some(text)))?,
        tool_calls: list(assistant, "tool_calls", place)?
            .iter()
            .enumerate()
            .map(|(index, call)| tool_call(call, &format!("{place}.tool_calls[{index}]")))
            .collect::<Result<_, _>>()?,
        tool_call_id: tool_call_id.map_or_else(|| text(tool, "id", place), |id| Ok(Some(id)))?,
        tool: text(tool, "tool", place)?,
        tools: list(system, "tools", place)?,
        role,
    })
}

impl Role {
    /// The role of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            other => Role::Other(other.to_owned()),
        }
    }

    /// As it is written.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Other(name) => name,
        }
    }
}

fn content(message: &Json, place: &str) -> Result<Content, ChatError> {
    match message.get("content") {
        None => Ok(Content::Nothing),
        Some(Json::String(text)) => Ok(Content::Text(text.clone())),
        Some(Json::Array(parts)) => {
            let read = |(index, value)| part(value, &format!("{place}.content[{index}]"));
            parts.iter().enumerate().map(read).collect::<Result<_, _>>().map(Content::Parts)
        }
        Some(other) => {
            Err(ChatError::unexpected(format!("{place}.content"), "a string, a list of parts or null", other))
        }
    }
}

fn part(value: &Json, place: &str) -> Result<Part, ChatError> {
    match value.get("type").and_then(Json::as_str) {
        Some("text") => match value.get("text") {
            Some(Json::String(text)) => Ok(Part::Text(text.clone())),
            other => {
                let found = other.unwrap_or(&Json::Null);
                Err(ChatError::unexpected(format!("{place}.text"), "a string", found))
            }
        },
        Some("image" | "image_url") => Ok(Part::Image(value.clone())),
        _ => {
            let found = value.get("type").unwrap_or(value);
            Err(ChatError::unexpected(format!("{place}.type"), "text, image or image_url", found))
        }
    }
}

fn tool_call(value: &Json, place: &str) -> Result<ToolCall, ChatError> {
    let place_of_function = format!("{place}.function");
    let Some(function @ Json::Object(_)) = value.get("function") else {
        let found = value.get("function").unwrap_or(&Json::Null);
        return Err(ChatError::unexpected(place_of_function, "an object with `name` and `arguments`", found));
    };
    let name = text(function, "name", &place_of_function)?;
    Ok(ToolCall {
        id: text(value, "id", place)?,
        name: name.ok_or_else(|| ChatError::missing(format!("{place_of_function}.name"), "a tool's name"))?,
        arguments: function.get("arguments").cloned().unwrap_or(Json::Null),
    })
}

/// A string that is not empty.
fn text(object: &Json, key: &str, place: &str) -> Result<Option<String>, ChatError> {
    match object.get(key) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(ChatError::unexpected(format!("{place}.{key}"), "a string", other)),
    }
}

/// A list; empty if it is not there.
pub(super) fn list(object: &Json, key: &str, place: &str) -> Result<Vec<Json>, ChatError> {
    match object.get(key) {
        None => Ok(Vec::new()),
        Some(Json::Array(items)) => Ok(items.clone()),
        Some(other) => {
            let place = if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
            Err(ChatError::unexpected(place, "a list", other))
        }
    }
}
