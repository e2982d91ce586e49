//! Values that no file, variable or flag gives: those of the model's `generation_config.json`, and those that are chosen
//! when a run is planned on this machine. Knows how they are found, not how they are shown.
use crate::args::{EngineArgs, ModelArgs};
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::profile;
use crate::sampling;
use crate::settings::{Effective, Origin, Refusal};
use clap::{ArgMatches, FromArgMatches as _};
use engine::show_bytes;

/// Puts in what can be asked; otherwise why not.
pub(crate) fn put(effective: &mut Effective, matches: &ArgMatches) -> Result<(), Failure> {
    let has = |name: &str| effective.rows.get(name).is_some();
    let (samples, computes) = (has("temperature"), has("expert-cache"));
    let Some((_, matches)) = matches.subcommand().filter(|_| has("model") && (samples || computes)) else {
        return Ok(());
    };
    let model = load::open(&ModelArgs::from_arg_matches(matches).map_err(unparsed)?)?;
    if samples {
        let temperature = effective.rows.get("temperature").and_then(|row| row.values.first());
        let temperature = temperature.and_then(|value| value.to_str()?.parse().ok());
        for (name, value) in sampling::of_model(&model, temperature)? {
            effective.rows.put_default(name, value, Origin::Model);
        }
    }
    if computes { planned(effective, matches, &model) } else { Ok(()) }
}

/// What is chosen for a prompt of one token.
fn planned(effective: &mut Effective, matches: &ArgMatches, model: &Model) -> Result<(), Failure> {
    let args = EngineArgs::from_arg_matches(matches).map_err(unparsed)?;
    profile::check(model, &args)?;
    effective.rows.put_planned("threads", load::threads(&args).to_string());
    // Where it counts layers; elsewhere it is absent or a list.
    let layers = matches.try_get_one::<u32>("layers").ok().flatten().copied();
    let plan = load::plan(model, &load::request(&args, layers, 1), 1, Vec::new())?;
    effective.rows.put_planned("context", plan.context.to_string());
    effective.rows.put_planned("chunk", plan.chunk.to_string());
    effective.rows.put_planned("dense", plan.options.dense.name().to_owned());
    let slots = plan.slab.map(|slab| show_bytes(u64::from(slab.slots()) * slab.slot_bytes()));
    effective.rows.put_planned("expert-cache", slots.unwrap_or_else(|| "0 B".to_owned()));
    Ok(())
}

/// The command's own parser has taken the same words before.
fn unparsed(error: clap::Error) -> Failure {
    Refusal::from(error).into_failure()
}
