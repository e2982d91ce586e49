//! How fast the files of a drive can be read: a bounded sample of spans, by several threads, as experts are read. Caches
//! are gone around as far as the system allows. Knows files and bytes, no model.
use memory::HostBuffer;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one read.
const SPAN_BYTES: u64 = 4 << 20;
/// Bytes of one sample, at most ...
const SAMPLE_BYTES: u64 = 256 << 20;
/// ... and about the time it may take; spans that have begun are finished.
const SAMPLE_TIME: Duration = Duration::from_secs(2);
/// Threads that read, as many as read experts by default.
const THREADS: usize = 4;
/// What positions and lengths of direct reads are multiples of, on every drive that is sold.
const ALIGNMENT: u64 = 4096;

/// How a span is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the system's cache, from which the span is dropped before.
    Buffered,
    /// Past it.
    Direct,
}

/// What a sample showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

impl Sample {
    /// Bytes a second.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// A place to read.
struct Span<'f> {
    path: &'f Path,
    offset: u64,
    bytes: u64,
}

/// Reads a sample of files, of which the lengths are given. `done` hears of every span.
///
/// # Errors
/// The first, with the file; `Unsupported` where a way does not exist.
pub(crate) fn read(
    files: &[(PathBuf, u64)],
    way: Way,
    done: &(dyn Fn() + Sync),
) -> Result<Sample, (PathBuf, io::Error)> {
    let spans = spans(files, way);
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let start = Instant::now();
    let work = || -> Result<(), (PathBuf, io::Error)> {
        let failed = |span: &Span<'_>, error| (span.path.to_path_buf(), error);
        while start.elapsed() < SAMPLE_TIME {
            let Some(span) = spans.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let came = read_span(span, way).map_err(|error| failed(span, error))?;
            bytes.fetch_add(came, Ordering::Relaxed);
            done();
        }
        Ok(())
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let time = start.elapsed();
    for outcome in outcomes {
        outcome.unwrap_or_else(|_| Err((PathBuf::new(), io::Error::other("a reading thread ended"))))?;
    }
    Ok(Sample { bytes: bytes.into_inner(), time })
}

/// How many spans a sample of these files has.
pub(crate) fn count(files: &[(PathBuf, u64)], way: Way) -> usize {
    spans(files, way).len()
}

/// Spans that are spread evenly over all bytes. The two ways read different ones, so that neither finds in some cache what
/// the other has read.
fn spans(files: &[(PathBuf, u64)], way: Way) -> Vec<Span<'_>> {
    let all: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    // Twice as many places as spans: every other one is for the other way.
    let places = (all / SPAN_BYTES).clamp(2, 2 * SAMPLE_BYTES / SPAN_BYTES);
    let first = u64::from(way == Way::Direct);
    let mut spans = Vec::new();
    for place in (first..places).step_by(2) {
        let mut offset = (u128::from(all) * u128::from(place) / u128::from(places)) as u64;
        for (path, bytes) in files {
            if offset < *bytes {
                let offset = offset / ALIGNMENT * ALIGNMENT;
                spans.push(Span { path, offset, bytes: SPAN_BYTES.min(bytes - offset) });
                break;
            }
            offset -= bytes;
        }
    }
    spans
}

/// Reads a span; bytes that came.
fn read_span(span: &Span<'_>, way: Way) -> io::Result<u64> {
    let file = open(span.path, way)?;
    if way == Way::Buffered {
        drop_from_cache(&file, span.offset, span.bytes)?;
    }
    // Direct reads take whole pages, past the end of the file too.
    let mut buffer = HostBuffer::new(span.bytes.next_multiple_of(ALIGNMENT)).map_err(io::Error::other)?;
    let into = buffer.as_mut_slice();
    let mut came = 0;
    while came < span.bytes {
        let count = match read_at(&file, span.offset + came, &mut into[came as usize..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other? as u64,
        };
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before its length"));
        }
        came += count;
        if !came.is_multiple_of(ALIGNMENT) {
            break; // a direct read cannot go on here: this is the end of the file
        }
    }
    if way == Way::Buffered {
        // What was looked at should not drive out what others need.
        drop_from_cache(&file, span.offset, span.bytes)?;
    }
    Ok(came.min(span.bytes))
}

