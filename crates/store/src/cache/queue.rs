//! Reads that wait for a reader thread: those somebody waits for come before guesses. It knows slots and experts by
//! number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One expert to be read into one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) slot: u32,
    /// Index of the expert in the catalog.
    pub(super) expert: u32,
}

/// What the owner of the cache hands to the reader threads. Each kind of job is served in the order it was given.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    filled: Condvar,
    /// Read without the lock by threads in the middle of an expert.
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Jobs {
    demanded: VecDeque<Job>,
    guessed: VecDeque<Job>,
}

impl Queue {
    /// Adds jobs that somebody waits for.
    pub(super) fn demand(&self, jobs: &[Job]) {
        if !jobs.is_empty() {
            self.lock().demanded.extend(jobs);
            self.filled.notify_all();
        }
    }

    /// Adds jobs that somebody may want.
    pub(super) fn guess(&self, jobs: &[Job]) {
        if !jobs.is_empty() {
            self.lock().guessed.extend(jobs);
            self.filled.notify_all();
        }
    }

    /// Waits for the next job; `None` once the queue is closed.
    pub(super) fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            let next = jobs.demanded.pop_front().or_else(|| jobs.guessed.pop_front());
            if next.is_some() {
                return next;
            }
            jobs = self.filled.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes back the guess for `slot`; false if it was none or has been started.
    pub(super) fn take_guess(&self, slot: u32) -> bool {
        remove(&mut self.lock().guessed, slot)
    }

    /// Takes back the job for `slot`; false if it has been started.
    pub(super) fn take(&self, slot: u32) -> bool {
        let mut jobs = self.lock();
        remove(&mut jobs.demanded, slot) || remove(&mut jobs.guessed, slot)
    }

    /// Takes back the guess that would be served last.
    pub(super) fn take_last_guess(&self) -> Option<Job> {
        self.lock().guessed.pop_back()
    }

    /// Ends all waiting; jobs not started are dropped.
    pub(super) fn close(&self) {
        let mut jobs = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        *jobs = Jobs::default();
        self.filled.notify_all();
    }

    /// Becomes true when the bytes are no longer wanted.
    pub(super) fn closed(&self) -> &AtomicBool {
        &self.closed
    }

    /// Nothing in here can be left half done by a panic.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(jobs: &mut VecDeque<Job>, slot: u32) -> bool {
    let place = jobs.iter().position(|job| job.slot == slot);
    place.and_then(|place| jobs.remove(place)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(slot: u32) -> Job {
        Job { slot, expert: slot + 100 }
    }

    #[test]
    fn demanded_jobs_come_before_guesses_and_both_in_order() {
        let queue = Queue::default();
        queue.guess(&[job(1), job(2)]);
        queue.demand(&[job(3), job(4)]);
        let order: Vec<_> = (0..4).map(|_| queue.next().unwrap().slot).collect();
        assert_eq!(order, [3, 4, 1, 2]);
    }

    #[test]
    fn jobs_are_taken_back_while_they_wait() {
        let queue = Queue::default();
        queue.guess(&[job(1), job(2), job(3)]);
        queue.demand(&[job(4)]);
        assert!(queue.take_guess(2) && !queue.take_guess(2) && !queue.take_guess(4));
        assert!(queue.take(4) && !queue.take(4));
        assert_eq!(queue.take_last_guess(), Some(job(3)));
        assert_eq!(queue.next(), Some(job(1)));
        assert_eq!(queue.take_last_guess(), None);
    }

    #[test]
    fn closing_ends_waiting_and_drops_jobs() {
        let queue = Queue::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.next());
            queue.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
        queue.demand(&[job(1)]);
        assert_eq!(queue.next(), None);
    }
}
