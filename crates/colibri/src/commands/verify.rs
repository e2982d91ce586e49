//! `colibri verify`: the model against golden results, or a device against the definition of every op.
use crate::args::VerifyArgs;
use crate::commands::golden;
use crate::errors::Failure;
use crate::load;
use crate::report::{self, Pace};
use crate::values::DeviceChoice;
use crate::work::{Demand, Planned, Wanted};
use cpu::Cpu;
use engine::EngineError;
use models::{Input, Logits, StepError};
use ops::checked::{Allowed, Checked, Report, Worst};
use ops::{Device, DeviceError, Oracle};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::PoisonError;

/// Runs it.
pub(crate) fn run(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    match &args.golden {
        Some(directory) => golden::run(args, directory),
        None if args.checked => checked(args),
        None => Err(Failure::Usage(
            "what to compare: give --golden DIR for golden results, or --checked and a prompt for a device"
                .into(),
        )),
    }
}

/// The exit code of a verdict.
pub(crate) fn verdict(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a prompt on the definition and on the chosen device at once, op by op from the same inputs.
fn checked(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let model = load::open(&args.model)?;
    let ids = load::prompt(&args.prompt, &model)?;
    let request = load::request(&args.engine, args.layers.layers, 2);
    let planned = Planned::new(&model, &args.engine, Demand::new(request, ids.len()))?;
    let threads = load::threads(&args.engine);
    let oracle = Oracle::new(threads)?;
    let (device, seen) = match args.engine.device {
        DeviceChoice::Cpu => compared(oracle, Cpu::new(threads)?),
        DeviceChoice::Oracle => compared(oracle, Oracle::new(if threads == 1 { 2 } else { 1 })?),
    };
    let name = device.name().to_owned();
    let mut work = planned.load_on(device)?;
    let wanted = Wanted { logits: Logits::Last, taps: &[], positions: None };
    let mut session = work.session()?;
    let outcome = work.feed(&mut session, Input::Ids(&ids), wanted, &mut |_, _| Ok(()));
    let (pace, mismatch) = match outcome {
        Ok(pace) => (pace, None),
        Err(Failure::Engine(EngineError::Step(StepError::Device(error @ DeviceError::Mismatch { .. })))) => {
            (Pace::default(), Some(error.to_string()))
        }
        Err(failure) => return Err(failure),
    };
    let seen: Vec<(&str, Worst)> = seen
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .map(|(name, worst)| (*name, *worst))
        .collect();
    let passed = mismatch.is_none() && !seen.is_empty();
    if args.output.json {
        report::print_json(&json!({
            "passed": passed,
            "device": name,
            "prompt_ids": ids,
            "ops": as_json(&seen),
            "mismatch": mismatch,
            "settings": work.settings,
            "stats": work.stats(pace, Pace::default()),
        }))?;
    } else {
        report::print(&table(&name, &seen, mismatch.as_deref()))?;
    }
    Ok(verdict(passed))
}

/// A device beside the definition, and what is seen of their differences.
fn compared<D: Device + 'static>(oracle: Oracle, candidate: D) -> (Box<dyn Device>, Report) {
    let device = Checked::new(oracle, candidate, Allowed::Nothing);
    let seen = device.report();
    (Box::new(device), seen)
}

fn as_json(seen: &[(&str, Worst)]) -> Value {
    let op = |(name, worst): &(&str, Worst)| {
        let Worst { count, relative, absolute } = worst;
        ((*name).to_owned(), json!({"count": count, "relative": relative, "absolute": absolute}))
    };
    Value::Object(seen.iter().map(op).collect::<Map<_, _>>())
}

fn table(device: &str, seen: &[(&str, Worst)], mismatch: Option<&str>) -> String {
    let mut text = format!("{:<16} {:>9} {:>12} {:>12}\n", "op", "compared", "relative L2", "absolute");
    for (name, Worst { count, relative, absolute }) in seen {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<16} {count:>9} {relative:>12.3e} {absolute:>12.3e}");
    }
    let _ = match mismatch {
        None => writeln!(text, "passed: {device} gives the bits of the definition in every op"),
        Some(mismatch) => writeln!(text, "FAILED: {device}: {mismatch}"),
    };
    text
}
