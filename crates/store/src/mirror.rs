//! A second place of the same files: each read is divided between both by how fast they are, and what one of them cannot
//! give comes from the other. It knows files, bytes and times; not what is read, nor why.

use crate::checkpoint::Checkpoint;
use crate::disk_reader::{Access, DIRECT_ALIGNMENT, DiskReader};
use crate::error::StoreError;
use crate::files::{DiskFiles, FileId, Files, find};
use crate::reader::{FIRST_PAUSE, ReadCount, ReadError, Reader, SpanReader};
use memory::HostBuffer;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of one read that the mirror gives at most: they come into memory aside first, so that a drive that never answers
/// holds no slot. Nearly all of an expert of Kimi K3, since the mirror may be far the faster one.
pub const MIRROR_BYTES_A_READ: u64 = 16 << 20;

/// A mirror that takes longer than this, and longer than [`PATIENCE_FACTOR`] times the primary, is given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// See [`PATIENCE`].
const PATIENCE_FACTOR: u32 = 10;

/// Two places of the same files.
pub struct MirroredReader {
    primary: Arc<dyn Reader>,
    mirror: Arc<dyn Reader>,
    /// For each file of the primary its number in the mirror.
    files: Vec<Option<u32>>,
    patience: Duration,
    primary_rate: Rate,
    mirror_rate: Rate,
    /// Set for good when the mirror failed.
    degraded: AtomicBool,
    /// Threads that read from the mirror and have nothing to do.
    idle: Mutex<Vec<Worker>>,
}

/// What a thread of the mirror brings, and how many bytes of it.
type Outcome = Result<(HostBuffer, usize), ReadError>;

/// What a thread of the mirror is asked for.
struct Part {
    file: u32,
    offset: u64,
    bytes: usize,
    answer: Sender<(Outcome, Duration)>,
    /// Memory of an earlier read, to be used again.
    room: Option<HostBuffer>,
}

/// A thread that reads from the mirror; it ends when this is dropped and its read, if it is at one, has ended.
struct Worker {
    parts: Sender<Part>,
    room: Option<HostBuffer>,
}

/// Bytes a second, of late.
#[derive(Default)]
struct Rate {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Rate {
    /// So many bytes after which what was before counts half.
    const MEMORY: u64 = 1 << 30;

    fn add(&self, bytes: usize, time: Duration) {
        let sum = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let time = self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        // Threads that come here at once may halve twice; it is a weight, not a count.
        if sum > Self::MEMORY {
            self.bytes.store(sum / 2, Ordering::Relaxed);
            self.nanoseconds.store(time / 2, Ordering::Relaxed);
        }
    }

    /// None before the first read.
    fn get(&self) -> Option<f64> {
        let (bytes, time) = (self.bytes.load(Ordering::Relaxed), self.nanoseconds.load(Ordering::Relaxed));
        (bytes > 0 && time > 0).then(|| bytes as f64 / time as f64)
    }
}

impl MirroredReader {
    /// Two readers; `files` gives for each file of the first its number in the second, where it is there.
    #[must_use]
    pub fn new(primary: Arc<dyn Reader>, mirror: Arc<dyn Reader>, files: Vec<Option<u32>>) -> Self {
        Self {
            primary,
            mirror,
            files,
            patience: PATIENCE,
            primary_rate: Rate::default(),
            mirror_rate: Rate::default(),
            degraded: AtomicBool::new(false),
            idle: Mutex::default(),
        }
    }

    /// Gives a mirror up after this time instead of two seconds.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The model's files and the same in `directories`, which are compared: name, length and header of every shard. What
    /// is not as it was asked for comes beside, for people.
    ///
    /// # Errors
    /// A directory or a file that cannot be read; a [`StoreError::Mirror`] that names the first shard that is not there or
    /// differs.
    pub fn open(
        checkpoint: &Checkpoint,
        directories: &[PathBuf],
        access: Access,
    ) -> Result<(Self, Vec<String>), StoreError> {
        let files = checkpoint.files();
        let second: Arc<dyn Files> = Arc::new(DiskFiles::open(directories)?);
        let mut numbers = vec![None; files.list().len()];
        for &shard in checkpoint.shards() {
            numbers[shard.0 as usize] = Some(same_shard(&*files, shard, &*second)?.0);
        }
        let primary = DiskReader::new(files, access);
        let mirror = DiskReader::new(second, access);
        let notes = primary.notes().iter().chain(mirror.notes()).cloned().collect();
        Ok((Self::new(Arc::new(primary), Arc::new(mirror), numbers), notes))
    }

