//! What a prompt says besides the conversation, and its JSON form (that of `k3-render.json`). It deliberately knows
//! no request: see `request.rs`.

use super::ChatError;
use crate::Json;
use serde::{Deserialize, Serialize};

/// How a conversation is rendered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Json", into = "Json")]
pub struct ChatOptions {
    /// Whether the model thinks before it answers.
    pub thinking: bool,
    /// How much; none is not said to the model. Without thinking it has no effect.
    pub effort: Option<Effort>,
    /// Whether tools are to be called.
    pub tool_choice: ToolChoice,
    /// What the answer must be.
    pub response_format: ResponseFormat,
    /// Whether the prompt ends with the beginning of an answer.
    pub generation_prompt: bool,
    /// Width and height of every image, in the order in which the images are rendered: that of the messages, except
    /// that tool results which answer calls stand in the order of the calls.
    pub images: Vec<[u32; 2]>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            thinking: true,
            effort: None,
            tool_choice: ToolChoice::Auto,
            response_format: ResponseFormat::Text,
            generation_prompt: true,
            images: Vec::new(),
        }
    }
}

/// How much to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// `low`
    Low,
    /// `high`
    High,
    /// `max`
    Max,
}

impl Effort {
    /// All of them, from little to much.
    pub const ALL: [Effort; 3] = [Effort::Low, Effort::High, Effort::Max];

    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Effort::Low => "low",
            Effort::High => "high",
            Effort::Max => "max",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Effort::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// The one that `value` names.
    pub(super) fn read(value: &Json, place: &str) -> Result<Self, ChatError> {
        let effort = value.as_str().and_then(Effort::named);
        effort.ok_or_else(|| ChatError::unexpected(place, "low, high or max", value))
    }
}

/// Whether tools are to be called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// None.
    None,
    /// This one.
    Function(String),
}

impl ToolChoice {
    /// Of the field `tool_choice`.
    pub(super) fn read(value: &Json, place: &str) -> Result<Self, ChatError> {
        let expected = "auto, none, required or {\"type\": \"function\", \"function\": {\"name\": ..}}";
        let named = || value.get("function")?.get("name")?.as_str();
        match (value.as_str(), named()) {
            (Some("auto"), _) => Ok(ToolChoice::Auto),
            (Some("required"), _) => Ok(ToolChoice::Required),
            (Some("none"), _) => Ok(ToolChoice::None),
            (None, Some(name)) => Ok(ToolChoice::Function(name.to_owned())),
            _ => Err(ChatError::unexpected(place, expected, value)),
        }
    }

    fn to_json(&self) -> Json {
        match self {
            ToolChoice::Auto => Json::string("auto"),
            ToolChoice::Required => Json::string("required"),
            ToolChoice::None => Json::string("none"),
            ToolChoice::Function(name) => {
                let function = Json::object([("name", Json::string(name))]);
                Json::object([("type", Json::string("function")), ("function", function)])
            }
        }
    }
}

/// What the answer must be.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(Json),
}

impl ResponseFormat {
    /// Of the field `response_format`.
    pub(super) fn read(value: &Json, place: &str) -> Result<Self, ChatError> {
        match value.get("type").and_then(Json::as_str) {
            Some("text") => Ok(ResponseFormat::Text),
            Some("json_object") => Ok(ResponseFormat::JsonObject),
            Some("json_schema") => match value.get("json_schema") {
                Some(outer @ Json::Object(_)) => {
                    let schema = outer.get("schema").or_else(|| outer.get("json_schema")).unwrap_or(outer);
                    Ok(ResponseFormat::JsonSchema(schema.clone()))
                }
                other => {
                    let place = format!("{place}.json_schema");
                    Err(ChatError::unexpected(place, "an object with `schema`", other.unwrap_or(&Json::Null)))
                }
            },
            _ => {
                let found = value.get("type").unwrap_or(value);
                let expected = "text, json_object or json_schema";
                Err(ChatError::unexpected(format!("{place}.type"), expected, found))
            }
        }
    }

