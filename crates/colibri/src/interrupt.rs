//! Ctrl-C, and whatever else asks a program to end (SIGTERM, SIGHUP): before the work begins it ends the program; later
//! the first one asks the work to stop, and the second one ends the program. No half-written file stays behind.
use crate::errors::{INTERRUPTED, say};
use crate::report;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether work goes on that looks at [`CANCEL`].
static STOPPABLE: AtomicBool = AtomicBool::new(false);
/// Whether the work should stop.
static CANCEL: AtomicBool = AtomicBool::new(false);
/// The file that is not whole yet.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);
/// What puts a terminal back in order.
static RESTORE: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// What ends files that are whole as far as they go.
static FINISH: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Listens from now on.
///
/// # Errors
/// The system's words.
pub(crate) fn listen(json: bool) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if !STOPPABLE.load(Ordering::SeqCst) {
            if let Some(restore) = &*RESTORE.lock().unwrap_or_else(PoisonError::into_inner) {
                restore();
            }
            say("cancelled", "interrupted", json);
            end();
        }
        if CANCEL.swap(true, Ordering::SeqCst) {
            end();
        }
        if !json {
            report::tell("stopping; once more ends the program at once");
        }
    })
}

/// From now on the first Ctrl-C only sets the flag that is returned.
pub(crate) fn stoppable() -> &'static AtomicBool {
    STOPPABLE.store(true, Ordering::SeqCst);
    &CANCEL
}

/// Nothing goes on that could be stopped: Ctrl-C ends the program.
pub(crate) fn at_rest() {
    STOPPABLE.store(false, Ordering::SeqCst);
    CANCEL.store(false, Ordering::SeqCst);
}

/// While it lives, the first Ctrl-C only sets its flag; afterwards the program is [`at_rest`].
pub(crate) struct Stoppable(&'static AtomicBool);

impl Stoppable {
    /// From now on.
    pub(crate) fn begin() -> Self {
        at_rest();
        Stoppable(stoppable())
    }

    /// Set by the first Ctrl-C.
    pub(crate) fn flag(&self) -> &'static AtomicBool {
        self.0
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        at_rest();
    }
}

/// Calls this before the program is ended while nothing goes on: somebody's line may be in an editor.
#[cfg(unix)]
pub(crate) fn restore_with(restore: impl Fn() + Send + 'static) {
    *RESTORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(restore));
}

/// Calls this before the program is ended at once. It must not take long.
pub(crate) fn finish_with(finish: impl Fn() + Send + 'static) {
    *FINISH.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(finish));
}

/// The place of the path to remove if the program ends now. Who creates, names or removes that file holds it
/// meanwhile, so that the path and the file come and go together.
pub(crate) fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end() -> ! {
    if let Some(finish) = &*FINISH.lock().unwrap_or_else(PoisonError::into_inner) {
        finish();
    }
    let unfinished = unfinished();
    if let Some(path) = &*unfinished {
        // Nobody is left to tell if it stays.
        let _ = std::fs::remove_file(path);
    }
    // The lock is held to the end: no other file can be begun.
    process::exit(INTERRUPTED.into())
}
