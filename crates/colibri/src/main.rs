//! The program: reads the command line, runs one command, says what went wrong. All work is done in the libraries.
mod args;
mod commands;
mod comparison;
mod deep;
mod embedded;
mod errors;
mod golden_file;
mod interrupt;
mod inventory;
mod load;
mod partial;
mod progress;
mod report;
mod sampling;
mod target;
mod tensor_file;
mod values;
mod work;

use args::{Arguments, Command};
use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use errors::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(error),
    };
    let json = arguments.command.json();
    let outcome = interrupt::listen(json).map_err(|error| Failure::Io {
        what: "listening for Ctrl-C".into(),
        source: std::io::Error::other(error),
    });
    outcome.and_then(|()| execute(&arguments.command)).unwrap_or_else(|failure| failure.report(json))
}

fn execute(command: &Command) -> Result<ExitCode, Failure> {
    if let Some(args) = command.engine() {
        load::start_threads(args)?;
    }
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
    }
}

/// A command line that does not parse, or a question for help.
fn refuse(mut error: clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    let answers = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    let advice = advice(&error);
    if !json || answers.contains(&error.kind()) {
        if let Some(advice) = advice {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
        }
        // Nobody is left to tell if this cannot be written.
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let text = error.render().to_string();
    // The first paragraph is the error; usage and hints follow.
    let message = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ").trim();
    let failure = Failure::Usage(message.to_owned());
    match advice {
        Some(advice) => failure.advising(advice).report(json),
        None => failure.report(json),
    }
}

/// What may have been meant by an argument too many.
fn advice(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let word = error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-');
    word.then_some("put a prompt of several words between quotes; give --model once for each directory")
}
