//! How long tests with `damaged` in their name go on. The tests of several crates include this file by its path: a crate
//! for one function would be more to carry.

use std::time::{Duration, Instant};

/// The seeds of a test: the first `count`, and more of them until `COLIBRI_FUZZ_SECONDS` are over, if it is set.
///
/// # Panics
/// If the variable is no number.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("COLIBRI_FUZZ_SECONDS").map_or(0, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("COLIBRI_FUZZ_SECONDS: expected whole seconds, found {text:?}"))
    });
    let end = Instant::now() + Duration::from_secs(seconds);
    (0..).take_while(move |&seed| seed < count || Instant::now() < end)
}
