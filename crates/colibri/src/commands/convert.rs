//! `colibri convert`: says what will be written and whether there is room, writes it, reads it back. What is written is the
//! matter of the crate `convert`.
use crate::args::{ConvertArgs, ModelArgs};
use crate::commands::verify::verdict;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::report::counted;
use crate::{interrupt, progress, report, settings};
use convert::{
    Conversion, ConvertError, Plan, Report, Settings, begun, bytes_to_verify, check_places, verify,
};
use engine::plan::Request;
use engine::show_bytes;
use models::Dense;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Differences that are listed; more are only counted.
const SHOWN: usize = 20;

/// Runs it.
pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode, Failure> {
    let (written, destination) = match args.places.as_slice() {
        [only] if args.verify => {
            refuse_idle(args)?;
            (None, only)
        }
        [sources @ .., destination] if !sources.is_empty() => {
            (Some(write(args, sources, destination)?), destination)
        }
        _ => {
            return Err(Failure::Usage(
                "where to: give the model's directory and the one to write, `colibri convert SRC DST`".into(),
            ));
        }
    };
    let verified = if args.verify { Some(read_back(destination)?) } else { None };
    let place = destination.display().to_string();
    if args.output.json {
        report::print_json(&json!({
            "destination": place,
            "written": written.as_ref().map(Written::json),
            "verified": verified.as_ref().map(as_json),
        }))?;
    } else {
        let mut text = written.as_ref().map_or_else(String::new, |written| written.text(&place));
        text.push_str(&verified.as_ref().map_or_else(String::new, as_text));
        report::print(&text)?;
    }
    Ok(verdict(verified.is_none_or(|(report, _)| report.faults.is_empty())))
}

/// Reading back alone packs nothing.
fn refuse_idle(args: &ConvertArgs) -> Result<(), Failure> {
    let dense = settings::in_force().get("dense").is_some_and(|origin| !origin.is_told());
    for (flag, given) in [("--dense", dense), ("--thin", args.thin)] {
        if given {
            return Err(Failure::Usage(format!(
                "{flag} has no effect: one directory with --verify is read back and not written; leave it away, or give the \
                 model's directory before"
            )));
        }
    }
    Ok(())
}

/// What was written.
struct Written {
    sources: Vec<String>,
    dense: Dense,
    thin: bool,
    parts: usize,
    bytes: u64,
    /// By this run.
    new_bytes: u64,
    took: Duration,
    resumed: bool,
    was_complete: bool,
}

