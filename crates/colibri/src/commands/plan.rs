//! `colibri plan`: what a model will need and how fast it will be, before anything is loaded or even downloaded. Plans with
//! the code of every other command; what it predicts is computed in `engine::predict`.
mod idle;
mod outlook;
mod text;

use crate::args::PlanArgs;
use crate::errors::Failure;
use crate::load::{self, Held, Model};
use crate::probe::rates;
use crate::report::{self, Settings};
use crate::{profile, routing};
use engine::predict::{
    MappedReads, Prediction, Rates, RoutedExperts, StepTokens, Traffic, by_chance, from_traces,
    rows_of_chunks,
};
use engine::{Limits, Plan, ops_of_step, show_bytes};
use idle::Circumstances;
use models::kimi_k3::KimiK3Config;
use outlook::{Figure, Origin, Outlook, PlannedMachine, Source, StepFacts, StepKind};
use std::process::ExitCode;
use store::Access;
use store::routing::RoutingTrace;

/// Runs it.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let model = load::open_for_plan(&args.model)?;
    profile::check(&model, &args.engine)?;
    let limits = match args.ram {
        Some(bytes) => Limits { total: bytes, available: bytes },
        None => Limits::of_machine()?,
    };
    let layers = args.layers.layers;
    let request = load::request(&args.engine, layers, 1);
    let held = if args.engine.mirror.is_empty() {
        Held::new()
    } else {
        let (reader, _) = load::reader(&model, &args.engine)?;
        load::held_by_mirror(&model, &args.engine, layers, &*reader)
    };
    let plan = load::plan_within(&model, &request, 0, held, limits)?;
    let outlook = outlook(args, &model, &plan, limits, |step| computing(args, step))?;
    if args.output.json {
        report::print_json(&outlook.json())?;
    } else {
        report::print(&text::text(&outlook))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All that is told of a plan within such memory; `computing` says how fast a step like this one is computed.
fn outlook<'a>(
    args: &PlanArgs,
    model: &Model,
    plan: &'a Plan,
    limits: Limits,
    computing: impl FnOnce(&[ops::Op]) -> Result<Computing, Failure>,
) -> Result<Outlook<'a>, Failure> {
    let available = limits.available;
    let mut circumstances =
        Circumstances { args, plan, available, lacks_computing: false, lacks_drive: false };
    circumstances.refuse()?;
    let (mapped, needs_drive) = (circumstances.mapped(), circumstances.needs_drive());
    let steps = Steps::new(args, model, plan, mapped)?;
    let Computing { rates: computing, mut notes } = computing(&steps.prompt)?;
    let drive = drive(args, model, needs_drive, &mut notes)?;
    circumstances.lacks_computing = computing.is_none() && !args.no_measure;
    circumstances.lacks_drive = drive.is_none() && needs_drive && !args.no_measure;
    let source = Source::of(model, plan);
    notes.splice(0..0, model.checkpoint.notes().iter().chain(&model.notes).chain(&plan.notes).cloned());
    notes.extend(source.note());
    notes.extend(circumstances.notes());
    notes.extend(note_of_mapped(mapped));
    if !args.engine.mirror.is_empty() && plan.is_streamed() {
        notes.push(OF_MIRROR.to_owned());
    }
    notes.extend(steps.note_of_hits());
    let facts = steps.predicted(computing.as_ref()).into_iter();
    Ok(Outlook {
        settings: Settings::new(model, &args.engine, plan, None),
        source,
        model: model.places.clone(),
        steps: facts.map(|(kind, step)| StepFacts::new(kind, step, drive, &args.engine)).collect(),
        machine: PlannedMachine {
            limits,
            memory: if args.ram.is_some() { Origin::Given } else { Origin::Measured },
            computing,
            drive,
        },
        plan,
        notes,
    })
}

