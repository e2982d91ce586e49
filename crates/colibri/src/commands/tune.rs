//! `colibri tune`: the fastest settings for a model on this machine, found by trying one setting after the other, and a
//! profile of them. Knows how a sweep goes on and what is said of it; what is tried and taken is decided in `sweep.rs`.
mod meter;
mod sweep;
mod table;

use crate::args::{EngineArgs, TuneArgs};
use crate::cores::Cores;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::probe::facts::MachineFacts;
use crate::probe::samples::Spread;
use crate::probe::tokens::Tokens;
use crate::settings::{self, Origin, PROFILE_SETTINGS, Profile, Subject, Tried};
use crate::target::{self, Target};
use crate::work::{Demand, Planned};
use crate::{interrupt, profile, report};
use engine::Plan;
use meter::Meter;
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::process::ExitCode;
use store::Access;
use sweep::{Situation, Value, choose, values};

/// Runs it.
pub(crate) fn run(args: &TuneArgs) -> Result<ExitCode, Failure> {
    let model = load::open(&args.model)?;
    let subject = profile::subject(&model)?;
    let target = target(args, &subject)?;
    let mut tune = Tune::new(args, &model)?;
    for setting in asked(args) {
        tune.setting(setting)?;
    }
    tune.write(subject, &target)?;
    if args.output.json {
        report::print_json(&tune.json(&target))?;
    } else {
        report::print(&table::table(&tune, target.path()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings to try: those that are named, or all that nothing but a profile sets.
fn asked(args: &TuneArgs) -> Vec<&'static str> {
    if let Some(named) = &args.sweep {
        return named.0.clone();
    }
    let is_open = |name: &&str| match settings::in_force().get(name) {
        None | Some(Origin::Profile { .. }) => true,
        Some(_) => false,
    };
    PROFILE_SETTINGS.into_iter().filter(is_open).collect()
}

/// Where the profile goes: looked at before anything is measured.
fn target(args: &TuneArgs, subject: &Subject) -> Result<Target, Failure> {
    let models = &args.model.model;
    if let Some(out) = &args.out {
        return Target::new(out, models);
    }
    let none =
        |error| Failure::Usage(format!("there is no place for the profile: {error}; give one with --out"));
    let folder = target::state_folder().map_err(none)?;
    fs::create_dir_all(&folder).map_err(Failure::io("making the directory", &folder))?;
    // An identity is a number in base 16; a container's is what stands in its file.
    let identity: String = subject.model.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    Target::named("--out", &folder.join(format!("{}{identity}.toml", target::PROFILES)), models)
}

/// What was tried of a setting.
struct Step {
    setting: &'static str,
    lines: Vec<Line>,
}

/// A value that was tried.
struct Line {
    value: Value,
    /// None: it could not be tried.
    spread: Option<Spread>,
    /// Its median by the least one.
    ratio: Option<f64>,
    is_taken: bool,
}

/// A sweep on its way.
struct Tune<'a> {
    args: &'a TuneArgs,
    machine: MachineFacts,
    meter: Meter<'a>,
    /// With the values that were taken so far.
    engine: EngineArgs,
    situation: Situation,
    /// As they were at the beginning.
    settings: Json,
    steps: Vec<Step>,
    /// Settings that were not tried, and why.
    left_out: Vec<(&'static str, String)>,
    notes: Vec<String>,
}

impl<'a> Tune<'a> {
    fn new(args: &'a TuneArgs, model: &'a Model) -> Result<Self, Failure> {
        let tokens = Tokens::new(model, args.text.as_deref())?;
        let cancel = interrupt::stoppable();
        let meter = Meter::new(model, tokens, (args.tokens, args.repeats), cancel)?;
        let demand = Demand::new(load::request(&args.engine, None, 1), meter.positions());
        let planned = Planned::new(model, &args.engine, demand)?;
        Ok(Tune {
            machine: MachineFacts::of_machine()?,
            situation: situation(&args.engine, &planned.plan),
            settings: json!(planned.settings),
            engine: args.engine.clone(),
            args,
            meter,
            steps: Vec::new(),
            left_out: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Tries the values of a setting and takes one.
    fn setting(&mut self, setting: &'static str) -> Result<(), Failure> {
        let values = match values(setting, &self.engine, &self.situation) {
            Ok(values) => values,
            Err(why) => {
                self.left_out.push((setting, why));
                return Ok(());
            }
        };
        let listed: Vec<String> = values.iter().map(ToString::to_string).collect();
        report::tell(&format!("trying --{setting}: {}", listed.join(", ")));
        let measured = self.meter.in_turn(values, &self.engine)?;
        let spreads: Vec<Option<Spread>> = measured.iter().map(meter::Measured::spread).collect();
        let taken = choose(&spreads);
        measured[taken].value.apply(&mut self.engine);
        let least = spreads.iter().flatten().map(|spread| spread.median).fold(f64::INFINITY, f64::min);
        let mut lines = Vec::new();
        for (place, (measured, spread)) in measured.iter().zip(spreads).enumerate() {
            if let Some(why) = &measured.failed {
                self.notes.push(format!("--{setting} {} could not be tried: {why}", measured.value));
            }
            let ratio = spread.as_ref().map(|spread| spread.median / least);
            lines.push(Line { value: measured.value, spread, ratio, is_taken: place == taken });
        }
        if setting == "io" && self.engine.io == Access::Uring && self.engine.governor.0 {
            self.notes.push(
                "with --io uring no slots are given back while memory is short; --io direct does that (--governor)"
                    .into(),
            );
        }
        self.steps.push(Step { setting, lines });
        Ok(())
    }

    /// What was taken; nothing of a setting that only words say.
    fn chosen(&self) -> Vec<(String, Json)> {
        let taken = |step: &Step| {
            let line = step.lines.iter().find(|line| line.is_taken)?;
            Some((step.setting.to_owned(), line.value.json()?))
        };
        self.steps.iter().filter_map(taken).collect()
    }

    /// All lines with their settings.
    fn lines(&self) -> impl Iterator<Item = (&'static str, &Line)> {
        self.steps.iter().flat_map(|step| step.lines.iter().map(|line| (step.setting, line)))
    }

    fn write(&mut self, subject: Subject, target: &Target) -> Result<(), Failure> {
        let left_out = std::mem::take(&mut self.left_out);
        for part in left_out.chunk_by(|a, b| a.1 == b.1) {
            let names: Vec<String> = part.iter().map(|(name, _)| format!("--{name}")).collect();
            self.notes.push(format!("not tried: {}: {}", names.join(", "), part[0].1));
        }
        if self.steps.is_empty() {
            let why = if self.notes.is_empty() {
                "all that could be tried is set by flags, variables or the configuration file; name what to try with --sweep"
                    .to_owned()
            } else {
                self.notes.join("; ")
            };
            return Err(Failure::Usage(format!("there is nothing to try: {why}")));
        }
        let disturbed = self.lines().filter(|(_, line)| line.spread.as_ref().is_some_and(|s| s.disturbed));
        let (disturbed, all) = (disturbed.count(), self.lines().count());
        if disturbed > 0 {
            self.notes.push(format!(
                "{disturbed} of {all} values are marked with !: most of their repeats were disturbed, other programs had the \
                 cores or the system paged, and such values are never taken; end those programs and tune again"
            ));
        }
        let tried = self.lines().filter_map(|(setting, line)| {
            let spread = line.spread.as_ref()?;
            Some(Tried {
                setting: setting.to_owned(),
                value: line.value.to_string(),
                seconds: spread.median,
                lower_quartile: spread.lower_quartile,
                upper_quartile: spread.upper_quartile,
                repeats: spread.repeats,
                disturbed: spread.disturbed,
            })
        });
        let tried = tried.collect();
        let profile =
            Profile { subject, settings: self.chosen(), tried, measured_with: self.measured_with() };
        target.replace(profile.text().as_bytes())
    }

    /// The circumstances, in one line.
    fn measured_with(&self) -> String {
        let names = ["dense", "activations", "context", "expert_cache", "cache_policy", "overlap", "device"];
        let said = names.iter().map(|name| {
            let value = &self.settings[*name];
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{} {value}", name.replace('_', "-"))
        });
        let tokens = format!("{} tokens a repeat", self.args.tokens);
        said.chain([tokens]).collect::<Vec<_>>().join(", ")
    }

    fn json(&self, target: &Target) -> Json {
        let line = |(setting, line): (&str, &Line)| {
            json!({
                "setting": setting,
                "value": line.value.to_string(),
                "seconds": line.spread,
                "ratio": line.ratio,
                "taken": line.is_taken,
            })
        };
        json!({
            "settings": self.settings,
            "machine": self.machine,
            "tokens": self.args.tokens,
            "repeats": self.args.repeats,
            "tried": self.lines().map(line).collect::<Vec<_>>(),
            "chosen": self.chosen().into_iter().collect::<Map<String, Json>>(),
            "profile": target.path().display().to_string(),
            "notes": self.notes,
        })
    }
}

fn situation(args: &EngineArgs, plan: &Plan) -> Situation {
    let governed = settings::in_force().get("governor").is_some_and(|origin| !origin.is_told());
    // Neither a mirror is read with it, nor does it go with a governor that was asked for.
    let uring = cfg!(target_os = "linux") && args.mirror.is_empty() && !(args.governor.0 && governed);
    let threads = load::threads(args) as u32;
    let processors = Cores::look().usable.map_or(threads, |usable| usable as u32);
    let slots = plan.slab.map_or(0, |slab| slab.slots());
    Situation { threads, processors, slots, experts: plan.experts, uring }
}
