//! `cargo xtask full`: the core tier and what takes longer or needs a tool besides Rust and git, which is then named.
//! Knows what is run and in which order; `steps` runs it.

use crate::ci::{self, cargo};
use crate::steps::{Step, Tally, execute, execute_lines, is_installed, show};
use crate::{arm, cross, package, project};
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// The word in the names of tests that mutate sound input, which run for a long time here.
const MUTATION_TESTS: &str = "damaged";
/// The variable that tells a mutation test how long to run, besides its fixed number of rounds.
const FUZZ_VARIABLE: &str = "COLIBRI_TEST_FUZZ_SECONDS";
/// How long each of them runs.
const FUZZ_SECONDS: u64 = 120;

/// Tests that take long, kill processes or load the machine: the arguments of `cargo test`, and variables without
/// which the test does less. A target that must not run otherwise has `test = false` in its package's Cargo.toml.
const LONG_TESTS: [LongTest; 5] = [
    (
        &["--package", "ops", "--lib", "errors_stay_within_the_documented_bounds_on_a_dense_sample"],
        // Without fma of the processor, hours instead of minutes.
        &[("COLIBRI_TEST_EVERY_INPUT", "1"), ("RUSTFLAGS", "-Ctarget-cpu=native")],
    ),
    (
        &["--package", "cpu", "--lib", "vectors_of_every_level_give_the_bits_of_the_contract"],
        &[("COLIBRI_TEST_EVERY_INPUT", "1")],
    ),
    // Where the core tier runs the kernel may forbid `io_uring`.
    (&["--package", "store", "--test", "direct", "--test", "watched"], URING),
    (&["--package", "engine", "--test", "invariance"], URING),
    (&["--package", "colibri", "--test", "cli", "uring"], URING),
];
const URING: &[(&str, &str)] = &[("COLIBRI_TEST_URING", "1")];
type LongTest = (&'static [&'static str], &'static [(&'static str, &'static str)]);

/// The steps from the one of that name on, after a run that came no further; all without a name.
///
/// # Errors
/// There is no such step.
pub(crate) fn steps_from(name: Option<&str>) -> Result<Vec<Step>> {
    let mut steps = steps();
    if let Some(name) = name {
        let Some(at) = steps.iter().position(|step| step.name == name) else {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            bail!("--from {name}: there is no such step, these are: {}", names.join(", "));
        };
        steps.drain(..at);
    }
    Ok(steps)
}

/// The steps of `cargo xtask full`.
fn steps() -> Vec<Step> {
    let mut steps = ci::steps();
    steps.extend([
        Step { name: "fuzz", action: |_| fuzz() },
        Step { name: "long tests", action: long_tests },
        Step { name: "cross", action: |_| cross::run() },
        Step { name: "arm", action: arm::run },
        Step { name: "generated", action: |_| generated() },
        Step { name: "package", action: |_| package::run() },
        Step { name: "deny", action: |_| deny(&["bans", "licenses", "sources"]) },
    ]);
    steps
}

/// `cargo xtask advisories`: known faults in what we depend on. It is not part of `full`, because cargo-deny fetches
/// its list of them from the network.
///
/// # Errors
/// When there is one, or cargo-deny is missing.
pub(crate) fn advisories() -> Result<()> {
    deny(&["advisories"])
}

/// The seeded mutation tests for a long time. Their number was counted by the core tier already.
fn fuzz() -> Result<()> {
    let start = Instant::now();
    let seconds = FUZZ_SECONDS.to_string();
    let tests = ["test", "--workspace", "--locked", "--no-fail-fast", "--tests", MUTATION_TESTS];
    cargo(&tests, &[(FUZZ_VARIABLE, &seconds)])?;
    if start.elapsed() < Duration::from_secs(FUZZ_SECONDS) {
        bail!(
            "the mutation tests ended before the {FUZZ_SECONDS} s of {FUZZ_VARIABLE}: expected tests with \
             `{MUTATION_TESTS}` in their name that read it"
        );
    }
    Ok(())
}

/// What [`LONG_TESTS`] lists; each entry must find a test.
fn long_tests(tally: &mut Tally) -> Result<()> {
    for (arguments, environment) in LONG_TESTS {
        let mut command = project::cargo()?;
        command.args(["test", "--locked"]).args(arguments).envs(environment.iter().copied());
        let before = tally.passed;
        execute_lines(&mut command, |line| tally.add_line(line))?;
        if tally.passed == before {
            bail!("`{}` succeeded but no test ran: correct LONG_TESTS", show(&command));
        }
    }
    Ok(())
}

/// The recipe of that name, as a process of its own: what it measures of its children begins with its own size.
fn generated() -> Result<()> {
    let program = std::env::current_exe().context("the program that runs")?;
    execute(Command::new(program).arg("generated"))
}

/// Checks of cargo-deny. A check that cannot run is no check passed.
fn deny(checks: &[&str]) -> Result<()> {
    if !is_installed("cargo-deny") {
        bail!("cargo-deny is needed and was not found: install it with `cargo install cargo-deny --locked`");
    }
    cargo(&[&["deny", "check"], checks].concat(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_begins_with_the_core_tier() {
        let names = |steps: Vec<Step>| steps.iter().map(|step| step.name).collect::<Vec<_>>();
        let (core, full) = (names(ci::steps()), names(steps()));
        assert_eq!(core, full[..core.len()]);
        assert_eq!(names(steps_from(None).unwrap()), full);
        assert_eq!(names(steps_from(Some("fuzz")).unwrap()), full[core.len()..]);
        let told = steps_from(Some("fuz")).err().unwrap().to_string();
        assert!(told.contains("--from fuz") && told.contains("fuzz, long tests"), "{told}");
    }

    #[test]
    fn a_missing_program_is_noticed() {
        assert!(is_installed("cargo") && !is_installed("no-such-tool-anywhere"));
    }
}