#[cfg(unix)]
/// Reads from a place on; how many bytes came.
pub(crate) fn read_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
/// Reads from a place on; how many bytes came.
pub(crate) fn read_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

#[cfg(target_os = "linux")]
/// Opens a file to be read in a way.
pub(crate) fn open(path: &Path, way: Way) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = OpenOptions::new();
    if way == Way::Direct {
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    }
    options.read(true).open(path)
}

#[cfg(target_vendor = "apple")]
/// Opens a file to be read in a way.
pub(crate) fn open(path: &Path, way: Way) -> io::Result<File> {
    let file = OpenOptions::new().read(true).open(path)?;
    if way == Way::Direct {
        rustix::fs::fcntl_nocache(&file, true)?;
    }
    Ok(file)
}

#[cfg(windows)]
/// Opens a file to be read in a way.
pub(crate) fn open(path: &Path, way: Way) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt as _;
    const NO_BUFFERING: u32 = 0x2000_0000;
    let mut options = OpenOptions::new();
    if way == Way::Direct {
        options.custom_flags(NO_BUFFERING);
    }
    options.read(true).open(path)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
/// Opens a file to be read in a way.
pub(crate) fn open(path: &Path, way: Way) -> io::Result<File> {
    match way {
        Way::Buffered => OpenOptions::new().read(true).open(path),
        Way::Direct => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(target_os = "linux")]
/// Asks the system to forget bytes of a file.
pub(crate) fn drop_from_cache(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let length = std::num::NonZeroU64::new(bytes);
    Ok(rustix::fs::fadvise(file, offset, length, rustix::fs::Advice::DontNeed)?)
}

/// No such request exists: the first reading may be warm.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
pub(crate) fn drop_from_cache(_file: &File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn file(name: &str, bytes: u64) -> (PathBuf, u64) {
        (PathBuf::from(name), bytes)
    }

    #[test]
    fn samples_are_bounded_spread_and_apart() {
        let large = [file("a", 900 << 30), file("b", 100 << 30)];
        let places = |way| -> BTreeSet<(PathBuf, u64)> {
            spans(&large, way).iter().map(|span| (span.path.to_path_buf(), span.offset)).collect()
        };
        let (buffered, direct) = (places(Way::Buffered), places(Way::Direct));
        assert_eq!(buffered.len() as u64 * SPAN_BYTES, SAMPLE_BYTES);
        assert_eq!((direct.len(), buffered.intersection(&direct).count()), (buffered.len(), 0));
        let in_b = buffered.iter().filter(|(path, _)| path == Path::new("b")).count();
        assert!((5..=8).contains(&in_b), "{in_b} of {}", buffered.len());
        for way in [Way::Buffered, Way::Direct] {
            let small = [file("a", 0), file("b", 5000)];
            let spans = spans(&small, way);
            assert!(spans.len() == 1 && spans[0].path == Path::new("b"));
            assert!(spans[0].offset.is_multiple_of(ALIGNMENT) && spans[0].offset + spans[0].bytes == 5000);
            assert!(super::spans(&[], way).is_empty());
        }
    }

    #[test]
    fn what_is_there_is_read_and_what_is_not_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        std::fs::write(&path, vec![1; 3 * SPAN_BYTES as usize + 100]).unwrap();
        let files = [(path.clone(), 3 * SPAN_BYTES + 100)];
        let sample = read(&files, Way::Buffered, &|| {}).unwrap();
        assert_eq!(sample.bytes, 2 * SPAN_BYTES);
        // Not every file system can be read past its cache; it says so then.
        if let Ok(sample) = read(&files, Way::Direct, &|| {}) {
            assert_eq!(sample.bytes, SPAN_BYTES);
        }
        let longer = [(path.clone(), 16 * SPAN_BYTES)];
        let (named, error) = read(&longer, Way::Buffered, &|| {}).unwrap_err();
        assert_eq!((named, error.kind()), (path, io::ErrorKind::UnexpectedEof));
        let absent = [(folder.path().join("absent"), 10)];
        assert_eq!(read(&absent, Way::Buffered, &|| {}).unwrap_err().1.kind(), io::ErrorKind::NotFound);
    }
}
