//! Positioned reads that survive what disks do: interruptions, short reads and errors that pass.
//! It knows numbered files and bytes; not what they hold, nor where they go.

use crate::files::{FileId, Files};
use std::fs::File;
use std::io;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Files by number, read at positions from any thread: the border between the cache and a storage.
pub trait Reader: Send + Sync {
    /// Reads at most `into.len()` bytes of file `file` from byte `offset` on and returns how many came, like `pread`:
    /// fewer than asked is no error, none means that the file ends there.
    ///
    /// # Errors
    /// What the system says. [`read_exact`] repeats [`io::ErrorKind::Interrupted`] at once and others after a pause.
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The name of file `file` for messages.
    fn file_name(&self, file: u32) -> String;

    /// Reads of this file that begin and end at multiples of this many bytes, in the file and in memory, come straight
    /// from the drive. Others are as right, and slower. 1 where it makes no difference.
    fn alignment(&self, _file: u32) -> u64 {
        1
    }

    /// The file for who reads it in another way than [`Reader::read_at`], by the same rules as direct reads; `None` if it
    /// should not be.
    fn direct_file(&self, _file: u32) -> Option<&File> {
        None
    }

    /// Whether the reads of a drive should go through a ring of the kernel (`io_uring`).
    fn wants_ring(&self, _drive: usize) -> bool {
        false
    }

    /// The number of the drive that file `file` lies on, below [`Reader::drives`].
    fn drive(&self, _file: u32) -> usize {
        0
    }

    /// Drives, at least one. Each is read by threads of its own, so that a slow one holds up no other.
    fn drives(&self) -> usize {
        1
    }
}

/// The files of a checkpoint; file numbers are those of [`FileId`].
impl<F: Files + ?Sized> Reader for &F {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        Files::read_at(*self, FileId(file), offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.location(FileId(file))
    }
}

/// The same, for threads that share them.
impl Reader for Arc<dyn Files> {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        Reader::read_at(&self.as_ref(), file, offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.as_ref().location(FileId(file))
    }
}

/// Repetitions after an error, before it counts as lasting. Bytes that come in between start the count afresh.
pub const RETRIES: u32 = 3;

/// The first pause before a repetition; each further one is four times as long: 10, 40 and 160 ms.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Why the bytes asked for did not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file is shorter than the checkpoint's index says.
    #[error(
        "{file} ends at byte {end}, but bytes {offset} to {} are wanted; it was cut off, download or copy it again",
        offset + bytes
    )]
    Truncated {
        /// Name of the file.
        file: String,
        /// Where the span starts.
        offset: u64,
        /// Length of the span.
        bytes: u64,
        /// Where the file was found to end.
        end: u64,
    },
    /// The error stayed through all repetitions, or is one that does not pass.
    #[error(
        "reading {bytes} bytes at byte {offset} of {file} failed {attempts} times; check the drive and its connection"
    )]
    Failed {
        /// Name of the file.
        file: String,
        /// Where the missing part of the span starts.
        offset: u64,
        /// Length of the missing part.
        bytes: u64,
        /// How often it was tried without a byte coming.
        attempts: u32,
        /// The last error.
        source: io::Error,
    },
    /// The owner went away while the bytes were on their way.
    #[error("reading {file} was given up because its cache was closed")]
    Abandoned {
        /// Name of the file.
        file: String,
    },
}

/// For callers that tell only kinds apart; the [`ReadError`] is inside.
impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        let kind = match &error {
            ReadError::Truncated { .. } => io::ErrorKind::UnexpectedEof,
            ReadError::Failed { source, .. } => source.kind(),
            ReadError::Abandoned { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Fills `into` from byte `offset` of file `file`, through interruptions, short reads and errors that pass.
///
/// # Errors
/// [`ReadError::Truncated`]; [`ReadError::Failed`] after [`RETRIES`] repetitions, which take 210 ms together.
pub fn read_exact(reader: &dyn Reader, file: u32, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
    let closed = &AtomicBool::new(false); // the caller waits here, so nobody goes away
    let mut span = SpanReader { reader, first_pause: FIRST_PAUSE, closed, count: ReadCount::default() };
    span.read(file, offset, into)
}

/// What reading took, exact also where it failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadCount {
    /// Bytes that came.
    pub(crate) bytes: u64,
    /// Spans that were started.
    pub(crate) reads: u64,
    /// Repetitions after errors; those after interruptions are not counted.
    pub(crate) retries: u64,
}

impl AddAssign for ReadCount {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.reads += other.reads;
        self.retries += other.retries;
    }
}

/// Reads whole spans.
pub(crate) struct SpanReader<'r> {
    pub(crate) reader: &'r dyn Reader,
    /// Pause before the first repetition.
    pub(crate) first_pause: Duration,
    /// Set by the owner when it no longer wants the bytes.
    pub(crate) closed: &'r AtomicBool,
    pub(crate) count: ReadCount,
}

