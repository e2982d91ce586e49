//! A model's chat format over its tokenizer: messages to ids, ids of an answer to what they say. Knows no engine and no
//! state.
use super::conversation::Ending;
use super::saved::ModelName;
use crate::args::SpeechArgs;
use crate::errors::Failure;
use models::Family;
use text::chat::{
    Chat, ChatFormat, ChatOptions, Delta, Effort, End, Message, Piece, Reply, ReplyParser, Role,
    random_call_id,
};
use text::kimi_k3::KimiK3;
use text::{OwnedSegment, StopStrings, Tiktoken, Tokenizer as _};

/// How the flags say that the model is to think.
pub(crate) fn options(args: &SpeechArgs) -> ChatOptions {
    let effort = (!args.no_think).then_some(args.effort.unwrap_or(Effort::Max));
    ChatOptions { thinking: !args.no_think, effort, ..ChatOptions::default() }
}

/// How conversations are held with a model.
pub(crate) struct Voice {
    tokenizer: Tiktoken,
    format: &'static dyn ChatFormat,
    /// What stands before the first message.
    pub(crate) options: ChatOptions,
    stop_ids: Vec<u32>,
    model: ModelName,
}

impl Voice {
    /// Of a family, with a model's tokenizer.
    ///
    /// # Errors
    /// Control tokens that the format needs and the tokenizer lacks.
    pub(crate) fn new(tokenizer: Tiktoken, family: &Family, options: ChatOptions) -> Result<Self, Failure> {
        // So far all families there are speak it.
        let format: &dyn ChatFormat = &KimiK3;
        check_tokens(&tokenizer, format)?;
        let stop_ids = format.end_tokens().iter().filter_map(|name| tokenizer.special(name)).collect();
        let model = ModelName { family: family.name().into(), tokenizer: fingerprint(&tokenizer) };
        Ok(Voice { tokenizer, format, options, stop_ids, model })
    }

    /// Its tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tiktoken {
        &self.tokenizer
    }

    /// Ids that end an answer.
    pub(crate) fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Whose ids these are.
    pub(crate) fn model(&self) -> &ModelName {
        &self.model
    }

    /// Ids there are.
    pub(crate) fn vocabulary(&self) -> u32 {
        self.tokenizer.vocabulary()
    }

    /// Ids of the messages from number `first` on, with what stands before the first of all; where an answer is wanted, also
    /// of its beginning.
    pub(crate) fn ids(&self, messages: &[Message], first: usize, answer: bool) -> Result<Vec<u32>, Failure> {
        let options = ChatOptions { generation_prompt: answer, ..self.options.clone() };
        let chat = Chat { messages: messages.to_vec(), tools: Vec::new(), options };
        let mut segments = if first == 0 { self.format.front(&chat).map_err(refused)? } else { Vec::new() };
        segments.extend(self.format.turn(&chat, first).map_err(refused)?);
        Ok(self.tokenizer.encode_owned(&segments)?)
    }

    /// Listens to an answer, whose text ends at these strings.
    pub(crate) fn hearing(&self, stop: StopStrings) -> Hearing {
        Hearing(self.format.parser(&self.options, stop, Box::new(random_call_id)))
    }

    /// What a token of an answer adds.
    ///
    /// # Errors
    /// An id that the tokenizer does not have.
    pub(crate) fn hear(&self, hearing: &mut Hearing, id: u32) -> Result<Vec<Delta>, Failure> {
        Ok(hearing.0.push(Piece::of(&self.tokenizer, id)?))
    }

    /// Ids of segments.
    ///
    /// # Errors
    /// A control token that the tokenizer does not have.
    pub(crate) fn encode(&self, segments: &[OwnedSegment]) -> Result<Vec<u32>, Failure> {
        Ok(self.tokenizer.encode_owned(segments)?)
    }
}

/// An answer that is being listened to.
pub(crate) struct Hearing(Box<dyn ReplyParser>);

/// The end of an answer.
pub(crate) struct Heard {
    /// What was held back.
    pub(crate) deltas: Vec<Delta>,
    /// All that was said.
    pub(crate) reply: Reply,
    /// What ends the message for the model.
    pub(crate) closing: Vec<OwnedSegment>,
}

impl Hearing {
    /// Whether nothing that comes can count.
    pub(crate) fn ended(&self) -> bool {
        self.0.ended()
    }

    /// Stops listening.
    pub(crate) fn finish(mut self, ending: Ending) -> Heard {
        let closing = self.0.closing();
        let end = match ending {
            Ending::Stop => End::Stop,
            Ending::Length | Ending::Context => End::Length,
            Ending::Cancelled => End::Cancelled,
        };
        let deltas = self.0.finish(end);
        Heard { deltas, reply: self.0.reply(), closing }
    }
}

/// What the format refuses came from whoever uses the program.
fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}

/// Refuses a tokenizer without the control tokens that any conversation needs.
fn check_tokens(tokenizer: &Tiktoken, format: &dyn ChatFormat) -> Result<(), Failure> {
    let messages = [Role::System, Role::User, Role::Assistant].map(|role| Message::new(role, "x"));
    let segments =
        format.render(&Chat { messages: messages.to_vec(), ..Chat::default() }).map_err(refused)?;
    let mut missing = Vec::new();
    for segment in &segments {
        if let OwnedSegment::Special(name) = segment
            && tokenizer.special(name).is_none()
            && !missing.contains(name)
        {
            missing.push(*name);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "this model cannot chat: tokenizer_config.json names no {}, which its chat format needs; download the \
         release's tokenizer_config.json, or use `colibri run`",
        missing.join(", ")
    )))
}

/// BLAKE3 of the bytes of all ids in order, each with its length before it.
fn fingerprint(tokenizer: &Tiktoken) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in 0..tokenizer.vocabulary() {
        let bytes = tokenizer.bytes(id).unwrap_or_default();
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    hasher.finalize().to_hex().to_string()
}
