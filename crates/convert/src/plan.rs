//! Which bytes go where: computed from the source's headers and the settings alone, so that two runs agree on every byte.
//! Reads no tensor but samples, and writes nothing.
use crate::error::ConvertError;
use models::{Dense, DenseMatrix, Family, LoadOptions};
use ops::Packing;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use store::checkpoint::INDEX;
use store::checksums::{CHECKSUMS, Checksum};
use store::container::{
    KEY_DENSE, KEY_PACKED, KEY_SOURCE, KEY_VERSION, KEYS, Packed, SOURCES, SourceShard, Sources, VERSION,
};
use store::{Checkpoint, Dtype, ExpertId, FileId};

/// Every expert and every other tensor begins at a multiple of this many bytes of its file.
pub const PAGE_BYTES: u64 = 4096;
/// A file has no more bytes, unless one expert or tensor has.
const FILE_BYTES: u64 = 32_000_000_000;
/// Written bytes after which a drive is asked to keep them and the journal says so.
const SYNC_BYTES: u64 = 256 << 20;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How dense matrices are stored.
    pub dense: Dense,
    /// Only the packed matrices; everything else stays in the source.
    pub thin: bool,
    /// Bytes of a file, at most.
    pub file_bytes: u64,
    /// Bytes that a run may have to write again after a power failure.
    pub sync_bytes: u64,
}

impl Settings {
    /// With the sizes that suit drives.
    #[must_use]
    pub fn new(dense: Dense, thin: bool) -> Self {
        Settings { dense, thin, file_bytes: FILE_BYTES, sync_bytes: SYNC_BYTES }
    }
}

/// A conversion, byte for byte, before anything is written.
pub struct Plan {
    pub(crate) settings: Settings,
    /// Of the source's files and the settings.
    pub(crate) id: Checksum,
    pub(crate) files: Vec<PlannedFile>,
    /// Files of the source that are copied as they are.
    pub(crate) copies: Vec<FileId>,
    /// Of a thin container.
    pub(crate) sources: Option<Sources>,
    /// The index's text.
    pub(crate) index: String,
    identity: String,
}

/// A shard that will be.
pub(crate) struct PlannedFile {
    pub(crate) name: String,
    pub(crate) units: Vec<Unit>,
}

/// What lies in one piece and has one checksum: an expert or a tensor.
pub(crate) struct Unit {
    /// The expert, or the tensor's name.
    pub(crate) what: String,
    /// The tensors, in order.
    pub(crate) tensors: Vec<String>,
    /// How they are packed, if they are.
    pub(crate) packed: Option<(Packing, DenseMatrix)>,
    /// Without padding.
    pub(crate) bytes: u64,
}

impl Unit {
    /// Zeros behind it, up to the next page.
    pub(crate) fn padding(&self) -> u64 {
        self.bytes.next_multiple_of(PAGE_BYTES) - self.bytes
    }

    pub(crate) fn padded(&self) -> u64 {
        self.bytes + self.padding()
    }
}

impl Plan {
    /// Plans the conversion of a model.
    ///
    /// # Errors
    /// A source that is a container already or lacks something, and settings that would write nothing.
    pub fn new(checkpoint: &Checkpoint, family: &Family, settings: Settings) -> Result<Self, ConvertError> {
        if let Some(container) = checkpoint.container() {
            return Err(ConvertError::Settings(format!(
                "the source is a container already, with dense weights as {}; convert the model it was made from",
                container.dense
            )));
        }
        let options = LoadOptions { dense: settings.dense, ..LoadOptions::default() };
        let (_, tally) = family.load(checkpoint, None, &options, &mut |_| {})?;
        family.catalog(checkpoint, None)?; // every expert is there, in its shape
        let packed = packed_units(settings.dense, tally.packed);
        if settings.thin && packed.is_empty() {
            return Err(ConvertError::Settings(
                "a thin container holds packed dense weights only, and with --dense bf16 none are packed: take int8 or int4, \
                 or leave --thin away"
                    .into(),
            ));
        }
        let units = if settings.thin {
            packed.into_values().collect()
        } else {
            all_units(checkpoint, family, packed)?
        };
        let files = shared_out(family, units, settings.file_bytes);
        let shards = source_shards(checkpoint)?;
        let identity = family.identity(checkpoint)?;
        let id = id(settings, &identity, &shards);
        let sources = if settings.thin { Some(sources(checkpoint, shards)?) } else { None };
        let index = index(checkpoint, &files, settings.thin);
        Ok(Plan { settings, id, files, copies: copies(checkpoint), sources, index, identity })
    }

