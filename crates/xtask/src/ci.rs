//! The two tiers of checks: `ci` needs the Rust toolchain and git, `full` names each further tool it needs.
//! Knows what is run and in which order; `steps` runs it.

use crate::steps::{Step, Tally, execute, execute_lines, run as run_steps};
use crate::{bench_model, cross, project, tidy};
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// The README's first command, which runs the embedded model.
const README_COMMAND: &str = r#"cargo run --release -- run "Once upon a time""#;

/// The word in the names of tests that mutate sound input, which `full` runs for a long time.
const MUTATION_TESTS: &str = "damaged";
/// The variable that tells a mutation test how long to run, in place of its fixed number of rounds.
const FUZZ_VARIABLE: &str = "COLIBRI_FUZZ_SECONDS";
/// How long `full` lets each of them run.
const FUZZ_SECONDS: u32 = 120;

/// The steps of `cargo xtask ci`: each profile is built once, and clippy, tests and docs share what they can.
pub(crate) fn core_tier() -> Vec<Step> {
    vec![
        Step { name: "fmt", action: |_| cargo(&["fmt", "--all", "--check"], &[]) },
        Step { name: "tidy", action: |_| tidy::run() },
        Step { name: "clippy", action: |_| clippy() },
        Step { name: "build", action: |_| cargo(&["build", "--release", "--locked"], &[]) },
        Step { name: "tests", action: tests },
        Step { name: "doc", action: |_| documentation() },
        Step { name: "readme", action: |_| readme() },
    ]
}

/// The steps of `cargo xtask full`.
pub(crate) fn full_tier() -> Vec<Step> {
    let mut steps = core_tier();
    steps.extend([
        Step { name: "fuzz", action: fuzz },
        Step { name: "cross", action: |_| cross::run() },
        Step { name: "bench-model", action: |_| generated_model() },
        Step { name: "deny", action: |_| deny() },
        Step { name: "advisories", action: |_| advisories() },
    ]);
    steps
}

/// Runs a tier. When tests have run, the very last line is their sum: `N passed, N failed`; the reason of a
/// failure stands above it.
pub(crate) fn run(steps: &[Step]) -> ExitCode {
    let mut tally = Tally::default();
    let outcome = run_steps(steps, &mut tally);
    if let Err(error) = &outcome {
        eprintln!("error: {error:#}");
    }
    if tally != Tally::default() {
        println!("{} passed, {} failed", tally.passed, tally.failed);
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    execute(project::cargo()?.args(arguments).envs(environment.iter().copied()))
}

fn clippy() -> Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])
}

fn documentation() -> Result<()> {
    cargo(&["doc", "--workspace", "--no-deps", "--locked"], &[("RUSTDOCFLAGS", "-D warnings")])
}

/// The whole suite. A run in which no test ran is a failure of its own.
fn tests(tally: &mut Tally) -> Result<()> {
    let mut command = project::cargo()?;
    command.args(["test", "--workspace", "--no-fail-fast", "--locked"]);
    execute_lines(&mut command, |line| tally.add_line(line))?;
    if tally.passed == 0 {
        bail!("`cargo test --workspace` succeeded but no test ran: expected at least one");
    }
    Ok(())
}

/// The seeded mutation tests, for a long time. They were counted by `tests` already. A binary that ends early
/// did not do the long run, and that is a failure.
fn fuzz(_: &mut Tally) -> Result<()> {
    let mut command = project::cargo()?;
    command.args(["test", "--workspace", "--locked", "--tests", MUTATION_TESTS]);
    command.env(FUZZ_VARIABLE, FUZZ_SECONDS.to_string());
    let (mut binary, mut ran, mut early) = (String::new(), 0, Vec::new());
    // Cargo names the binary on standard error, so that its tests are named here instead.
    execute_lines(&mut command, |line| {
        if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... ok")) {
            test.clone_into(&mut binary);
        }
        let mut closing = Tally::default();
        closing.add_line(line);
        if closing.passed > 0 {
            ran += closing.passed;
            if seconds_of(line) < f64::from(FUZZ_SECONDS) {
                early.push(binary.clone());
            }
        }
    })?;
    if ran == 0 {
        bail!(
            "no test has `{MUTATION_TESTS}` in its name: name the mutation tests so that `full` finds them"
        );
    }
    if !early.is_empty() {
        bail!(
            "expected mutation tests to run for the {FUZZ_SECONDS} s of {FUZZ_VARIABLE}; found binaries that ended \
             earlier, those with the tests {}: read the variable there",
            early.join(", ")
        );
    }
    Ok(())
}

