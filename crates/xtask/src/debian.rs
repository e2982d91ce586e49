//! Folders and trees out of Debian's packages, for recipes that need a tool or a source and may not change the system: apt
//! keeps its lists, its cache and its one source below `target`. Knows no recipe.

use crate::project;
use crate::steps::{execute, output};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's own place for its archive keys.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A folder of a package.
pub(crate) struct Wanted<'a> {
    /// The package's name.
    pub(crate) package: &'a str,
    /// The suites that are searched, such as `sid`.
    pub(crate) suites: &'a [String],
    /// The beginning that the version must have, up to a `+` or a `-`; empty for any version.
    pub(crate) release: &'a str,
    /// The folder's path inside the package.
    pub(crate) folder: &'a str,
}

/// The name of the suite that this machine runs, whose programs run here too.
///
/// # Errors
/// When the machine does not say.
pub(crate) fn own_suite() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.context("/etc/os-release: expected VERSION_CODENAME, as on Debian; found none")?;
    Ok(name.trim_matches('"').to_owned())
}

/// Downloads the package and leaves its folder at `to`, which is always complete.
///
/// # Errors
/// When this is no Debian system, the archive cannot be reached, or no version or folder is as wanted.
pub(crate) fn bring(wanted: &Wanted<'_>, to: &Path) -> Result<()> {
    let work = work_folder()?;
    let archive = download(wanted, &work)?;
    let unpacked = work.join("unpacked");
    execute(Command::new("dpkg-deb").arg("--extract").args([&archive, &unpacked]))?;
    let folder = unpacked.join(wanted.folder);
    if !folder.is_dir() {
        bail!("package {}: expected the folder {} in it, found none", archive.display(), wanted.folder);
    }
    deliver(&folder, to, &work)
}

/// Downloads packages and all that they need and this machine lacks, and leaves them at `to` as one tree, which is
/// always complete. The suite is the machine's own, so that the programs run with the libraries that are installed.
///
/// # Errors
/// When this is no Debian system, the archive cannot be reached, or a package is not there.
pub(crate) fn bring_with_needs(packages: &[&str], to: &Path) -> Result<()> {
    let work = work_folder()?;
    ask_archive(&packages.join(" "), &[own_suite()?], &work)?;
    let choices = ["install", "--download-only", "--no-install-recommends", "--yes", "--reinstall"];
    // Nothing is installed, so nobody else need be kept from installing.
    execute(apt("apt-get", &work).args(["-o", "Debug::NoLocking=true"]).args(choices).args(packages))?;
    let unpacked = work.join("unpacked");
    for archive in archives(&work.join("cache/archives"))? {
        execute(Command::new("dpkg-deb").arg("--extract").args([&archive, &unpacked]))?;
    }
    deliver(&unpacked, to, &work)
}

/// An empty folder for apt.
fn work_folder() -> Result<PathBuf> {
    let work = project::target()?.join("apt");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(work.join("lists/partial"))?;
    fs::create_dir_all(work.join("cache/archives/partial"))?;
    Ok(work)
}

/// Moves a folder out of `work` to its place, and ends the work.
fn deliver(folder: &Path, to: &Path, work: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    // The move comes last, so that a folder of this name is whole even if this program was ended.
    fs::rename(folder, to).with_context(|| to.display().to_string())?;
    fs::remove_dir_all(work).with_context(|| work.display().to_string())
}

/// Fetches the lists of some suites.
fn ask_archive(package: &str, suites: &[String], work: &Path) -> Result<()> {
    let configured = apt_sources()?;
    let mirror = debian_mirror(&configured)
        .with_context(|| format!("no Debian archive in /etc/apt: it is asked for the package {package}"))?;
    let line = |suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
    fs::write(work.join("sources.list"), suites.iter().map(line).collect::<String>())?;
    execute(apt("apt-get", work).arg("update"))
}

/// The packages' files in a folder.
fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")).collect();
    if files.is_empty() {
        bail!("apt-get succeeded but left no .deb in {}: expected one at least", folder.display());
    }
    Ok(files)
}

/// The package's file, in `work`.
fn download(wanted: &Wanted<'_>, work: &Path) -> Result<PathBuf> {
    let Wanted { package, suites, release, .. } = wanted;
    ask_archive(package, suites, work)?;
    let offered = output(apt("apt-cache", work).args(["madison", package]))?;
    let version = matching_version(&offered, release)
        .with_context(|| format!("Debian's {suites:?} offer no {package} {release}, but:\n{offered}"))?;
    execute(apt("apt-get", work).args(["download", &format!("{package}={version}")]).current_dir(work))?;
    Ok(archives(work)?.swap_remove(0))
}

/// An apt program that keeps everything in `work`.
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

/// From `apt-cache madison` (`name | version | source`): the first version of this release.
fn matching_version<'a>(offered: &'a str, release: &str) -> Option<&'a str> {
    let mut versions = offered.lines().filter_map(|line| line.split('|').nth(1).map(str::trim));
    versions.find(|version| {
        release.is_empty() || version.strip_prefix(release).is_some_and(|rest| rest.starts_with(['+', '-']))
    })
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
    fn only_the_release_asked_for_matches() {
        let offered = " rust-src | 1.95.10-1 | m\n rust-src | 1.96.1+dfsg1-2 | m\n rust-src | 1.95.1+dfsg1-2~bpo13+1 | m\n";
        assert_eq!(matching_version(offered, "1.95.1"), Some("1.95.1+dfsg1-2~bpo13+1"));
        assert_eq!(matching_version(offered, "1.95.10"), Some("1.95.10-1"));
        assert_eq!(matching_version(offered, "1.95.0"), None);
        assert_eq!(matching_version(offered, ""), Some("1.95.10-1"));
        assert_eq!(matching_version("", ""), None);
    }
}
