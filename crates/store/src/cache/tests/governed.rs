//! A cache that gives slots back while memory is short, with a gauge that says what a test wants.

use super::*;
use crate::cache::governor::{Governed, Governor};
use memory::pressure::{Gauge, Pressure};
use std::sync::{Mutex, MutexGuard};

/// What the gauge says, and how often it was asked.
#[derive(Debug, Default)]
struct Told {
    now: Duration,
    pressure: Pressure,
    asked: u32,
}

#[derive(Debug, Clone, Default)]
struct Fake(Arc<Mutex<Told>>);

impl Fake {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap()
    }

    /// So many seconds later so many bytes are left.
    fn later(&self, seconds: u64, available: u64) {
        let mut told = self.told();
        told.now += Duration::from_secs(seconds);
        told.pressure.available = Some(available);
    }
}

impl Gauge for Fake {
    fn now(&mut self) -> Duration {
        self.told().now
    }

    fn read(&mut self) -> Pressure {
        self.told().asked += 1;
        self.told().pressure
    }
}

const RESERVE: u64 = 1000;
const PLENTY: u64 = u64::MAX;

/// A cache of eight slots, of which two always stay.
fn governed(readers: u32) -> (ExpertCache, Fake) {
    let fake = Fake::default();
    let governor = Governor::new(Box::new(fake.clone()), 2, RESERVE);
    let cache = cache(faulty(), 8, readers).0.with_policy(CachePolicy::ALL[0]);
    (cache.govern_by(governor), fake)
}

fn layer(layer: u16, experts: std::ops::Range<u16>) -> Vec<ExpertId> {
    experts.map(|expert| id(layer, expert)).collect()
}

