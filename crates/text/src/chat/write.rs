//! From conversations to `OpenAI`'s JSON, which reads back as the same conversation. It deliberately writes nothing
//! that is empty, except `content`.

use super::{Chat, Content, Message, Part, ToolCall};
use crate::Json;

impl From<Chat> for Json {
    fn from(chat: Chat) -> Json {
        Json::object([
            ("messages", Json::Array(chat.messages.into_iter().map(Json::from).collect())),
            ("tools", Json::Array(chat.tools)),
            ("options", Json::from(chat.options)),
        ])
    }
}

impl From<Message> for Json {
    fn from(message: Message) -> Json {
        let Message { role, content, name, reasoning, tool_calls, tool_call_id, tool, tools } = message;
        let mut members = vec![("role", Json::string(role.name())), ("content", content.into())];
        let texts = [
            ("name", name),
            ("reasoning_content", reasoning),
            ("tool_call_id", tool_call_id),
            ("tool", tool),
        ];
        members.extend(texts.into_iter().filter_map(|(key, text)| Some((key, Json::String(text?)))));
        if !tool_calls.is_empty() {
            let calls = tool_calls.into_iter().map(Json::from).collect();
            members.push(("tool_calls", Json::Array(calls)));
        }
        if !tools.is_empty() {
            members.push(("tools", Json::Array(tools)));
        }
        Json::object(members)
    }
}

impl From<Content> for Json {
    fn from(content: Content) -> Json {
        match content {
            Content::Nothing => Json::Null,
            Content::Text(text) => Json::String(text),
            Content::Parts(parts) => Json::Array(parts.into_iter().map(Json::from).collect()),
        }
    }
}

impl From<Part> for Json {
    fn from(part: Part) -> Json {
        match part {
            Part::Text(text) => Json::object([("type", Json::string("text")), ("text", Json::String(text))]),
            Part::Image(whole) => whole,
        }
    }
}

impl From<ToolCall> for Json {
    fn from(call: ToolCall) -> Json {
        let function = Json::object([("name", Json::String(call.name)), ("arguments", call.arguments)]);
        let id = call.id.map(|id| ("id", Json::String(id)));
        Json::object(id.into_iter().chain([("type", Json::string("function")), ("function", function)]))
    }
}
