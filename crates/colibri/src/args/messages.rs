//! Flags that every command has: how it talks about itself.
use crate::terminal::Color;
use clap::Args;

/// How the program talks about itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct MessageArgs {
    /// Colours: auto asks the terminal and the variables `NO_COLOR`, `CLICOLOR_FORCE`, `CLICOLOR` and `TERM`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,
}
