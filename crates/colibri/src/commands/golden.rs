//! `colibri verify --golden`: all that golden results hold, compared with what the model gives here.
use crate::args::VerifyArgs;
use crate::commands::verify::verdict;
use crate::comparison::Comparison;
use crate::errors::Failure;
use crate::golden_file::{self, Prompt, Tensors};
use crate::load;
use crate::report;
use crate::tensor_file::floats;
use crate::work::{Planned, Wanted, Work};
use engine::{EngineError, Finish, Sampling, Session, Task};
use models::{Dense, Input, Logits, Output, StateField, Tap};
use ops::{Activations, DeviceError, Tensor};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &VerifyArgs, directory: &Path) -> Result<ExitCode, Failure> {
    let mut comparison = comparison(args)?;
    let prompts = golden_file::prompts(directory)?;
    let model = load::open(&args.model)?;
    let vocabulary = model.family.config.vocabulary;
    for prompt in &prompts {
        if let Some(id) = prompt.ids.iter().chain(&prompt.greedy_ids).find(|id| **id >= vocabulary) {
            return Err(Failure::Golden(format!(
                "prompt `{}` holds the id {id}, the model's ids are below {vocabulary}; these are another model's results",
                prompt.name
            )));
        }
    }
    let mut request = load::request(&args.engine, None, 1);
    // Golden results come from the weights as stored.
    request.dense = Some(Dense::Bf16);
    let tokens = prompts.iter().map(|p| p.ids.len() + p.greedy_ids.len()).max().unwrap_or(0);
    let mut work = Planned::new(&model, &args.engine, &request, tokens, None)?.load()?;
    for prompt in &prompts {
        let tensors = Tensors::open(directory, prompt)?;
        check_prompt(&mut work, prompt, &tensors, &mut comparison)?;
    }
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

fn check_prompt(
    work: &mut Work,
    prompt: &Prompt,
    tensors: &Tensors,
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let layers: Vec<u32> = (0..work.engine.model().state_fields().len() as u32).collect();
    let mut all = Output {
        logits: Vec::new(),
        taps: layers.iter().map(|&layer| Tap { layer, ..Tap::default() }).collect(),
    };
    let session = Session::new(&mut work.engine)?;
    std::mem::replace(&mut work.session, session).close(&mut work.engine)?;
    let wanted = Wanted { logits: Logits::All, taps: &layers, positions: None };
    work.feed(Input::Ids(&prompt.ids), wanted, &mut |_, output| {
        append(&mut all, output);
        Ok(())
    })?;
    let sight = Sight { prompt, tensors, rows: prompt.ids.len() };
    check_logits(&sight, &all, comparison)?;
    for tap in &all.taps {
        check_layer(&sight, tap, comparison)?;
    }
    check_router(&sight, &all, comparison)?;
    check_state(&sight, work, comparison)?;
    check_greedy(&sight, work, comparison)
}

fn append(all: &mut Output, output: Output) {
    all.logits.extend(output.logits);
    for (all, tap) in all.taps.iter_mut().zip(output.taps) {
        all.attention_input.extend(tap.attention_input);
        all.attention_output.extend(tap.attention_output);
        all.mlp_input.extend(tap.mlp_input);
        all.mlp_output.extend(tap.mlp_output);
        all.hidden.extend(tap.hidden);
        all.picks.extend(tap.picks);
        all.weights.extend(tap.weights);
    }
}

/// One prompt and its golden tensors.
struct Sight<'a> {
    prompt: &'a Prompt,
    tensors: &'a Tensors,
    rows: usize,
}

