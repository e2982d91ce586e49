//! Runs steps one after another, each with its name and its time, and counts tests. Knows no recipe.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// One step of a recipe.
pub(crate) struct Step {
    /// What is printed above its output.
    pub(crate) name: &'static str,
    /// Does the work; the tally is for the step that runs tests.
    pub(crate) action: fn(&mut Tally) -> Result<()>,
}

/// How many tests passed and failed in all test binaries together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Adds one line of output, if it is the closing line of a test binary:
    /// `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else { return };
        let counts = counts.split_once(". ").map_or(counts, |(_, rest)| rest);
        for count in counts.split(';') {
            let mut words = count.split_whitespace();
            let (Some(number), Some(kind)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match kind {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                _ => {}
            }
        }
    }
}

/// Runs the steps in order, stops at the first that fails, and lists how long each took.
///
/// # Errors
/// The failed step's error, under the step's name.
pub(crate) fn run(steps: &[Step], tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    let mut times = Vec::with_capacity(steps.len());
    let outcome = steps.iter().try_for_each(|step| {
        println!("==> {}", step.name);
        let start = Instant::now();
        let outcome = (step.action)(tally);
        let seconds = start.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "ok" } else { "failed" };
        println!("<== {}: {verdict}, {seconds:.1} s\n", step.name);
        times.push((step.name, seconds));
        outcome.with_context(|| format!("step '{}'", step.name))
    });
    for (name, seconds) in times {
        println!("{seconds:8.1} s  {name}");
    }
    println!("{:8.1} s  total", start.elapsed().as_secs_f64());
    outcome
}

/// Runs a command with its output on the terminal.
///
/// # Errors
/// When it cannot be started or fails; the message names the command.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}); its messages are above");
    }
    Ok(())
}

/// Runs a command, prints its standard output as it comes and hands every line to `each`.
///
/// # Errors
/// As [`execute`], after all output was handed on.
pub(crate) fn execute_lines(command: &mut Command, mut each: impl FnMut(&str)) -> Result<()> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if let Some(output) = child.stdout.take() {
        let mut terminal = std::io::stdout().lock();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.with_context(|| format!("output of `{shown}`"))?;
            terminal.write_all(&line)?;
            terminal.write_all(b"\n")?;
            each(&String::from_utf8_lossy(&line));
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}); its messages are above");
    }
    Ok(())
}

/// What a command prints on standard output.
///
/// # Errors
/// When it cannot be started or fails; the message names the command and what it wrote on standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program can be started here.
pub(crate) fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The command as a person would type it.
pub(crate) fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut words = vec![program.file_stem().unwrap_or(command.get_program()).to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| {
        let argument = argument.to_string_lossy();
        if argument.contains(' ') { format!("\"{argument}\"") } else { argument.into_owned() }
    }));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_test_binaries_are_added_up() {
        let mut tally = Tally::default();
        tally.add_line("running 3 tests");
        tally.add_line(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s",
        );
        tally.add_line("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally, Tally { passed: 15, failed: 2 });
    }

    /// A step that fails once it is reached for the second time; the tally counts the times.
    fn works_once(tally: &mut Tally) -> Result<()> {
        tally.passed += 1;
        match tally.passed {
            1 => Ok(()),
            _ => bail!("broken"),
        }
    }

    #[test]
    fn the_first_failed_step_ends_the_run_by_name() {
        let steps = ["one", "two", "three"].map(|name| Step { name, action: works_once });
        let mut tally = Tally::default();
        let error = run(&steps, &mut tally).expect_err("the second step fails");
        assert_eq!(format!("{error:#}"), "step 'two': broken");
        assert_eq!(tally.passed, 2, "the third step is not reached");
    }

    #[test]
    fn a_failed_command_is_named() {
        let error = execute(Command::new("cargo").arg("no-such-subcommand")).expect_err("cargo refuses");
        assert!(format!("{error:#}").starts_with("`cargo no-such-subcommand` failed"), "{error:#}");
    }

    #[test]
    fn every_line_is_handed_on() {
        let mut lines = Vec::new();
        execute_lines(Command::new("cargo").arg("--version"), |line| lines.push(line.to_owned()))
            .expect("cargo runs");
        assert!(lines.first().is_some_and(|line| line.starts_with("cargo ")), "{lines:?}");
    }
}
