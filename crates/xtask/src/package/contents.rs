//! What is in a release besides the licences of others: the program, the pages for its users, and where the embedded
//! model comes from. Knows files of the tree and commands of the program, no format of an archive.

use super::archive::Entry;
use super::{PROGRAM, Release, licences};
use crate::project;
use crate::steps::output;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files that are taken as they are: what every archive has, and the record of how the embedded model was made.
const FILES: [&str; 5] = ["README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "data/k3-tiny/README.md"];
/// Shells with completions, and what each calls such a file.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "colibri.bash"),
    ("elvish", "colibri.elv"),
    ("fish", "colibri.fish"),
    ("powershell", "_colibri.ps1"),
    ("zsh", "_colibri"),
];
/// The folder with the pages for users; its folders are for maintainers.
const PAGES: &str = "docs";

/// Every file of the archive.
///
/// # Errors
/// When one is missing, or a page has a link to a file that is not among them.
pub(crate) fn collect(release: &Release, program: &Path) -> Result<Vec<Entry>> {
    let read = |path: &str| fs::read(release.root.join(path)).with_context(|| path.to_owned());
    let name = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let content = fs::read(program).with_context(|| program.display().to_string())?;
    let mut entries = vec![
        Entry { executable: true, ..Entry::new(name, content) },
        Entry::new("THIRD-PARTY-LICENSES.txt", licences::third_parties(release)?),
        Entry::new("RUST-STANDARD-LIBRARY.html", licences::standard_library()?),
    ];
    for path in FILES {
        entries.push(Entry::new(path, read(path)?));
    }
    let tracked = project::tracked_files()?;
    let pages = tracked.iter().filter(|path| is_page(path));
    for path in pages {
        entries.push(Entry::new(path.as_str(), read(path)?));
    }
    entries.extend(manual_pages(program)?);
    for (shell, name) in COMPLETIONS {
        let script = output(Command::new(program).args(["completions", shell]))?;
        ensure!(!script.trim().is_empty(), "`colibri completions {shell}` printed nothing");
        entries.push(Entry::new(format!("completions/{name}"), script));
    }
    check_links(&entries)?;
    Ok(entries)
}

/// The manual pages that the program writes of itself, one for each of its commands and one for the whole.
fn manual_pages(program: &Path) -> Result<Vec<Entry>> {
    let folder = tempfile::tempdir().context("a folder for the manual pages")?;
    output(Command::new(program).args(["man", "--out"]).arg(folder.path()))?;
    let mut pages = Vec::new();
    for page in fs::read_dir(folder.path()).context("the manual pages")? {
        let page = page.context("the manual pages")?;
        let name = page.file_name().to_string_lossy().into_owned();
        let content = fs::read(page.path()).with_context(|| name.clone())?;
        ensure!(!content.is_empty(), "{name}: `colibri man --out` wrote an empty page");
        pages.push(Entry::new(format!("man/{name}"), content));
    }
    ensure!(pages.len() > 1, "`colibri man --out` wrote {} pages: expected one a command", pages.len());
    Ok(pages)
}

/// Whether a tracked file is a page for users.
fn is_page(path: &str) -> bool {
    let page = path.strip_prefix(PAGES).and_then(|rest| rest.strip_prefix('/'));
    page.is_some_and(|page| is_markdown(page) && !page.contains('/'))
}

fn is_markdown(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "md")
}

/// Fails when a page links to a file that is not in the archive, so that a reader never meets a dead end.
fn check_links(entries: &[Entry]) -> Result<()> {
    let paths: BTreeSet<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    for entry in entries.iter().filter(|entry| is_markdown(&entry.path)) {
        let page = str::from_utf8(&entry.content).with_context(|| entry.path.clone())?;
        let folder = entry.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in links(page) {
            let target = join(folder, link).with_context(|| format!("{}: link to {link}", entry.path))?;
            if !paths.contains(target.as_str()) {
                bail!(
                    "{}: it links to {link}, which is not in the archive: name the file without a link",
                    entry.path
                );
            }
        }
    }
    Ok(())
}

/// The files that a page links to, `[text](file#place)`; addresses of the web and places of the page itself aside.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|file| !file.is_empty())
}

/// A link in a page of this folder, from the archive's own folder.
fn join(folder: &str, link: &str) -> Result<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            ".." => ensure!(parts.pop().is_some(), "it leaves the archive"),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_for_users_lie_in_the_folder_itself() {
        assert!(is_page("docs/chat.md"));
        assert!(
            !is_page("docs/maintainers/testing.md") && !is_page("docs/figure.svg") && !is_page("README.md")
        );
    }

    #[test]
    fn links_to_files_are_followed_from_their_page() {
        let page = "[a](b.md#place) [c](https://x.example/y) [here](#place) [d](../LICENSE)";
        assert_eq!(links(page).collect::<Vec<_>>(), ["b.md", "../LICENSE"]);
        let entries = |page: &str| {
            [Entry::new("docs/a.md", page), Entry::new("docs/b.md", ""), Entry::new("LICENSE", "")]
        };
        assert!(check_links(&entries(page)).is_ok());
        for (page, expected) in
            [("[x](e.md)", "links to e.md, which is not in the"), ("[x](../../y)", "link to ../../y")]
        {
            let error = check_links(&entries(page)).expect_err("a dead end").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
