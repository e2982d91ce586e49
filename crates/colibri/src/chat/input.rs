//! Where entries come from: a line editor with a history on a terminal, plain lines from anything else. Knows no orders
//! and no model.
use super::history::History;
use super::lines::{Entry, Lines};
use crate::errors::Failure;
use crate::terminal::Stream;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead as _, IsTerminal as _};

/// Before the first line of an entry ...
pub(crate) const PROMPT: &str = "> ";
/// ... and before the others.
const MORE: &str = ". ";

/// What was entered, or why nothing was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// An entry.
    Entry(Entry),
    /// The lines of an entry that was given up.
    GivenUp,
    /// Ctrl-C where nothing had been entered.
    Interrupted,
    /// There will be no more.
    End,
}

/// Where lines come from.
enum Source {
    Editor(Box<Editor<(), FileHistory>>, History),
    /// Lines as they are; whether somebody types them, and how many there have been.
    Plain {
        prompted: bool,
        line: u64,
    },
}

/// Entries, one after the other.
pub(crate) struct Inputs(Source);

/// A line, or why there is none.
enum Line {
    Text(String),
    Interrupted,
    End,
}

impl Inputs {
    /// From standard input. Lines can be edited where it and standard output are terminals; the history is for there.
    pub(crate) fn new(history: impl FnOnce() -> History) -> Result<Self, Failure> {
        let typed = io::stdin().is_terminal();
        if !typed || !Stream::Output.is_terminal() {
            return Ok(Inputs(Source::Plain { prompted: typed, line: 0 }));
        }
        restore_terminal();
        let config = Config::builder().history_ignore_space(true).max_history_size(History::ENTRIES_MAX);
        let mut editor = Editor::with_config(config.map_err(failed)?.build()).map_err(failed)?;
        let mut history = history();
        history.load(editor.history_mut());
        Ok(Inputs(Source::Editor(Box::new(editor), history)))
    }

    /// Whether somebody sits there who can be told what to do.
    pub(crate) fn typed(&self) -> bool {
        match self.0 {
            Source::Editor(..) => true,
            Source::Plain { prompted, .. } => prompted,
        }
    }

    /// The next entry.
    ///
    /// # Errors
    /// Input that cannot be read, is no text, or ends in the middle of an entry.
    pub(crate) fn next(&mut self) -> Result<Input, Failure> {
        let mut lines = Lines::default();
        // As it was typed, for the history.
        let mut typed: Vec<String> = Vec::new();
        loop {
            let line = match self.line(if lines.open() { MORE } else { PROMPT })? {
                Line::Text(line) => line,
                Line::Interrupted | Line::End if lines.open() && self.typed() => return Ok(Input::GivenUp),
                Line::Interrupted => return Ok(Input::Interrupted),
                Line::End if lines.open() => return Err(unfinished(&lines)),
                Line::End => return Ok(Input::End),
            };
            let whole = lines.push(&line);
            typed.push(line);
            if let Some(entry) = whole {
                if let Source::Editor(editor, history) = &mut self.0 {
                    history.add(editor.history_mut(), &typed.join("\n"));
                }
                return Ok(Input::Entry(entry));
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        match &mut self.0 {
            Source::Editor(editor, _) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(failed(error)),
            },
            Source::Plain { prompted, line } => {
                if *prompted {
                    // Nobody is left to ask if this cannot be written.
                    let _ = Stream::Error.write(prompt);
                }
                *line += 1;
                plain_line(*line)
            }
        }
    }
}

/// An editor has the terminal in a mode of its own; whatever ends the program puts it back.
#[cfg(unix)]
fn restore_terminal() {
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    // Without its modes it is no terminal that could be put back.
    let Ok(modes) = tcgetattr(io::stdin()) else { return };
    crate::interrupt::restore_with(move || {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
        // Pasting is announced no more, and the line of the editor is left.
        let _ = Stream::Output.put("\x1b[?2004l\n");
    });
}

#[cfg(not(unix))]
fn restore_terminal() {}

fn plain_line(number: u64) -> Result<Line, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut bytes);
    let count = read.map_err(|source| Failure::Io { what: "reading from standard input".into(), source })?;
    if count == 0 {
        return Ok(Line::End);
    }
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    String::from_utf8(bytes).map(Line::Text).map_err(|error| {
        Failure::Usage(format!(
            "line {number} of standard input is no text: its byte {} (counted from 0) is not UTF-8; convert it",
            error.utf8_error().valid_up_to()
        ))
    })
}

fn unfinished(lines: &Lines) -> Failure {
    let what = match lines {
        Lines::Block(_) => "inside of a block: close it with \"\"\"",
        _ => "after a line that ends in \\: leave the \\ away or let another line follow",
    };
    Failure::Usage(format!("standard input ends {what}"))
}

fn failed(error: ReadlineError) -> Failure {
    let source = match error {
        ReadlineError::Io(source) => source,
        other => io::Error::other(other),
    };
    Failure::Io { what: "reading from the terminal".into(), source }
}
