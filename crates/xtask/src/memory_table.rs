//! Holds the table of memory in the documents to what the program plans for the names, shapes and lengths of the whole
//! Kimi K3, which `bench-model k3 --sparse` writes. Part of `cargo xtask generated`. Knows the program by `doctor --json`.

use crate::project;
use crate::steps::{execute, show};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Pages with the table, and the column of the first context.
const PAGES: [(&str, usize); 2] = [("README.md", 1), ("docs/running.md", 2)];
/// The contexts of its columns.
const CONTEXTS: [u32; 3] = [8192, 32768, 131_072];
/// How the table calls its first column.
const HEADING: &str = "`--dense`";

/// Writes the checkpoint, asks the program and compares.
///
/// # Errors
/// When a figure of the table is not the program's, or there is no table.
pub(crate) fn check(program: &Path) -> Result<()> {
    let folder = project::target()?.join("k3-sparse");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let this = std::env::current_exe().context("the program that runs")?;
    execute(Command::new(this).args(["bench-model", "k3", "--sparse", "--out"]).arg(&folder))?;
    let root = project::root()?;
    let read = |page: &str| fs::read_to_string(root.join(page)).with_context(|| page.to_owned());
    let pages = PAGES.map(|(page, first)| read(page).map(|text| (page, first, text)));
    let pages = pages.into_iter().collect::<Result<Vec<_>>>()?;
    for (column, context) in CONTEXTS.into_iter().enumerate() {
        let needs = needs(program, &folder, context)?;
        for (page, first, text) in &pages {
            for (dense, bytes) in &needs {
                let shown =
                    cell(text, dense, first + column).with_context(|| format!("{page}: --dense {dense}"))?;
                ensure!(
                    shown == gigabytes(*bytes),
                    "{page}: --dense {dense} with a context of {context}: expected {}, as planned, found {shown}",
                    gigabytes(*bytes)
                );
            }
        }
    }
    println!("the tables of memory are as planned");
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// What every storage of dense weights needs with the smallest cache, in bytes.
fn needs(program: &Path, model: &Path, context: u32) -> Result<Vec<(String, u64)>> {
    let mut command = Command::new(program);
    command.args(["doctor", "--no-config", "--no-measure", "--json", "--model"]).arg(model);
    command.env("COLIBRI_CONTEXT", context.to_string()).stdin(Stdio::null());
    let shown = show(&command);
    // A model that this machine has no room for is a problem to it, and none here.
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("`{shown}`: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let packings = answer["packings"].as_array().filter(|packings| !packings.is_empty());
    let packings = packings.with_context(|| format!("`{shown}`: expected /packings, found {answer}"))?;
    let need =
        |packing: &Value| Some((packing["dense"].as_str()?.to_owned(), packing["needed_bytes"].as_u64()?));
    let needs: Option<Vec<_>> = packings.iter().map(need).collect();
    needs.with_context(|| {
        format!("`{shown}`: expected dense and needed_bytes in /packings, found {packings:?}")
    })
}

/// A cell of the table's row for this storage; columns count from 0.
fn cell<'t>(page: &'t str, dense: &str, column: usize) -> Result<&'t str> {
    let table = page.lines().skip_while(|line| !line.starts_with(&format!("| {HEADING} |")));
    let mut rows = table.take_while(|line| line.starts_with('|'));
    let row = rows
        .find(|line| line.starts_with(&format!("| `{dense}`")))
        .context("no such row in the table of memory")?;
    row.trim_matches('|')
        .split('|')
        .nth(column)
        .map(str::trim)
        .context("too few columns in the table of memory")
}

/// Three digits.
fn gigabytes(bytes: u64) -> String {
    let value = bytes as f64 / 1e9;
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$} GB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_by_row_and_column() {
        let page = "| a | b |\n|---|---|\n| `int8` | 9 |\n\n| `--dense` | 8 | 32 |\n|---|---|---|\n| `int8` (x) | 1.5 GB | 2 |\n";
        assert_eq!(cell(page, "int8", 1).expect("it is there"), "1.5 GB");
        assert_eq!(cell(page, "int8", 2).expect("it is there"), "2");
        assert!(cell(page, "int4", 1).is_err() && cell(page, "int8", 3).is_err());
        assert!(cell("no table", "int8", 1).is_err());
    }

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(
            [34_640_000_000, 99_940_000_000, 112_900_000_000].map(gigabytes),
            ["34.6 GB", "99.9 GB", "113 GB"]
        );
    }

    #[test]
    fn the_pages_have_the_table() {
        let root = project::root().expect("the tree");
        for (page, first) in PAGES {
            let text = fs::read_to_string(root.join(page)).expect("the page");
            for dense in ["int4", "int8", "bf16"] {
                for column in 0..CONTEXTS.len() {
                    let cell = cell(&text, dense, first + column).expect("a cell");
                    assert!(cell.ends_with(" GB"), "{page} {dense}: {cell}");
                }
            }
        }
    }
}