    /// Bytes of everything that will be written.
    #[must_use]
    pub fn bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let shards: u64 = (0..self.files.len()).map(|number| self.file_bytes(checkpoint, number)).sum();
        let copies = self.copies.iter().filter_map(|file| checkpoint.files().len(*file).ok()).sum::<u64>();
        // A line of the list of checksums has two numbers, a checksum and two names.
        let line = |file: &PlannedFile| {
            file.units.iter().map(|unit| (unit.what.len() + file.name.len() + 64) as u64).sum::<u64>()
        };
        shards + copies + self.index.len() as u64 + self.files.iter().map(line).sum::<u64>() + PAGE_BYTES
    }

    /// How many experts and tensors are written.
    #[must_use]
    pub fn units(&self) -> usize {
        self.files.iter().map(|file| file.units.len()).sum()
    }

    pub(crate) fn file_bytes(&self, checkpoint: &Checkpoint, number: usize) -> u64 {
        let data: u64 = self.files[number].units.iter().map(Unit::padded).sum();
        self.header(checkpoint, number).len() as u64 + data
    }

    /// The header of a shard with its length before it, padded with blanks to whole pages.
    pub(crate) fn header(&self, checkpoint: &Checkpoint, number: usize) -> Vec<u8> {
        let file = &self.files[number];
        let mut metadata = BTreeMap::from([
            ("format".to_owned(), "pt".to_owned()),
            (KEY_VERSION.to_owned(), VERSION.to_string()),
            (KEY_DENSE.to_owned(), self.settings.dense.name().to_owned()),
            (KEY_SOURCE.to_owned(), self.identity.clone()),
        ]);
        let mut tensors = String::new();
        let mut end = 0;
        let mut tensor = |name: &str, dtype: Dtype, shape: &[u64], bytes: u64| {
            let (name, offsets) = (json!(name), [end, end + bytes]);
            end += bytes;
            // Writing to a string cannot fail.
            let _ = write!(
                tensors,
                ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":{offsets:?}}}"
            );
        };
        for (place, unit) in file.units.iter().enumerate() {
            if let Some((packing, matrix)) = &unit.packed {
                let packing = packing.name().to_owned();
                let packed = Packed { packing, rows: matrix.rows, cols: matrix.cols };
                metadata.insert(format!("{KEY_PACKED}{}", matrix.name), packed.text());
                tensor(&matrix.name, Dtype::U8, &[unit.bytes], unit.bytes);
            } else {
                for name in &unit.tensors {
                    // The plan was made from this very table.
                    let Some(entry) = checkpoint.tensor(name) else { continue };
                    tensor(name, entry.dtype, &entry.shape, entry.bytes);
                }
            }
            if unit.padding() > 0 {
                tensor(&padding_name(number, place), Dtype::U8, &[unit.padding()], unit.padding());
            }
        }
        let text = format!("{{\"__metadata__\":{}{tensors}}}", json!(metadata));
        let whole = (8 + text.len() as u64).next_multiple_of(PAGE_BYTES);
        let mut header = (whole - 8).to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        header.resize(whole as usize, b' ');
        header
    }
}

fn padding_name(file: usize, unit: usize) -> String {
    format!("{KEYS}padding.{file}.{unit}")
}

/// Matrices to pack, by name.
fn packed_units(dense: Dense, matrices: Vec<DenseMatrix>) -> BTreeMap<String, Unit> {
    let Some(packing) = dense.packing() else { return BTreeMap::new() };
    let unit = |matrix: DenseMatrix| {
        let bytes = ops::packing::layout(packing, matrix.rows, matrix.cols).bytes;
        let (what, tensors) = (matrix.name.clone(), vec![matrix.name.clone()]);
        (matrix.name.clone(), Unit { what, tensors, packed: Some((packing, matrix)), bytes })
    };
    matrices.into_iter().map(unit).collect()
}

/// Experts, then everything else by name.
fn all_units(
    checkpoint: &Checkpoint,
    family: &Family,
    mut packed: BTreeMap<String, Unit>,
) -> Result<Vec<Unit>, ConvertError> {
    let tensors = family.expert_tensors()?;
    let names: HashSet<&str> = tensors.iter().map(|(_, name)| name.as_str()).collect();
    let others: Vec<&str> = checkpoint.names().filter(|name| !names.contains(name)).collect();
    let unlisted = checkpoint.names().find(|name| name.chars().any(char::is_control));
    if let Some(name) = unlisted {
        return Err(ConvertError::Name(name.to_owned()));
    }
    let mut rest = Vec::new();
    for name in others {
        let bytes = checkpoint.find(name)?.bytes;
        let plain = || Unit { what: name.to_owned(), tensors: vec![name.to_owned()], packed: None, bytes };
        rest.push(packed.remove(name).unwrap_or_else(plain));
    }
    let mut units: Vec<Unit> = Vec::new();
    let mut last: Option<ExpertId> = None;
    for (id, name) in tensors {
        let bytes = checkpoint.find(&name)?.bytes;
        match units.last_mut().filter(|_| last == Some(id)) {
            Some(unit) => {
                unit.tensors.push(name);
                unit.bytes += bytes;
            }
            None => units.push(Unit { what: id.to_string(), tensors: vec![name], packed: None, bytes }),
        }
        last = Some(id);
    }
    units.append(&mut rest);
    Ok(units)
}

