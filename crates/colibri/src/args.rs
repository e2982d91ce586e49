//! The command line: every flag with its unit, range and default. Knows no model; what flags mean together is decided
//! where they are used.
mod bench;
mod chat;
mod convert;
mod doctor;
mod messages;
mod plan;
mod routing;
mod sampling;
mod shell;
mod text;
mod tune;

use crate::errors::EXIT_CODES;
use crate::{settings, values};
pub(crate) use bench::{BENCH_NOTES, BenchArgs, What};
pub(crate) use chat::{ChatArgs, SpeechArgs};
use clap::{Args, Parser, Subcommand};
pub(crate) use convert::ConvertArgs;
pub(crate) use doctor::DoctorArgs;
use memory::CacheSize;
pub(crate) use messages::MessageArgs;
use models::{Dense, LookAhead};
use ops::Activations;
pub(crate) use plan::PlanArgs;
pub(crate) use routing::{HistoryArgs, RecordArgs, SimulateArgs};
pub(crate) use sampling::{HEADING as SAMPLING_HEADING, SamplingArgs};
pub(crate) use shell::{CompletionsArgs, ManArgs};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use store::cache::CachePolicy;
pub(crate) use text::{RenderArgs, TokenizeArgs};
pub(crate) use tune::{TUNE_NOTES, TuneArgs};

/// Of the program and of the numbers it computes.
static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} (numerics version {})", env!("CARGO_PKG_VERSION"), ops::NUMERICS_VERSION));

static SETTINGS_AND_EXIT_CODES: LazyLock<String> = LazyLock::new(|| format!("{SETTINGS}\n\n{EXIT_CODES}"));

static BENCH_NOTES_AND_EXIT_CODES: LazyLock<String> =
    LazyLock::new(|| format!("{BENCH_NOTES}\n\n{EXIT_CODES}"));

static TUNE_NOTES_AND_EXIT_CODES: LazyLock<String> =
    LazyLock::new(|| format!("{TUNE_NOTES}\n\n{EXIT_CODES}"));

