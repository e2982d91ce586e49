//! What tests of the documents share: fenced blocks with where they stand. Tests of several crates include this file by its
//! path: a crate for it would be more to carry.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of a page.
pub(crate) struct Block {
    /// The page, from the project's folder.
    pub(crate) page: String,
    /// Its first line, counted from 1.
    pub(crate) line: usize,
    /// The word behind the fence: `sh` for commands that a reader types.
    pub(crate) language: String,
    /// Its lines.
    pub(crate) text: String,
}

/// The project's folder, from that of a crate.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All blocks of the README and of the pages directly in `docs`, which are those for users.
pub(crate) fn blocks() -> Vec<Block> {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).expect("the folder docs") {
        let name = entry.expect("an entry of docs").file_name().into_string().expect("a name in UTF-8");
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort_unstable();
    let blocks = pages.iter().flat_map(|page| {
        let text = fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        blocks_of(page, &text)
    });
    blocks.collect()
}

fn blocks_of(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(""), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block {
                    page: page.to_owned(),
                    line: number + 2,
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (_, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: its last block is not closed");
    blocks
}
