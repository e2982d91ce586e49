//! What is said where a command line cannot be honoured: by the parser's own words where somebody typed the words in
//! question, by the name of the variable or the line of the file otherwise. Knows no flag.
use super::catalog::Catalog;
use super::layers::Rows;
use super::origin::Origins;
use crate::errors::{self, Failure};
use crate::report;
use crate::terminal::{Color, Stream};
use clap::ValueEnum as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::process::ExitCode;

/// Why nothing is run.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// What is wrong; also a question for help.
    what: What,
    /// Whether it is to be said in JSON.
    json: bool,
}

#[derive(Debug)]
enum What {
    Parser(Box<clap::Error>),
    Settings(Failure),
}

impl Refusal {
    /// The parser's.
    pub(crate) fn parser(error: clap::Error, json: bool) -> Self {
        Refusal { what: What::Parser(Box::new(error)), json }
    }

    /// Of a file or of a variable.
    pub(crate) fn settings(failure: Failure, json: bool) -> Self {
        Refusal { what: What::Settings(failure), json }
    }

    /// Says it where it belongs; the exit code.
    pub(crate) fn report(self) -> ExitCode {
        color_as_typed().decide();
        let json = self.json;
        match self.what {
            What::Settings(failure) => failure.report(json),
            What::Parser(error) if is_answer(&error) => {
                let help = error.render();
                let help =
                    if Stream::Output.is_coloured() { help.ansi().to_string() } else { help.to_string() };
                let printed = report::written(Stream::Output.put(&help));
                printed.map_or_else(|failure| failure.report(json), |()| ExitCode::SUCCESS)
            }
            What::Parser(error) if !json => {
                let mut error = *error;
                if let Some(advice) = advice(&error) {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
                }
                errors::say("usage", &words(&error), false);
                ExitCode::from(error.exit_code() as u8)
            }
            What::Parser(error) => failure(&error).report(true),
        }
    }

    /// As a failure, for a command that asks about the command line of another one.
    pub(crate) fn into_failure(self) -> Failure {
        match self.what {
            What::Settings(failure) => failure,
            What::Parser(error) => failure(&error),
        }
    }
}

/// Whether it is no error but help or version.
pub(crate) fn is_answer(error: &clap::Error) -> bool {
    [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind())
}

/// The parser's words, without colours: what was typed is part of them.
fn words(error: &clap::Error) -> String {
    error.render().to_string().trim_start_matches("error: ").trim_end().to_owned()
}

/// The first paragraph of them is the error; usage and hints follow.
fn failure(error: &clap::Error) -> Failure {
    let words = words(error);
    let failure = Failure::Usage(words.split("\n\n").next().unwrap_or(&words).trim().to_owned());
    match advice(error) {
        Some(advice) => failure.advising(advice),
        None => failure,
    }
}

/// What --color says on a command line that cannot be honoured.
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

/// The flag that an error is about, without its dashes.
fn flag(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = argument.strip_prefix("--")?;
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(name.len());
    Some(name[..end].to_owned())
}

/// An error that would show a secret, without it.
pub(crate) fn without_secret(error: &clap::Error, catalog: &Catalog) -> Option<Failure> {
    let name = flag(error)?;
    let secret = catalog.any(&name).is_some_and(|setting| setting.secret);
    secret
        .then(|| Failure::Usage(format!("--{name}: the value cannot be used; it is a secret and not shown")))
}

/// An error about a value that nobody typed, by its origin.
pub(crate) fn of_origin(error: &clap::Error, rows: &Rows, origins: &Origins) -> Option<Failure> {
    let name = flag(error)?;
    let (origin, row) = (origins.get(&name)?, rows.get(&name)?);
    let spelled = origin.spelled(&name);
    if row.setting.secret {
        return Some(Failure::Usage(format!(
            "{spelled}: the value cannot be used; it is a secret and not shown"
        )));
    }
    let found = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => format!(" is `{value}`"),
        _ => String::new(),
    };
    let why = match (error.kind(), error.source()) {
        (ErrorKind::InvalidUtf8, _) => "the value is not UTF-8".to_owned(),
        (ErrorKind::InvalidValue, _) => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(values)) if !found.is_empty() && found != " is ``" => {
                format!("expected {}", values.join(", "))
            }
            _ => "the value is empty".to_owned(),
        },
        (_, Some(source)) => source.to_string(),
        (_, None) => failure(error).message(),
    };
    Some(Failure::Usage(format!("{spelled}{found}: {why}; correct it there, or give --{name}")))
}
