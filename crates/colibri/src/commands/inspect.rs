//! `colibri inspect`: what a checkpoint holds and what it lacks, as far as it is there.
use crate::args::{InspectArgs, ModelArgs};
use crate::commands::verify::verdict;
use crate::deep::{self, Deep};
use crate::errors::Failure;
use crate::inventory::Inventory;
use crate::partial::{Partial, Shards};
use crate::{embedded, interrupt, load, partial, report};
use engine::show_bytes;
use models::kimi_k3::names::{FAMILY, gaps};
use models::kimi_k3::{KimiK3Config, is_kimi_k3};
use models::{Family, LoadError, LoadOptions, Residency};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use store::Checkpoint;
use store::files::in_first_directory;

/// A checkpoint that was looked at.
pub(crate) struct Seen {
    pub(crate) places: Vec<String>,
    pub(crate) family: &'static str,
    pub(crate) partial: Partial,
    pub(crate) config: KimiK3Config,
    pub(crate) inventory: Inventory,
    /// What keeps it from being run, absent shards aside.
    pub(crate) problems: Vec<String>,
    /// Tensors that are in no readable shard.
    missing: Vec<String>,
    /// What is odd but harmless.
    pub(crate) notes: Vec<String>,
    deep: Option<Deep>,
}

/// Runs it.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let seen = look(&args.model, args.deep)?;
    if args.output.json {
        report::print_json(&seen.json())?;
    } else {
        report::print(&seen.text())?;
    }
    let damaged = seen.deep.as_ref().is_some_and(|deep| !deep.faults.is_empty());
    Ok(verdict(seen.complete() && !damaged))
}

/// Looks at a checkpoint as far as it is there; `deep` reads every byte.
///
/// # Errors
/// No directory, no config, no index; or a deep look was interrupted.
pub(crate) fn look(args: &ModelArgs, deep: bool) -> Result<Seen, Failure> {
    let partial = match args.model.as_slice() {
        [] => Partial::whole(embedded::open()?),
        directories => partial::open(directories)?,
    };
    let places = load::places(args);
    let Recognised { family, config, problems: load_problems } = recognise(&partial)?;
    let checkpoint = &partial.checkpoint;
    let inventory = Inventory::new(checkpoint, &config, partial.lost());
    let deep = if deep { Some(deep::read(checkpoint, &config, interrupt::stoppable())?) } else { None };
    let mut missing: Vec<String> = partial.lost().map(str::to_owned).collect();
    if !load_problems.is_empty() {
        missing.extend(gaps(&config, checkpoint.names()));
    }
    let tokenizer = load::tokenizer_of(checkpoint, &places[0], config.vocabulary).err();
    let mut problems = partial.faults.clone();
    problems.extend(load_problems);
    problems.extend(tokenizer.map(|failure| failure.message()));
    let notes =
        [checkpoint.notes(), &load::idle_directories(checkpoint), &absent_metadata(checkpoint)].concat();
    Ok(Seen { places, family, partial, config, inventory, problems, missing, notes, deep })
}

/// What the config tells.
struct Recognised {
    family: &'static str,
    config: KimiK3Config,
    /// What a load would stumble over.
    problems: Vec<String>,
}

/// Reads the config, and looks what a load would stumble over; nothing is loaded of what has shards set aside.
fn recognise(partial: &Partial) -> Result<Recognised, Failure> {
    let (checkpoint, whole) = (&partial.checkpoint, partial.absent.is_empty() && partial.damaged.is_empty());
    let family = match Family::recognise(checkpoint) {
        Ok(family) => family,
        // The tensors that tell how names begin may lie in an absent shard; the config is enough here.
        Err(LoadError::Store(error)) if is_kimi_k3(checkpoint.config()) => {
            let config = KimiK3Config::read(checkpoint.config()).map_err(LoadError::from)?;
            let problems = if whole { vec![error.to_string()] } else { Vec::new() };
            return Ok(Recognised { family: FAMILY, config, problems });
        }
        Err(error) => return Err(error.into()),
    };
    let mut problems = Vec::new();
    if whole {
        let dense = family.dense_choices(checkpoint, None, Residency::Ram).and_then(|choices| {
            let options = LoadOptions { dense: choices[0], ..LoadOptions::default() };
            family.load(checkpoint, None, &options, &mut |_| {})
        });
        let dense = dense.err();
        let experts = family.catalog(checkpoint, None).err();
        problems.extend([dense, experts].into_iter().flatten().map(|error| error.to_string()));
    }
    Ok(Recognised { family: family.name(), config: family.config, problems })
}

/// Notes on small files that a release has and a run can do without.
fn absent_metadata(checkpoint: &Checkpoint) -> Vec<String> {
    let files = checkpoint.files();
    let absent = |name: &str| in_first_directory(&*files, name).is_none();
    let effects = [
        ("tokenizer_config.json", "control tokens have made-up names"),
        (
            "generation_config.json",
            "neutral sampling defaults hold, and the ends of a text are those of config.json",
        ),
    ];
    let absent = effects.into_iter().filter(|(name, _)| absent(name));
    absent.map(|(name, effect)| format!("{name} is not there: {effect}")).collect()
}

impl Seen {
    /// Whether it can be run.
    pub(crate) fn complete(&self) -> bool {
        self.partial.absent.is_empty() && self.problems.is_empty()
    }

    fn layers(&self) -> (usize, usize, u32, u32) {
        let (all, kda) = (self.config.layers(), self.config.delta_layers.iter().filter(|kda| **kda).count());
        let dense = self.config.first_moe_layer.min(all);
        (kda, all as usize - kda, dense, all - dense)
    }

