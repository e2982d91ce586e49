//! `colibri verify --golden`: all that golden results hold, compared with what the model gives here, row by row as the
//! rows come.
#[cfg(test)]
mod damaged;

use crate::args::VerifyArgs;
use crate::commands::verify::verdict;
use crate::comparison::Comparison;
use crate::errors::Failure;
use crate::golden_file::{self, Golden};
use crate::load::{self, Model};
use crate::report;
use crate::tensor_file::floats;
use crate::work::{Demand, PARTS, Planned, Wanted, Work, parts};
use engine::sampler::argmax;
use engine::{Cancel, EngineError, Finish, Sampling, Session, Task};
use models::{Dense, Input, Logits, Output, PartError, StateField, Tap};
use ops::{Activations, DeviceError, Tensor};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &VerifyArgs, directory: &Path) -> Result<ExitCode, Failure> {
    let mut comparison = comparison(args)?;
    let model = load::open(&args.model)?;
    let mut work = load(args, directory, &model)?;
    compare_all(&mut work, directory, &model, &mut comparison)?;
    let passed = comparison.passed();
    if args.output.json {
        let mut answer = comparison.json();
        answer["settings"] = json!(work.settings);
        report::print_json(&answer)?;
    } else {
        report::print(&comparison.table())?;
    }
    Ok(verdict(passed))
}

/// The limits for what was asked; refuses what has none.
fn comparison(args: &VerifyArgs) -> Result<Comparison, Failure> {
    let refused = |flag: &str, why: &str| Failure::Usage(format!("{flag} does not go with --golden: {why}"));
    if args.engine.dense().is_some_and(|dense| dense != Dense::Bf16) {
        return Err(refused("--dense", "golden results come from the weights as stored; give bf16 or auto"));
    }
    if args.engine.expert_top_p < 1.0 {
        return Err(refused("--expert-top-p", "golden results come from all experts; leave it away"));
    }
    match args.engine.activations {
        Activations::Exact => Ok(Comparison::exact()),
        Activations::Int15 => Ok(Comparison::int15()),
        Activations::Int8 => Err(refused("--activations int8", "no limits are known; give exact or int15")),
    }
}

/// Looks at all golden results before it loads the model, which may take long.
fn load(args: &VerifyArgs, directory: &Path, model: &Model) -> Result<Work, Failure> {
    let config = &model.family.config;
    let prompts = golden_file::prompts(directory, config.vocabulary)?;
    for prompt in &prompts {
        Golden::open(directory, prompt, config)?;
    }
    let mut request = load::request(&args.engine, None, 1);
    // Golden results come from the weights as stored.
    request.dense = Some(Dense::Bf16);
    let tokens = prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(0);
    let layers: Vec<u32> = (0..config.layers()).collect();
    let demand = Demand::new(request, tokens)
        .taking(everything(&layers), config)
        .holding("golden results of a prompt", golden_file::largest(directory, &prompts));
    Planned::new(model, &args.engine, demand)?.load()
}

fn everything(layers: &[u32]) -> Wanted<'_> {
    Wanted { logits: Logits::All, taps: layers, positions: None }
}

fn compare_all(
    work: &mut Work,
    directory: &Path,
    model: &Model,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let config = &model.family.config;
    for prompt in &golden_file::prompts(directory, config.vocabulary)? {
        compare(work, Golden::open(directory, prompt, config)?, comparison)?;
    }
    Ok(())
}

/// Compares the results of one prompt. Its sequence is closed whatever happens: there is room for one.
fn compare(work: &mut Work, mut golden: Golden<'_>, comparison: &mut Comparison) -> Result<(), Failure> {
    let mut session = work.session()?;
    let outcome = compare_fed(&mut golden, work, &mut session, comparison);
    session.close(&mut work.engine)?;
    outcome?;
    compare_greedy(&golden, work, comparison)?;
    comparison.unused(golden.unused());
    Ok(())
}

