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

/// Listens from now on.
///
/// # Errors
/// The system's words.
pub(crate) fn listen(json: bool) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if !STOPPABLE.load(Ordering::SeqCst) {
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

/// The place of the path to remove if the program ends now. Who creates, names or removes that file holds it
/// meanwhile, so that the path and the file come and go together.
pub(crate) fn unfinished() -> MutexGuard<'static, Option<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end() -> ! {
    let unfinished = unfinished();
    if let Some(path) = &*unfinished {
        // Nobody is left to tell if it stays.
        let _ = std::fs::remove_file(path);
    }
    // The lock is held to the end: no other file can be begun.
    process::exit(INTERRUPTED.into())
}
