//! Mapped files on Unix: the pages, and the signal that comes when one of them cannot be read. The handler does nothing but
//! atomic operations and one system call: it maps zeros over the whole file and notes where it was asked, so that the
//! instruction that failed goes on. Faults elsewhere go to whoever handled them before.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The pages of one mapped file.
#[derive(Debug)]
pub(crate) struct Pages {
    first: NonNull<u8>,
    bytes: usize,
    file: File,
    record: &'static Record,
}

// SAFETY: the pages are only read; the record is made of atomics.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// What the handler knows of a mapping. Records are never freed, since a handler may look at them at any time; that of a
/// mapping that has ended serves the next one.
#[derive(Debug)]
struct Record {
    /// Addresses from here on; 0 while the record serves no mapping.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The address that could not be read first; 0 while all could.
    fault: AtomicUsize,
    next: AtomicPtr<Record>,
}

/// The first of all records.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// Who handled the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A record that serves no mapping yet but is somebody's.
const TAKEN: usize = usize::MAX;

impl Record {
    /// All of them. Records stay for ever, so that the references do.
    fn all() -> impl Iterator<Item = &'static Record> {
        let follow = |pointer: &AtomicPtr<Record>| {
            // SAFETY: null, or a record that was leaked.
            unsafe { pointer.load(Ordering::Acquire).as_ref::<'static>() }
        };
        std::iter::successors(follow(&RECORDS), move |record| follow(&record.next))
    }

    /// A record for a mapping.
    fn take(start: usize, end: usize) -> &'static Record {
        let free = |record: &&Record| {
            record.start.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let record = Record::all().find(free).unwrap_or_else(Record::push);
        record.fault.store(0, Ordering::Relaxed);
        record.end.store(end, Ordering::Release);
        record.start.store(start, Ordering::Release);
        record
    }

