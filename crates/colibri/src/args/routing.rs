//! Flags about what is recorded of the work: traces, timelines and histories, and the command that reads traces.
use super::OutputArgs;
use crate::values;
use clap::Args;
use std::path::PathBuf;

/// Where records of the work go.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Write which experts every token picked to this file, step by step, for `colibri simulate`: no text, no token, about two
    /// bytes a pick. It is replaced if it exists, must be no device or pipe and must not lie where a model's files are
    /// [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) trace_routing: Option<PathBuf>,
    /// Write when each expert was read and why, when the device computed what, and what was waited for, to this file, which
    /// Perfetto (ui.perfetto.dev) and the page `chrome://tracing` open: no text, no token, about 150 bytes for each of these. It is
    /// replaced if it exists, must be no device or pipe and must not lie where a model's files are [default: none]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) timeline: Option<PathBuf>,
}

/// What is kept of the experts that a model asks for.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Keep how often the model asked for each expert, in a small file beside the history of chats, and let the cache begin with
    /// what earlier runs asked for: on or off; changes no result
    #[arg(long, value_name = "SWITCH", default_value = "off", value_parser = values::switch)]
    pub(crate) history: values::Switch,
}

/// Arguments of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Files that --trace-routing wrote, of one model; they count as one run, in this order
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Sizes of the cache: numbers of experts (16,40) or sizes as --expert-cache has them (8GB,25%)
    /// [default: 1/16, 1/8, 1/4 and 1/2 of all experts]
    #[arg(long, value_name = "LIST", value_parser = values::slots, allow_hyphen_values = true)]
    pub(crate) slots: Option<values::CacheSizes>,
    /// Policies: all, or names as --cache-policy has them, such as lru,lfu:64
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = values::policies)]
    pub(crate) policy: values::Policies,
    /// Also with what these traces tell beforehand: policies that count begin with their counts, and once more with the
    /// experts picked most often in half of the slots for good [default: none]
    #[arg(long, value_name = "TRACE")]
    pub(crate) before: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
