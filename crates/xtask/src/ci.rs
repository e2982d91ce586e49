//! The core tier of checks, `cargo xtask ci`: needs the Rust toolchain and git. Knows what is run and in which order;
//! `steps` runs it, `full` goes on from here.

use crate::steps::{Step, Tally, execute, execute_lines, run as run_steps, show};
use crate::{project, tidy};
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// The steps: each profile is built once, and clippy, tests and docs share what they can.
pub(crate) fn steps() -> Vec<Step> {
    vec![
        Step { name: "fmt", action: |_| cargo(&["fmt", "--all", "--check"], &[]) },
        Step { name: "tidy", action: |_| tidy::run() },
        Step { name: "clippy", action: |_| clippy() },
        Step { name: "build", action: |_| cargo(&["build", "--release", "--locked"], &[]) },
        Step { name: "install", action: |_| install() },
        Step { name: "tests", action: tests },
        Step { name: "doc", action: |_| documentation() },
        Step { name: "readme", action: |_| readme() },
    ]
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

/// Runs cargo in the project's root.
pub(crate) fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    execute(project::cargo()?.args(arguments).envs(environment.iter().copied()))
}

/// All crates, even after a failure, so that one run shows everything.
fn clippy() -> Result<()> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--keep-going", "--locked"];
    cargo(&[&arguments[..], &["--", "-D", "warnings"]].concat(), &[])
}

fn documentation() -> Result<()> {
    cargo(&["doc", "--workspace", "--no-deps", "--locked"], &[("RUSTDOCFLAGS", "-D warnings")])
}

/// Installs the program as the README says, but into `target` and from a folder outside the tree's root. What `build` has
/// built serves it.
fn install() -> Result<()> {
    let (source, target) = (project::root()?.join("crates/colibri"), project::target()?);
    let mut command = project::cargo()?;
    command.args(["install", "--locked", "--path"]).arg(source).arg("--root").arg(target.join("installed"));
    execute(command.current_dir(&target))?;
    let program = target.join("installed/bin").join(format!("colibri{}", std::env::consts::EXE_SUFFIX));
    execute(Command::new(program).arg("--version"))
}

/// The whole suite, doctests included. A run in which no test ran is a failure of its own.
fn tests(tally: &mut Tally) -> Result<()> {
    let mut command = project::cargo()?;
    command.args(["test", "--workspace", "--no-fail-fast", "--locked"]);
    execute_lines(&mut command, |line| tally.add_line(line))?;
    if tally.passed == 0 {
        bail!("`cargo test --workspace` succeeded but no test ran: expected at least one");
    }
    Ok(())
}

/// Runs the command that the README gives first, word for word: the embedded model must continue the text. What
/// `build` has built serves it, because both build the default members alone.
fn readme() -> Result<()> {
    let mut command = project::cargo()?;
    command.args(["run", "--release", "--", "run", "Once upon a time"]);
    let shown = show(&command);
    let path = project::root()?.join("README.md");
    let text = std::fs::read_to_string(path).context("README.md")?;
    if !gives_command(&text, &shown) {
        bail!("README.md: expected the line `{shown}`, which this step runs; found none");
    }
    let mut story = String::new();
    execute_lines(&mut command, |line| story += line)?;
    if story.trim().is_empty() {
        bail!("`{shown}` succeeded but printed nothing: expected a story on standard output");
    }
    Ok(())
}

/// Whether a text has a line that is this command, perhaps with a comment behind it.
fn gives_command(text: &str, command: &str) -> bool {
    let rests = text.lines().filter_map(|line| line.trim().strip_prefix(command));
    rests.map(str::trim_start).any(|rest| rest.is_empty() || rest.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_with_and_without_a_comment() {
        let command = "cargo run -- run \"Once\"";
        assert!(gives_command("Try:\n\n    cargo run -- run \"Once\"\n", command));
        assert!(gives_command("cargo run -- run \"Once\"   # a story\n", command));
        assert!(!gives_command("cargo run -- run \"Once\" --json\n", command));
        assert!(!gives_command("cargo run -- run \"Once upon\"\n", command));
    }
}
