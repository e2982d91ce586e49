//! A model directory as Hugging Face lays it out, or several that hold one model together: opens it and checks all
//! that can be checked without reading a tensor. Interprets no config and requires no tensor: families do, with the
//! questions in `lookup.rs`.
//!
//! Nothing is ever written into a model directory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::container::{self, Container, Packed, Sources};
use crate::error::{MissingShards, NotInShard, Several, StoreError};
use crate::files::{DiskFiles, FileId, Files, MemoryFiles, find, in_first_directory, is_leftover};
use crate::index::{INDEX_BYTES_MAX, Index};
use crate::read;
use crate::safetensors::{Entry, Header, Named, Shapes, read_header};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Name of the file that says in which shard each tensor lies.
pub const INDEX: &str = "model.safetensors.index.json";

/// Name of the only shard of a model without an index.
pub const SINGLE: &str = "model.safetensors";

/// Largest config we parse; real ones have some kilobytes.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// In the place of a file: the shard that holds a tensor is not there.
pub const ABSENT: FileId = FileId(u32::MAX - 1);

/// An opened checkpoint: the table of its tensors and its configs. Half a million tensors take about 100 MB; when
/// all entries that will be needed are copied out, drop it and keep [`Checkpoint::files`].
pub struct Checkpoint {
    files: Arc<dyn Files>,
    /// Sorted by name, each name once.
    pub(crate) tensors: Vec<Named>,
    /// The checkpoint's own shards.
    pub(crate) shards: Vec<FileId>,
    /// Names in `.safetensors` files that are not shards of the checkpoint; sorted.
    pub(crate) unindexed: Vec<(Box<str>, FileId)>,
    /// Names that the index has in shards that are not there; sorted. Empty unless it was opened for a plan.
    pub(crate) promised: Vec<Box<str>>,
    absent: Option<MissingShards>,
    total_size: Option<u64>,
    config: Value,
    config_bytes: Vec<u8>,
    generation_config: Option<Value>,
    container: Option<Container>,
    notes: Vec<String>,
}

impl Checkpoint {
    /// Opens the model that the directories hold together. The first one must hold `config.json` and, unless the
    /// weights are a single `model.safetensors`, the index; shards may lie in any of them.
    ///
    /// Reads every shard's header and no tensor. A thin container names the directories of the rest itself; who gives
    /// others beside it says that they have moved there.
    ///
    /// ```
    /// # const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
    /// let checkpoint = store::Checkpoint::open(&[DIRECTORY.into()])?;
    /// assert_eq!(checkpoint.config()["model_type"], "kimi_k3");
    /// assert_eq!(checkpoint.shards().len(), 12);
    /// # Ok::<(), store::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// Everything about the files that would make a later read wrong or impossible: see [`StoreError`].
    pub fn open(directories: &[PathBuf]) -> Result<Checkpoint, StoreError> {
        Checkpoint::from_files(Arc::new(DiskFiles::open(&container::directories(directories)?)?))
    }