/// What a sequence gives that is fed with the prompt and its golden continuation.
fn compare_fed(
    golden: &mut Golden<'_>,
    work: &mut Work,
    session: &mut Session,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let prompt = golden.prompt;
    let layers: Vec<u32> = (0..golden.layers.len() as u32).collect();
    let vocabulary = work.engine.model().vocabulary() as usize;
    // The logits of the last row.
    let mut last = Vec::new();
    work.feed(session, Input::Ids(&prompt.ids), everything(&layers), &mut |range, mut output| {
        for (row, position) in range.enumerate() {
            let logits = &output.logits[row * vocabulary..][..vocabulary];
            compare_logits(golden, position, logits, comparison);
            compare_layers(golden, position, row, &output, comparison);
            compare_picks(golden, position, row, &output.taps, comparison);
        }
        last = output.logits.split_off(output.logits.len() - vocabulary);
        Ok(())
    })?;
    compare_state(golden, work, session, comparison)?;
    compare_forced(golden, work, session, &last, comparison)
}

/// The likeliest token must be the same where the second is at least so far behind.
const MARGIN: f32 = 0.01;

fn compare_logits(golden: &Golden<'_>, position: u32, got: &[f32], comparison: &mut Comparison) {
    let place = format!("{} position {position}", golden.prompt.name);
    let is_last = position as usize + 1 == golden.prompt.ids.len();
    let last = golden.logits_last.as_ref().filter(|_| is_last).map(|rows| (rows, 0));
    for (rows, row) in golden.logits.iter().map(|rows| (rows, position as usize)).chain(last) {
        let want = golden.floats(rows, row);
        comparison.numbers("logits", &place, got, &want);
        let best = argmax(&want);
        let top = want[best as usize];
        let alone = want.iter().filter(|logit| top - **logit <= MARGIN).count() <= 1;
        if alone {
            comparison.argmax(&place, argmax(got), best);
        }
    }
}

fn compare_layers(
    golden: &Golden<'_>,
    position: u32,
    row: usize,
    output: &Output,
    comparison: &mut Comparison,
) {
    let indices = golden.positions.iter().enumerate().filter(|(_, p)| **p == position);
    for (index, _) in indices {
        for tap in &output.taps {
            let wanted = &golden.layers[tap.layer as usize];
            for ((kind, rows), got) in PARTS.into_iter().zip(wanted).zip(parts(tap)) {
                let Some(rows) = rows else { continue };
                let want = golden.floats(rows, index);
                let place = format!("{} layer{}.{kind} position {position}", golden.prompt.name, tap.layer);
                comparison.numbers(kind, &place, &got[row * want.len()..][..want.len()], &want);
            }
        }
    }
}

/// Picks as sets; weights where the picks are the same in order.
fn compare_picks(golden: &Golden<'_>, position: u32, row: usize, taps: &[Tap], comparison: &mut Comparison) {
    let Some(ids) = &golden.router_ids else { return };
    let ids = golden.ids(ids, position as usize);
    let weights = golden.router_weights.as_ref().map(|rows| golden.floats(rows, position as usize));
    let taps: Vec<&Tap> = taps.iter().filter(|tap| !tap.picks.is_empty()).collect();
    let ranks = ids.len() / taps.len().max(1);
    for (index, tap) in taps.iter().enumerate() {
        let place = format!("{} layer {} position {position}", golden.prompt.name, tap.layer);
        let (got, want) = (&tap.picks[row * ranks..][..ranks], &ids[index * ranks..][..ranks]);
        let sorted = |ids: &[u32]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        comparison.picks(&place, sorted(got) == sorted(want));
        if let Some(weights) = weights.as_ref().filter(|_| got == want) {
            let (got, want) = (&tap.weights[row * ranks..][..ranks], &weights[index * ranks..][..ranks]);
            comparison.numbers("router_weights", &place, got, want);
        }
    }
}

