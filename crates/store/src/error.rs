//! What can go wrong between a model directory and its bytes. Each error names file and tensor, what was expected
//! and what was found, the likely cause and what to do. Knows no tensor's meaning and decides nothing.

mod details;

use std::io;

use crate::content::Content;
use crate::safetensors::Dtype;
pub use details::{MissingShards, MissingTensor, NotInShard, Several, TensorSize, Truncated};

/// Everything that can be wrong with a checkpoint on disk, or with a question put to it.
///
/// The messages are complete: a cause from the system is part of the text, not a further link of a chain.
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
    #[error("the model directory {directory} cannot be read: {cause}; check its permissions and the drive")]
    DirectoryUnreadable {
        /// The path that was given.
        directory: String,
        /// What the system said.
        cause: io::Error,
    },
    /// One directory was given twice, perhaps by two paths.
    #[error("{first} and {second} are the same directory; name each directory of the model once")]
    SameDirectory {
        /// The path given first.
        first: String,
        /// The path given second.
        second: String,
    },
    /// Weights that cannot be read where they lie.
    #[error("{what}; take --dense-residency ram")]
    Mapping {
        /// Which file, and why.
        what: String,
    },
    /// A mirror that is none.
    #[error(
        "{shard} {what}: a mirror has the same shards under the same names; copy it again or leave --mirror away"
    )]
    Mirror {
        /// The model's own shard.
        shard: String,
        /// How the mirror's differs.
        what: String,
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
    #[error("{path} cannot be opened: {cause}; check its permissions and the drive it lies on")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        cause: io::Error,
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
    /// The system failed a read each time it was tried.
    #[error(
        "reading {bytes} bytes of {path} at offset {offset} failed {attempts} times: {cause}; the files need not be \
         wrong: check the drive, its cable and the system log before downloading anything again"
    )]
    Read {
        /// The file.
        path: String,
        /// First byte that did not come.
        offset: u64,
        /// Length of what did not come.
        bytes: u64,
        /// How often it was tried.
        attempts: u32,
        /// What the system said.
        cause: io::Error,
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
        "{path} is not one of the checkpoint's shards (they are given by {index}), yet holds {count} of the same \
         tensors (first: {tensor}); one of the two is stale: move the file out of the directory, or get the index that belongs to it"
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
        "{path} says that its header has {found} bytes, where 2 to {limit} are possible (file of {len} bytes); it \
         is damaged or not a safetensors file: download it anew"
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
    /// Several shards are damaged, each in its own way.
    #[error("{0}")]
    Several(Several),
    /// A tensor's name occurs twice.
    #[error(
        "tensor {tensor} occurs twice, {}", if first == second {
            format!("both times in {first}; its header is damaged: download the file anew")
        } else {
            format!("in {first} and in {second}; files of two releases or conversions are mixed: keep those of one")
        }
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
    /// A container that a later program wrote.
    #[error(
        "{path} is a container of version {found}, and this program knows versions up to {known}: use the program that \
         wrote it or a newer one, or make the container again with `colibri convert`"
    )]
    ContainerVersion {
        /// The file that says so.
        path: String,
        /// Its version.
        found: String,
        /// The newest that is known.
        known: u32,
    },
    /// What a container says of itself is not what this version writes.
    #[error("{path}: {what}; the file is damaged: make the container again with `colibri convert`")]
    Container {
        /// The file.
        path: String,
        /// Which field, what was found, what was expected.
        what: String,
    },
    /// Where a thin container's source was there is nothing.
    #[error(
        "the thin container {container} takes its experts from {directory}, which is not there; if it was moved, give its new \
         place as a second --model, or make the container again with `colibri convert --thin`"
    )]
    SourceMoved {
        /// The container's directory.
        container: String,
        /// The source's.
        directory: String,
    },
    /// A shard of a thin container's source is another one than when the container was made.
    #[error(
        "{path} has changed since the thin container was made from it ({what}); put the old file back, or make the container \
         again with `colibri convert --thin`"
    )]
    SourceChanged {
        /// The shard.
        path: String,
        /// What differs.
        what: String,
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

fn either(choices: impl Iterator<Item = String>) -> String {
    choices.collect::<Vec<_>>().join(" or ")
}