    fn to_json(&self) -> Json {
        let of_type = |name| ("type", Json::string(name));
        match self {
            ResponseFormat::Text => Json::object([of_type("text")]),
            ResponseFormat::JsonObject => Json::object([of_type("json_object")]),
            ResponseFormat::JsonSchema(schema) => {
                let outer = Json::object([("schema", schema.clone())]);
                Json::object([of_type("json_schema"), ("json_schema", outer)])
            }
        }
    }
}

/// A field that is `true`, `false` or not there.
pub(super) fn switch(object: &Json, key: &str, place: &str) -> Result<Option<bool>, ChatError> {
    match object.get(key) {
        None => Ok(None),
        Some(Json::Bool(on)) => Ok(Some(*on)),
        Some(other) => Err(ChatError::unexpected(format!("{place}{key}"), "true or false", other)),
    }
}

impl TryFrom<Json> for ChatOptions {
    type Error = ChatError;

    fn try_from(value: Json) -> Result<Self, ChatError> {
        const KNOWN: [&str; 6] = [
            "thinking",
            "thinking_effort",
            "tool_choice",
            "response_format",
            "add_generation_prompt",
            "images",
        ];
        let members = match &value {
            Json::Null => return Ok(ChatOptions::default()),
            Json::Object(members) => members,
            other => return Err(ChatError::unexpected("options", "an object", other)),
        };
        if let Some(key) = members.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let expected =
                "thinking, thinking_effort, tool_choice, response_format, add_generation_prompt or images";
            return Err(ChatError::unexpected("options", expected, &Json::string(key)));
        }
        let thinking = switch(&value, "thinking", "options.")?.unwrap_or(true);
        let effort = value.get("thinking_effort").filter(|_| thinking);
        Ok(ChatOptions {
            thinking,
            effort: effort.map(|effort| Effort::read(effort, "options.thinking_effort")).transpose()?,
            tool_choice: value
                .get("tool_choice")
                .map_or(Ok(ToolChoice::Auto), |choice| ToolChoice::read(choice, "options.tool_choice"))?,
            response_format: value.get("response_format").map_or(Ok(ResponseFormat::Text), |format| {
                ResponseFormat::read(format, "options.response_format")
            })?,
            generation_prompt: switch(&value, "add_generation_prompt", "options.")?.unwrap_or(true),
            images: value.get("images").map_or(Ok(Vec::new()), sizes)?,
        })
    }
}

/// `[[640, 480], ..]`
fn sizes(value: &Json) -> Result<Vec<[u32; 2]>, ChatError> {
    let refused = || ChatError::unexpected("options.images", "a list of [width, height]", value);
    let number = |value: &Json| match value {
        Json::Number(spelling) => spelling.parse::<u32>().ok(),
        _ => None,
    };
    let size = |value: &Json| match value {
        Json::Array(pair) => match pair.as_slice() {
            [width, height] => Some([number(width)?, number(height)?]),
            _ => None,
        },
        _ => None,
    };
    let Json::Array(list) = value else { return Err(refused()) };
    list.iter().map(size).collect::<Option<_>>().ok_or_else(refused)
}

impl From<ChatOptions> for Json {
    /// What differs from the default.
    fn from(options: ChatOptions) -> Json {
        let ChatOptions { thinking, effort, tool_choice, response_format, generation_prompt, images } =
            options;
        let mut members = vec![("thinking", Json::Bool(thinking))];
        if let Some(effort) = effort {
            members.push(("thinking_effort", Json::string(effort.name())));
        }
        if tool_choice != ToolChoice::Auto {
            members.push(("tool_choice", tool_choice.to_json()));
        }
        if response_format != ResponseFormat::Text {
            members.push(("response_format", response_format.to_json()));
        }
        if !generation_prompt {
            members.push(("add_generation_prompt", Json::Bool(false)));
        }
        if !images.is_empty() {
            let number = |number: u32| Json::Number(number.to_string());
            let sizes = images.into_iter().map(|size| Json::Array(size.map(number).to_vec()));
            members.push(("images", Json::Array(sizes.collect())));
        }
        Json::object(members)
    }
}