    /// A new one at the front of the list.
    fn push() -> &'static Record {
        let record: &'static Record = Box::leak(Box::new(Record {
            start: AtomicUsize::new(TAKEN),
            end: AtomicUsize::new(0),
            fault: AtomicUsize::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut first = RECORDS.load(Ordering::Acquire);
        loop {
            record.next.store(first, Ordering::Release);
            let pushed = RECORDS.compare_exchange(
                first,
                ptr::from_ref(record).cast_mut(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match pushed {
                Ok(_) => return record,
                Err(now) => first = now,
            }
        }
    }

    /// The mapping that an address lies in.
    fn of(address: usize) -> Option<(&'static Record, usize, usize)> {
        Record::all().find_map(|record| {
            let start = record.start.load(Ordering::Acquire);
            let end = record.end.load(Ordering::Acquire);
            // A record that has changed hands in between is not that of an address in use.
            let same = record.start.load(Ordering::Acquire) == start;
            (same && start != 0 && (start..end).contains(&address)).then_some((record, start, end))
        })
    }
}

impl Pages {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        if !about.is_file() || about.len() == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is empty or no regular file"));
        }
        let bytes = usize::try_from(about.len()).map_err(io::Error::other)?;
        watch()?;
        // SAFETY: the system chooses a place where nothing is.
        let first = unsafe { map(ptr::null_mut(), bytes, libc::MAP_SHARED, file.as_raw_fd()) }?;
        let start = first.as_ptr() as usize;
        Ok(Self { first, bytes, file, record: Record::take(start, start + bytes) })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the pages are mapped to be read as long as the value lives: the file's own, or zeros. That nobody writes to
        // the file is asked of whoever maps it.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.bytes) }
    }

    pub(crate) fn take_fault(&self) -> Option<u64> {
        let address = self.record.fault.swap(0, Ordering::AcqRel);
        if address == 0 {
            return None;
        }
        if self.map_again().is_err() {
            // Zeros are still there: that is a fault the next time too.
            self.record.fault.store(address, Ordering::Release);
        }
        Some((address - self.first.as_ptr() as usize) as u64)
    }

    /// Puts the file in the place of the zeros, which stay if it cannot be mapped. Elsewhere first: a file system that refuses
    /// (one of a network that has lost the file) does so after what was there has gone.
    fn map_again(&self) -> io::Result<()> {
        // SAFETY: the system chooses a place where nothing is.
        let new = unsafe { map(ptr::null_mut(), self.bytes, libc::MAP_SHARED, self.file.as_raw_fd()) }?;
        // SAFETY: both are this value's, and whoever reads the old pages finds either those or the new ones.
        unsafe { self.move_here(new) }
    }

    /// # Safety
    /// At `new` the file is mapped, and nobody knows it.
    #[cfg(target_os = "linux")]
    unsafe fn move_here(&self, new: NonNull<u8>) -> io::Result<()> {
        let (place, flags) = (self.first.as_ptr(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: the caller's promise; the pages at `place` are this value's.
        let moved = unsafe { libc::mremap(new.as_ptr().cast(), self.bytes, self.bytes, flags, place) };
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(new.as_ptr().cast(), self.bytes) };
        Err(error)
    }

    /// Systems that move no mappings: the file can be mapped, so it is mapped once more.
    ///
    /// # Safety
    /// At `new` the file is mapped, and nobody knows it.
    #[cfg(not(target_os = "linux"))]
    unsafe fn move_here(&self, new: NonNull<u8>) -> io::Result<()> {
        let (place, flags) = (self.first.as_ptr().cast(), libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the caller's promise; the pages at `place` are this value's.
        unsafe {
            libc::munmap(new.as_ptr().cast(), self.bytes);
            map(place, self.bytes, flags, self.file.as_raw_fd()).map(drop)
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.record.start.store(0, Ordering::Release);
        // SAFETY: the pages are this value's, and nobody can reach them any more.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

/// Maps pages to be read.
///
/// # Safety
/// With `MAP_FIXED` the pages at `place` are the caller's.
unsafe fn map(
    place: *mut libc::c_void,
    bytes: usize,
    flags: libc::c_int,
    file: libc::c_int,
) -> io::Result<NonNull<u8>> {
    // SAFETY: the caller's promise.
    let mapped = unsafe { libc::mmap(place, bytes, libc::PROT_READ, flags, file, 0) };
    match NonNull::new(mapped.cast()) {
        Some(first) if mapped != libc::MAP_FAILED => Ok(first),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles the signal from now on.
fn watch() -> io::Result<()> {
    static WATCHING: OnceLock<bool> = OnceLock::new();
    let watching = WATCHING.get_or_init(|| {
        // SAFETY: an action of zeros is one, and both calls are given places that they may write or read.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0 {
                return false;
            }
            // Known before the handler can need it.
            BEFORE.get_or_init(|| before);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) == 0
        }
    });
    if *watching { Ok(()) } else { Err(io::Error::other("the system lets no faults be handled")) }
}

/// The handler.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info`.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some((record, start, end)) = Record::of(address) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // All of the file: page by page there could be more of them than a process may have mappings.
        // SAFETY: the pages are those of a live mapping, since somebody has just read from it.
        if unsafe { map(start as *mut libc::c_void, end - start, flags, -1) }.is_ok() {
            let _ = record.fault.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
            return;
        }
    }
    elsewhere(signal, info, context);
}

/// Whether a process has sent a signal, and no instruction has failed.
fn is_sent(code: libc::c_int) -> bool {
    /// What is sent has no positive code, but with `kill` on macOS.
    const USER_OF_MACOS: libc::c_int = 0x10001;
    code <= 0 || cfg!(target_vendor = "apple") && code == USER_OF_MACOS
}

/// What would have happened without us; a signal that somebody sent ends the program.
fn elsewhere(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the kernel gives a valid `info`.
    if is_sent(unsafe { (*info).si_code }) {
        // No instruction has failed, so none fails again: whoever was here before, Rust's own watch over stacks, would wait
        // for that in vain.
        // SAFETY: both may be called in a handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction fails again when this returns, and then the system ends the program.
            // SAFETY: the action is one that the system gave.
            unsafe { libc::sigaction(signal, &raw const *before, ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: with this flag the address is that of a function of this type.
            let handler: Handler = unsafe { std::mem::transmute(handler as *const ()) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the address is that of a function of this type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler as *const ()) };
            handler(signal);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// A file that can only be written cannot be mapped to be read. It is refused before anything is unmapped, so this shows that
    /// the fault is not forgotten; a file system that refuses later is not to be had here.
    #[test]
    fn a_file_that_cannot_be_mapped_again_leaves_zeros_and_the_fault() {
        const BYTES: usize = 100_000;
        let place = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(place.path(), vec![7; BYTES]).unwrap();
        let mut pages = Pages::of(place.path()).unwrap();
        let own = pages.file.try_clone().unwrap();
        let set_length = |bytes| place.as_file().set_len(bytes).unwrap();
        set_length(0);
        assert_eq!(pages.as_slice()[BYTES - 1], 0);
        pages.file = File::options().write(true).open(place.path()).unwrap();
        let fault = pages.take_fault().unwrap();
        assert!(fault < BYTES as u64);
        for _ in 0..2 {
            assert_eq!(pages.take_fault(), Some(fault));
            assert!(pages.as_slice().iter().all(|byte| *byte == 0));
        }
        std::fs::write(place.path(), vec![7; BYTES]).unwrap();
        pages.file = own;
        assert_eq!(pages.take_fault(), Some(fault), "zeros were read since the last time");
        assert!(pages.as_slice().iter().all(|byte| *byte == 7));
        assert_eq!(pages.take_fault(), None);
    }
}
