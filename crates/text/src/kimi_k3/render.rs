//! From a conversation to the segments of a prompt. Whatever comes from outside becomes text; each cut between
//! segments is a cut between tokens. It deliberately encodes nothing.

use super::results::Results;
use super::{CLOSE, END_OF_MESSAGE, OPEN, SEP};
use crate::chat::ToolChoice;
use crate::chat::{Chat, ChatError, ChatOptions, Content, Message, Part, ResponseFormat, Role, ToolCall};
use crate::cuts::is_blank;
use crate::json::Style;
use crate::{Json, OwnedSegment};

const MEDIA: [&str; 4] = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"];

const TOOLS: &str = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
const NEW_TOOLS: &str = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou \
    have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n";
const EFFORT: &str = "`thinking_effort` guides on how much to think in your thinking channel (not including the \
    response channel), supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with \
    `thinking_effort=";
const REQUIRED: &str =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
const NONE: &str =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.";
const RAW_JSON: &str = "Your response must be raw JSON data without markdown code blocks (```json) or any additional \
    formatting.";

/// Declarations and effort.
pub(super) fn front(chat: &Chat) -> Vec<OwnedSegment> {
    let mut prompt = Prompt::default();
    if !chat.tools.is_empty() {
        prompt.declare(TOOLS, &chat.tools);
    }
    if let (true, Some(effort)) = (chat.options.thinking, chat.options.effort) {
        prompt.note("thinking-effort", &format!("{EFFORT}{}`.", effort.name()));
    }
    prompt.0
}

/// The messages from `first` on, notes on the next answer, and its beginning.
pub(super) fn turn(chat: &Chat, first: usize) -> Result<Vec<OwnedSegment>, ChatError> {
    let options = &chat.options;
    check_images(chat)?;
    let mut conversation = Conversation {
        prompt: Prompt::default(),
        thinking: options.thinking,
        images: options.images.iter(),
        results: Results::default(),
    };
    // What a session holds already is rendered too, for what it tells about the rest, and then dropped.
    let (before, new) = chat.messages.split_at(first.min(chat.messages.len()));
    conversation.messages(before, 0)?;
    conversation.prompt.0.clear();
    conversation.messages(new, before.len())?;
    let mut prompt = conversation.prompt;
    prompt.notes_on_answer(options);
    if options.generation_prompt {
        prompt.begin("message", &[("role", "assistant")]);
        prompt.begin(if options.thinking { "think" } else { "response" }, &[]);
    }
    Ok(prompt.0)
}

/// Each image needs its size.
fn check_images(chat: &Chat) -> Result<(), ChatError> {
    let rendered = |message: &&Message| match message.role {
        Role::System => message.tools.is_empty(),
        Role::Other(_) => false,
        _ => true,
    };
    let images = |message: &Message| match &message.content {
        Content::Parts(parts) => parts.iter().filter(|part| matches!(part, Part::Image(_))).count(),
        _ => 0,
    };
    let parts = chat.messages.iter().filter(rendered).map(images).sum();
    let sizes = chat.options.images.len();
    if parts == sizes { Ok(()) } else { Err(ChatError::Images { parts, sizes }) }
}

/// Segments that grow.
#[derive(Default)]
pub(super) struct Prompt(Vec<OwnedSegment>);

impl Prompt {
    pub(super) fn into_segments(self) -> Vec<OwnedSegment> {
        self.0
    }

    pub(super) fn special(&mut self, name: &'static str) {
        self.0.push(OwnedSegment::Special(name));
    }

    /// Text; an empty one is no segment.
    pub(super) fn text(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.0.push(OwnedSegment::Text(text));
        }
    }

    pub(super) fn begin(&mut self, name: &'static str, attributes: &[(&'static str, &str)]) {
        self.special(OPEN);
        self.text(name);
        for (key, value) in attributes {
            self.text(format!(" {key}"));
            self.text("=\"");
            self.text(value.replace('&', "&amp;").replace('"', "&quot;"));
            self.text("\"");
        }
        self.special(SEP);
    }

    pub(super) fn end(&mut self, name: &str) {
        self.special(CLOSE);
        self.text(name);
        self.special(SEP);
    }

    fn end_message(&mut self) {
        self.end("message");
        self.special(END_OF_MESSAGE);
    }

    fn note(&mut self, kind: &str, body: &str) {
        self.begin("message", &[("role", "system"), ("type", kind)]);
        self.text(body);
        self.end_message();
    }

    fn declare(&mut self, heading: &str, tools: &[Json]) {
        let tools = Json::Array(tools.to_vec()).written(Style::SORTED);
        self.note("tool-declare", &format!("{heading}```json\n{tools}\n```"));
    }

    fn notes_on_answer(&mut self, options: &ChatOptions) {
        match options.tool_choice {
            ToolChoice::Required => self.note("tool-choice", REQUIRED),
            ToolChoice::None => self.note("tool-choice", NONE),
            ToolChoice::Auto | ToolChoice::Function(_) => {}
        }
        let invoked =
            |format: &str| format!("The system is invoked with `response_format={format}`.\n{RAW_JSON}");
        match &options.response_format {
            ResponseFormat::Text => {}
            ResponseFormat::JsonObject => self.note("response-format", &invoked("json_object")),
            ResponseFormat::JsonSchema(schema) => {
                let schema = schema.written(Style::SORTED);
                let schema =
                    format!("\nThe JSON data must match the following schema:\n```json\n{schema}\n```");
                self.note("response-format", &(invoked("json_schema") + &schema));
            }
        }
    }
}

