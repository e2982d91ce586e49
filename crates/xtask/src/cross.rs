//! Type-checks the workspace for systems we cannot run here, from Linux and without rustup's targets.
//!
//! Cargo builds `std` for the target from source, which must be of the compiler's own version. What the machine
//! lacks for that comes from Debian's packages into `target/cross`. Nothing is linked.

use crate::debian::{self, Wanted};
use crate::project;
use crate::steps::{execute, is_installed, output};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// macOS and Windows; the code under `cfg(windows)` is the same for both of its ABIs.
const TARGETS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// rustc makes the import libraries of Windows' GNU ABI with it, even when it only checks.
const DLLTOOL: &str = "x86_64-w64-mingw32-dlltool";

/// Debian's suites in which several Rust versions lie side by side, or the newest.
const RUST_SUITES: [&str; 2] = ["trixie-backports", "sid"];

/// Checks every target, and all crates of each even after a failure, so that one run shows everything.
///
/// # Errors
/// When a tool or the source of `std` cannot be had, or a crate does not type-check or has a warning.
pub(crate) fn run() -> Result<()> {
    let folder = project::target()?.join("cross");
    let library = standard_library(&folder)?;
    let programs = search_path(&folder)?;
    let mut failed = Vec::new();
    for target in TARGETS {
        println!("checking {target}");
        let mut command = check(target, &library)?;
        // A target folder of its own, because RUSTC_BOOTSTRAP makes build scripts decide differently.
        command.env("CARGO_TARGET_DIR", folder.join("build")).env("PATH", &programs);
        if let Err(error) = execute(&mut command) {
            eprintln!("{target}: {error:#}");
            failed.push(target);
        }
    }
    if !failed.is_empty() {
        bail!("the workspace does not type-check without warnings for {}", failed.join(" and "));
    }
    Ok(())
}

/// Cargo, checking the workspace for one target, with `std` from the source in `library`.
fn check(target: &str, library: &Path) -> Result<Command> {
    let mut command = project::cargo()?;
    command
        .args(["check", "--workspace", "--keep-going", "--locked"])
        .args(["-Zbuild-std=std,panic_abort", "--target", target])
        // Clippy sees this system only.
        .args(["-Zwarnings", "--config", "build.warnings='deny'"])
        // -Z options on a stable compiler, for this command only.
        .env("RUSTC_BOOTSTRAP", "1")
        // Cargo's own tests use it to name the source of std. Should it go away: link the source to
        // lib/rustlib/src/rust/library in a copy of the sysroot.
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    Ok(command)
}

/// The folder with the source of `std`, of the same version as the compiler: rustup's component `rust-src`, or
/// Debian's package of that name, brought into `folder`.
///
/// # Errors
/// When neither can be had.
pub(crate) fn standard_library(folder: &Path) -> Result<PathBuf> {
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
        let wanted = Wanted {
            package: "rust-src",
            suites: &RUST_SUITES.map(str::to_owned),
            release: version,
            folder: &format!("usr/src/rustc-{version}/library"),
        };
        debian::bring(&wanted, &library).with_context(|| {
            format!("source of std {version}: `rustup component add rust-src` is the other way to get it")
        })?;
    }
    Ok(library)
}

/// Whether cargo can build std from this folder.
fn is_library(folder: &Path) -> bool {
    folder.join("std/Cargo.toml").is_file() && folder.join("Cargo.lock").is_file()
}

/// The folders of programs (`PATH`), with [`DLLTOOL`] among them: the installed one, or Debian's.
fn search_path(folder: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if is_installed(DLLTOOL) {
        return Ok(path);
    }
    let programs = folder.join("mingw-programs");
    if !programs.join(DLLTOOL).is_file() {
        let bring = || {
            let suites = [debian::own_suite()?];
            let (package, folder) = ("binutils-mingw-w64-x86-64", "usr/bin");
            debian::bring(&Wanted { package, suites: &suites, release: "", folder }, &programs)
        };
        bring().with_context(|| format!("{DLLTOOL}: install it, for the type-check of Windows"))?;
    }
    let folders = std::iter::once(programs).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("PATH with one more folder")
}
