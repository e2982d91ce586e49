//! Where the time of a step goes, as the host sees it: a section lasts until the next one begins.
use std::time::{Duration, Instant};

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Attention of any kind, with its norms and mixes.
    Attention,
    /// Router, experts, shared experts, dense MLP.
    Moe,
    /// Waiting for experts to arrive; not counted in the section it interrupts.
    ExpertWait,
    /// The last norm, logits.
    Head,
}

/// Sums of time by section.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    running: Option<(Section, Instant)>,
    sums: [Duration; 4],
}

impl Clock {
    /// Ends the section that runs and begins another.
    pub fn enter(&mut self, section: Section) {
        self.stop();
        self.running = Some((section, Instant::now()));
    }

    /// Ends the section that runs.
    pub fn stop(&mut self) {
        if let Some((section, since)) = self.running.take() {
            self.sums[section as usize] += since.elapsed();
        }
    }

    /// Time spent in a section so far.
    #[must_use]
    pub fn spent(&self, section: Section) -> Duration {
        self.sums[section as usize]
    }
}
