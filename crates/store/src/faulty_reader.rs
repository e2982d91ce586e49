//! Readers for tests: files in memory, a wrapper that delays, shortens, interrupts and fails reads, and files that are
//! read through one (cargo feature `testing`). It knows no expert and no cache.

use crate::files::{FileId, Files, ListedFile};
use crate::reader::Reader;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Files that are vectors.
#[derive(Debug)]
pub struct MemoryReader {
    files: Vec<Vec<u8>>,
}

impl MemoryReader {
    /// A reader whose file `n` is `files[n]`.
    #[must_use]
    pub fn new(files: Vec<Vec<u8>>) -> Self {
        Self { files }
    }
}

impl Reader for MemoryReader {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let file = self.files.get(file as usize).ok_or(io::ErrorKind::NotFound)?;
        let rest = file.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(into.len());
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }

    fn file_name(&self, file: u32) -> String {
        format!("memory file {file}")
    }
}

/// An error for reads that start in a range.
struct Fault {
    file: u32,
    range: Range<u64>,
    /// How often it will still strike.
    left: AtomicU64,
}

/// Wraps a reader and does to it what disks do. The same seed and the same calls in the same order give the same faults.
pub struct FaultyReader {
    inner: Arc<dyn Reader>,
    seed: u64,
    delay_max: Duration,
    short_reads: bool,
    interruptions: bool,
    faults: Vec<Fault>,
    ends: Vec<(u32, u64)>,
    gate: Arc<Gate>,
    calls: Mutex<Vec<(u32, u64)>>,
    interrupted: AtomicU64,
    bytes: AtomicU64,
}

impl FaultyReader {
    /// Wraps `inner`; without further calls it passes everything through.
    #[must_use]
    pub fn new(inner: Arc<dyn Reader>, seed: u64) -> Self {
        Self {
            inner,
            seed,
            delay_max: Duration::ZERO,
            short_reads: false,
            interruptions: false,
            faults: Vec::new(),
            ends: Vec::new(),
            gate: Arc::default(),
            calls: Mutex::default(),
            interrupted: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Every read takes a random time up to `delay_max` longer.
    #[must_use]
    pub fn with_delays(self, delay_max: Duration) -> Self {
        Self { delay_max, ..self }
    }

    /// Every read brings a random part of what was asked for, one byte at least.
    #[must_use]
    pub fn with_short_reads(self) -> Self {
        Self { short_reads: true, ..self }
    }

    /// One read in three is interrupted (EINTR) before it starts.
    #[must_use]
    pub fn with_interruptions(self) -> Self {
        Self { interruptions: true, ..self }
    }

    /// The first read that starts in `range` of `file` fails (EIO); reads that start before it end there.
    #[must_use]
    pub fn failing_once(self, file: u32, range: Range<u64>) -> Self {
        self.failing_times(file, range, 1)
    }

    /// Every read that starts in `range` of `file` fails (EIO); reads that start before it end there.
    #[must_use]
    pub fn failing(self, file: u32, range: Range<u64>) -> Self {
        self.failing_times(file, range, u64::MAX)
    }

    /// The first `times` reads that start in `range` of `file` fail (EIO); reads that start before it end there.
    #[must_use]
    pub fn failing_times(mut self, file: u32, range: Range<u64>, times: u64) -> Self {
        self.faults.push(Fault { file, range, left: AtomicU64::new(times) });
        self
    }

    /// `file` ends after `bytes` bytes.
    #[must_use]
    pub fn truncated(mut self, file: u32, bytes: u64) -> Self {
        self.ends.push((file, bytes));
        self
    }

    /// Reads wait for `gate` before they do anything else.
    #[must_use]
    pub fn with_gate(self, gate: Arc<Gate>) -> Self {
        Self { gate, ..self }
    }

    /// File and offset of every call that passed the gate, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<(u32, u64)> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a call and returns its number.
    fn note(&self, file: u32, offset: u64) -> u64 {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push((file, offset));
        calls.len() as u64
    }

    /// Calls that were interrupted.
    #[must_use]
    pub fn interruptions(&self) -> u64 {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Bytes delivered so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// The number of bytes from `offset` on that may be delivered, or the fault that lies there.
    fn reach(&self, file: u32, offset: u64, wanted: u64) -> io::Result<u64> {
        let mut end = offset.saturating_add(wanted);
        for &(_, file_end) in self.ends.iter().filter(|(truncated, _)| *truncated == file) {
            end = end.min(file_end.max(offset));
        }
        for fault in self.faults.iter().filter(|fault| fault.file == file) {
            let left = fault.left.load(Ordering::SeqCst);
            if left > 0 && fault.range.contains(&offset) {
                fault.left.store(left - 1, Ordering::SeqCst);
                return Err(io::Error::other("injected input/output error"));
            }
            if left > 0 && offset < fault.range.start {
                end = end.min(fault.range.start);
            }
        }
        Ok(end - offset)
    }
}

impl Reader for FaultyReader {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.gate.pass();
        let call = self.note(file, offset);
        let mut random = Random(self.seed ^ call.wrapping_mul(0x2545_F491_4F6C_DD1D));
        if !self.delay_max.is_zero() {
            std::thread::sleep(self.delay_max.mul_f64(random.below(1 << 20) as f64 / f64::from(1 << 20)));
        }
        if self.interruptions && random.below(3) == 0 {
            self.interrupted.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut reach = self.reach(file, offset, into.len() as u64)?;
        if self.short_reads && reach > 1 {
            reach = 1 + random.below(reach);
        }
        let came = self.inner.read_at(file, offset, &mut into[..reach as usize])?;
        self.bytes.fetch_add(came as u64, Ordering::SeqCst);
        Ok(came)
    }

    fn file_name(&self, file: u32) -> String {
        self.inner.file_name(file)
    }

    fn alignment(&self, file: u32) -> u64 {
        self.inner.alignment(file)
    }

    fn drive(&self, file: u32) -> usize {
        self.inner.drive(file)
    }

    fn drives(&self) -> usize {
        self.inner.drives()
    }
}

/// The files of a checkpoint, but their bytes come through a reader: puts faults below whatever reads files.
pub struct FilesThrough {
    files: Arc<dyn Files>,
    reader: Arc<dyn Reader>,
}

impl FilesThrough {
    /// Names and lengths of `files`, bytes of `reader`.
    #[must_use]
    pub fn new(files: Arc<dyn Files>, reader: Arc<dyn Reader>) -> Arc<Self> {
        Arc::new(Self { files, reader })
    }
}

impl Files for FilesThrough {
    fn directories(&self) -> &[String] {
        self.files.directories()
    }

    fn list(&self) -> &[ListedFile] {
        self.files.list()
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        self.files.len(file)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read_at(file.0, offset, into)
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        self.files.path(file)
    }
}

/// A gate gives way after this time, so that a test that failed before it opened the gate ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// Holds reads back until a test lets them through; open unless made by [`Gate::closed`].
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    waiting: u32,
}

impl Gate {
    /// A gate that is closed.
    #[must_use]
    pub fn closed() -> Arc<Self> {
        let state = GateState { closed: true, waiting: 0 };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Lets all reads through from now on.
    pub fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    /// Waits until `reads` reads stand before the gate.
    pub fn wait_for(&self, reads: u32) {
        let state = self.lock();
        drop(self.changed.wait_timeout_while(state, PATIENCE, |state| state.waiting < reads));
    }

    fn pass(&self) {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        let state = self.changed.wait_timeout_while(state, PATIENCE, |state| state.closed);
        state.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014): enough chance for faults.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % limit
    }
}
