//! The book of the slots: which expert lies where, who holds it, and which slot may be filled anew.
//! Plain data for one owner; it knows no thread, no file and no byte.

use super::error::ExpertError;
use super::policy::{Key, Ranking};
use std::collections::BTreeSet;

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

/// Where a slot waits until somebody wants it or its expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nowhere: it is free, held, on its way, or stays for good.
    None,
    /// Among those that submissions may still use.
    Resting,
    /// Among those that may be filled anew, at this place in their order.
    Evictable(Key),
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
    place: Place,
    /// Whether it has memory of its own: something was read into it since its memory was last given back.
    backed: bool,
}

/// The slots of one layer, or of all.
#[derive(Debug, Default)]
struct Group {
    /// Slots that it keeps against other groups.
    share: u32,
    /// Slots that it has.
    taken: u32,
    /// Of its experts, those that stay.
    fixed: u32,
    /// Ready, held by nobody and used by no submission: the first is the next to go.
    evictable: BTreeSet<(Key, u32)>,
}

/// All slots of a slab. A slot is filled anew only if nobody holds it, its expert is not to stay and the submissions that
/// used it are completed. A call takes the logarithm of the number of slots for each expert or slot that it moves; only where
/// layers share slots out and one needs more than its share, a look at each layer is added.
#[derive(Debug)]
pub(super) struct Slots {
    entries: Vec<Slot>,
    /// For each expert the slot that holds it or is to hold it.
    of_expert: Vec<u32>,
    /// Free slots; the last is taken first.
    free: Vec<u32>,
    /// Slots that are to be used.
    limit: u32,
    /// Slots out of use; they hold nothing.
    withheld: Vec<u32>,
    /// Slots in use that have memory.
    backed: u32,
    ranking: Ranking,
    groups: Vec<Group>,
    /// Experts that stay once they are there.
    fixed: Vec<bool>,
    /// The same as a list, in the order in which they were named.
    fixed_list: Vec<u32>,
    /// Ready slots that nobody holds, by the submission that uses them.
    resting: BTreeSet<(u64, u32)>,
    /// Whether any expert is guessed.
    guesses: bool,
    completed: u64,
    evictions: u64,
}

impl Slots {
    /// `slots` free slots for the experts of `ranking`.
    pub(super) fn new(slots: u32, ranking: Ranking) -> Self {
        let free_slot = || Slot {
            state: State::Free,
            expert: NONE,
            pins: 0,
            fence: 0,
            place: Place::None,
            backed: false,
        };
        let groups = ranking.groups();
        let mut slots = Self {
            entries: (0..slots).map(|_| free_slot()).collect(),
            of_expert: vec![NONE; ranking.experts() as usize],
            free: (0..slots).rev().collect(),
            limit: slots,
            withheld: Vec::new(),
            backed: 0,
            groups: (0..groups).map(|_| Group::default()).collect(),
            fixed: vec![false; ranking.experts() as usize],
            fixed_list: Vec::new(),
            ranking,
            resting: BTreeSet::new(),
            guesses: false,
            completed: 0,
            evictions: 0,
        };
        slots.share_out();
        slots
    }

    /// Divides the slots in use among the groups.
    fn share_out(&mut self) {
        let groups = self.groups.len() as u32;
        for (number, group) in (0..groups).zip(&mut self.groups) {
            group.share = self.limit / groups + u32::from(number < self.limit % groups);
        }
    }

    /// Number of slots that are to be used.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// From now on so many slots are to be used, one at least and no more than there are. Those beyond are taken out of use by
    /// [`Slots::withhold`]; of the experts that stay for good no more do so than half of the slots.
    pub(super) fn set_limit(&mut self, slots: u32) {
        self.limit = slots.clamp(1, self.len());
        self.share_out();
        while self.in_use() < self.limit
            && let Some(slot) = self.withheld.pop()
        {
            self.backed += u32::from(self.entries[slot as usize].backed);
            self.free.push(slot);
        }
        for place in (0..self.fixed_list.len()).rev() {
            let expert = self.fixed_list[place];
            let group = &mut self.groups[self.ranking.group(expert)];
            if group.fixed > group.share / 2 {
                group.fixed -= 1;
                self.fixed_list.remove(place);
                self.fixed[expert as usize] = false;
                if let Some(slot) = self.find(expert).filter(|&slot| self.is_idle(slot)) {
                    self.place(slot);
                }
            }
        }
    }

