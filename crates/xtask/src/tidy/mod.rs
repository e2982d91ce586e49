//! `cargo xtask tidy`: the rules that no compiler checks. Each rule is a function from the tracked files to
//! findings with a path and a line; the lists that rules go by stand here, in one place. It reads text and
//! parses only as much Rust and TOML as the rules need.

mod attributes;
mod code;
mod dependencies;
mod files;
mod manifests;
mod source;

use crate::project;
use anyhow::{Context, Result, bail};
use source::Source;
use std::fmt;

/// No text file is longer.
const FILE_LINES_MAX: usize = 600;
/// No function has more lines of code; empty lines and comments are free.
const FUNCTION_LINES_MAX: usize = 70;
/// All tracked files together, in bytes.
const TREE_BYTES_MAX: u64 = 40_000_000;
/// One tracked file outside `data/`, in bytes.
const FILE_BYTES_MAX: u64 = 1_000_000;

/// Where `unsafe` may stand: a folder (with `/` at the end) or a file.
const UNSAFE_ALLOWED: [&str; 7] = [
    "crates/memory/src/",
    "crates/ops/src/oracle/dispatch.rs",
    "crates/cpu/src/simd/",
    "crates/cpu/src/memory.rs",
    "crates/cpu/src/pool.rs",
    "crates/store/src/ring.rs",
    "crates/cpu/tests/allocations.rs", // an allocator that counts
];

/// What each of our crates may depend on among ours, tests aside. A crate that is not in the list is a finding.
const EDGES: [(&str, &[&str]); 10] = [
    ("memory", &[]),
    ("text", &[]),
    ("ops", &["memory"]),
    ("cpu", &["memory", "ops"]),
    ("store", &["memory"]),
    ("models", &["ops", "store"]),
    ("convert", &["models", "ops", "store"]),
    ("engine", &["memory", "models", "ops", "store"]),
    ("colibri", &["convert", "cpu", "engine", "memory", "models", "ops", "store", "text"]),
    ("xtask", &[]),
];

/// The crates that are programs: they alone print, exit and read the environment.
const PROGRAMS: [&str; 2] = ["colibri", "xtask"];

/// A rule: from all files to what is wrong with them.
type Rule = fn(&[File]) -> Vec<Finding>;

/// Every rule there is.
const RULES: [Rule; 14] = [
    files::too_long,
    files::too_large,
    files::absolute_paths,
    code::long_functions,
    code::unsafe_elsewhere,
    code::library_side_effects,
    code::unfinished,
    attributes::ignored_tests,
    attributes::allow_without_reason,
    dependencies::unused_in_workspace,
    dependencies::unused_in_crate,
    manifests::edges,
    manifests::folder_names,
    manifests::lints_without_reason,
];

/// One thing that is wrong, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &File, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: file.path.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A tracked file: its path from the root, its size, its text unless it is binary, its code if it is Rust.
pub(crate) struct File {
    path: String,
    bytes: u64,
    text: Option<String>,
    source: Option<Source>,
}

impl File {
    fn new(path: &str, content: Vec<u8>) -> File {
        let bytes = content.len() as u64;
        let text = String::from_utf8(content).ok().filter(|text| !text.contains('\0'));
        let is_rust = std::path::Path::new(path).extension().is_some_and(|extension| extension == "rs");
        let source = text.as_deref().filter(|_| is_rust).map(Source::new);
        File { path: path.to_owned(), bytes, text, source }
    }

    /// The crate that the file belongs to, by its folder.
    fn package(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split_once('/').map(|(package, _)| package)
    }
}

/// Checks all tracked files.
///
/// # Errors
/// When there is a finding; all of them were printed, as `path:line: message`.
pub(crate) fn run() -> Result<()> {
    let root = project::root()?;
    let read = |path: &String| {
        let content = std::fs::read(root.join(path)).with_context(|| path.clone())?;
        Ok(File::new(path, content))
    };
    let files = project::tracked_files()?.iter().map(read).collect::<Result<Vec<File>>>()?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&files)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!(
            "tidy: {count} findings, listed above; the lists that rules go by are in crates/xtask/src/tidy"
        ),
    }
}

/// For the rules' tests: files of these paths and texts.
#[cfg(test)]
fn sample(files: &[(&str, &str)]) -> Vec<File> {
    files.iter().map(|(path, text)| File::new(path, text.as_bytes().to_vec())).collect()
}

/// For the rules' tests: findings as printed.
#[cfg(test)]
fn shown(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}
