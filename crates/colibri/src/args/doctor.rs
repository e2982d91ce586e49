//! Arguments of `doctor`.
use super::{ModelArgs, OutputArgs};
use clap::Args;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Print only the names of files that must be downloaded for the model to be whole, one a line, as its index calls
    /// them: `hf download REPO --local-dir DIR --include $(colibri doctor --model DIR --missing)`. No shard needs to be
    /// there, but config.json and the index
    #[arg(long, conflicts_with = "no_measure")]
    pub(crate) missing: bool,
    /// Do not measure how fast the drives are read; else up to 512 MiB of shards are read from each, for 4 seconds at
    /// most and past the system's cache where that is possible
    #[arg(long)]
    pub(crate) no_measure: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