/// From the closing line of a test binary: the seconds in `finished in 1.23s`.
fn seconds_of(line: &str) -> f64 {
    let seconds = line.rsplit_once("finished in ").and_then(|(_, time)| time.trim().strip_suffix('s'));
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0)
}

/// Licences, duplicate and foreign crates: answered from this folder alone.
fn deny() -> Result<()> {
    require("cargo-deny", "cargo install cargo-deny --locked")?;
    cargo(&["deny", "check", "bans", "licenses", "sources"], &[])
}

/// Known faults in what we depend on: cargo-deny fetches the advisory database, so this needs a network.
fn advisories() -> Result<()> {
    require("cargo-deny", "cargo install cargo-deny --locked")?;
    cargo(&["deny", "check", "advisories"], &[])
}

/// Generates the smallest checkpoint of K3's widths and runs it, so that the format written by `bench-model` and
/// the one that the engine reads stay the same.
fn generated_model() -> Result<()> {
    let folder = project::target()?.join("bench-small");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    bench_model::run(&bench_model::Arguments::small(folder.clone()))?;
    let mut command = project::cargo()?;
    command.args(["run", "--release", "--locked", "--", "run", "--max-tokens", "8", "--model"]).arg(&folder);
    execute(command.arg("Once upon a time"))?;
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// Fails when a program is missing: a check that cannot run is no check passed.
fn require(program: &str, install: &str) -> Result<()> {
    match Command::new(program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => bail!("{program} is needed and was not found: install it with `{install}`"),
    }
}

/// Runs the command that the README gives first; it must stand there word for word and must print text.
fn readme() -> Result<()> {
    let path = project::root()?.join("README.md");
    let text = std::fs::read_to_string(&path).context("README.md")?;
    if !text.lines().any(|line| line.trim() == README_COMMAND) {
        bail!("README.md: expected the line `{README_COMMAND}`, which this step runs; found none");
    }
    let mut command = project::cargo()?;
    command.args(["run", "--release", "--locked", "--", "run", "Once upon a time"]);
    let mut letters = 0;
    execute_lines(&mut command, |line| {
        letters += line.chars().filter(|letter| letter.is_alphabetic()).count();
    })?;
    if letters < 20 {
        bail!(
            "`{README_COMMAND}` succeeded but printed {letters} letters: expected a story on standard output"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_fails_and_names_its_install_command() {
        let error =
            require("no-such-tool-anywhere", "cargo install it").expect_err("there is no such program");
        let message = error.to_string();
        assert!(
            message.contains("no-such-tool-anywhere") && message.contains("`cargo install it`"),
            "{message}"
        );
    }

    #[test]
    fn the_time_of_a_test_binary_is_read() {
        let line =
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 120.05s";
        assert_eq!(seconds_of(line), 120.05);
        assert_eq!(seconds_of("test result: ok. 2 passed; 0 failed"), 0.0);
    }

    #[test]
    fn full_begins_with_the_core_tier() {
        let names = |steps: Vec<Step>| steps.iter().map(|step| step.name).collect::<Vec<_>>();
        let (core, full) = (names(core_tier()), names(full_tier()));
        assert_eq!(core, full[..core.len()]);
        assert_eq!(full[core.len()..], ["fuzz", "cross", "bench-model", "deny", "advisories"]);
    }
}
