//! The program: reads the command line, runs one command, says what went wrong. All work is done in the libraries.
mod args;
mod chat;
mod commands;
mod comparison;
mod cores;
mod deep;
mod doctor;
mod embedded;
mod errors;
mod expert_history;
mod golden_file;
mod interrupt;
mod inventory;
mod load;
mod logging;
mod logprobs;
mod partial;
mod probe;
mod profile;
mod progress;
mod records;
mod report;
mod routing;
mod sampling;
#[cfg(test)]
#[path = "../../../tests/seeds.rs"]
mod seeds_of_tests;
mod settings;
mod target;
mod tensor_file;
mod terminal;
mod timeline;
mod values;
mod work;

use args::{Arguments, Command};
use errors::Failure;
use settings::{Asked, Definition, Manner, Surroundings};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let (definition, surroundings) = (Definition::of_program(), Surroundings::of_process());
    let Asked { arguments, origins, paths } = match settings::read(&definition, &typed, &surroundings) {
        Ok(read) => read,
        Err(refusal) => return refusal.report(Manner::new(&definition, &typed, &surroundings)),
    };
    arguments.messages.color.decide();
    settings::put_in_force(origins);
    let json = arguments.command.json();
    let logging = target::take_all(&paths, arguments.command.replaces())
        .and_then(|()| logging::start(&arguments.messages, arguments.command.models()));
    let listening = interrupt::listen(json).map_err(|error| Failure::Io {
        what: "listening for Ctrl-C".into(),
        source: std::io::Error::other(error),
    });
    let outcome = logging.and(listening).and_then(|()| execute(&arguments));
    outcome.unwrap_or_else(|failure| failure.spelled(settings::in_force()).report(json))
}

fn execute(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let command = &arguments.command;
    if let Some(args) = command.engine() {
        load::start_threads(args)?;
    }
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Render(args) => commands::render::run(args),
        Command::Tokenize(args) => commands::tokenize::run(args),
        Command::Doctor(args) => commands::doctor::run(args, arguments),
        Command::Bench(args) => commands::bench::run(args),
        Command::Tune(args) => commands::tune::run(args),
        Command::Convert(args) => commands::convert::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Simulate(args) => commands::simulate::run(args),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args),
        Command::Config(args) => commands::config::run(args, arguments),
    }
}
