//! A plan in words and columns, for people. Computes nothing.
use super::outlook::{Bounded, Given, Outlook, PlannedMachine, Source, StepFacts};
use crate::probe::samples::duration;
use crate::report::{counted, paragraph};
use engine::predict::Bound;
use engine::{Plan, show_bytes};
use std::fmt::Write as _;

/// Columns of all lines.
const COLUMNS: usize = 80;

/// All of it. Writing to a string cannot fail.
pub(super) fn text(outlook: &Outlook) -> String {
    let Outlook { model, source, machine, plan, steps, notes, settings } = outlook;
    let mut text = format!("{}\n", head(model, source));
    let _ = writeln!(text, "{}\n", settings.lines(COLUMNS));
    memory(&mut text, machine, plan);
    let _ = writeln!(text);
    experts(&mut text, plan);
    rates(&mut text, machine);
    let _ = writeln!(text);
    predicted(&mut text, steps);
    for note in notes {
        let _ = writeln!(text, "note: {}", paragraph(note, 6, COLUMNS));
    }
    text
}

fn head(model: &[String], source: &Source) -> String {
    let shards = counted(source.named, "shard");
    let size = show_bytes(source.bytes);
    let here = match source.missing_bytes() {
        0 => format!("all {size} of its tensors are here"),
        missing if source.shards == 0 => {
            format!("{size} in {shards} are to be downloaded, {} of free disk", show_bytes(missing))
        }
        missing => format!(
            "{} of {shards} are here; {} of {size} are still to be downloaded",
            source.shards,
            show_bytes(missing)
        ),
    };
    let text = format!("{}, planned from {}: {here}", model.join(", "), source.from);
    paragraph(&text, 2, COLUMNS)
}

fn memory(text: &mut String, machine: &PlannedMachine, plan: &Plan) {
    let limits = machine.limits;
    let _ = writeln!(
        text,
        "{}",
        paragraph(
            &format!(
                "memory ({}): {} in all, {} available, of which {} stay free for everything else",
                machine.memory.name(),
                show_bytes(limits.total),
                show_bytes(limits.available),
                show_bytes(limits.reserve())
            ),
            2,
            COLUMNS
        )
    );
    for (what, bytes) in &plan.items {
        let _ = writeln!(text, "{:>10}  {what}", show_bytes(*bytes));
        if what == "dense weights" {
            for ((kind, storage), (_, bytes)) in &plan.dense.rows {
                let _ = writeln!(text, "{:>10}    {:>8}  {kind}, {storage}", "", show_bytes(*bytes));
            }
        }
    }
    let _ = writeln!(text, "{:>10}  in all", show_bytes(plan.bytes()));
    let without_room = plan.mapped_without_room(limits.usable());
    for (bytes, what) in [
        (plan.dense.mapped, "of weights are mapped: in memory as far as that is left"),
        (without_room, "of these at least have no room: every step reads them again"),
    ] {
        if bytes > 0 {
            let _ = writeln!(text, "{:>10}  {what}", show_bytes(bytes));
        }
    }
    for (dense, bytes) in &plan.choices {
        let fits = if *bytes <= limits.usable() { "fits" } else { "does not fit" };
        let _ = writeln!(
            text,
            "--dense {} with the smallest cache takes {}: {fits}",
            dense.name(),
            show_bytes(*bytes)
        );
    }
}

fn experts(text: &mut String, plan: &Plan) {
    let Some(slab) = plan.slab else {
        let _ = writeln!(text, "none of the layers in use has routed experts");
        return;
    };
    let _ = writeln!(
        text,
        "routed experts: {} of {} each; slots for {}, {:.1} %",
        plan.experts,
        show_bytes(plan.expert_bytes),
        slab.slots(),
        f64::from(slab.slots()) / f64::from(plan.experts) * 100.0
    );
}

fn rates(text: &mut String, machine: &PlannedMachine) {
    let mut all = Vec::new();
    if let Some(Given { value, origin }) = machine.drive {
        all.push(format!("disk {}/s ({})", show_bytes(value as u64), origin.name()));
    }
    if let Some(rates) = &machine.computing {
        all.push(format!("memory {}/s (measured)", show_bytes(rates.memory_bytes as u64)));
        all.push(format!("{:.0} billion multiply-adds/s in f32 (measured)", rates.floats / 1e9));
    }
    if !all.is_empty() {
        let _ = writeln!(text, "{}", paragraph(&format!("rates: {}", all.join(", ")), 2, COLUMNS));
    }
}

fn predicted(text: &mut String, steps: &[StepFacts]) {
    let _ = writeln!(
        text,
        "{:<30}{:>8}{:>7}{:>9}{:>11}{:>11}",
        "for each token", "empty", "hits", "read", "guesses", "guesses"
    );
    let _ =
        writeln!(text, "{:<30}{:>8}{:>7}{:>9}{:>11}{:>11}", "", "cache", "", "", "all right", "all wrong");
    for step in steps {
        let (cold, bytes) = step.bytes();
        let seconds = |of: Option<Bounded>| of.map_or("unknown".to_owned(), |of| duration(of.seconds));
        let _ = writeln!(
            text,
            "{:<30}{:>8}{:>7}{:>9}{:>11}{:>11}",
            name(step),
            show_bytes(cold as u64),
            format!("{:.1}%", step.step.traffic.hit_rate * 100.0),
            show_bytes(bytes as u64),
            seconds(step.least),
            seconds(step.most)
        );
    }
    for step in steps {
        let known = |seconds: Option<f64>| seconds.map_or("unknown".to_owned(), duration);
        let reads = match step.reads {
            Some([least, most]) if least < most => format!("{} to {}", duration(least), duration(most)),
            reads => known(reads.map(|reads| reads[0])),
        };
        let mut line = format!("{}: computing {}, reading {reads}", name(step), known(step.compute));
        match (step.least, step.most) {
            (Some(least), Some(most)) if least.bound == most.bound => {
                let _ = write!(line, "; bound by {}", words(least.bound));
            }
            (Some(least), Some(most)) => {
                let (least, most) = (words(least.bound), words(most.bound));
                let _ = write!(line, "; bound by {least} if all guesses are right, by {most} if none are");
            }
            _ => {}
        }
        let _ = writeln!(text, "{}", paragraph(&line, 2, COLUMNS));
    }
}

fn name(step: &StepFacts) -> String {
    match step.step.rows {
        1 if step.step.behind == 0 => "answer, first token".into(),
        1 => format!("answer, {} tokens before", step.step.behind),
        rows => format!("prompt, chunks of {rows}"),
    }
}

fn words(bound: Bound) -> &'static str {
    match bound {
        Bound::Disk => "the disk",
        Bound::Memory => "memory",
        Bound::Arithmetic => "arithmetic",
        Bound::Waits => {
            "waits (reads begin when it is known what is needed, and computing goes on when it has come)"
        }
    }
}
