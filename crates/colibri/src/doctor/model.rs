//! Whether a model is whole, fits, and how it would be run. Looks with the eyes of `inspect` and plans with those of `run`.
use super::Finding;
use super::drives::{self, Drive};
use crate::args::EngineArgs;
use crate::commands::inspect::Seen;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::profile;
use crate::report::counted;
use engine::plan::Request;
use engine::{Limits, Plan, PlanError, show_bytes};
use models::{Dense, Family};
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use store::checkpoint::INDEX;
use text::Tokenizer as _;

/// More names than this are only counted.
const NAMES: usize = 5;

/// Whether it is whole, and whether its tokenizer is.
pub(crate) fn wholeness(seen: &Seen, directories: &[PathBuf]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (present, named) = seen.shards();
    let place = directories.first().map_or(String::new(), |first| format!(" --model {}", first.display()));
    if !seen.partial.absent.is_empty() {
        let text = format!(
            "{} of {} are missing: {}",
            seen.partial.absent.len(),
            counted(named, "shard"),
            first_of(seen.partial.absent.keys())
        );
        let advice = format!("`colibri doctor{place} --missing` lists them for a download tool");
        findings.push(Finding::problem("model", text, advice));
    }
    for fault in &seen.problems {
        findings.push(Finding::problem(
            "model",
            fault,
            "download the file again; `colibri inspect` tells more",
        ));
    }
    if findings.is_empty() {
        let text = format!(
            "{} in {}: {} layers, {}, {} of routed experts; nothing is missing",
            seen.family,
            seen.places.join(", "),
            seen.config.layers(),
            counted(present, "shard"),
            show_bytes(seen.inventory.experts.whole * seen.inventory.experts.bytes_each.unwrap_or_default()),
        );
        findings.push(Finding::ok("model", text));
    }
    findings.extend(seen.notes.iter().map(|note| Finding::ok("note", note)));
    let tokenizer = load::tokenizer_of(&seen.partial.checkpoint, &seen.places[0], seen.config.vocabulary);
    // Otherwise it is among the problems.
    if let Ok(tokenizer) = tokenizer {
        let ids = counted(tokenizer.vocabulary(), "token");
        let missing = load::missing_tokenizer(&seen.partial.checkpoint);
        findings.push(match missing.first() {
            None => Finding::ok("tokenizer", format!("tiktoken, {ids}")),
            Some(name) => Finding::warning(
                "tokenizer",
                format!("tiktoken, {ids}; without {name} its control tokens have no names: no chat"),
                "download that file from the release",
            ),
        });
    }
    findings
}

fn first_of<'n>(names: impl ExactSizeIterator<Item = &'n String>) -> String {
    let rest = names.len().saturating_sub(NAMES);
    let first: Vec<&str> = names.take(NAMES).map(String::as_str).collect();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    first.join(", ") + &more
}

/// The files to download for the model to be whole, as they are called in its release.
pub(crate) fn wanting(seen: &Seen) -> Vec<String> {
    let shards = seen.partial.absent.keys().chain(seen.partial.damaged.keys());
    let mut names: Vec<String> = shards.cloned().collect();
    names.extend(load::missing_tokenizer(&seen.partial.checkpoint));
    names.sort();
    names
}

/// Whether there is room for what is missing, as far as the index tells how much that is.
pub(crate) fn room(seen: &Seen, drives: &[Drive], directories: &[PathBuf]) -> Option<Finding> {
    let first = directories.first()?;
    let index: Value = serde_json::from_slice(&fs::read(first.join(INDEX)).ok()?).ok()?;
    let all = index["metadata"]["total_size"].as_u64()?;
    let missing = all.saturating_sub(seen.inventory.classes.values().map(|class| class.bytes).sum());
    if seen.partial.absent.is_empty() && seen.partial.damaged.is_empty() {
        return None;
    }
    let known: Option<u64> = drives.iter().map(Drive::free_bytes).sum();
    let free = known.filter(|_| !drives.is_empty()).or_else(|| fs4::available_space(first).ok())?;
    let text = format!("{} are still to come, {} are free", show_bytes(missing), show_bytes(free));
    Some(if free < missing {
        Finding::problem("space", text, "make room, or give a directory on another drive as a second --model")
    } else {
        Finding::ok("space", text)
    })
}

/// What a plan says.
#[derive(Debug, Serialize)]
pub(crate) struct Planned {
    dense: &'static str,
    context: u32,
    chunk: u32,
    slots: u32,
    experts: u32,
    bytes: u64,
    items: Vec<(String, u64)>,
    notes: Vec<String>,
}

/// A packing of what every token needs.
#[derive(Debug, Serialize)]
pub(crate) struct Fit {
    dense: &'static str,
    /// With the shortest context and the smallest useful cache.
    needed_bytes: u64,
    fits: bool,
}

