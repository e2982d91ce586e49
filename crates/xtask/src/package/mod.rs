//! `cargo xtask package`: the release archive of the system it runs on, its checksum beside it, and a smoke test of both.
//! Knows how the program is built for others and in which order the parts are made; what goes in is the business of
//! `contents` and `licences`, the format that of `archive`.

mod archive;
mod contents;
mod licences;
mod smoke;

use crate::project;
use crate::steps::{execute, output};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The profile in Cargo.toml that a release is built with.
const PROFILE: &str = "dist";
/// What Cargo calls the program.
const PROGRAM: &str = "colibri";

/// Builds, packs, writes and tests the archive.
///
/// # Errors
/// When a part is missing, two packings of one tree differ, or the archive does not do what a user needs.
pub(crate) fn run() -> Result<()> {
    let release = Release::of_this_tree()?;
    let program = build(&release)?;
    let content = release.content(&program)?;
    ensure!(
        content == release.content(&program)?,
        "two packings of one tree differ: something depends on the time"
    );
    let folder = project::target()?.join("archive");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let write = |name: &str, content: &[u8]| {
        fs::write(folder.join(name), content).with_context(|| folder.join(name).display().to_string())
    };
    let file = release.file();
    write(&file, &content)?;
    write(smoke::SUMS, format!("{}  {file}\n", checksum(&content)).as_bytes())?;
    println!("{}: {:.1} MB", folder.join(&file).display(), content.len() as f64 / 1e6);
    smoke::test(&release, &folder)
}

/// SHA-256 in hexadecimal.
fn checksum(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |sum, byte| format!("{sum}{byte:02x}"))
}

/// What is released.
struct Release {
    root: PathBuf,
    version: String,
    /// The triple of this machine.
    target: String,
    /// When the tree was committed, in seconds since 1970: the time of every file in the archive.
    time: u64,
    /// All packages for the target as `cargo metadata` lists them.
    packages: Vec<Value>,
}

impl Release {
    fn of_this_tree() -> Result<Release> {
        let root = project::root()?;
        let target = output(Command::new("rustc").args(["--print", "host-tuple"]))?.trim().to_owned();
        let arguments = ["metadata", "--format-version", "1", "--locked", "--filter-platform", &target];
        let metadata = output(project::cargo()?.args(arguments))?;
        let mut metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
        let Value::Array(packages) = metadata["packages"].take() else {
            bail!("cargo metadata: expected a list of packages");
        };
        let ours = packages.iter().find(|package| package["name"] == PROGRAM && package["source"].is_null());
        let version = ours.and_then(|package| package["version"].as_str());
        let version =
            version.with_context(|| format!("cargo metadata: package {PROGRAM} is not listed"))?.to_owned();
        let time = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&root))?;
        let time = time.trim().parse().with_context(|| format!("git log: expected a time, found {time}"))?;
        Ok(Release { root, version, target, time, packages })
    }

    /// The folder in the archive.
    fn name(&self) -> String {
        format!("{PROGRAM}-{}-{}", self.version, self.target)
    }

    /// The archive's name.
    fn file(&self) -> String {
        format!("{}.{}", self.name(), self.format().extension())
    }

    fn format(&self) -> archive::Format {
        if self.target.contains("windows") { archive::Format::Zip } else { archive::Format::TarGz }
    }

    /// The archive's bytes.
    fn content(&self, program: &Path) -> Result<Vec<u8>> {
        let entries = contents::collect(self, program)?;
        archive::pack(self.format(), &self.name(), entries, self.time)
    }

    /// Folders of this machine that the program must not name: the tree, and where crates of the registry lie.
    fn folders(&self) -> Vec<(String, &'static str)> {
        let manifests = self.packages.iter().filter(|package| !package["source"].is_null());
        let manifests = manifests.filter_map(|package| package["manifest_path"].as_str());
        let mut folders: Vec<_> = manifests
            .filter_map(|manifest| Path::new(manifest).parent()?.parent()?.to_str())
            .map(|folder| (folder.to_owned(), "crates"))
            .collect();
        folders.sort_unstable();
        folders.dedup();
        folders.push((self.root.display().to_string(), PROGRAM));
        folders
    }
}

/// Builds the program as it is handed on: optimised as a whole, without symbols, naming no folder of this machine.
fn build(release: &Release) -> Result<PathBuf> {
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        ensure!(
            std::env::var_os(variable).is_none(),
            "{variable} is set: unset it, a release is built with the flags of this recipe alone"
        );
    }
    let folders = release.folders();
    let flags: Vec<String> =
        folders.iter().map(|(folder, name)| format!("--remap-path-prefix={folder}={name}")).collect();
    let mut command = project::cargo()?;
    command.args(["build", "--package", PROGRAM, "--profile", PROFILE, "--locked"]);
    // Cargo's separator between flags, so that folders may have spaces.
    execute(command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")))?;
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    let program = project::target()?.join(PROFILE).join(file);
    let content = fs::read(&program).with_context(|| program.display().to_string())?;
    match folders.iter().find(|(folder, _)| names(&content, folder)) {
        Some((folder, _)) => bail!("{} names {folder}, a folder of this machine", program.display()),
        None => Ok(program),
    }
}

/// Whether bytes contain a text.
fn names(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_sha_256() {
        // The standard's own example.
        assert_eq!(checksum(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_release_is_named_by_version_and_target() {
        let release = Release::of_this_tree().expect("the tree is a checkout");
        assert_eq!(release.version, env!("CARGO_PKG_VERSION"));
        assert!(release.name().starts_with(&format!("colibri-{}-", release.version)), "{}", release.name());
        assert!(release.time > 1_700_000_000, "{}", release.time);
        let windows = Release { target: "x86_64-pc-windows-msvc".to_owned(), ..release };
        assert!(windows.file().ends_with("-x86_64-pc-windows-msvc.zip"), "{}", windows.file());
        let linux = Release { target: "x86_64-unknown-linux-gnu".to_owned(), ..windows };
        assert!(linux.file().ends_with("-x86_64-unknown-linux-gnu.tar.gz"), "{}", linux.file());
    }

    #[test]
    fn folders_of_the_machine_are_found_in_a_program() {
        let release = Release::of_this_tree().expect("the tree is a checkout");
        let folders = release.folders();
        assert!(
            folders.len() >= 2 && folders.iter().all(|(folder, _)| Path::new(folder).is_dir()),
            "{folders:?}"
        );
        assert!(names(b"xx/a/b/c.rs", "/a/b") && !names(b"xx/a/c", "/a/b"));
    }
}
