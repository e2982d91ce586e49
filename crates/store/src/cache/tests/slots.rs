//! The book of the slots against a plain list of what happened, for every policy.

use crate::cache::policy::{CachePolicy, Order, Ranking, Shares};
use crate::cache::slots::Slots;
use proptest::collection::vec;
use proptest::prelude::*;

const LAYERS: u32 = 3;
const EXPERTS: u32 = 8;

#[derive(Debug, Clone)]
enum Action {
    /// Experts of a layer are asked for, read and held; the last number is how many are let go at once.
    Request(u32, Vec<u32>, usize),
    /// Something that is held is let go, with a submission so many after the last completed one.
    Release(usize, u64),
    /// All submissions end but the last few.
    Retire(u64),
    Guess(u32),
    /// So many slots are to be used from now on.
    Limit(u32),
}

fn action() -> impl Strategy<Value = Action> {
    let experts = || vec(0..EXPERTS, 1..5);
    prop_oneof![
        5 => (0..LAYERS, experts(), 0..6_usize).prop_map(|(layer, experts, free)| Action::Request(layer, experts, free)),
        3 => (any::<usize>(), 0..3_u64).prop_map(|(which, fence)| Action::Release(which, fence)),
        3 => (0..3_u64).prop_map(Action::Retire),
        1 => (0..LAYERS * EXPERTS).prop_map(Action::Guess),
        1 => (0..22_u32).prop_map(Action::Limit),
    ]
}

/// An expert that is there.
#[derive(Debug, Clone)]
struct There {
    expert: u32,
    slot: u32,
    held: u32,
    fence: u64,
}

/// What happened, and who is there.
struct Plain {
    policy: CachePolicy,
    /// Slots that are to be used.
    slots: u32,
    /// Slots that are used.
    in_use: u32,
    there: Vec<There>,
    /// Every request so far.
    requests: Vec<Vec<u32>>,
    /// For each request and guess of an expert, in order.
    named: Vec<u32>,
    guessed: Vec<u32>,
    fixed: Vec<u32>,
    completed: u64,
    last: u64,
}

impl Plain {
    /// The smallest leaves first; equal numbers are ordered by the second one.
    fn key(&self, expert: u32) -> (bool, f64, usize) {
        let named = self.named.iter().rposition(|named| *named == expert).unwrap();
        // Requests are numbered from 1.
        let steps = |number: usize| (number + 1) as f64 / f64::from(LAYERS);
        let asked = self.requests.iter().enumerate().filter(|(_, request)| request.contains(&expert));
        let count = |half_life: u32| -> f64 {
            asked.map(|(number, _)| (steps(number) / f64::from(half_life)).exp2()).sum::<f64>().log2()
        };
        let class = match self.policy.order {
            Order::Lru => 0.0,
            Order::Lfu { half_life } => count(half_life),
            Order::Hybrid { half_life } => count(half_life).floor(),
        };
        (self.guessed.contains(&expert), class, named)
    }

    fn count(&self, layer: u32) -> u32 {
        self.there.iter().filter(|there| there.expert / EXPERTS == layer).count() as u32
    }

    fn share(&self, layer: u32) -> u32 {
        self.slots / LAYERS + u32::from(layer < self.slots % LAYERS)
    }

    /// Those of whom the next to go is one: of all, or of the expert's own layer, or of the layer that has most beyond its
    /// share.
    fn candidates(&self, expert: Option<u32>) -> Vec<&There> {
        let may_go = self.there.iter().filter(|there| self.may_go(there));
        if self.policy.shares == Shares::Whole {
            return may_go.collect();
        }
        let of =
            |layer: u32| may_go.clone().filter(|there| there.expert / EXPERTS == layer).collect::<Vec<_>>();
        if let Some(own) = expert.map(|expert| expert / EXPERTS)
            && self.count(own) >= self.share(own)
            && !of(own).is_empty()
        {
            return of(own);
        }
        let beyond = |layer: u32| i64::from(self.count(layer)) - i64::from(self.share(layer));
        let mut layers: Vec<u32> = (0..LAYERS).filter(|layer| !of(*layer).is_empty()).collect();
        layers.sort_by_key(|layer| -beyond(*layer));
        layers.first().map_or(Vec::new(), |layer| of(*layer))
    }

