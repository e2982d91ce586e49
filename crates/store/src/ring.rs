//! Reads through Linux' `io_uring`: many at once from one thread, straight into slots. The one file of this crate with
//! `unsafe`; outside of it a read is a value that owns its slot until it is done. It knows files and slots; not what lies
//! in them, nor who waits.

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use memory::{Slab, SlotWrite, WINDOW_BYTES};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Files that a ring knows by number, at most; later ones go by their handle, which costs a little more.
const FILES_MAX: usize = 1024;

/// One thread's ring. `T` is what a caller wants to know again when a read is done.
pub(crate) struct Ring<'s, T> {
    kernel: IoUring,
    slab: &'s Slab,
    /// Reads that the kernel may be at, by the number it knows them by.
    reads: Vec<Option<Read<'s, T>>>,
    in_flight: usize,
    /// Whether the kernel holds the slab's pages for good, instead of anew for every read.
    holds_slab: bool,
    /// Files that the kernel knows by their place here.
    files: Vec<RawFd>,
    room_for_files: usize,
}

/// A read that was handed to the kernel.
struct Read<'s, T> {
    slot: SlotWrite<'s>,
    /// Kept so that it cannot be closed meanwhile.
    _file: &'s File,
    tag: T,
}

/// A read that is done.
pub(crate) struct Done<'s, T> {
    pub(crate) slot: SlotWrite<'s>,
    pub(crate) tag: T,
    /// Bytes that came.
    pub(crate) came: io::Result<usize>,
}

impl<'s, T> Ring<'s, T> {
    /// A ring for `depth` reads at once into slots of `slab`.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn new(slab: &'s Slab, depth: u32) -> io::Result<Self> {
        let kernel = IoUring::new(depth.max(1))?;
        let room_for_files = match kernel.submitter().register_files_sparse(FILES_MAX as u32) {
            Ok(()) => FILES_MAX,
            Err(_) => 0,
        };
        let reads = (0..depth).map(|_| None).collect();
        Ok(Self { kernel, slab, reads, in_flight: 0, holds_slab: false, files: Vec::new(), room_for_files })
    }

    /// Lets the kernel hold the slab's pages, a buffer a window, so that it does not look them up for every read. It
    /// may refuse, which changes nothing but that.
    pub(crate) fn hold_slab(&mut self) {
        let total = self.slab.bytes_total();
        let windows: Vec<libc::iovec> = (0..total.div_ceil(WINDOW_BYTES))
            .map(|window| {
                let start = window * WINDOW_BYTES;
                libc::iovec {
                    iov_base: self.slab.base_pointer().as_ptr().wrapping_add(start as usize).cast(),
                    iov_len: WINDOW_BYTES.min(total - start) as usize,
                }
            })
            .collect();
        // SAFETY: the windows lie inside the slab, which outlives the ring; the kernel writes to them only where a read
        // says so, and each read owns the lock of the slot that it goes into.
        let held = unsafe { self.kernel.submitter().register_buffers(&windows) };
        match held {
            Ok(()) => self.holds_slab = true,
            Err(error) => tracing::info!(%error, "the kernel looks the slots' pages up for every read"),
        }
    }

    /// Reads that are under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Starts to read `bytes` bytes of `file` from `offset` on into the slot, from its byte `start` on.
    ///
    /// # Panics
    /// If the bytes are not in the slot, or more reads are under way than the ring was made for.
    pub(crate) fn read(
        &mut self,
        (file, offset): (&'s File, u64),
        mut slot: SlotWrite<'s>,
        (start, bytes): (usize, usize),
        tag: T,
    ) {
        let key = self.reads.iter().position(Option::is_none).expect("the ring has room");
        let into = &mut slot[start..start + bytes];
        let (pointer, length) = (into.as_mut_ptr(), bytes as u32);
        let entry = self.entry((file, offset), pointer, length).user_data(key as u64);
        self.reads[key] = Some(Read { slot, _file: file, tag });
        self.in_flight += 1;
        // SAFETY: the memory is that of a slot whose lock `reads` holds until the kernel says that the read is done (or
        // for ever, see `drop`), the file is borrowed for as long, and the entry points nowhere else.
        let pushed = unsafe { self.kernel.submission().push(&entry) };
        // As many entries as reads can be under way; all before were handed over.
        pushed.expect("the queue has room");
        // If the kernel takes nothing now, it is offered again by `wait`.
        let _ = self.kernel.submit();
    }

    /// The kernel's words for a read.
    fn entry(&mut self, (file, offset): (&File, u64), pointer: *mut u8, length: u32) -> squeue::Entry {
        let place = pointer as usize - self.slab.base_pointer().as_ptr() as usize;
        let window = (place as u64 / WINDOW_BYTES) as u16;
        match (self.known(file), self.holds_slab) {
            (Some(file), true) => {
                opcode::ReadFixed::new(Fixed(file), pointer, length, window).offset(offset).build()
            }
            (Some(file), false) => opcode::Read::new(Fixed(file), pointer, length).offset(offset).build(),
            (None, true) => {
                opcode::ReadFixed::new(Fd(file.as_raw_fd()), pointer, length, window).offset(offset).build()
            }
            (None, false) => opcode::Read::new(Fd(file.as_raw_fd()), pointer, length).offset(offset).build(),
        }
    }

    /// The number that the kernel knows the file by, if it does.
    fn known(&mut self, file: &File) -> Option<u32> {
        let handle = file.as_raw_fd();
        if let Some(place) = self.files.iter().position(|known| *known == handle) {
            return Some(place as u32);
        }
        let place = self.files.len();
        if place == self.room_for_files {
            return None;
        }
        match self.kernel.submitter().register_files_update(place as u32, &[handle]) {
            Ok(_) => {
                self.files.push(handle);
                Some(place as u32)
            }
            Err(_) => None,
        }
    }

    /// Waits for a read to be done, at most for so long, and takes one that is; none if the time was over first.
    pub(crate) fn wait(&mut self, at_most: Duration) -> Option<Done<'s, T>> {
        if let Some(done) = self.take() {
            return Some(done);
        }
        let time = Timespec::from(at_most);
        let waited = self.kernel.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
        if let Err(error) = waited
            && !passes(&error)
        {
            // A kernel short of memory says so here; the reads that it has are done in their time.
            tracing::debug!(%error, "waiting for reads");
            std::thread::sleep(at_most);
        }
        self.take()
    }

    fn take(&mut self) -> Option<Done<'s, T>> {
        let completion = self.kernel.completion().next()?;
        let Read { slot, tag, .. } = self.reads[completion.user_data() as usize].take()?;
        self.in_flight -= 1;
        let came = match completion.result() {
            result if result >= 0 => Ok(result as usize),
            error => Err(io::Error::from_raw_os_error(-error)),
        };
        Some(Done { slot, tag, came })
    }
}

