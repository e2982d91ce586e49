//! Where a container may be written: in a directory of its own, never where a model lies. Knows paths, not what is written.
use crate::error::ConvertError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use store::{Checkpoint, FileId};

/// Refuses a destination that is, or lies in, a directory of the source or one that its files are linked from.
///
/// # Errors
/// [`ConvertError::Place`]
pub fn check_places(
    source: &Checkpoint,
    directories: &[PathBuf],
    destination: &Path,
) -> Result<(), ConvertError> {
    let place = resolved(destination)?;
    for directory in directories {
        let Ok(home) = directory.canonicalize() else { continue };
        if place.starts_with(&home) {
            let what = if place == home { "it is" } else { "it lies in" };
            let why = format!(
                "{what} the directory {} of the source, into which nothing is ever written; choose another place",
                directory.display()
            );
            return Err(ConvertError::place(destination, why));
        }
    }
    let files = source.files();
    let linked = |number: usize| {
        let path = files.path(FileId(number as u32)).and_then(|path| path.canonicalize().ok());
        path.is_some_and(|path| path.parent() == Some(&*place))
    };
    if (0..files.list().len()).any(linked) {
        return Err(ConvertError::place(destination, "files of the source lie in it; choose another place"));
    }
    Ok(())
}

/// The path without links, as far as it is there.
fn resolved(path: &Path) -> Result<PathBuf, ConvertError> {
    let path = std::path::absolute(path).map_err(ConvertError::write("looking at", path))?;
    let mut rest = Vec::new();
    let mut there = path.as_path();
    loop {
        match there.canonicalize() {
            Ok(found) => return Ok(rest.iter().rev().fold(found, |path, name| path.join(name))),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(ConvertError::write("looking at", there)(error));
            }
            Err(_) => {}
        }
        match (there.file_name(), there.parent()) {
            (Some(name), Some(parent)) => {
                rest.push(name.to_owned());
                there = parent;
            }
            // A place with `..` below what is not there.
            _ => return Err(ConvertError::place(&path, "it names no directory; give a plain path")),
        }
    }
}
