//! Rules about files as such: length, size, and paths that exist on one machine only.

use super::{FILE_BYTES_MAX, FILE_LINES_MAX, File, Finding, TREE_BYTES_MAX};

/// Folders of machines and people, not of the project. In pieces, so that this file passes its own rule.
const MACHINE_FOLDERS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

/// What people write has at most [`FILE_LINES_MAX`] lines a file. Data, the licence and the lock file are not.
pub(crate) fn too_long(files: &[File]) -> Vec<Finding> {
    let is_written = |file: &&File| {
        !file.path.starts_with("data/")
            && !matches!(file.path.as_str(), "Cargo.lock" | "LICENSE" | "CHANGELOG.md")
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(is_written) {
        let lines = file.text.as_deref().map_or(0, |text| text.lines().count());
        if lines > FILE_LINES_MAX {
            let message = format!("{lines} lines, the limit is {FILE_LINES_MAX}: divide the file");
            findings.push(Finding::new(file, FILE_LINES_MAX + 1, message));
        }
    }
    findings
}

/// A clone stays small: [`FILE_BYTES_MAX`] a file outside `data/`, [`TREE_BYTES_MAX`] together.
pub(crate) fn too_large(files: &[File]) -> Vec<Finding> {
    let is_large = |file: &&File| !file.path.starts_with("data/") && file.bytes > FILE_BYTES_MAX;
    let message = |file: &File| format!("{} bytes, the limit outside data/ is {FILE_BYTES_MAX}", file.bytes);
    let mut findings: Vec<Finding> =
        files.iter().filter(is_large).map(|file| Finding::new(file, 1, message(file))).collect();
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if total > TREE_BYTES_MAX
        && let Some(largest) = files.iter().max_by_key(|file| file.bytes)
    {
        let message = format!(
            "all tracked files have {total} bytes, the limit is {TREE_BYTES_MAX}; this one is the largest"
        );
        findings.push(Finding::new(largest, 1, message));
    }
    findings
}

/// No text names a folder of somebody's machine.
pub(crate) fn absolute_paths(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (index, line) in file.text.as_deref().unwrap_or_default().lines().enumerate() {
            for folder in MACHINE_FOLDERS {
                if line.match_indices(folder).any(|(start, _)| begins_a_path(&line[..start])) {
                    let message =
                        format!("a path below {folder} exists on one machine only: use a relative one");
                    findings.push(Finding::new(file, index + 1, message));
                }
            }
        }
    }
    findings
}

/// Whether a slash behind this text begins a path rather than continuing one (`crates/work/`, `https://x/home/`).
fn begins_a_path(before: &str) -> bool {
    !before.ends_with(|letter: char| {
        letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/' | '}' | '*')
    })
}

#[cfg(test)]
mod tests {
    use super::super::{sample, shown};
    use super::*;

    #[test]
    fn long_files_are_found_except_data() {
        let text = "x\n".repeat(FILE_LINES_MAX + 1);
        let files = sample(&[("docs/a.md", &text), ("data/a.json", &text), ("b.md", &text[2..])]);
        assert_eq!(shown(&too_long(&files)), ["docs/a.md:601: 601 lines, the limit is 600: divide the file"]);
    }

    #[test]
    fn large_files_and_a_large_tree_are_found() {
        let file = |path: &str, bytes| File { path: path.to_owned(), bytes, text: None, source: None };
        let files = [file("data/a", 39_000_000), file("docs/b", 1_000_001)];
        let findings = shown(&too_large(&files));
        assert_eq!(findings.len(), 2);
        assert!(findings[0].starts_with("docs/b:1: 1000001 bytes"), "{findings:?}");
        assert!(findings[1].starts_with("data/a:1: all tracked files have 40000001 bytes"), "{findings:?}");
        assert_eq!(too_large(&files[..1]), []);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let text = format!(
            "see {}\nhttps://x.example{}\n`{}`\n",
            MACHINE_FOLDERS[0], MACHINE_FOLDERS[0], MACHINE_FOLDERS[2]
        );
        let lines: Vec<usize> =
            absolute_paths(&sample(&[("a.md", &text)])).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