/// How settings are made.
const SETTINGS: &str = "\
What a flag sets, a variable and a line of the file set too; the flag goes
first, then the variable, then the file, then a profile of `colibri tune`:
  --expert-cache 8GB    COLIBRI_EXPERT_CACHE=8GB    expert-cache = \"8GB\"
  --ignore-eos          COLIBRI_IGNORE_EOS=1        ignore-eos = true
  --model a --model b   COLIBRI_MODEL=a:b           model = [\"a\", \"b\"]
(paths in a variable have : between them, on Windows ;)
A key at the top of the file is for every command that has the flag; a key in a
table such as [run] is for that command and goes before the top. A switch can be
turned off: --ignore-eos=false. Paths in the file are relative to the file.";

/// Runs mixture-of-experts models on hardware you own: what every token needs stays in memory, routed experts come
/// from disk when a token picks them. Without --model a tiny model that is part of the program answers.
#[derive(Debug, Parser)]
#[command(name = "colibri", version = VERSION.as_str(), max_term_width = 80, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// Settings from this file; `colibri config --help` says how it is written [default: the one that `colibri config --path` names, if it is there]
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "no_config", help_heading = "Settings")]
    pub(crate) config: Option<PathBuf>,
    /// No settings from any file
    #[arg(long, global = true, help_heading = "Settings")]
    pub(crate) no_config: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) messages: MessageArgs,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a text; control tokens of the answer are left out of it (--json lists all ids)
    #[command(after_help = EXIT_CODES)]
    Run(RunArgs),
    /// Hold a conversation; /help in it lists what can be entered besides texts
    #[command(after_help = EXIT_CODES)]
    Chat(ChatArgs),
    /// Write the logits of every position to a file
    #[command(after_help = EXIT_CODES)]
    Logits(LogitsArgs),
    /// Write what enters and leaves the parts of chosen layers to a file
    #[command(after_help = EXIT_CODES)]
    Trace(TraceArgs),
    /// Compare with golden results, or a device with the definition of every op
    #[command(after_help = EXIT_CODES)]
    Verify(VerifyArgs),
    /// Say what a checkpoint holds and what it lacks
    #[command(after_help = EXIT_CODES)]
    Inspect(InspectArgs),
    /// Show the prompt that a conversation becomes; control tokens stand in ⟨ ⟩
    #[command(after_help = EXIT_CODES)]
    Render(RenderArgs),
    /// Turn text into token ids, or ids into text
    #[command(after_help = EXIT_CODES)]
    Tokenize(TokenizeArgs),
    /// Look at the machine, the model, its drives and the settings, and say what to do
    #[command(after_help = EXIT_CODES)]
    Doctor(DoctorArgs),
    /// Measure this machine, the matrix products of the model and its steps beside what is possible, or compare two such
    /// measurements
    #[command(after_help = EXIT_CODES, after_long_help = BENCH_NOTES_AND_EXIT_CODES.as_str())]
    Bench(BenchArgs),
    /// Say what a model will need and how fast it will be, on this machine or a described one; its config.json and its index are
    /// enough
    #[command(after_help = EXIT_CODES)]
    Plan(PlanArgs),
    /// Find the fastest settings for a model on this machine by trying them in turn, and write them to a profile that the other
    /// commands read
    #[command(after_help = EXIT_CODES, after_long_help = TUNE_NOTES_AND_EXIT_CODES.as_str())]
    Tune(TuneArgs),
    /// Write a model anew so that it is read best: experts in order, each in one piece, dense weights packed, everything with
    /// a checksum; the same tokens come out of it
    #[command(after_help = EXIT_CODES)]
    Convert(ConvertArgs),
    /// Say how often experts would have been found in the cache, by policy and size, from routing traces of real runs
    #[command(after_help = EXIT_CODES)]
    Simulate(SimulateArgs),
    /// Print what a shell needs to complete commands and flags
    #[command(after_help = EXIT_CODES)]
    Completions(CompletionsArgs),
    /// Print or write manual pages
    #[command(after_help = EXIT_CODES)]
    Man(ManArgs),
    /// Show which settings hold for a command, and where each comes from
    #[command(after_help = EXIT_CODES, after_long_help = SETTINGS_AND_EXIT_CODES.as_str())]
    Config(ConfigArgs),
}

impl Command {
    /// Whether the answer is one JSON object.
    pub(crate) fn json(&self) -> bool {
        match self {
            Command::Run(args) => args.output.json,
            Command::Chat(args) => args.json,
            Command::Logits(args) => args.output.json,
            Command::Trace(args) => args.output.json,
            Command::Verify(args) => args.output.json,
            Command::Inspect(args) => args.output.json,
            Command::Render(args) => args.output.json,
            Command::Tokenize(args) => args.output.json,
            Command::Doctor(args) => args.output.json,
            Command::Bench(args) => args.output.json,
            Command::Tune(args) => args.output.json,
            Command::Convert(args) => args.output.json,
            Command::Simulate(args) => args.output.json,
            Command::Plan(args) => args.output.json,
            Command::Completions(_) | Command::Man(_) => false,
            Command::Config(args) => args.json(),
        }
    }

