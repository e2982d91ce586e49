//! What can go wrong in a command: its kind, its exit code, and how it is said. Knows no flag.
use crate::report;
use crate::settings::Origins;
use crate::terminal::{ERROR, Stream};
use convert::ConvertError;
use engine::{EngineError, PlanError, SamplingError};
use memory::MemoryError;
use models::{LoadError, PartError, StateError, StepError};
use ops::DeviceError;
use serde_json::json;
use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use store::StoreError;
use store::cache::CacheError;
use store::catalog::CatalogError;
use text::TextError;

/// The exit code of a run that was interrupted: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;
/// The exit code where nobody reads the output any more: 128 + SIGPIPE, as shells show it.
const OUTPUT_CLOSED: u8 = 141;

/// For the help of every command.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  success
    1  failure: a file, the model, memory, or a comparison beyond its limits
    2  usage: flags, settings or a prompt that cannot be honoured
  130  interrupted by Ctrl-C or SIGTERM; a second one ends the program at once
  141  nobody reads standard output any more";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Arguments that do not go together or cannot be honoured.
    #[error("{0}")]
    Usage(String),
    /// A value in the model's configuration.
    #[error("{0}")]
    Config(String),
    /// Golden results that cannot be used.
    #[error("{0}")]
    Golden(String),
    /// Another failure with what helps to understand it.
    #[error("{message}")]
    Told {
        /// Of the other failure.
        kind: &'static str,
        /// In full.
        message: String,
    },
    /// Whoever read standard output is gone.
    #[error("standard output was closed before everything was written")]
    OutputClosed,
    /// A file or stream of the program's own.
    #[error("{what}: {source}")]
    Io {
        /// What was being done to which file.
        what: String,
        /// The system's words.
        source: io::Error,
    },
    /// The checkpoint.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model in it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The work.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A conversion.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The machine.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Failure {
    /// A system error with what was being done to which file.
    pub(crate) fn io(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
        let what = format!("{doing} {}", path.display());
        move |source| Failure::Io { what, source }
    }

    /// The same with advice at the end.
    pub(crate) fn advising(&self, advice: &str) -> Failure {
        Failure::Told { kind: self.kind(), message: format!("{}; {advice}", self.message()) }
    }

    /// The same with the place where it is at the beginning.
    pub(crate) fn within(&self, place: &str) -> Failure {
        Failure::Told { kind: self.kind(), message: format!("{place}: {}", self.message()) }
    }

    /// The same with flags that nobody typed called by where they come from.
    pub(crate) fn spelled(self, origins: &Origins) -> Failure {
        let message = self.message();
        let spelled = origins.spell(&message);
        if spelled == message { self } else { Failure::Told { kind: self.kind(), message: spelled } }
    }

    /// The kind in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Failure::Usage(_) => "usage",
            Failure::Config(_) => "config",
            Failure::Golden(_) => "golden",
            Failure::Told { kind, .. } => kind,
            Failure::OutputClosed => "closed",
            Failure::Io { .. } => "io",
            Failure::Store(error) => kind_of_store(error),
            Failure::Load(error) => kind_of_load(error),
            Failure::Plan(error) => match error {
                PlanError::Load(error) => kind_of_load(error),
                PlanError::Memory(error) => kind_of_memory(error),
                PlanError::Device(error) => kind_of_device(error),
                PlanError::State(error) => kind_of_state(error),
                PlanError::Step(error) => kind_of_step(error),
                PlanError::Setting { .. } => "usage",
                PlanError::DoesNotFit(_) => "memory",
            },
            Failure::Engine(error) => kind_of_engine(error),
            Failure::Convert(error) => match error {
                ConvertError::Store(error) => kind_of_store(error),
                ConvertError::Load(error) => kind_of_load(error),
                ConvertError::Place { .. } | ConvertError::Settings(_) => "usage",
                ConvertError::Cancelled => "cancelled",
                ConvertError::Full { .. } | ConvertError::Write { .. } => "io",
                _ => "checkpoint",
            },
            Failure::Text(_) => "tokenizer",
            Failure::Memory(error) => kind_of_memory(error),
            Failure::Device(error) => kind_of_device(error),
        }
    }

    /// As in [`EXIT_CODES`].
    pub(crate) fn exit_code(&self) -> u8 {
        match self.kind() {
            "usage" => 2,
            "cancelled" => INTERRUPTED,
            _ => 1,
        }
    }

    /// The message with its causes, unless they are part of it already.
    pub(crate) fn message(&self) -> String {
        if self.kind() == "cancelled" {
            return "interrupted".into();
        }
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        message
    }

    /// Says it on the stream where it belongs; the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        // A reader who has seen enough is the end of a pipe, and no error.
        if matches!(self, Failure::OutputClosed) {
            return ExitCode::from(OUTPUT_CLOSED);
        }
        say(self.kind(), &self.message(), json);
        ExitCode::from(self.exit_code())
    }
}

