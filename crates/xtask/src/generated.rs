//! `cargo xtask generated`: runs the engine on a checkpoint that `bench-model` writes, so that the format written and
//! the one read stay the same. The size of the expert cache must not change an id, and memory must be as planned.
//! Knows the engine as a program with `--json`.

use crate::ci::cargo;
use crate::steps::{execute, show};
use crate::{memory_table, project};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use wait4::Wait4;

/// The expert caches that are compared: fewer slots than a token has experts, and room for all.
const EXPERT_CACHES: [&str; 2] = ["2x", "all"];

/// What memory may differ from its plan: this share of the plan, or this many bytes if they are more.
const MEMORY_SHARE: f64 = 0.05;
const MEMORY_BYTES: f64 = 16e6;

/// Writes the checkpoint, runs it with every cache and compares.
///
/// # Errors
/// When something fails, ids differ between caches, or memory is not as planned.
pub(crate) fn run() -> Result<()> {
    let folder = project::target()?.join("bench-small");
    remove(&folder)?;
    // Another process, because what this one once needed counts as its children's: see `run_measured`.
    let this = std::env::current_exe().context("the program that runs")?;
    execute(Command::new(this).args(["bench-model", "small", "--out"]).arg(&folder))?;
    cargo(&["build", "--release", "--locked"], &[])?;
    let program = project::target()?.join("release").join(format!("colibri{}", std::env::consts::EXE_SUFFIX));
    let (_, idle) = run_measured(Command::new(&program).arg("--version"))?;
    let mut first_ids = None;
    for cache in EXPERT_CACHES {
        let run = Run::new(&program, &folder, cache)?;
        run.check_memory(cache, idle)?;
        let ids = first_ids.get_or_insert_with(|| run.ids.clone());
        ensure!(
            *ids == run.ids,
            "--expert-cache {cache}: expected the ids of {}, {ids:?}, found {:?}",
            EXPERT_CACHES[0],
            run.ids
        );
    }
    remove(&folder)?;
    memory_table::check(&program)
}

fn remove(folder: &PathBuf) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

/// What is compared of a run. Memory is in bytes.
struct Run {
    ids: Vec<u64>,
    planned: u64,
    /// As the engine says.
    reported_peak: u64,
    /// As the system says.
    peak: u64,
}

impl Run {
    /// Continues a text by 16 tokens, in steps of few rows: memory for rows that a short text does not have is never touched.
    fn new(program: &Path, model: &Path, cache: &str) -> Result<Run> {
        let mut command = Command::new(program);
        project::without_settings(&mut command);
        command.args(["run", "Once upon a time", "--temperature", "0", "--ignore-eos", "--max-tokens", "16"]);
        command
            .args(["--dense", "bf16", "--chunk", "8", "--expert-cache", cache, "--json", "--model"])
            .arg(model);
        let (answer, peak) = run_measured(&mut command)?;
        Run::read(&answer, peak).with_context(|| format!("answer of `{}`: {answer}", show(&command)))
    }

    fn read(answer: &str, peak: u64) -> Result<Run> {
        let answer: Value = serde_json::from_str(answer).context("expected one JSON object")?;
        let number = |path: &str| {
            answer.pointer(path).and_then(Value::as_u64).with_context(|| format!("{path}: expected a number"))
        };
        let ids = answer["ids"].as_array().context("/ids: expected a list")?;
        let ids: Option<Vec<u64>> = ids.iter().map(Value::as_u64).collect();
        Ok(Run {
            ids: ids.filter(|ids| !ids.is_empty()).context("/ids: expected at least one id")?,
            planned: number("/stats/memory/planned_bytes")?,
            reported_peak: number("/stats/memory/peak_bytes")?,
            peak,
        })
    }

    /// Compares the plan with what the engine took beyond an idle program, by both accounts.
    fn check_memory(&self, cache: &str, idle: u64) -> Result<()> {
        let planned = self.planned as f64;
        for (source, peak) in [("the engine", self.reported_peak), ("the system", self.peak)] {
            let taken = peak as f64 - idle as f64;
            println!("--expert-cache {cache}: planned {planned} bytes, taken {taken} according to {source}");
            let allowed = (planned * MEMORY_SHARE).max(MEMORY_BYTES);
            ensure!(
                (taken - planned).abs() <= allowed,
                "--expert-cache {cache}: expected the planned {planned} bytes within {allowed}, found {taken} \
                 according to {source} ({peak} less the {idle} of an idle program)"
            );
        }
        Ok(())
    }
}

/// Runs a command to its end; what it printed and the most bytes it had in memory. On Linux a process begins with the
/// peak of the one that started it, so the caller has to be small.
fn run_measured(command: &mut Command) -> Result<(String, u64)> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let mut printed = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut printed).with_context(|| format!("output of `{shown}`"))?;
    }
    let end = child.wait4().with_context(|| format!("cannot wait for `{shown}`"))?;
    if !end.status.success() {
        bail!("`{shown}` failed ({}); it printed: {}", end.status, printed.trim());
    }
    ensure!(end.rusage.maxrss > 0, "the system does not say how much memory `{shown}` took");
    Ok((printed, end.rusage.maxrss))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(planned: u64, peak: u64) -> String {
        let memory = serde_json::json!({ "planned_bytes": planned, "peak_bytes": peak });
        serde_json::json!({ "ids": [7, 8], "stats": { "memory": memory } }).to_string()
    }

    #[test]
    fn memory_beyond_the_plan_is_refused_by_either_account() {
        let check = |planned, reported, peak| {
            let run = Run::read(&answer(planned, reported), peak).expect("an answer");
            run.check_memory("all", 10_000_000).map_err(|error| error.to_string())
        };
        assert_eq!(check(1_000_000_000, 1_055_000_000, 965_000_000), Ok(()));
        assert_eq!(check(100_000_000, 125_000_000, 95_000_000), Ok(()));
        for (reported, peak, source) in [
            (1_065_000_000, 1_010_000_000, "the engine"),
            (1_010_000_000, 1_065_000_000, "the system"),
            (1_010_000_000, 955_000_000, "the system"),
        ] {
            let message = check(1_000_000_000, reported, peak).expect_err("too far from the plan");
            assert!(message.contains(&format!("according to {source}")), "{message}");
        }
    }

    #[test]
    fn an_answer_without_a_field_names_it() {
        let read = |text: &str| format!("{:#}", Run::read(text, 1).err().expect("not an answer"));
        assert_eq!(Run::read(&answer(1, 2), 3).expect("an answer").ids, [7, 8]);
        assert!(read("story").starts_with("expected one JSON object"));
        assert!(read(r#"{"ids": []}"#).starts_with("/ids: expected at least one id"));
        assert!(read(r#"{"ids": [1]}"#).starts_with("/stats/memory/planned_bytes"));
    }

    #[test]
    fn a_measured_command_has_its_output_and_its_memory() {
        let (printed, peak) = run_measured(Command::new("cargo").arg("--version")).expect("cargo runs");
        assert!(printed.starts_with("cargo ") && peak > 100_000, "{printed}: {peak} bytes");
        let error = run_measured(Command::new("cargo").arg("no-such-subcommand")).expect_err("cargo refuses");
        assert!(error.to_string().starts_with("`cargo no-such-subcommand` failed"), "{error}");
    }
}
