//! Golden results on disk: `golden.json` names prompts, and beside it lies a safetensors file for each. Knows which
//! tensors may be there and how large they must be for a model; what is compared with them is decided elsewhere.
use crate::errors::Failure;
use crate::tensor_file::floats;
use crate::work::PARTS;
use models::kimi_k3::KimiK3Config;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One prompt of `golden.json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Prompt {
    /// What it is called.
    pub(crate) name: String,
    /// What goes in.
    pub(crate) ids: Vec<u32>,
    /// The likeliest tokens that follow, ends of text included.
    #[serde(default)]
    pub(crate) greedy_ids: Vec<u32>,
    /// For each of them the likeliest tokens and their log-probabilities, likeliest first.
    #[serde(default)]
    pub(crate) greedy_top5: Vec<Vec<(u32, f32)>>,
    /// Its tensors, a file in the same directory.
    file: String,
}

#[derive(Debug, Deserialize)]
struct Listing {
    prompts: Vec<Prompt>,
}

/// The prompts of a directory, at least one, for a model with so many ids.
pub(crate) fn prompts(directory: &Path, vocabulary: u32) -> Result<Vec<Prompt>, Failure> {
    let path = directory.join("golden.json");
    let bytes = fs::read(&path).map_err(|error| {
        Failure::io("reading", &path)(error)
            .advising("--golden expects a directory with golden.json and the safetensors files that it names")
    })?;
    let unusable = |what: &str| Failure::Golden(format!("{}: {what}", path.display()));
    let listing: Listing = serde_json::from_slice(&bytes).map_err(|error| {
        unusable(&format!("{error}; expected `prompts`, each with `name`, `ids`, `greedy_ids` and `file`"))
    })?;
    if listing.prompts.is_empty() || listing.prompts.iter().any(|prompt| prompt.ids.is_empty()) {
        return Err(unusable("expected at least one prompt, each with at least one id"));
    }
    for Prompt { name, ids, greedy_ids, greedy_top5, file } in &listing.prompts {
        let likeliest = greedy_top5.iter().flatten().map(|(id, _)| id);
        if let Some(id) = ids.iter().chain(greedy_ids).chain(likeliest).find(|id| **id >= vocabulary) {
            return Err(unusable(&format!(
                "prompt `{name}` holds the id {id}, the model's ids are below {vocabulary}; these are another model's results"
            )));
        }
        let complete = greedy_top5.len() == greedy_ids.len() && greedy_top5.iter().all(|top| top.len() >= 2);
        if !greedy_top5.is_empty() && !complete {
            return Err(unusable(&format!(
                "prompt `{name}`: `greedy_top5` must hold at least two tokens for each of the {} `greedy_ids`",
                greedy_ids.len()
            )));
        }
        if Path::new(file).file_name().is_none_or(|plain| plain != file.as_str()) {
            return Err(unusable(&format!("the file `{file}` of prompt `{name}` must be a plain file name")));
        }
    }
    Ok(listing.prompts)
}

/// Rows of equal length somewhere in the file.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    data: Range<usize>,
    row_bytes: usize,
}

/// The results of one prompt. What is there has the right type and size.
pub(crate) struct Golden<'p> {
    /// What they are of.
    pub(crate) prompt: &'p Prompt,
    /// \[position, vocabulary\]
    pub(crate) logits: Option<Rows>,
    /// One row.
    pub(crate) logits_last: Option<Rows>,
    /// Positions of the rows in `layers`.
    pub(crate) positions: Vec<u32>,
    /// For each layer [`PARTS`], each \[index in `positions`, width\].
    pub(crate) layers: Vec<[Option<Rows>; PARTS.len()]>,
    /// \[position, layers with experts * ranks\], the best first.
    pub(crate) router_ids: Option<Rows>,
    /// Their weights.
    pub(crate) router_weights: Option<Rows>,
    file: File,
}

impl<'p> Golden<'p> {
    /// Reads the file of a prompt and looks at all that is in it but the state, whose sizes [`Golden::state`] is told.
    pub(crate) fn open(directory: &Path, prompt: &'p Prompt, config: &KimiK3Config) -> Result<Self, Failure> {
        let mut file = File::read(directory.join(&prompt.file))?;
        let rows = prompt.ids.len();
        if let Some(ids) = file.rows("ids", Kind::Ids, 1, rows)?
            && file.ids(&ids, 0) != prompt.ids
        {
            return Err(file.unusable("tensor `ids` differs from the ids in golden.json"));
        }
        let positions = file.positions(rows as u32)?;
        let layers = (0..config.layers()).map(|layer| {
            let mut parts = [const { None }; PARTS.len()];
            for (part, found) in PARTS.iter().zip(&mut parts) {
                let name = format!("layer{layer}.{part}");
                *found = file.rows(&name, Kind::Floats, positions.len(), config.width as usize)?;
            }
            Ok(parts)
        });
        let layers = layers.collect::<Result<Vec<_>, Failure>>()?;
        let vocabulary = config.vocabulary as usize;
        let picks = (config.layers().saturating_sub(config.first_moe_layer) * config.ranks) as usize;
        Ok(Golden {
            prompt,
            logits: file.rows("logits", Kind::Floats, rows, vocabulary)?,
            logits_last: file.rows("logits_last", Kind::Floats, 1, vocabulary)?,
            positions,
            layers,
            router_ids: file.picks(rows, picks, config.experts)?,
            router_weights: file.rows("router_weights", Kind::Floats, rows, picks)?,
            file,
        })
    }

    /// All `count` numbers of a part of the state, if it is there.
    pub(crate) fn state(&mut self, name: &str, count: usize) -> Result<Option<Vec<f32>>, Failure> {
        let rows = self.file.rows(name, Kind::Floats, 1, count)?;
        Ok(rows.map(|rows| self.floats(&rows, 0)))
    }

    /// A row of numbers.
    pub(crate) fn floats(&self, rows: &Rows, row: usize) -> Vec<f32> {
        floats(self.file.row(rows, row))
    }

    /// A row of ids.
    pub(crate) fn ids(&self, rows: &Rows, row: usize) -> Vec<u32> {
        self.file.ids(rows, row)
    }

    /// Tensors that nobody has asked for.
    pub(crate) fn unused(self) -> BTreeSet<String> {
        self.file.unused
    }
}

/// What a tensor holds.
#[derive(Clone, Copy)]
enum Kind {
    Floats,
    Ids,
}

impl Kind {
    fn dtypes(self) -> &'static [Dtype] {
        match self {
            Kind::Floats => &[Dtype::F32],
            Kind::Ids => &[Dtype::I32, Dtype::U32],
        }
    }
}

/// A safetensors file, read.
struct File {
    path: PathBuf,
    bytes: Vec<u8>,
    metadata: Metadata,
    /// Where the tensors begin.
    data: usize,
    unused: BTreeSet<String>,
}

impl File {
    fn read(path: PathBuf) -> Result<Self, Failure> {
        let bytes = fs::read(&path).map_err(Failure::io("reading", &path))?;
        let unusable = |error| Failure::Golden(format!("{}: {error}", path.display()));
        // The whole is checked first: header and data belong together.
        SafeTensors::deserialize(&bytes).map_err(unusable)?;
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(unusable)?;
        let unused = metadata.tensors().into_keys().collect();
        Ok(File { path, bytes, metadata, data: size_of::<u64>() + header, unused })
    }

    fn unusable(&self, what: &str) -> Failure {
        Failure::Golden(format!("{}: {what}", self.path.display()))
    }

    /// A tensor of `rows` times `cols` numbers of four bytes, if it is there; its first dimension is the rows, unless there
    /// is only one.
    fn rows(&mut self, name: &str, kind: Kind, rows: usize, cols: usize) -> Result<Option<Rows>, Failure> {
        let Some(info) = self.metadata.info(name) else { return Ok(None) };
        if !kind.dtypes().contains(&info.dtype) {
            return Err(self.unusable(&format!(
                "tensor `{name}` is {:?}; expected one of {:?}",
                info.dtype,
                kind.dtypes()
            )));
        }
        let count: usize = info.shape.iter().product();
        if count == 0 || count != rows * cols || (rows > 1 && info.shape[0] != rows) {
            return Err(self.unusable(&format!(
                "tensor `{name}` has the shape {:?}, this model gives {rows} x {cols}; these are another model's results",
                info.shape
            )));
        }
        let data = self.data + info.data_offsets.0..self.data + info.data_offsets.1;
        self.unused.remove(name);
        Ok(Some(Rows { data, row_bytes: cols * 4 }))
    }

    /// The positions of rows of layers: those in the file, or all.
    fn positions(&mut self, count: u32) -> Result<Vec<u32>, Failure> {
        let numbers = self.metadata.info("positions").map(|info| info.shape.iter().product());
        let Some(numbers) = numbers else { return Ok((0..count).collect()) };
        let Some(rows) = self.rows("positions", Kind::Ids, 1, numbers)? else { return Ok(Vec::new()) };
        let positions = self.ids(&rows, 0);
        match positions.iter().find(|position| **position >= count) {
            None => Ok(positions),
            Some(position) => Err(self.unusable(&format!(
                "tensor `positions` holds {}, the prompt has the positions 0 to {}",
                position.cast_signed(),
                count - 1
            ))),
        }
    }

    /// The experts that routers chose, of `experts` in each layer.
    fn picks(&mut self, rows: usize, cols: usize, experts: u32) -> Result<Option<Rows>, Failure> {
        let Some(found) = self.rows("router_ids", Kind::Ids, rows, cols)? else { return Ok(None) };
        match (0..rows).flat_map(|row| self.ids(&found, row)).find(|id| *id >= experts) {
            None => Ok(Some(found)),
            Some(id) => Err(self.unusable(&format!(
                "tensor `router_ids` holds {}, a layer has the experts 0 to {}; these are another model's results",
                id.cast_signed(),
                experts.saturating_sub(1)
            ))),
        }
    }

    fn row(&self, rows: &Rows, row: usize) -> &[u8] {
        let start = rows.data.start + row * rows.row_bytes;
        &self.bytes[start..start + rows.row_bytes]
    }

    fn ids(&self, rows: &Rows, row: usize) -> Vec<u32> {
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        self.row(rows, row).chunks_exact(4).map(word).collect()
    }
}

/// Bytes of the largest file of some prompts: one is in memory at a time.
pub(crate) fn largest(directory: &Path, prompts: &[Prompt]) -> u64 {
    let bytes = |prompt: &Prompt| fs::metadata(directory.join(&prompt.file)).map_or(0, |file| file.len());
    prompts.iter().map(bytes).max().unwrap_or(0)
}