/// Messages on their way into a prompt.
struct Conversation<'c> {
    prompt: Prompt,
    thinking: bool,
    /// Sizes of the images that are still to come.
    images: std::slice::Iter<'c, [u32; 2]>,
    results: Results<'c>,
}

impl<'c> Conversation<'c> {
    /// Messages, the first of which has the number `number`.
    fn messages(&mut self, messages: &'c [Message], number: usize) -> Result<(), ChatError> {
        let mut rest = messages;
        while let Some((message, others)) = rest.split_first() {
            let place = number + messages.len() - rest.len();
            rest = others;
            match message.role {
                Role::System if !message.tools.is_empty() => self.prompt.declare(NEW_TOOLS, &message.tools),
                Role::System | Role::User => self.plain(message),
                Role::Assistant => self.assistant(message, place)?,
                Role::Tool => {
                    let run = others.iter().take_while(|message| message.role == Role::Tool).count();
                    self.tool_results(&messages[place - number..=place - number + run], place)?;
                    rest = &others[run..];
                }
                Role::Other(_) => {}
            }
        }
        Ok(())
    }

    fn plain(&mut self, message: &Message) {
        self.begin_named(message);
        self.content(&message.content);
        self.prompt.end_message();
    }

    fn begin_named(&mut self, message: &Message) {
        let role = ("role", message.role.name());
        match message.name.as_deref() {
            Some(name) if !name.is_empty() => self.prompt.begin("message", &[role, ("name", name)]),
            _ => self.prompt.begin("message", &[role]),
        }
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Nothing => {}
            Content::Text(text) => self.prompt.text(text),
            Content::Parts(parts) => {
                for part in parts {
                    match part {
                        Part::Text(text) => self.prompt.text(text),
                        Part::Image(_) => self.image(),
                    }
                }
            }
        }
    }

    fn image(&mut self) {
        // There are as many sizes as images: that was checked.
        let [width, height] = self.images.next().copied().unwrap_or_default();
        let [begin, content, pad, end] = MEDIA;
        self.prompt.special(begin);
        self.prompt.text(format!("image {width}x{height}"));
        self.prompt.special(content);
        self.prompt.special(pad);
        self.prompt.special(end);
    }

    fn assistant(&mut self, message: &'c Message, place: usize) -> Result<(), ChatError> {
        self.begin_named(message);
        if self.thinking {
            self.prompt.begin("think", &[]);
            let reasoning = message.reasoning.as_deref().unwrap_or_default();
            if !is_blank(reasoning) {
                self.prompt.text(reasoning);
            }
            self.prompt.end("think");
        }
        self.prompt.begin("response", &[]);
        self.content(&message.content);
        self.prompt.end("response");
        if !message.tool_calls.is_empty() {
            self.prompt.begin("tools", &[]);
            for (index, call) in message.tool_calls.iter().enumerate() {
                let place = || format!("messages[{place}].tool_calls[{index}].function.arguments");
                self.call(call, index + 1, place)?;
            }
            self.prompt.end("tools");
        }
        self.prompt.end_message();
        self.results = Results::of(&message.tool_calls);
        Ok(())
    }

    fn call(&mut self, call: &ToolCall, number: usize, place: impl Fn() -> String) -> Result<(), ChatError> {
        const EXPECTED: &str = "an object, its JSON text, or null";
        self.prompt.begin("call", &[("tool", &call.name), ("index", &number.to_string())]);
        match &call.arguments {
            Json::Null => {}
            Json::Object(_) => self.arguments(&call.arguments),
            Json::String(text) if is_blank(text) => {}
            Json::String(text) => match Json::parse(text) {
                Ok(object @ Json::Object(_)) => self.arguments(&object),
                // The text `null` too: only a value that is not there at all means no arguments.
                Ok(other) => return Err(ChatError::unexpected(place(), EXPECTED, &other)),
                Err(source) if source.too_deep => return Err(ChatError::NotJson { place: place(), source }),
                Err(_) => {
                    self.prompt.begin("json", &[("type", "object")]);
                    self.prompt.text(text);
                    self.prompt.end("json");
                }
            },
            other => return Err(ChatError::unexpected(place(), EXPECTED, other)),
        }
        self.prompt.end("call");
        Ok(())
    }

    /// The members of an object.
    fn arguments(&mut self, object: &Json) {
        let Json::Object(members) = object else { return };
        for (key, value) in members {
            let kind = match value {
                Json::Null => "null",
                Json::Bool(_) => "boolean",
                Json::Number(_) => "number",
                Json::String(_) => "string",
                Json::Array(_) => "array",
                Json::Object(_) => "object",
            };
            self.prompt.begin("argument", &[("key", key), ("type", kind)]);
            match value {
                Json::String(text) => self.prompt.text(text),
                other => self.prompt.text(other.written(Style::PYTHON)),
            }
            self.prompt.end("argument");
        }
    }

    /// An unbroken run of results, the first of which is message number `place`.
    fn tool_results(&mut self, run: &'c [Message], place: usize) -> Result<(), ChatError> {
        for result in self.results.of_run(run, place)? {
            let index = result.index.to_string();
            let attributes = [("role", "tool"), ("tool", result.tool), ("index", &index)];
            self.prompt.begin("message", &attributes);
            self.content(&result.message.content);
            self.prompt.end_message();
        }
        Ok(())
    }
}
