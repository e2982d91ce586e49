//! What can go wrong between a model directory and its bytes. Each error names file and tensor, what was expected
//! and what was found, the likely cause and what to do. Knows no tensor's meaning and decides nothing.

use std::fmt;
use std::io;

use crate::content::Content;
use crate::safetensors::Dtype;

/// Everything that can be wrong with a checkpoint on disk, or with a question put to it.
///
/// `path`, `shard`, `index` and the like are full paths as shown to people.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The list of directories is empty.
    #[error(
        "no model directory was given; name the folder that holds config.json and the .safetensors files"
    )]
    NoDirectory,
    /// A directory does not exist.
    #[error("the model directory {directory} does not exist; is the drive mounted, the path spelled right?")]
    DirectoryAbsent {
        /// The path that was given.
        directory: String,
    },
    /// A file was given where a directory belongs.
    #[error("{path} is not a directory; give the folder that holds config.json and the .safetensors files")]
    NotADirectory {
        /// The path that was given.
        path: String,
    },
    /// A directory cannot be listed.
    #[error("the model directory {directory} cannot be read: {source}; check its permissions and the drive")]
    DirectoryUnreadable {
        /// The path that was given.
        directory: String,
        /// What the system said.
        source: io::Error,
    },
    /// One directory was given twice, perhaps by two paths.
    #[error("{first} and {second} are the same directory; name each directory of the model once")]
    SameDirectory {
        /// The path given first.
        first: String,
        /// The path given second.
        second: String,
    },
    /// A metadata file is not in the first directory.
    #[error("{name} is not in {directory}; {advice}")]
    FileAbsent {
        /// Plain name of the file.
        name: String,
        /// The first directory.
        directory: String,
        /// What to do.
        advice: String,
    },
    /// There is neither an index nor a single model.safetensors.
    #[error(
        "{directory} holds no model.safetensors.index.json, and no given directory holds a model.safetensors \
         ({shards} other .safetensors files were seen); the index is part of the release: download it into the \
         first directory"
    )]
    NoWeights {
        /// The first directory.
        directory: String,
        /// How many `.safetensors` files the directories hold.
        shards: usize,
    },
    /// A file cannot be opened or measured.
    #[error("{path} cannot be opened: {source}; check its permissions and the drive it lies on")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A symbolic link leads nowhere.
    #[error(
        "{path} is a link to {target}, which does not exist; the download cache was moved or cleaned, or its drive \
         is not mounted: restore it or download the file anew"
    )]
    BrokenLink {
        /// The link.
        path: String,
        /// Where it points.
        target: String,
    },
    /// The system failed a read.
    #[error(
        "reading {bytes} bytes of {path} at offset {offset} failed: {source}; the files need not be wrong: check \
         the drive, its cable and the system log before downloading anything again"
    )]
    Read {
        /// The file.
        path: String,
        /// First byte of the read.
        offset: u64,
        /// Length of the read.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file is shorter than it was when it was opened.
    #[error(
        "{path} became shorter while it was in use: {bytes} bytes at offset {offset} are no longer all there; stop \
         whatever writes to it, then start again"
    )]
    ShortRead {
        /// The file.
        path: String,
        /// First byte of the read.
        offset: u64,
        /// Length of the read.
        bytes: u64,
    },
    /// A file has no bytes.
    #[error("{path} is empty (0 bytes); its download failed: download it anew")]
    EmptyFile {
        /// The file.
        path: String,
    },
    /// A file holds something else than its name says.
    #[error("{path} should be {expected}, but is {found}")]
    WrongContent {
        /// The file.
        path: String,
        /// What belongs there.
        expected: &'static str,
        /// What lies there.
        found: Content,
    },
    /// A metadata file is larger than any real one.
    #[error(
        "{path} has {found} bytes; a file of this name may have {limit} at most: it is not what its name says"
    )]
    FileTooLarge {
        /// The file.
        path: String,
        /// Its length.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A JSON file does not parse, or not to what it should hold.
    #[error(
        "{path} is damaged or not of the expected form: {reason}; compare it with the release and download it anew"
    )]
    Json {
        /// The file.
        path: String,
        /// What is wrong, with line and column.
        reason: String,
    },
    /// The index names a shard by something that is not a plain file name.
    #[error(
        "{index} says that tensor {tensor} lies in {name:?}, which {reason}; a shard must be named by a plain file \
         name: get the index from the release"
    )]
    ShardName {
        /// The index.
        index: String,
        /// A tensor it places there.
        tensor: String,
        /// The name it gives.
        name: String,
        /// What is wrong with the name.
        reason: &'static str,
    },
    /// The index lists one name twice.
    #[error("{index} lists tensor {tensor} twice; get the index from the release")]
    IndexDuplicate {
        /// The index.
        index: String,
        /// The tensor.
        tensor: String,
    },
    /// Shards that the index names are in none of the directories.
    #[error("{0}")]
    MissingShards(Box<MissingShards>),
    /// One shard name lies in two directories.
    #[error(
        "the shard lies in two places, {first} and {second}, and nothing says which one is right; move one of them \
         out of the model's directories"
    )]
    DuplicateShard {
        /// The file in the earlier directory.
        first: String,
        /// The file in the later directory.
        second: String,
    },
    /// A downloader's control file says that the shard is not complete.
    #[error(
        "{path} is not complete: {leftover} beside it belongs to an unfinished download; let the download finish"
    )]
    UnfinishedDownload {
        /// The shard.
        path: String,
        /// The downloader's file.
        leftover: String,
    },
    /// A file that is not one of the checkpoint's shards holds some of its tensors.
    #[error(
        "{path} is not one of the shards that {index} names, yet holds {count} of the same tensors (first: \
         {tensor}); one of the two is stale: move the file out of the directory, or get the index that belongs to it"
    )]
    UnindexedShard {
        /// The file.
        path: String,
        /// The index, or the single model.safetensors.
        index: String,
        /// A tensor in both.
        tensor: String,
        /// How many are in both.
        count: usize,
    },
    /// The first eight bytes of a shard give an impossible header length.
    #[error(
        "{path} says that its header has {found} bytes, but {limit} is the most it can have here (file of {len} \
         bytes); it is damaged or not a safetensors file: download it anew"
    )]
    HeaderLength {
        /// The shard.
        path: String,
        /// The length it claims.
        found: u64,
        /// The most that is possible.
        limit: u64,
        /// Length of the file.
        len: u64,
    },
    /// A shard ends before its header does.
    #[error(
        "{path} ends inside its own header: it has {found} bytes, {} are missing before the first tensor; the \
         download was cut: resume it or download the file anew", needed - found
    )]
    TruncatedHeader {
        /// The shard.
        path: String,
        /// Bytes up to the end of the header.
        needed: u64,
        /// Length of the file.
        found: u64,
    },
    /// A shard's header is not what the format says.
    #[error("the header of {path} is damaged: {reason}; download the file anew")]
    Header {
        /// The shard.
        path: String,
        /// What is wrong, with the tensor, line and column.
        reason: String,
    },
    /// A tensor has a type that we do not know.
    #[error(
        "tensor {tensor} in {path} has the unknown type {dtype:?}; the file is damaged, or its format newer than \
         this program"
    )]
    UnknownDtype {
        /// The shard.
        path: String,
        /// The tensor.
        tensor: String,
        /// The type's name in the file.
        dtype: String,
    },
    /// A tensor's place in the file is not a range.
    #[error(
        "tensor {tensor} in {path} has the offsets {begin} to {end}, which is not a range; download the file anew"
    )]
    Offsets {
        /// The shard.
        path: String,
        /// The tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// Shape and type of a tensor do not give the number of its bytes.
    #[error("{0}")]
    TensorSize(Box<TensorSize>),
    /// Two tensors of a shard share bytes.
    #[error(
        "tensors {first} and {second} in {path} share bytes; the header is damaged: download the file anew"
    )]
    Overlap {
        /// The shard.
        path: String,
        /// The tensor that begins first.
        first: String,
        /// The tensor that begins inside it.
        second: String,
    },
    /// A shard is shorter than its header says.
    #[error("{0}")]
    Truncated(Box<Truncated>),
    /// A shard is longer than its header says.
    #[error(
        "{path} has {found} bytes, {} more than its header accounts for; a resumed download may have written \
         part of it twice: download it anew", found - expected
    )]
    TrailingBytes {
        /// The shard.
        path: String,
        /// Length according to the header.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// A tensor's name occurs twice.
    #[error(
        "tensor {tensor} occurs twice, in {first} and in {second}; files of two releases or conversions are mixed: \
         keep those of one"
    )]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other shard, or the same one.
        second: String,
    },
    /// A tensor is not in the shard that the index names for it.
    #[error("{0}")]
    NotInShard(Box<NotInShard>),
    /// No shard holds a tensor that is needed.
    #[error("{0}")]
    MissingTensor(Box<MissingTensor>),
    /// A tensor has another shape than is needed.
    #[error(
        "tensor {tensor} in {path} has the shape {found:?}, expected {}; the config does not belong to these \
         weights, or the conversion went wrong", either(expected.iter().map(|shape| format!("{shape:?}")))
    )]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Its shard.
        path: String,
        /// Its shape.
        found: Vec<u64>,
        /// The shapes that will do.
        expected: Vec<Vec<u64>>,
    },
    /// A tensor has another type than is needed.
    #[error(
        "tensor {tensor} in {path} has the type {found}, expected {}; this is another quantization or conversion of \
         the model than the one that is supported", either(expected.iter().map(Dtype::to_string))
    )]
    WrongDtype {
        /// The tensor.
        tensor: String,
        /// Its shard.
        path: String,
        /// Its type.
        found: Dtype,
        /// The types that will do.
        expected: Vec<Dtype>,
    },
    /// A read was asked for that does not fit the tensor.
    #[error("bytes {start} to {end} were asked of a tensor in {path} that has {bytes}")]
    Range {
        /// The shard.
        path: String,
        /// First byte, counted from the tensor's first.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// The tensor's length.
        bytes: u64,
    },
    /// There is no memory for a tensor.
    #[error(
        "there is no memory for a tensor of {bytes} bytes from {path}; close other programs or use a smaller model"
    )]
    OutOfMemory {
        /// The shard.
        path: String,
        /// The tensor's length.
        bytes: u64,
    },
}

