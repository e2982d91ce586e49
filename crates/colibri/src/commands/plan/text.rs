//! A plan in words and columns, for people. Computes nothing.
use super::outlook::{Bounded, Depends, Figure, Outlook, PlannedMachine, Source, StepFacts, StepKind};
use crate::probe::samples::duration;
use crate::report::{counted, paragraph};
use engine::predict::Bound;
use engine::{Plan, show_bytes};
use std::fmt::Write as _;

/// Columns of all lines.
const COLUMNS: usize = 80;

/// All of it. Writing to a string cannot fail.
pub(super) fn text(outlook: &Outlook<'_>) -> String {
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
    let without_room = plan.mapped_without_room(limits.available);
    for (bytes, what) in [
        (plan.dense.mapped, "of weights are mapped: kept in memory as far as there is room"),
        (without_room, "about so much of them has no room and is read again in every step, at least"),
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
    if let Some(Figure { value, origin }) = machine.drive {
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
    for [what, cold, hits, read, best, worst] in
        [["for each token", "empty", "hits", "read", "at best", "at worst"], ["", "cache", "", "", "", ""]]
    {
        let line = format!("{what:<30}{cold:>8}{hits:>7}{read:>9}{best:>11}{worst:>11}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for step in steps {
        let (cold, bytes) = step.bytes();
        let hits = step.traffic().map_or("-".to_owned(), |of| format!("{:.1}%", of.hit_rate * 100.0));
        let seconds = |of: Option<Bounded>| of.map_or("unknown".to_owned(), |of| duration(of.seconds));
        let _ = writeln!(
            text,
            "{:<30}{:>8}{hits:>7}{:>9}{:>11}{:>11}",
            name(step),
            show_bytes(cold as u64),
            show_bytes(bytes as u64),
            seconds(step.at_best),
            seconds(step.at_worst)
        );
    }
    for step in steps {
        let known = |seconds: Option<f64>| seconds.map_or("unknown".to_owned(), duration);
        let reads = match step.reads {
            Some([least, most]) if least < most => format!("{} to {}", duration(least), duration(most)),
            reads => known(reads.map(|reads| reads[0])),
        };
        let mut line = format!("{}: computing {}, reading {reads}", name(step), known(step.compute));
        match (step.at_best, step.at_worst) {
            (Some(best), Some(worst)) if best.bound == worst.bound => {
                let _ = write!(line, "; bound by {}", words(best.bound));
            }
            (Some(best), Some(worst)) => {
                let (best, worst) = (words(best.bound), words(worst.bound));
                let _ = write!(line, "; bound by {best} at best, by {worst} at worst");
            }
            _ => {}
        }
        let _ = writeln!(text, "{}", paragraph(&line, 2, COLUMNS));
    }
    let bounds = || steps.iter().flat_map(|step| [step.at_best, step.at_worst]).flatten();
    if bounds().any(|of| of.bound == Bound::Waits) {
        let _ = writeln!(text, "{}", paragraph(WAITS, 2, COLUMNS));
    }
    if bounds().next().is_some() {
        let _ = writeln!(text, "{}", paragraph(&between(steps), 2, COLUMNS));
    }
}

/// What bounds a step that nothing else does.
const WAITS: &str =
    "waits: reads begin when it is known what is needed, and computing goes on when it has come";

/// What the least and the most seconds of these steps stand for.
fn between(steps: &[StepFacts]) -> String {
    let of = |of: fn(&Depends) -> bool| steps.iter().any(|step| of(&step.depends));
    let (guesses, mapped) = (of(|depends| depends.on_guesses), of(|depends| depends.on_mapped));
    let parts = [
        (guesses, "all experts are guessed right", "none is"),
        (
            mapped,
            "the system keeps the mapped weights that have room and reads the others while something is computed",
            "all of them are read again and waited for",
        ),
    ];
    let parts = parts.iter().filter(|(depends, ..)| *depends);
    let (best, worst): (Vec<&str>, Vec<&str>) = parts.map(|(_, best, worst)| (*best, *worst)).unzip();
    if best.is_empty() {
        return "both columns are the same: nothing depends on guesses or on mapped weights".to_owned();
    }
    format!("at best: {}; at worst: {}", best.join(", and "), worst.join(", and "))
}

fn name(step: &StepFacts) -> String {
    let tokens = step.step.tokens;
    match (step.kind, tokens.behind) {
        // A mean of several prompts may have a fraction.
        (StepKind::Prompt, _) => format!("prompt, chunks of {}", (tokens.rows * 10.0).round() / 10.0),
        (StepKind::Answer, 0) => "answer, first token".into(),
        (StepKind::Answer, behind) => format!("answer, {} before", counted(behind, "token")),
    }
}

fn words(bound: Bound) -> &'static str {
    match bound {
        Bound::Disk => "the disk",
        Bound::Memory => "memory",
        Bound::Arithmetic => "arithmetic",
        Bound::Waits => "waits",
    }
}