    /// The same for files in memory, given by name and content.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_memory(files: &[(&str, &'static [u8])]) -> Result<Checkpoint, StoreError> {
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), Cow::Borrowed(*content)));
        Checkpoint::from_files(Arc::new(MemoryFiles::new(files)))
    }

    /// The same for any collection of files.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_files(files: Arc<dyn Files>) -> Result<Checkpoint, StoreError> {
        Checkpoint::opened(files, false)
    }

    /// Opens a model of which shards may be absent or unfinished, as long as its index names them: for plans. What they hold
    /// is known by name only; [`Checkpoint::entry_any`] takes it to be what is asked for, and nothing of it can be read.
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; shards that are there must be good.
    pub fn open_for_plan(directories: &[PathBuf]) -> Result<Checkpoint, StoreError> {
        Checkpoint::opened(Arc::new(DiskFiles::open(&container::directories(directories)?)?), true)
    }

    fn opened(files: Arc<dyn Files>, for_plan: bool) -> Result<Checkpoint, StoreError> {
        let sources = container::sources(&*files)?;
        let mut opening = Opening { files: &*files, for_plan, sources, container: None, notes: Vec::new() };
        let (config, config_bytes) = opening.config()?;
        let generation_config = opening.generation_config()?;
        let index = opening.index()?;
        let (places, absent) = opening.shards(index.as_ref())?;
        let shards: Vec<FileId> = places.iter().flatten().copied().collect();
        let tensors = opening.tensors(&places, index.as_ref())?;
        let promised = match &index {
            Some(index) => opening.compare(index, &places, &tensors)?,
            None => Vec::new(),
        };
        let unindexed = opening.unindexed(&shards, &tensors)?;
        let Opening { notes, container, .. } = opening;
        for note in &notes {
            tracing::info!(?note, "a checkpoint has a peculiarity");
        }
        tracing::info!(directories = ?files.directories(), shards = shards.len(), tensors = tensors.len(), "a checkpoint is open");
        Ok(Checkpoint {
            files,
            tensors,
            shards,
            unindexed,
            promised,
            absent,
            total_size: index.and_then(|index| index.total_size),
            config,
            config_bytes,
            generation_config,
            container,
            notes,
        })
    }

    /// The parsed `config.json`, as it stands there.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The bytes of `config.json`.
    #[must_use]
    pub fn config_bytes(&self) -> &[u8] {
        &self.config_bytes
    }

    /// The parsed `generation_config.json`, if there is one.
    #[must_use]
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// What `colibri convert` noted, if it wrote this checkpoint.
    #[must_use]
    pub fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    /// How the tensor of this name is packed, if it is.
    #[must_use]
    pub fn packed(&self, name: &str) -> Option<&Packed> {
        self.container.as_ref().and_then(|container| container.packed.get(name))
    }

    /// What is odd about the directories but harmless; one sentence each, for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The files under the checkpoint; they stay usable, with the entries' offsets, when it is dropped.
    #[must_use]
    pub fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.files)
    }

    /// The shards, in the order of the index.
    #[must_use]
    pub fn shards(&self) -> &[FileId] {
        &self.shards
    }

    /// The shards that are not there; None of a whole checkpoint, which every one is that was not opened for a plan.
    #[must_use]
    pub fn absent(&self) -> Option<&MissingShards> {
        self.absent.as_ref()
    }

    /// Bytes of all tensors, as the index says.
    #[must_use]
    pub fn total_size(&self) -> Option<u64> {
        self.total_size
    }

    /// Directory and name of a file, for messages.
    #[must_use]
    pub fn file_name(&self, file: FileId) -> String {
        self.files.location(file)
    }

    /// A whole metadata file of the first directory, such as the tokenizer's; `None` when it is not there.
    ///
    /// # Errors
    /// It is empty, larger than `limit` bytes, or cannot be read.
    pub fn metadata_file(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let file = in_first_directory(&*self.files, name);
        file.map(|file| read::whole(&*self.files, file, limit)).transpose()
    }
}

/// The shards by their places in the index, as far as they are there; and those that are not.
type FoundShards = (Vec<Option<FileId>>, Option<MissingShards>);

/// A checkpoint being opened.
struct Opening<'f> {
    files: &'f dyn Files,
    /// Whether shards may be absent.
    for_plan: bool,
    /// Shards that a thin container refers to.
    sources: Option<Sources>,
    container: Option<Container>,
    notes: Vec<String>,
}

