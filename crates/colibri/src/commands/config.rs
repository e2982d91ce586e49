//! `colibri config`: which settings hold for a command, and where each comes from. Knows how settings are shown, not how
//! they are found.
mod asked;

use crate::args::{Arguments, ConfigArgs};
use crate::errors::Failure;
use crate::report;
use crate::settings::{Definition, Effective, Kind, Origin, Place, Refusal, Row, Surroundings, template};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &ConfigArgs, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (definition, surroundings) = (Definition::of_program(), Surroundings::of_process());
    if args.template {
        if arguments.config.is_some() || arguments.no_config {
            return Err(Failure::Usage(
                "--template is the same for all files: leave --config and --no-config away".into(),
            ));
        }
        let text = template(definition.catalog());
        show(args.json(), &text, || json!({"template": text}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.path {
        return path(args, &surroundings.place_of(arguments.config.as_deref(), arguments.no_config)?);
    }
    let effective = |words: &[OsString]| {
        let words = [&program(arguments), words].concat();
        // What the command itself would refuse is refused here too.
        let judged = definition.effective(&words, &surroundings).and_then(|effective| {
            let matches = definition.judged(&effective, false)?;
            Ok((effective, matches))
        });
        let (mut effective, matches) = judged.map_err(Refusal::into_failure)?;
        if let Err(failure) = asked::put(&mut effective, &matches) {
            let command = &effective.command;
            report::tell(&format!("note: `{command}` cannot be planned like this: {}", failure.message()));
        }
        Ok::<_, Failure>(effective)
    };
    if args.all {
        let names = definition.catalog().0.iter().map(|command| OsString::from(&command.name));
        let all = names.map(|name| effective(&[name])).collect::<Result<Vec<Effective>, Failure>>()?;
        let text: Vec<String> = all.iter().map(table).collect();
        show(
            args.json(),
            &text.join("\n"),
            || json!({"commands": all.iter().map(object).collect::<Vec<_>>()}),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let words = if args.command.is_empty() { vec!["run".into()] } else { args.command.clone() };
    let effective = effective(&words)?;
    show(args.json(), &table(&effective), || object(&effective))?;
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, text: &str, value: impl Fn() -> Value) -> Result<(), Failure> {
    if json { report::print_json(&value()) } else { report::print(text) }
}

/// How the command line of another command begins: the same file is looked at.
fn program(arguments: &Arguments) -> Vec<OsString> {
    let mut words = vec![OsString::from("colibri")];
    if let Some(path) = &arguments.config {
        words.extend(["--config".into(), path.into()]);
    }
    if arguments.no_config {
        words.push("--no-config".into());
    }
    words
}

fn path(args: &ConfigArgs, place: &Place) -> Result<ExitCode, Failure> {
    let Some(path) = place.path() else {
        return Err(Failure::Usage(
            "no configuration file is looked for: --no-config is given, or this user has no home directory"
                .into(),
        ));
    };
    let exists = path.exists();
    show(
        args.json(),
        &format!("{}\n", path.display()),
        || json!({"path": path.display().to_string(), "exists": exists}),
    )?;
    if !exists {
        report::tell("note: it is not there; `colibri config --template` prints one to begin with");
    }
    Ok(ExitCode::SUCCESS)
}

/// Set or unset; never what.
fn hidden(row: &Row) -> &'static str {
    if row.origin == Origin::Default || row.values.is_empty() { "unset" } else { "set" }
}

fn table(effective: &Effective) -> String {
    let rows: Vec<[String; 3]> = effective.rows.0.iter().map(line).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, values) = (width(0), width(1).min(WIDEST));
    let file = effective.place.path().map_or("none".to_owned(), |path| {
        let absent = if path.exists() { "" } else { " (not there)" };
        format!("{}{absent}", path.display())
    });
    let mut text = format!("settings of `colibri {}`; configuration file: {file}\n", effective.command);
    for [name, value, origin] in &rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<names$}  {value:<values$}  {origin}");
    }
    text
}

/// Longer values push their origin to the right.
const WIDEST: usize = 34;

