//! `colibri doctor`: one look at everything that a user or a report of a fault needs, and what to do about it.
use crate::args::{Arguments, Command, DoctorArgs, EngineArgs};
use crate::commands::inspect;
use crate::commands::verify::verdict;
use crate::doctor::drives::{self, Drive};
use crate::doctor::machine::Machine;
use crate::doctor::model::{self, Outlook};
use crate::doctor::{Finding, Standing};
use crate::errors::Failure;
use crate::report::{self, counted, paragraph};
use crate::settings::{Definition, Effective, Refusal, Row, Surroundings};
use crate::terminal::{ERROR, FAIR, GOOD, Stream};
use clap::FromArgMatches as _;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &DoctorArgs, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if args.missing {
        return missing(args);
    }
    let (machine, mut findings) = Machine::look();
    let running = Running::new(args, arguments)?;
    findings.push(running.finding());
    let about = Examined::new(args, &running.engine, &machine, &mut findings);
    let count = |standing| findings.iter().filter(|finding| finding.standing == standing).count();
    let (problems, warnings) = (count(Standing::Problem), count(Standing::Warning));
    if args.output.json {
        report::print_json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "numerics_version": ops::NUMERICS_VERSION,
            "machine": machine,
            "settings": running.json(),
            "model": about.model,
            "drives": about.drives,
            "packings": about.outlook.packings,
            "plan": about.outlook.plan,
            "findings": findings,
            "problems": problems,
            "warnings": warnings,
        }))?;
    } else {
        print(&findings, problems, warnings)?;
    }
    Ok(verdict(problems == 0))
}

/// The files to download, one a line.
fn missing(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let seen = inspect::look(&args.model, false)?;
    let names = model::wanting(&seen);
    if args.output.json {
        report::print_json(&json!({ "missing": names }))?;
    } else {
        let lines: Vec<&str> = names.iter().flat_map(|name| [name, "\n"]).collect();
        report::print(&lines.concat())?;
        for fault in &seen.partial.faults {
            report::tell(&format!(
                "note: {fault}; remove the file, so that the download tool fetches it again"
            ));
        }
    }
    Ok(verdict(names.is_empty()))
}

/// The settings that `run` would have.
struct Running {
    effective: Effective,
    engine: EngineArgs,
}

impl Running {
    fn new(args: &DoctorArgs, arguments: &Arguments) -> Result<Self, Failure> {
        let mut words: Vec<OsString> = ["colibri", "run", "-"].map(OsString::from).to_vec();
        for directory in &args.model.model {
            words.extend([OsString::from("--model"), directory.into()]);
        }
        if let Some(path) = &arguments.config {
            words.extend([OsString::from("--config"), path.into()]);
        }
        if arguments.no_config {
            words.push("--no-config".into());
        }
        let read = || {
            let definition = Definition::of_program();
            let effective = definition.effective(&words, &Surroundings::of_process())?;
            let matches = definition.judged(&effective, true)?;
            Ok((effective, matches))
        };
        let (effective, matches) = read().map_err(Refusal::into_failure)?;
        let parsed = Arguments::from_arg_matches(&matches);
        match parsed.map(|arguments| arguments.command) {
            Ok(Command::Run(run)) => Ok(Running { effective, engine: run.engine }),
            Ok(_) => Err(Failure::Usage("the settings of `run` are those of another command".into())),
            Err(error) => Err(Failure::Usage(error.to_string())),
        }
    }

    /// What a file or a variable says.
    fn told(&self) -> impl Iterator<Item = &Row> {
        self.effective.rows.0.iter().filter(|row| row.origin.is_told())
    }

    fn file(&self) -> (Option<String>, bool) {
        let path = self.effective.place.path();
        (path.map(|path| path.display().to_string()), path.is_some_and(std::path::Path::exists))
    }

