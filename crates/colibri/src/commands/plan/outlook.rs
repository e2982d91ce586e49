//! What a plan tells, as programs read it. Every figure of a machine says whether it was measured or given. Computes sums and
//! shares only.
use crate::args::EngineArgs;
use crate::load::Model;
use crate::report::Settings;
use engine::predict::{Bound, DriveSeconds, Prediction, Rates, Together, Traffic};
use engine::{Limits, Plan, show_bytes};
use models::LookAhead;
use serde_json::{Value, json};

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From this machine, now.
    Measured,
    /// From the command line.
    Given,
}

impl Origin {
    pub(super) fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Given => "given",
        }
    }
}

/// A figure of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) origin: Origin,
}

impl Figure {
    fn json(self) -> Value {
        json!({"value": self.value, "origin": self.origin.name()})
    }
}

/// What the plan was made from, and what there is to download.
pub(super) struct Source {
    /// In words.
    pub(super) from: &'static str,
    pub(super) shards: usize,
    pub(super) named: usize,
    /// Of all tensors: as the index says, or else of those that are asked for.
    pub(super) bytes: u64,
    pub(super) is_of_index: bool,
    /// Of the tensors that are here.
    pub(super) present_bytes: u64,
    /// Of the tensors that are asked for.
    pub(super) used_bytes: u64,
}

impl Source {
    /// Looks at what was opened.
    pub(super) fn of(model: &Model, plan: &Plan) -> Self {
        let checkpoint = &model.checkpoint;
        let shards = checkpoint.shards().len();
        let named = checkpoint.absent().map_or(shards, |absent| absent.named);
        let from = match (checkpoint.container().is_some(), shards) {
            (true, _) => "a container",
            (false, 0) => "config.json and the index alone",
            (false, here) if here < named => "config.json, the index and some of the shards",
            (false, _) => "config.json and all shards",
        };
        // What a header or an index says can be anything.
        let present_bytes = checkpoint.under("").map(|(_, entry)| entry.bytes).fold(0, u64::saturating_add);
        let experts = u64::from(plan.experts).saturating_mul(plan.expert_bytes);
        let used_bytes = plan.dense.stored.values().copied().fold(experts, u64::saturating_add);
        let whole = (shards == named).then_some(present_bytes);
        let bytes = whole.or(checkpoint.total_size());
        let is_of_index = bytes.is_some();
        let bytes = bytes.unwrap_or(used_bytes);
        Source { from, shards, named, bytes, is_of_index, present_bytes, used_bytes }
    }

    /// What is still to be downloaded.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.present_bytes)
    }

    /// A word where the index contradicts itself or does not tell.
    pub(super) fn note(&self) -> Option<String> {
        if !self.is_of_index {
            return Some(
                "the index does not say how many bytes there are: they were added up from what is used"
                    .into(),
            );
        }
        (self.used_bytes > self.bytes).then(|| {
            format!(
                "the index says {} in all, but the tensors that it names take {}: is it of this config.json?",
                show_bytes(self.bytes),
                show_bytes(self.used_bytes)
            )
        })
    }
}

/// The machine that is planned for.
pub(super) struct PlannedMachine {
    pub(super) limits: Limits,
    pub(super) memory: Origin,
    pub(super) computing: Option<Rates>,
    pub(super) drive: Option<Figure>,
}

impl PlannedMachine {
    fn json(&self) -> Value {
        let Limits { total, available } = self.limits;
        let measured = |value: f64| Figure { value, origin: Origin::Measured }.json();
        let rates = self.computing.as_ref();
        let products = rates.map(|rates| {
            let product = |rate: &engine::predict::ProductRate| {
                json!({
                    "packing": rate.packing.name(),
                    "inputs": rate.inputs,
                    "multiply_adds_per_second": measured(rate.multiply_adds),
                })
            };
            rates.products.iter().map(product).collect::<Vec<_>>()
        });
        json!({
            "memory": {
                "total_bytes": total,
                "available_bytes": available,
                "usable_bytes": self.limits.usable(),
                "reserve_bytes": self.limits.reserve(),
                "origin": self.memory.name(),
            },
            "disk_bytes_per_second": self.drive.map(Figure::json),
            "memory_bytes_per_second": rates.map(|rates| measured(rates.memory_bytes)),
            "floats_per_second": rates.map(|rates| measured(rates.floats)),
            "byte_products_per_second": rates.map(|rates| measured(rates.byte_products)),
            "products": products,
        })
    }
}

/// Seconds, and what bounds them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounded {
    pub(super) seconds: f64,
    pub(super) bound: Bound,
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// A token of the answer.
    Answer,
    /// Tokens of a prompt.
    Prompt,
}

/// What the least and the most seconds depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depends {
    /// On how many guesses are right.
    pub(super) on_guesses: bool,
    /// On which mapped weights the system keeps.
    pub(super) on_mapped: bool,
}

/// A step as it is told; seconds are for one of its tokens, and None where a rate is not known.
pub(super) struct StepFacts {
    pub(super) kind: StepKind,
    pub(super) step: Prediction,
    pub(super) depends: Depends,
    pub(super) compute: Option<f64>,
    /// The least and the most: mapped weights without room make the difference.
    pub(super) reads: Option<[f64; 2]>,
    /// If all guesses are right, and no more mapped weights are read than must be.
    pub(super) at_best: Option<Bounded>,
    /// If no guess is right, and as many are read as can be.
    pub(super) at_worst: Option<Bounded>,
}