fn write(args: &ConvertArgs, sources: &[PathBuf], destination: &Path) -> Result<Written, Failure> {
    let model = load::open(&ModelArgs { model: sources.to_vec() })?;
    check_places(&model.checkpoint, sources, destination)?;
    let dense = dense(args, &model, destination)?;
    let plan = Plan::new(&model.checkpoint, &model.family, Settings::new(dense, args.thin))?;
    let conversion = Conversion::new(&plan, &model.checkpoint, destination)?;
    let left = conversion.left()?;
    announce(&conversion, destination, (dense, args.thin), left)?;
    let start = Instant::now();
    let all = conversion.bytes();
    let bar = progress::bytes("writing", all);
    let stoppable = interrupt::Stoppable::begin();
    let outcome = conversion.run(stoppable.flag(), &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    if matches!(outcome, Err(ConvertError::Cancelled)) {
        report::tell("what is written stays; the same command goes on where it stopped");
    }
    outcome?;
    Ok(Written {
        sources: model.places,
        dense,
        thin: args.thin,
        parts: plan.units(),
        bytes: all,
        new_bytes: left,
        took: start.elapsed(),
        resumed: conversion.is_begun(),
        was_complete: conversion.is_complete(),
    })
}

/// The packing asked for; else that of an unfinished conversion; else what a run would choose.
fn dense(args: &ConvertArgs, model: &Model, destination: &Path) -> Result<Dense, Failure> {
    if let Some(dense) = args.dense.0 {
        return Ok(dense);
    }
    if let Some(begun) = begun(destination)? {
        return Ok(begun.dense);
    }
    Ok(load::plan(model, &Request::default(), 1, Vec::new())?.options.dense)
}

/// Says what will be written, and refuses what has no room.
fn announce(
    conversion: &Conversion<'_>,
    destination: &Path,
    (dense, thin): (Dense, bool),
    left: u64,
) -> Result<(), Failure> {
    let place = destination.display();
    if conversion.is_complete() {
        report::tell(&format!(
            "{place} is there already, made from this model in this way; nothing is to be written"
        ));
        return Ok(());
    }
    let there = destination.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let free = fs4::available_space(there).map_err(Failure::io("looking at the drive of", there))?;
    let form = if thin { "a thin container" } else { "a container" };
    let what = format!("{form} with dense weights as {}", dense.name());
    let all = show_bytes(conversion.bytes());
    if conversion.is_begun() {
        report::tell(&format!(
            "going on with {what} in {place}: {} of {all} are still to be written, {} are free",
            show_bytes(left),
            show_bytes(free)
        ));
    } else {
        report::tell(&format!("writing {what} to {place}: {all}, {} are free", show_bytes(free)));
    }
    if left > free {
        return Err(Failure::Told {
            kind: "io",
            message: format!(
                "{place} needs {} ({left} bytes) and {} ({free} bytes) are free on its drive: make room, choose a place on \
                 another drive, or take --thin",
                show_bytes(left),
                show_bytes(free)
            ),
        });
    }
    Ok(())
}

impl Written {
    fn json(&self) -> Value {
        json!({
            "model": self.sources,
            "dense": self.dense.name(),
            "thin": self.thin,
            "parts": self.parts,
            "bytes": self.bytes,
            "new_bytes": self.new_bytes,
            "seconds": self.took.as_secs_f64(),
            "resumed": self.resumed,
            "was_complete": self.was_complete,
        })
    }

    fn text(&self, place: &str) -> String {
        if self.was_complete {
            return String::new();
        }
        format!(
            "wrote {} ({}) in {:.1} s, {}/s; use it with --model {place}\n",
            show_bytes(self.new_bytes),
            counted(self.parts, "part"),
            self.took.as_secs_f64(),
            show_bytes((self.new_bytes as f64 / self.took.as_secs_f64().max(1e-3)) as u64)
        )
    }
}

fn read_back(place: &Path) -> Result<(Report, Duration), Failure> {
    let start = Instant::now();
    let bar = progress::bytes("verifying", bytes_to_verify(place)?);
    let stoppable = interrupt::Stoppable::begin();
    let cancel: &AtomicBool = stoppable.flag();
    let outcome = verify(place, cancel, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    Ok((outcome?, start.elapsed()))
}

fn as_json((report, took): &(Report, Duration)) -> Value {
    let fault =
        |fault: &convert::Fault| json!({"file": fault.file, "what": fault.what, "found": fault.found});
    json!({
        "passed": report.faults.is_empty(),
        "parts": report.compared,
        "bytes": report.bytes,
        "seconds": took.as_secs_f64(),
        "faults": report.faults.iter().map(fault).collect::<Vec<_>>(),
    })
}

fn as_text((report, took): &(Report, Duration)) -> String {
    let mut text = format!(
        "read back {} in {:.1} s, {}/s\n",
        show_bytes(report.bytes),
        took.as_secs_f64(),
        show_bytes((report.bytes as f64 / took.as_secs_f64().max(1e-3)) as u64)
    );
    // Writing to a string cannot fail.
    for fault in report.faults.iter().take(SHOWN) {
        let _ = writeln!(text, "DIFFERS: {}: {}: {}", fault.file, fault.what, fault.found);
    }
    let _ = match report.faults.len() {
        0 => writeln!(text, "passed: everything is as it was written"),
        1 => writeln!(text, "FAILED: 1 part differs; make the container again"),
        count => writeln!(text, "FAILED: {count} parts differ; make the container again"),
    };
    text
}
