//! From the fields of a chat request to options: the several names that clients have for one thing, in their order
//! of precedence. It deliberately reads no field that does not change the prompt.

use super::options::switch;
use super::read::{list, messages_of};
use super::{Chat, ChatError, ChatOptions, Effort, ResponseFormat, Role, ToolChoice};
use crate::Json;

/// Fields of a chat request that a conversation by itself does not have, whether or not they change the prompt.
const FIELDS: [&str; 34] = [
    "chat_template_kwargs",
    "enable_thinking",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "min_p",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "thinking",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];

/// Whether a field tells a request from a conversation.
pub(super) fn is_field(name: &str) -> bool {
    FIELDS.binary_search(&name).is_ok()
}

impl Chat {
    /// The conversation of a chat request: options by [`request_options`], and the role `developer` is `system`.
    ///
    /// # Errors
    /// A [`ChatError`] that names the field which is not as expected.
    pub fn from_request(request: &Json, default_effort: Option<Effort>) -> Result<Self, ChatError> {
        let messages = request.get("messages").unwrap_or(&Json::Null);
        let mut messages = messages_of(messages)?;
        let developers = messages.iter_mut().filter(|message| message.role.name() == "developer");
        developers.for_each(|message| message.role = Role::System);
        let options = request_options(request, default_effort)?;
        Ok(Chat { messages, tools: list(request, "tools", "")?, options })
    }
}

/// The options of a chat request. Whether to think: `chat_template_kwargs.thinking`, `.enable_thinking`, an effort
/// of `none`, `enable_thinking`, `thinking.type`, else yes. How much: `chat_template_kwargs.thinking_effort` (low, high
/// or max), `.reasoning_effort`, `reasoning_effort`, `reasoning.effort`, else `default_effort`; of the last three, minimal
/// is low, medium is high, xhigh is max. A choice of tools counts only where there are tools.
///
/// # Errors
/// A [`ChatError`] that names the field which is not as expected.
pub fn request_options(request: &Json, default_effort: Option<Effort>) -> Result<ChatOptions, ChatError> {
    let template = object(request, "chat_template_kwargs")?;
    let given = GivenEffort::find(request, template)?;
    let off_by_effort = given.as_ref().is_some_and(GivenEffort::is_none);
    let thinking = match (
        switch(template, "thinking", "chat_template_kwargs.")?,
        switch(template, "enable_thinking", "chat_template_kwargs.")?,
        switch(request, "enable_thinking", "")?,
    ) {
        (Some(on), _, _) | (None, Some(on), _) => on,
        _ if off_by_effort => false,
        (None, None, Some(on)) => on,
        (None, None, None) => thinking_type(request)?,
    };
    let effort = match given {
        Some(given) if thinking => given.effort()?.or(default_effort),
        _ => default_effort.filter(|_| thinking),
    };
    let choice =
        request.get("tool_choice").map(|choice| ToolChoice::read(choice, "tool_choice")).transpose()?;
    let tools = list(request, "tools", "")?;
    let format = request.get("response_format");
    let format = format.map(|format| ResponseFormat::read(format, "response_format")).transpose()?;
    Ok(ChatOptions {
        thinking,
        effort,
        tool_choice: choice.filter(|_| !tools.is_empty()).unwrap_or_default(),
        response_format: format.unwrap_or_default(),
        ..ChatOptions::default()
    })
}

/// A field that is an object, or `null`.
fn object<'j>(request: &'j Json, key: &'static str) -> Result<&'j Json, ChatError> {
    match request.get(key) {
        None => Ok(&Json::Null),
        Some(object @ Json::Object(_)) => Ok(object),
        Some(other) => Err(ChatError::unexpected(key, "an object", other)),
    }
}

/// `thinking.type`
fn thinking_type(request: &Json) -> Result<bool, ChatError> {
    match object(request, "thinking")?.get("type") {
        None => Ok(true),
        Some(Json::String(kind)) => Ok(kind != "disabled"),
        Some(other) => Err(ChatError::unexpected("thinking.type", "enabled or disabled", other)),
    }
}

/// The effort that counts among those given.
struct GivenEffort<'j> {
    place: &'static str,
    value: &'j Json,
    /// Whether only the model's own words are taken.
    strict: bool,
}

impl<'j> GivenEffort<'j> {
    fn find(request: &'j Json, template: &'j Json) -> Result<Option<Self>, ChatError> {
        let reasoning = object(request, "reasoning")?;
        let places = [
            ("chat_template_kwargs.thinking_effort", template.get("thinking_effort"), true),
            ("chat_template_kwargs.reasoning_effort", template.get("reasoning_effort"), false),
            ("reasoning_effort", request.get("reasoning_effort"), false),
            ("reasoning.effort", reasoning.get("effort"), false),
        ];
        let mut given = places
            .into_iter()
            .filter_map(|(place, value, strict)| Some(Self { place, value: value?, strict }));
        Ok(given.next())
    }

    fn is_none(&self) -> bool {
        !self.strict && self.value.as_str() == Some("none")
    }

    /// None for the word `none`: what thinks all the same thinks as much as it does by default.
    fn effort(&self) -> Result<Option<Effort>, ChatError> {
        if self.strict {
            return Effort::read(self.value, self.place).map(Some);
        }
        match self.value.as_str() {
            Some("none") => Ok(None),
            Some("minimal" | "low") => Ok(Some(Effort::Low)),
            Some("medium" | "high") => Ok(Some(Effort::High)),
            Some("xhigh" | "max") => Ok(Some(Effort::Max)),
            _ => {
                let expected = "none, minimal, low, medium, high, xhigh or max";
                Err(ChatError::unexpected(self.place, expected, self.value))
            }
        }
    }
}
