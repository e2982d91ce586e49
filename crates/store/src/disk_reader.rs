//! A checkpoint's files as experts are read from them: past the system's file cache where that is asked for and possible,
//! and with the drive that each file lies on. It knows files and bytes; not what they hold.

use crate::files::{FileId, Files, positioned_read};
use crate::reader::Reader;
use memory::HostBuffer;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Direct reads begin and end at multiples of this many bytes, in the file and in memory: a page, and the largest block
/// of drives that are sold.
pub const DIRECT_ALIGNMENT: u64 = 4096;

/// Files that experts are read from end in this.
const SHARD_SUFFIX: &str = ".safetensors";

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Past the system's file cache: `O_DIRECT` on Linux, `F_NOCACHE` on macOS, `FILE_FLAG_NO_BUFFERING` on Windows.
    Direct,
    /// Through it.
    Buffered,
    /// As direct, from one thread a drive that has many reads under way: Linux' `io_uring`.
    Uring,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Buffered, Self::Uring];

    /// How it is called in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Uring => "uring",
        }
    }
}

/// Reads the files of a checkpoint, each of which it knows the drive of.
pub struct DiskReader {
    files: Arc<dyn Files>,
    access: Access,
    places: Vec<Place>,
    /// For every drive whether it takes direct reads; none where all files lie in memory.
    direct: Vec<bool>,
    notes: Vec<String>,
}

/// One file.
#[derive(Default)]
struct Place {
    drive: usize,
    /// Opened at the first read; `None` where direct reads do not work.
    handle: OnceLock<Option<File>>,
}

impl DiskReader {
    /// Finds the drives, and whether they take direct reads if these are asked for: a file of each is opened, and its
    /// first page read. Where they do not, files are read through the cache, and [`DiskReader::notes`] says so.
    #[must_use]
    pub fn new(files: Arc<dyn Files>, access: Access) -> Self {
        let mut devices = Vec::new();
        let mut reader = Self { access, places: Vec::new(), direct: Vec::new(), notes: Vec::new(), files };
        let list = reader.files.list().to_vec();
        for (number, listed) in list.iter().enumerate() {
            let file = FileId(number as u32);
            reader.places.push(Place::default());
            let path = reader.files.path(file).filter(|_| listed.name.ends_with(SHARD_SUFFIX));
            // One that lies in memory has no drive; one that has gone is named when it is read.
            let Some(device) = path.and_then(|path| device(path, listed.directory)) else { continue };
            let known = devices.iter().position(|known| *known == device);
            reader.places[number].drive = known.unwrap_or(devices.len());
            if known.is_none() {
                devices.push(device);
                let direct = access != Access::Buffered && reader.takes_direct(file);
                reader.direct.push(direct);
            }
        }
        reader
    }

    /// Whether the drive of this file, its first, takes direct reads; if not, a note says why.
    fn takes_direct(&mut self, file: FileId) -> bool {
        let Some(path) = self.files.path(file) else { return false };
        let Err(error) = open_direct(path) else { return true };
        let folder = path.parent().unwrap_or(path).display();
        self.notes.push(format!(
            "the file system of {folder} takes no direct reads ({error}); its files are read through the system's \
             file cache"
        ));
        false
    }

    /// What is not as it was asked for; one sentence for each drive, for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The handle for direct reads.
    fn handle(&self, file: u32) -> Option<&File> {
        let place = self.places.get(file as usize)?;
        if self.direct.get(place.drive) != Some(&true) {
            return None;
        }
        let open = || {
            let path = self.files.path(FileId(file))?;
            let opened = open_direct(path);
            if let Err(error) = &opened {
                tracing::warn!(file = ?path, %error, "no direct reads: it is read through the system's file cache");
            }
            opened.ok()
        };
        place.handle.get_or_init(open).as_ref()
    }
}

impl Reader for DiskReader {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let aligned = |number: u64| number.is_multiple_of(DIRECT_ALIGNMENT);
        // What fits no direct read comes through the cache: the rest after an odd short read.
        if aligned(offset)
            && aligned(into.len() as u64)
            && aligned(into.as_ptr() as u64)
            && let Some(handle) = self.handle(file)
        {
            return positioned_read(handle, offset, into);
        }
        Files::read_at(&*self.files, FileId(file), offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.files.location(FileId(file))
    }

    fn alignment(&self, file: u32) -> u64 {
        if self.handle(file).is_some() { DIRECT_ALIGNMENT } else { 1 }
    }

    fn direct_file(&self, file: u32) -> Option<&File> {
        self.handle(file)
    }

    fn wants_ring(&self, drive: usize) -> bool {
        self.access == Access::Uring && self.direct.get(drive) == Some(&true)
    }

    fn drive(&self, file: u32) -> usize {
        self.places.get(file as usize).map_or(0, |place| place.drive)
    }

    fn drives(&self) -> usize {
        self.direct.len().max(1)
    }
}

/// A number for the drive that a file lies on; links are followed.
#[cfg(unix)]
fn device(path: &Path, _directory: usize) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Some(std::fs::metadata(path).ok()?.dev())
}

/// Elsewhere each directory counts as a drive.
#[cfg(not(unix))]
fn device(path: &Path, directory: usize) -> Option<u64> {
    path.exists().then_some(directory as u64)
}

/// Opens a file for direct reads and tries one: some file systems refuse only that.
fn open_direct(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true);
    ask_for_direct(&mut options);
    let file = options.open(path)?;
    without_cache(&file)?;
    let mut page = HostBuffer::new(DIRECT_ALIGNMENT).map_err(io::Error::other)?;
    loop {
        match positioned_read(&file, 0, page.as_mut_slice()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            tried => return tried.map(|_| file),
        }
    }
}

#[cfg(target_os = "linux")]
fn ask_for_direct(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
}

#[cfg(windows)]
fn ask_for_direct(options: &mut OpenOptions) {
    use std::os::windows::fs::OpenOptionsExt as _;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    options.custom_flags(FILE_FLAG_NO_BUFFERING);
}

#[cfg(not(any(target_os = "linux", windows)))]
fn ask_for_direct(_options: &mut OpenOptions) {}

#[cfg(target_vendor = "apple")]
fn without_cache(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_nocache(file, true)?)
}

#[cfg(any(target_os = "linux", windows))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
fn without_cache(_file: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
fn without_cache(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