/// The traces, each of which must be of a model of these sizes.
fn traces(args: &PlanArgs, model: &Model, plan: &Plan) -> Result<Vec<RoutingTrace>, Failure> {
    let config = &model.family.config;
    let layers = plan.options.layers.unwrap_or(config.layers()).saturating_sub(config.first_moe_layer);
    let expected = (layers, config.experts, config.ranks);
    let read = |path: &std::path::PathBuf| {
        let trace = routing::read(path)?;
        let head = &trace.head;
        let found = (u32::from(head.layers), u32::from(head.experts_per_layer), u32::from(head.ranks));
        let words = |(layers, experts, ranks): (u32, u32, u32)| {
            format!("{layers} layers of {experts} experts, of which a token picks {ranks}")
        };
        if found == expected && !trace.steps.is_empty() {
            return Ok(trace);
        }
        let why = if trace.steps.is_empty() {
            "it holds no step; write it anew with --trace-routing".to_owned()
        } else {
            let (of, advice) = if (found.1, found.2) == (expected.1, expected.2) {
                ("a run with other --layers", "take as many here, or write one with as many as here")
            } else {
                ("another model", "write one with `colibri run --trace-routing` on this model")
            };
            format!("it is of {of}: expected {}, found {}; {advice}", words(expected), words(found))
        };
        Err(Failure::Told { kind: "routing", message: format!("--trace {}: {why}", path.display()) })
    };
    args.trace.iter().map(read).collect()
}

/// How fast steps are computed.
#[derive(Default)]
struct Computing {
    /// None if that is not known.
    rates: Option<Rates>,
    notes: Vec<String>,
}

/// How fast this machine computes such a step, if that is to be known.
fn computing(args: &PlanArgs, step: &[ops::Op]) -> Result<Computing, Failure> {
    if args.no_measure {
        return Ok(Computing::default());
    }
    // What is measured takes memory of this machine, whichever is planned for.
    let measured = match rates::computing(&args.engine, step, Limits::of_machine()?.usable())? {
        Ok(measured) => measured,
        Err(reason) => return Ok(Computing { rates: None, notes: vec![reason] }),
    };
    let mut notes = measured.notes;
    if args.ram.is_some() || args.disk.is_some() {
        notes.push(
            "what is computed takes as long as on this machine: its processor and memory were measured"
                .into(),
        );
    }
    Ok(Computing { rates: Some(measured.rate), notes })
}

/// The drive's rate; None if it is not known, or not needed.
fn drive(
    args: &PlanArgs,
    model: &Model,
    needs_drive: bool,
    notes: &mut Vec<String>,
) -> Result<Option<Figure>, Failure> {
    if let Some(rate) = args.disk {
        return Ok(Some(Figure { value: rate as f64, origin: Origin::Given }));
    }
    if args.no_measure || !needs_drive {
        return Ok(None);
    }
    match rates::drives(&model.checkpoint, &args.engine)? {
        Ok(measured) => {
            notes.extend(measured.notes);
            Ok(Some(Figure { value: measured.rate, origin: Origin::Measured }))
        }
        Err(reason) => {
            notes.push(format!("seconds are not predicted: {reason}"));
            Ok(None)
        }
    }
}

/// Where hits come from without traces.
const BY_CHANCE: &str = "hits are those of chance, as if experts were picked evenly: texts repeat theirs, so there are more; a \
                         trace of one prompt (colibri run --trace-routing FILE) and --trace FILE make it exact";

/// What seconds leave out.
const OF_MIRROR: &str = "what a mirror gives is not predicted: add its rate to that of --disk";

/// How much of mapped weights every step reads again: about what finds no room in so much memory, or all of it where the system
/// drops first what was used longest ago, for then each weight has gone before it comes again. Experts that come through the file
/// cache take the room of weights there, unless it has room for both.
fn mapped_reads(plan: &Plan, available: u64, io: Access) -> MappedReads {
    let least = plan.mapped_without_room(available);
    let cached = if plan.is_streamed() && io == Access::Buffered {
        u64::from(plan.experts).saturating_mul(plan.expert_bytes)
    } else {
        0
    };
    let wanted = plan.bytes().saturating_add(plan.dense.mapped).saturating_add(cached);
    MappedReads { least, most: if wanted > available { plan.dense.mapped } else { 0 } }
}

