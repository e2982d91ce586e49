//! What is said where a command line cannot be honoured: by the parser's own words where somebody typed the words in
//! question, by the name of the variable or the line of the file otherwise. Knows no flag.
use super::catalog::Catalog;
use super::layers::Rows;
use super::manner::Manner;
use crate::errors::{self, Failure};
use crate::report;
use crate::terminal::Stream;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as _;
use std::process::ExitCode;

/// Why nothing is run.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Help or the version was asked for.
    Answer(StyledStr),
    /// The parser's.
    Parser(Box<clap::Error>),
    /// Of a file or of a variable.
    Settings(Failure),
}

impl Refusal {
    /// If it is no error of the parser's but help or version.
    pub(crate) fn answer(error: &clap::Error) -> Option<Self> {
        let answers = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
        answers.then(|| Refusal::Answer(error.render()))
    }

    /// Says it where it belongs; the exit code.
    pub(crate) fn report(self, manner: Manner) -> ExitCode {
        manner.color.decide();
        let json = manner.json;
        match self {
            Refusal::Settings(failure) => failure.report(json),
            Refusal::Answer(help) => {
                let help =
                    if Stream::Output.is_coloured() { help.ansi().to_string() } else { help.to_string() };
                let printed = report::written(Stream::Output.put(&help));
                printed.map_or_else(|failure| failure.report(json), |()| ExitCode::SUCCESS)
            }
            Refusal::Parser(error) if !json => {
                let mut error = *error;
                if let Some(advice) = advice(&error) {
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
                }
                errors::say("usage", &words(&error), false);
                ExitCode::from(error.exit_code() as u8)
            }
            Refusal::Parser(error) => failure(&error).report(true),
        }
    }

    /// As a failure, for a command that asks about the command line of another one.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Refusal::Answer(help) => Failure::Usage(help.to_string()),
            Refusal::Settings(failure) => failure,
            Refusal::Parser(error) => failure(&error),
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Refusal::Settings(failure)
    }
}

impl From<clap::Error> for Refusal {
    fn from(error: clap::Error) -> Self {
        Refusal::answer(&error).unwrap_or_else(|| Refusal::Parser(Box::new(error)))
    }
}

/// The parser's words, without colours: what was typed is part of them.
fn words(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    match error.kind() {
        // The parser says it by its help alone.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => format!("a command is missing\n\n{text}"),
        _ => text.to_owned(),
    }
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
pub(crate) fn of_origin(error: &clap::Error, rows: &Rows) -> Option<Failure> {
    let name = flag(error)?;
    let row = rows.get(&name).filter(|row| row.origin.is_told())?;
    let spelled = row.origin.spelled(&name);
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
