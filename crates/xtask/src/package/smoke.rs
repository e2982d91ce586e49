//! Uses an archive as its first user would: checks the sum, unpacks it into an empty folder, and runs the program there
//! without anything of this project or this user around it. Knows the program by what it prints.

use super::{PROGRAM, Release, archive, checksum};
use crate::steps::show;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file with the archive's checksum, as `sha256sum --check` reads it.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// What the embedded model must answer.
const GOLDEN: &str = "data/k3-tiny/golden/golden.json";

/// Tests the archive in a folder.
///
/// # Errors
/// What a user would stumble over.
pub(crate) fn test(release: &Release, folder: &Path) -> Result<()> {
    let content = verified(folder, &release.file())?;
    let empty = tempfile::tempdir().context("an empty folder")?;
    archive::unpack(release.format(), &content, empty.path()).with_context(|| release.file())?;
    let home = empty.path().join(release.name());
    let program = Program { path: home.join(format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX)), home };
    let version = program.run(&["--version"], "")?;
    let expected = format!("{PROGRAM} {} ", release.version);
    ensure!(version.starts_with(&expected), "--version: expected `{expected}..`, found `{}`", version.trim());
    let golden = fs::read_to_string(release.root.join(GOLDEN)).context(GOLDEN)?;
    answers(&program, &serde_json::from_str(&golden).context(GOLDEN)?)?;
    let health = program.run(&["doctor", "--no-measure", "--json"], "")?;
    let health: Value =
        serde_json::from_str(&health).with_context(|| format!("answer of doctor: {health}"))?;
    ensure!(health["problems"] == 0, "doctor: expected no problems, found {}", health["findings"]);
    let reply =
        program.run(&["chat", "--no-think", "--temperature", "0", "--max-tokens", "16"], "Hello\n")?;
    ensure!(!reply.trim().is_empty(), "chat: expected an answer to a line on standard input, found none");
    for (folder, least) in [("man", 5), ("completions", 5)] {
        let found = files_with_content(&program.home.join(folder))?;
        ensure!(found >= least, "{folder}: expected at least {least} files, found {found}");
    }
    println!("{}: the sum is right, the program answers as it should", release.file());
    Ok(())
}

/// How many files of a folder are not empty.
fn files_with_content(folder: &Path) -> Result<usize> {
    let read = || fs::read_dir(folder)?.map(|entry| entry?.metadata()).collect::<std::io::Result<Vec<_>>>();
    let files = read().with_context(|| folder.display().to_string())?;
    Ok(files.iter().filter(|file| file.is_file() && file.len() > 0).count())
}

/// The archive's bytes, if the file of sums has their sum.
fn verified(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let content = fs::read(folder.join(file)).with_context(|| file.to_owned())?;
    let sums = fs::read_to_string(folder.join(SUMS)).context(SUMS)?;
    let sum = sums.lines().find_map(|line| line.strip_suffix(file)?.strip_suffix("  "));
    let (expected, found) =
        (sum.with_context(|| format!("{SUMS}: {file} is not listed"))?, checksum(&content));
    ensure!(expected == found, "{file}: expected the sum {expected} of {SUMS}, found {found}");
    Ok(content)
}

/// The unpacked program.
struct Program {
    path: std::path::PathBuf,
    home: std::path::PathBuf,
}

impl Program {
    /// Runs it in its own folder with an empty environment; what it printed.
    fn run(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(&self.home).env_clear();
        // Windows starts no program without it.
        command.envs(std::env::var_os("SystemRoot").map(|value| ("SystemRoot", value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = show(&command);
        let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input may be gone already; its exit status tells.
            let _ = std::io::Write::write_all(&mut stdin, input.as_bytes());
        }
        let output = child.wait_with_output().with_context(|| format!("cannot wait for `{shown}`"))?;
        let (printed, said) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(
            output.status.success(),
            "`{shown}` failed ({}): {}{}",
            output.status,
            said.trim(),
            printed.trim()
        );
        Ok(printed.into_owned())
    }
}

/// Every golden prompt must be continued by its golden ids.
fn answers(program: &Program, golden: &Value) -> Result<()> {
    let prompts =
        golden["prompts"].as_array().with_context(|| format!("{GOLDEN}: expected a list of prompts"))?;
    ensure!(!prompts.is_empty(), "{GOLDEN}: expected at least one prompt");
    for prompt in prompts {
        let (ids, expected) = (ids(&prompt["ids"])?, ids(&prompt["greedy_ids"])?);
        let count = expected.len().to_string();
        let list = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let fixed = ["--temperature", "0", "--ignore-eos", "--activations", "exact", "--json"];
        let asked = ["run", "--ids", &list, "--max-tokens", &count];
        let answer = program.run(&[&asked[..], &fixed].concat(), "")?;
        let answer: Value =
            serde_json::from_str(&answer).with_context(|| format!("answer to {list}: {answer}"))?;
        let found = self::ids(&answer["ids"])?;
        ensure!(found == expected, "answer to {list}: expected the ids {expected:?}, found {found:?}");
    }
    Ok(())
}

fn ids(list: &Value) -> Result<Vec<u64>> {
    let ids: Option<Vec<u64>> = list.as_array().and_then(|ids| ids.iter().map(Value::as_u64).collect());
    ids.with_context(|| format!("expected a list of ids, found {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sum_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).expect("a file");
        write("it.zip", "abc");
        write(SUMS, &format!("{}  it.zip\n", checksum(b"abc")));
        assert_eq!(verified(folder.path(), "it.zip").expect("the sum is right"), b"abc");
        write("it.zip", "abd");
        let error = |file| format!("{:#}", verified(folder.path(), file).expect_err("not verified"));
        assert!(error("it.zip").starts_with("it.zip: expected the sum ba7816bf"), "{}", error("it.zip"));
        write("other.zip", "abc");
        assert_eq!(error("other.zip"), "SHA256SUMS: other.zip is not listed");
    }
}
