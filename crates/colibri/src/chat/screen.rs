//! An answer on its way to people: content on standard output, thinking and everything else on standard error, where thinking
//! is dimmed, folded into one line or hidden. Knows no conversation.
use super::orders::Thinking;
use crate::errors::Failure;
use crate::progress;
use crate::report::{self, counted};
use crate::terminal::Stream;
use anstyle::Style;
use indicatif::ProgressBar;
use text::chat::Delta;

/// How thinking looks.
const DIMMED: Style = Style::new().dimmed();

/// Shows what was thought, when it was not shown as it came.
pub(crate) fn show_thought(text: &str) {
    // Nobody is left to tell if this cannot be written.
    let _ = Stream::Error.put(&format!("{}\n", Stream::Error.painted(DIMMED, text)));
}

/// What was shown last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Nothing,
    Thinking,
    Content,
    Call,
}

/// One answer as it is shown.
pub(crate) struct Screen {
    thinking: Thinking,
    /// Whether more than thinking is shown.
    answer: bool,
    shown: Shown,
    /// Whether the last character of what was shown ended its line.
    line_ended: bool,
    /// Tokens that were thought.
    thought: u32,
    prefill: Option<ProgressBar>,
}

impl Screen {
    /// Nothing yet. Without `answer` only thinking is shown.
    pub(crate) fn new(thinking: Thinking, answer: bool) -> Self {
        Screen { thinking, answer, shown: Shown::Nothing, line_ended: true, thought: 0, prefill: None }
    }

    /// How far the prompt is read.
    pub(crate) fn read(&mut self, done: u32, all: u32) {
        let bar = self.prefill.get_or_insert_with(|| progress::count("prompt tokens", all.into()));
        bar.set_position(done.into());
        if done == all {
            self.prefill = None;
        }
    }

    /// What one token adds.
    ///
    /// # Errors
    /// Standard output that cannot be written to.
    pub(crate) fn said(&mut self, deltas: &[Delta]) -> Result<(), Failure> {
        self.prefill = None;
        self.thought += u32::from(deltas.iter().any(|delta| matches!(delta, Delta::Reasoning(_))));
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    self.turn_to(Shown::Thinking)?;
                    self.think(text);
                }
                _ if !self.answer => self.turn_to(Shown::Nothing)?,
                Delta::Content(text) => {
                    self.turn_to(Shown::Content)?;
                    report::print(text)?;
                    self.line_ended = text.ends_with('\n');
                }
                Delta::Call { name, .. } => {
                    self.turn_to(Shown::Nothing)?;
                    self.shown = Shown::Call;
                    self.aside(&format!("the model calls {name} "));
                }
                Delta::Arguments { text, .. } => self.aside(text),
            }
        }
        Ok(())
    }

    /// The answer is there.
    ///
    /// # Errors
    /// Standard output that cannot be written to.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.prefill = None;
        let called = self.shown == Shown::Call;
        self.turn_to(Shown::Nothing)?;
        if called {
            report::tell("note: there are no tools in a chat; nothing was called");
        }
        Ok(())
    }

    fn think(&mut self, text: &str) {
        match self.thinking {
            Thinking::Show => self.aside(text),
            Thinking::Fold if Stream::Error.is_terminal() => {
                let line = format!("thinking: {}", counted(self.thought, "token"));
                // It is written over with every token; nobody is left to tell if this cannot be written.
                let _ = Stream::Error.put(&format!("\r{}", Stream::Error.painted(DIMMED, &line)));
            }
            Thinking::Fold | Thinking::Hide => {}
        }
    }

    /// Dimmed, on standard error.
    fn aside(&mut self, text: &str) {
        let _ = Stream::Error.put(&Stream::Error.painted(DIMMED, text));
        self.line_ended = text.ends_with('\n');
    }

    /// Ends what was shown before something else is.
    fn turn_to(&mut self, next: Shown) -> Result<(), Failure> {
        if next == self.shown {
            return Ok(());
        }
        match (self.shown, self.thinking) {
            (Shown::Thinking, Thinking::Fold) => {
                let back = if Stream::Error.is_terminal() { "\r" } else { "" };
                let line = format!("thought: {} ", counted(self.thought, "token"));
                let _ = Stream::Error.put(&format!("{back}{}\n", Stream::Error.painted(DIMMED, &line)));
            }
            (Shown::Thinking, Thinking::Show) | (Shown::Call, _) if !self.line_ended => {
                let _ = Stream::Error.put("\n");
            }
            (Shown::Content, _) if !self.line_ended => report::print("\n")?,
            _ => {}
        }
        self.line_ended = true;
        self.shown = next;
        Ok(())
    }
}