    /// Slots to be used that have no memory yet, those that are read into for the first time among them.
    pub(super) fn unfilled(&self) -> u32 {
        self.limit.saturating_sub(self.backed)
    }

    /// Slots that are in use.
    fn in_use(&self) -> u32 {
        self.len() - self.withheld.len() as u32
    }

    /// Takes one slot out of use if there are more than there should be: a free one, else that of the expert that is the next
    /// to go. None if there are not, or none can go at present. It keeps its memory until that is [gone](Slots::discarded).
    pub(super) fn withhold(&mut self) -> Option<u32> {
        if self.in_use() <= self.limit {
            return None;
        }
        let slot = self.free.pop().or_else(|| {
            let slot = self.throw_out(self.largest()?)?;
            (self.entries[slot as usize].state, self.entries[slot as usize].expert) = (State::Free, NONE);
            Some(slot)
        })?;
        self.withheld.push(slot);
        self.backed -= u32::from(self.entries[slot as usize].backed);
        Some(slot)
    }

    /// The system has taken the memory of a slot that is out of use.
    pub(super) fn discarded(&mut self, slot: u32) {
        debug_assert!(self.withheld.contains(&slot), "slot {slot} is in use");
        self.entries[slot as usize].backed = false;
    }

    /// Number of slots.
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Experts that were thrown out for others.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// It is known from before in which share of all steps each expert is asked for, as far as the list goes.
    pub(super) fn expect(&mut self, shares: &[f64]) {
        for (expert, &share) in (0..self.ranking.experts()).zip(shares) {
            if share > 0.0 {
                self.ranking.expect(expert, share);
                self.place_again(expert);
            }
        }
    }

