//! `colibri plan`: what a model will need and how fast it will be, before anything is loaded or even downloaded. Plans with
//! the code of every other command; what it predicts is computed in `engine::predict`.
mod idle;
mod outlook;
mod text;

use crate::args::PlanArgs;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::probe::rates;
use crate::report::{self, Settings};
use crate::{profile, routing, work};
use engine::predict::{MappedReads, Prediction, Rates, Traffic, by_chance, from_traces, rows_of_chunks};
use engine::{Limits, Plan, ops_of_step, show_bytes};
use outlook::{Given, Origin, Outlook, PlannedMachine, Source, StepFacts};
use std::process::ExitCode;
use store::Access;
use store::routing::RoutingTrace;

/// Runs it.
pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let model = load::open_for_plan(&args.model)?;
    profile::check(&model, &args.engine)?;
    let (limits, memory) = match args.ram {
        Some(bytes) => (Limits { total: bytes, available: bytes }, Origin::Given),
        None => (Limits::of_machine()?, Origin::Measured),
    };
    let request = load::request(&args.engine, args.layers.layers, 1);
    let mut plan = load::plan_within(&model, &request, 0, limits)?;
    let mut notes = idle::refused(args, &plan)?;
    work::refuse_idle(&mut plan, &args.engine)?;
    let mapped = mapped_reads(&plan, limits.usable(), args.engine.io);
    let traces = traces(args, &model, &plan)?;
    let steps = Steps::new(&model, &plan, &traces)?;
    let computing = computing(args, &steps, &mut notes)?;
    let reads = is_streamed(&plan) || mapped.most > 0;
    let drive = drive(args, &model, reads, &mut notes)?;
    let source = Source::of(&model, &plan);
    notes.splice(0..0, model.checkpoint.notes().iter().chain(&model.notes).chain(&plan.notes).cloned());
    notes.extend(source.note());
    notes.extend(idle::without_reads(args, &plan, mapped.most > 0));
    notes.extend(note_of_mapped(mapped));
    let (predictions, note) = steps.predicted(args, &model, (&plan, mapped), &traces, computing.as_ref());
    notes.extend(note);
    let outlook = Outlook {
        settings: Settings::new(&model, &args.engine, &plan, None),
        source,
        model: model.places.clone(),
        machine: PlannedMachine { limits, memory, computing, drive },
        steps: predictions.into_iter().map(|step| StepFacts::new(step, drive, &args.engine)).collect(),
        plan,
        notes,
    };
    if args.output.json {
        report::print_json(&outlook.json())?;
    } else {
        report::print(&text::text(&outlook))?;
    }
    Ok(ExitCode::SUCCESS)
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
            format!(
                "it is of another model: expected {}, found {}; write one with `colibri run --trace-routing` on this model",
                words(expected),
                words(found)
            )
        };
        Err(Failure::Told { kind: "routing", message: format!("--trace {}: {why}", path.display()) })
    };
    args.trace.iter().map(read).collect()
}

/// How fast this machine computes the model's steps; None if that is not to be known.
fn computing(args: &PlanArgs, steps: &Steps, notes: &mut Vec<String>) -> Result<Option<Rates>, Failure> {
    if args.no_measure {
        return Ok(None);
    }
    // What is measured takes memory of this machine, whichever is planned for.
    match rates::computing(&args.engine, &steps.prompt, Limits::of_machine()?.usable())? {
        Ok(measured) => {
            notes.extend(measured.notes);
            if args.ram.is_some() || args.disk.is_some() {
                notes.push("what is computed takes as long as on this machine: its processor and memory were measured".into());
            }
            Ok(Some(measured.rate))
        }
        Err(reason) => {
            notes.push(reason);
            Ok(None)
        }
    }
}

/// The drive's rate; None if it is not known, or not needed.
fn drive(
    args: &PlanArgs,
    model: &Model,
    is_needed: bool,
    notes: &mut Vec<String>,
) -> Result<Option<Given>, Failure> {
    if let Some(rate) = args.disk {
        return Ok(Some(Given { value: rate as f64, origin: Origin::Given }));
    }
    if args.no_measure || !is_needed {
        return Ok(None);
    }
    match rates::drives(&model.checkpoint, &args.engine)? {
        Ok(measured) => {
            notes.extend(measured.notes);
            Ok(Some(Given { value: measured.rate, origin: Origin::Measured }))
        }
        Err(reason) => {
            notes.push(format!("seconds are not predicted: {reason}"));
            notes.extend(idle::of_drives("changes nothing: no drive could be measured"));
            Ok(None)
        }
    }
}