impl Opening<'_> {
    fn first_directory(&self) -> String {
        self.files.directories().first().cloned().unwrap_or_default()
    }

    fn json(&self, file: FileId) -> Result<(Value, Vec<u8>), StoreError> {
        let bytes = read::whole(self.files, file, CONFIG_BYTES_MAX)?;
        let value: Value = read::json(read::Unambiguous, &bytes, &self.files.location(file))?;
        if !value.is_object() {
            let reason = "it should be a JSON object".to_owned();
            return Err(StoreError::Json { path: self.files.location(file), reason });
        }
        Ok((value, bytes))
    }

    fn config(&self) -> Result<(Value, Vec<u8>), StoreError> {
        if let Some(file) = in_first_directory(self.files, CONFIG) {
            return self.json(file);
        }
        let advice = match find(self.files, CONFIG).next() {
            Some(file) => format!("{} is: name that directory first", self.files.location(file)),
            None => "is this a model's folder? If so, download the file from the release".to_owned(),
        };
        Err(StoreError::FileAbsent { name: CONFIG.to_owned(), directory: self.first_directory(), advice })
    }

    fn generation_config(&self) -> Result<Option<Value>, StoreError> {
        let file = in_first_directory(self.files, GENERATION_CONFIG);
        file.map(|file| self.json(file).map(|(value, _)| value)).transpose()
    }

    fn index(&self) -> Result<Option<Index>, StoreError> {
        let Some(file) = in_first_directory(self.files, INDEX) else { return Ok(None) };
        let bytes = read::whole(self.files, file, INDEX_BYTES_MAX)?;
        Index::parse(&bytes, &self.files.location(file)).map(Some)
    }

    /// The files that hold the weights, in the order of the index, and what is said of those that are not there.
    fn shards(&self, index: Option<&Index>) -> Result<FoundShards, StoreError> {
        let places = self.places();
        let single = [Box::from(SINGLE)];
        let names = index.map_or(&single[..], |index| &index.shards);
        let mut shards = Vec::with_capacity(names.len());
        for name in names {
            match places.get(&**name).map_or(&[][..], Vec::as_slice) {
                [] => shards.push(None),
                [file] => shards.push(Some(*file)),
                [first, second, ..] => {
                    let (first, second) = (self.files.location(*first), self.files.location(*second));
                    return Err(StoreError::DuplicateShard { first, second });
                }
            }
        }
        if !self.for_plan && shards.contains(&None) {
            return Err(match index {
                Some(index) => StoreError::MissingShards(Box::new(self.missing_shards(index, &shards))),
                None => self.no_weights(),
            });
        }
        for shard in &mut shards {
            let Some(file) = *shard else { continue };
            match self.refuse_unfinished(file, &places) {
                Err(_) if self.for_plan => *shard = None,
                judged => judged?,
            }
        }
        let absent = match index {
            Some(index) if shards.contains(&None) => Some(self.missing_shards(index, &shards)),
            None if shards.contains(&None) => return Err(self.no_weights()),
            _ => None,
        };
        Ok((shards, absent))
    }

    /// All files by plain name.
    fn places(&self) -> HashMap<&str, Vec<FileId>> {
        let mut places: HashMap<&str, Vec<FileId>> = HashMap::new();
        for (place, listed) in self.files.list().iter().enumerate() {
            places.entry(&listed.name).or_default().push(FileId(place as u32));
        }
        places
    }

    fn missing_shards(&self, index: &Index, found: &[Option<FileId>]) -> MissingShards {
        let absent = |place: u32| found[place as usize].is_none();
        let named = index.shards.iter().zip(found);
        let mut shards: Vec<String> =
            named.filter(|(_, file)| file.is_none()).map(|(name, _)| name.to_string()).collect();
        shards.sort_unstable();
        MissingShards {
            index: self.index_location(),
            shards,
            named: index.shards.len(),
            tensors: index.tensors.iter().filter(|(_, place)| absent(*place)).count(),
            directories: self.files.directories().to_vec(),
            leftovers: self.files.leftovers(),
        }
    }

    fn no_weights(&self) -> StoreError {
        let shards = self.files.list().iter().filter(|listed| listed.name.ends_with(".safetensors")).count();
        StoreError::NoWeights { directory: self.first_directory(), shards }
    }

    /// aria2 reserves a file's whole length at once; only its control file beside tells that it is not filled.
    fn refuse_unfinished(
        &self,
        shard: FileId,
        places: &HashMap<&str, Vec<FileId>>,
    ) -> Result<(), StoreError> {
        let listed = &self.files.list()[shard.0 as usize];
        let beside = |file: &&FileId| self.files.list()[file.0 as usize].directory == listed.directory;
        let control = format!("{}.aria2", listed.name);
        match places.get(control.as_str()).and_then(|files| files.iter().find(beside)) {
            None => Ok(()),
            Some(&control) => Err(StoreError::UnfinishedDownload {
                path: self.files.location(shard),
                leftover: self.files.location(control),
            }),
        }
    }

    /// The tensors of all shards, sorted by name.
    fn tensors(
        &mut self,
        shards: &[Option<FileId>],
        index: Option<&Index>,
    ) -> Result<Vec<Named>, StoreError> {
        let mut shapes = Shapes::default();
        let mut tensors = Vec::new();
        let mut faults = Vec::new();
        for (place, shard) in shards.iter().enumerate() {
            let Some(shard) = *shard else { continue };
            let header = read_header(self.files, shard, &mut shapes);
            match header.and_then(|header| self.take(header, shard, (place as u32, index))) {
                Ok(mut found) => tensors.append(&mut found),
                // A failing drive is not asked again, shard after shard.
                Err(fault @ StoreError::Read { .. }) => return Err(fault),
                // All the other damaged shards are named at once: each may be an hour's download.
                Err(fault) => faults.push(fault),
            }
        }
        match faults.len() {
            0 => {}
            1 => return Err(faults.remove(0)),
            _ => return Err(StoreError::Several(Several { faults })),
        }
        // A stable sort makes use of the order that headers usually have already.
        tensors.sort_by(|one, other| one.0.cmp(&other.0));
        match tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            None => Ok(tensors),
            Some(pair) => Err(StoreError::DuplicateTensor {
                tensor: pair[0].0.to_string(),
                first: self.files.location(pair[0].1.file),
                second: self.files.location(pair[1].1.file),
            }),
        }
    }

    /// The tensors of a shard that count: all, or of a shard of the source of a thin container those that the index takes
    /// from it.
    fn take(
        &mut self,
        header: Header,
        shard: FileId,
        (place, index): (u32, Option<&Index>),
    ) -> Result<Vec<Named>, StoreError> {
        let listed = &self.files.list()[shard.0 as usize];
        let Header { mut tensors, metadata, checksum, bytes } = header;
        match &self.sources {
            Some(sources) if listed.directory > 0 => {
                sources.check(&listed.name, bytes, checksum, &self.files.location(shard))?;
                tensors.retain(|(name, _)| index.is_some_and(|index| index.shard_of(name) == Some(place)));
            }
            _ => container::note(&mut self.container, &metadata, &self.files.location(shard))?,
        }
        Ok(tensors)
    }

    /// Every tensor lies in the shard that the index names for it; those whose shard is not there. Both lists are sorted by
    /// name.
    fn compare(
        &mut self,
        index: &Index,
        shards: &[Option<FileId>],
        tensors: &[Named],
    ) -> Result<Vec<Box<str>>, StoreError> {
        let mut promised = Vec::new();
        let mut rest = tensors;
        let mut first: Option<(&str, u32, Option<FileId>)> = None;
        let mut count = 0;
        let mut listed = 0;
        for (name, place) in &index.tensors {
            rest = &rest[rest.iter().take_while(|(other, _)| other < name).count()..];
            let found = rest.first().filter(|(other, _)| other == name).map(|(_, entry)| entry.file);
            listed += usize::from(found.is_some());
            let shard = shards[*place as usize];
            if found.is_none() && shard.is_none() {
                promised.push(name.clone());
            } else if found != shard {
                first = first.or(Some((name, *place, found)));
                count += 1;
            }
        }
        if let Some((tensor, place, found)) = first {
            return Err(StoreError::NotInShard(Box::new(NotInShard {
                index: self.index_location(),
                tensor: tensor.to_owned(),
                shard: shards[place as usize].map_or_else(
                    || index.shards[place as usize].to_string(),
                    |shard| self.files.location(shard),
                ),
                elsewhere: found.map(|file| self.files.location(file)),
                count,
            })));
        }
        if listed < tensors.len() {
            let more = tensors.len() - listed;
            self.notes.push(format!("the shards hold {more} tensors that the index does not list"));
        }
        let total: u64 = tensors.iter().map(|(_, entry)| entry.bytes).fold(0, u64::saturating_add);
        let is_whole = promised.is_empty();
        if let Some(expected) = index.total_size.filter(|&expected| is_whole && expected != total) {
            self.notes.push(format!("the index says {expected} bytes in all, the shards hold {total}"));
        }
        Ok(promised)
    }

    fn index_location(&self) -> String {
        in_first_directory(self.files, INDEX).map(|file| self.files.location(file)).unwrap_or_default()
    }

    /// Looks into the `.safetensors` files that are not shards: one that holds the same names makes it a matter of
    /// luck which weights are used; any other is noted, and remembered to explain a missing tensor.
    fn unindexed(
        &mut self,
        shards: &[FileId],
        tensors: &[Named],
    ) -> Result<Vec<(Box<str>, FileId)>, StoreError> {
        let mut names = Vec::new();
        for (place, listed) in self.files.list().iter().enumerate() {
            let file = FileId(place as u32);
            if is_leftover(&listed.name) && listed.name.contains(".safetensors") {
                let path = self.files.location(file);
                self.notes.push(format!("{path} is ignored: it is left over from a download"));
            }
            // What else lies in the source of a thin container is not of this model.
            let elsewhere = self.sources.is_some() && listed.directory > 0;
            if elsewhere || !listed.name.ends_with(".safetensors") || shards.contains(&file) {
                continue;
            }
            let path = self.files.location(file);
            let Ok(Header { tensors: found, .. }) = read_header(self.files, file, &mut Shapes::default())
            else {
                self.notes
                    .push(format!("{path} is ignored: it is not one of the shards, nor readable as one"));
                continue;
            };
            let known = |(name, _): &&Named| lookup(tensors, name).is_some();
            let mut same = found.iter().filter(known);
            if let Some((tensor, _)) = same.next() {
                let index = match self.index_location() {
                    index if index.is_empty() => self.files.location(shards[0]),
                    index => index,
                };
                let (tensor, count) = (tensor.to_string(), 1 + same.count());
                return Err(StoreError::UnindexedShard { path, index, tensor, count });
            }
            self.notes.push(format!("{path} is ignored: the index does not name it"));
            names.extend(found.into_iter().map(|(name, _)| (name, file)));
        }
        names.sort();
        Ok(names)
    }
}

/// The entry of a name in a sorted table.
pub(crate) fn lookup<'t>(tensors: &'t [Named], name: &str) -> Option<&'t Entry> {
    let place = tensors.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
    Some(&tensors[place].1)
}