/// Whether waiting ended without a fault: the time was over, or a signal came.
fn passes(error: &io::Error) -> bool {
    const TIME_OVER: i32 = 62; // ETIME
    error.raw_os_error() == Some(TIME_OVER) || error.kind() == io::ErrorKind::Interrupted
}

impl<T> Drop for Ring<'_, T> {
    /// The kernel may still write into the slots of reads that are under way: they are waited for.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            drop(self.wait(Duration::from_secs(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// None where the kernel forbids it, as it does in many containers; any other fault fails the test.
    fn ring<T>(slab: &Slab, depth: u32) -> Option<Ring<'_, T>> {
        let forbidden = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
        match Ring::new(slab, depth) {
            Err(error) if forbidden.contains(&error.kind()) => None,
            ring => Some(ring.unwrap()),
        }
    }

    #[test]
    fn bytes_come_where_they_belong_and_errors_with_their_read() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|place| (place % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let slab = Slab::new(3, 200_000).unwrap();
        let folder = File::open(std::env::temp_dir()).unwrap();
        let Some(mut ring) = ring(&slab, 3) else { return };
        ring.hold_slab();
        ring.read((&file, 1000), slab.write(0).unwrap(), (5, 150_000), 'a');
        ring.read((&file, 250_000), slab.write(1).unwrap(), (0, 100_000), 'b');
        ring.read((&folder, 0), slab.write(2).unwrap(), (0, 10), 'c');
        assert_eq!(ring.in_flight(), 3);
        let mut done = Vec::new();
        while done.len() < 3 {
            done.extend(ring.wait(Duration::from_millis(100)));
        }
        assert_eq!(ring.in_flight(), 0);
        done.sort_by_key(|done| done.tag);
        assert_eq!(done[0].came.as_ref().unwrap(), &150_000);
        assert!(done[0].slot[5..150_005] == bytes[1000..151_000]);
        assert_eq!(done[1].came.as_ref().unwrap(), &50_000, "the file ends");
        assert!(done[1].slot[..50_000] == bytes[250_000..]);
        assert_eq!(done[2].came.as_ref().unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_ring_that_goes_away_waits_for_its_reads() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 100_000]).unwrap();
        let slab = Slab::new(1, 100_000).unwrap();
        let Some(mut ring) = ring(&slab, 1) else { return };
        ring.read((&file, 0), slab.write(0).unwrap(), (0, 100_000), ());
        assert!(slab.write(0).is_none(), "the slot is the read's");
        drop(ring);
        assert!(slab.write(0).unwrap()[..100_000].iter().all(|byte| *byte == 7));
    }
}
