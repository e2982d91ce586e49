//! Which settings change nothing in a plan, when, and why. Plans nothing.
use super::mapped_reads;
use crate::args::PlanArgs;
use crate::errors::Failure;
use crate::settings::{self, LEAVE_AWAY};
use crate::work::{MORE_LAYERS, NO_EXPERTS, OF_EXPERTS, OF_READS};
use engine::Plan;
use engine::predict::MappedReads;
use models::{Dense, LookAhead, Residency};
use store::Access;

/// All that decides whether a setting changes a figure.
pub(super) struct Circumstances<'a> {
    pub(super) args: &'a PlanArgs,
    pub(super) plan: &'a Plan,
    /// Memory that is not in use.
    pub(super) available: u64,
    /// Computing was to be measured and could not be.
    pub(super) lacks_computing: bool,
    /// The same of the drive.
    pub(super) lacks_drive: bool,
}

/// Settings that change nothing if this holds.
struct Row {
    settings: Vec<&'static str>,
    holds: bool,
    why: &'static str,
    /// What to do instead of typing it, where that is refused.
    advice: Option<&'static str>,
}

fn refused(
    settings: impl Into<Vec<&'static str>>,
    holds: bool,
    why: &'static str,
    advice: &'static str,
) -> Row {
    Row { settings: settings.into(), holds, why, advice: Some(advice) }
}

fn told(settings: impl Into<Vec<&'static str>>, holds: bool, why: &'static str) -> Row {
    Row { settings: settings.into(), holds, why, advice: None }
}

const RESIDENT: &str = "there is a slot for every expert";
const RESIDENT_WITH_ROOM: &str = "there is a slot for every expert, and mapped weights have room";
const NO_EXPERTS_WITH_ROOM: &str =
    "none of the layers in use has routed experts, and mapped weights have room";
const NOT_PACKED: &str = "none of the weights in use are packed";
const NOT_COMPUTED: &str = "with --no-measure seconds stay unknown";
const NO_COMPUTING: &str = "computing could not be measured, so that seconds stay unknown";
const NO_RATE: &str = "no drive could be measured, so that seconds stay unknown";
const NOT_READ: &str = "no drive is measured";
const IN_TURN: &str = "without overlap nothing is read on a guess";
const CHANCE: &str = "without --trace hits are those of chance, of which every policy finds as many";
const TOP_P: &str =
    "how many experts it drops is seen in a run only; a trace of a run that had it counts what was left";