    /// Bytes of a read of `bytes` bytes from `offset` on that come from the primary; the mirror gives the rest.
    fn share(&self, offset: u64, bytes: usize) -> usize {
        let share = match (self.primary_rate.get(), self.mirror_rate.get()) {
            (Some(primary), Some(mirror)) => primary / (primary + mirror),
            _ => 0.5,
        };
        // The border is one of blocks in the file and in memory, if the read begins at one.
        let border = (bytes as f64 * share) as u64 / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
        let least = (bytes as u64).saturating_sub(MIRROR_BYTES_A_READ).next_multiple_of(DIRECT_ALIGNMENT);
        let border = border.max(least).saturating_sub(offset % DIRECT_ALIGNMENT);
        (border as usize).min(bytes)
    }

    /// Has a part read from the mirror.
    fn ask(&self, file: u32, offset: u64, bytes: usize) -> io::Result<Asked> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut worker = match idle {
            Some(worker) => worker,
            None => self.worker()?,
        };
        let (answer, answers) = mpsc::channel();
        let part = Part { file, offset, bytes, answer, room: worker.room.take() };
        // Its thread lives as long as the worker.
        worker.parts.send(part).map_err(|_| io::Error::other("a thread of the mirror has ended"))?;
        Ok(Asked { worker, answers, start: Instant::now() })
    }

    fn worker(&self) -> io::Result<Worker> {
        let (parts, orders) = mpsc::channel::<Part>();
        let mirror = Arc::clone(&self.mirror);
        let thread = std::thread::Builder::new().name("mirror reader".to_owned());
        thread.spawn(move || {
            for part in orders {
                let start = Instant::now();
                let outcome = read_part(&*mirror, part.file, (part.offset, part.bytes), part.room);
                // Who asked may have given up.
                let _ = part.answer.send((outcome, start.elapsed()));
            }
        })?;
        Ok(Worker { parts, room: None })
    }

    /// Waits for a part and puts it where it belongs; how many bytes came. None do where the mirror is given up.
    fn take(&self, asked: Asked, primary: Duration, into: &mut [u8]) -> usize {
        let Asked { mut worker, answers, start } = asked;
        let patience = self.patience.max(primary * PATIENCE_FACTOR);
        let Ok((outcome, took)) = answers.recv_timeout(patience.saturating_sub(start.elapsed())) else {
            self.degrade(&format!("it took longer than {patience:?} for a read"));
            return 0; // with the worker, whose thread ends when the drive answers
        };
        match outcome {
            Ok((room, came)) => {
                into[..came].copy_from_slice(&room.as_slice()[..came]);
                worker.room = Some(room);
                self.mirror_rate.add(came, took);
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
                came
            }
            Err(error) => {
                self.degrade(&error.to_string());
                0
            }
        }
    }

    /// From here on the primary gives everything, as long as it can.
    fn degrade(&self, why: &str) {
        if !self.degraded.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why,
                "the mirror is given up; everything is read from the model's own directories"
            );
        }
    }

    /// All of a read from the mirror, because of what the primary said.
    fn instead(
        &self,
        file: Option<u32>,
        offset: u64,
        into: &mut [u8],
        error: io::Error,
    ) -> io::Result<usize> {
        let Some(file) = file.filter(|_| error.kind() != io::ErrorKind::Interrupted) else {
            return Err(error);
        };
        let mut done = 0;
        while done < into.len() {
            let bytes = (into.len() - done).min(MIRROR_BYTES_A_READ as usize);
            let Ok(asked) = self.ask(file, offset + done as u64, bytes) else { break };
            let came = self.take(asked, Duration::ZERO, &mut into[done..done + bytes]);
            if came == 0 {
                break;
            }
            done += came;
        }
        if done == 0 {
            return Err(error);
        }
        tracing::warn!(offset, %error, "a read failed and was answered by the mirror");
        Ok(done)
    }
}

/// A part that is on its way.
struct Asked {
    worker: Worker,
    answers: Receiver<(Outcome, Duration)>,
    start: Instant,
}