impl StepFacts {
    /// Of a prediction, with the settings that say how reads and computing go together.
    pub(super) fn new(kind: StepKind, step: Prediction, drive: Option<Figure>, args: &EngineArgs) -> Self {
        let rows = step.tokens.rows;
        let reads = match drive {
            Some(drive) => Some(step.reads(drive.value)),
            None => (step.bytes_most() < 1.0).then(<[DriveSeconds; 2]>::default),
        };
        let (best, worst) = match (args.overlap.0, args.look_ahead) {
            (false, _) => (Together::InTurn, Together::InTurn),
            (true, LookAhead::Off) => (Together::Dependent, Together::Dependent),
            (true, _) => (Together::Guessed, Together::Dependent),
        };
        let of = |which: usize, together| {
            let (time, reads) = (step.time.as_ref()?, reads?[which]);
            let seconds = time.seconds(reads, together) / rows;
            Some(Bounded { seconds, bound: time.bound(reads, together) })
        };
        let is_read = step.experts.bytes_read(step.traffic) >= 1.0;
        StepFacts {
            kind,
            depends: Depends { on_guesses: best != worst && is_read, on_mapped: step.mapped.most > 0 },
            compute: step.time.as_ref().map(|time| time.compute() / rows),
            reads: reads.map(|both| both.map(|reads| reads.all() / rows)),
            at_best: of(0, best),
            at_worst: of(1, worst),
            step,
        }
    }

    /// What it asks for; None where no layer has experts.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        (self.step.experts.layers > 0).then_some(self.step.traffic)
    }

    /// Bytes for one of its tokens: if no expert is found, and with hits. Of mapped weights the least.
    pub(super) fn bytes(&self) -> (f64, f64) {
        let [mapped, _] = self.mapped();
        let Prediction { tokens, experts, traffic, .. } = &self.step;
        let rows = tokens.rows;
        (experts.bytes_asked(*traffic) / rows + mapped, experts.bytes_read(*traffic) / rows + mapped)
    }

    /// Bytes of mapped weights for one of its tokens: the least and the most that are read again.
    fn mapped(&self) -> [f64; 2] {
        let (mapped, rows) = (self.step.mapped, self.step.tokens.rows);
        [mapped.least, mapped.most].map(|bytes| bytes as f64 / rows)
    }

    fn json(&self) -> Value {
        let ((cold, bytes), mapped) = (self.bytes(), self.mapped());
        let traffic = self.traffic();
        let seconds = |of: Option<Bounded>| of.map(|of| of.seconds);
        let bound = |of: Option<Bounded>| of.map(|of| of.bound.name());
        json!({
            "step": match self.kind {
                StepKind::Answer => "token",
                StepKind::Prompt => "prompt",
            },
            "rows": self.step.tokens.rows,
            "tokens_before": self.step.tokens.behind,
            "experts_a_layer": traffic.map(|traffic| traffic.experts),
            "hit_rate": traffic.map(|traffic| traffic.hit_rate),
            "hits_from": traffic.map(|traffic| traffic.source.name()),
            "bytes_per_token_cold": cold,
            "bytes_per_token": bytes,
            "mapped_bytes_per_token": {"least": mapped[0], "most": mapped[1]},
            "seconds_per_token": {
                "compute": self.compute,
                "reads": self.reads.map(|reads| reads[0]),
                "reads_most": self.reads.map(|reads| reads[1]),
                "at_best": seconds(self.at_best),
                "at_worst": seconds(self.at_worst),
            },
            "bound": {"at_best": bound(self.at_best), "at_worst": bound(self.at_worst)},
        })
    }
}

/// Everything.
pub(super) struct Outlook<'a> {
    pub(super) model: Vec<String>,
    pub(super) settings: Settings,
    pub(super) source: Source,
    pub(super) machine: PlannedMachine,
    pub(super) plan: &'a Plan,
    pub(super) steps: Vec<StepFacts>,
    pub(super) notes: Vec<String>,
}

impl Outlook<'_> {
    /// For programs.
    pub(super) fn json(&self) -> Value {
        let Outlook { model, settings, source, machine, plan, steps, notes } = self;
        let item = |(what, bytes): &(String, u64)| json!({"what": what, "bytes": bytes});
        let dense = plan.dense.rows.iter().map(|((kind, storage), (parameters, bytes))| {
            json!({"kind": kind, "storage": storage, "parameters": parameters, "bytes": bytes})
        });
        let choices = plan.choices.iter().map(|(dense, bytes)| {
            json!({"dense": dense.name(), "needed_bytes": bytes, "fits": *bytes <= machine.limits.usable()})
        });
        json!({
            "model": model,
            "settings": settings,
            "source": {
                "from": source.from,
                "shards": {"named": source.named, "present": source.shards},
                "bytes": source.bytes,
                "missing_bytes": source.missing_bytes(),
                "used_bytes": source.used_bytes,
            },
            "machine": machine.json(),
            "memory": {
                "planned_bytes": plan.bytes(),
                "mapped_bytes": plan.dense.mapped,
                "items": plan.items.iter().map(item).collect::<Vec<_>>(),
                "dense": dense.collect::<Vec<_>>(),
                "packings": choices.collect::<Vec<_>>(),
            },
            "experts": {
                "slots": plan.slab.map_or(0, |slab| slab.slots()),
                "total": plan.experts,
                "bytes_each": plan.expert_bytes,
                "resident": plan.all_resident(),
            },
            "steps": steps.iter().map(StepFacts::json).collect::<Vec<_>>(),
            "notes": notes,
        })
    }
}
