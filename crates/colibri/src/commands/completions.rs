//! `colibri completions`: what a shell needs to complete commands, flags and their values, made from the definitions
//! that the program itself parses with.
use crate::args::{Arguments, CompletionsArgs};
use crate::errors::Failure;
use crate::report;
use clap::CommandFactory as _;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "colibri", &mut script);
    report::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