impl Sight<'_> {
    fn place(&self, what: &str) -> String {
        format!("{} {what}", self.prompt.name)
    }

    /// Golden numbers, which must be as many as the model gives.
    fn floats(&self, name: &str, count: usize) -> Result<Option<Vec<f32>>, Failure> {
        let Some((values, _)) = self.tensors.floats(name)? else { return Ok(None) };
        self.expect(name, values.len(), count)?;
        Ok(Some(values))
    }

    fn expect(&self, name: &str, found: usize, count: usize) -> Result<(), Failure> {
        if found == count {
            return Ok(());
        }
        Err(self.tensors.unusable(&format!(
            "tensor `{name}` has {found} numbers, this model gives {count}; these are another model's results"
        )))
    }

    /// Positions at which a router nearly chose another expert: there an inexact mode may choose it.
    fn close_calls(&self) -> Result<Vec<bool>, Failure> {
        const GAP_MIN: f32 = 1e-4;
        let Some((gaps, shape)) = self.tensors.floats("router_gap")? else {
            return Ok(vec![false; self.rows]);
        };
        self.expect("router_gap", shape.first().copied().unwrap_or(0), self.rows)?;
        let layers = (gaps.len() / self.rows).max(1);
        Ok(gaps.chunks(layers).map(|gaps| gaps.iter().any(|gap| *gap < GAP_MIN)).collect())
    }
}

fn check_logits(sight: &Sight<'_>, all: &Output, comparison: &mut Comparison) -> Result<(), Failure> {
    let vocabulary = all.logits.len() / sight.rows;
    let close = sight.close_calls()?;
    let mut row = |position: usize, got: &[f32], want: &[f32]| {
        let kind = if close[position] { "logits, router gap < 1e-4" } else { "logits" };
        comparison.numbers(kind, &sight.place(&format!("position {position}")), got, want);
    };
    if let Some(want) = sight.floats("logits", all.logits.len())? {
        let rows = all.logits.chunks(vocabulary).zip(want.chunks(vocabulary));
        rows.enumerate().for_each(|(position, (got, want))| row(position, got, want));
    }
    if let Some(want) = sight.floats("logits_last", vocabulary)? {
        row(sight.rows - 1, &all.logits[all.logits.len() - vocabulary..], &want);
    }
    Ok(())
}

fn check_layer(sight: &Sight<'_>, tap: &Tap, comparison: &mut Comparison) -> Result<(), Failure> {
    let positions = match sight.tensors.ids("positions")? {
        Some(positions) => positions,
        None => (0..sight.rows as u32).collect(),
    };
    if let Some(position) = positions.iter().find(|p| **p as usize >= sight.rows) {
        return Err(sight.tensors.unusable(&format!("position {position} of {} tokens", sight.rows)));
    }
    let width = tap.hidden.len() / sight.rows;
    for (kind, values) in [
        ("attention_input", &tap.attention_input),
        ("attention_output", &tap.attention_output),
        ("mlp_input", &tap.mlp_input),
        ("mlp_output", &tap.mlp_output),
        ("hidden", &tap.hidden),
    ] {
        let name = format!("layer{}.{kind}", tap.layer);
        let Some(want) = sight.floats(&name, positions.len() * width)? else { continue };
        let row = |p: &u32| &values[*p as usize * width..][..width];
        let got: Vec<f32> = positions.iter().flat_map(row).copied().collect();
        comparison.numbers(kind, &sight.place(&name), &got, &want);
    }
    Ok(())
}

/// Picks as sets; weights where the picks are the same in order.
fn check_router(sight: &Sight<'_>, all: &Output, comparison: &mut Comparison) -> Result<(), Failure> {
    let taps: Vec<&Tap> = all.taps.iter().filter(|tap| !tap.picks.is_empty()).collect();
    let Some(first) = taps.first() else { return Ok(()) };
    let ranks = first.picks.len() / sight.rows;
    let count = sight.rows * taps.len() * ranks;
    let Some(ids) = sight.tensors.ids("router_ids")? else { return Ok(()) };
    sight.expect("router_ids", ids.len(), count)?;
    let weights = sight.floats("router_weights", count)?;
    for position in 0..sight.rows {
        for (index, tap) in taps.iter().enumerate() {
            let at = (position * taps.len() + index) * ranks;
            let place = sight.place(&format!("layer {} position {position}", tap.layer));
            let (got, want) = (&tap.picks[position * ranks..][..ranks], &ids[at..at + ranks]);
            let sorted = |ids: &[u32]| {
                let mut ids = ids.to_vec();
                ids.sort_unstable();
                ids
            };
            comparison.picks(&place, sorted(got) == sorted(want));
            if let Some(weights) = weights.as_ref().filter(|_| got == want) {
                let got = &tap.weights[position * ranks..][..ranks];
                comparison.numbers("router_weights", &place, got, &weights[at..at + ranks]);
            }
        }
    }
    Ok(())
}

