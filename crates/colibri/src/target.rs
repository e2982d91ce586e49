//! Where a file of results may be written: nothing but a regular file is ever replaced, nothing of a model, and no file that
//! something else is written to. Knows paths, not what is written.
use crate::errors::Failure;
use crate::interrupt;
use etcetera::{BaseStrategy as _, HomeDirError};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A place where a file may be written.
pub(crate) struct Target {
    file: PathBuf,
    temporary: PathBuf,
}

impl Target {
    /// The place that --out names; see [`named`](Self::named).
    pub(crate) fn new(out: &Path, models: &[PathBuf]) -> Result<Self, Failure> {
        Target::named("--out", out, models)
    }

    /// Looks at the place that a flag or order names before any work is done. A link is followed: what it leads to is the
    /// place.
    pub(crate) fn named(flag: &str, out: &Path, models: &[PathBuf]) -> Result<Self, Failure> {
        let file = place(flag, out, models)?;
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            return Err(Failure::Usage(format!("{flag} {}: {NOT_A_FILE}", out.display())));
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let temporary = folder.join(hidden);
        Ok(Target { file, temporary })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// What it is called until it is whole.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Writes a whole file under another name and gives it its own when it is there. Nobody else can read it.
    ///
    /// # Errors
    /// What the system says; the file that was there before is still there then.
    pub(crate) fn replace(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut unfinished = interrupt::unfinished();
        let failed = |source| Failure::io("writing", &self.file)(source);
        let mut file = options.open(&self.temporary).map_err(failed)?;
        *unfinished = Some(self.temporary.clone());
        drop(unfinished);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        drop(file);
        let mut unfinished = interrupt::unfinished();
        let named = written.and_then(|()| fs::rename(&self.temporary, &self.file));
        if named.is_err() {
            // What failed is said; a leftover is not worth another word.
            let _ = fs::remove_file(&self.temporary);
        }
        *unfinished = None;
        named.map_err(failed)
    }
}

/// The directory for what is kept from run to run, where this platform keeps such things; it need not be there.
///
/// # Errors
/// Why there is none: this user has no home directory.
pub(crate) fn state_folder() -> Result<PathBuf, HomeDirError> {
    let places = etcetera::choose_base_strategy()?;
    Ok(places.state_dir().unwrap_or_else(|| places.data_dir()).join("colibri"))
}

/// What was entered in chats, in the [state folder](state_folder).
pub(crate) const CHAT_HISTORY: &str = "chat-history";
/// How the names of histories of experts begin there.
pub(crate) const EXPERT_HISTORIES: &str = "experts-";
/// The same of profiles.
pub(crate) const PROFILES: &str = "profile-";

/// Flags that name a file to be written; every other path is one that is read.
const OUTPUTS: [&str; 4] = ["--log-file", "--out", "--timeline", "--trace-routing"];

/// A file that something writes to.
#[derive(Clone)]
struct Taken {
    /// The flag or order that names it.
    flag: String,
    /// As it was given.
    given: PathBuf,
    /// Links followed.
    file: PathBuf,
}

/// The files that this process writes.
static TAKEN: Mutex<Vec<Taken>> = Mutex::new(Vec::new());

/// Takes the files that a command line names, before the first of them is opened. `--out` may be what the flag `replaced` names.
///
/// # Errors
/// One is to be written that is also to be read, or that another flag names.
pub(crate) fn take_all(named: &[(String, PathBuf)], replaced: Option<&str>) -> Result<(), Failure> {
    let (outputs, inputs): (Vec<_>, Vec<_>) =
        named.iter().partition(|(flag, _)| OUTPUTS.contains(&flag.as_str()));
    let inputs: Vec<_> = inputs
        .into_iter()
        .filter_map(|(flag, given)| Some((flag.as_str(), given, given.canonicalize().ok()?)))
        .collect();
    for (flag, out) in outputs {
        // What is wrong with a place is told by who writes there.
        let file = if out.symlink_metadata().is_ok() { existing(out).ok() } else { fresh(flag, out).ok() };
        let Some(file) = file else { continue };
        let clash = inputs
            .iter()
            .find(|(input, _, read)| is_same(read, &file) && !(flag == "--out" && replaced == Some(*input)));
        if let Some((input, given, _)) = clash {
            return Err(two_of_one((flag, out), (input, given)));
        }
        take(flag, out, &file)?;
    }
    Ok(())
}

/// Takes a place for a flag or an order; refused if another one has it.
fn take(flag: &str, out: &Path, file: &Path) -> Result<(), Failure> {
    // Nothing that is done with the lock held can panic half way.
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    match taken.iter().find(|other| is_same(&other.file, file)) {
        Some(other) if other.flag != flag => {
            return Err(two_of_one((flag, out), (&other.flag, &other.given)));
        }
        Some(_) => {}
        None => taken.push(Taken { flag: flag.to_owned(), given: out.to_owned(), file: file.to_owned() }),
    }
    Ok(())
}

fn two_of_one((flag, given): (&str, &Path), (other, other_given): (&str, &Path)) -> Failure {
    let alias =
        if given == other_given { String::new() } else { format!(", which is {},", other_given.display()) };
    Failure::Usage(format!("{flag} and {other} both name {}{alias}; choose two files", given.display()))
}

/// Whether two places, links followed, are one file.
fn is_same(a: &Path, b: &Path) -> bool {
    // On these two systems names that differ in nothing but case mostly mean the same file.
    let alike = cfg!(any(windows, target_os = "macos")) && a.as_os_str().eq_ignore_ascii_case(b.as_os_str());
    a == b || alike || is_linked(a, b)
}

/// Whether one file has both names.
#[cfg(unix)]
fn is_linked(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(a), Ok(b)) = (fs::metadata(a), fs::metadata(b)) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_linked(_: &Path, _: &Path) -> bool {
    false
}

/// The place that a flag names for a file, links followed, if a file may be there: nothing but a regular file is in its
/// way, it does not lie where a model's files are, and no other flag has it.
pub(crate) fn place(flag: &str, out: &Path, models: &[PathBuf]) -> Result<PathBuf, Failure> {
    let refused = |why: &str| Failure::Usage(format!("{flag} {}: {why}", out.display()));
    let file = match fs::symlink_metadata(out) {
        Ok(_) => existing(out).map_err(refused)?,
        Err(error) if error.kind() == ErrorKind::NotFound => fresh(flag, out)?,
        Err(error) => return Err(Failure::io(&format!("looking at {flag}"), out)(error)),
    };
    let Some(folder) = file.parent() else { return Err(refused(NOT_A_FILE)) };
    for model in models {
        if belongs(folder, model) {
            return Err(refused(&format!(
                "it lies in the model directory {} or where its files are, into which nothing is ever written; choose \
                 another place",
                model.display()
            )));
        }
    }
    if is_kept(flag, &file) {
        return Err(refused(
            "it is a history or a profile that colibri keeps by itself; choose another place",
        ));
    }
    take(flag, out, &file)?;
    Ok(file)
}

/// Whether a file is one of those that are kept from run to run without being named. Profiles are written under `--out`, named
/// or not.
fn is_kept(flag: &str, file: &Path) -> bool {
    let kept = state_folder().ok().and_then(|folder| folder.canonicalize().ok());
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_profile = flag != "--out" && name.starts_with(PROFILES);
    kept.is_some_and(|kept| file.parent() == Some(&kept))
        && (name == CHAT_HISTORY || name.starts_with(EXPERT_HISTORIES) || is_profile)
}

const NOT_A_FILE: &str = "a file name is expected";

/// What is there already, links followed, if it may be replaced.
fn existing(out: &Path) -> Result<PathBuf, &'static str> {
    let Ok(file) = out.canonicalize() else {
        return Err("it is a link to something that is not there; give the file itself");
    };
    match fs::metadata(&file) {
        Ok(found) if found.is_dir() => Err(NOT_A_FILE),
        Ok(found) if found.is_file() => Ok(file),
        _ => Err("it exists and is no regular file (but a device, pipe or socket), which is never replaced"),
    }
}

