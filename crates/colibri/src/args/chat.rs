//! Flags of conversations: what is said before them, how the model thinks, and how that is shown.
use super::{EngineArgs, HistoryArgs, ModelArgs, RecordArgs, SamplingArgs};
use crate::chat::Thinking;
use crate::errors::Failure;
use crate::values;
use clap::Args;
use std::path::PathBuf;
use text::chat::Effort;

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) speech: SpeechArgs,
    /// Go on with a conversation that /save wrote. How its model thinks was said when it began
    /// [default: begin a new one]
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Conversation",
        conflicts_with_all = ["system", "effort", "no_think"]
    )]
    pub(crate) load: Option<PathBuf>,
    /// Keep no history of what is typed at a terminal; else it is in colibri/chat-history in the platform's directory
    /// for such things (on Linux the variable `XDG_STATE_HOME`, else ~/.local/state)
    #[arg(long, help_heading = "Conversation")]
    pub(crate) no_history: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Print one JSON object a line: for each answer, each error, and /stats
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

/// How a conversation begins and how thinking is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct SpeechArgs {
    /// A system message before everything else [default: none]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// How much the model is asked to think: low, high or max [default: max]
    #[arg(long, value_name = "EFFORT", value_parser = values::effort, conflicts_with = "no_think")]
    pub(crate) effort: Option<Effort>,
    /// The model answers without thinking first
    #[arg(long)]
    pub(crate) no_think: bool,
    /// How thinking is shown, always on standard error: dimmed as it comes, folded into one line that counts its
    /// tokens, or not at all [default: show on a terminal, hide elsewhere and with --json]
    #[arg(long, value_name = "HOW")]
    pub(crate) thinking: Option<Thinking>,
}

impl SpeechArgs {
    /// Refuses them where there is no conversation.
    pub(crate) fn refuse_idle(&self) -> Result<(), Failure> {
        let given = [
            ("--system", self.system.is_some()),
            ("--effort", self.effort.is_some()),
            ("--no-think", self.no_think),
            ("--thinking", self.thinking.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((flag, _)) => Err(Failure::Usage(format!(
                "{flag} has no effect on a text that is continued: leave it away, or give --chat for an answer"
            ))),
        }
    }
}
