//! Where the project lies and which programs build it. Knows no recipe.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the workspace's Cargo.toml. Cargo names this crate's folder while it runs us; without that
/// the folder is looked for from the current one upwards.
///
/// # Errors
/// When no folder on the way up holds both `Cargo.toml` and `crates/xtask`.
pub(crate) fn root() -> Result<PathBuf> {
    let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::current_dir().context("the current folder cannot be named")?,
    };
    let is_root =
        |folder: &&Path| folder.join("Cargo.toml").is_file() && folder.join("crates/xtask").is_dir();
    match start.ancestors().find(is_root) {
        Some(root) => Ok(root.to_path_buf()),
        None => bail!("no workspace above {}: run `cargo xtask` inside the project", start.display()),
    }
}

/// The folder for whatever recipes make: `target`, or where `CARGO_TARGET_DIR` points.
///
/// # Errors
/// As [`root`].
pub(crate) fn target() -> Result<PathBuf> {
    let root = root()?;
    Ok(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder)))
}

/// Cargo, the one that runs us, started in the project's root.
///
/// # Errors
/// As [`root`].
pub(crate) fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()?);
    // Build scripts and tests would see our own package's variables as theirs otherwise.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    without_settings(&mut command);
    Ok(command)
}

/// Keeps a developer's own settings of the program out of what is started here. Variables of the tests stay.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours = |name: &str| name.starts_with("COLIBRI_") && !name.starts_with("COLIBRI_TEST_");
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    command.env("COLIBRI_NO_CONFIG", "1");
}

/// The files that git tracks and that are still there, relative to the root, `/` between folders.
///
/// # Errors
/// When git is missing or the root is no git checkout.
pub(crate) fn tracked_files() -> Result<Vec<String>> {
    let root = root()?;
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output().context(
            "git could not be started: tidy asks it which files belong to the project; install git",
        )?;
    if !output.status.success() {
        bail!(
            "git ls-files failed in {}: {}",
            root.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let names =
        String::from_utf8(output.stdout).context("git ls-files: a file name is not UTF-8: rename it")?;
    Ok(names.split_terminator('\0').filter(|name| root.join(name).is_file()).map(str::to_owned).collect())
}