/// One file a layer, in ascending order, and what lies outside of layers in the last; more where that would be too large.
fn shared_out(family: &Family, units: Vec<Unit>, most: u64) -> Vec<PlannedFile> {
    let mut layers: BTreeMap<u32, Vec<Unit>> = BTreeMap::new();
    for unit in units {
        let layer = unit.tensors.first().and_then(|name| family.layer_of(name)).unwrap_or(u32::MAX);
        layers.entry(layer).or_default().push(unit);
    }
    let mut files: Vec<Vec<Unit>> = Vec::new();
    for units in layers.into_values() {
        let mut bytes = 0;
        for (place, unit) in units.into_iter().enumerate() {
            bytes += unit.padded();
            if let Some(file) = files.last_mut().filter(|_| place > 0 && bytes <= most) {
                file.push(unit);
            } else {
                bytes = unit.padded();
                files.push(vec![unit]);
            }
        }
    }
    let count = files.len();
    let named = |(units, number): (Vec<Unit>, usize)| PlannedFile {
        name: format!("colibri-{number:05}-of-{count:05}.safetensors"),
        units,
    };
    files.into_iter().zip(1..).map(named).collect()
}

/// Names, lengths and header checksums of the source's shards.
fn source_shards(checkpoint: &Checkpoint) -> Result<BTreeMap<String, SourceShard>, ConvertError> {
    let files = checkpoint.files();
    let mut shards = BTreeMap::new();
    for &shard in checkpoint.shards() {
        let failed = |cause| store::StoreError::Unreadable { path: files.location(shard), cause };
        let mut length = [0; 8];
        files.read_exact_at(shard, 0, &mut length).map_err(failed)?;
        let mut header = vec![0; 8 + u64::from_le_bytes(length) as usize];
        files.read_exact_at(shard, 0, &mut header).map_err(failed)?;
        let (bytes, header) = (files.len(shard).map_err(failed)?, Checksum::of(&header).to_string());
        let name = files.list()[shard.0 as usize].name.clone();
        shards.insert(name, SourceShard { bytes, header });
    }
    Ok(shards)
}

/// Tells conversions from each other: what they read and what they write.
fn id(settings: Settings, identity: &str, shards: &BTreeMap<String, SourceShard>) -> Checksum {
    let Settings { dense, thin, file_bytes, .. } = settings;
    let mut text = format!("{VERSION} {} {thin} {file_bytes} {identity}\n", dense.name());
    for (name, SourceShard { bytes, header }) in shards {
        let _ = writeln!(text, "{name} {bytes} {header}");
    }
    Checksum::of(text.as_bytes())
}

fn sources(checkpoint: &Checkpoint, shards: BTreeMap<String, SourceShard>) -> Result<Sources, ConvertError> {
    let mut directories = Vec::new();
    for directory in checkpoint.files().directories() {
        let path = std::path::Path::new(directory);
        let whole = path.canonicalize().map_err(ConvertError::write("looking at", path))?;
        let shown = whole.to_str().ok_or_else(|| {
            ConvertError::place(&whole, "its name is no Unicode, which a thin container cannot refer to")
        })?;
        directories.push(shown.to_owned());
    }
    Ok(Sources { version: VERSION, directories, shards })
}

/// Small files beside the shards: config, tokenizer and whatever else the release has.
fn copies(checkpoint: &Checkpoint) -> Vec<FileId> {
    let files = checkpoint.files();
    let wanted = |number: &usize| {
        let listed = &files.list()[*number];
        let name = listed.name.as_str();
        let ours = [INDEX, SOURCES, CHECKSUMS].contains(&name) || name.starts_with("colibri-");
        let leftover =
            name.contains(".safetensors") || name.starts_with('.') || store::files::is_leftover(name);
        let plain = files.path(FileId(*number as u32)).is_some_and(std::path::Path::is_file);
        listed.directory == 0 && plain && !ours && !leftover && !name.chars().any(char::is_control)
    };
    (0..files.list().len()).filter(wanted).map(|number| FileId(number as u32)).collect()
}

/// The index: which tensor is in which file, in the order of the names.
fn index(checkpoint: &Checkpoint, files: &[PlannedFile], thin: bool) -> String {
    let mut map: HashMap<String, &str> = HashMap::new();
    let mut total = 0;
    let list = checkpoint.files();
    if thin {
        for (name, entry) in checkpoint.under("") {
            map.insert(name.to_owned(), &list.list()[entry.file.0 as usize].name);
            total += entry.bytes;
        }
    }
    for (number, file) in files.iter().enumerate() {
        for (place, unit) in file.units.iter().enumerate() {
            total += unit.padded();
            for name in &unit.tensors {
                if map.insert(name.clone(), &file.name).is_some() {
                    total -= checkpoint.tensor(name).map_or(0, |entry| entry.bytes);
                }
            }
            if unit.padding() > 0 {
                map.insert(padding_name(number, place), &file.name);
            }
        }
    }
    let mut sorted: Vec<(String, &str)> = map.into_iter().collect();
    sorted.sort_unstable();
    let map: Map<String, Value> = sorted.into_iter().map(|(name, file)| (name, file.into())).collect();
    let mut text = json!({"metadata": {"total_size": total}, "weight_map": map}).to_string();
    text.push('\n');
    text
}
