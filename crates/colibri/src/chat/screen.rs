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

/// Where an answer is shown.
pub(crate) trait Surface {
    /// More of the answer itself.
    ///
    /// # Errors
    /// That it cannot be written.
    fn content(&mut self, text: &str) -> Result<(), Failure>;

    /// More of what stands beside it. That nobody reads it is no reason to stop.
    fn aside(&mut self, text: &str);

    /// A line that stands for what is folded, and is written over until it is the `last`.
    fn fold(&mut self, line: &str, last: bool);
}

/// Both streams of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams;

impl Surface for Streams {
    fn content(&mut self, text: &str) -> Result<(), Failure> {
        report::print(text)
    }

    fn aside(&mut self, text: &str) {
        let _ = Stream::Error.put(&Stream::Error.painted(DIMMED, text));
    }

    fn fold(&mut self, line: &str, last: bool) {
        let line = Stream::Error.painted(DIMMED, line);
        let _ = match (Stream::Error.is_terminal(), last) {
            (true, false) => Stream::Error.put(&format!("\r{line}")),
            (true, true) => Stream::Error.put(&format!("\r{line}\n")),
            (false, false) => Ok(()),
            (false, true) => Stream::Error.put(&format!("{line}\n")),
        };
    }
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
pub(crate) struct Screen<S> {
    surface: S,
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

impl<S: Surface> Screen<S> {
    /// Nothing yet. Without `answer` only thinking is shown.
    pub(crate) fn new(surface: S, thinking: Thinking, answer: bool) -> Self {
        let shown = Shown::Nothing;
        Screen { surface, thinking, answer, shown, line_ended: true, thought: 0, prefill: None }
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
                    self.surface.content(text)?;
                    self.line_ended = text.ends_with('\n');
                }
                Delta::Call { name, .. } => {
                    // Each call has its own line.
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
    pub(crate) fn finish(mut self) -> Result<S, Failure> {
        let called = self.shown == Shown::Call;
        self.turn_to(Shown::Nothing)?;
        if called {
            self.surface.aside("there are no tools in a chat: nothing was called\n");
        }
        Ok(self.surface)
    }

    fn think(&mut self, text: &str) {
        match self.thinking {
            Thinking::Show => self.aside(text),
            Thinking::Fold => {
                self.surface.fold(&format!("thinking: {}", counted(self.thought, "token")), false);
            }
            Thinking::Hide => {}
        }
    }

    fn aside(&mut self, text: &str) {
        self.surface.aside(text);
        self.line_ended = text.ends_with('\n');
    }

    /// Ends what was shown before something else is.
    fn turn_to(&mut self, next: Shown) -> Result<(), Failure> {
        if next == self.shown {
            return Ok(());
        }
        match (self.shown, self.thinking) {
            (Shown::Thinking, Thinking::Fold) => {
                // Not shorter than what it is written over.
                self.surface.fold(&format!("thought: {} ", counted(self.thought, "token")), true);
            }
            (Shown::Thinking, Thinking::Show) | (Shown::Call, _) if !self.line_ended => {
                self.surface.aside("\n");
            }
            (Shown::Content, _) if !self.line_ended => self.surface.content("\n")?,
            _ => {}
        }
        self.line_ended = true;
        self.shown = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content as it is, what stands beside it between brackets, what is folded between braces.
    #[derive(Default)]
    struct Paper(String);

    impl Surface for Paper {
        fn content(&mut self, text: &str) -> Result<(), Failure> {
            self.0 += text;
            Ok(())
        }

        fn aside(&mut self, text: &str) {
            self.0.extend(["[", text, "]"]);
        }

        fn fold(&mut self, line: &str, last: bool) {
            self.0.extend(["{", line, if last { ".}" } else { "}" }]);
        }
    }

    fn shown(thinking: Thinking, answer: bool, tokens: &[&[Delta]]) -> String {
        let mut screen = Screen::new(Paper::default(), thinking, answer);
        for deltas in tokens {
            screen.said(deltas).unwrap();
        }
        screen.finish().unwrap().0
    }

    fn thought(text: &str) -> Delta {
        Delta::Reasoning(text.into())
    }

    fn content(text: &str) -> Delta {
        Delta::Content(text.into())
    }

    #[test]
    fn thinking_stands_beside_the_answer() {
        let tokens: [&[Delta]; 5] =
            [&[thought("So")], &[thought(" it is.")], &[], &[content("Yes")], &[content(".")]];
        let show = |thinking| shown(thinking, true, &tokens);
        assert_eq!(show(Thinking::Show), "[So][ it is.][\n]Yes.\n");
        assert_eq!(
            show(Thinking::Fold),
            "{thinking: 1 token}{thinking: 2 tokens}{thought: 2 tokens .}Yes.\n"
        );
        assert_eq!(show(Thinking::Hide), "Yes.\n");
        assert_eq!(shown(Thinking::Show, false, &tokens), "[So][ it is.][\n]");
        let lines: [&[Delta]; 2] = [&[thought("So.\n")], &[content("Yes.\n")]];
        assert_eq!(shown(Thinking::Show, true, &lines), "[So.\n]Yes.\n", "no line is ended twice");
        assert_eq!(shown(Thinking::Show, true, &[&[thought("So")]]), "[So][\n]", "stopped in its thought");
    }

    #[test]
    fn calls_are_shown_as_what_they_are() {
        let call = |index, name: &str| Delta::Call { index, id: "x".into(), name: name.into() };
        let arguments = |index, text: &str| Delta::Arguments { index, text: text.into() };
        let tokens: [&[Delta]; 4] = [
            &[content("Let me see.")],
            &[call(0, "look"), arguments(0, "{\"at\":")],
            &[arguments(0, "1}")],
            &[call(1, "go"), arguments(1, "{}")],
        ];
        assert_eq!(
            shown(Thinking::Show, true, &tokens),
            "Let me see.\n[the model calls look ][{\"at\":][1}][\n][the model calls go ][{}][\n]\
             [there are no tools in a chat: nothing was called\n]"
        );
        assert_eq!(shown(Thinking::Show, false, &tokens), "");
    }
}