    /// The number of the request that needs an expert after the next one, for [`Ranking::optimal`].
    pub(super) fn foresee(&mut self, expert: u32, request: u64) {
        self.ranking.foresee(expert, request);
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

    /// Whether the expert is there.
    pub(super) fn has(&self, expert: u32) -> bool {
        self.find(expert).is_some_and(|slot| self.is_ready(slot))
    }

    /// Whether the slot's read has not come and nobody waits for it any more: a guess, or the rest of a cancelled step.
    pub(super) fn is_unwanted_read(&self, slot: u32) -> bool {
        matches!(self.state(slot), State::Reading) && self.entries[slot as usize].pins == 0
    }

    /// Experts are asked for, in ascending order. This is what moves them in the order of leaving: when they arrive and when
    /// they are let go changes nothing, so that it does not depend on how fast reads are.
    pub(super) fn request(&mut self, experts: &[u32]) {
        if self.guesses {
            self.end_guesses(experts);
        }
        self.ranking.request(experts);
        for &expert in experts {
            self.place_again(expert);
        }
    }

    /// The layers of these experts have come: what was guessed of them stands in the order like all others.
    fn end_guesses(&mut self, experts: &[u32]) {
        let mut done = 0;
        for &expert in experts {
            let layer = self.ranking.layer_of(expert);
            for expert in layer.start.max(done)..layer.end {
                if self.ranking.take_guess(expert) {
                    self.place_again(expert);
                }
            }
            done = layer.end;
        }
    }

    /// An expert is guessed to be asked for.
    pub(super) fn guess(&mut self, expert: u32) {
        self.guesses = true;
        self.ranking.guess(expert);
        self.place_again(expert);
    }

    /// Keeps experts for good once they are there: those of the list, from its start, that leave half of the slots of their
    /// layers to others. How many these are.
    pub(super) fn fix(&mut self, experts: &[u32]) -> u32 {
        let mut count = 0;
        for &expert in experts {
            let group = &mut self.groups[self.ranking.group(expert)];
            if self.fixed[expert as usize] || group.fixed >= group.share / 2 {
                continue;
            }
            group.fixed += 1;
            count += 1;
            let idle = self.find(expert).filter(|&slot| self.is_idle(slot));
            if let Some(slot) = idle {
                self.displace(slot);
            }
            self.fixed[expert as usize] = true;
            self.fixed_list.push(expert);
        }
        count
    }

    fn is_idle(&self, slot: u32) -> bool {
        self.is_ready(slot) && self.entries[slot as usize].pins == 0
    }

    /// Enters an expert whose place in the order has changed anew, if it waits in that order.
    fn place_again(&mut self, expert: u32) {
        let Some(slot) = self.find(expert) else { return };
        if matches!(self.entries[slot as usize].place, Place::Evictable(_)) {
            self.displace(slot);
            self.place(slot);
        }
    }

    /// Lets a slot that is ready and held by nobody wait where it belongs.
    fn place(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.place = if self.fixed[entry.expert as usize] {
            Place::None
        } else if entry.fence > self.completed {
            self.resting.insert((entry.fence, slot));
            Place::Resting
        } else {
            let key = self.ranking.key(entry.expert);
            self.groups[self.ranking.group(entry.expert)].evictable.insert((key, slot));
            Place::Evictable(key)
        };
    }

    /// Takes a slot from where it waits.
    fn displace(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        match std::mem::replace(&mut entry.place, Place::None) {
            Place::None => {}
            Place::Resting => {
                self.resting.remove(&(entry.fence, slot));
            }
            Place::Evictable(key) => {
                self.groups[self.ranking.group(entry.expert)].evictable.remove(&(key, slot));
            }
        }
    }

    /// Gives a slot to an expert that has none: a free one, else that of the expert that is the next to go. The slot is then
    /// reading and held by nobody. `None` if there is no such slot.
    ///
    /// A group that has its share takes from itself, one that has less (or of whose slots none may be filled anew) takes from
    /// the group that has most beyond its share. So a layer that needs more slots than its share for a moment gets them.
    pub(super) fn take(&mut self, expert: u32) -> Option<u32> {
        assert_eq!(self.of_expert[expert as usize], NONE, "the expert has a slot already");
        let group = self.ranking.group(expert);
        let slot = self.free.pop().or_else(|| self.evict(group))?;
        let entry = &mut self.entries[slot as usize];
        (entry.state, entry.expert) = (State::Reading, expert);
        self.of_expert[expert as usize] = slot;
        self.groups[group].taken += 1;
        Some(slot)
    }

    fn evict(&mut self, group: usize) -> Option<u32> {
        let own = &self.groups[group];
        let from = if own.taken >= own.share && !own.evictable.is_empty() { group } else { self.largest()? };
        let slot = self.throw_out(from)?;
        self.evictions += 1;
        Some(slot)
    }

    /// Throws out the expert of a group that is the next to go; its slot is nobody's then.
    fn throw_out(&mut self, group: usize) -> Option<u32> {
        let (_, slot) = self.groups[group].evictable.pop_first()?;
        let entry = &mut self.entries[slot as usize];
        entry.place = Place::None;
        self.of_expert[entry.expert as usize] = NONE;
        self.groups[group].taken -= 1;
        Some(slot)
    }

    /// Of the groups with a slot that may be filled anew, the first of those with most slots beyond their shares.
    fn largest(&self) -> Option<usize> {
        let beyond = |group: &Group| i64::from(group.taken) - i64::from(group.share);
        let groups = self.groups.iter().enumerate().filter(|(_, group)| !group.evictable.is_empty());
        groups.rev().max_by_key(|(_, group)| beyond(group)).map(|(number, _)| number)
    }

    /// Holds a slot.
    pub(super) fn pin(&mut self, slot: u32) {
        self.displace(slot);
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
            State::Ready => self.place(slot),
            State::Failed(_) => self.vacate(slot),
            State::Free | State::Reading => {}
        }
    }

    fn vacate(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        self.groups[self.ranking.group(entry.expert)].taken -= 1;
        (entry.state, entry.expert) = (State::Free, NONE);
        self.free.push(slot);
    }

    /// The read of a slot has ended.
    pub(super) fn land(&mut self, slot: u32, result: Result<(), ExpertError>) {
        let entry = &mut self.entries[slot as usize];
        assert!(matches!(entry.state, State::Reading), "slot {slot} lands without being read");
        self.backed += u32::from(!std::mem::replace(&mut entry.backed, true));
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
        while let Some(&(fence, slot)) = self.resting.first()
            && fence <= self.completed
        {
            self.displace(slot);
            self.place(slot);
        }
    }

    /// Experts that are ready and held by nobody, the one that is the next to go first.
    #[cfg(test)]
    pub(super) fn idle_experts(&self) -> Vec<u32> {
        let idle = |slot: &u32| self.is_idle(*slot);
        let mut experts: Vec<u32> =
            (0..self.len()).filter(idle).map(|slot| self.entries[slot as usize].expert).collect();
        experts.sort_by_key(|expert| self.ranking.key(*expert));
        experts
    }
}
