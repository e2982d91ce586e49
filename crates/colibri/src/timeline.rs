//! A timeline of reads, compute and waits as a file that `chrome://tracing` and Perfetto open: the JSON array of Chrome's
//! "Trace Event Format". Who works only drops records into a bounded queue; a thread of its own writes. The file is whole
//! JSON whenever the program ends by itself. Knows no engine's insides and no command.
mod json;

use crate::errors::Failure;
use crate::interrupt;
use crate::report::{self, counted};
use engine::{Engine, StepSpan, Watch, show_bytes};
use json::Lines;
use models::{Wait, Work};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{iter, slice};
use store::cache::{ReadSpan, UnderWay, Waiting, WatchReads};

/// Records on their way to the thread that writes, at most; what comes while there are so many is left out and counted. The
/// longest steps have more than half as many, and all of a step comes at once.
const RECORDS_MAX: usize = 1 << 18;
/// Memory that these take.
pub(crate) const BYTES_MAX: u64 = (RECORDS_MAX * size_of::<Record>()) as u64;
/// How often that thread looks for records.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes that are written at once, about.
const WRITE_BYTES: usize = 1 << 16;
/// How long a program that is ended at once waits for the end of the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// Something that happened.
enum Record {
    Read(ReadSpan),
    UnderWay(UnderWay),
    Waiting(Waiting),
    Step { position: u32, parts: usize, rows: u64, span: Range<Instant> },
    Work(Work),
    Wait(Wait),
}

/// What is sent at once.
enum Entry {
    One(Record),
    Step(Vec<Record>),
}

impl Entry {
    fn records(&self) -> &[Record] {
        match self {
            Entry::One(record) => slice::from_ref(record),
            Entry::Step(records) => records,
        }
    }
}

/// A timeline that is being written; empty if none is wanted.
pub(crate) struct TimelineFile(Option<Open>);

struct Open {
    path: PathBuf,
    file: Option<File>,
    /// Names of the model's files, as reads number them.
    names: Vec<String>,
    running: Option<(Arc<Recorder>, JoinHandle<io::Result<u64>>)>,
}

impl TimelineFile {
    /// Opens the file that was asked for: before the work, because that it cannot be written is better known now.
    pub(crate) fn create(
        place: Option<PathBuf>,
        names: impl Iterator<Item = String>,
    ) -> Result<Self, Failure> {
        let Some(path) = place else { return Ok(TimelineFile(None)) };
        let file = File::create(&path).map_err(Failure::io("writing", &path))?;
        Ok(TimelineFile(Some(Open { path, file: Some(file), names: names.collect(), running: None })))
    }

    /// From now on the engine's work stands in it.
    pub(crate) fn begin(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        let Some(open) = &mut self.0 else { return Ok(()) };
        let Some(file) = open.file.take() else { return Ok(()) };
        let (sender, entries) = channel();
        let recorder = Arc::new(Recorder::new(sender, RECORDS_MAX));
        let writer = Writer::new(file, std::mem::take(&mut open.names));
        let shared = Arc::clone(&recorder);
        let thread = std::thread::Builder::new().name("timeline".into());
        let thread = thread.spawn(move || {
            let outcome = writer.run(&shared, &entries);
            shared.over();
            outcome
        });
        let thread = thread
            .map_err(|source| Failure::Io { what: "starting the thread of --timeline".into(), source })?;
        engine.watch(Arc::clone(&recorder) as Arc<dyn Watch>);
        let shared = Arc::clone(&recorder);
        interrupt::finish_with(move || shared.finish_within(PATIENCE));
        open.running = Some((recorder, thread));
        Ok(())
    }

    /// Ends it and says what is there.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        let Some(open) = self.0.take() else { return Ok(()) };
        let path = open.path.clone();
        let (outcome, lost) = open.close();
        let bytes = outcome.map_err(|source| Failure::Io {
            what: format!("writing the timeline {}, which lacks its last events", path.display()),
            source,
        })?;
        report::tell(&format!("wrote a timeline of {} to {}", show_bytes(bytes), path.display()));
        if lost > 0 {
            report::tell(&format!(
                "note: {} came faster than the timeline could be written and are not in it",
                counted(lost, "event")
            ));
        }
        Ok(())
    }
}

impl Drop for TimelineFile {
    /// After a failure of the work: what is there stays and is whole JSON; the failure is the one to tell.
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            let _ = open.close();
        }
    }
}