    /// Whether an expert may go.
    fn may_go(&self, there: &There) -> bool {
        there.held == 0 && there.fence <= self.completed && !self.fixed.contains(&there.expert)
    }
}

/// The slots under test beside what they should be.
struct Pair {
    slots: Slots,
    plain: Plain,
}

impl Pair {
    fn new(policy: CachePolicy, slots: u32, fixed: &[u32]) -> Self {
        let mut book = Slots::new(slots, Ranking::new(policy, LAYERS, EXPERTS));
        let mut plain = Plain {
            policy,
            slots,
            in_use: slots,
            there: Vec::new(),
            requests: Vec::new(),
            named: Vec::new(),
            guessed: Vec::new(),
            fixed: Vec::new(),
            completed: 0,
            last: 0,
        };
        let layer = |expert: u32| expert / EXPERTS;
        for &expert in fixed {
            let one_budget = policy.shares == Shares::Whole;
            let others = plain.fixed.iter().filter(|other| one_budget || layer(**other) == layer(expert));
            let share = if one_budget { slots } else { plain.share(layer(expert)) };
            if !plain.fixed.contains(&expert) && (others.count() as u32) < share / 2 {
                plain.fixed.push(expert);
            }
        }
        assert_eq!(book.fix(fixed) as usize, plain.fixed.len());
        Pair { slots: book, plain }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Request(layer, experts, free) => {
                let mut experts: Vec<u32> = experts.iter().map(|expert| layer * EXPERTS + expert).collect();
                experts.sort_unstable();
                experts.dedup();
                self.request(*layer, &experts);
                for _ in 0..*free {
                    self.release(0, 0);
                }
            }
            Action::Release(which, fence) => self.release(*which, *fence),
            Action::Retire(back) => {
                self.plain.completed = self.plain.completed.max(self.plain.last.saturating_sub(*back));
                self.slots.retire(self.plain.completed);
            }
            Action::Guess(expert) => {
                self.slots.guess(*expert);
                self.plain.named.push(*expert);
                self.plain.guessed.push(*expert);
            }
            Action::Limit(slots) => self.limit(*slots),
        }
        self.trim();
    }

    fn limit(&mut self, slots: u32) {
        self.slots.set_limit(slots);
        let plain = &mut self.plain;
        plain.slots = slots.clamp(1, self.slots.len());
        plain.in_use = plain.in_use.max(plain.slots);
        assert_eq!(self.slots.limit(), plain.slots);
        let one_budget = plain.policy.shares == Shares::Whole;
        let alike = |a: u32, b: u32| one_budget || a / EXPERTS == b / EXPERTS;
        for place in (0..plain.fixed.len()).rev() {
            let expert = plain.fixed[place];
            let share = if one_budget { plain.slots } else { plain.share(expert / EXPERTS) };
            if plain.fixed.iter().filter(|other| alike(**other, expert)).count() as u32 > share / 2 {
                plain.fixed.remove(place);
            }
        }
    }

    /// Slots beyond the limit go out of use: free ones, then those whose experts leave first.
    fn trim(&mut self) {
        loop {
            let plain = &self.plain;
            let (more, room) = (plain.in_use > plain.slots, (plain.there.len() as u32) < plain.in_use);
            let keys = if room || !more { Vec::new() } else { self.keys(None) };
            let slot = self.slots.withhold();
            assert_eq!(slot.is_some(), more && (room || !keys.is_empty()));
            let Some(slot) = slot else { break };
            assert_eq!(self.gone(&keys), (!room).then_some(slot));
            self.plain.in_use -= 1;
        }
    }

    /// Who may leave for an expert, or for nobody, with their places in the order.
    fn keys(&self, expert: Option<u32>) -> Vec<((bool, f64, usize), u32)> {
        let leaving = self.plain.candidates(expert).into_iter();
        leaving.map(|there| (self.plain.key(there.expert), there.expert)).collect()
    }

    /// Who has left, one at most; the slot, after a look at whether it was the next to go.
    fn gone(&mut self, keys: &[((bool, f64, usize), u32)]) -> Option<u32> {
        let gone = self.plain.there.iter().position(|there| self.slots.find(there.expert).is_none())?;
        let gone = self.plain.there.remove(gone);
        let key = self.plain.key(gone.expert);
        assert!(keys.iter().any(|(_, expert)| *expert == gone.expert), "{} may not go", gone.expert);
        for (other, expert) in keys {
            // Sums in another order differ in their last bits.
            let close = (other.1 - key.1).abs() < 1e-6;
            let before =
                if other.0 == key.0 && close { other.2 < key.2 && other.1 == key.1 } else { *other < key };
            assert!(!before, "{expert} {other:?} should go before {} {key:?}", gone.expert);
        }
        Some(gone.slot)
    }

    fn request(&mut self, layer: u32, experts: &[u32]) {
        self.slots.request(experts);
        self.plain.guessed.retain(|guess| guess / EXPERTS != layer);
        self.plain.requests.push(experts.to_vec());
        self.plain.named.extend(experts);
        let (hits, misses): (Vec<u32>, Vec<u32>) =
            experts.iter().partition(|expert| self.plain.there.iter().any(|there| there.expert == **expert));
        for expert in hits {
            let there = self.plain.there.iter_mut().find(|there| there.expert == expert).unwrap();
            assert!(self.slots.has(expert));
            assert_eq!(self.slots.find(expert), Some(there.slot));
            self.slots.pin(there.slot);
            there.held += 1;
        }
        for expert in misses {
            assert!(!self.slots.has(expert));
            if let Some(slot) = self.take(expert) {
                self.slots.pin(slot);
                self.slots.land(slot, Ok(()));
                self.plain.there.push(There { expert, slot, held: 1, fence: 0 });
            }
        }
    }

    /// The slot for an expert that is not there, after a look at what went for it.
    fn take(&mut self, expert: u32) -> Option<u32> {
        let room = (self.plain.there.len() as u32) < self.plain.in_use;
        let keys = if room { Vec::new() } else { self.keys(Some(expert)) };
        let evictions = self.slots.evictions();
        let slot = self.slots.take(expert);
        assert_eq!(slot.is_some(), room || !keys.is_empty());
        assert_eq!(self.slots.evictions() - evictions, u64::from(slot.is_some() && !room));
        assert_eq!(self.gone(&keys), slot.filter(|_| !room));
        slot
    }

    fn release(&mut self, which: usize, fence: u64) {
        let held: Vec<usize> =
            (0..self.plain.there.len()).filter(|place| self.plain.there[*place].held > 0).collect();
        if held.is_empty() {
            return;
        }
        let there = &mut self.plain.there[held[which % held.len()]];
        there.held -= 1;
        let fence = if fence == 0 { 0 } else { self.plain.completed + fence };
        there.fence = there.fence.max(fence);
        self.plain.last = self.plain.last.max(fence);
        self.slots.unpin(there.slot, fence);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_policy_is_what_a_list_of_events_says(
        kind in 0..CachePolicy::ALL.len(),
        half_life in 1..20_u32,
        slots in 1..20_u32,
        fixed in vec(0..LAYERS * EXPERTS, 0..8),
        actions in vec(action(), 1..80),
    ) {
        let mut policy = CachePolicy::ALL[kind];
        match &mut policy.order {
            Order::Lru => {}
            Order::Lfu { half_life: named } | Order::Hybrid { half_life: named } => *named = half_life,
        }
        let mut pair = Pair::new(policy, slots, &fixed);
        for action in &actions {
            pair.act(action);
        }
    }
}

/// With a search through all slots for each it would take minutes.
#[test]
fn a_hundred_thousand_experts_change_places() {
    let (layers, experts) = (100, 1000);
    for policy in CachePolicy::ALL {
        let mut slots = Slots::new(50_000, Ranking::new(policy, layers, experts));
        for number in 0..100_000_u32 {
            let expert = number.wrapping_mul(7919) % (layers * experts);
            slots.request(&[expert]);
            let slot = slots.take(expert).unwrap();
            slots.pin(slot);
            slots.land(slot, Ok(()));
            slots.unpin(slot, u64::from(number));
            slots.retire(u64::from(number));
        }
        assert_eq!(slots.evictions(), 50_000, "{policy}");
    }
}