/// Details of [`StoreError::MissingShards`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingShards {
    /// The index that names them.
    pub index: String,
    /// Plain names of the missing shards.
    pub shards: Vec<String>,
    /// How many shards the index names.
    pub named: usize,
    /// How many tensors lie in the missing ones.
    pub tensors: usize,
    /// Where they were looked for.
    pub directories: Vec<String>,
    /// Unfinished downloads that were seen.
    pub leftovers: Vec<String>,
}

impl fmt::Display for MissingShards {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingShards { index, shards, named, tensors, directories, leftovers } = self;
        write!(
            out,
            "{} of the {named} shards that {index} names are missing, with {tensors} tensors: {}; looked in {}",
            shards.len(),
            some(shards, 100),
            some(directories, 100)
        )?;
        if leftovers.is_empty() {
            return write!(out, "; download them, or add the directory that holds them");
        }
        write!(out, "; unfinished downloads were seen: {}: let the download finish", some(leftovers, 8))
    }
}

/// Details of [`StoreError::TensorSize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSize {
    /// The shard.
    pub path: String,
    /// The tensor.
    pub tensor: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Bytes by shape and type; `None` when that is not a whole number of bytes below 2^64.
    pub expected: Option<u64>,
    /// Bytes by its offsets.
    pub found: u64,
}