/// Reads as many bytes of a part as come at once into memory aside.
fn read_part(
    mirror: &dyn Reader,
    file: u32,
    (offset, bytes): (u64, usize),
    room: Option<HostBuffer>,
) -> Outcome {
    let room_bytes = (bytes as u64).next_multiple_of(DIRECT_ALIGNMENT);
    let room = room.filter(|room| room.bytes() >= room_bytes);
    let room = match room.map_or_else(|| HostBuffer::new(room_bytes), Ok) {
        Ok(room) => room,
        Err(error) => {
            let (file, source) = (mirror.file_name(file), io::Error::other(error));
            return Err(ReadError::Failed { file, offset, bytes: bytes as u64, attempts: 1, source });
        }
    };
    let mut room = room;
    let closed = &AtomicBool::new(false);
    let mut span =
        SpanReader { reader: mirror, first_pause: FIRST_PAUSE, closed, count: ReadCount::default() };
    let into = &mut room.as_mut_slice()[..room_bytes as usize];
    match span.read_at_least(file, offset, into, 1) {
        // The end of the file: whether it should be there the primary knows.
        Ok(()) | Err(ReadError::Truncated { .. }) => Ok((room, bytes.min(span.count.bytes as usize))),
        Err(error) => Err(error),
    }
}

impl Reader for MirroredReader {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let copy = self.files.get(file as usize).copied().flatten();
        let copy = copy.filter(|_| !self.degraded.load(Ordering::Relaxed));
        let border = if copy.is_some() { self.share(offset, into.len()) } else { into.len() };
        let asked = match copy {
            Some(copy) if border < into.len() => {
                self.ask(copy, offset + border as u64, into.len() - border).ok()
            }
            _ => None,
        };
        let Some(asked) = asked else {
            return self
                .primary
                .read_at(file, offset, into)
                .or_else(|error| self.instead(copy, offset, into, error));
        };
        let (first, second) = into.split_at_mut(border);
        let start = Instant::now();
        let came = if first.is_empty() { Ok(0) } else { self.primary.read_at(file, offset, first) };
        let took = start.elapsed();
        let came = match came {
            Err(error) => return self.instead(copy, offset, into, error),
            // What the mirror brings would lie behind a gap.
            Ok(came) if came < first.len() => return Ok(came),
            Ok(came) => came,
        };
        self.primary_rate.add(came, took);
        let came = came + self.take(asked, took, second);
        if came > 0 || into.is_empty() {
            return Ok(came); // what is missing is the next call's
        }
        let came = self.primary.read_at(file, offset, into)?;
        if came > 0 {
            self.degrade("its file ends early");
        }
        Ok(came)
    }

    fn file_name(&self, file: u32) -> String {
        self.primary.file_name(file)
    }

    fn alignment(&self, file: u32) -> u64 {
        self.primary.alignment(file)
    }

    fn drive(&self, file: u32) -> usize {
        self.primary.drive(file)
    }

    fn drives(&self) -> usize {
        self.primary.drives()
    }
}

/// The file of a mirror that is the same as a shard, by name, length and header.
fn same_shard(files: &dyn Files, shard: FileId, second: &dyn Files) -> Result<FileId, StoreError> {
    let name = &files.list()[shard.0 as usize].name;
    let own = files.location(shard);
    let places = second.directories().join(", ");
    let differs = |what: String| StoreError::Mirror { shard: own.clone(), what };
    let Some(copy) = find(second, name).next() else {
        return Err(differs(format!("is not in {places}")));
    };
    let canonical = |path: Option<&std::path::Path>| path.and_then(|path| path.canonicalize().ok());
    if let Some(path) = canonical(files.path(shard))
        && canonical(second.path(copy)) == Some(path)
    {
        return Err(differs(format!("and {} are one file", second.location(copy))));
    }
    let (bytes, others) = (crate::read::len(files, shard)?, crate::read::len(second, copy)?);
    if bytes != others {
        return Err(differs(format!("has {bytes} bytes, but {} has {others}", second.location(copy))));
    }
    if header(files, shard, bytes)? != header(second, copy, bytes)? {
        return Err(differs(format!("has another header than {}", second.location(copy))));
    }
    Ok(copy)
}

/// The length at the start of a shard and the header after it.
fn header(files: &dyn Files, file: FileId, bytes: u64) -> Result<Vec<u8>, StoreError> {
    let mut length = [0; 8];
    crate::read::exact(files, file, 0, &mut length)?;
    // It was found to be sound in the model's own file; in the other it may be anything.
    let end = u64::from_le_bytes(length).saturating_add(8).min(bytes);
    let mut header = vec![0; end.min(crate::safetensors::HEADER_BYTES_MAX + 8) as usize];
    crate::read::exact(files, file, 0, &mut header)?;
    Ok(header)
}
