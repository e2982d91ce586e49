//! Slots of equal size in one stretch of memory: readers of files write them, devices read them, never both at once.
//! It does not know what lies in a slot, nor when a slot may be refilled: that is the cache's book-keeping.

use crate::{MemoryError, SLOT_ALIGNMENT, SlabPlan, region::Region, region::SlotRead, region::SlotWrite};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

/// Slots allocated once. Reading and writing of one slot exclude each other; different slots are independent.
#[derive(Debug)]
pub struct Slab {
    plan: SlabPlan,
    region: Region,
    /// One for each slot. A thread that panics while it writes leaves bytes, not a broken invariant: poison is ignored.
    locks: Box<[RwLock<()>]>,
    /// Whether somebody knows the pages by the place of their memory.
    pinned: AtomicBool,
}

impl Slab {
    /// Allocates `slots` slots for `payload_bytes` bytes each. Their pages are committed when first written.
    ///
    /// # Errors
    /// As [`SlabPlan::new`]; [`MemoryError::Refused`] or [`MemoryError::TooLarge`] if the system does not give the memory.
    pub fn new(slots: u32, payload_bytes: u64) -> Result<Arc<Self>, MemoryError> {
        Self::from_plan(SlabPlan::new(slots, payload_bytes)?)
    }

    /// Allocates what was planned.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] or [`MemoryError::TooLarge`] if the system does not give the memory.
    pub fn from_plan(plan: SlabPlan) -> Result<Arc<Self>, MemoryError> {
        let region = Region::new(plan.bytes_total(), SLOT_ALIGNMENT as usize)?;
        let locks = (0..plan.slots()).map(|_| RwLock::new(())).collect();
        Ok(Arc::new(Self { plan, region, locks, pinned: AtomicBool::new(false) }))
    }

    /// The geometry.
    #[must_use]
    pub fn plan(&self) -> SlabPlan {
        self.plan
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.plan.slots()
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.plan.slot_bytes()
    }

    /// Where slot `slot` starts, in bytes from the base.
    #[must_use]
    pub fn offset(&self, slot: u32) -> u64 {
        self.plan.offset(slot)
    }

