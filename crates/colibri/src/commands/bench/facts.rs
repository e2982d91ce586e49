//! In what circumstances is measured: the model and the settings. Measures nothing.
use super::choices;
use super::record::ModelFacts;
use crate::args::BenchArgs;
use crate::load::Model;
use serde_json::{Map, Value, json};

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
