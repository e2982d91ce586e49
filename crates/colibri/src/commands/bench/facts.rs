//! In what circumstances is measured: the machine, the model, the settings. Measures nothing.
use super::choices;
use super::record::{MachineFacts, ModelFacts};
use crate::args::BenchArgs;
use crate::errors::Failure;
use crate::load::Model;
use cpu::Level;
use memory::machine;
use serde_json::{Map, Value, json};
use sysinfo::{CpuRefreshKind, RefreshKind, System};
use text::{Segment, Tiktoken, Tokenizer as _};

/// This machine, of which this process may use so many cores.
pub(crate) fn machine(cores: usize) -> Result<MachineFacts, Failure> {
    let wanted = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    // What the system does not tell is no reason not to measure.
    let system = System::new_with_specifics(wanted).ok();
    let processor = system.and_then(|all| all.cpus().first().map(|cpu| cpu.brand().trim().to_owned()));
    let name = System::name().unwrap_or_else(|_| std::env::consts::OS.to_owned());
    let version = System::kernel_version().unwrap_or_default();
    Ok(MachineFacts {
        processor: processor.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown processor".into()),
        architecture: std::env::consts::ARCH.to_owned(),
        instructions: Level::best().name().to_owned(),
        cores,
        memory_bytes: machine::total_memory()?,
        system: format!("{name} {version}").trim().to_owned(),
    })
}

/// The model.
pub(crate) fn model(model: &Model) -> ModelFacts {
    let config = &model.family.config;
    ModelFacts {
        places: model.places.clone(),
        family: model.family.name().to_owned(),
        layers: config.layers(),
        width: config.width,
        experts: config.experts,
        experts_a_token: config.ranks,
        vocabulary: config.vocabulary,
        bytes: model.checkpoint.under("").map(|(_, entry)| entry.bytes).sum(),
    }
}

/// What is set; what is chosen later replaces it.
pub(crate) fn settings(args: &BenchArgs, model: &Model, threads: usize) -> Map<String, Value> {
    let engine = &args.engine;
    let value = json!({
        "numerics_version": ops::NUMERICS_VERSION,
        "version": env!("CARGO_PKG_VERSION"),
        "model": model.places,
        "device": engine.device.name(),
        "activations": engine.activations.name(),
        "chunk": engine.chunk,
        "dense_residency": engine.dense_residency.name(),
        "threads": threads,
        "io": engine.io.name(),
        "mirror": engine.mirror,
        "readers": engine.readers,
        "overlap": engine.overlap.name(),
        "look_ahead": engine.look_ahead.to_string(),
        "check_experts": engine.check_experts.0,
        "governor": engine.governor.name(),
        "repeats": args.repeats,
        "bytes": args.bytes,
        "rows": choices::rows(args),
        "tokens": choices::tokens(args),
        "lengths": choices::lengths(args),
        "contexts": choices::contexts(args),
        "guess_precision": choices::precisions(args),
        "text": args.text.is_some(),
    });
    match value {
        Value::Object(settings) => settings,
        _ => unreachable!("an object is written as one"),
    }
}

/// The tokens of a text.
pub(crate) fn ids(tokenizer: &Tiktoken, text: &str) -> Result<Vec<u32>, Failure> {
    Ok(tokenizer.encode(&[Segment::Text(text)])?)
}