/// An error as one JSON object on standard output, or for people on standard error.
pub(crate) fn say(kind: &str, message: &str, json: bool) {
    let object = json!({"error": {"kind": kind, "message": message}});
    let written = json && report::print_json(&object).is_ok();
    if !written {
        let stream = Stream::Error;
        // Nobody is left to tell if this cannot be written.
        let _ = stream.put(&format!("{} {}\n", stream.painted(ERROR, "error:"), stream.shown(message)));
    }
}

fn kind_of_engine(error: &EngineError) -> &'static str {
    match error {
        EngineError::Load(error) => kind_of_load(error),
        EngineError::Device(error) => kind_of_device(error),
        EngineError::State(error) => kind_of_state(error),
        EngineError::Step(error) => kind_of_step(error),
        EngineError::Memory(error) => kind_of_memory(error),
        EngineError::Cache(CacheError::Expert(_)) => "expert",
        EngineError::Cache(_) => "memory",
        EngineError::Part(error) => match error {
            PartError::Expert(_) => "expert",
            PartError::Embedding { .. } | PartError::Weights { .. } => "io",
            PartError::UnknownToken { .. }
            | PartError::ContextFull { .. }
            | PartError::Width { .. }
            | PartError::UnknownLayer { .. } => "usage",
            PartError::NotFinite { .. } => "numerics",
            PartError::Cancelled => "cancelled",
            PartError::Position { .. } | PartError::NeedsRebuild | PartError::Empty => "state",
        },
        EngineError::Sampling(SamplingError::NotFinite { .. }) => "numerics",
        EngineError::BadSession(_) => "state",
        EngineError::Routing(_) => "io",
        EngineError::Sampling(_)
        | EngineError::TooLong { .. }
        | EngineError::EmptyPrompt
        | EngineError::NoExperts => "usage",
    }
}

fn kind_of_state(error: &StateError) -> &'static str {
    match error {
        StateError::Device(error) => kind_of_device(error),
        _ => "state",
    }
}

fn kind_of_step(error: &StepError) -> &'static str {
    match error {
        StepError::Device(error) => kind_of_device(error),
        StepError::TooManyRows { .. } => "state",
    }
}

fn kind_of_load(error: &LoadError) -> &'static str {
    match error {
        LoadError::Config(_) => "config",
        LoadError::Store(error) => kind_of_store(error),
        LoadError::Device(error) => kind_of_device(error),
        LoadError::PackedOtherwise { .. }
        | LoadError::NotAsNeeded { .. }
        | LoadError::Catalog(CatalogError::NoChecksum { .. }) => "usage",
        // A weight that cannot be, or experts that are not all there.
        _ => "checkpoint",
    }
}

fn kind_of_store(error: &StoreError) -> &'static str {
    match error {
        StoreError::NoDirectory | StoreError::SameDirectory { .. } => "usage",
        StoreError::Unreadable { .. }
        | StoreError::Read { .. }
        | StoreError::ShortRead { .. }
        | StoreError::Mapping { .. }
        | StoreError::DirectoryUnreadable { .. } => "io",
        StoreError::OutOfMemory { .. } => "memory",
        _ => "checkpoint",
    }
}

fn kind_of_device(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::OutOfMemory { .. } => "memory",
        DeviceError::Mismatch { .. } => "numerics",
        _ => "device",
    }
}

fn kind_of_memory(error: &MemoryError) -> &'static str {
    match error {
        MemoryError::CacheSize { .. } | MemoryError::CacheTooSmall { .. } => "usage",
        _ => "memory",
    }
}
