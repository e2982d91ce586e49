//! Arguments of the commands that show what a model reads: conversations as prompts, text as ids.
use super::{ModelArgs, OutputArgs};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `render`.
#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    /// The conversation: a list of messages as chat APIs have them, or {"messages": [..], "tools": [..], "options": {..}}
    /// with the options thinking, `thinking_effort`, `tool_choice`, `response_format`, `add_generation_prompt` and images. An
    /// object without options but with fields of a chat request, such as `reasoning_effort`, is read as a request. `-` reads
    /// it from standard input
    #[arg(value_name = "CHAT.json")]
    pub(crate) chat: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// Arguments of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The text, taken as it is: a control token that is spelled in it is plain text. With --decode, ids such as 1,2,3.
    /// `-` reads it from standard input
    pub(crate) text: String,
    /// From ids to text: the bytes of the tokens as they are, made harmless where a terminal shows them
    #[arg(long)]
    pub(crate) decode: bool,
    /// Read the spelling of a control token, such as <|open|>, as that token. For text that you wrote yourself
    #[arg(long, conflicts_with = "decode")]
    pub(crate) specials: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}