/// A new name in a directory that is there.
fn fresh(flag: &str, out: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = out.file_name() else {
        return Err(Failure::Usage(format!("{flag} {}: {NOT_A_FILE}", out.display())));
    };
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = parent
        .canonicalize()
        .map_err(Failure::io(&format!("looking for the directory of {flag}"), parent))?;
    Ok(folder.join(name))
}

/// Whether a folder lies in a model's directory, or is one in which files lie that the directory has links to, as in the
/// cache of a downloader.
fn belongs(folder: &Path, model: &Path) -> bool {
    let Ok(home) = model.canonicalize() else { return false };
    let linked =
        |entry: fs::DirEntry| entry.path().canonicalize().is_ok_and(|file| file.parent() == Some(folder));
    folder.starts_with(&home) || fs::read_dir(&home).is_ok_and(|list| list.flatten().any(linked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| folder.path().join(name));
        for _ in 0..2 {
            assert_eq!(place("--out", &one, &[]).unwrap(), folder.path().canonicalize().unwrap().join("one"));
        }
        let roundabout = folder.path().join(".").join("one");
        for refused in [&one, &roundabout] {
            let message = place("--log-file", refused, &[]).unwrap_err().message();
            let name = refused.display();
            let alias =
                if *refused == one { String::new() } else { format!(", which is {},", one.display()) };
            assert_eq!(message, format!("--log-file and --out both name {name}{alias}; choose two files"));
        }
        place("--log-file", &other, &[]).unwrap();
        fs::write(&one, "").unwrap();
        #[cfg(unix)]
        {
            let is_refused = |flag: &str| {
                let refused = place(flag, &link, &[]).is_err_and(|why| why.message().contains("both name"));
                fs::remove_file(&link).unwrap();
                refused
            };
            std::os::unix::fs::symlink(&one, &link).unwrap();
            assert!(is_refused("/save"));
            fs::hard_link(&one, &link).unwrap();
            assert!(is_refused("/save"));
            fs::hard_link(&one, &link).unwrap();
            assert!(!is_refused("--out"));
        }
        place("/save", &link, &[]).unwrap();
    }

    #[test]
    fn what_is_read_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let [input, new] = ["input", "new"].map(|name| folder.path().join(name));
        fs::write(&input, "").unwrap();
        let named = |flags: [(&str, &PathBuf); 3]| {
            take_all(&flags.map(|(flag, path)| (flag.to_owned(), path.clone())), Some("--inputs"))
        };
        named([("--load", &input), ("--trace", &input), ("--timeline", &new)]).unwrap();
        for output in OUTPUTS {
            let flags = [("--trace", &new), (output, &input), ("--config", &input)];
            let message = named(flags).unwrap_err().message();
            let input = input.display();
            assert_eq!(message, format!("{output} and --config both name {input}; choose two files"));
        }
        named([("--inputs", &input), ("--out", &input), ("--load", &new)]).unwrap();
        assert!(named([("--inputs", &input), ("--timeline", &input), ("--load", &new)]).is_err());
    }

    /// A new path is either put into the list of outputs, or it is read.
    #[test]
    fn every_path_of_the_command_line_is_read_or_written() {
        let definition = crate::settings::Definition::of_program();
        let mut paths: Vec<_> = definition.paths().collect();
        paths.sort();
        paths.dedup();
        paths.retain(|name| !OUTPUTS.contains(&name.as_str()));
        let read = [
            "--before",
            "--compare",
            "--config",
            "--golden",
            "--inputs",
            "--load",
            "--mirror",
            "--model",
            "--profile",
            "--text",
            "--trace",
            "CHAT",
            "PLACES",
            "TRACES",
        ];
        assert_eq!(paths, read);
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "old").unwrap();
        let target = Target::new(&file, &[]).unwrap();
        // What lies there under its other name is no file.
        fs::create_dir(target.temporary()).unwrap();
        let failure = target.replace(b"new").unwrap_err();
        assert!(failure.message().starts_with("writing ") && failure.kind() == "io", "{}", failure.message());
        assert_eq!(fs::read(&file).unwrap(), b"old");
        fs::remove_dir(target.temporary()).unwrap();
        target.replace(b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
