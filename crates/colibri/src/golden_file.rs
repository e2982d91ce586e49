//! Golden results on disk: `golden.json` names prompts, and beside it lies a safetensors file for each. Knows the form,
//! not what the numbers mean.
use crate::errors::Failure;
use crate::tensor_file::floats;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// One prompt of `golden.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Prompt {
    /// What it is called.
    pub(crate) name: String,
    /// What goes in.
    pub(crate) ids: Vec<u32>,
    /// The likeliest tokens that follow, ends of text included.
    #[serde(default)]
    pub(crate) greedy_ids: Vec<u32>,
    /// Its tensors, a file in the same directory.
    file: String,
}

#[derive(Debug, Deserialize)]
struct Listing {
    prompts: Vec<Prompt>,
}

/// The prompts of a directory; at least one.
pub(crate) fn prompts(directory: &Path) -> Result<Vec<Prompt>, Failure> {
    let path = directory.join("golden.json");
    let bytes = fs::read(&path).map_err(Failure::io("reading", &path))?;
    let unusable = |what: &str| Failure::Golden(format!("{}: {what}", path.display()));
    let listing: Listing = serde_json::from_slice(&bytes).map_err(|error| {
        unusable(&format!("{error}; expected `prompts`, each with `name`, `ids`, `greedy_ids` and `file`"))
    })?;
    if listing.prompts.is_empty() || listing.prompts.iter().any(|prompt| prompt.ids.is_empty()) {
        return Err(unusable("expected at least one prompt, each with at least one id"));
    }
    Ok(listing.prompts)
}

/// Numbers and shape of a tensor.
pub(crate) type Shaped = (Vec<f32>, Vec<usize>);

/// The tensors of one prompt.
pub(crate) struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads the file of a prompt.
    pub(crate) fn open(directory: &Path, prompt: &Prompt) -> Result<Self, Failure> {
        let plain = Path::new(&prompt.file).file_name().is_some_and(|name| name == prompt.file.as_str());
        if !plain {
            return Err(Failure::Golden(format!(
                "{}: the file `{}` of prompt `{}` must be a plain file name",
                directory.join("golden.json").display(),
                prompt.file,
                prompt.name
            )));
        }
        let path = directory.join(&prompt.file);
        let bytes = fs::read(&path).map_err(Failure::io("reading", &path))?;
        let tensors = Tensors { path, bytes };
        tensors.parse()?;
        Ok(tensors)
    }

    fn parse(&self) -> Result<SafeTensors<'_>, Failure> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| self.unusable(&error.to_string()))
    }

    /// An error about this file.
    pub(crate) fn unusable(&self, what: &str) -> Failure {
        Failure::Golden(format!("{}: {what}", self.path.display()))
    }

    fn view(&self, name: &str, dtypes: &[Dtype]) -> Result<Option<TensorView<'_>>, Failure> {
        let tensors = self.parse()?;
        if !tensors.names().contains(&name) {
            return Ok(None);
        }
        let view = tensors.tensor(name).map_err(|error| self.unusable(&error.to_string()))?;
        if dtypes.contains(&view.dtype()) {
            return Ok(Some(view));
        }
        Err(self.unusable(&format!("tensor `{name}` is {:?}; expected one of {dtypes:?}", view.dtype())))
    }

    /// Numbers and shape of an f32 tensor, if it is there.
    pub(crate) fn floats(&self, name: &str) -> Result<Option<Shaped>, Failure> {
        let view = self.view(name, &[Dtype::F32])?;
        Ok(view.map(|view| (floats(view.data()), view.shape().to_vec())))
    }

    /// A tensor of ids, if it is there.
    pub(crate) fn ids(&self, name: &str) -> Result<Option<Vec<u32>>, Failure> {
        let view = self.view(name, &[Dtype::I32, Dtype::U32])?;
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(view.map(|view| view.data().chunks_exact(4).map(word).collect()))
    }
}
