//! One stretch of anonymous memory from the operating system, handed out in pieces by offset.
//! The one file where `unsafe` is implemented; `slab.rs` gives it the promise it needs: one lock for each piece.

use crate::MemoryError;
use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Zeroed memory whose pages are committed by the first touch. Its first byte lies at a multiple of the alignment asked for.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// Owns the memory; it is reached through `base` only, so that no reference to all of it ever exists beside pieces.
    _mapping: MmapMut,
}

// SAFETY: the region is plain memory that stays mapped, at the same address, as long as the value lives; it has no
// affinity to a thread. `base` is the only way in; `lend` and `lend_mut` ask their callers to exclude races by a lock.
unsafe impl Send for Region {}
// SAFETY: as above; the shared methods hand out pieces only under the promises in their own safety sections.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` bytes, at least 1, the first at a multiple of `alignment`, a power of two.
    ///
    /// Nothing is written: the system hands out zeroed pages at the first touch.
    pub(crate) fn new(bytes: u64, alignment: usize) -> Result<Self, MemoryError> {
        assert!(bytes > 0 && alignment.is_power_of_two(), "a region of {bytes} bytes aligned to {alignment}");
        let too_large = MemoryError::TooLarge { bytes };
        // Mappings start at pages only, so the front may have to be skipped to reach the alignment.
        let Some(mapped) = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(alignment)) else {
            return Err(too_large);
        };
        if isize::try_from(mapped).is_err() {
            return Err(too_large);
        }
        let mut mapping = MmapOptions::new()
            .len(mapped)
            .map_anon()
            .map_err(|source| MemoryError::Refused { bytes, source })?;
        advise_huge_pages(&mapping);
        let start = mapping.as_mut_ptr();
        let skipped = start.align_offset(alignment);
        assert!(skipped <= alignment, "bytes can be aligned to any power of two");
        // SAFETY: `skipped` is at most `alignment`, and the mapping is `bytes + alignment` bytes long.
        let base = unsafe { NonNull::new_unchecked(start.add(skipped)) };
        Ok(Self { base, bytes: mapped - alignment, _mapping: mapping })
    }

    /// Where the first byte lies.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Lends the bytes in `range` for reading while `guard` lives.
    ///
    /// # Safety
    /// Every access to these bytes must go through the lock that `guard` holds.
    pub(crate) unsafe fn lend<'r>(
        &'r self,
        range: Range<usize>,
        guard: RwLockReadGuard<'r, ()>,
    ) -> SlotRead<'r> {
        SlotRead { bytes: self.piece(range), _guard: guard }
    }

    /// Lends the bytes in `range` for writing while `guard` lives.
    ///
    /// # Safety
    /// Every access to these bytes must go through the lock that `guard` holds.
    pub(crate) unsafe fn lend_mut<'r>(
        &'r self,
        range: Range<usize>,
        guard: RwLockWriteGuard<'r, ()>,
    ) -> SlotWrite<'r> {
        SlotWrite { bytes: self.piece(range), _guard: guard }
    }

    /// Gives the memory behind `range` back to the system. What is read there before it is written again is what was there or
    /// zeros.
    ///
    /// # Errors
    /// The system's; then nothing has changed.
    ///
    /// # Safety
    /// Every access to these bytes must go through the lock that `_guard` holds, nobody else may know the pages by the place
    /// of their memory (a device, a kernel's registration), and the range must be made of whole pages.
    pub(crate) unsafe fn discard(
        &self,
        range: Range<usize>,
        _guard: &RwLockWriteGuard<'_, ()>,
    ) -> io::Result<()> {
        let piece = self.piece(range);
        // SAFETY: the pages lie in the region, and the caller promises that they are whole and nobody else's.
        unsafe { give_back(piece) }
    }

    fn piece(&self, range: Range<usize>) -> NonNull<[u8]> {
        let inside = range.start <= range.end && range.end <= self.bytes;
        assert!(inside, "bytes {range:?} of a region of {}", self.bytes);
        // SAFETY: the start was checked to lie inside the mapping.
        let start = unsafe { self.base.add(range.start) };
        NonNull::slice_from_raw_parts(start, range.len())
    }
}

