//! Reads that wait for a reader thread, drive by drive: those somebody waits for come before guesses, and a guess gives
//! way between two of its slices. It knows slots, experts and drives by number.

use super::watch::{Waiting, Watched};
use crate::reader::ReadCount;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One expert to be read into one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) slot: u32,
    /// Index of the expert in the catalog.
    pub(super) expert: u32,
    /// The drive that is to read it.
    pub(super) drive: usize,
    /// Whether it is read as a guess: in slices, and only while nobody waits.
    pub(super) guess: bool,
    /// Runs that are there.
    pub(super) runs: usize,
    /// Bytes of the run after these that are there.
    pub(super) done: u64,
    /// What that took.
    pub(super) count: ReadCount,
}

impl Job {
    /// A read that has not begun.
    pub(super) fn new(slot: u32, expert: u32, drive: usize) -> Self {
        Self { slot, expert, drive, guess: false, runs: 0, done: 0, count: ReadCount::default() }
    }

    /// Whether some of it has been read.
    pub(super) fn has_begun(&self) -> bool {
        self.count.reads > 0
    }
}

/// What became of a guess that is wanted now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Promotion {
    /// It waited, and is taken out.
    Waited(Job),
    /// It is being read, and goes on as a read that somebody waits for.
    UnderWay,
    /// It was no guess that is still to be read.
    NoGuess,
}

/// What the owner of the cache hands to the reader threads. Each kind of job is served in the order it was given.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: Mutex<Vec<Drive>>,
    /// One for each drive.
    filled: Vec<Condvar>,
    /// Read without the lock by threads in the middle of an expert.
    closed: AtomicBool,
    watched: Watched,
}

/// The jobs of one drive.
#[derive(Debug, Default)]
struct Drive {
    demanded: VecDeque<Job>,
    /// Those that have begun come first.
    guessed: VecDeque<Job>,
    /// Slots of guesses that are being read.
    under_way: Vec<u32>,
    /// Reads under way that somebody waits for.
    awaited: usize,
}

impl Drive {
    /// Takes out the next job.
    fn begin(&mut self) -> Option<Job> {
        if let Some(job) = self.demanded.pop_front() {
            self.awaited += 1;
            return Some(job);
        }
        if self.is_awaited() {
            return None;
        }
        let job = self.guessed.pop_front()?;
        self.under_way.push(job.slot);
        Some(job)
    }

    /// Whether somebody waits for this drive: guesses would take a part of its rate from the reads that are waited for.
    fn is_awaited(&self) -> bool {
        self.awaited > 0 || !self.demanded.is_empty()
    }

    /// A job of `slot` is no longer under way; whether it still was a guess.
    fn end(&mut self, slot: u32) -> bool {
        let place = self.under_way.iter().position(|other| *other == slot);
        match place {
            Some(place) => drop(self.under_way.swap_remove(place)),
            // After the queue was closed nothing is counted any more.
            None => self.awaited = self.awaited.saturating_sub(1),
        }
        place.is_some()
    }
}

impl Queue {
    /// Queues for so many drives, of whose lengths somebody may be told.
    pub(super) fn new(drives: usize, watched: &Watched) -> Self {
        Self {
            jobs: Mutex::new((0..drives).map(|_| Drive::default()).collect()),
            filled: (0..drives).map(|_| Condvar::new()).collect(),
            closed: AtomicBool::new(false),
            watched: watched.clone(),
        }
    }

    /// Adds jobs that somebody waits for.
    pub(super) fn demand(&self, jobs: &[Job]) {
        self.add(jobs, |drive, job| drive.demanded.push_back(Job { guess: false, ..job }));
    }

    /// Adds jobs that somebody may want.
    pub(super) fn guess(&self, jobs: &[Job]) {
        self.add(jobs, |drive, job| drive.guessed.push_back(Job { guess: true, ..job }));
    }

    fn add(&self, jobs: &[Job], put: impl Fn(&mut Drive, Job)) {
        if jobs.is_empty() {
            return;
        }
        let mut drives = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        for job in jobs {
            put(&mut drives[job.drive], *job);
        }
        for (drive, filled) in self.filled.iter().enumerate() {
            if jobs.iter().any(|job| job.drive == drive) {
                self.tell(&drives, drive);
                filled.notify_all();
            }
        }
    }

