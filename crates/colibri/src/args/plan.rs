//! Arguments of the command that plans.
use super::{EngineArgs, LayersArgs, ModelArgs, OutputArgs};
use crate::values;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Plan for a machine with this much memory, all of it free, 256MiB or more, such as 64GB [default: what is free on this
    /// machine, within the limits of its control groups]
    #[arg(long, value_name = "SIZE", value_parser = values::memory, allow_hyphen_values = true)]
    pub(crate) ram: Option<u64>,
    /// Predict for a drive of this rate, 1MB/s or more, such as 7GB/s [default: what the drives of the model's shards are
    /// measured to give; without shards nothing is known of them]
    #[arg(long, value_name = "RATE", value_parser = values::rate, allow_hyphen_values = true)]
    pub(crate) disk: Option<u64>,
    /// Predict hits from what such a run asked for: a file that `colibri run --trace-routing FILE` wrote; repeat it for several
    /// runs, each of which begins with an empty cache [default: as if experts were picked evenly]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,
    /// Do not measure memory, arithmetic and drives, which takes some seconds: what computing takes stays unknown
    #[arg(long)]
    pub(crate) no_measure: bool,
    #[command(flatten)]
    pub(crate) layers: LayersArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
