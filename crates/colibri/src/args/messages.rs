//! Flags that every command has: how it talks about itself.
use crate::logging::Level;
use crate::terminal::Color;
use clap::Args;
use std::path::PathBuf;

/// How the program talks about itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct MessageArgs {
    /// Colours: always, never or auto, on terminals unless `NO_COLOR`, `CLICOLOR_FORCE`, `CLICOLOR` or `TERM` say
    /// otherwise
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: Color,
    /// How much is told of what happens inside: off, error, warn (also reads that are slow or had to be repeated), info
    /// (also what was opened, planned and loaded), debug (each step and file) or trace (each layer and read). Prompts and
    /// answers are never part of it
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn", hide_possible_values = true)]
    pub(crate) log_level: Level,
    /// Append these lines to a file, which must not lie in a model's directory [default: standard error]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
}