fn line(row: &Row) -> [String; 3] {
    let mut origin = place(&row.origin);
    if let (Some(_), Some(otherwise)) = (&row.planned, &row.setting.otherwise) {
        origin = format!("{origin}: {otherwise}");
    }
    if let Some(idle) = &row.idle {
        let said = if row.setting.secret { "set".to_owned() } else { words(&idle.values) };
        origin = format!("{origin}; {said} of {} has no effect beside {}", place(&idle.origin), idle.by);
    }
    let value = match (&row.setting.otherwise, row.values.is_empty()) {
        _ if row.setting.secret => hidden(row).to_owned(),
        _ if row.planned.is_some() => {
            let asked =
                if row.values.is_empty() { String::new() } else { format!(" ({})", words(&row.values)) };
            format!("{}{asked}", row.planned.as_deref().unwrap_or_default())
        }
        (Some(otherwise), true) => format!("({otherwise})"),
        (None, true) => "(none)".to_owned(),
        (_, false) => words(&row.values),
    };
    [row.setting.name.clone(), value, origin]
}

/// The file's folder stands above the table.
fn place(origin: &Origin) -> String {
    match origin {
        Origin::Profile { path, line, .. } | Origin::File { path, line, .. } => {
            let name = path.file_name().unwrap_or(path.as_os_str());
            format!("{}:{line}", name.display())
        }
        _ => origin.to_string(),
    }
}

fn words(values: &[OsString]) -> String {
    let word = |value: &OsString| {
        let text = value.to_string_lossy();
        let plain = !text.is_empty() && !text.contains(char::is_whitespace);
        if plain { text.into_owned() } else { format!("{text:?}") }
    };
    values.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn object(effective: &Effective) -> Value {
    let setting = |row: &Row| (row.setting.name.clone(), row_object(row));
    let settings: Map<String, Value> = effective.rows.0.iter().map(setting).collect();
    json!({
        "command": effective.command,
        "file": effective.place.path().map(|path| path.display().to_string()),
        "settings": settings,
    })
}

fn row_object(row: &Row) -> Value {
    let mut object = with_origin(&row.origin);
    let value = if row.setting.secret { hidden(row).into() } else { typed(row, &row.values) };
    object.insert("value".into(), value);
    if let (Some(otherwise), true) = (&row.setting.otherwise, row.values.is_empty()) {
        object.insert("default".into(), otherwise.as_str().into());
    }
    if let Some(planned) = &row.planned {
        let number = planned.parse::<u64>().ok();
        object.insert("planned".into(), number.map_or_else(|| planned.as_str().into(), Into::into));
    }
    if let Some(idle) = &row.idle {
        let mut without = with_origin(&idle.origin);
        let value = if row.setting.secret { "set".into() } else { typed(row, &idle.values) };
        without.insert("value".into(), value);
        without.insert("beside".into(), idle.by.as_str().into());
        object.insert("without_effect".into(), without.into());
    }
    object.into()
}

fn with_origin(origin: &Origin) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("origin".into(), origin.kind().into());
    match origin {
        Origin::Profile { path, key, line } | Origin::File { path, key, line } => {
            object.insert("path".into(), path.display().to_string().into());
            object.insert("key".into(), key.as_str().into());
            object.insert("line".into(), (*line).into());
        }
        Origin::Environment(variable) => {
            object.insert("variable".into(), variable.as_str().into());
        }
        Origin::Default | Origin::Model | Origin::CommandLine => {}
    }
    object
}

/// In JSON's types, as far as the text is one of them.
fn typed(row: &Row, values: &[OsString]) -> Value {
    let text = |value: &OsString| value.to_string_lossy().into_owned();
    match (row.setting.kind, values.first()) {
        (Kind::Many, _) => values.iter().map(text).collect(),
        (_, None) => Value::Null,
        (Kind::Switch | Kind::One, Some(value)) => {
            let text = text(value);
            let typed = serde_json::from_str(&text)
                .ok()
                .filter(|value: &Value| !value.is_object() && !value.is_array());
            typed.unwrap_or(Value::String(text))
        }
    }
}
