//! What was given and changes nothing in a plan: what was typed is refused, unless memory or files decide that it is so. Plans
//! nothing.
use crate::args::PlanArgs;
use crate::errors::Failure;
use crate::settings;
use engine::Plan;

/// Refuses what was typed and changes nothing in any plan with these flags; notes of what a file or a variable says.
pub(super) fn refused(args: &PlanArgs, plan: &Plan) -> Result<Vec<String>, Failure> {
    let mut idle = Vec::new();
    // Where no layer has experts, that is said of all that is for experts.
    if plan.slab.is_some() {
        idle.extend([
            ("mirror", "has no effect on a plan: a mirror's rate is not predicted; add it to --disk"),
            ("check-experts", "has no effect on a plan"),
            ("governor", "has no effect on a plan"),
            (
                "expert-top-p",
                "has no effect on a plan: how many experts it drops is seen in a run only; --trace with one that had it \
                 counts what was left",
            ),
        ]);
        if args.trace.is_empty() {
            let what = "has no effect on a plan without --trace: by chance every policy finds as much";
            idle.push(("cache-policy", what));
        }
        if args.disk.is_some() || args.no_measure {
            let what = "has no effect on a plan: no drive is measured";
            idle.push(("readers", what));
            // Where experts come through the file cache, mapped weights have less room there.
            if plan.dense.mapped == 0 || plan.all_resident() {
                idle.push(("io", what));
            }
        }
        if args.no_measure {
            let what =
                "has no effect on a plan: nothing is computed to be measured, so that seconds stay unknown";
            idle.extend([("overlap", what), ("look-ahead", what)]);
        }
    }
    if args.no_measure {
        let what = "has no effect on a plan: nothing is computed to be measured";
        idle.extend([("device", what), ("activations", what)]);
        // Who packs needs room for it.
        if plan.dense.packed.is_empty() {
            idle.push(("threads", what));
        }
    }
    let notes = idle.into_iter().map(|(name, what)| settings::idle(name, what));
    Ok(notes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// What was given for reads that there are none of: memory decides that, so it is enough to say so.
pub(super) fn without_reads(args: &PlanArgs, plan: &Plan, reads_mapped: bool) -> Vec<String> {
    let why = match plan.slab {
        None => "none of the layers in use has routed experts",
        Some(_) if plan.all_resident() => "there is a slot for every expert",
        Some(_) => return Vec::new(),
    };
    let what = format!("changes nothing: {why}");
    let mut notes = Vec::new();
    if !args.trace.is_empty() {
        notes.push(format!("--trace {what}"));
    }
    if !reads_mapped {
        notes.extend(args.disk.map(|_| format!("--disk {what}")));
        notes.extend(of_drives(&what));
    }
    notes
}

/// What was given of how a drive is measured, of which this holds.
pub(super) fn of_drives(what: &str) -> impl Iterator<Item = String> {
    ["io", "readers"].into_iter().filter_map(move |name| settings::told(name, what))
}
