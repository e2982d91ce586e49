//! `colibri simulate`: what the cache would have found in its slots, by policy and size, from routing traces. It loads no
//! model.
use crate::args::SimulateArgs;
use crate::errors::Failure;
use crate::report::{self, counted};
use crate::routing;
use engine::show_bytes;
use memory::machine;
use serde::Serialize;
use serde_json::json;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store::cache::simulate::{Known, Outcome, Requests, optimum, simulate};
use store::routing::{RoutingHead, RoutingTrace};

/// Runs it.
pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    let (head, asked, files) = requests(&args.traces, None)?;
    let before = if args.before.is_empty() { None } else { Some(requests(&args.before, Some(&head))?.1) };
    let shares = before.map(|before| before.shares());
    let mut results = Vec::new();
    for slots in sizes(args, &head)? {
        results.extend(results_of(args, &asked, slots, shares.as_deref()));
    }
    let RoutingHead { layers, experts_per_layer, expert_bytes, .. } = head;
    if args.output.json {
        report::print_json(&json!({
            "traces": files,
            "layers": layers,
            "experts_per_layer": experts_per_layer,
            "expert_bytes": expert_bytes,
            "results": results,
        }))?;
    } else {
        let what = format!(
            "{layers} layers of {experts_per_layer} experts of {}; {}",
            show_bytes(expert_bytes),
            counted(asked.steps(), "step")
        );
        report::print(&table(&what, &results))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A trace as it is reported.
#[derive(Serialize)]
struct TraceFile {
    file: String,
    steps: usize,
    rows: u64,
    cut_bytes: u64,
}

/// The requests of these files, which are of one model: that of `head`, if it is given.
fn requests(
    paths: &[PathBuf],
    head: Option<&RoutingHead>,
) -> Result<(RoutingHead, Requests, Vec<TraceFile>), Failure> {
    let traces: Vec<(&Path, RoutingTrace)> = paths
        .iter()
        .map(|path| Ok((path.as_path(), routing::read(path)?)))
        .collect::<Result<_, Failure>>()?;
    let head = head.or_else(|| traces.first().map(|(_, trace)| &trace.head)).cloned();
    let Some(head) = head else { return Err(Failure::Usage("no routing trace was given".into())) };
    let (mut requests, mut files) = (Requests::new(&head), Vec::new());
    for (path, trace) in &traces {
        let refused =
            |why: &str| Failure::Told { kind: "routing", message: format!("{}: {why}", path.display()) };
        if trace.head != head {
            return Err(refused(
                "it is of another model than the first trace, or of other --dense, --activations, --layers or \
                 --expert-top-p; simulate each by itself",
            ));
        }
        if trace.steps.is_empty() {
            return Err(refused("it holds no step; write it anew with --trace-routing"));
        }
        requests.add(trace);
        let file = path.display().to_string();
        files.push(TraceFile { file, steps: trace.steps.len(), rows: trace.rows(), cut_bytes: trace.cut });
    }
    Ok((head, requests, files))
}

/// Shares of all experts where no sizes are asked for.
const USUAL_PARTS: [u32; 4] = [16, 8, 4, 2];

/// Slots to try, in the order asked for.
fn sizes(args: &SimulateArgs, head: &RoutingHead) -> Result<Vec<u32>, Failure> {
    let experts = u32::from(head.layers) * u32::from(head.experts_per_layer);
    let Some(sizes) = &args.slots else {
        return Ok(USUAL_PARTS.iter().map(|part| (experts / part).max(1)).collect());
    };
    let mut slots = Vec::new();
    for size in &sizes.0 {
        slots.push(size.plan(head.expert_bytes, experts, machine::total_memory()?)?.slots());
    }
    slots.dedup();
    Ok(slots)
}

/// One line of the table.
#[derive(Serialize)]
struct Line {
    slots: u32,
    policy: String,
    /// What was known beforehand: nothing, counts, or counts and experts that stay.
    known: &'static str,
    hits: u64,
    misses: u64,
    hit_rate: Option<f64>,
    bytes_read: u64,
    evictions: u64,
    /// Misses beyond those of the optimum, as a share of these.
    regret: Option<f64>,
}

impl Line {
    fn new(slots: u32, policy: String, known: &'static str, outcome: Outcome, best: Outcome) -> Self {
        let Outcome { hits, misses, bytes_read, evictions } = outcome;
        let beyond = misses as f64 - best.misses as f64;
        Line {
            slots,
            policy,
            known,
            hits,
            misses,
            hit_rate: outcome.hit_rate(),
            bytes_read,
            evictions,
            regret: (best.misses > 0).then(|| beyond / best.misses as f64),
        }
    }
}

/// The optimum and every policy with so many slots.
fn results_of(args: &SimulateArgs, asked: &Requests, slots: u32, shares: Option<&[f64]>) -> Vec<Line> {
    let best = optimum(slots, asked);
    let mut lines = vec![Line::new(slots, "optimum".into(), "the future", best, best)];
    for &policy in &args.policy.0 {
        let mut add = |name, known| {
            let outcome = simulate(policy, slots, asked, known);
            lines.push(Line::new(slots, policy.to_string(), name, outcome, best));
        };
        add("nothing", Known::default());
        if let Some(shares) = shares {
            add("counts", Known { shares, pinned: false });
            add("counts, pins", Known { shares, pinned: true });
        }
    }
    lines
}

/// For people, in 80 columns.
fn table(what: &str, lines: &[Line]) -> String {
    let mut text = format!("{what}\n");
    let mut slots = None;
    for line in lines {
        if slots != Some(line.slots) {
            slots = Some(line.slots);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "\n{:<24}{:<14}{:>8}{:>9}{:>7}{:>10}{:>8}",
                counted(line.slots, "slot"),
                "knows",
                "hits",
                "misses",
                "hits",
                "read",
                "regret"
            );
        }
        let percent =
            |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0));
        let _ = writeln!(
            text,
            "{:<24}{:<14}{:>8}{:>9}{:>7}{:>10}{:>8}",
            line.policy,
            line.known,
            line.hits,
            line.misses,
            percent(line.hit_rate),
            show_bytes(line.bytes_read),
            percent(line.regret)
        );
    }
    text
}
