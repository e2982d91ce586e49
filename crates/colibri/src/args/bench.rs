//! Arguments of the command that measures.
use super::{EngineArgs, ModelArgs, OutputArgs, RecordArgs};
use crate::values;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// For the help of the command.
pub(crate) const BENCH_NOTES: &str = "\
What a figure means:
  floor  the least time the same work could take: bytes by the rate at which these
         threads read memory (or the disk, where experts come from it), or
         operations by their peak, whichever takes longer; all measured in this run
  ratio  floor / median
  f32    multiply-adds a second by the peak of those in f32, whatever does them
  !      during most repeats other programs had the cores or the system paged
With --compare the exit code is 0 if no row is slower, 1 if one is, and 2 if the
files cannot be compared.";

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// This machine: memory, arithmetic, the model's disk
    Machine,
    /// Every matrix product of the model by itself
    Kernels,
    /// Token after token
    Decode,
    /// Prompts of several lengths
    Prefill,
    /// Token after token behind contexts of several lengths
    Context,
    /// All of these
    All,
}

impl What {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            What::Machine => "machine",
            What::Kernels => "kernels",
            What::Decode => "decode",
            What::Prefill => "prefill",
            What::Context => "context",
            What::All => "all",
        }
    }

    /// Whether it is asked for by this word.
    pub(crate) fn includes(self, other: What) -> bool {
        self == other || self == What::All
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_name = "WHAT", default_value = "all", conflicts_with = "compare")]
    pub(crate) what: What,
    /// Measure nothing, compare two files that --json has printed: which rows of B are faster or slower than those of A,
    /// by 2 % or more and by more than chance explains in 99 of 100 cases
    #[arg(long, value_names = ["A.json", "B.json"], num_args = 2, conflicts_with = "model")]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// With --compare: compare although machine, model or settings differ; what differs is printed
    #[arg(long, requires = "compare")]
    pub(crate) anyway: bool,
    /// How often everything is measured, in turn, after a warm-up that does not count, 1 to 100; disturbed repeats are
    /// made again, but no more often than this
    #[arg(long, value_name = "N", default_value = "7", value_parser = values::repeats, allow_negative_numbers = true)]
    pub(crate) repeats: u32,
    /// Memory that reading and matrix products go through before any byte comes again, 16MB to 1TB: less than 1GB may lie in
    /// a processor's cache and says so
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = values::bench_bytes, allow_hyphen_values = true)]
    pub(crate) bytes: u64,
    /// Of kernels: inputs that matrix products meet at once, each 1 to 4096 [default: 1,4,32,128]
    #[arg(long, value_name = "LIST", value_parser = values::bench_rows, allow_hyphen_values = true)]
    pub(crate) rows: Option<values::List>,
    /// Of decode and context: tokens of one repeat, 1 to 4096 [default: 8]
    #[arg(long, value_name = "N", value_parser = values::chunk, allow_negative_numbers = true)]
    pub(crate) tokens: Option<u32>,
    /// Of prefill: tokens of the prompts, each 1 to 1000000 [default: 64,256]
    #[arg(long, value_name = "LIST", value_parser = values::lengths, allow_hyphen_values = true)]
    pub(crate) lengths: Option<values::List>,
    /// Of context: tokens before the measured ones, each 1 to 1000000 [default: 256,1024,4096]
    #[arg(long, value_name = "LIST", value_parser = values::lengths, allow_hyphen_values = true)]
    pub(crate) contexts: Option<values::List>,
    /// Of decode, prefill and context: feed the tokens of this text, over and over [default: random tokens, which find the
    /// fewest experts in the cache]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Of decode: measure also without guesses of the experts to come, and with guesses of which these shares are right,
    /// each 0 to 1, with three digits at most: 1,0.6,0. They come from a run of the same tokens before [default: only as
    /// --look-ahead says]
    #[arg(long, value_name = "LIST", value_parser = values::precisions, allow_hyphen_values = true)]
    pub(crate) guess_precision: Option<values::Precisions>,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