/// What would happen if it were run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outlook {
    pub(crate) packings: Vec<Fit>,
    /// None if there is none that fits.
    pub(crate) plan: Option<Planned>,
}

/// What `run` would do with the settings in force, and which packings fit.
pub(crate) fn plan(seen: Seen, args: &EngineArgs) -> Result<(Outlook, Vec<Finding>), Failure> {
    let Seen { partial, places, .. } = seen;
    let family = Family::recognise(&partial.checkpoint)?;
    let model = Model { checkpoint: partial.checkpoint, family, places, notes: Vec::new() };
    profile::check(&model, args)?;
    let request = load::request(args, None, 1);
    let packings = packings(&model, &request)?;
    let mut findings = vec![packing_finding(&packings)];
    let plan = match load::plan(&model, &request, 1, Vec::new()) {
        Ok(plan) => plan,
        Err(failure) => {
            // The items stand in the message line by line.
            findings.push(Finding::problem(
                "plan",
                failure.message(),
                "free memory, or take a smaller packing, context or cache",
            ));
            return Ok((Outlook { packings, plan: None }, findings));
        }
    };
    findings.push(plan_finding(&plan));
    for note in plan.notes.iter().filter(|note| note.starts_with("--")) {
        findings.push(Finding::warning("plan", note, "ask for what fits, or free memory"));
    }
    Ok((Outlook { packings, plan: Some(Planned::new(&plan)) }, findings))
}

impl Planned {
    fn new(plan: &Plan) -> Self {
        Planned {
            dense: plan.options.dense.name(),
            context: plan.context,
            chunk: plan.chunk,
            slots: plan.slab.map_or(0, |slab| slab.slots()),
            experts: plan.experts,
            bytes: plan.bytes(),
            items: plan.items.clone(),
            notes: plan.notes.clone(),
        }
    }
}

/// What each packing needs: what a machine without any memory would be told.
fn packings(model: &Model, request: &Request) -> Result<Vec<Fit>, Failure> {
    let limits = Limits::of_machine()?;
    let nothing = Limits { available: 0, ..limits };
    let free = Request { dense: None, ..request.clone() };
    match engine::plan(&model.checkpoint, &model.family, &free, nothing) {
        Err(PlanError::DoesNotFit(sum)) => {
            let fit = |(dense, bytes): &(Dense, u64)| Fit {
                dense: dense.name(),
                needed_bytes: *bytes,
                fits: *bytes <= limits.usable(),
            };
            Ok(sum.choices.iter().map(fit).collect())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Ok(Vec::new()),
    }
}

fn packing_finding(fits: &[Fit]) -> Finding {
    let one = |fit: &Fit| {
        format!(
            "{} {} {}",
            fit.dense,
            if fit.fits { "fits in" } else { "needs" },
            show_bytes(fit.needed_bytes)
        )
    };
    let text = format!(
        "{} (with the shortest context and the smallest cache)",
        fits.iter().map(one).collect::<Vec<_>>().join(", ")
    );
    match (fits.first().is_some_and(|fit| fit.fits), fits.iter().any(|fit| fit.fits)) {
        (true, _) => Finding::ok("packing", text),
        (false, true) => Finding::ok("packing", format!("{text}; --dense auto takes the first that fits")),
        (false, false) => {
            Finding::problem("packing", text, "no packing fits: free memory, or use a machine with more")
        }
    }
}

fn plan_finding(plan: &Plan) -> Finding {
    let slots = plan.slab.map_or(0, |slab| slab.slots());
    let cache = match plan.experts {
        0 => "no routed experts".to_owned(),
        experts if slots >= experts => format!("all {experts} experts in memory"),
        experts => format!("{slots} of {experts} experts in memory"),
    };
    let text = format!(
        "dense weights as {}, a context of {}, {cache}; {} in all",
        plan.options.dense.name(),
        plan.context,
        show_bytes(plan.bytes())
    );
    Finding::ok("plan", text)
}

/// What a token costs that finds none of its experts in memory, at the rates that were measured.
pub(crate) fn cold_token(seen: &Seen, drives: &[Drive]) -> Option<Finding> {
    let experts = &seen.inventory.experts;
    let layers = seen.config.layers().saturating_sub(seen.config.first_moe_layer);
    let bytes = u64::from(layers) * u64::from(experts.per_token) * experts.bytes_each?;
    let seconds = drives::seconds(drives, bytes).filter(|_| !drives.is_empty())?;
    let text = format!(
        "a token that finds none of its experts in memory reads {}: {seconds:.2} s at these rates (computed)",
        show_bytes(bytes)
    );
    Some(if seconds > SLOW_TOKEN_SECONDS {
        Finding::warning(
            "reads",
            text,
            "use a faster drive, or one volume striped over several (shards spread over drives are read in turn)",
        )
    } else {
        Finding::ok("reads", text)
    })
}

/// Who waits longer than this for a word has the wrong drive for this model.
const SLOW_TOKEN_SECONDS: f64 = 30.0;