/// What the sequence keeps after the prompt.
fn check_state(sight: &Sight<'_>, work: &mut Work, comparison: &mut Comparison) -> Result<(), Failure> {
    for (layer, field) in work.engine.model().state_fields().into_iter().enumerate() {
        match field {
            StateField::Delta { state, windows } => {
                let got = fixed(work, state)?;
                compare(sight, "kda_state", layer, &got, comparison)?;
                let mut got = Vec::new();
                for window in windows {
                    got.extend(fixed(work, window)?);
                }
                compare(sight, "kda_conv", layer, &got, comparison)?;
            }
            StateField::Latent(index) => {
                let (pool, device) = work.engine.states();
                let rows = pool.latent_rows(device, work.session.state(), index)?;
                let width = rows.len() / sight.rows;
                let Some((_, shape)) = sight.tensors.floats(&format!("mla_latent.layer{layer}"))? else {
                    continue;
                };
                let latent = shape.last().copied().unwrap_or(0).min(width);
                for (kind, columns) in [("mla_latent", 0..latent), ("mla_krope", latent..width)] {
                    let got: Vec<f32> =
                        rows.chunks(width).flat_map(|row| &row[columns.clone()]).copied().collect();
                    compare(sight, kind, layer, &got, comparison)?;
                }
            }
        }
    }
    Ok(())
}

fn compare(
    sight: &Sight<'_>,
    kind: &'static str,
    layer: usize,
    got: &[f32],
    comparison: &mut Comparison,
) -> Result<(), Failure> {
    let name = format!("{kind}.layer{layer}");
    if let Some(want) = sight.floats(&name, got.len())? {
        comparison.numbers(kind, &sight.place(&name), got, &want);
    }
    Ok(())
}

/// A recurrent field of the sequence's state.
fn fixed(work: &mut Work, field: usize) -> Result<Vec<f32>, DeviceError> {
    let (pool, device) = work.engine.states();
    let t: Tensor = pool.fixed_field(work.session.state(), field);
    let mut bytes = vec![0; t.elements() as usize * 4];
    let ticket = device.read_later(t.buffer, t.offset * 4, bytes.len() as u64)?;
    device.take(ticket, &mut bytes)?;
    Ok(floats(&bytes))
}

/// The likeliest tokens, one after the other.
fn check_greedy(sight: &Sight<'_>, work: &mut Work, comparison: &mut Comparison) -> Result<(), Failure> {
    let want = &sight.prompt.greedy_ids;
    if want.is_empty() {
        return Ok(());
    }
    let task = Task {
        prompt: &sight.prompt.ids,
        max_tokens: want.len() as u32,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        stop: &[],
        cancel: Some(work.cancel),
    };
    let mut session = Session::new(&mut work.engine)?;
    let answer = engine::generate(&mut work.engine, &mut session, &task, &mut |_| {})?;
    session.close(&mut work.engine)?;
    if answer.finish == Finish::Cancelled {
        return Err(Failure::Engine(EngineError::Part(models::PartError::Cancelled)));
    }
    let first = answer.ids.iter().zip(want).position(|(got, want)| got != want);
    comparison.greedy(&sight.prompt.name, first);
    Ok(())
}
