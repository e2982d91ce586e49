//! Arguments of `convert`.
use super::OutputArgs;
use crate::values;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The model's directory, or several as they would be given to --model, and last the directory to write. That must be
    /// empty or absent, or hold what an earlier run of the same conversion left: that is gone on with. Nothing is written
    /// into the model. With --verify a container alone may be given
    #[arg(required = true, num_args = 1.., value_names = ["SRC", "DST"])]
    pub(crate) places: Vec<PathBuf>,
    /// How dense weights are stored in it: bf16 (as in the model), int8, int4, or auto: what `colibri run` would choose for this
    /// machine now. From bf16 every packing can be made while loading, int8 and int4 are what they are
    #[arg(long, value_name = "PACKING", default_value = "auto", value_parser = values::dense)]
    pub(crate) dense: values::DenseChoice,
    /// Write the packed dense weights only, and refer to the model's own files for everything else: they must stay where they are
    #[arg(long)]
    pub(crate) thin: bool,
    /// Read everything back and compare it with the checksums, after writing or of a container alone; the exit code is 1 if
    /// anything differs
    #[arg(long)]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
