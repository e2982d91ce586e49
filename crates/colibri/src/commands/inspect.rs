//! `colibri inspect`: what a checkpoint holds and what it lacks, as far as it is there.
use crate::args::InspectArgs;
use crate::commands::verify::verdict;
use crate::deep::{self, Deep};
use crate::errors::Failure;
use crate::inventory::Inventory;
use crate::partial::Missing;
use crate::{embedded, interrupt, load, partial, report};
use engine::show_bytes;
use models::kimi_k3::{KimiK3Config, is_kimi_k3};
use models::{Family, LoadError, LoadOptions};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use store::Checkpoint;

/// A checkpoint that was looked at.
struct Seen {
    places: Vec<String>,
    checkpoint: Checkpoint,
    config: KimiK3Config,
    /// Absent shards.
    missing: Missing,
    inventory: Inventory,
    /// What keeps it from being loaded, absent shards aside.
    problems: Vec<String>,
    deep: Option<Deep>,
}

/// Runs it.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode, Failure> {
    let (checkpoint, missing) = match args.model.model.as_slice() {
        [] => (embedded::open()?, Missing::new()),
        directories => partial::open(directories)?,
    };
    let (config, problems) = recognise(&checkpoint, &missing)?;
    let names = missing.values().flatten().map(String::as_str);
    let inventory = Inventory::new(&checkpoint, &config, names);
    let deep = if args.deep { Some(deep::read(&checkpoint, &config, interrupt::stoppable())?) } else { None };
    let places = load::places(&args.model);
    let seen = Seen { places, checkpoint, config, missing, inventory, problems, deep };
    if args.output.json {
        report::print_json(&seen.json())?;
    } else {
        report::print(&seen.text())?;
    }
    let damaged = seen.deep.as_ref().is_some_and(|deep| !deep.faults.is_empty() || !seen.complete());
    Ok(verdict(!damaged))
}

/// The config, and what a load would stumble over.
fn recognise(checkpoint: &Checkpoint, missing: &Missing) -> Result<(KimiK3Config, Vec<String>), Failure> {
    let family = match Family::recognise(checkpoint) {
        Ok(family) => family,
        // The tensors that tell how names begin may lie in an absent shard; the config is enough here.
        Err(LoadError::Store(error)) if is_kimi_k3(checkpoint.config()) => {
            let config = KimiK3Config::read(checkpoint.config()).map_err(LoadError::from)?;
            let problems = if missing.is_empty() { vec![error.to_string()] } else { Vec::new() };
            return Ok((config, problems));
        }
        Err(error) => return Err(error.into()),
    };
    let mut problems = Vec::new();
    if missing.is_empty() {
        let dense = family.load(checkpoint, None, &LoadOptions::default(), &mut |_| {}).err();
        let experts = family.catalog(checkpoint, None).err();
        problems.extend([dense, experts].into_iter().flatten().map(|error| error.to_string()));
    }
    Ok((family.config, problems))
}

impl Seen {
    fn complete(&self) -> bool {
        self.missing.is_empty() && self.problems.is_empty()
    }

    fn layers(&self) -> (usize, usize, u32, u32) {
        let (all, kda) = (self.config.layers(), self.config.delta_layers.iter().filter(|kda| **kda).count());
        let dense = self.config.first_moe_layer.min(all);
        (kda, all as usize - kda, dense, all - dense)
    }

    fn json(&self) -> Value {
        let config = &self.config;
        let (kda, mla, dense, moe) = self.layers();
        let shards = self.checkpoint.shards().len();
        let missing =
            |(shard, tensors): (&String, &Vec<String>)| json!({"shard": shard, "tensors": tensors.len()});
        let (parameters, bytes) = self.totals();
        json!({
            "model": self.places,
            "family": "kimi_k3",
            "numerics_version": ops::NUMERICS_VERSION,
            "hidden": config.width,
            "vocabulary": config.vocabulary,
            "context": config.context,
            "layers": {"total": config.layers(), "kda": kda, "mla": mla, "dense_mlp": dense, "moe": moe},
            "experts": self.inventory.experts,
            "classes": self.inventory.classes,
            "parameters": parameters,
            "bytes": bytes,
            "shards": {"named": shards + self.missing.len(), "present": shards},
            "missing": self.missing.iter().map(missing).collect::<Vec<_>>(),
            "problems": self.problems,
            "complete": self.complete(),
            "notes": self.checkpoint.notes(),
            "deep": self.deep,
        })
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
        let _ = writeln!(text, "kimi_k3 in {}", self.places.join(", "));
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
        let tensors = self.checkpoint.names().len();
        let _ = writeln!(text, "{:<30} {tensors:>8} {parameters:>16} {:>10}", "in all", show_bytes(bytes));
    }

    fn write_missing(&self, text: &mut String) {
        let shards = self.checkpoint.shards().len();
        let _ = writeln!(text, "shards: {shards} of {} are here", shards + self.missing.len());
        for (shard, tensors) in &self.missing {
            let _ = writeln!(text, "missing: {shard} with {} tensors", tensors.len());
        }
        for problem in &self.problems {
            let _ = writeln!(text, "problem: {problem}");
        }
        for note in self.checkpoint.notes() {
            let _ = writeln!(text, "note: {note}");
        }
        if self.complete() {
            let _ = writeln!(text, "nothing is missing");
        }
    }
}

/// More damaged tensors than this are only counted.
const FAULTS_SHOWN: usize = 20;

fn write_deep(text: &mut String, deep: &Deep) {
    let _ = writeln!(text, "read {} tensors, {}", deep.tensors, show_bytes(deep.bytes));
    for fault in deep.faults.iter().take(FAULTS_SHOWN) {
        let _ = writeln!(text, "damaged: {} in {}: {}", fault.tensor, fault.file, fault.what);
    }
    let _ = match deep.faults.len() {
        0 => writeln!(text, "no damage: all numbers are finite, no scale is NaN"),
        count => writeln!(text, "{count} tensors are damaged; download their files anew"),
    };
}
