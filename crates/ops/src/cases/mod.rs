//! The conformance suite: what every device must compute, whatever it is made of. Each case writes seeded numbers into
//! empty buffers and runs a few ops; the oracle's results are the expected ones.
//!
//! A device's own test is five lines:
//! ```
//! use ops::{Allowed, Oracle, cases};
//! let device = Oracle::new(2).unwrap(); // the device under test, empty
//! let report = cases::run(device, Allowed::Nothing).unwrap_or_else(|error| panic!("{error}"));
//! assert!(report.cases > 0);
//! ```
//! Each case runs twice. First as models run it, all its ops in one submission: then whole buffers are compared, so that
//! a write beside the result is found, and rows that hold a NaN or an infinity are compared as far as they are
//! defined. Then op by op in [`Checked`], where every op starts from the oracle's numbers: that gives the report.
//!
//! It knows no device. Shapes of real models and of no model are mixed on purpose; nothing here is a benchmark.
mod attention;
mod case;
mod compare;
mod delta;
mod elementwise;
mod experts;
mod linear;
mod norms;
mod not_finite;
mod route;

pub use case::{Case, Recipe};

use crate::checked::{Allowed, Checked, Worst};
use crate::device::{Device, DeviceError};
use crate::oracle::Oracle;
use std::collections::BTreeMap;

/// How many cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Small shapes of every op: for a device that is slow beyond use, such as the oracle without fma.
    Small,
    /// What a device's test runs: seconds on the oracle.
    Quick,
    /// More rows and columns of the same, for whoever changes a kernel: three times as long.
    Thorough,
}

/// What a device that passed has shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Cases run.
    pub cases: u32,
    /// The worst differences by op name; all zero under [`Allowed::Nothing`].
    pub ops: BTreeMap<&'static str, Worst>,
}

/// The first case that failed.
#[derive(Debug, thiserror::Error)]
#[error("conformance case \"{case}\": {source}")]
pub struct CaseError {
    /// Its name.
    pub case: String,
    /// What went wrong; [`DeviceError::Mismatch`] names the op and the operand.
    pub source: DeviceError,
}

/// All cases of a size. The numbers in a case depend on its name only.
#[must_use]
pub fn list(size: Size) -> Vec<Recipe> {
    let groups = [
        norms::recipes,
        elementwise::recipes,
        linear::recipes,
        delta::recipes,
        attention::recipes,
        route::recipes,
        experts::recipes,
        not_finite::recipes,
    ];
    groups.iter().flat_map(|recipes| recipes(size)).collect()
}

/// Runs the suite of [`Size::Quick`] on an empty device.
///
/// # Errors
/// The first case in which the device departs from the oracle by more than is allowed, writes where it should not, or
/// fails.
pub fn run<D: Device>(device: D, allowed: Allowed) -> Result<Report, CaseError> {
    run_sized(device, allowed, Size::Quick)
}

/// Runs the suite of any size on an empty device.
///
/// # Errors
/// As [`run`].
pub fn run_sized<D: Device>(mut device: D, allowed: Allowed, size: Size) -> Result<Report, CaseError> {
    let fault = |case: &str| {
        let case = case.to_owned();
        move |source| CaseError { case, source }
    };
    let mut oracle = Oracle::new(1).map_err(fault("the oracle's start"))?;
    let recipes = list(size);
    let mut next = 0;
    for recipe in &recipes {
        let case = recipe.build(next);
        if case.suits(allowed) {
            next += case.buffers();
            compare::whole_case(&mut oracle, &mut device, &case, allowed).map_err(fault(case.name()))?;
        }
    }
    let mut checked = Checked::new(oracle, device, allowed);
    let mut report = Report::default();
    for recipe in &recipes {
        let case = recipe.build(next);
        if case.suits(allowed) {
            report.cases += 1;
        }
        if case.suits(allowed) && case.is_finite() {
            next += case.buffers();
            op_by_op(&mut checked, &case).map_err(fault(case.name()))?;
        }
    }
    report.ops = checked.report().lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    Ok(report)
}

fn op_by_op<D: Device>(checked: &mut Checked<D>, case: &Case) -> Result<(), DeviceError> {
    case.place(checked)?;
    let submission = checked.submit(&case.ops)?;
    checked.wait(submission, None)?;
    case.free(checked)
}
