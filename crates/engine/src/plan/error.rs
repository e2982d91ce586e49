//! Why there is no plan, with the numbers that would do. Makes no plan.
use super::Limits;
use super::sizes::total;
use models::{Dense, LoadError, StateError};
use ops::DeviceError;
use std::fmt;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The checkpoint.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A size that cannot be.
    #[error(transparent)]
    Memory(#[from] memory::MemoryError),
    /// The rehearsal.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rehearsal's state.
    #[error(transparent)]
    State(#[from] StateError),
    /// A step of the rehearsal.
    #[error(transparent)]
    Step(#[from] models::StepError),
    /// A setting outside its range.
    #[error("{setting} = {found}; expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What was asked.
        found: String,
        /// What would do.
        expected: String,
    },
    /// Not enough memory for anything.
    #[error("{0}")]
    DoesNotFit(NoFit),
}

/// The sum that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFit {
    /// What the machine has.
    pub limits: Limits,
    /// Items of the smallest plan that honours the request.
    pub items: Vec<(String, u64)>,
    /// Needed with each dense packing.
    pub choices: Vec<(Dense, u64)>,
    /// Numbers that were asked for and are too large: the largest that would do if nothing else changed, as flags.
    pub numbers: Vec<String>,
    /// Flags of a plan that fits, if there is one.
    pub fits: Option<String>,
}

impl fmt::Display for NoFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = total(&self.items);
        let (usable, reserve) = (self.limits.usable(), self.limits.reserve());
        write!(
            f,
            "the model needs {}, {} can be used ({} are available, {} stay free for everything else):",
            show_bytes(needed),
            show_bytes(usable),
            show_bytes(self.limits.available),
            show_bytes(reserve)
        )?;
        for (what, bytes) in &self.items {
            write!(f, "\n  {:>10}  {what}", show_bytes(*bytes))?;
        }
        for (dense, bytes) in &self.choices {
            let verdict = if *bytes <= usable { "would fit" } else { "does not fit" };
            write!(
                f,
                "\n--dense {} with the smallest cache: {} ({verdict})",
                dense.name(),
                show_bytes(*bytes)
            )?;
        }
        for number in &self.numbers {
            write!(f, "\nWith all else as asked this would fit: {number}")?;
        }
        match &self.fits {
            Some(flags) => write!(f, "\nThis would fit: {flags}"),
            None => write!(f, "\nNo setting fits; free memory and try again."),
        }
    }
}

/// Bytes for people: `1.23 GB`.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 2 };
    format!("{value:.digits$} {}", UNITS[unit])
}
