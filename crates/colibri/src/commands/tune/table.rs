//! A sweep for people, in 80 columns. Knows no measurement.
use super::{Line, Tune};
use crate::probe::samples::duration;
use crate::report::{counted, paragraph};
use std::fmt::Write as _;
use std::path::Path;

/// As wide as `bench` writes.
const COLUMNS: usize = 80;

/// All of it.
pub(super) fn table(tune: &Tune<'_>, profile: &Path) -> String {
    let (machine, args) = (&tune.machine, tune.args);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}, {} cores, {}", machine.processor, machine.cores, machine.system);
    let _ = writeln!(
        text,
        "{} of {} for each value\n",
        counted(args.repeats, "repeat"),
        counted(args.tokens, "token")
    );
    let _ = writeln!(text, "{}", row(["setting", "value", "a token", "spread", "ratio", ""]));
    for step in &tune.steps {
        for (place, line) in step.lines.iter().enumerate() {
            let setting = if place == 0 { step.setting } else { "" };
            let _ = writeln!(text, "{}", row_of(setting, line, place == 0));
        }
    }
    let chosen: Vec<String> = tune.chosen().iter().map(flag).collect();
    let chosen = if chosen.is_empty() { "nothing but defaults".to_owned() } else { chosen.join(" ") };
    let _ = writeln!(text, "\nchosen: {}", paragraph(&chosen, 2, COLUMNS));
    let written = format!("wrote {0}; --profile {0} takes it", profile.display());
    let _ = writeln!(text, "{}", paragraph(&written, 2, COLUMNS));
    for note in &tune.notes {
        let _ = writeln!(text, "{}", paragraph(&format!("note: {note}"), 2, COLUMNS));
    }
    text
}

fn flag((name, value): &(String, serde_json::Value)) -> String {
    format!("--{name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn row_of(setting: &str, line: &Line, is_set: bool) -> String {
    let what = match (line.is_taken, is_set) {
        (true, true) => "kept",
        (true, false) => "taken",
        (false, _) => "",
    };
    let value = line.value.to_string();
    let (Some(spread), Some(ratio)) = (&line.spread, line.ratio) else {
        return row([setting, &value, "none", "", "", what]);
    };
    let mark = if spread.disturbed { "!" } else { "" };
    let (took, relative) = (duration(spread.median), format!("±{:.1} %", 100.0 * spread.relative()));
    row([setting, &value, &took, &relative, &format!("{ratio:.2}"), &format!("{what}{mark}")])
}

fn row([setting, value, took, spread, ratio, what]: [&str; 6]) -> String {
    let line = format!("{setting:<14}{value:<16}{took:>10}{spread:>10}{ratio:>8}  {what}");
    line.trim_end().to_owned()
}