/// Where hits come from without traces.
const BY_CHANCE: &str = "hits are those of chance, as if experts were picked evenly: texts repeat theirs, so there are more; a \
                         trace of one prompt (colibri run --trace-routing FILE) and --trace FILE make it exact";

/// Whether experts come and go.
fn is_streamed(plan: &Plan) -> bool {
    plan.slab.is_some() && !plan.all_resident()
}

/// How much of mapped weights every step reads again: what has no room, or all of it where the system drops first what was
/// used longest ago, for then each weight has gone before it comes again. Experts that come through the file cache take the
/// room of weights there.
fn mapped_reads(plan: &Plan, usable: u64, io: Access) -> MappedReads {
    let least = plan.mapped_without_room(usable);
    let crowded = least > 0 || is_streamed(plan) && io == Access::Buffered;
    MappedReads { least, most: if crowded { plan.dense.mapped } else { 0 } }
}

/// How they are counted.
fn note_of_mapped(mapped: MappedReads) -> Option<String> {
    let MappedReads { least, most } = mapped;
    (most > 0).then(|| {
        format!(
            "every step reads at least {} of mapped weights again, which have no room, and at most {}, if the system drops first what \
             is needed next; with right guesses the least is counted, read while something is computed, with wrong ones the most, \
             waited for; pages may come more slowly than at the drive's rate",
            show_bytes(least),
            show_bytes(most)
        )
    })
}

/// The ops of the steps that are predicted.
struct Steps {
    token: Vec<ops::Op>,
    prompt: Vec<ops::Op>,
    /// Rows of the prompt: those of a chunk, or as many as the prompts of the traces have.
    rows: u32,
}

impl Steps {
    fn new(model: &Model, plan: &Plan, traces: &[RoutingTrace]) -> Result<Self, Failure> {
        let traces = if is_streamed(plan) { traces } else { &[] };
        let rows = rows_of_chunks(traces, plan.chunk).unwrap_or(plan.chunk);
        let step = |rows| ops_of_step(&model.checkpoint, &model.family, &plan.options, rows);
        Ok(Steps { token: step(1)?, prompt: step(rows)?, rows })
    }

    /// A token at the beginning and at the end of the context, and a chunk of a prompt; a sentence on where hits come from.
    fn predicted(
        &self,
        args: &PlanArgs,
        model: &Model,
        (plan, mapped): (&Plan, MappedReads),
        traces: &[RoutingTrace],
        rates: Option<&Rates>,
    ) -> (Vec<Prediction>, Option<String>) {
        let config = &model.family.config;
        let slots = plan.slab.map_or(0, |slab| slab.slots());
        let layers = plan.experts / config.experts.max(1);
        let chance = |rows| by_chance(rows, (config.ranks, config.experts), (slots, plan.experts));
        let (prompt, token) = if is_streamed(plan) {
            from_traces(args.engine.cache_policy, slots, traces, plan.chunk)
        } else {
            (None, None)
        };
        let bytes = plan.expert_bytes;
        let of = |ops: &[ops::Op], rows: u32, behind: u32, traffic: Option<Traffic>| {
            let traffic = traffic.unwrap_or_else(|| chance(rows));
            Prediction::of(ops, (rows, behind), (layers, config.ranks, bytes), (traffic, mapped), rates)
        };
        let last = plan.context - 1;
        let note = is_streamed(plan).then(|| match (token, prompt) {
            (Some(_), Some(_)) => None,
            (None, None) => Some(BY_CHANCE.to_owned()),
            _ => Some("hits of what the traces hold nothing of are those of chance".to_owned()),
        });
        let steps = vec![
            of(&self.token, 1, 0, token),
            of(&self.token, 1, last, token),
            of(&self.prompt, self.rows, 0, prompt),
        ];
        (steps, note.flatten())
    }
}
