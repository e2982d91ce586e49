//! Reads a container back and compares it with its checksums; names what differs. Knows bytes and names only.
use crate::error::ConvertError;
use crate::plan::PAGE_BYTES;
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use store::Checkpoint;
use store::checksums::{CHECKSUMS, Line, List, Summing};
use store::container::PARTIAL;
use store::files::DiskFiles;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// What reading everything showed.
#[derive(Debug)]
pub struct Report {
    /// Experts, tensors and files that were compared.
    pub compared: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What differs, in the order of the files.
    pub faults: Vec<Fault>,
}

/// Something that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The expert or tensor in it, `header` or `file`.
    pub what: String,
    /// What was found.
    pub found: String,
}

/// Reads everything; `progress` hears of bytes that were read, from several threads.
///
/// # Errors
/// A directory that holds no finished container, or that it was cancelled; what cannot be read is a fault.
pub fn verify(
    directory: &Path,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Report, ConvertError> {
    let list = list(directory)?;
    let files: Vec<&[Line]> = list.lines.chunk_by(|one, other| one.file == other.file).collect();
    let work = |lines: &&[Line]| {
        let path = directory.join(&lines[0].file);
        Compared { path, cancel, progress, faults: Vec::new() }.file(lines)
    };
    let faults: Vec<Vec<Fault>> = files.par_iter().map(work).collect();
    if cancel.load(Ordering::Relaxed) {
        return Err(ConvertError::Cancelled);
    }
    let mut faults = faults.concat();
    if let Err(error) = Checkpoint::open(&[directory.to_owned()])
        && faults.is_empty()
    {
        let file = directory.display().to_string();
        faults.push(Fault { file, what: "model".into(), found: error.to_string() });
    }
    let bytes = list.lines.iter().map(|line| line.bytes).sum();
    Ok(Report { compared: list.lines.len(), bytes, faults })
}

/// The list of a finished container.
fn list(directory: &Path) -> Result<List, ConvertError> {
    let unfinished = directory.join(PARTIAL).is_dir();
    let list = List::read(&DiskFiles::open(&[directory.to_owned()])?)?.filter(|_| !unfinished);
    list.ok_or_else(|| {
        let why = if unfinished {
            "the conversion into it is not finished: run the same `colibri convert` again".to_owned()
        } else {
            format!("it has no {CHECKSUMS}: only what `colibri convert` wrote can be verified")
        };
        ConvertError::place(directory, why)
    })
}

/// A file that is being compared.
struct Compared<'c> {
    path: PathBuf,
    cancel: &'c AtomicBool,
    progress: &'c (dyn Fn(u64) + Sync),
    faults: Vec<Fault>,
}

impl Compared<'_> {
    fn fault(&mut self, what: &str, found: String) {
        let (file, what) = (self.path.display().to_string(), what.to_owned());
        self.faults.push(Fault { file, what, found });
    }

    fn file(mut self, lines: &[Line]) -> Vec<Fault> {
        let opened = File::open(&self.path).and_then(|file| Ok((file.metadata()?, file)));
        let (found, mut file) = match opened {
            Ok((found, file)) => (found.len(), file),
            Err(error) => {
                self.fault("file", format!("cannot be read: {error}"));
                return self.faults;
            }
        };
        let mut end = 0;
        for (place, line) in lines.iter().enumerate() {
            // What follows a part up to the next one is zeros.
            let next = lines.get(place + 1).map_or(found, |next| next.offset);
            if let Err(error) = self.part(&mut file, line, next) {
                self.fault(&line.what, format!("cannot be read: {error}"));
            }
            end = line.offset + line.bytes;
            if self.cancel.load(Ordering::Relaxed) {
                return self.faults;
            }
        }
        if found < end {
            self.fault("file", format!("has {found} bytes, expected {end} or more: it was cut off"));
        }
        self.faults
    }

    fn part(&mut self, file: &mut File, line: &Line, next: u64) -> io::Result<()> {
        let mut summing = Summing::default();
        file.seek(SeekFrom::Start(line.offset))?;
        let mut buffer = vec![0; CHUNK_BYTES.min(line.bytes as usize)];
        let mut left = line.bytes as usize;
        while left > 0 && !self.cancel.load(Ordering::Relaxed) {
            let part = left.min(CHUNK_BYTES);
            file.read_exact(&mut buffer[..part])?;
            summing.add(&buffer[..part]);
            (self.progress)(part as u64);
            left -= part;
        }
        if left == 0 && summing.sum() != line.checksum {
            let (sum, expected) = (summing.sum(), line.checksum);
            self.fault(&line.what, format!("its bytes have the checksum {sum}, expected {expected}"));
        }
        let gap = next.saturating_sub(line.offset + line.bytes);
        if gap >= PAGE_BYTES {
            self.fault(&line.what, format!("{gap} bytes follow it that are not listed"));
            return Ok(());
        }
        let mut padding = Vec::new();
        file.take(gap).read_to_end(&mut padding)?;
        if padding.iter().any(|byte| *byte != 0) {
            self.fault(&line.what, "the padding behind it holds other bytes than zeros".to_owned());
        }
        Ok(())
    }
}

/// Bytes that verifying reads: for a bar of progress.
///
/// # Errors
/// A directory that holds no finished container.
pub fn bytes_to_verify(directory: &Path) -> Result<u64, ConvertError> {
    Ok(list(directory)?.lines.iter().map(|line| line.bytes).sum())
}