impl fmt::Display for TensorSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorSize { path, tensor, dtype, shape, expected, found } = self;
        write!(out, "tensor {tensor} in {path} is {dtype} {shape:?}, ")?;
        match expected {
            Some(bytes) => write!(out, "which takes {bytes} bytes, but its offsets give it {found}")?,
            None => write!(out, "which is no possible size; its offsets give it {found} bytes")?,
        }
        write!(out, "; the header is damaged: download the file anew")
    }
}

/// Details of [`StoreError::Truncated`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// The shard.
    pub path: String,
    /// Length according to the header.
    pub expected: u64,
    /// Length of the file.
    pub found: u64,
    /// The tensors that are cut or absent, in the order of the file; the first eight of them.
    pub tensors: Vec<String>,
    /// How many tensors are cut or absent.
    pub count: usize,
}

impl fmt::Display for Truncated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Truncated { path, expected, found, tensors, count } = self;
        write!(
            out,
            "{path} is cut: it has {found} bytes, {} of {expected} are missing, and with them all or part of {count} \
             tensors, from {} on; the download was not finished or the drive ran full: resume it or download the \
             file anew",
            expected - found,
            tensors.first().map_or("", String::as_str)
        )
    }
}

/// Details of [`StoreError::NotInShard`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInShard {
    /// The index.
    pub index: String,
    /// The first such tensor, by name.
    pub tensor: String,
    /// The shard in which it should be.
    pub shard: String,
    /// The shard in which it is, if there is one.
    pub elsewhere: Option<String>,
    /// How many tensors are not in their shards.
    pub count: usize,
}

