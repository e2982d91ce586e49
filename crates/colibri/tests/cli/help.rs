//! The help of every command fits 80 columns, and says of each flag its range and its default.
use crate::common::{colibri, commands, program};

/// The help of a command, or of the program, for a terminal of so many columns.
fn help(command: Option<&str>, columns: &str) -> String {
    let arguments: Vec<&str> = command.into_iter().chain(["--help"]).collect();
    let output = program().args(&arguments).env("COLUMNS", columns).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that has help.
fn all() -> Vec<Option<String>> {
    [None].into_iter().chain(commands().into_iter().map(Some)).collect()
}

/// A flag as the help shows it.
struct Flag {
    /// `--chunk`
    name: String,
    /// `N`; none for a switch.
    value: Option<String>,
    /// All that is said of it, in one line.
    text: String,
}

/// Reads the flags: each begins on a line of its own, and its text goes on in lines that are indented further.
fn flags(help: &str) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    let mut open = false;
    for line in help.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        if words.starts_with('-') && (2..=6).contains(&indent) {
            // What is said of it follows behind two spaces.
            let head = words.split("  ").next().unwrap();
            let long = head.split_whitespace().find(|word| word.starts_with("--")).unwrap();
            let value = head.split(['<', '>']).nth(1).map(str::to_owned);
            flags.push(Flag { name: long.to_owned(), value, text: String::new() });
            open = true;
        } else if indent < 2 && !words.is_empty() {
            open = false; // a heading, or the end
        }
        if open && let Some(flag) = flags.last_mut() {
            flag.text += words;
            flag.text.push(' ');
        }
    }
    flags
}

#[test]
fn it_fits_its_terminal_and_names_the_exit_codes() {
    for command in all() {
        for (columns, widest) in [("80", 80), ("200", 80), ("60", 80)] {
            for line in help(command.as_deref(), columns).lines() {
                assert!(line.chars().count() <= widest, "{command:?}: {line}");
            }
        }
        let text = help(command.as_deref(), "80");
        for code in ["0  success", "1  failure", "2  usage", "130  interrupted", "141  nobody"] {
            assert!(text.contains(code), "{command:?}: {code}");
        }
        assert!(text.contains("Usage: colibri"), "{command:?}");
    }
}

/// Flags whose value is what a call is about: there is no default.
const NO_DEFAULT: [&str; 5] = ["--ids", "--inputs", "--golden", "--out", "--compare"];

/// What a range is said with.
const RANGES: [&str; 6] = [" to ", " at most", " at least", " or more", "above ", "counted from 0"];

#[test]
fn each_flag_says_its_range_and_its_default() {
    let mut seen = 0;
    for command in all() {
        for Flag { name, value, text } in flags(&help(command.as_deref(), "80")) {
            seen += 1;
            let said = text.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
            assert!(said.len() > name.len() + 4, "{command:?} {name} says nothing: {said}");
            let Some(value) = value else { continue };
            let default = said.contains("[default: ") || NO_DEFAULT.contains(&name.as_str());
            assert!(default, "{command:?} {name} has no default: {said}");
            if ["N", "T", "P", "K", "R", "A"].contains(&value.as_str()) {
                assert!(
                    RANGES.iter().any(|range| said.contains(range)),
                    "{command:?} {name} has no range: {said}"
                );
            }
        }
    }
    assert!(seen > 50, "{seen}");
    let run = flags(&help(Some("run"), "80"));
    let said = |name: &str| &run.iter().find(|flag| flag.name == name).unwrap().text;
    assert!(
        said("--chunk").contains("1 to 4096")
            && said("--chunk").contains("[default: the most of 512, 256, 128, 64")
    );
    assert!(
        said("--expert-cache").contains("8GB")
            && said("--threads").contains("each core that this process may use")
    );
    assert_eq!(colibri(&["run", "-h"]).code, 0);
}
