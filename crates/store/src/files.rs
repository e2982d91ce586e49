//! Named files with positioned reads: the one door through which checkpoint bytes come in, whether they lie in
//! directories on several drives or inside the binary. Knows no format; never writes anything.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::StoreError;
use crate::reader;

/// A file of a [`Files`] collection: its place in [`Files::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// One file, as a directory lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// The plain name, without any directory.
    pub name: String,
    /// Which of [`Files::directories`] it lies in.
    pub directory: usize,
}

/// A fixed set of named files that are read by position. Tests put faults behind it.
pub trait Files: Send + Sync {
    /// The directories, as they are shown to people. The first one holds the metadata (config, index, tokenizer).
    fn directories(&self) -> &[String];

    /// All files; a [`FileId`] is an index into this list. Sorted by directory, then by name.
    fn list(&self) -> &[ListedFile];

    /// Length of a file in bytes.
    ///
    /// # Errors
    /// Whatever the system says; also when the name leads to something that is not a regular file.
    fn len(&self, file: FileId) -> io::Result<u64>;

    /// Reads up to `into.len()` bytes from `offset` on and says how many came. 0 means the end of the file (or an
    /// empty `into`). May be called from many threads at once.
    ///
    /// # Errors
    /// Whatever the system says, including `Interrupted`.
    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Where the file lies on disk, for readers that open it their own way; `None` when it lies in memory.
    fn path(&self, file: FileId) -> Option<&Path>;

    /// Unfinished downloads that were seen beside the files. Called only to explain an absent file.
    fn leftovers(&self) -> Vec<String> {
        let listed = self.list().iter().filter(|listed| is_leftover(&listed.name));
        listed.map(|listed| listed.name.clone()).collect()
    }

    /// Directory and name of a file, for messages.
    fn location(&self, file: FileId) -> String {
        if let Some(path) = self.path(file) {
            return path.display().to_string();
        }
        self.list().get(file.0 as usize).map_or_else(|| format!("{file:?}"), |listed| listed.name.clone())
    }

    /// Fills all of `into` from `offset` on, as [`reader::read_exact`] does.
    ///
    /// # Errors
    /// A [`ReadError`](reader::ReadError) in an [`io::Error`]; its kind is `UnexpectedEof` when the file ends first.
    fn read_exact_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        Ok(reader::read_exact(&self, file.0, offset, into)?)
    }
}

fn no_such_file(file: FileId) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{file:?} is not in this list of files"))
}

/// The ids of all files of this name, in the order of the directories.
pub fn find<'f>(files: &'f dyn Files, name: &'f str) -> impl Iterator<Item = FileId> + 'f {
    let matching = files.list().iter().enumerate().filter(move |(_, listed)| listed.name == name);
    matching.map(|(place, _)| FileId(place as u32))
}

/// The file of this name in the first directory: the metadata belongs together, so only one directory is asked for it.
pub fn in_first_directory(files: &dyn Files, name: &str) -> Option<FileId> {
    find(files, name).find(|file| files.list()[file.0 as usize].directory == 0)
}

/// Suffixes that downloaders give to files they have not finished.
const LEFTOVER_SUFFIXES: [&str; 7] =
    [".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp"];

