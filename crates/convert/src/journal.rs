//! The journal of a conversion: which experts and tensors are safely on the drive, with their checksums. Lines are only added
//! after the drive has what they tell of, so that whatever ends a run, the next one can believe them. Knows no tensor.
//!
//! The first line is `colibri.journal 1`, the conversion's number, the dense packing and `whole` or `thin`, with tabs between;
//! every other `unit`, the file's place in the plan, the unit's place in the file, and its checksum.
use crate::error::ConvertError;
use crate::plan::Settings;
use models::Dense;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use store::checksums::Checksum;
use store::container::PARTIAL;

const NAME: &str = "journal";
const FIRST: &str = "colibri.journal\t";
const VERSION: &str = "1";

/// The journal of a run.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    sums: HashMap<(usize, usize), Checksum>,
    /// Lines of what the drive may not have yet.
    waiting: String,
}

/// A conversion that was begun in a directory and not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number.
    pub(crate) id: Checksum,
    /// How dense matrices are stored in it.
    pub dense: Dense,
    /// Whether it is thin.
    pub thin: bool,
}

/// What was begun in a directory; None if nothing was, or nothing that left a trace.
///
/// # Errors
/// A journal that cannot be read, or another version's.
pub fn begun(destination: &Path) -> Result<Option<Begun>, ConvertError> {
    Ok(text(destination)?.as_deref().map(|text| first(destination, text)).transpose()?.flatten())
}

fn place(destination: &Path) -> PathBuf {
    destination.join(PARTIAL).join(NAME)
}

fn text(destination: &Path) -> Result<Option<String>, ConvertError> {
    let path = place(destination);
    match fs::read(&path) {
        // What is no text is no line either, and everything from there on is not believed.
        Ok(bytes) => {
            let valid = match str::from_utf8(&bytes) {
                Ok(text) => text.len(),
                Err(error) => error.valid_up_to(),
            };
            Ok(Some(String::from_utf8_lossy(&bytes[..valid]).into_owned()))
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(ConvertError::write("reading", &path)(error)),
    }
}

/// The first line, if it is whole.
fn first(destination: &Path, text: &str) -> Result<Option<Begun>, ConvertError> {
    let Some((line, _)) = text.split_once('\n') else { return Ok(None) };
    let wrong = || {
        let path = place(destination);
        let why = format!(
            "it is no journal of a conversion that this program can go on with; remove {} to begin again",
            destination.join(PARTIAL).display()
        );
        ConvertError::Place { path, why }
    };
    let fields: Vec<&str> = line.strip_prefix(FIRST).ok_or_else(wrong)?.split('\t').collect();
    let [VERSION, id, dense, form] = fields[..] else { return Err(wrong()) };
    let (Ok(id), Some(dense), "whole" | "thin") = (id.parse(), Dense::named(dense), form) else {
        return Err(wrong());
    };
    Ok(Some(Begun { id, dense, thin: form == "thin" }))
}

impl Journal {
    /// Begins one, or goes on with the one that is there. The directory for it must be there.
    pub(crate) fn open(destination: &Path, id: Checksum, settings: Settings) -> Result<Self, ConvertError> {
        let path = place(destination);
        let found = text(destination)?.unwrap_or_default();
        let mut sums = HashMap::new();
        let mut known = found.find('\n').map_or(0, |end| end + 1);
        for line in found[known..].split_inclusive('\n') {
            let Some((place, sum)) = unit(line) else { break };
            sums.insert(place, sum);
            known += line.len();
        }
        let failed = || ConvertError::write("writing", &path);
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed())?;
        // A line that a killed run did not finish, and what may follow it.
        file.set_len(known as u64).map_err(failed())?;
        let mut journal = Journal { path: path.clone(), file, sums, waiting: String::new() };
        if known == 0 {
            let form = if settings.thin { "thin" } else { "whole" };
            journal.waiting = format!("{FIRST}{VERSION}\t{id}\t{}\t{form}\n", settings.dense.name());
            journal.keep()?;
        }
        Ok(journal)
    }

    /// The checksum of a unit that is on the drive.
    pub(crate) fn sum(&self, file: usize, unit: usize) -> Option<Checksum> {
        self.sums.get(&(file, unit)).copied()
    }

    /// How many units of a file are on the drive, from the first on.
    pub(crate) fn done(&self, file: usize) -> usize {
        let mut units = 0;
        while self.sums.contains_key(&(file, units)) {
            units += 1;
        }
        units
    }

    /// A unit is written; that the drive has it, [`Journal::keep`] will say.
    pub(crate) fn note(&mut self, file: usize, unit: usize, sum: Checksum) {
        self.sums.insert((file, unit), sum);
        // Writing to a string cannot fail.
        let _ = writeln!(self.waiting, "unit\t{file}\t{unit}\t{sum}");
    }

    /// The drive has all that was noted.
    pub(crate) fn keep(&mut self) -> Result<(), ConvertError> {
        let lines = std::mem::take(&mut self.waiting);
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(ConvertError::write("writing", &self.path))
    }
}

fn unit(line: &str) -> Option<((usize, usize), Checksum)> {
    let mut fields = line.strip_suffix('\n')?.split('\t');
    let mut next = || fields.next();
    let ("unit", file, unit, sum) = (next()?, next()?.parse().ok()?, next()?.parse().ok()?, next()?) else {
        return None;
    };
    fields.next().is_none().then_some(((file, unit), sum.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_goes_on_after_any_byte_of_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(PARTIAL)).unwrap();
        let settings = Settings::new(Dense::Int4, false);
        let open = || Journal::open(folder.path(), Checksum(7), settings).unwrap();
        let mut journal = open();
        for unit in 0..3 {
            journal.note(1, unit, Checksum(unit as u128));
        }
        assert_eq!(open().done(1), 0, "what is not kept is not believed");
        journal.keep().unwrap();
        assert_eq!(open().done(1), 3);
        assert_eq!(
            begun(folder.path()).unwrap().unwrap(),
            Begun { id: Checksum(7), dense: Dense::Int4, thin: false }
        );
        let whole = fs::read(place(folder.path())).unwrap();
        for end in 0..whole.len() {
            fs::write(place(folder.path()), &whole[..end]).unwrap();
            let mut journal = open();
            let done = journal.done(1);
            let lines = whole[..end].split(|byte| *byte == b'\n').count() - 1;
            assert_eq!(done, lines.saturating_sub(1), "{end} bytes");
            for unit in done..3 {
                journal.note(1, unit, Checksum(unit as u128));
            }
            journal.keep().unwrap();
            assert_eq!(fs::read(place(folder.path())).unwrap(), whole, "{end} bytes");
        }
    }

    #[test]
    fn another_journal_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(begun(folder.path()).unwrap(), None);
        fs::create_dir(folder.path().join(PARTIAL)).unwrap();
        for text in
            ["something\n", "colibri.journal\t2\t1\tint4\twhole\n", "colibri.journal\t1\tx\tint4\twhole\n"]
        {
            fs::write(place(folder.path()), text).unwrap();
            let error = begun(folder.path()).unwrap_err().to_string();
            assert!(error.contains("remove"), "{error}");
        }
    }
}
