//! The model that is part of the program: `data/k3-tiny`, file by file. It goes the way of every other model.
use store::{Checkpoint, StoreError};

/// How it is called where other models have their directories.
pub(crate) const NAME: &str = "embedded k3-tiny";

macro_rules! files {
    ($($name:literal)*) => {
        /// Name and content of every file, its goldens left out.
        const FILES: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../../../data/k3-tiny/", $name)))),*];
    };
}

files! {
    "config.json"
    "generation_config.json"
    "tiktoken.model"
    "tokenizer_config.json"
    "model.safetensors.index.json"
    "model-00001-of-000012.safetensors"
    "model-00002-of-000012.safetensors"
    "model-00003-of-000012.safetensors"
    "model-00004-of-000012.safetensors"
    "model-00005-of-000012.safetensors"
    "model-00006-of-000012.safetensors"
    "model-00007-of-000012.safetensors"
    "model-00008-of-000012.safetensors"
    "model-00009-of-000012.safetensors"
    "model-00010-of-000012.safetensors"
    "model-00011-of-000012.safetensors"
    "model-00012-of-000012.safetensors"
}

/// Opens it.
///
/// # Errors
/// Those of [`Checkpoint::from_memory`]; none, if the program was built from an undamaged tree.
pub(crate) fn open() -> Result<Checkpoint, StoreError> {
    Checkpoint::from_memory(FILES)
}