impl Circumstances<'_> {
    /// Mapped weights that a step reads again.
    pub(super) fn mapped(&self) -> MappedReads {
        mapped_reads(self.plan, self.available, self.args.engine.io)
    }

    /// Whether anything is read from a drive while the model runs.
    pub(super) fn needs_drive(&self) -> bool {
        self.plan.is_streamed() || self.mapped().most > 0
    }

    /// What changes nothing in any plan with these flags: refused if it was typed.
    fn decided_by_flags(&self) -> Vec<Row> {
        let (plan, args) = (self.plan, self.args);
        let engine = &args.engine;
        let (no_experts, no_mirror) = (plan.slab.is_none(), engine.mirror.is_empty());
        let no_packed = no_experts && engine.dense() == Some(Dense::Bf16);
        let contradicts = !engine.overlap.0 && engine.look_ahead != LookAhead::Off;
        vec![
            refused(OF_EXPERTS, no_experts, NO_EXPERTS, MORE_LAYERS),
            refused(["trace"], no_experts, NO_EXPERTS, MORE_LAYERS),
            refused(OF_READS, no_experts && !self.may_map(), NO_EXPERTS, MORE_LAYERS),
            refused(["activations"], no_packed, NOT_PACKED, LEAVE_AWAY),
            refused(["check-experts", "governor"], true, "it acts in a run only", LEAVE_AWAY),
            refused(["expert-top-p"], true, TOP_P, LEAVE_AWAY),
            refused(["cache-policy"], args.trace.is_empty(), CHANCE, "give a --trace or leave it away"),
            refused(["readers"], self.no_drive() && no_mirror, NOT_READ, LEAVE_AWAY),
            refused(["io"], self.no_drive() && !self.may_crowd(), NOT_READ, LEAVE_AWAY),
            refused(["threads"], args.no_measure && !plan.packs, NOT_COMPUTED, LEAVE_AWAY),
            refused(["device", "activations"], args.no_measure, NOT_COMPUTED, LEAVE_AWAY),
            refused(["overlap", "look-ahead"], args.no_measure, NOT_COMPUTED, LEAVE_AWAY),
            refused(["look-ahead"], contradicts, IN_TURN, "take --overlap on or leave it away"),
        ]
    }

    /// What changes nothing as memory, files and measurements happen to be.
    fn decided_otherwise(&self) -> Vec<Row> {
        let (plan, engine) = (self.plan, &self.args.engine);
        let (no_experts, resident, no_reads) =
            (plan.slab.is_none(), plan.all_resident(), !self.needs_drive());
        let why_no_reads = match (no_experts, self.may_map()) {
            (true, false) => NO_EXPERTS,
            (true, true) => NO_EXPERTS_WITH_ROOM,
            (false, false) => RESIDENT,
            (false, true) => RESIDENT_WITH_ROOM,
        };
        let no_packed = no_experts && plan.options.dense == Dense::Bf16;
        // The memory of a mirror depends on them, wherever there are experts.
        let readers_only_read = no_experts || engine.mirror.is_empty();
        let as_direct = self.mapped() == mapped_reads(plan, self.available, Access::Direct);
        let number = matches!(engine.look_ahead, LookAhead::Ranks(_));
        vec![
            told(["activations"], no_packed, NOT_PACKED),
            told(["trace", "cache-policy", "overlap", "look-ahead"], resident, RESIDENT),
            told(["disk", "io"], no_reads, why_no_reads),
            told(["readers"], no_reads && readers_only_read, why_no_reads),
            told(
                ["io"],
                self.no_drive() && as_direct,
                "no drive is measured, and it changes nothing for mapped weights",
            ),
            told(["io"], self.lacks_drive && as_direct, NO_RATE),
            told(["readers"], self.lacks_drive && readers_only_read, NO_RATE),
            told(["look-ahead"], !engine.overlap.0, IN_TURN),
            told(["overlap", "look-ahead"], self.lacks_drive, NO_RATE),
            told(["overlap", "look-ahead"], self.lacks_computing, NO_COMPUTING),
            told(["device", "activations"], self.lacks_computing, NO_COMPUTING),
            told(["threads"], self.lacks_computing && !plan.packs, NO_COMPUTING),
            told(
                ["look-ahead"],
                number,
                "a plan asks whether experts are guessed, not how many: all numbers are as auto",
            ),
        ]
    }

    /// Whether no drive is to be measured.
    fn no_drive(&self) -> bool {
        self.args.no_measure || self.args.disk.is_some()
    }

    /// Weights are mapped if they can be.
    fn may_map(&self) -> bool {
        self.args.engine.dense_residency == Residency::Mapped
    }

    /// Experts that come through the file cache may take the room of mapped weights there.
    fn may_crowd(&self) -> bool {
        self.args.engine.io == Access::Buffered && self.may_map() && self.plan.slab.is_some()
    }

    /// Each setting that changes nothing, with what is said of it by the first row that holds, and its advice.
    pub(super) fn idle(&self) -> Vec<(&'static str, String, Option<&'static str>)> {
        let mut idle: Vec<(&str, String, Option<&str>)> = Vec::new();
        let rows = self.decided_by_flags().into_iter().chain(self.decided_otherwise());
        for Row { settings, why, advice, .. } in rows.filter(|row| row.holds) {
            for name in settings {
                if idle.iter().all(|(other, ..)| *other != name) {
                    idle.push((name, format!("has no effect on this plan: {why}"), advice));
                }
            }
        }
        idle
    }

    /// Refuses what was typed and changes nothing in any plan with these flags.
    ///
    /// # Errors
    /// The first such setting.
    pub(super) fn refuse(&self) -> Result<(), Failure> {
        for (name, what, advice) in self.idle() {
            let Some(advice) = advice else { continue };
            if self.is_typed(name) == Some(true) {
                return Err(Failure::Usage(format!("--{name} {what}; {advice}")));
            }
            settings::idle(name, &what, advice)?;
        }
        Ok(())
    }

    /// Notes of what changes nothing and is not refused.
    pub(super) fn notes(&self) -> Vec<String> {
        let told = |(name, what, _): (&str, String, Option<&str>)| {
            let is_typed = self.is_typed(name);
            is_typed.map_or_else(
                || settings::told(name, &what),
                |typed| typed.then(|| format!("--{name} {what}")),
            )
        };
        self.idle().into_iter().filter_map(told).collect()
    }

    /// Whether a flag of one call was given, which has no origin; None for settings, which have.
    fn is_typed(&self, name: &str) -> Option<bool> {
        match name {
            "disk" => Some(self.args.disk.is_some()),
            "trace" => Some(!self.args.trace.is_empty()),
            _ => None,
        }
    }
}