impl Open {
    /// Lets the thread end the file. The file's bytes, and how many records are not in it.
    fn close(self) -> (io::Result<u64>, u64) {
        let Some((recorder, thread)) = self.running else {
            // The work never began: an empty list.
            let outcome = self.file.map_or(Ok(()), |mut file| file.write_all(b"[\n]\n"));
            return (outcome.map(|()| 4), 0);
        };
        recorder.closing.store(true, Ordering::Release);
        thread.thread().unpark();
        let outcome = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has failed")));
        (outcome, recorder.lost.load(Ordering::Relaxed))
    }
}

/// What takes records from the threads that work.
struct Recorder {
    entries: Sender<Entry>,
    /// Records that are sent and not written.
    waiting: AtomicUsize,
    /// At most so many.
    most: usize,
    /// Records that found no room.
    lost: AtomicU64,
    /// Whether the file is to be ended with what is in the queue.
    closing: AtomicBool,
    /// Whether it has been.
    over: Mutex<bool>,
    changed: Condvar,
}

impl Recorder {
    fn new(entries: Sender<Entry>, most: usize) -> Self {
        let (waiting, lost, closing) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Recorder { entries, waiting, most, lost, closing, over: Mutex::new(false), changed: Condvar::new() }
    }

    fn add(&self, entry: Entry) {
        let records = entry.records().len();
        let waiting = self.waiting.fetch_add(records, Ordering::Relaxed);
        let has_room = waiting + records <= self.most;
        if !has_room {
            self.lost.fetch_add(records as u64, Ordering::Relaxed);
        }
        // Nobody takes it any more where the file was ended or could not be written: that is no loss.
        if !has_room || self.entries.send(entry).is_err() {
            self.waiting.fetch_sub(records, Ordering::Relaxed);
        }
    }

    fn over(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Ends the file if that takes no longer.
    fn finish_within(&self, limit: Duration) {
        self.closing.store(true, Ordering::Release);
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(over, limit, |over| !*over));
    }
}

impl WatchReads for Recorder {
    fn read(&self, read: &ReadSpan) {
        self.add(Entry::One(Record::Read(read.clone())));
    }

    fn under_way(&self, counts: &UnderWay) {
        self.add(Entry::One(Record::UnderWay(*counts)));
    }

    fn waiting(&self, counts: &Waiting) {
        self.add(Entry::One(Record::Waiting(*counts)));
    }
}

impl Watch for Recorder {
    fn step(&self, step: &StepSpan<'_>) {
        let StepSpan { position, parts, rows, times } = step;
        let (position, parts, rows, span) = (*position, *parts, *rows, times.span.clone());
        let whole = Record::Step { position, parts, rows, span };
        let work = times.work.iter().cloned().map(Record::Work);
        let waits = times.expert_waits.iter().chain(times.other_waits).cloned().map(Record::Wait);
        self.add(Entry::Step(iter::once(whole).chain(work).chain(waits).collect()));
    }
}

/// Puts records into the file, a whole number of them at any time.
struct Writer {
    file: File,
    lines: Lines,
    /// Bytes of the file.
    bytes: u64,
}

impl Writer {
    fn new(file: File, names: Vec<String>) -> Self {
        Writer { file, lines: Lines::new(Instant::now(), names), bytes: 0 }
    }

    fn run(mut self, recorder: &Recorder, entries: &Receiver<Entry>) -> io::Result<u64> {
        let outcome = self.copy(recorder, entries).and_then(|()| self.flush());
        if outcome.is_err() {
            // There may be room for the end where there was none for the record that was begun.
            self.lines.forget();
            let _ = self.file.set_len(self.bytes);
            let _ = io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes));
        }
        self.lines.end(self.bytes);
        let ended = self.flush();
        outcome.and(ended).map(|()| self.bytes)
    }

    /// Until the file is to be ended.
    fn copy(&mut self, recorder: &Recorder, entries: &Receiver<Entry>) -> io::Result<()> {
        loop {
            // Looked at first, so that everything that was added before is written.
            let closing = recorder.closing.load(Ordering::Acquire);
            while let Ok(entry) = entries.try_recv() {
                for record in entry.records() {
                    self.lines.add(record);
                    if self.lines.text().len() >= WRITE_BYTES {
                        self.flush()?;
                    }
                }
                recorder.waiting.fetch_sub(entry.records().len(), Ordering::Relaxed);
            }
            self.flush()?;
            if closing {
                return Ok(());
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(self.lines.text().as_bytes())?;
        self.bytes += self.lines.text().len() as u64;
        self.lines.forget();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
