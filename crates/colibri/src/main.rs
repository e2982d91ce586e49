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
mod logging;
mod partial;
mod progress;
mod report;
mod sampling;
mod target;
mod tensor_file;
mod terminal;
mod values;
mod work;

use args::{Arguments, Command};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser as _, ValueEnum as _};
use errors::Failure;
use std::process::ExitCode;
use terminal::{Color, Stream};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(error),
    };
    arguments.messages.color.decide();
    let json = arguments.command.json();
    if let Err(failure) = logging::start(&arguments.messages, arguments.command.models()) {
        return failure.report(json);
    }
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
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args),
    }
}

/// A command line that does not parse, or a question for help.
fn refuse(mut error: clap::Error) -> ExitCode {
    color_as_typed().decide();
    let json = std::env::args_os().any(|argument| argument == "--json");
    if [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind()) {
        let help = error.render();
        let help = if Stream::Output.is_coloured() { help.ansi().to_string() } else { help.to_string() };
        let printed = report::written(Stream::Output.put(&help));
        return printed.map_or_else(|failure| failure.report(json), |()| ExitCode::SUCCESS);
    }
    let advice = advice(&error);
    if !json && let Some(advice) = advice {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    // Without colours: what was typed is part of it.
    let text = error.render().to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    if !json {
        errors::say("usage", text, false);
        return ExitCode::from(error.exit_code() as u8);
    }
    // The first paragraph is the error; usage and hints follow.
    let failure = Failure::Usage(text.split("\n\n").next().unwrap_or(text).trim().to_owned());
    match advice {
        Some(advice) => failure.advising(advice).report(json),
        None => failure.report(json),
    }
}

/// What --color says on a command line that does not parse.
fn color_as_typed() -> Color {
    let mut arguments = std::env::args_os().filter_map(|argument| argument.into_string().ok());
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix("--color") {
            Some("") => arguments.next(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        if let Some(color) = value.and_then(|value| Color::from_str(&value, false).ok()) {
            return color;
        }
    }
    Color::default()
}

/// What may have been meant by an argument too many.
fn advice(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let word = error.kind() == ErrorKind::UnknownArgument && !argument.starts_with('-');
    word.then_some("put a prompt of several words between quotes; give --model once for each directory")
}