    /// The flag whose file `--out` may replace: it is read whole before.
    pub(crate) fn replaces(&self) -> Option<&'static str> {
        matches!(self, Command::Tune(_)).then_some("--profile")
    }

    /// Directories of the model.
    pub(crate) fn models(&self) -> &[PathBuf] {
        match self {
            Command::Run(args) => &args.model.model,
            Command::Chat(args) => &args.model.model,
            Command::Logits(args) => &args.model.model,
            Command::Trace(args) => &args.model.model,
            Command::Verify(args) => &args.model.model,
            Command::Inspect(args) => &args.model.model,
            Command::Render(args) => &args.model.model,
            Command::Tokenize(args) => &args.model.model,
            Command::Doctor(args) => &args.model.model,
            Command::Bench(args) => &args.model.model,
            Command::Plan(args) => &args.model.model,
            Command::Tune(args) => &args.model.model,
            Command::Convert(args) => &args.places,
            Command::Config(_) | Command::Completions(_) | Command::Man(_) | Command::Simulate(_) => &[],
        }
    }

    /// How it computes, if it computes.
    pub(crate) fn engine(&self) -> Option<&EngineArgs> {
        match self {
            Command::Run(args) => Some(&args.engine),
            Command::Chat(args) => Some(&args.engine),
            Command::Logits(args) => Some(&args.engine),
            Command::Trace(args) => Some(&args.engine),
            Command::Verify(args) => Some(&args.engine),
            Command::Bench(args) => Some(&args.engine),
            Command::Plan(args) => Some(&args.engine),
            Command::Tune(args) => Some(&args.engine),
            Command::Inspect(_)
            | Command::Render(_)
            | Command::Tokenize(_)
            | Command::Doctor(_)
            | Command::Convert(_)
            | Command::Config(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Simulate(_) => None,
        }
    }
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Answer the text as one turn of a chat: what the model thinks goes to standard error, what it answers to standard
    /// output. It may be as long as the context holds, unless --max-tokens or the model say less. --system, --effort,
    /// --no-think and --thinking are for it
    #[arg(long, help_heading = "Conversation", conflicts_with_all = ["ids", "ignore_eos"])]
    pub(crate) chat: bool,
    #[command(flatten)]
    pub(crate) speech: SpeechArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Go on after a token that ends the text
    #[arg(long, help_heading = SAMPLING_HEADING)]
    pub(crate) ignore_eos: bool,
    /// With --json: the log-probability of every token of the answer, and the N likeliest tokens with theirs, 0 to 20. They are
    /// the model's own, before any other flag has changed them [default: none]
    #[arg(
        long,
        value_name = "N",
        value_parser = values::logprobs,
        allow_negative_numbers = true,
        help_heading = SAMPLING_HEADING
    )]
    pub(crate) logprobs: Option<u32>,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// The file to write, a safetensors file with the tensor `logits` [position, vocabulary] in f32; it is replaced
    /// if it exists, must be no device or pipe and must not lie where a model's files are
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) layers: LayersArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Start from hidden rows as they enter layer 0 instead of a prompt: a safetensors file with an f32 tensor
    /// [rows, hidden] that is named `hidden` or the only one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "ids"])]
    pub(crate) inputs: Option<PathBuf>,
    /// The file to write, a safetensors file with the tensors `layerI.NAME` [position, hidden] in f32, where NAME is
    /// `attention_input`, `attention_output`, `mlp_input`, `mlp_output` or `hidden`: inputs after their norm, outputs before the
    /// addition; it is replaced if it exists and must not lie in a model's directory
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Layers to write, such as 0,3, counted from 0 [default: all]; those past the last one are not loaded
    #[arg(long, value_name = "LIST", value_parser = values::list, allow_hyphen_values = true)]
    pub(crate) layers: Option<values::List>,
    /// Positions to write, such as 0,5, counted from 0 [default: all]
    #[arg(long, value_name = "LIST", value_parser = values::list, allow_hyphen_values = true)]
    pub(crate) positions: Option<values::List>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    /// Compare with the results in this directory: golden.json and a safetensors file for each of its prompts. The
    /// limits are relative L2 distances, row by row: 1e-5 on everything with --activations exact, where router picks and
    /// greedy ids must be equal too; 5e-4 on the logits with int15. In both the likeliest token must be the same
    /// wherever the second is more than 0.01 behind
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["checked", "prompt", "ids", "layers"]
    )]
    pub(crate) golden: Option<PathBuf>,
    /// Compare every op of the chosen device with its definition, on a prompt of yours. The device `oracle` is the
    /// definition; it is compared with itself on another number of threads
    #[arg(long)]
    pub(crate) checked: bool,
    #[command(flatten)]
    pub(crate) layers: LayersArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Read every byte and look for numbers that are not finite and scales that stand for NaN (byte 255). With or without
    /// it the exit code is 1 if anything is wrong or missing
    #[arg(long)]
    pub(crate) deep: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The command, and after it arguments as they would be given to it; --json among them also holds for the answer here
    /// [default: run]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
    /// All commands, one after the other
    #[arg(long, conflicts_with = "command")]
    pub(crate) all: bool,
    /// Print only where the configuration file is looked for
    #[arg(long, conflicts_with_all = ["command", "all", "template"])]
    pub(crate) path: bool,
    /// Print a configuration file in which every setting stands as a comment, with its help and default
    #[arg(long, conflicts_with_all = ["command", "all"])]
    pub(crate) template: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl ConfigArgs {
    /// Whether the answer is one JSON object: who types --json after the command means this answer, too.
    pub(crate) fn json(&self) -> bool {
        self.output.json || self.command.iter().any(|word| word == "--json")
    }
}