/// A slot's bytes, lent for reading.
///
/// It holds a pointer, not a reference: a reference would promise bytes that do not change until the end of a function
/// that the value was moved into, but the promise ends when the guard is dropped inside of it.
#[derive(Debug)]
pub struct SlotRead<'s> {
    bytes: NonNull<[u8]>,
    _guard: RwLockReadGuard<'s, ()>,
}

// SAFETY: sharing it shares `&[u8]` only, and the guard is `Sync` itself.
unsafe impl Sync for SlotRead<'_> {}

impl Deref for SlotRead<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `lend` promised that the lock guards these bytes, and it is held for reading, so nobody writes them. They
        // lie inside the region, which outlives the guard's lifetime, and were zeroed by the system at the least.
        unsafe { self.bytes.as_ref() }
    }
}

/// A slot's bytes, lent to one writer. A pointer for the same reason as in [`SlotRead`].
#[derive(Debug)]
pub struct SlotWrite<'s> {
    bytes: NonNull<[u8]>,
    _guard: RwLockWriteGuard<'s, ()>,
}

// SAFETY: sharing it shares `&[u8]` only, and the guard is `Sync` itself.
unsafe impl Sync for SlotWrite<'_> {}

impl Deref for SlotWrite<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `SlotRead`; the lock is held exclusively, and `&self` excludes `deref_mut`.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for SlotWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `SlotRead`; the lock is held exclusively, and `&mut self` excludes other references from this guard.
        unsafe { self.bytes.as_mut() }
    }
}

/// Asks for 2 MiB pages: weights are read from end to end, and 4 KiB pages cost a tenth to a fifth of the memory's speed.
/// A kernel that does not know them may say no; nothing depends on the answer.
pub(crate) fn advise_huge_pages(mapping: &MmapMut) {
    #[cfg(all(target_os = "linux", not(miri)))]
    let _ = mapping.advise(memmap2::Advice::HugePage);
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = mapping;
}

/// Lets the system take whole pages of anonymous memory back. Linux takes them at once (of a large page that is given back in
/// part, when memory is short), macOS when it needs them, without compressing or writing them anywhere.
#[cfg(unix)]
unsafe fn give_back(pages: NonNull<[u8]>) -> io::Result<()> {
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    const ADVICE: libc::c_int = libc::MADV_FREE;
    #[cfg(not(any(target_os = "macos", target_os = "ios")))]
    const ADVICE: libc::c_int = libc::MADV_DONTNEED;
    if cfg!(miri) {
        return Ok(()); // it knows no advice
    }
    // SAFETY: the caller promises whole pages of a mapping, whose bytes nobody looks at meanwhile.
    let done = unsafe { libc::madvise(pages.as_ptr().cast(), pages.len(), ADVICE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The same on Windows: the bytes are no longer of interest, so they are not written to the paging file, and the pages
/// leave the working set.
#[cfg(windows)]
unsafe fn give_back(pages: NonNull<[u8]>) -> io::Result<()> {
    use windows_sys::Win32::System::Memory::{MEM_RESET, PAGE_READWRITE, VirtualAlloc, VirtualUnlock};
    // SAFETY: the caller promises whole pages of a mapping of the paging file, whose bytes nobody looks at meanwhile.
    let reset = unsafe { VirtualAlloc(pages.as_ptr().cast(), pages.len(), MEM_RESET, PAGE_READWRITE) };
    if reset.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above. To unlock pages that are not locked takes them out of the working set; the call then says that they
    // were not locked, which is no fault.
    let _ = unsafe { VirtualUnlock(pages.as_ptr().cast(), pages.len()) };
    Ok(())
}
