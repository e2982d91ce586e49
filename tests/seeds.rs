//! What tests with `damaged` in their name share: how long they go on, and numbers that are the same everywhere. The tests
//! of several crates include this file by its path: a crate for it would be more to carry.

#![allow(dead_code, reason = "not every test that includes the file draws numbers")]

use std::time::{Duration, Instant};

/// The seeds of a test: the first `count`, and more of them until `COLIBRI_TEST_FUZZ_SECONDS` are over, if it is set.
///
/// # Panics
/// If the variable is no number.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("COLIBRI_TEST_FUZZ_SECONDS").map_or(0, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("COLIBRI_TEST_FUZZ_SECONDS: expected whole seconds, found {text:?}"))
    });
    let end = Instant::now() + Duration::from_secs(seconds);
    (0..).take_while(move |&seed| seed < count || Instant::now() < end)
}

/// A small generator (`SplitMix64`; Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}