    /// Everything, for programs.
    pub(crate) fn json(&self) -> Value {
        let config = &self.config;
        let (kda, mla, dense, moe) = self.layers();
        let shard =
            |(shard, tensors): (&String, &Vec<String>)| json!({"shard": shard, "tensors": tensors.len()});
        let shards = |shards: &Shards| shards.iter().map(shard).collect::<Vec<_>>();
        let (present, named) = self.shards();
        let (parameters, bytes) = self.totals();
        json!({
            "model": self.places,
            "family": self.family,
            "numerics_version": ops::NUMERICS_VERSION,
            "hidden": config.width,
            "vocabulary": config.vocabulary,
            "context": config.context,
            "layers": {"total": config.layers(), "kda": kda, "mla": mla, "dense_mlp": dense, "moe": moe},
            "experts": self.inventory.experts,
            "classes": self.inventory.classes,
            "parameters": parameters,
            "bytes": bytes,
            "shards": {"named": named, "present": present},
            "missing": shards(&self.partial.absent),
            "damaged": shards(&self.partial.damaged),
            "missing_tensors": {"count": self.missing.len(), "first": self.missing.iter().take(SHOWN).collect::<Vec<_>>()},
            "problems": self.problems,
            "complete": self.complete(),
            "notes": self.notes,
            "deep": self.deep,
        })
    }

    /// Shards that can be read, and those there should be.
    pub(crate) fn shards(&self) -> (usize, usize) {
        let present = self.partial.checkpoint.shards().len();
        (present, present + self.partial.absent.len() + self.partial.damaged.len())
    }

    fn totals(&self) -> (u64, u64) {
        let classes = self.inventory.classes.values();
        classes
            .fold((0, 0), |(parameters, bytes), class| (parameters + class.parameters, bytes + class.bytes))
    }

    // Writing to a string cannot fail.
    fn text(&self) -> String {
        let mut text = String::new();
        let config = &self.config;
        let (kda, mla, dense, moe) = self.layers();
        let _ = writeln!(text, "{} in {}", self.family, self.places.join(", "));
        let _ = writeln!(
            text,
            "layers: {} ({kda} KDA, {mla} MLA; {dense} with a dense MLP, {moe} with routed experts)",
            config.layers()
        );
        let _ = writeln!(
            text,
            "hidden {}, vocabulary {}, context {}",
            config.width, config.vocabulary, config.context
        );
        self.write_experts(&mut text);
        self.write_classes(&mut text);
        self.write_missing(&mut text);
        if let Some(deep) = &self.deep {
            write_deep(&mut text, deep);
        }
        text
    }

    fn write_experts(&self, text: &mut String) {
        let experts = &self.inventory.experts;
        let each = experts.bytes_each.map_or(String::new(), |bytes| format!(", {} each", show_bytes(bytes)));
        let _ = writeln!(
            text,
            "routed experts: {} ({} a layer, {} a token{each}); {} are whole, {} of these lie in one piece on disk; \
             {} shared experts",
            experts.total,
            experts.per_layer,
            experts.per_token,
            experts.whole,
            experts.contiguous,
            experts.shared
        );
    }

    fn write_classes(&self, text: &mut String) {
        let _ =
            writeln!(text, "{:<30} {:>8} {:>16} {:>10}  packing", "class", "tensors", "parameters", "bytes");
        for (name, class) in &self.inventory.classes {
            let mut packing: Vec<String> = class.packing.keys().map(|name| (*name).to_owned()).collect();
            if class.missing > 0 {
                packing.push(format!("{} tensors missing", class.missing));
            }
            let _ = writeln!(
                text,
                "{name:<30} {:>8} {:>16} {:>10}  {}",
                class.tensors,
                class.parameters,
                show_bytes(class.bytes),
                packing.join(", ")
            );
        }
        let (parameters, bytes) = self.totals();
        let tensors = self.partial.checkpoint.names().len();
        let _ = writeln!(text, "{:<30} {tensors:>8} {parameters:>16} {:>10}", "in all", show_bytes(bytes));
    }

    fn write_missing(&self, text: &mut String) {
        let (present, named) = self.shards();
        let _ = writeln!(text, "shards: {present} of {named} are here and readable");
        for (shard, tensors) in &self.partial.absent {
            let _ = writeln!(text, "missing: {shard} with {}", report::counted(tensors.len(), "tensor"));
        }
        for problem in &self.problems {
            let _ = writeln!(text, "problem: {problem}");
        }
        if !self.missing.is_empty() {
            let _ = writeln!(text, "missing tensors: {}", self.missing.len());
            for name in self.missing.iter().take(SHOWN) {
                let _ = writeln!(text, "  {name}");
            }
            if self.missing.len() > SHOWN {
                let _ = writeln!(text, "  and {} more", self.missing.len() - SHOWN);
            }
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        if self.complete() {
            let _ = writeln!(text, "nothing is missing");
        }
    }
}

/// More tensors than this are only counted.
const SHOWN: usize = 20;

fn write_deep(text: &mut String, deep: &Deep) {
    let _ = writeln!(text, "read {} tensors, {}", deep.tensors, show_bytes(deep.bytes));
    for fault in deep.faults.iter().take(SHOWN) {
        let _ = writeln!(text, "damaged: {} in {}: {}", fault.tensor, fault.file, fault.what);
    }
    let _ = match deep.faults.len() {
        0 => writeln!(text, "no damage: all numbers are finite, no scale is NaN"),
        count => writeln!(text, "{count} tensors are damaged; download their files anew"),
    };
}
