//! Threads that stay, for one piece of work at a time: parts are claimed one by one, so that a fast core does more of
//! them than a slow one. Between two pieces of work a thread looks for the next for a moment and then sleeps, so that
//! nothing turns while a disk works. It knows no op; that the split changes no result is the business of its users.

use crate::memory::{Parts, failed};
use ops::DeviceError;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Multiply-adds under which waking another thread costs more than it saves (about 2 us of one core).
const SHARE_FROM: u64 = 1 << 16;
/// Looks for work before a thread sleeps: some tens of microseconds, longer than the ops between two shared ones take.
const LOOKS: u32 = 4000;

/// The caller's thread and `threads - 1` others.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    others: Vec<JoinHandle<()>>,
    /// What the first part that panicked said, until somebody asks.
    failure: Mutex<Option<String>>,
}

/// What the caller and the other threads share.
struct Shared {
    /// Number of the present piece of work (upper half), [`OPEN`], [`WAITED_FOR`], and how many threads are inside.
    state: AtomicU64,
    /// The work, valid while the state is open or somebody is inside.
    work: UnsafeCell<Option<Work>>,
    /// Threads that sleep or are about to.
    asleep: AtomicU32,
    /// Guards the two signals below.
    lock: Mutex<()>,
    work_came: Condvar,
    all_left: Condvar,
    /// How often a thread looks before it sleeps.
    looks: u32,
}

/// The caller's closure. Its life is longer than its type says: see [`Pool::share`].
type Work = *const (dyn Fn() + Sync);

// SAFETY: `work` is written only while the state is closed and nobody is inside, by the one caller that borrows the pool
// mutably, and is read only by threads that are inside; entering acquires what the opening released.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `work` is used only as said above.
unsafe impl Send for Shared {}

/// Threads may enter.
const OPEN: u64 = 1 << 31;
/// The caller sleeps until the last one has left.
const WAITED_FOR: u64 = 1 << 30;
/// The bits that count threads inside.
const INSIDE: u64 = WAITED_FOR - 1;
/// The number given to the threads when the pool ends.
const END: u64 = u32::MAX as u64;

impl Pool {
    /// A pool of `threads` threads, the caller's included; at least one.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the system does not start them.
    pub(crate) fn new(threads: usize) -> Result<Self, DeviceError> {
        let threads = threads.max(1);
        // With more threads than cores a thread that only looks takes the core from one that works.
        let is_crowded = std::thread::available_parallelism().is_ok_and(|cores| threads > cores.get());
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            asleep: AtomicU32::new(0),
            lock: Mutex::new(()),
            work_came: Condvar::new(),
            all_left: Condvar::new(),
            looks: if is_crowded { 0 } else { LOOKS },
        });
        let mut pool = Pool { shared, others: Vec::new(), failure: Mutex::new(None) };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let other = std::thread::Builder::new()
                .name(format!("cpu {number}"))
                .spawn(move || shared.serve())
                .map_err(|error| {
                    failed(format!("thread {number} of {threads} cannot be started: {error}"))
                })?;
            pool.others.push(other);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.others.len() + 1
    }

    /// Calls `body` with every part, on as many threads as `cost` multiply-adds are worth; returns when all are done. A
    /// panic in one of them is kept for [`Pool::check`].
    #[expect(clippy::needless_pass_by_value, reason = "parts are handed out once, so they are used up")]
    pub(crate) fn each<P: Parts>(&mut self, cost: u64, parts: P, body: impl Fn(usize, P::Part) + Sync) {
        let (next, count) = (AtomicUsize::new(0), parts.count());
        let failure = &self.failure;
        let run = || {
            let all = AssertUnwindSafe(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return;
                    }
                    // SAFETY: the counter gives every number once, and it is below the count.
                    body(i, unsafe { parts.part(i) });
                }
            });
            if let Err(panic) = catch_unwind(all) {
                next.store(count, Ordering::Relaxed);
                lock(failure).get_or_insert_with(|| words(&*panic));
            }
        };
        let is_shared = cost >= SHARE_FROM && count > 1 && !self.others.is_empty();
        if is_shared { self.shared.share(count - 1, &run) } else { run() }
    }

    /// Whether all parts since the last call went well.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] with the words of the first panic.
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        match lock(&self.failure).take() {
            None => Ok(()),
            Some(words) => Err(failed(format!("a fault of the program in a thread of the device: {words}"))),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.store(END << 32, Ordering::SeqCst);
        drop(lock(&self.shared.lock));
        self.shared.work_came.notify_all();
        for other in self.others.drain(..) {
            // A thread ends by a panic only if the pool itself is wrong; there is nobody left to tell.
            let _ = other.join();
        }
    }
}

