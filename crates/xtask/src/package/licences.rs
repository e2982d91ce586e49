//! The licences of everything that is linked into the program for one target, word for word: from the sources of the
//! crates, as Cargo resolved them, and of Rust's standard library. Which licences are allowed is the business of
//! `deny.toml`.

use super::Release;
use crate::project;
use crate::steps::output;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

/// How files with the words of a licence begin, in small letters.
const FILES: [&str; 5] = ["licen", "unlicen", "copying", "copyright", "notice"];

/// Crates whose packages lack the words: name, licence, reason why the standard's words stand in for them.
const WITHOUT_WORDS: [(&str, &str, &str); 1] = [(
    "tiktoken-rs",
    "MIT",
    "its package leaves the file out, but its Cargo.toml names the licence and the authors",
)];

/// The words of the MIT licence behind its line of copyright.
const MIT: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the \"Software\"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
";

/// The list of crates with their licences, then each text once, with the crates that it is for.
///
/// # Errors
/// When a crate has no words and no entry in [`WITHOUT_WORDS`], or an entry is not needed any more.
pub(crate) fn third_parties(release: &Release) -> Result<String> {
    let linked = linked(release)?;
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without: BTreeSet<&str> = WITHOUT_WORDS.iter().map(|(name, ..)| *name).collect();
    for package in linked {
        let (name, version) = (text(package, "name")?, text(package, "version")?);
        let licence = text(package, "license").with_context(|| format!("{name} {version}"))?;
        writeln!(list, "{name} {version}: {licence}")?;
        let mut words = words(package).with_context(|| format!("{name} {version}"))?;
        if words.is_empty() {
            ensure!(
                without.remove(name),
                "{name} {version} has no file with its licence: look for it at its origin, then add an entry with the \
                 reason to WITHOUT_WORDS in crates/xtask/src/package/licences.rs"
            );
            words.push(substitute(package)?);
        }
        for words in words {
            texts.entry(words).or_default().push(format!("{name} {version}"));
        }
    }
    if let Some(name) = without.first() {
        bail!("{name} is not linked any more or has its words now: remove it from WITHOUT_WORDS");
    }
    let mut page = format!(
        "The program colibri is linked with the crates below. Each is used under one of the licences that it offers;\n\
         their texts follow. Rust's standard library is in RUST-STANDARD-LIBRARY.html.\n\n{list}"
    );
    for (words, packages) in texts {
        let line = "=".repeat(78);
        write!(page, "\n{line}\n{}\n{line}\n\n{words}", packages.join(", "))?;
    }
    Ok(page)
}

/// What Rust itself says about its standard library, which is part of every program.
///
/// # Errors
/// When the toolchain came without it.
pub(crate) fn standard_library() -> Result<Vec<u8>> {
    let root = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let path = Path::new(root.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    fs::read(&path).with_context(|| {
        format!(
            "{}: expected the notices of Rust's standard library: use a toolchain of rustup",
            path.display()
        )
    })
}

/// The crates of others that are linked, by name and version.
fn linked(release: &Release) -> Result<Vec<&Value>> {
    let arguments =
        ["tree", "--locked", "--package", super::PROGRAM, "--edges", "normal", "--prefix", "none"];
    let tree =
        output(project::cargo()?.args(arguments).args(["--target", &release.target, "--format", "{p}"]))?;
    let lines: BTreeSet<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
    let mut packages = Vec::new();
    for (name, version) in lines {
        let found: Vec<&Value> = release
            .packages
            .iter()
            .filter(|package| package["name"] == name && package["version"] == version)
            .collect();
        let [package] = found[..] else {
            bail!("cargo tree names {name} {version}: expected one such package, found {}", found.len());
        };
        // Our own crates have no source but the tree.
        if !package["source"].is_null() {
            packages.push(package);
        }
    }
    ensure!(!packages.is_empty(), "cargo tree named no crate that is linked");
    Ok(packages)
}

/// Of a line such as `serde v1.0.0 (proc-macro)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn text<'p>(package: &'p Value, key: &str) -> Result<&'p str> {
    package[key].as_str().with_context(|| format!("its Cargo.toml does not say its {key}"))
}

