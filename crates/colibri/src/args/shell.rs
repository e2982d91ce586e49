//! Arguments of the commands that tell shells and manual readers about the others.
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell: bash, zsh, fish, powershell or elvish. What is printed belongs where the shell looks for it, for bash
    /// for example ~/.local/share/bash-completion/completions/colibri
    #[arg(hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed; `colibri man run | man -l -` shows it [default: the program's own page]
    #[arg(conflicts_with = "out")]
    pub(crate) command: Option<String>,
    /// Write the pages of all commands into this directory, which is made if it is not there; older pages are
    /// replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
