//! What a drive had under way over time: for how long at least one read, how many at once, and why. It knows beginnings
//! and ends.

use super::watch::{UnderWay, Watched};
use std::ops::Add;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The clock of one drive.
#[derive(Debug)]
pub(super) struct Busy {
    drive: usize,
    watched: Watched,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Reads under way, those on a guess among them.
    reads: u32,
    guesses: u32,
    /// When the last of them began or ended, while there are any.
    since: Option<Instant>,
    before: BusyTime,
}

/// Sums over time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct BusyTime {
    /// With a read under way.
    pub(super) busy: Duration,
    /// Each instant counts as often as there were reads under way ...
    pub(super) reads: Duration,
    /// ... and as there were reads on a guess.
    pub(super) guesses: Duration,
    /// The most reads at once.
    pub(super) most: u32,
}

impl Add for BusyTime {
    type Output = BusyTime;

    /// Of two drives.
    fn add(self, other: BusyTime) -> BusyTime {
        BusyTime {
            busy: self.busy + other.busy,
            reads: self.reads + other.reads,
            guesses: self.guesses + other.guesses,
            most: self.most.max(other.most),
        }
    }
}

impl State {
    /// Counts the time up to now.
    fn advance(&mut self, now: Instant) {
        if let Some(since) = self.since {
            let passed = now.saturating_duration_since(since);
            self.before.busy += passed;
            self.before.reads += passed * self.reads;
            self.before.guesses += passed * self.guesses;
        }
        self.since = Some(now);
    }
}

/// A read that is under way until this is dropped; for the counts it stays what it began as.
#[derive(Debug)]
pub(super) struct Reading<'b> {
    busy: &'b Busy,
    guess: bool,
}

impl Busy {
    /// Of a drive with this number.
    pub(super) fn new(drive: usize, watched: &Watched) -> Self {
        Self { drive, watched: watched.clone(), state: Mutex::default() }
    }

    /// A read begins, on a guess or because somebody waits.
    pub(super) fn begin(&self, guess: bool) -> Reading<'_> {
        self.change(|state| {
            state.reads += 1;
            state.guesses += u32::from(guess);
            state.before.most = state.before.most.max(state.reads);
        });
        Reading { busy: self, guess }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        state.advance(at);
        change(&mut state);
        if state.reads == 0 {
            state.since = None;
        }
        let State { reads, guesses, .. } = *state;
        drop(state);
        if let Some(watch) = self.watched.get() {
            watch.under_way(&UnderWay { drive: self.drive, at, reads, guesses });
        }
    }

    /// The sums so far.
    pub(super) fn so_far(&self) -> BusyTime {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_some() {
            state.advance(Instant::now());
        }
        state.before
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let guess = u32::from(self.guess);
        self.busy.change(|state| {
            state.reads -= 1;
            state.guesses -= guess;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_at_once_count_once_and_the_time_between_reads_does_not() {
        let busy = Busy::new(0, &Watched::default());
        assert_eq!(busy.so_far(), BusyTime::default());
        let start = Instant::now();
        let first = busy.begin(false);
        let second = busy.begin(true);
        std::thread::sleep(Duration::from_millis(2));
        drop(first);
        assert!(busy.so_far().busy >= Duration::from_millis(2), "the second is still under way");
        drop(second);
        let so_far = busy.so_far();
        assert!(so_far.busy <= start.elapsed(), "not twice");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(busy.so_far(), so_far, "nothing is under way");
    }

    #[test]
    fn each_instant_counts_once_a_read_that_is_under_way() {
        let mut state = State::default();
        let start = Instant::now();
        let mut at = |seconds, reads, guesses| {
            state.advance(start + Duration::from_secs(seconds));
            (state.reads, state.guesses) = (reads, guesses);
            state.before
        };
        at(0, 1, 0);
        at(2, 3, 2); // one for 2 s
        let so_far = at(5, 1, 1); // three for 3 s, two of them guesses
        assert_eq!([so_far.busy, so_far.reads, so_far.guesses].map(|time| time.as_secs()), [5, 11, 6]);
        let so_far = at(6, 1, 1);
        assert_eq!([so_far.busy, so_far.reads, so_far.guesses].map(|time| time.as_secs()), [6, 12, 7]);
    }

    #[test]
    fn the_most_reads_at_once_are_kept_by_drive() {
        let busy = Busy::new(0, &Watched::default());
        let first = busy.begin(false);
        drop((busy.begin(false), busy.begin(true)));
        drop(first);
        let other = Busy::new(1, &Watched::default());
        drop(other.begin(false));
        assert_eq!((busy.so_far().most, other.so_far().most), (3, 1));
        assert_eq!((busy.so_far() + other.so_far()).most, 3);
    }
}