/// What goes in.
#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    /// The text, taken as it is, without a token before it: a control token that is spelled in it is plain text (give
    /// --ids for control tokens); `-` reads it from standard input
    #[arg(conflicts_with = "ids")]
    pub(crate) prompt: Option<String>,
    /// Token ids instead of a text, such as 1,2,3
    #[arg(long, value_name = "LIST", value_parser = values::list, allow_hyphen_values = true)]
    pub(crate) ids: Option<values::List>,
}

/// How many layers.
#[derive(Debug, Args)]
pub(crate) struct LayersArgs {
    /// Compute only the first N layers, 1 to all of them, then the last norm and the head [default: all]
    #[arg(long, value_name = "N", value_parser = values::limited, allow_negative_numbers = true)]
    pub(crate) layers: Option<u32>,
}

/// Which model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// The model's directory. Repeat it for a model that is split over drives; the first one holds config.json, the
    /// index and the tokenizer [default: the model in the program]
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Vec<PathBuf>,
}

/// How it is computed, and in how much memory.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// A profile that `colibri tune` wrote for this model on this machine, or off. What it says of threads, io, readers,
    /// look-ahead and expert-cache holds where no flag, variable or configuration file says anything; changes no result
    #[arg(long, value_name = "FILE", default_value = settings::NO_PROFILE)]
    pub(crate) profile: PathBuf,
    /// Tokens of the prompt computed together, 1 to 4096; changes no result. Where the results of every token are written
    /// or compared it is at most 64, and less if they would take more than 64 MiB [default: the most of 512, 256, 128, 64
    /// and 32 that take no more than 2 % of the memory]
    #[arg(long, value_name = "N", value_parser = values::chunk, allow_negative_numbers = true)]
    pub(crate) chunk: Option<u32>,
    /// Tokens of prompt and answer, at most [default: 8192 or the model's own limit, less if memory is short]
    #[arg(long, value_name = "N", value_parser = values::limited, allow_negative_numbers = true)]
    pub(crate) context: Option<u32>,
    /// Memory for routed experts: bytes (8GB, 512MiB), a share of the machine's memory (25%), a number of experts (40x)
    /// or all; changes no result [default: what is left]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) expert_cache: Option<CacheSize>,
    /// Which expert leaves the cache for another: lru (asked for longest ago), lfu (asked for least often, where counts halve
    /// every 128 steps), hybrid (lfu, of about equal counts lru); with -per-layer every layer keeps its share of the slots,
    /// with :N counts halve every N steps, 1 to 1000000; changes no result
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) cache_policy: CachePolicy,
    /// How experts are read from disk: direct, past the system's file cache (where a file system refuses that, through it,
    /// which is said); buffered, through it; uring (Linux), as direct but by one thread for each drive; changes no result
    #[arg(long, value_name = "WAY", default_value = "direct", value_parser = values::access)]
    pub(crate) io: store::Access,
    /// A second place of the same model, on another drive; repeat it for one that is split. Name, length and header of every
    /// shard are compared. Experts are read from both at once, each gives as much as it is fast, and what one cannot give
    /// comes from the other; a mirror that fails or hangs is given up. Not with --io uring; changes no result
    /// [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) mirror: Vec<PathBuf>,
    /// Reads of experts that are under way at once, 1 to 256 for each drive: as many threads, or with --io uring the depth
    /// of its queue; changes no result
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::threads, allow_negative_numbers = true)]
    pub(crate) readers: u32,
    /// Whether experts are read while other work is computed: on or off; changes no result
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = values::switch)]
    pub(crate) overlap: values::Switch,
    /// Experts of the next layer that are read on a guess: auto (as many as are right often enough), off or 1 to 64;
    /// changes no result
    #[arg(long, value_name = "N", default_value = "auto", allow_hyphen_values = true)]
    pub(crate) look_ahead: LookAhead,
    /// Whether each expert is compared with its checksum when it is read for the first time: on or off. It needs a container that
    /// `colibri convert` wrote whole; a damaged expert is an error that names it; changes no result
    #[arg(long, value_name = "on|off", default_value = "off", value_parser = values::switch)]
    pub(crate) check_experts: values::Switch,
    /// Whether slots for experts are given back while memory is short, before the system compresses or swaps, and taken again
    /// later: on or off. Not with --io uring, and not where every expert has a slot; changes no result
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = values::switch)]
    pub(crate) governor: values::Switch,
    /// Threads that compute and that pack weights while they are loaded, 1 to 256; changes no result [default: one for each core that this process may use, without efficiency cores and second threads of a core]
    #[arg(long, value_name = "N", value_parser = values::threads, allow_negative_numbers = true)]
    pub(crate) threads: Option<u32>,
    /// What activations become where they meet packed weights: int15, exact (f32) or int8
    #[arg(long, value_name = "MODE", default_value = "int15", value_parser = values::activations)]
    pub(crate) activations: Activations,
    /// How the weights that every token needs are kept: bf16 (as stored), int8, int4, or auto: the first of these that
    /// fits
    #[arg(long, value_name = "PACKING", default_value = "auto", value_parser = values::dense)]
    pub(crate) dense: values::DenseChoice,
    /// Where the weights that every token needs lie: ram, read when the model is loaded; mapped, in the files of a container that `colibri convert` wrote with
    /// this --dense, of which the system keeps what memory is left for and reads the rest again, for machines with less memory than
    /// the weights take. Not on Windows; changes no result
    #[arg(long, value_name = "WHERE", default_value = "ram", value_parser = values::residency)]
    pub(crate) dense_residency: models::Residency,
    /// Lossy below 1: drop a token's experts past this share of its router weight, above 0 to 1
    #[arg(long, value_name = "P", default_value = "1", value_parser = values::share, allow_negative_numbers = true)]
    pub(crate) expert_top_p: f32,
    /// What computes: cpu, with vectors and threads, or oracle, the definition of every op in plain loops; both give
    /// the same bits
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = values::device)]
    pub(crate) device: values::DeviceChoice,
}

impl EngineArgs {
    /// The packing asked for, if not `auto`.
    pub(crate) fn dense(&self) -> Option<Dense> {
        self.dense.0
    }

    /// The profile asked for, if any.
    pub(crate) fn profile(&self) -> Option<&Path> {
        Some(self.profile.as_path()).filter(|path| *path != Path::new(settings::NO_PROFILE))
    }
}

/// How the answer is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print exactly one JSON object, also for an error
    #[arg(long)]
    pub(crate) json: bool,
}
