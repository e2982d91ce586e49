//! Ctrl-C: before the work begins it ends the program; later the first one asks the work to stop, and the second one
//! ends the program.
use crate::errors::{INTERRUPTED, say};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether work goes on that looks at [`CANCEL`].
static STOPPABLE: AtomicBool = AtomicBool::new(false);
/// Whether the work should stop.
static CANCEL: AtomicBool = AtomicBool::new(false);

/// Listens from now on.
///
/// # Errors
/// The system's words.
pub(crate) fn listen(json: bool) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if !STOPPABLE.load(Ordering::SeqCst) {
            say("cancelled", "interrupted", json);
            process::exit(INTERRUPTED.into());
        }
        if CANCEL.swap(true, Ordering::SeqCst) {
            process::exit(INTERRUPTED.into());
        }
    })
}

/// From now on the first Ctrl-C only sets the flag that is returned.
pub(crate) fn stoppable() -> &'static AtomicBool {
    STOPPABLE.store(true, Ordering::SeqCst);
    &CANCEL
}