/// What the sequence keeps after the prompt.
fn compare_state(
    golden: &mut Golden<'_>,
    work: &mut Work,
    session: &Session,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let mut compare = |kind: &'static str, layer: usize, got: &[f32]| -> Result<(), Failure> {
        let name = format!("{kind}.layer{layer}");
        if let Some(want) = golden.state(&name, got.len())? {
            comparison.numbers(kind, &format!("{} {name}", golden.prompt.name), got, &want);
        }
        Ok(())
    };
    for (layer, field) in work.engine.model().state_fields().into_iter().enumerate() {
        match field {
            StateField::Delta { state, windows } => {
                compare("kda_state", layer, &fixed(work, session, state)?)?;
                let mut got = Vec::new();
                for window in windows {
                    got.extend(fixed(work, session, window)?);
                }
                compare("kda_conv", layer, &got)?;
            }
            StateField::Latent(index) => {
                let latent = work.engine.model().state_layout().latent[index].latent as usize;
                let (pool, device) = work.engine.states();
                let rows = pool.latent_rows(device, session.state(), index)?;
                let width = rows.len() / session.state().position() as usize;
                for (kind, columns) in [("mla_latent", 0..latent), ("mla_krope", latent..width)] {
                    let columns = rows.chunks(width).flat_map(|row| &row[columns.clone()]);
                    compare(kind, layer, &columns.copied().collect::<Vec<f32>>())?;
                }
            }
        }
    }
    Ok(())
}

/// A recurrent field of the sequence's state.
fn fixed(work: &mut Work, session: &Session, field: usize) -> Result<Vec<f32>, DeviceError> {
    let (pool, device) = work.engine.states();
    let t: Tensor = pool.fixed_field(session.state(), field);
    let mut bytes = vec![0; t.elements() as usize * 4];
    let ticket = device.read_later(t.buffer, t.offset * 4, bytes.len() as u64)?;
    device.take(ticket, &mut bytes)?;
    Ok(floats(&bytes))
}

/// The golden continuation is fed, whatever would be chosen here: after each of its tokens the likeliest one must be the
/// same wherever its margin is large enough. `last` are the logits of the prompt's last row.
fn compare_forced(
    golden: &Golden<'_>,
    work: &mut Work,
    session: &mut Session,
    last: &[f32],
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let prompt = golden.prompt;
    let mut compare = |step: usize, logits: &[f32]| {
        // There are at least two; see `golden_file::prompts`.
        if let Some([(best, first), (_, second), ..]) = prompt.greedy_top5.get(step).map(Vec::as_slice)
            && first - second > MARGIN
        {
            comparison.argmax(&format!("{} golden token {step}", prompt.name), argmax(logits), *best);
        }
    };
    let Some((_, fed)) = prompt.greedy_ids.split_last().filter(|_| !prompt.greedy_top5.is_empty()) else {
        return Ok(());
    };
    compare(0, last);
    let first = prompt.ids.len();
    let wanted = Wanted { logits: Logits::All, taps: &[], positions: None };
    work.feed(session, Input::Ids(fed), wanted, &mut |range, output| {
        let rows = output.logits.chunks(last.len());
        range.zip(rows).for_each(|(position, logits)| compare(position as usize - first + 1, logits));
        Ok(())
    })?;
    Ok(())
}

/// The likeliest tokens, one after the other.
fn compare_greedy(golden: &Golden<'_>, work: &mut Work, comparison: &mut Comparison) -> Result<(), Failure> {
    let want = &golden.prompt.greedy_ids;
    if want.is_empty() {
        return Ok(());
    }
    let task = Task {
        prompt: &golden.prompt.ids,
        max_tokens: want.len() as u32,
        stop: &[],
        cancel: Some(Cancel::at_once(work.cancel)),
    };
    let mut session = work.session()?;
    let mut sampler = work.engine.sampler(Sampling::greedy()).map_err(EngineError::from)?;
    let go_on = &mut |_| ControlFlow::Continue(());
    let answer = engine::generate(&mut work.engine, &mut session, &task, &mut sampler, go_on)?;
    session.close(&mut work.engine)?;
    if answer.finish == Finish::Cancelled {
        return Err(Failure::Engine(EngineError::Part(PartError::Cancelled)));
    }
    let first = answer.ids.iter().zip(want).position(|(got, want)| got != want);
    comparison.greedy(&golden.prompt.name, first);
    Ok(())
}
