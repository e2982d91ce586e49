//! The order in which slots were last used, as a linked list inside one vector. It knows slot numbers only.

/// No slot has this number.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

/// A list of slots from the one used longest ago to the one used last. All changes take constant time.
#[derive(Debug)]
pub(super) struct Recency {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

impl Recency {
    /// An empty list for slots 0 to `slots`.
    pub(super) fn new(slots: u32) -> Self {
        let links = vec![Link { older: NONE, newer: NONE }; slots as usize];
        Self { links, oldest: NONE, newest: NONE }
    }

    /// Puts a slot that is not in the list at its newest end.
    pub(super) fn push_newest(&mut self, slot: u32) {
        self.links[slot as usize] = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    /// Takes a slot out of the list, which must be in it.
    pub(super) fn remove(&mut self, slot: u32) {
        let Link { older, newer } = self.links[slot as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    /// The slots, the one used longest ago first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = u32> + '_ {
        let existing = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(existing(self.oldest), move |slot| existing(self.links[*slot as usize].newer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(list: &Recency) -> Vec<u32> {
        list.oldest_first().collect()
    }

    #[test]
    fn slots_leave_from_either_end_and_the_middle() {
        let mut list = Recency::new(5);
        assert!(order(&list).is_empty());
        for slot in [3, 1, 4, 0] {
            list.push_newest(slot);
        }
        assert_eq!(order(&list), [3, 1, 4, 0]);
        list.remove(1);
        list.remove(3);
        list.remove(0);
        assert_eq!(order(&list), [4]);
        list.push_newest(3);
        assert_eq!(order(&list), [4, 3]);
        list.remove(4);
        list.remove(3);
        assert!(order(&list).is_empty());
        list.push_newest(2);
        assert_eq!(order(&list), [2]);
    }
}