/// Locks that guard nothing that a panic could leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".into())
}

impl Shared {
    /// Runs `work` on the caller's thread and on those of the others that come before it is done, `wanted` at most
    /// being woken. Called by one thread at a time; `work` does not panic.
    fn share(&self, wanted: usize, work: &(dyn Fn() + Sync)) {
        // SAFETY: only the lifetime is changed. Nobody uses the pointer after this function: it returns when the state
        // is closed and everybody has left.
        let work_for_all = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), Work>(work) };
        let number = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) % END;
        // SAFETY: the state is closed and nobody is inside, and there is one caller.
        unsafe { *self.work.get() = Some(work_for_all) };
        self.state.store(number << 32 | OPEN, Ordering::SeqCst);
        self.wake(wanted);
        work();
        self.close();
    }

    /// Wakes sleepers. A thread that counts itself asleep after this looked sees the open state before it sleeps.
    fn wake(&self, wanted: usize) {
        let asleep = self.asleep.load(Ordering::SeqCst) as usize;
        if asleep > 0 {
            drop(lock(&self.lock));
            for _ in 0..asleep.min(wanted) {
                self.work_came.notify_one();
            }
        }
    }

    /// Lets nobody enter any more and waits until all have left.
    fn close(&self) {
        let mut inside = self.state.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE;
        for _ in 0..self.looks {
            if inside == 0 {
                return;
            }
            std::hint::spin_loop();
            inside = self.state.load(Ordering::Acquire) & INSIDE;
        }
        let mut guard = lock(&self.lock);
        self.state.fetch_or(WAITED_FOR, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) & INSIDE > 0 {
            guard = self.all_left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.state.fetch_and(!WAITED_FOR, Ordering::AcqRel);
    }

    /// The life of one of the other threads.
    fn serve(&self) {
        let mut done = 0;
        loop {
            let state = self.next_state(done);
            if state >> 32 == END {
                return;
            }
            if !self.enter(state) {
                continue;
            }
            done = state >> 32;
            // SAFETY: this thread is inside, so the work is the one that the state's number was opened with.
            if let Some(work) = unsafe { *self.work.get() } {
                // SAFETY: the caller keeps the closure alive until this thread has left.
                unsafe { (*work)() };
            }
            self.leave();
        }
    }

    /// Waits for an open state of another number than `done`, or for the end.
    fn next_state(&self, done: u64) -> u64 {
        let wanted = |state: u64| state >> 32 == END || (state & OPEN > 0 && state >> 32 != done);
        for _ in 0..self.looks {
            let state = self.state.load(Ordering::Acquire);
            if wanted(state) {
                return state;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if wanted(state) {
                self.asleep.fetch_sub(1, Ordering::SeqCst);
                return state;
            }
            guard = self.work_came.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Enters if the state is still open under the same number.
    fn enter(&self, seen: u64) -> bool {
        let mut state = seen;
        loop {
            let goes_on = state >> 32 == seen >> 32 && state & OPEN > 0;
            if !goes_on {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & INSIDE == 1 && before & WAITED_FOR > 0 {
            drop(lock(&self.lock));
            self.all_left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
