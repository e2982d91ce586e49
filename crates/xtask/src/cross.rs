//! Type-checks the workspace for systems we cannot run here, from Linux and without rustup's targets.
//!
//! Cargo builds `std` for the target from source. The source must be of the compiler's own version: rustup's
//! `rust-src` where it is installed, else Debian's package of that name, unpacked below `target/cross`; apt
//! keeps its lists there too and the system is not changed. Nothing is linked.

use crate::project;
use crate::steps::{execute, show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Windows stands here with the MSVC ABI because rustc makes its import libraries by itself; for the GNU ABI it
/// calls `dlltool` even for a check. The code under `cfg(windows)` is the same.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// Debian's suites in which several Rust versions lie side by side, or the newest.
const SUITES: [&str; 2] = ["trixie-backports", "sid"];

/// Debian's own place for its archive keys.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Checks every target, and all crates of each even after a failure, so that one run shows everything.
///
/// # Errors
/// When the source of `std` cannot be had, or a crate does not type-check.
pub(crate) fn run() -> Result<()> {
    let folder = project::target()?.join("cross");
    let library = standard_library(&folder)?;
    let mut failed = Vec::new();
    for target in TARGETS {
        println!("checking {target}");
        if let Err(error) = check(target, &library, &folder.join("build")) {
            eprintln!("{target}: {error:#}");
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("the workspace does not type-check for {}", failed.join(" and "));
    }
    Ok(())
}

/// Checks the workspace for one target, with `std` from the source in `library`.
fn check(target: &str, library: &Path, build: &Path) -> Result<()> {
    let mut command = project::cargo()?;
    command
        .args([
            "check",
            "--workspace",
            "--keep-going",
            "--locked",
            "-Zbuild-std=std,panic_abort",
            "--target",
            target,
        ])
        // -Z options on a stable compiler, for this command only.
        .env("RUSTC_BOOTSTRAP", "1")
        // Cargo's own tests use it to name the source of std. Should it go away: link the source to
        // lib/rustlib/src/rust/library in a copy of the sysroot.
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", library)
        // Another folder, because RUSTC_BOOTSTRAP makes build scripts decide differently.
        .env("CARGO_TARGET_DIR", build);
    execute(&mut command)
}

/// The folder with the source of `std`, of the same version as the compiler.
fn standard_library(folder: &Path) -> Result<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if is_library(&installed) {
        return Ok(installed);
    }
    let verbose = output(Command::new("rustc").arg("-vV"))?;
    let version = verbose
        .lines()
        .find_map(|line| line.strip_prefix("release: "))
        .context("`rustc -vV` prints no line `release: VERSION`: is `rustc` the Rust compiler?")?;
    let library = folder.join(format!("library-{version}"));
    if !is_library(&library) {
        download(folder, version, &library).with_context(|| {
            format!("source of std {version}: `rustup component add rust-src` is the other way to get it")
        })?;
    }
    Ok(library)
}

/// Whether cargo can build std from this folder.
fn is_library(folder: &Path) -> bool {
    folder.join("std/Cargo.toml").is_file() && folder.join("Cargo.lock").is_file()
}

/// Brings Debian's `rust-src` of this version and leaves its `library` folder at `library`.
fn download(folder: &Path, version: &str, library: &Path) -> Result<()> {
    let work = folder.join("apt");
    fs::create_dir_all(work.join("lists/partial"))?;
    fs::create_dir_all(work.join("cache/archives/partial"))?;
    let configured = apt_sources()?;
    let mirror = debian_mirror(&configured)
        .context("no Debian archive in /etc/apt: only a Debian system with apt sources can bring rust-src")?;
    let sources =
        SUITES.map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main")).join("\n") + "\n";
    fs::write(work.join("sources.list"), sources)?;
    execute(apt("apt-get", &work).arg("update"))?;
    let offered = output(apt("apt-cache", &work).args(["madison", "rust-src"]))?;
    let package = matching_version(&offered, version)
        .with_context(|| format!("Debian's {SUITES:?} offer no rust-src {version}-*, but:\n{offered}"))?;
    execute(apt("apt-get", &work).args(["download", &format!("rust-src={package}")]).current_dir(&work))?;
    let archive = fs::read_dir(&work)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("`apt-get download` left no .deb in {}", work.display()))?;
    let unpacked = work.join("unpacked");
    execute(Command::new("dpkg-deb").arg("--extract").args([&archive, &unpacked]))?;
    let source = unpacked.join(format!("usr/src/rustc-{version}/library"));
    if !is_library(&source) {
        bail!("rust-src {package}: expected usr/src/rustc-{version}/library/std/Cargo.toml, found none");
    }
    // The move comes last, so that a folder of this name is always complete.
    fs::rename(&source, library)?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))
}

/// An apt program that keeps its lists, its cache and its one source in `work`.
fn apt(program: &str, work: &Path) -> Command {
    let mut command = Command::new(program);
    let folder = work.display();
    for option in [
        format!("Dir::Etc::SourceList={folder}/sources.list"),
        "Dir::Etc::SourceParts=/dev/null".to_owned(),
        format!("Dir::State::Lists={folder}/lists"),
        format!("Dir::Cache={folder}/cache"),
        "Acquire::Languages=none".to_owned(),
        "APT::Sandbox::User=".to_owned(), // the user `_apt` may not enter our folder
    ] {
        command.args(["-o", &option]);
    }
    command
}

/// All of apt's source files as one text.
fn apt_sources() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    }
    let is_source = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "list" || kind == "sources");
    let mut text = String::new();
    for file in files.iter().filter(|path| is_source(path) && path.is_file()) {
        text += &fs::read_to_string(file).with_context(|| file.display().to_string())?;
        text.push('\n');
    }
    Ok(text)
}

/// The first archive in the sources whose path ends in `/debian`: the main archive, which has every suite.
fn debian_mirror(sources: &str) -> Option<&str> {
    let lines = sources.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian"))
}

/// From `apt-cache madison` (`name | version | source`): the version that packages this release of Rust.
fn matching_version<'a>(offered: &'a str, release: &str) -> Option<&'a str> {
    offered
        .lines()
        .filter_map(|line| line.split('|').nth(1).map(str::trim))
        .find(|version| version.strip_prefix(release).is_some_and(|rest| rest.starts_with(['+', '-'])))
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_either_form_of_sources() {
        let deb822 =
            "Types: deb\n# URIs: http://old.example/debian\nURIs: http://mirror.example/debian/\nSuites: x\n";
        assert_eq!(debian_mirror(deb822), Some("http://mirror.example/debian/"));
        let lines =
            "deb http://s.example/debian-security x main\ndeb [arch=amd64] https://m.example/debian x main\n";
        assert_eq!(debian_mirror(lines), Some("https://m.example/debian"));
        assert_eq!(debian_mirror("deb http://archive.example/ubuntu noble main\n"), None);
    }

    #[test]
    fn only_the_compilers_own_release_matches() {
        let offered = " rust-src | 1.95.10-1 | m\n rust-src | 1.96.1+dfsg1-2 | m\n rust-src | 1.95.1+dfsg1-2~bpo13+1 | m\n";
        assert_eq!(matching_version(offered, "1.95.1"), Some("1.95.1+dfsg1-2~bpo13+1"));
        assert_eq!(matching_version(offered, "1.95.10"), Some("1.95.10-1"));
        assert_eq!(matching_version(offered, "1.95.0"), None);
    }
}
