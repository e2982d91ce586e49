//! Standard output and standard error: whether they are terminals, how wide, in colour or not, and the one way to write
//! text for people to them. On a terminal, characters that would steer it become visible and harmless; anywhere else
//! every byte is left as it is. Knows no command.
use crate::progress;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fmt};

/// The word `error:`.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();

/// What is as it should be.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What works, but not well.
pub(crate) const FAIR: Style = AnsiColor::Yellow.on_default().bold();

/// When text may be coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl Color {
    /// Decides for the rest of the program, its help included. `Auto` does as the conventions say: `NO_COLOR` forbids,
    /// `CLICOLOR_FORCE` asks, `CLICOLOR=0` and `TERM=dumb` forbid, else terminals are coloured.
    pub(crate) fn decide(self) {
        let choice = match self {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

/// Columns where nobody tells how many there are.
const COLUMNS: usize = 80;

/// A stream to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output: what was asked for.
    Output,
    /// Standard error: everything else.
    Error,
}

impl Stream {
    /// Whether a terminal shows it.
    pub(crate) fn is_terminal(self) -> bool {
        match self {
            Stream::Output => io::stdout().is_terminal(),
            Stream::Error => io::stderr().is_terminal(),
        }
    }

    /// Columns that lines should fit: the variable `COLUMNS`, else the terminal's, else 80.
    pub(crate) fn columns(self) -> usize {
        let wished =
            env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
        let measured = match self {
            Stream::Output => terminal_size::terminal_size_of(io::stdout()),
            Stream::Error => terminal_size::terminal_size_of(io::stderr()),
        };
        let measured = measured.map(|(width, _)| usize::from(width.0)).filter(|columns| *columns > 0);
        wished.or(measured).unwrap_or(COLUMNS)
    }

    /// Whether text is coloured on it; see [`Color::decide`].
    pub(crate) fn is_coloured(self) -> bool {
        let choice = match self {
            Stream::Output => AutoStream::choice(&io::stdout()),
            Stream::Error => AutoStream::choice(&io::stderr()),
        };
        choice != ColorChoice::Never
    }

    /// Text as this stream should get it.
    pub(crate) fn shown(self, text: &str) -> Cow<'_, str> {
        if self.is_terminal() { harmless(text) } else { Cow::Borrowed(text) }
    }

    /// The same in a style, where there are colours. For [`Stream::put`].
    pub(crate) fn painted(self, style: Style, text: &str) -> String {
        let style = if self.is_coloured() { style } else { Style::new() };
        format!("{style}{}{style:#}", self.shown(text))
    }

    /// Writes text, at once.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write(self, text: &str) -> io::Result<()> {
        self.put(&self.shown(text))
    }

    /// Writes what [`Stream::shown`] and [`Stream::painted`] have made, at once. Progress bars make room for it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn put(self, text: &str) -> io::Result<()> {
        // Elsewhere no bar is in the way, and a reader who is slow must not hold up who writes to the terminal.
        if self.is_terminal() { progress::aside(|| self.put_now(text)) } else { self.put_now(text) }
    }

    /// Writes whole lines, as [`Stream::write`] does. On a terminal they begin a new one: an answer may be in mid-line.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write_line(self, line: &str) -> io::Result<()> {
        let broken = self.is_terminal() && MID_LINE.load(Ordering::Relaxed);
        self.put(&format!("{}{}\n", if broken { "\n" } else { "" }, self.shown(line)))
    }

    fn put_now(self, text: &str) -> io::Result<()> {
        if self.is_terminal() && !text.is_empty() {
            MID_LINE.store(!text.trim_end_matches(RESET).ends_with('\n'), Ordering::Relaxed);
        }
        match self {
            Stream::Output => {
                let mut stream = io::stdout().lock();
                stream.write_all(text.as_bytes()).and_then(|()| stream.flush())
            }
            Stream::Error => io::stderr().lock().write_all(text.as_bytes()),
        }
    }
}