impl SpanReader<'_> {
    /// Fills `into` from byte `offset` of file `file`, through interruptions, short reads and passing errors.
    pub(crate) fn read(&mut self, file: u32, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let wanted = into.len();
        self.read_at_least(file, offset, into, wanted)
    }

    /// The same if only the first `wanted` bytes matter: those behind may lie past the end of the file.
    pub(crate) fn read_at_least(
        &mut self,
        file: u32,
        offset: u64,
        into: &mut [u8],
        wanted: usize,
    ) -> Result<(), ReadError> {
        self.count.reads += 1;
        let mut done = 0;
        let mut retries = 0;
        while done < wanted {
            if self.closed.load(Ordering::Relaxed) {
                return Err(ReadError::Abandoned { file: self.reader.file_name(file) });
            }
            match self.read_once(file, offset + done as u64, &mut into[done..]) {
                Ok(0) => {
                    let (bytes, end) = (wanted as u64, offset + done as u64);
                    return Err(ReadError::Truncated {
                        file: self.reader.file_name(file),
                        offset,
                        bytes,
                        end,
                    });
                }
                Ok(came) => {
                    done += came;
                    self.count.bytes += came as u64;
                    retries = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) if retries == RETRIES || !may_pass(&source) => {
                    return Err(ReadError::Failed {
                        file: self.reader.file_name(file),
                        offset: offset + done as u64,
                        bytes: (wanted - done) as u64,
                        attempts: retries + 1,
                        source,
                    });
                }
                Err(error) => {
                    let pause = self.first_pause * 4_u32.pow(retries);
                    retries += 1;
                    let name = self.reader.file_name(file);
                    tracing::warn!(file = ?name, offset, attempt = retries, ?pause, %error, "a read failed and is repeated");
                    std::thread::sleep(pause);
                    self.count.retries += 1;
                }
            }
        }
        Ok(())
    }

    /// One call of the reader, which is not believed when it says that more came than there was room for.
    fn read_once(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let came = self.reader.read_at(file, offset, into)?;
        if came > into.len() {
            let text = format!("the reader reports {came} bytes where {} were asked for", into.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(came)
    }
}

/// Whether repeating can help: not where a file is absent, locked or no file, which is found at its first read.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotFound, PermissionDenied};
    !matches!(error.kind(), NotFound | PermissionDenied | InvalidInput)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty_reader::{FaultyReader, MemoryReader};

    static OPEN: AtomicBool = AtomicBool::new(false);

    fn file() -> Vec<u8> {
        (0..1000_u32).map(|place| (place * 7 % 251) as u8).collect()
    }

    fn faulty() -> FaultyReader {
        FaultyReader::new(Arc::new(MemoryReader::new(vec![file()])), 5)
    }

    /// Reads bytes 100 to 900.
    fn read(reader: &dyn Reader, closed: &AtomicBool) -> (Result<Vec<u8>, ReadError>, ReadCount) {
        let mut bytes = vec![0; 800];
        let mut span =
            SpanReader { reader, first_pause: Duration::ZERO, closed, count: ReadCount::default() };
        let result = span.read(0, 100, &mut bytes).map(|()| bytes);
        (result, span.count)
    }

    #[test]
    fn short_reads_and_interruptions_are_gone_through() {
        let reader = faulty().with_short_reads().with_interruptions();
        let (bytes, count) = read(&reader, &OPEN);
        assert_eq!(bytes.unwrap(), file()[100..900]);
        assert!(reader.calls().len() > 2 && reader.interruptions() > 0);
        assert_eq!(count, ReadCount { bytes: 800, reads: 1, retries: 0 });
    }

    #[test]
    fn an_error_that_passes_is_repeated() {
        let reader = faulty().failing_once(0, 500..501);
        let (bytes, count) = read(&reader, &OPEN);
        assert_eq!(bytes.unwrap(), file()[100..900]);
        assert_eq!(count, ReadCount { bytes: 800, reads: 1, retries: 1 });
    }

    #[test]
    fn an_error_that_stays_is_named_after_the_repetitions() {
        let reader = faulty().failing(0, 500..501);
        let (result, count) = read(&reader, &OPEN);
        let error = result.unwrap_err();
        assert!(matches!(error, ReadError::Failed { offset: 500, bytes: 400, attempts: 4, .. }), "{error:?}");
        assert!(error.to_string().contains("at byte 500 of memory file 0 failed 4 times"), "{error}");
        assert_eq!(count, ReadCount { bytes: 400, reads: 1, retries: 3 });
    }

    #[test]
    fn a_file_that_is_not_there_is_not_waited_for() {
        let none = MemoryReader::new(Vec::new());
        let (result, count) = read(&none, &OPEN);
        let error = io::Error::from(result.unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("memory file 0 failed 1 times"), "{error}");
        assert_eq!(count, ReadCount { bytes: 0, reads: 1, retries: 0 });
    }

    #[test]
    fn a_file_that_ends_early_is_named_without_repetitions() {
        let reader = faulty().truncated(0, 300);
        let (result, count) = read(&reader, &OPEN);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("memory file 0 ends at byte 300, but bytes 100 to 900 are wanted"), "{error}");
        assert_eq!(count, ReadCount { bytes: 200, reads: 1, retries: 0 });
    }

    #[test]
    fn a_closed_owner_ends_the_read() {
        let reader = faulty();
        let (result, count) = read(&reader, &AtomicBool::new(true));
        assert!(matches!(result, Err(ReadError::Abandoned { .. })));
        assert_eq!((reader.calls().len(), count.bytes), (0, 0));
    }

    #[test]
    fn a_reader_that_lies_about_its_bytes_is_not_believed() {
        struct Liar;
        impl Reader for Liar {
            fn read_at(&self, _: u32, _: u64, into: &mut [u8]) -> io::Result<usize> {
                Ok(into.len() + 1)
            }
            fn file_name(&self, _: u32) -> String {
                "liar".to_owned()
            }
        }
        let (result, _) = read(&Liar, &OPEN);
        let Err(ReadError::Failed { source, .. }) = result else { panic!("{result:?}") };
        assert!(source.to_string().contains("reports 801 bytes where 800"), "{source}");
    }
}