/// All texts of a package's licence, in the order of the files' names. Spaces at the ends of lines do not count.
fn words(package: &Value) -> Result<Vec<String>> {
    let folder = Path::new(text(package, "manifest_path")?).parent().context("its folder")?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry.with_context(|| folder.display().to_string())?.file_name();
        let name = name.to_string_lossy().into_owned();
        if FILES.iter().any(|start| name.to_lowercase().starts_with(start)) && folder.join(&name).is_file() {
            names.insert(name);
        }
    }
    names.extend(package["license_file"].as_str().map(str::to_owned));
    let read = |name: &String| {
        let path = folder.join(name);
        let words = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let lines = words.trim().lines().map(|line| format!("{}\n", line.trim_end()));
        Ok(lines.collect::<String>())
    };
    names.iter().map(read).filter(|words| !words.as_ref().is_ok_and(String::is_empty)).collect()
}

/// The standard's words with the authors that Cargo.toml names, for an entry of [`WITHOUT_WORDS`].
fn substitute(package: &Value) -> Result<String> {
    let (name, licence) = (text(package, "name")?, text(package, "license")?);
    let entry = WITHOUT_WORDS.iter().find(|(entry, ..)| *entry == name);
    let (_, expected, reason) = entry.with_context(|| format!("{name} is not in WITHOUT_WORDS"))?;
    ensure!(
        licence == *expected,
        "{name}: expected the licence {expected} of WITHOUT_WORDS, found {licence}"
    );
    let authors: Vec<&str> = package["authors"]
        .as_array()
        .into_iter()
        .flatten()
        // `Name <address>`
        .filter_map(|author| author.as_str()?.split('<').next().map(str::trim))
        .collect();
    ensure!(!authors.is_empty(), "{name}: its Cargo.toml names no authors, whom the licence must name");
    Ok(format!("({reason}.)\n\nMIT License\n\nCopyright (c) {}\n\n{MIT}", authors.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_crate_has_its_words_once() {
        let release = Release::of_this_tree().expect("the tree is a checkout");
        let page = third_parties(&release).expect("all licences are there");
        for line in ["serde_json 1.", "clap 4.", "tiktoken-rs 0.", "memmap2 0."] {
            assert!(page.lines().any(|found| found.starts_with(line) && found.contains(": ")), "{line}");
        }
        assert!(!page.contains("xtask") && !page.contains("zip 9"), "a crate that is not linked");
        assert!(page.matches("Permission is hereby granted").count() > 10);
        let (texts, crates) = (page.matches(&"=".repeat(78)).count() / 2, page.matches(": ").count());
        assert!(texts < crates, "{texts} texts for {crates} crates: equal texts stand together");
    }

    #[test]
    fn the_standard_library_has_notices() {
        let page = String::from_utf8(standard_library().expect("rustup has it")).expect("text");
        assert!(page.contains("Rust Standard Library"));
    }

    #[test]
    fn words_are_found_by_their_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str, words: &str| fs::write(folder.path().join(name), words).expect("a file");
        let package =
            json!({ "manifest_path": folder.path().join("Cargo.toml"), "license_file": "legal.md" });
        file("Cargo.toml", "");
        file("legal.md", "three");
        file("License-MIT", "\none  \r\ntwo");
        file("NOTICE", " \n");
        assert_eq!(words(&package).expect("they are read"), ["one\ntwo\n", "three\n"]);
        fs::remove_file(folder.path().join("legal.md")).expect("it was there");
        let error = format!("{:#}", words(&package).expect_err("a named file is absent"));
        assert!(error.contains("legal.md"), "{error}");
    }

    #[test]
    fn a_substitute_needs_licence_and_authors() {
        let package = |licence: &str, authors: &[&str]| {
            substitute(&json!({ "name": "tiktoken-rs", "license": licence, "authors": authors }))
        };
        let words = package("MIT", &["Ann <a@x.example>", "Bob"]).expect("both are there");
        assert!(words.contains("Copyright (c) Ann, Bob\n\nPermission is"), "{words}");
        let error = |found: Result<String>| found.expect_err("not enough").to_string();
        assert!(error(package("ISC", &["Ann"])).contains("expected the licence MIT"));
        assert!(error(package("MIT", &[])).contains("names no authors"));
    }

    #[test]
    fn lines_of_the_tree_are_read() {
        assert_eq!(
            name_and_version("serde_derive v1.0.229 (proc-macro) (*)"),
            Some(("serde_derive", "1.0.229"))
        );
        assert_eq!(name_and_version(""), None);
    }
}