/// Whether the last text on a terminal left its cursor in mid-line; both streams are one terminal mostly.
static MID_LINE: AtomicBool = AtomicBool::new(false);

/// What ends a style.
const RESET: &str = "\x1b[0m";

/// Text that cannot steer a terminal: control characters become pictures of themselves or numbers. It looks at each
/// character alone (a carriage return also at the line feed behind it), so that no cut between two writes lets a
/// sequence through.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    replaced(text, |out, steering| match u32::from(steering) {
        code @ 0..0x20 => out.extend(char::from_u32(0x2400 + code)),
        0x7f => out.push('\u{2421}'),
        code => write(out, format_args!("<U+{code:04X}>")),
    })
}

/// JSON that cannot steer a terminal and is the same JSON: characters that do stand in strings only, as escapes.
pub(crate) fn harmless_json(text: &str) -> Cow<'_, str> {
    replaced(text, |out, steering| write(out, format_args!("\\u{:04x}", u32::from(steering))))
}

fn write(out: &mut String, piece: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = fmt::Write::write_fmt(out, piece);
}

fn replaced(text: &str, mut put: impl FnMut(&mut String, char)) -> Cow<'_, str> {
    let steers = |place: usize, character| match character {
        '\r' => !text[place + 1..].starts_with('\n'),
        other => is_steering(other),
    };
    let Some(first) = text.char_indices().find(|(place, character)| steers(*place, *character)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first.0]);
    for (place, character) in text[first.0..].char_indices() {
        if steers(first.0 + place, character) {
            put(&mut out, character);
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Control characters (C0 without line feed and tab, DEL, C1) and those that turn the direction of all text behind them.
fn is_steering(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_steers_is_shown() {
        for (text, shown) in [
            ("plain \t text\n\n", "plain \t text\n\n"),
            ("\x1b[31mred\x1b[0m", "\u{241b}[31mred\u{241b}[0m"),
            ("\x1b]0;title\x07", "\u{241b}]0;title\u{2407}"),
            ("a\0\x08\x7f", "a\u{2400}\u{2408}\u{2421}"),
            ("\u{9b}2J\u{80}\u{9f}\u{a0}", "<U+009B>2J<U+0080><U+009F>\u{a0}"),
            ("over\rwritten\r\nline\r", "over\u{240d}written\r\nline\u{240d}"),
            ("\u{202e}txt.exe\u{2066}\u{2069}\u{200f}", "<U+202E>txt.exe<U+2066><U+2069>\u{200f}"),
            ("emoji 👩\u{200d}🚀 é", "emoji 👩\u{200d}🚀 é"),
        ] {
            assert_eq!(harmless(text), shown);
            assert_eq!(matches!(harmless(text), Cow::Borrowed(_)), text == shown, "{text:?}");
        }
    }

    proptest! {
        /// However a text is cut, nothing comes through that steers.
        #[test]
        fn no_cut_lets_anything_through(text in "[\\x00-\\x20\\x7f-\\xa0\u{2020}-\u{2070}\r\n\x1b\\[a]*", cut in 0.0f64..1.0) {
            let cut = text.char_indices().map(|(place, _)| place).nth((cut * text.chars().count() as f64) as usize);
            let (one, other) = text.split_at(cut.unwrap_or(text.len()));
            let shown = harmless(one).into_owned() + &harmless(other);
            prop_assert!(!shown.contains('\x1b') && !shown.replace("\r\n", "").contains(is_steering));
            prop_assert_eq!(harmless(&shown), shown.clone());
        }

        #[test]
        fn json_stays_the_same_value(text in "\\PC*[\\x00-\\x20\\x7f-\\xa0\u{2020}-\u{2070}]*") {
            let json = serde_json::json!({ (&text): text }).to_string();
            let shown = harmless_json(&json);
            prop_assert!(!shown.contains(is_steering));
            prop_assert_eq!(shown.parse::<serde_json::Value>().unwrap(), json.parse::<serde_json::Value>().unwrap());
        }
    }
}
