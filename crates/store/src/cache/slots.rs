//! The book of the slots: which expert lies where, who holds it, and which slot may be filled anew.
//! Plain data for one owner; it knows no thread, no file and no byte.

use super::error::ExpertError;
use super::recency::Recency;

/// No slot has this number.
const NONE: u32 = u32::MAX;

/// What a slot is at.
#[derive(Debug)]
pub(super) enum State {
    /// It holds nothing.
    Free,
    /// An expert is to be read into it or is being read.
    Reading,
    /// It holds an expert.
    Ready,
    /// The read failed; those who wait for it have not all been told yet.
    Failed(ExpertError),
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// Index of the expert, unless free.
    expert: u32,
    /// Requests and leases that hold it.
    pins: u32,
    /// Number of the last submission known to use it.
    fence: u64,
}

/// All slots of a slab. A slot is filled anew only if nobody holds it and the submissions that used it are completed.
#[derive(Debug)]
pub(super) struct Slots {
    entries: Vec<Slot>,
    /// For each expert the slot that holds it or is to hold it.
    of_expert: Vec<u32>,
    /// Free slots; the last is taken first.
    free: Vec<u32>,
    /// Slots that are ready and held by nobody, by the time the last holder let go.
    idle: Recency,
    completed: u64,
    evictions: u64,
}

impl Slots {
    /// `slots` free slots for `experts` experts.
    pub(super) fn new(slots: u32, experts: u32) -> Self {
        let free_slot = || Slot { state: State::Free, expert: NONE, pins: 0, fence: 0 };
        Self {
            entries: (0..slots).map(|_| free_slot()).collect(),
            of_expert: vec![NONE; experts as usize],
            free: (0..slots).rev().collect(),
            idle: Recency::new(slots),
            completed: 0,
            evictions: 0,
        }
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Experts that were thrown out for others.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The slot that holds the expert or is to hold it.
    pub(super) fn find(&self, expert: u32) -> Option<u32> {
        let slot = self.of_expert[expert as usize];
        (slot != NONE).then_some(slot)
    }

    /// What slot `slot` is at.
    pub(super) fn state(&self, slot: u32) -> &State {
        &self.entries[slot as usize].state
    }

    /// Whether the slot's expert can be used.
    pub(super) fn is_ready(&self, slot: u32) -> bool {
        matches!(self.state(slot), State::Ready)
    }

    /// Whether the slot's read has not come and nobody waits for it any more: a guess, or the rest of a cancelled step.
    pub(super) fn is_unwanted_read(&self, slot: u32) -> bool {
        matches!(self.state(slot), State::Reading) && self.entries[slot as usize].pins == 0
    }

    /// Gives a slot to an expert that has none: a free one, else the idle one let go longest ago whose submissions are
    /// completed. The slot is then reading and held by nobody. `None` if there is no such slot.
    pub(super) fn take(&mut self, expert: u32) -> Option<u32> {
        assert_eq!(self.of_expert[expert as usize], NONE, "the expert has a slot already");
        let slot = self.free.pop().or_else(|| self.evict())?;
        let entry = &mut self.entries[slot as usize];
        (entry.state, entry.expert) = (State::Reading, expert);
        self.of_expert[expert as usize] = slot;
        Some(slot)
    }

    fn evict(&mut self) -> Option<u32> {
        let completed = self.completed;
        let slot = self.idle.oldest_first().find(|slot| self.entries[*slot as usize].fence <= completed)?;
        self.idle.remove(slot);
        self.of_expert[self.entries[slot as usize].expert as usize] = NONE;
        self.evictions += 1;
        Some(slot)
    }

    /// Holds a slot.
    pub(super) fn pin(&mut self, slot: u32) {
        if self.entries[slot as usize].pins == 0 && self.is_ready(slot) {
            self.idle.remove(slot);
        }
        self.entries[slot as usize].pins += 1;
    }

    /// Lets go of a slot that submissions up to number `fence` use, 0 if none does.
    pub(super) fn unpin(&mut self, slot: u32, fence: u64) {
        let entry = &mut self.entries[slot as usize];
        assert!(entry.pins > 0, "slot {slot} is let go more often than it was held");
        entry.pins -= 1;
        entry.fence = entry.fence.max(fence);
        if entry.pins == 0 {
            self.settle(slot);
        }
    }

    /// Puts a slot that nobody holds where it belongs.
    fn settle(&mut self, slot: u32) {
        match self.state(slot) {
            State::Ready => self.idle.push_newest(slot),
            State::Failed(_) => self.vacate(slot),
            State::Free | State::Reading => {}
        }
    }

    fn vacate(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        (entry.state, entry.expert) = (State::Free, NONE);
        self.free.push(slot);
    }

    /// The read of a slot has ended.
    pub(super) fn land(&mut self, slot: u32, result: Result<(), ExpertError>) {
        let entry = &mut self.entries[slot as usize];
        assert!(matches!(entry.state, State::Reading), "slot {slot} lands without being read");
        match result {
            Ok(()) => entry.state = State::Ready,
            Err(error) => {
                // From here on the expert is not cached: who asks next has it read again, into another slot.
                entry.state = State::Failed(error);
                self.of_expert[entry.expert as usize] = NONE;
            }
        }
        if self.entries[slot as usize].pins == 0 {
            self.settle(slot);
        }
    }

    /// Takes back an unwanted read that has not started.
    pub(super) fn withdraw(&mut self, slot: u32) {
        assert!(self.is_unwanted_read(slot), "slot {slot} is wanted");
        self.of_expert[self.entries[slot as usize].expert as usize] = NONE;
        self.vacate(slot);
    }

    /// Submissions up to number `completed` have ended.
    pub(super) fn retire(&mut self, completed: u64) {
        self.completed = self.completed.max(completed);
    }

    /// Experts that are ready and held by nobody, the one let go longest ago first.
    #[cfg(test)]
    pub(super) fn idle_experts(&self) -> Vec<u32> {
        self.idle.oldest_first().map(|slot| self.entries[slot as usize].expert).collect()
    }
}
