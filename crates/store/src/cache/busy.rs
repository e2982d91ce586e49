//! For how long at least one read was under way: what a drive was busy, however many reads it had at once. It knows
//! beginnings and ends.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The clock of one drive.
#[derive(Debug, Default)]
pub(super) struct Busy {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reads: u32,
    /// When the first of these began.
    since: Option<Instant>,
    before: Duration,
}

/// A read that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Reading<'b>(&'b Busy);

impl Busy {
    /// A read begins.
    pub(super) fn begin(&self) -> Reading<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reads += 1;
        state.since.get_or_insert_with(Instant::now);
        Reading(self)
    }

    /// The time so far.
    pub(super) fn so_far(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.before + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reads -= 1;
        if state.reads == 0
            && let Some(since) = state.since.take()
        {
            state.before += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_at_once_count_once_and_the_time_between_reads_does_not() {
        let busy = Busy::default();
        assert_eq!(busy.so_far(), Duration::ZERO);
        let start = Instant::now();
        let first = busy.begin();
        let second = busy.begin();
        std::thread::sleep(Duration::from_millis(2));
        drop(first);
        assert!(busy.so_far() >= Duration::from_millis(2), "the second is still under way");
        drop(second);
        let so_far = busy.so_far();
        assert!(so_far <= start.elapsed(), "not twice");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(busy.so_far(), so_far, "nothing is under way");
    }
}
