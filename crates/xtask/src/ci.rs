//! The two tiers of checks: `ci` needs the Rust toolchain and git, `full` names each further tool it needs.
//! Knows what is run and in which order; `steps` runs it.

use crate::steps::{Step, Tally, execute, execute_lines, run as run_steps};
use crate::{cross, project, tidy};
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// The README's first command, which runs the embedded model.
const README_COMMAND: &str = r#"cargo run --release -- run "Once upon a time""#;

/// How long `full` lets each mutation test run, in seconds. Tests with `fuzz` in their name read the variable
/// `COLIBRI_FUZZ_SECONDS`; without it they do a fixed, small number of rounds.
const FUZZ_SECONDS: &str = "120";

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
        Step { name: "deny", action: |_| deny() },
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

/// The seeded mutation tests, for a long time. They were counted by `tests` already.
fn fuzz(_: &mut Tally) -> Result<()> {
    let mut command = project::cargo()?;
    command
        .args(["test", "--workspace", "--locked", "--tests", "fuzz"])
        .env("COLIBRI_FUZZ_SECONDS", FUZZ_SECONDS);
    let mut ran = Tally::default();
    execute_lines(&mut command, |line| ran.add_line(line))?;
    if ran.passed == 0 {
        bail!("no test has `fuzz` in its name: name the mutation tests so that `full` finds them");
    }
    Ok(())
}

fn deny() -> Result<()> {
    require("cargo-deny", "cargo install cargo-deny --locked")?;
    cargo(&["deny", "check"], &[])
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
    fn full_begins_with_the_core_tier() {
        let names = |steps: Vec<Step>| steps.iter().map(|step| step.name).collect::<Vec<_>>();
        let (core, full) = (names(core_tier()), names(full_tier()));
        assert_eq!(core, full[..core.len()]);
        assert_eq!(full[core.len()..], ["fuzz", "cross", "deny"]);
    }
}
