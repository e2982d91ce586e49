//! Arguments of the command that looks for the fastest settings.
use super::{EngineArgs, ModelArgs, OutputArgs};
use crate::values;
use clap::Args;
use std::path::PathBuf;

/// For the help of the command.
pub(crate) const TUNE_NOTES: &str = "\
How a value is chosen: one setting after the other, each with the values that were
taken before. All values of a setting take turns, each loads the model as a run
would. Another value is taken only if its upper quartile lies below the lower
quartile of the value that is set, and its median is at least 2 % less.
No setting that is tried changes a bit of a result.";

/// Arguments of `tune`.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Settings to try, with commas between them: threads, io, readers, look-ahead, expert-cache. Each begins with the value it
    /// has [default: those of them that no flag, variable or configuration file sets]
    #[arg(long, value_name = "LIST", value_parser = values::tunable)]
    pub(crate) sweep: Option<values::Tunable>,
    /// Tokens of one repeat, 1 to 4096
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::chunk, allow_negative_numbers = true)]
    pub(crate) tokens: u32,
    /// How often every value is measured, 4 to 100, half of it in each of two turns (an odd number counts as one more); where
    /// most were disturbed there are up to two turns more
    #[arg(long, value_name = "N", default_value = "8", value_parser = values::tune_repeats, allow_negative_numbers = true)]
    pub(crate) repeats: u32,
    /// Feed the tokens of this text, over and over [default: random tokens, which find the fewest experts in the cache]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// The profile to write, for --profile; it is replaced if it exists, must be no device or pipe and must not lie where
    /// a model's files are [default: profile-IDENTITY.toml beside the history of chats]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