    /// Bytes of addresses from the base to the end of the last slot.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.plan.bytes_total()
    }

    /// The first byte, a multiple of [`SLOT_ALIGNMENT`], for devices that import the memory. It is valid as long as the
    /// slab lives. Who reads through it is not seen by the locks and must hold a lease of the cache instead.
    #[must_use]
    pub fn base_pointer(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// From now on the kernel or a device knows the pages by the place of their memory, which it will not look up again: so
    /// they are never given back. To be called before the pages are told.
    pub fn pin_pages(&self) {
        self.pinned.store(true, Ordering::SeqCst);
    }

    /// Whether [`Slab::discard`] can do anything.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        !self.pinned.load(Ordering::SeqCst)
    }

    /// Gives a slot's memory back to the system; writing the slot takes it again. What the slot holds meanwhile is not
    /// defined. False if somebody holds the slot, the pages are [pinned](Slab::pin_pages), or the system does not take them;
    /// then nothing has changed.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn discard(&self, slot: u32) -> bool {
        let guard = match self.locks[slot as usize].try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // SAFETY: slots do not overlap and begin and end at multiples of more than a page; all access to this one goes through
        // its own lock, or through a lease of the cache, whose owner gives no slot back that is leased; nobody else knows the
        // pages.
        self.gives_back() && unsafe { self.region.discard(self.place(slot), &guard) }.is_ok()
    }

    /// Lends a slot for reading; any number may read at once. Waits while somebody writes it.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn read(&self, slot: u32) -> SlotRead<'_> {
        let guard = self.locks[slot as usize].read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: slots do not overlap, and all access to the bytes of this one goes through its own lock.
        unsafe { self.region.lend(self.place(slot), guard) }
    }

    /// Lends a slot for writing, or `None` while somebody holds it: then the caller's book-keeping is wrong.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn write(&self, slot: u32) -> Option<SlotWrite<'_>> {
        let guard = match self.locks[slot as usize].try_write() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // SAFETY: slots do not overlap, and all access to the bytes of this one goes through its own lock.
        Some(unsafe { self.region.lend_mut(self.place(slot), guard) })
    }

    /// The bytes of a slot in the region.
    fn place(&self, slot: u32) -> Range<usize> {
        let start = self.plan.offset(slot) as usize;
        start..start + self.plan.slot_bytes() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WINDOW_BYTES;

    #[test]
    fn nothing_is_refused_by_name() {
        for (slots, payload_bytes) in [(0, 1), (1, 0)] {
            let error = Slab::new(slots, payload_bytes).unwrap_err();
            assert!(matches!(error, MemoryError::EmptySlab { .. }), "{error}");
        }
    }

    #[test]
    fn more_memory_than_addresses_is_refused_by_name() {
        let error = Slab::new(u32::MAX, WINDOW_BYTES).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { .. } | MemoryError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn slots_start_as_zeros_and_keep_what_is_written() {
        let slab = Slab::new(3, 100).unwrap();
        assert_eq!(slab.base_pointer().as_ptr() as usize % SLOT_ALIGNMENT as usize, 0);
        assert!(slab.read(1).iter().all(|&byte| byte == 0));
        slab.write(1).unwrap().fill(7);
        assert!(slab.read(0).iter().chain(slab.read(2).iter()).all(|&byte| byte == 0));
        assert_eq!(slab.read(1).len() as u64, slab.slot_bytes());
        assert!(slab.read(1).iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_held_slot_is_not_lent_for_writing() {
        let slab = Slab::new(2, 1).unwrap();
        let first = slab.read(0);
        let second = slab.read(0);
        assert!(slab.write(0).is_none());
        assert!(slab.write(1).is_some());
        drop(first);
        assert!(slab.write(0).is_none());
        drop(second);
        let writer = slab.write(0).unwrap();
        assert!(slab.write(0).is_none());
        drop(writer);
        assert!(slab.write(0).is_some());
    }

    #[test]
    fn threads_write_their_slots_and_read_the_others() {
        let slab = Slab::new(4, 1000).unwrap();
        std::thread::scope(|scope| {
            for slot in 0..4_u32 {
                let slab = &slab;
                scope.spawn(move || {
                    // Another thread may be reading it at the moment.
                    let mut writer = loop {
                        match slab.write(slot) {
                            Some(writer) => break writer,
                            None => std::thread::yield_now(),
                        }
                    };
                    writer[..1000].fill(slot as u8 + 1);
                    drop(writer);
                    // Another slot is seen either before or after its writer, never half written.
                    let other = slab.read((slot + 1) % 4);
                    assert!(other[..1000].iter().all(|&byte| byte == other[0]));
                });
            }
        });
        for slot in 0..4 {
            assert_eq!(slab.read(slot)[999], slot as u8 + 1);
        }
    }

    #[test]
    fn a_discarded_slot_can_be_written_again_and_its_neighbours_stay() {
        let slab = Slab::new(3, 1000).unwrap();
        for slot in 0..3 {
            slab.write(slot).unwrap().fill(slot as u8 + 1);
        }
        assert!(slab.gives_back() && slab.discard(1));
        assert!(slab.read(0).iter().all(|&byte| byte == 1) && slab.read(2).iter().all(|&byte| byte == 3));
        slab.write(1).unwrap().fill(9);
        assert!(slab.read(1).iter().all(|&byte| byte == 9));
    }

    #[test]
    fn held_and_pinned_slots_are_not_discarded() {
        let slab = Slab::new(2, 1000).unwrap();
        slab.write(0).unwrap().fill(5);
        let reader = slab.read(0);
        assert!(!slab.discard(0) && reader.iter().all(|&byte| byte == 5));
        drop(reader);
        slab.pin_pages();
        assert!(!slab.gives_back() && !slab.discard(0));
        assert!(slab.read(0).iter().all(|&byte| byte == 5));
    }

    #[test]
    fn a_writer_that_panics_leaves_the_slot_usable() {
        let slab = Slab::new(1, 1).unwrap();
        let shared = Arc::clone(&slab);
        let panicked = std::thread::spawn(move || {
            let _writer = shared.write(0).unwrap();
            std::panic::resume_unwind(Box::new("the reader broke"));
        })
        .join();
        assert!(panicked.is_err());
        assert!(slab.write(0).is_some());
        assert_eq!(slab.read(0)[0], 0);
    }
}