/// Whether a downloader left a file of this name unfinished.
#[must_use]
pub fn is_leftover(name: &str) -> bool {
    LEFTOVER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Files in directories. Each file is opened at its first read and then stays open: one handle a shard at most.
pub struct DiskFiles {
    directories: Vec<String>,
    folders: Vec<PathBuf>,
    list: Vec<ListedFile>,
    paths: Vec<PathBuf>,
    handles: Vec<OnceLock<File>>,
}

impl DiskFiles {
    /// Lists the directories (not their subdirectories). Opens no file.
    ///
    /// # Errors
    /// No directory given; one that is absent, unreadable, no directory, or the same as another one.
    pub fn open(directories: &[PathBuf]) -> Result<Self, StoreError> {
        if directories.is_empty() {
            return Err(StoreError::NoDirectory);
        }
        refuse_same(directories)?;
        let mut files = DiskFiles {
            directories: directories.iter().map(|directory| directory.display().to_string()).collect(),
            folders: directories.to_vec(),
            list: Vec::new(),
            paths: Vec::new(),
            handles: Vec::new(),
        };
        for (place, directory) in directories.iter().enumerate() {
            for name in list_directory(directory)? {
                files.paths.push(directory.join(&name));
                files.list.push(ListedFile { name, directory: place });
                files.handles.push(OnceLock::new());
            }
        }
        Ok(files)
    }

    fn handle(&self, file: FileId) -> io::Result<&File> {
        let slot = self.handles.get(file.0 as usize).ok_or_else(|| no_such_file(file))?;
        if let Some(handle) = slot.get() {
            return Ok(handle);
        }
        let path = &self.paths[file.0 as usize];
        regular_len(path)?; // opening a pipe would wait for ever
        let opened = File::open(path)?;
        tracing::debug!(file = ?path, "opened");
        Ok(slot.get_or_init(|| opened)) // another thread may have been first: then ours is closed again
    }
}

impl Files for DiskFiles {
    fn directories(&self) -> &[String] {
        &self.directories
    }

    fn list(&self) -> &[ListedFile] {
        &self.list
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        regular_len(self.paths.get(file.0 as usize).ok_or_else(|| no_such_file(file))?)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        positioned_read(self.handle(file)?, offset, into)
    }

    fn path(&self, file: FileId) -> Option<&Path> {
        self.paths.get(file.0 as usize).map(PathBuf::as_path)
    }

    fn leftovers(&self) -> Vec<String> {
        let listed = (0..self.list.len()).filter(|&place| is_leftover(&self.list[place].name));
        let mut found: Vec<String> = listed.map(|place| self.location(FileId(place as u32))).collect();
        for folder in &self.folders {
            // Where the Hugging Face client keeps unfinished files: with a local directory, and in its cache.
            let places = [folder.join(".cache/huggingface/download"), folder.join("../../blobs")];
            let in_cache = folder.parent().is_some_and(|parent| parent.ends_with("snapshots"));
            for place in places.iter().take(if in_cache { 2 } else { 1 }) {
                let names = list_directory(place).unwrap_or_default(); // absent is the usual case
                let names = names.iter().filter(|name| is_leftover(name));
                found.extend(names.map(|name| place.join(name).display().to_string()));
            }
        }
        found
    }
}

#[cfg(unix)]
pub(crate) fn positioned_read(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

/// Moves the handle's cursor as well, which nobody here looks at: each read names its own offset.
#[cfg(windows)]
pub(crate) fn positioned_read(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    match std::os::windows::fs::FileExt::seek_read(file, into, offset) {
        Err(error) if error.raw_os_error() == Some(38) => Ok(0), // ERROR_HANDLE_EOF
        other => other,
    }
}

/// Follows links, as the Hugging Face cache keeps its shards behind them.
fn regular_len(path: &Path) -> io::Result<u64> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(metadata.len())
}

/// Names of everything in a directory that is not itself a directory, sorted. Names that are not Unicode are left
/// out: no index can name them.
fn list_directory(directory: &Path) -> Result<Vec<String>, StoreError> {
    let shown = || directory.display().to_string();
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => StoreError::DirectoryAbsent { directory: shown() },
        io::ErrorKind::NotADirectory => StoreError::NotADirectory { path: shown() },
        _ => StoreError::DirectoryUnreadable { directory: shown(), cause },
    };
    if !std::fs::metadata(directory).map_err(failed)?.is_dir() {
        return Err(StoreError::NotADirectory { path: shown() });
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            continue;
        }
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn refuse_same(directories: &[PathBuf]) -> Result<(), StoreError> {
    // A directory that cannot be resolved is reported, with its reason, when it is listed.
    let resolved: Vec<Option<PathBuf>> = directories.iter().map(|path| path.canonicalize().ok()).collect();
    for (second, path) in resolved.iter().enumerate() {
        let earlier = resolved[..second].iter().position(|other| path.is_some() && other == path);
        if let Some(first) = earlier {
            let shown = |place: usize| directories[place].display().to_string();
            return Err(StoreError::SameDirectory { first: shown(first), second: shown(second) });
        }
    }
    Ok(())
}

/// Files that are already in memory: the model inside the binary, and tests.
pub struct MemoryFiles {
    directories: Vec<String>,
    list: Vec<ListedFile>,
    contents: Vec<Cow<'static, [u8]>>,
}

impl MemoryFiles {
    /// Takes names and contents; they count as one directory called `(in memory)`.
    #[must_use]
    pub fn new(files: impl IntoIterator<Item = (String, Cow<'static, [u8]>)>) -> Self {
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by(|one, other| one.0.cmp(&other.0));
        let (names, contents): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let list = names.into_iter().map(|name| ListedFile { name, directory: 0 }).collect();
        MemoryFiles { directories: vec!["(in memory)".to_owned()], list, contents }
    }

    fn content(&self, file: FileId) -> io::Result<&[u8]> {
        self.contents.get(file.0 as usize).map(AsRef::as_ref).ok_or_else(|| no_such_file(file))
    }
}

impl Files for MemoryFiles {
    fn directories(&self) -> &[String] {
        &self.directories
    }

    fn list(&self) -> &[ListedFile] {
        &self.list
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        Ok(self.content(file)?.len() as u64)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let content = self.content(file)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let count = into.len().min(content.len() - start);
        into[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn path(&self, _file: FileId) -> Option<&Path> {
        None
    }
}
