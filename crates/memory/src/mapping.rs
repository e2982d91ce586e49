//! Files mapped to be read in place, so that the system may drop their pages and read them again. A page that cannot be read
//! (the drive fails, the file was cut off) does not end the program: zeros are read instead, and who uses the file
//! [asks](MappedFile::take_fault) whether that happened. It knows no tensor; what a fault means is its owner's business.

use crate::MemoryError;
use std::path::Path;
use std::sync::Arc;

/// A file that could not be read where it is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The byte that was asked for first and did not come.
    pub offset: u64,
}

/// A stretch of a mapped file.
#[derive(Debug, Clone)]
pub struct MappedPart {
    file: Arc<MappedFile>,
    start: u64,
    bytes: u64,
}

impl MappedPart {
    /// So many bytes of a file from `start` on.
    ///
    /// # Errors
    /// [`MemoryError::BehindEnd`] if the file is shorter.
    pub fn new(file: &Arc<MappedFile>, start: u64, bytes: u64) -> Result<Self, MemoryError> {
        let end = start.checked_add(bytes).filter(|end| *end <= file.bytes());
        if end.is_none() {
            let (file, length) = (file.name().to_owned(), file.bytes());
            return Err(MemoryError::BehindEnd { file, start, bytes, length });
        }
        Ok(Self { file: Arc::clone(file), start, bytes })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<MappedFile> {
        &self.file
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes, or zeros where they cannot be read.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.file.as_slice()[self.start as usize..(self.start + self.bytes) as usize]
    }
}

/// A file that is mapped as a whole. It must not be written to while it is: what is read would be neither the old bytes nor
/// the new ones. (Another file may take its name.)
#[derive(Debug)]
pub struct MappedFile {
    name: String,
    pages: Pages,
}

impl MappedFile {
    /// Maps the file; nothing is read yet.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`] if it cannot be opened or mapped, is empty, or this system is not one on which a failed read
    /// can be survived.
    pub fn open(path: &Path) -> Result<Arc<Self>, MemoryError> {
        let name = path.display().to_string();
        let pages =
            Pages::of(path).map_err(|source| MemoryError::NotMapped { file: name.clone(), source })?;
        Ok(Arc::new(Self { name, pages }))
    }

    /// Its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its length when it was mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages.as_slice().len() as u64
    }

    fn as_slice(&self) -> &[u8] {
        self.pages.as_slice()
    }

    /// Whether a page could not be read since the last call, and which was the first. If so, all that was read of the file
    /// since then may be zeros; from now on the file itself is read again. Nobody may be reading it at the moment.
    #[must_use]
    pub fn take_fault(&self) -> Option<Fault> {
        let offset = self.pages.take_fault()?;
        Some(Fault { file: self.name.clone(), offset })
    }
}

#[cfg(unix)]
use crate::fault_signal::Pages;

/// Where a fault would end the program there are no mappings.
#[cfg(not(unix))]
#[derive(Debug)]
struct Pages;

#[cfg(not(unix))]
impl Pages {
    fn of(_path: &Path) -> std::io::Result<Self> {
        Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "a read that fails would end the program on this system; take --dense-residency ram",
        ))
    }

    fn as_slice(&self) -> &[u8] {
        &[]
    }

    fn take_fault(&self) -> Option<u64> {
        None
    }
}

#[cfg(all(test, unix, not(miri)))]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::path::PathBuf;

    const BYTES: usize = 300_000;

    fn byte(place: usize) -> u8 {
        (place % 251) as u8
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        File::create(&path).unwrap().write_all(&(0..BYTES).map(byte).collect::<Vec<_>>()).unwrap();
        (folder, path)
    }

    fn cut(path: &Path, bytes: u64) {
        OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn parts_are_what_the_file_holds() {
        let (_folder, path) = file();
        let mapped = MappedFile::open(&path).unwrap();
        let part = MappedPart::new(&mapped, 1001, 5000).unwrap();
        assert_eq!((part.bytes(), mapped.bytes()), (5000, BYTES as u64));
        assert!(part.as_slice().iter().enumerate().all(|(place, found)| *found == byte(1001 + place)));
        assert_eq!(mapped.take_fault(), None);
        let error = MappedPart::new(&mapped, BYTES as u64 - 1, 2).unwrap_err().to_string();
        assert!(error.contains("weights") && error.contains("300000"), "{error}");
        assert!(MappedPart::new(&mapped, u64::MAX, 2).is_err());
    }

    #[test]
    fn a_file_that_is_cut_off_gives_zeros_and_a_fault_until_it_is_back() {
        let (_folder, path) = file();
        let mapped = MappedFile::open(&path).unwrap();
        let whole = MappedPart::new(&mapped, 0, BYTES as u64).unwrap();
        cut(&path, 100_000);
        for _ in 0..2 {
            assert_eq!(whole.as_slice()[BYTES - 1], 0);
            let fault = mapped.take_fault().unwrap();
            assert_eq!(fault.file, path.display().to_string());
            assert!(fault.offset < BYTES as u64 && BYTES as u64 - fault.offset < 70_000, "{fault:?}");
            assert_eq!(mapped.take_fault(), None);
            assert_eq!(whole.as_slice()[50_000], byte(50_000), "the rest of the file is read again");
        }
        let all: Vec<u8> = (0..BYTES).map(byte).collect();
        OpenOptions::new().write(true).open(&path).unwrap().write_all(&all).unwrap();
        assert_eq!(whole.as_slice(), all);
        assert_eq!(mapped.take_fault(), None);
    }

    #[test]
    fn one_file_does_not_answer_for_another_and_threads_may_meet_a_fault_together() {
        let ((_one, first), (_other, second)) = (file(), file());
        let (first_mapped, second_mapped) =
            (MappedFile::open(&first).unwrap(), MappedFile::open(&second).unwrap());
        cut(&first, 0);
        let part = MappedPart::new(&first_mapped, 0, BYTES as u64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let part = &part;
                scope.spawn(move || {
                    assert!(part.as_slice().iter().skip(thread * 1000).step_by(4096).all(|byte| *byte == 0));
                });
            }
        });
        assert_eq!(second_mapped.take_fault(), None);
        assert!(first_mapped.take_fault().is_some());
        drop((part, first_mapped));
        // The place in the list of mappings is used again.
        let third = MappedFile::open(&second).unwrap();
        cut(&second, 0);
        assert_eq!(MappedPart::new(&third, 9, 1).unwrap().as_slice(), [0]);
        assert!(third.take_fault().is_some() && second_mapped.take_fault().is_none());
    }

    #[test]
    fn what_cannot_be_mapped_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        File::create(&empty).unwrap();
        for path in [empty, folder.path().join("absent"), folder.path().to_owned()] {
            let error = MappedFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(&*path.display().to_string()), "{error}");
        }
    }
}
