//! Who follows an engine's work over time: every read of an expert, every step with what the device and the host did in it.
//! Without one nothing of it is kept. Knows no file format.
use crate::engine::Engine;
use models::StepTimes;
use std::sync::Arc;
use std::time::Instant;
use store::cache::WatchReads;

/// Takes reads as they end, from the threads that read, and steps when they are over. It must be quick.
pub trait Watch: WatchReads {
    /// A step is over, well or not.
    fn step(&self, step: &StepSpan<'_>);
}

/// A step.
#[derive(Clone, Debug)]
pub struct StepSpan<'a> {
    /// Position of the first row of its first part.
    pub position: u32,
    /// Parts, those refused included.
    pub parts: usize,
    /// Rows of all parts.
    pub rows: u64,
    /// Where its time went.
    pub times: StepTimes<'a>,
}

impl Engine {
    /// Tells `watch` of reads and steps from now on. The first watcher stays.
    pub fn watch(&mut self, watch: Arc<dyn Watch>) {
        if self.watch.is_none() {
            self.experts.watch_reads(watch.clone());
            self.clock.note_waits();
            self.watch = Some(watch);
        }
    }

    /// Passes on where the time went of the step that began after `start` and is over; a step that was refused has none.
    pub(crate) fn tell_watch(&self, start: Instant, position: u32, parts: usize, rows: u64) {
        let Some(watch) = &self.watch else { return };
        if let Some(times) = self.clock.last().filter(|times| times.span.start >= start) {
            watch.step(&StepSpan { position, parts, rows, times });
        }
    }
}
