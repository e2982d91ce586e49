//! What single reads are told to, for who draws them over time: when each began and ended, what it was for, what was under
//! way and what waited meanwhile. Without a watcher nothing of it is made. Knows no file format and no clock but `Instant`.

use super::ExpertCache;
use super::queue::Job;
use crate::catalog::ExpertId;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Takes what reader threads and the owner of a cache do, as it happens, from their threads: it must be quick, and never
/// wait for them.
pub trait WatchReads: Send + Sync {
    /// A reader was at an expert.
    fn read(&self, read: &ReadSpan);

    /// The reads under way on a drive are more or fewer now.
    fn under_way(&self, counts: &UnderWay);

    /// The reads that wait for a drive are more or fewer now.
    fn waiting(&self, counts: &Waiting);
}

/// The time in which one reader was at one expert without a break. An expert that gives way to others, or that is read on
/// in another way after an error, has several; their bytes are those of the expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadSpan {
    /// Its drive.
    pub drive: usize,
    /// Number of its thread on the drive. A ring is one thread that has many experts under way.
    pub reader: u32,
    /// From when to when.
    pub span: Range<Instant>,
    /// The expert.
    pub id: ExpertId,
    /// The file in which it begins, as the catalog numbers them, and where.
    pub place: (u32, u64),
    /// Bytes that came in this time.
    pub bytes: u64,
    /// Repetitions after errors in this time.
    pub retries: u64,
    /// What it was read for.
    pub cause: ReadCause,
    /// How it ended.
    pub end: ReadEnd,
}

/// What an expert is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadCause {
    /// Somebody asked for it.
    Demand,
    /// It may be wanted soon.
    Guess,
    /// That, and before the end somebody asked.
    WantedGuess,
}

/// How the time of a reader with an expert ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// All of it is there.
    Whole,
    /// Not all of it: others came first, or it is read on in another way.
    Part,
    /// It cannot be read, or is of no use.
    Failed,
}

/// Reads under way on a drive from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderWay {
    /// The drive.
    pub drive: usize,
    /// From when on.
    pub at: Instant,
    /// All reads.
    pub reads: u32,
    /// Those of them that began as a guess.
    pub guesses: u32,
}

/// Reads that wait for a reader of a drive from an instant on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The drive.
    pub drive: usize,
    /// From when on.
    pub at: Instant,
    /// Those that somebody waits for.
    pub demanded: usize,
    /// Guesses.
    pub guessed: usize,
}

/// The place of a watcher, shared by all that tell it something.
#[derive(Clone, Default)]
pub(super) struct Watched(Arc<OnceLock<Arc<dyn WatchReads>>>);

impl Watched {
    pub(super) fn get(&self) -> Option<&dyn WatchReads> {
        self.0.get().map(AsRef::as_ref)
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.0.get().is_some() { "watched" } else { "not watched" })
    }
}

impl ExpertCache {
    /// Tells `watch` of every read from now on. The first watcher stays; whether this is the first.
    pub fn watch(&self, watch: Arc<dyn WatchReads>) -> bool {
        self.watched.0.set(watch).is_ok()
    }
}

/// How a job was when a reader came to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    at: Instant,
    /// Only guesses are come back to.
    guess: bool,
    bytes: u64,
    retries: u64,
}

impl Began {
    pub(super) fn now(job: &Job) -> Self {
        let Job { guess, count, .. } = job;
        Self {
            at: Instant::now(),
            guess: *guess || job.has_begun(),
            bytes: count.bytes,
            retries: count.retries,
        }
    }

    /// When that was.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// The time since then, of a reader that leaves the job.
    pub(super) fn span(
        &self,
        job: &Job,
        reader: u32,
        id: ExpertId,
        place: (u32, u64),
        end: ReadEnd,
    ) -> ReadSpan {
        let cause = match (self.guess, job.guess) {
            (false, _) => ReadCause::Demand,
            (true, true) => ReadCause::Guess,
            (true, false) => ReadCause::WantedGuess,
        };
        ReadSpan {
            drive: job.drive,
            reader,
            span: self.at..Instant::now(),
            id,
            place,
            bytes: job.count.bytes - self.bytes,
            retries: job.count.retries - self.retries,
            cause,
            end,
        }
    }
}