    fn finding(&self) -> Finding {
        let file = match self.file() {
            (Some(path), true) => path,
            (Some(path), false) => format!("no configuration file ({path} is not there)"),
            (None, _) => "no configuration file".to_owned(),
        };
        let told: Vec<String> =
            self.told().map(|row| format!("{} {} ({})", row.setting.name, value(row), row.origin)).collect();
        let told = if told.is_empty() {
            "defaults for `run`".to_owned()
        } else {
            format!("for `run`: {}", told.join(", "))
        };
        Finding::ok("settings", format!("{file}; {told}"))
    }

    fn json(&self) -> Value {
        let (file, exists) = self.file();
        let row = |row: &Row| json!({"name": row.setting.name, "value": value(row), "origin": row.origin.to_string()});
        json!({"file": file, "file_exists": exists, "run": self.told().map(row).collect::<Vec<_>>()})
    }
}

/// As text; of a secret only that it is set.
fn value(row: &Row) -> String {
    if row.setting.secret {
        return "set".to_owned();
    }
    row.values.iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// What there is to say about the model.
#[derive(Default)]
struct Examined {
    model: Option<Value>,
    drives: Vec<Drive>,
    outlook: Outlook,
}

impl Examined {
    fn new(args: &DoctorArgs, engine: &EngineArgs, machine: &Machine, findings: &mut Vec<Finding>) -> Self {
        let directories = &args.model.model;
        let seen = match inspect::look(&args.model, false) {
            Ok(seen) => seen,
            Err(failure) => {
                let advice = "give the directory that holds config.json and the index as the first --model";
                findings.push(Finding::problem("model", failure.message(), advice));
                return Examined::default();
            }
        };
        findings.extend(model::wholeness(&seen, directories));
        let mut drives = drives::look(&seen.partial.checkpoint);
        for drive in &mut drives {
            if !args.no_measure {
                findings.extend(drive.measure());
            }
            findings.push(drive.finding());
        }
        findings.extend(model::room(&seen, &drives, directories));
        findings.extend(model::cold_token(&seen, &drives));
        if !directories.is_empty() {
            findings.extend(machine.files_finding(seen.shards().1));
        }
        let model = Some(seen.json());
        let mut outlook = Outlook::default();
        if seen.complete() {
            match model::plan(seen, engine) {
                Ok((seen, more)) => {
                    outlook = seen;
                    findings.extend(more);
                }
                Err(failure) => {
                    let advice = "change the setting that is named";
                    findings.push(Finding::problem("plan", failure.message(), advice));
                }
            }
        }
        Examined { model, drives, outlook }
    }
}

fn print(findings: &[Finding], problems: usize, warnings: usize) -> Result<(), Failure> {
    let stream = Stream::Output;
    let columns = if stream.is_terminal() { stream.columns() } else { usize::MAX };
    let (version, numerics) = (env!("CARGO_PKG_VERSION"), ops::NUMERICS_VERSION);
    let mut text = format!("colibri {version} (numerics version {numerics})\n");
    for Finding { topic, standing, text: words, advice } in findings {
        let (style, word) = match standing {
            Standing::Ok => (GOOD, "ok     "),
            Standing::Warning => (FAIR, "warning"),
            Standing::Problem => (ERROR, "problem"),
        };
        let words = paragraph(words, INDENT, columns);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}  {topic:<10} {}", stream.painted(style, word), stream.shown(&words));
        if let Some(advice) = advice {
            let advice = paragraph(advice, INDENT + 3, columns);
            let _ = writeln!(text, "{:INDENT$}-> {}", "", stream.shown(&advice));
        }
    }
    let _ = match (problems, warnings) {
        (0, 0) => writeln!(text, "all is well"),
        _ => writeln!(text, "{}, {}", counted(problems, "problem"), counted(warnings, "warning")),
    };
    report::written(stream.put(&text))
}

/// Columns before the words of a finding: how it stands, and its topic.
const INDENT: usize = 7 + 2 + 10 + 1;