impl fmt::Display for NotInShard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotInShard { index, tensor, shard, elsewhere, count } = self;
        write!(out, "{index} says that tensor {tensor} lies in {shard}, but ")?;
        match elsewhere {
            Some(other) => write!(out, "it lies in {other}")?,
            None => write!(out, "neither this nor any other shard holds it")?,
        }
        write!(
            out,
            " ({count} tensors are misplaced or missing in all); the index and the shards are of different "
        )?;
        write!(out, "releases or conversions, or a conversion dropped it: get both from the same place")
    }
}

/// Details of [`StoreError::MissingTensor`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTensor {
    /// The name that was asked for.
    pub tensor: String,
    /// The longest beginning of the name, up to a dot, under which there are tensors; may be empty.
    pub nearest: String,
    /// The shards in which those tensors lie; the first eight of them.
    pub shards: Vec<String>,
    /// A file that holds the tensor without being one of the checkpoint's shards.
    pub unindexed: Option<String>,
    /// Shards that should exist by the numbering of the others' names.
    pub absent_numbers: Vec<String>,
}

impl fmt::Display for MissingTensor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissingTensor { tensor, nearest, shards, unindexed, absent_numbers } = self;
        write!(out, "tensor {tensor} is missing")?;
        if let Some(path) = unindexed {
            return write!(
                out,
                "; {path} holds it, but the index does not name that file: get the release's index"
            );
        }
        if !nearest.is_empty() {
            write!(out, "; its nearest relations, {nearest}*, lie in {}", some(shards, 8))?;
        }
        if !absent_numbers.is_empty() {
            return write!(
                out,
                "; by the numbering of the files, {} should exist too, and the index knows nothing of them: get the \
                 release's index and the missing files",
                some(absent_numbers, 8)
            );
        }
        if nearest.is_empty() {
            return write!(out, "; no name begins like it: the config does not belong to these weights");
        }
        write!(
            out,
            "; a conversion dropped it, or the config does not belong to these weights: get both anew"
        )
    }
}

/// The first `limit` names and how many more there are.
pub(crate) fn some(names: &[String], limit: usize) -> String {
    let shown = names[..names.len().min(limit)].join(", ");
    match names.len().saturating_sub(limit) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn either(choices: impl Iterator<Item = String>) -> String {
    choices.collect::<Vec<_>>().join(" or ")
}