#[test]
fn while_memory_is_short_the_next_to_go_leave_a_quarter_at_a_time() {
    let (mut cache, fake) = governed(1);
    cache.touch(&layer(1, 0..6));
    cache.touch(&layer(2, 0..2));
    assert_eq!((cache.limit(), cache.cached().len()), (8, 8));
    fake.later(1, RESERVE / 2 - 1);
    cache.touch(&[id(2, 0)]);
    assert_eq!(cache.limit(), 6);
    assert_eq!(cache.cached(), [layer(1, 2..6), layer(2, 0..2)].concat());
    fake.later(1, 0);
    cache.touch(&[id(2, 0)]);
    assert_eq!(cache.limit(), 6, "what was given back must show first");
    for limit in [5, 4, 3, 2, 2] {
        fake.later(5, 0);
        cache.touch(&[id(2, 0)]);
        assert_eq!((cache.limit(), cache.cached().len()), (limit, limit as usize));
    }
    assert_eq!(cache.cached(), layer(2, 0..2), "asked for last");
    assert_eq!(cache.governed(), Governed { given_back: 6, taken_back: 0, slots_least: 2 });
    // Whole waves go through what is left.
    let (mut request, mut arrived) = (cache.request(&layer(1, 0..6)), 0);
    loop {
        match cache.next(&mut request, None) {
            Next::Arrived(arrivals) => {
                for arrival in arrivals {
                    let lease = arrival.result.unwrap();
                    assert_eq!(cache.bytes(&lease), expected(arrival.id));
                    cache.release(lease, 0);
                    arrived += 1;
                }
            }
            Next::Finished => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((arrived, cache.cached().len()), (6, 2));
}

#[test]
fn slots_come_back_by_and_by_and_no_more_than_were_planned() {
    let (mut cache, fake) = governed(1);
    cache.touch(&layer(1, 0..6));
    for _ in 0..9 {
        fake.later(5, 0);
        cache.touch(&[id(1, 0)]);
    }
    assert_eq!(cache.limit(), 2);
    fake.later(59, PLENTY);
    cache.touch(&[id(1, 0)]);
    assert_eq!(cache.limit(), 2);
    for limit in [3, 4, 5, 6, 7, 8, 8] {
        fake.later(60, PLENTY);
        cache.touch(&[id(1, 0)]);
        assert_eq!(cache.limit(), limit);
    }
    assert_eq!(cache.governed(), Governed { given_back: 6, taken_back: 6, slots_least: 2 });
    cache.touch(&all().collect::<Vec<_>>()[2..10]);
    assert_eq!(cache.cached().len(), 8);
}

#[test]
fn held_experts_leave_when_they_are_let_go_and_used_when_that_is_over() {
    let (mut cache, _) = governed(1);
    let leases = cache.get(&layer(1, 0..6));
    cache.touch(&[id(2, 0)]);
    cache.set_limit(4);
    assert_eq!(cache.cached(), layer(1, 0..6), "what is held stays, all others had to go");
    let mut request = cache.request(&[id(2, 1)]);
    assert!(matches!(cache.next(&mut request, None), Next::NeedsSlots));
    cache.abandon(request);
    for (number, lease) in leases.into_iter().enumerate() {
        assert_eq!(cache.bytes(&lease), expected(lease.id()));
        cache.release(lease, number as u64);
    }
    assert_eq!(cache.cached(), layer(1, 1..6), "its use was over, that of the others goes on");
    cache.retire(3);
    assert_eq!(cache.cached(), layer(1, 2..6));
    cache.retire(9);
    assert_eq!(cache.cached(), layer(1, 2..6));
}

/// Linux hands out zeros where a page was given back.
#[cfg(target_os = "linux")]
#[test]
fn the_memory_of_what_left_is_given_back() {
    let (mut cache, _) = governed(1);
    cache.touch(&layer(1, 0..6));
    let slots: Vec<u32> = layer(1, 0..6).iter().map(|id| cache.place_of(*id).unwrap().0).collect();
    cache.set_limit(3);
    let zeros = |slot: &u32| cache.slab().read(*slot).iter().all(|byte| *byte == 0);
    assert_eq!(slots.iter().map(zeros).collect::<Vec<_>>(), [true, true, true, false, false, false]);
    cache.touch(&layer(1, 0..3));
}

/// Somebody who holds the slot stands for a system that does not take its pages.
#[test]
fn memory_that_could_not_be_given_back_is_there_when_the_slot_is_used_again() {
    let (mut cache, _) = governed(1);
    cache.touch(&layer(1, 0..6));
    cache.touch(&layer(2, 0..2));
    let slot = cache.place_of(id(1, 0)).unwrap().0;
    let slab = Arc::clone(cache.slab());
    let holder = slab.read(slot);
    cache.set_limit(7);
    assert_eq!((cache.cached().len(), cache.slots.unfilled()), (7, 0));
    cache.set_limit(8);
    assert_eq!(cache.slots.unfilled(), 0, "it was never gone");
    drop(holder);
    cache.set_limit(7);
    cache.set_limit(8);
    assert_eq!(cache.slots.unfilled(), 1);
}

/// Memory that reads under way are going to take counts as taken: they cannot be called back.
#[test]
fn slots_that_are_being_read_for_the_first_time_count_as_empty() {
    let (mut cache, _) = governed(1);
    let request = cache.request(&layer(1, 0..6));
    assert_eq!(cache.slots.unfilled(), 8, "nothing has landed that the owner knows of");
    cache.settle();
    assert_eq!(cache.slots.unfilled(), 2);
    cache.abandon(request);
    cache.touch(&layer(2, 0..6));
    assert_eq!(cache.slots.unfilled(), 0, "slots that were evicted have their memory already");
    cache.set_limit(5);
    assert_eq!(cache.slots.unfilled(), 0);
    cache.set_limit(7);
    assert_eq!(cache.slots.unfilled(), 2);
}

#[test]
fn a_guess_that_had_to_go_is_counted_as_wasted() {
    let (mut cache, _) = governed(1);
    cache.prefetch(&layer(1, 0..3));
    cache.settle();
    cache.set_limit(1);
    let counts = cache.statistics();
    assert_eq!((counts.guesses, counts.guesses_wasted, counts.evictions), (3, 2, 0));
    assert_eq!(counts.bytes_guessed_wasted, 2 * PAYLOAD_BYTES);
}

#[test]
fn the_system_is_asked_four_times_a_second_at_most() {
    let (mut cache, fake) = governed(1);
    for _ in 0..40 {
        fake.told().now += Duration::from_millis(100);
        cache.touch(&[id(1, 1)]);
    }
    assert_eq!(fake.told().asked, 14, "every third time");
}

/// They would be read into memory that nobody sees.
#[test]
fn slots_that_the_kernel_knows_by_their_pages_are_never_given_back() {
    let (cache, fake) = governed(1);
    cache.slab().pin_pages();
    let mut cache = cache.govern_by(Governor::new(Box::new(fake.clone()), 2, RESERVE));
    cache.touch(&layer(1, 0..6));
    fake.later(9, 0);
    cache.touch(&layer(1, 0..6));
    assert_eq!((cache.limit(), cache.cached().len(), fake.told().asked), (8, 6, 0));
}
