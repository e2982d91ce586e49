//! Lets a cache give slots back while memory is short, and take them again: how its limit is moved, and who says so. What is
//! asked of the system is the gauge's business, what follows from it is decided in `pressure.rs`.

use super::ExpertCache;
use super::pressure::{self, Bounds, Decision, Pages, Signals, State};
use memory::pressure::{Gauge, Pressure};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The system is asked no more often.
const EVERY: Duration = Duration::from_millis(250);
/// Pages that are touched of one expert.
const PROBES: u32 = 8;
/// The stretch in which a probe moves from time to time: the smallest page.
const PAGE_BYTES: usize = 4096;
/// A page that is there comes in well below a microsecond, a small one that must be mapped in one or two; one that was
/// compressed or lies on a disk takes longer than this.
const SLOW_PAGE: Duration = Duration::from_micros(20);

/// Why memory is short, for who has no slots to give; None if it is not. `reserve` are the bytes that are to be left to
/// everything else on the machine, `swapped` those of this process that were in swap before.
#[must_use]
pub fn short_memory(pressure: &Pressure, reserve: u64, swapped: u64) -> Option<String> {
    pressure::short_memory(pressure, reserve, swapped)
}

/// Watches memory for a cache; see [`ExpertCache::govern_by`].
pub struct Governor {
    gauge: Box<dyn Gauge>,
    least: u32,
    reserve: u64,
    /// When the system was asked last.
    asked: Option<Duration>,
    given: Option<Duration>,
    calm_since: Duration,
    swapped: Option<u64>,
    pages: Pages,
    /// Experts that were probed so far.
    probes: usize,
    counts: Governed,
    /// Whether it was said that there is no more to give.
    exhausted: bool,
    /// Whether it was said that the system does not take what is given.
    refused: bool,
}

/// What a governor did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Governed {
    /// Slots that were given back, one that was taken again in between as often as it was given.
    pub given_back: u64,
    /// Slots that were taken again.
    pub taken_back: u64,
    /// The fewest slots there were; 0 without slots.
    pub slots_least: u32,
}

impl Governor {
    /// By what `gauge` says, with `least` slots that are always kept, on a machine of which `reserve` bytes are to stay free.
    #[must_use]
    pub fn new(gauge: Box<dyn Gauge>, least: u32, reserve: u64) -> Self {
        Self {
            gauge,
            least,
            reserve,
            asked: None,
            given: None,
            calm_since: Duration::ZERO,
            swapped: None,
            pages: Pages::default(),
            probes: 0,
            counts: Governed::default(),
            exhausted: false,
            refused: false,
        }
    }

    /// The time, if it is time to ask.
    fn due(&mut self) -> Option<Duration> {
        let now = self.gauge.now();
        if self.asked.is_some_and(|asked| now.saturating_sub(asked) < EVERY) {
            return None;
        }
        if self.asked.is_none() {
            self.calm_since = now;
        }
        self.asked = Some(now);
        Some(now)
    }

    /// What is to be done with a cache of so many slots.
    fn look(
        &mut self,
        now: Duration,
        (planned, slot_bytes): (u32, u64),
        (limit, unfilled): (u32, u32),
    ) -> Decision {
        let signals = Signals { now, pressure: self.gauge.read(), pages: self.pages };
        let read = signals.pressure.swapped;
        let swapped = *self.swapped.get_or_insert(read.unwrap_or(0));
        let bounds =
            Bounds { planned, least: self.least.clamp(1, planned), slot_bytes, reserve: self.reserve };
        let state = State { limit, unfilled, given: self.given, calm_since: self.calm_since, swapped };
        let short = pressure::cause(&bounds, &state, &signals).is_some();
        let decision = pressure::decide(&bounds, &state, &signals);
        if short || decision != Decision::Keep {
            self.calm_since = now;
        }
        if short && !state.is_answered(now) {
            self.given = Some(now);
            // What went out so far was answered; it may come back, and go again.
            self.swapped = read;
        } else if !short {
            self.swapped = read.map(|read| read.min(swapped)).or(self.swapped);
        }
        if self.pages.touched >= pressure::PAGES_LEAST {
            self.pages = Pages::default();
        }
        decision
    }
}