/// How they are counted.
fn note_of_mapped(mapped: MappedReads) -> Option<String> {
    let MappedReads { least, most } = mapped;
    let what = match (least, most) {
        (_, 0) => return None,
        (0, most) => format!(
            "experts that are read with --io buffered take room of mapped weights in the file cache: a step reads up to {} of \
             these again, none at best, and at worst all, waited for",
            show_bytes(most)
        ),
        (least, most) => format!(
            "every step reads at least about {} of mapped weights again, which have no room, and at most {}, if the system drops \
             first what is needed next; at best the least is read while something is computed, at worst the most is waited for",
            show_bytes(least),
            show_bytes(most)
        ),
    };
    Some(format!("{what}; pages may come more slowly than at the drive's rate"))
}

/// The steps that are predicted, and what decides what they read.
struct Steps<'a> {
    config: &'a KimiK3Config,
    plan: &'a Plan,
    mapped: MappedReads,
    token: Vec<ops::Op>,
    prompt: Vec<ops::Op>,
    /// Rows of the prompt: those of a chunk, or the mean of what the prompts of the traces have.
    rows: f64,
    /// What traces say of prompts and of tokens.
    traced: (Option<Traffic>, Option<Traffic>),
}

impl<'a> Steps<'a> {
    fn new(args: &PlanArgs, model: &'a Model, plan: &'a Plan, mapped: MappedReads) -> Result<Self, Failure> {
        let traces = traces(args, model, plan)?;
        let traces = if plan.is_streamed() { &traces[..] } else { &[] };
        let rows = rows_of_chunks(traces, plan.chunk).unwrap_or(plan.chunk.into());
        let step = |rows| ops_of_step(&model.checkpoint, &model.family, &plan.options, rows);
        let slots = plan.slab.map_or(0, |slab| slab.slots());
        let traced = from_traces(args.engine.cache_policy, slots, traces, plan.chunk);
        let (token, prompt) = (step(1)?, step(StepTokens { rows, behind: 0 }.whole_rows())?);
        Ok(Steps { config: &model.family.config, plan, mapped, token, prompt, rows, traced })
    }

    /// A token at the beginning and at the end of the context, where these are two, and a chunk of a prompt.
    fn predicted(&self, rates: Option<&Rates>) -> Vec<(StepKind, Prediction)> {
        let (plan, config) = (self.plan, self.config);
        let slots = plan.slab.map_or(0, |slab| slab.slots());
        let layers = plan.experts / config.experts.max(1);
        let experts = RoutedExperts { layers, ranks: config.ranks, bytes_each: plan.expert_bytes };
        let chance = |rows| by_chance(rows, (config.ranks, config.experts), (slots, plan.experts));
        let of = |step: &[ops::Op], tokens: StepTokens, traced: Option<Traffic>| {
            let traffic = traced.unwrap_or_else(|| chance(tokens.rows));
            Prediction::of(step, tokens, experts, traffic, self.mapped, rates)
        };
        let (of_prompt, of_token) = self.traced;
        let token = |behind| of(&self.token, StepTokens { rows: 1.0, behind }, of_token);
        let prompt = of(&self.prompt, StepTokens { rows: self.rows, behind: 0 }, of_prompt);
        let last = (plan.context > 1).then(|| token(plan.context - 1));
        let tokens = std::iter::once(token(0)).chain(last).map(|token| (StepKind::Answer, token));
        tokens.chain([(StepKind::Prompt, prompt)]).collect()
    }

    /// Where hits come from, if not from traces alone.
    fn note_of_hits(&self) -> Option<String> {
        let what = match self.traced {
            (Some(_), Some(_)) => return None,
            (None, None) => BY_CHANCE,
            _ => "hits of what the traces hold nothing of are those of chance",
        };
        self.plan.is_streamed().then(|| what.to_owned())
    }
}

#[cfg(test)]
mod tests;
