//! What experts were read for: because somebody waited, or on a guess, and what became of the guess. Plain data for one
//! owner; it knows slots by number.

use crate::reader::ReadCount;
use std::time::Duration;

/// Exact counts since the cache was made.
///
/// A guess that was issued is used, wasted or withdrawn in the end: `guesses = guesses_used + guesses_wasted +
/// guesses_withdrawn` once nothing is left that may still be used. In the same way `bytes_read = bytes_demanded +
/// bytes_guessed_used + bytes_guessed_wasted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Experts that were there when they were requested, each counted once a request.
    pub hits: u64,
    /// Those of them that a guess had brought and nobody had asked for before.
    pub hits_guessed: u64,
    /// Experts that were not, those already on their way included.
    pub misses: u64,
    /// Those of them that were on their way: as a guess, or for another request.
    pub misses_on_the_way: u64,
    /// Bytes that came from the reader, those of failed experts and guesses included, and those around an expert that a
    /// direct read brings along.
    pub bytes_read: u64,
    /// Those of experts that were read because somebody waited.
    pub bytes_demanded: u64,
    /// Those of guesses that somebody asked for, on their way or when they were there.
    pub bytes_guessed_used: u64,
    /// Those of guesses that were thrown out, given up or failed before anybody asked.
    pub bytes_guessed_wasted: u64,
    /// Guesses that got a slot and were to be read.
    pub guesses: u64,
    /// Those of them that had begun, or were there, when somebody asked.
    pub guesses_used: u64,
    /// Those that had begun, or were there, and were of no use.
    pub guesses_wasted: u64,
    /// Those that had not begun when they were asked for, or given up for others.
    pub guesses_withdrawn: u64,
    /// Reads that were begun: one for an expert that lies in one piece on disk, more for one read in slices.
    pub reads: u64,
    /// Repetitions after errors.
    pub retries: u64,
    /// Time that [`ExpertCache::next`](super::ExpertCache::next) waited.
    pub wait: Duration,
    /// Time with a read under way, summed over the drives.
    pub busy: Duration,
    /// The same with each instant as often as there were reads under way, so that `under_way / busy` is how many there were
    /// on a drive at once, in the mean while it was busy.
    pub under_way: Duration,
    /// The part of it that belongs to reads that began as a guess.
    pub guesses_under_way: Duration,
    /// The most reads under way at once on one drive.
    pub most_under_way: u32,
    /// Drives that are read.
    pub drives: u32,
    /// Experts thrown out for others.
    pub evictions: u64,
    /// Reads of experts that ended in an error.
    pub failed: u64,
    /// Leases that were dropped instead of released.
    pub lost_leases: u64,
}

/// What the expert in a slot was read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Somebody asked, or nothing was read.
    Demand,
    /// A guess; so many bytes of it have come.
    Guess { bytes: u64 },
    /// A guess that somebody asked for while it was on its way.
    UsedGuess,
}

/// The causes, slot by slot.
#[derive(Debug)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    pub(super) fn new(slots: u32) -> Self {
        Self(vec![Cause::Demand; slots as usize])
    }

    /// Whether the slot holds, or is to hold, a guess that nobody has asked for.
    pub(super) fn is_guess(&self, slot: u32) -> bool {
        matches!(self.0[slot as usize], Cause::Guess { .. })
    }

    /// The slot gets another expert: what it held before is no longer of use.
    pub(super) fn refill(&mut self, slot: u32, guess: bool, counts: &mut CacheStatistics) {
        self.waste(slot, counts);
        if guess {
            self.0[slot as usize] = Cause::Guess { bytes: 0 };
            counts.guesses += 1;
        }
    }

    /// Somebody asks for the expert of the slot; `begun` says whether its read has.
    pub(super) fn ask(&mut self, slot: u32, begun: bool, ready: bool, counts: &mut CacheStatistics) {
        let cause = &mut self.0[slot as usize];
        let Cause::Guess { bytes } = *cause else { return };
        if !begun {
            counts.guesses_withdrawn += 1;
            *cause = Cause::Demand;
            return;
        }
        counts.guesses_used += 1;
        counts.bytes_guessed_used += bytes;
        *cause = if ready { Cause::Demand } else { Cause::UsedGuess };
    }

    /// A job has ended, or was taken back, after this.
    pub(super) fn count(&mut self, slot: u32, count: &ReadCount, counts: &mut CacheStatistics) {
        counts.bytes_read += count.bytes;
        counts.reads += count.reads;
        counts.retries += count.retries;
        match &mut self.0[slot as usize] {
            Cause::Demand => counts.bytes_demanded += count.bytes,
            Cause::Guess { bytes } => *bytes += count.bytes,
            used @ Cause::UsedGuess => {
                counts.bytes_guessed_used += count.bytes;
                *used = Cause::Demand;
            }
        }
    }

    /// A guess that has begun was of no use: it failed, was given up or is thrown out.
    pub(super) fn waste(&mut self, slot: u32, counts: &mut CacheStatistics) {
        if let Cause::Guess { bytes } = self.0[slot as usize] {
            counts.guesses_wasted += 1;
            counts.bytes_guessed_wasted += bytes;
        }
        self.0[slot as usize] = Cause::Demand;
    }

    /// A guess was given up before it had begun.
    pub(super) fn withdraw(&mut self, slot: u32, counts: &mut CacheStatistics) {
        counts.guesses_withdrawn += u64::from(self.is_guess(slot));
        self.0[slot as usize] = Cause::Demand;
    }
}