impl ExpertCache {
    /// The same with somebody who watches memory: when it is short, slots are given back before the system takes them by
    /// compressing or swapping, a quarter at a time and never below the governor's least; after calm minutes they are taken
    /// again. It is asked with the requests. Without effect where the slab's pages are [pinned](memory::Slab::pin_pages).
    #[must_use]
    pub fn govern_by(mut self, governor: Governor) -> Self {
        self.governor = self.slab.gives_back().then(|| Box::new(governor));
        self
    }

    /// What the governor did, nothing without one.
    #[must_use]
    pub fn governed(&self) -> Governed {
        let none = Governed { slots_least: self.slots.len(), ..Governed::default() };
        self.governor.as_ref().map_or(none, |governor| Governed {
            slots_least: none.slots_least.min(self.slots_least),
            ..governor.counts
        })
    }

    /// Slots that are to be used at present.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.slots.limit()
    }

    /// From now on so many slots are used, one at least and no more than there are. Of those beyond, the experts that are the
    /// next to go leave at once, others when they can; their memory goes back to the system until it is used again.
    pub fn set_limit(&mut self, slots: u32) {
        self.slots.set_limit(slots);
        self.slots_least = self.slots_least.min(self.slots.limit());
        self.trim();
    }

    /// Takes slots out of use that are too many and can go.
    pub(super) fn trim(&mut self) {
        while let Some(slot) = self.slots.withhold() {
            self.causes.waste(slot, &mut self.statistics);
            if self.slab.discard(slot) {
                self.slots.discarded(slot);
            } else if let Some(governor) = &mut self.governor
                && !std::mem::replace(&mut governor.refused, true)
            {
                tracing::warn!(
                    "the memory of slots that are given back cannot be freed: the cache is smaller for nothing"
                );
            }
        }
    }

    /// Looks at memory if it is time to, and moves the limit.
    pub(super) fn govern(&mut self) {
        let Some(governor) = &mut self.governor else { return };
        let Some(now) = governor.due() else { return };
        let (limit, planned) = (self.slots.limit(), self.slots.len());
        let size = (planned, self.slab.slot_bytes());
        match governor.look(now, size, (limit, self.slots.unfilled())) {
            Decision::Keep => {}
            Decision::GiveBack(0, cause) => {
                if !std::mem::replace(&mut governor.exhausted, true) {
                    tracing::warn!(%cause, slots = limit, "memory is short, and no more slots can be given back");
                }
            }
            Decision::GiveBack(slots, cause) => {
                let first = governor.counts.given_back == 0;
                governor.counts.given_back += u64::from(slots);
                if first {
                    tracing::warn!(%cause, slots, of = limit, "memory is short: slots for experts are given back");
                } else {
                    tracing::info!(%cause, slots, of = limit, "slots for experts are given back");
                }
                self.set_limit(limit - slots);
            }
            Decision::TakeBack(slots) => {
                governor.exhausted = false;
                governor.counts.taken_back += u64::from(slots);
                tracing::info!(slots, of = planned, "memory is plenty: slots for experts are taken again");
                self.set_limit(limit + slots);
            }
        }
    }

    /// Touches a few pages of one of these experts, those of which are there, and notes how long each took.
    pub(super) fn probe(&mut self, experts: &[u32]) {
        let Some(governor) = &mut self.governor else { return };
        // Another one each time.
        let (front, back) = experts.split_at(governor.probes.checked_rem(experts.len()).unwrap_or(0));
        let mut slots = back.iter().chain(front).filter_map(|&expert| self.slots.find(expert));
        let Some(slot) = slots.find(|&slot| self.slots.is_ready(slot)) else { return };
        let start = self.payloads[slot as usize] as usize;
        let bytes = self.catalog.layout().payload_bytes() as usize;
        let stretch = bytes / PROBES as usize;
        if stretch == 0 {
            return;
        }
        let moved = governor.probes * PAGE_BYTES % stretch;
        governor.probes += 1;
        let held = self.slab.read(slot);
        for probe in 0..PROBES as usize {
            let begun = Instant::now();
            black_box(held[start + probe * stretch + moved]);
            governor.pages.slow += u32::from(begun.elapsed() > SLOW_PAGE);
        }
        governor.pages.touched += PROBES;
    }
}
