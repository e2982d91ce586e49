//! The geometry of a slab, computed before anything is allocated. It knows sizes, not memory.

use crate::MemoryError;

/// Slots start at multiples of this many bytes: more than any page or any device's alignment for imported memory.
pub const SLOT_ALIGNMENT: u64 = 64 * 1024;

/// Windows start at multiples of this many bytes from the base; no slot crosses one, because 128 MiB is the most that
/// every device binds at once (WebGPU's default `maxStorageBufferBindingSize`).
pub const WINDOW_BYTES: u64 = 128 * 1024 * 1024;

/// The geometry of a slab, known before anything is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabPlan {
    slots: u32,
    slot_bytes: u64,
}

impl SlabPlan {
    /// Plans `slots` slots that hold `payload_bytes` bytes each.
    ///
    /// # Errors
    /// [`MemoryError::EmptySlab`] for none of either, [`MemoryError::SlotTooLarge`] for more than a window.
    pub fn new(slots: u32, payload_bytes: u64) -> Result<Self, MemoryError> {
        if slots == 0 || payload_bytes == 0 {
            return Err(MemoryError::EmptySlab { slots, payload_bytes });
        }
        let slot_bytes = payload_bytes.checked_next_multiple_of(SLOT_ALIGNMENT).unwrap_or(u64::MAX);
        if slot_bytes > WINDOW_BYTES {
            return Err(MemoryError::SlotTooLarge { slot_bytes, window_bytes: WINDOW_BYTES });
        }
        Ok(Self { slots, slot_bytes })
    }

    /// Plans as many slots for `payload_bytes` as `bytes` bytes of committed memory hold, at most `slots_max`.
    ///
    /// # Errors
    /// As [`SlabPlan::new`]; [`MemoryError::CacheTooSmall`] if not one slot fits.
    pub fn fitting(bytes: u64, payload_bytes: u64, slots_max: u32) -> Result<Self, MemoryError> {
        let one = Self::new(1, payload_bytes)?;
        let slots = u32::try_from(bytes / one.slot_bytes).unwrap_or(u32::MAX).min(slots_max);
        if slots == 0 && slots_max > 0 {
            return Err(MemoryError::CacheTooSmall { bytes, slot_bytes: one.slot_bytes });
        }
        Self::new(slots, payload_bytes)
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of one slot: the payload rounded up to [`SLOT_ALIGNMENT`].
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Where slot `slot` starts, in bytes from the base; slots that do not exist go on in the same pattern.
    #[must_use]
    pub fn offset(&self, slot: u32) -> u64 {
        let slots_in_window = WINDOW_BYTES / self.slot_bytes;
        let slot = u64::from(slot);
        slot / slots_in_window * WINDOW_BYTES + slot % slots_in_window * self.slot_bytes
    }

    /// Bytes of addresses from the base to the end of the last slot, the gaps at the ends of windows included.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.offset(self.slots - 1) + self.slot_bytes
    }

    /// Bytes of memory once every slot has been filled: gaps are never touched and so cost addresses only, unless a
    /// device imports the slab whole.
    #[must_use]
    pub fn bytes_committed(&self) -> u64 {
        u64::from(self.slots) * self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One K3 expert: six pieces back to back.
    const K3_PAYLOAD: u64 = 17_547_264;

    #[test]
    fn k3_slots_are_seven_a_window() {
        let plan = SlabPlan::new(15, K3_PAYLOAD).unwrap();
        assert_eq!(plan.slot_bytes(), 268 * SLOT_ALIGNMENT);
        assert_eq!(plan.offset(6), 6 * plan.slot_bytes());
        assert_eq!(plan.offset(7), WINDOW_BYTES);
        assert_eq!(plan.bytes_total(), 2 * WINDOW_BYTES + plan.slot_bytes());
        assert_eq!(plan.bytes_committed(), 15 * plan.slot_bytes());
    }

    #[test]
    fn a_slot_may_fill_a_window_but_not_more() {
        assert_eq!(SlabPlan::new(2, WINDOW_BYTES).unwrap().offset(1), WINDOW_BYTES);
        for payload_bytes in [WINDOW_BYTES + 1, u64::MAX] {
            let error = SlabPlan::new(1, payload_bytes).unwrap_err();
            assert!(matches!(error, MemoryError::SlotTooLarge { .. }), "{error}");
        }
    }

    #[test]
    fn the_plan_fits_the_bytes() {
        let slot_bytes = 268 * SLOT_ALIGNMENT;
        assert_eq!(SlabPlan::fitting(4 * slot_bytes - 1, K3_PAYLOAD, 100).unwrap().slots(), 3);
        assert_eq!(SlabPlan::fitting(u64::MAX, K3_PAYLOAD, 100).unwrap().slots(), 100);
        let error = SlabPlan::fitting(slot_bytes - 1, K3_PAYLOAD, 100).unwrap_err();
        assert!(matches!(error, MemoryError::CacheTooSmall { .. }), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn slots_are_disjoint_aligned_and_inside_one_window(payload_bytes in 1..=WINDOW_BYTES, slots in 1..3000_u32) {
            let plan = SlabPlan::new(slots, payload_bytes).unwrap();
            prop_assert!(plan.slot_bytes() >= payload_bytes && plan.slot_bytes() - payload_bytes < SLOT_ALIGNMENT);
            let mut end = 0;
            for slot in 0..slots {
                let start = plan.offset(slot);
                prop_assert!(start >= end && start.is_multiple_of(SLOT_ALIGNMENT));
                end = start + plan.slot_bytes();
                prop_assert_eq!(start / WINDOW_BYTES, (end - 1) / WINDOW_BYTES);
            }
            prop_assert_eq!(end, plan.bytes_total());
        }
    }
}
