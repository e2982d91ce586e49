//! The walk over all settings of `plan`: given by a variable, each changes a figure or is told to change none, and never both;
//! typed, it does the same or is refused. Nothing is measured, so that equal plans have equal figures.
use crate::common::{Answer, answer_of, colibri, model_copy, program, text_of};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// Settings that say how an answer is given or where other settings come from.
const OF_NO_FIGURE: [&str; 5] = ["json", "color", "log-level", "log-file", "profile"];

/// Every other setting with values that are no defaults.
fn values<'a>(place: &'a str, mirror: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![
        ("model", place),
        ("chunk", "7"),
        ("context", "300"),
        ("expert-cache", "24x"),
        ("cache-policy", "lru"),
        ("io", "buffered"),
        ("io", "uring"),
        ("mirror", mirror),
        ("readers", "2"),
        ("overlap", "off"),
        ("look-ahead", "off"),
        ("look-ahead", "8"),
        ("check-experts", "on"),
        ("governor", "off"),
        ("threads", "7"),
        ("activations", "exact"),
        ("dense", "int8"),
        ("dense-residency", "mapped"),
        ("expert-top-p", "0.5"),
        ("device", "oracle"),
    ]
}

/// Flags under which they are tried, each of which decides for some of them.
fn circumstances<'a>(container: &'a str, trace: &'a str, mirror: &'a str) -> Vec<Vec<&'a str>> {
    let streamed = ["--expert-cache", "40x"];
    let mapped = ["--dense-residency", "mapped", "--model", container];
    vec![
        vec![],
        streamed.to_vec(),
        [&streamed[..], &["--trace", trace]].concat(),
        vec!["--layers", "1", "--disk", "1GB/s"],
        [&streamed[..], &["--disk", "1GB/s"], &mapped[..]].concat(),
        mapped.to_vec(),
        vec!["--model", container],
        vec!["--mirror", mirror],
        [&streamed[..], &["--mirror", mirror]].concat(),
    ]
}

/// What a plan says but its settings and notes.
fn figures(plan: &Value) -> Value {
    let mut figures = plan.clone();
    for key in ["settings", "notes"] {
        figures.as_object_mut().unwrap().remove(key).unwrap();
    }
    figures
}

/// What a plan says with these flags and this variable, for two threads unless they say otherwise.
fn planned(flags: &[&str], variable: Option<(&str, &str)>) -> Answer {
    let mut command = program();
    command.args(flags).env("COLIBRI_THREADS", "2").envs(variable);
    answer_of(command, "")
}

/// What is wrong with a setting under these flags, of which a plan is there without it.
fn wrong(flags: &[&str], plain: &Value, name: &str, value: &str) -> Option<String> {
    const IDLE: &str = "has no effect on this plan";
    let variable = format!("COLIBRI_{}", name.replace('-', "_").to_uppercase());
    let by_variable = planned(flags, Some((&variable, value)));
    let typed = planned(&[flags, &[&format!("--{name}"), value]].concat(), None);
    let said = format!("{flags:?} --{name} {value}");
    if by_variable.code != 0 {
        let is_named = [&by_variable, &typed].iter().all(|answer| answer.error(2).1.contains(name))
            || by_variable.error(2).1.contains(&variable);
        return (!is_named).then_some(format!("{said}: {}", by_variable.stdout));
    }
    let plan = by_variable.good();
    let is_told = plan["notes"].to_string().contains(&format!("{variable} {IDLE}"));
    if is_told == (figures(&plan) != *plain) {
        let what =
            if is_told { "told to change nothing, and does" } else { "changes nothing and says nothing" };
        return Some(format!("{said}: {what}"));
    }
    let is_same = match typed.code {
        0 => {
            figures(&typed.good()) == figures(&plan)
                && typed.good()["notes"].to_string().contains(&format!("--{name} {IDLE}")) == is_told
        }
        _ => is_told && typed.error(2).1.starts_with(&format!("--{name} {IDLE}")),
    };
    (!is_same).then(|| format!("{said}: typed {}", typed.stdout))
}

/// The names of all settings of the command.
fn names() -> Vec<String> {
    let shown = colibri(&["config", "--json", "plan"]).good();
    shown["settings"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn every_setting_changes_a_figure_or_is_told_or_refused() {
    let place = TempDir::new().unwrap();
    let path = |name: &str| text_of(&place.path().join(name)).to_owned();
    let (container, trace) = (path("int4"), path("trace"));
    let copy = model_copy();
    colibri(&["convert", "--dense", "int4", "--json", text_of(copy.path()), &container]).good();
    let run = ["run", "Once upon a time", "--max-tokens", "100", "--trace-routing", &trace, "--json"];
    colibri(&run).good();
    // A mirror has the files of its model.
    let (of_container, mirror) = (path("mirror"), model_copy());
    fs::create_dir(&of_container).unwrap();
    for entry in fs::read_dir(&container).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), Path::new(&of_container).join(entry.file_name())).unwrap();
    }
    let mirror = text_of(mirror.path());
    let values = values(text_of(copy.path()), mirror);
    let mut named: Vec<&str> = values.iter().map(|(name, _)| *name).chain(OF_NO_FIGURE).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, names());

    let mut steps = Vec::new();
    for flags in circumstances(&container, &trace, mirror) {
        let fixed = ["plan", "--json", "--no-measure", "--ram", "64GB"];
        let flags = [&fixed[..], &flags].concat();
        let plain = figures(&planned(&flags, None).good());
        for &(name, value) in &values {
            let value =
                if name == "mirror" && flags.contains(&container.as_str()) { &of_container } else { value };
            // A flag goes before a variable.
            if !flags.contains(&format!("--{name}").as_str()) {
                steps.push((flags.clone(), plain.clone(), name, value));
            }
        }
    }
    let (next, wrongs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                while let Some((flags, plain, name, value)) = steps.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let found = wrong(flags, plain, name, value);
                    wrongs.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrongs = wrongs.into_inner().unwrap();
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}