    /// Waits for the next job of a drive; `None` once the queue is closed.
    pub(super) fn next(&self, drive: usize) -> Option<Job> {
        let mut drives = self.lock();
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = drives[drive].begin() {
                self.tell(&drives, drive);
                return Some(job);
            }
            drives = self.filled[drive].wait(drives).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next job of a drive if there is one.
    #[cfg(target_os = "linux")]
    pub(super) fn try_next(&self, drive: usize) -> Option<Job> {
        let mut drives = self.lock();
        let job = drives[drive].begin()?;
        self.tell(&drives, drive);
        Some(job)
    }

    /// Between two reads of a job: whether the thread is to put it back, because it is a guess and others wait for this
    /// drive. A guess that somebody has asked for meanwhile goes on as a read that is waited for.
    pub(super) fn gives_way(&self, job: &mut Job) -> bool {
        if !job.guess {
            return false;
        }
        let drives = self.lock();
        let jobs = &drives[job.drive];
        job.guess = jobs.under_way.contains(&job.slot);
        job.guess && jobs.is_awaited()
    }

    /// Puts back a guess that gives way, with what is there. The caller has let go of its slot.
    pub(super) fn put_back(&self, mut job: Job) {
        let mut drives = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let jobs = &mut drives[job.drive];
        if jobs.end(job.slot) {
            jobs.guessed.push_front(job);
        } else {
            job.guess = false; // somebody has asked for it in between
            jobs.demanded.push_front(job);
        }
        self.tell(&drives, job.drive);
        self.filled[job.drive].notify_one();
    }

    /// The read of a job has ended; with the last that somebody waits for begins the time of guesses.
    pub(super) fn ended(&self, job: &Job) {
        let mut drives = self.lock();
        let jobs = &mut drives[job.drive];
        jobs.end(job.slot);
        if !jobs.is_awaited() && !jobs.guessed.is_empty() {
            self.filled[job.drive].notify_all();
        }
    }

    /// Somebody wants the expert that is to come into `slot`.
    pub(super) fn promote(&self, slot: u32) -> Promotion {
        let mut drives = self.lock();
        for jobs in drives.iter_mut() {
            if let Some(job) = remove(&mut jobs.guessed, slot) {
                self.tell(&drives, job.drive);
                return Promotion::Waited(job);
            }
            if let Some(place) = jobs.under_way.iter().position(|other| *other == slot) {
                jobs.under_way.swap_remove(place);
                jobs.awaited += 1;
                return Promotion::UnderWay;
            }
        }
        Promotion::NoGuess
    }

    /// Takes back the job for `slot`; `None` if a thread is at it.
    pub(super) fn take(&self, slot: u32) -> Option<Job> {
        let mut drives = self.lock();
        let job = drives
            .iter_mut()
            .find_map(|jobs| remove(&mut jobs.demanded, slot).or_else(|| remove(&mut jobs.guessed, slot)))?;
        self.tell(&drives, job.drive);
        Some(job)
    }

    /// Takes back a guess that would be served last.
    pub(super) fn take_last_guess(&self) -> Option<Job> {
        let mut drives = self.lock();
        let job = drives.iter_mut().max_by_key(|jobs| jobs.guessed.len())?.guessed.pop_back()?;
        self.tell(&drives, job.drive);
        Some(job)
    }

    /// Ends all waiting; jobs not started are dropped.
    pub(super) fn close(&self) {
        let mut drives = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        for jobs in drives.iter_mut() {
            *jobs = Drive::default();
        }
        for filled in &self.filled {
            filled.notify_all();
        }
    }

    /// Becomes true when the bytes are no longer wanted.
    pub(super) fn closed(&self) -> &AtomicBool {
        &self.closed
    }

    /// For who follows what waits; under the lock, so that a later instant has the later counts.
    fn tell(&self, drives: &[Drive], drive: usize) {
        if let Some(watch) = self.watched.get() {
            let Drive { demanded, guessed, .. } = &drives[drive];
            let (demanded, guessed) = (demanded.len(), guessed.len());
            watch.waiting(&Waiting { drive, at: Instant::now(), demanded, guessed });
        }
    }

    /// Nothing in here can be left half done by a panic.
    fn lock(&self) -> MutexGuard<'_, Vec<Drive>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(jobs: &mut VecDeque<Job>, slot: u32) -> Option<Job> {
    let place = jobs.iter().position(|job| job.slot == slot)?;
    jobs.remove(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(slot: u32) -> Job {
        on(0, slot)
    }

    fn on(drive: usize, slot: u32) -> Job {
        Job::new(slot, slot + 100, drive)
    }

    fn guessed(slot: u32) -> Job {
        Job { guess: true, ..job(slot) }
    }

    #[test]
    fn demanded_jobs_come_before_guesses_and_both_in_order() {
        let queue = Queue::new(1, &Watched::default());
        queue.guess(&[job(1), job(2)]);
        queue.demand(&[job(3), job(4)]);
        let demanded = [queue.next(0).unwrap(), queue.next(0).unwrap()];
        assert_eq!(demanded, [job(3), job(4)]);
        for job in &demanded {
            queue.ended(job);
        }
        assert_eq!((queue.next(0), queue.next(0)), (Some(guessed(1)), Some(guessed(2))));
    }

    #[test]
    fn guesses_wait_until_nobody_waits_for_their_drive() {
        let queue = Queue::new(2, &Watched::default());
        queue.guess(&[on(0, 1), on(1, 2)]);
        queue.demand(&[on(0, 3)]);
        let demanded = queue.next(0).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next(0));
            assert_eq!(queue.next(1).map(|job| job.slot), Some(2), "the other drive has time");
            queue.ended(&demanded);
            assert_eq!(waiting.join().unwrap(), Some(guessed(1)));
        });
        // A guess that somebody has asked for is waited for.
        assert_eq!(queue.promote(1), Promotion::UnderWay);
        queue.guess(&[on(0, 4)]);
        let mut other = guessed(4);
        queue.ended(&guessed(1));
        assert_eq!(queue.next(0), Some(other));
        assert!(!queue.gives_way(&mut other));
    }

    #[test]
    fn drives_serve_their_own_jobs() {
        let queue = Queue::new(2, &Watched::default());
        queue.demand(&[on(0, 1), on(1, 2), on(0, 3)]);
        assert_eq!(queue.next(1), Some(on(1, 2)));
        assert_eq!((queue.next(0), queue.next(0)), (Some(on(0, 1)), Some(on(0, 3))));
        for demanded in [on(0, 1), on(0, 3), on(1, 2)] {
            queue.ended(&demanded);
        }
        queue.guess(&[on(0, 4), on(1, 5), on(1, 6)]);
        assert_eq!(queue.take_last_guess().map(|job| job.slot), Some(6));
        // A read on the other drive is no reason to give way.
        let mut guess = queue.next(0).unwrap();
        queue.demand(&[on(1, 7)]);
        assert!(!queue.gives_way(&mut guess) && guess.guess);
    }

    #[test]
    fn a_guess_gives_way_between_slices_and_is_continued_first() {
        let queue = Queue::new(1, &Watched::default());
        queue.guess(&[job(1), job(2)]);
        let mut guess = queue.next(0).unwrap();
        (guess.done, guess.count.reads) = (77, 1);
        assert!(!queue.gives_way(&mut guess));
        queue.demand(&[job(3)]);
        assert!(queue.gives_way(&mut guess));
        queue.put_back(guess);
        assert_eq!(queue.next(0), Some(job(3)));
        queue.ended(&job(3));
        assert_eq!(queue.next(0), Some(guess), "with what was there");
        queue.ended(&guess);
        assert_eq!(queue.promote(1), Promotion::NoGuess, "it has ended");
    }

    #[test]
    fn a_guess_that_is_wanted_goes_on_as_a_demand() {
        let queue = Queue::new(1, &Watched::default());
        queue.guess(&[job(1), job(2)]);
        let mut guess = queue.next(0).unwrap();
        assert_eq!(queue.promote(1), Promotion::UnderWay);
        assert_eq!(queue.promote(2), Promotion::Waited(guessed(2)));
        assert_eq!(queue.promote(2), Promotion::NoGuess);
        queue.demand(&[job(3)]);
        assert!(!queue.gives_way(&mut guess) && !guess.guess, "it gives way to nobody any more");
    }

    #[test]
    fn a_guess_that_is_wanted_while_it_is_put_back_is_read_next() {
        let queue = Queue::new(1, &Watched::default());
        queue.guess(&[job(1)]);
        let mut guess = queue.next(0).unwrap();
        queue.demand(&[job(2)]);
        assert!(queue.gives_way(&mut guess));
        assert_eq!(queue.promote(1), Promotion::UnderWay);
        queue.put_back(guess);
        assert_eq!((queue.next(0), queue.next(0)), (Some(job(1)), Some(job(2))));
    }

    #[test]
    fn jobs_are_taken_back_while_they_wait() {
        let queue = Queue::new(1, &Watched::default());
        queue.guess(&[job(1), job(2), job(3)]);
        queue.demand(&[job(4)]);
        assert_eq!((queue.take(4), queue.take(4)), (Some(job(4)), None));
        assert_eq!(queue.take(2), Some(guessed(2)));
        assert_eq!(queue.take_last_guess(), Some(guessed(3)));
        assert_eq!(queue.next(0), Some(guessed(1)));
        assert_eq!((queue.take(1), queue.take_last_guess()), (None, None));
    }

    #[test]
    fn closing_ends_waiting_and_drops_jobs() {
        let queue = Queue::new(1, &Watched::default());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next(0));
            queue.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
        queue.demand(&[job(1)]);
        assert_eq!(queue.next(0), None);
    }
}
