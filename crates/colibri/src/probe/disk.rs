//! How fast the model's own files come from disk: blocks of the size of experts at scattered places, past the system's
//! memory of files where the system lets it. Knows paths and bytes, no tensor.
use crate::doctor::sample::{self, Way, drop_from_cache, read_at};
use crate::errors::Failure;
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use store::{Access, Checkpoint};

/// Direct reads begin and end at multiples of this.
const PAGE: u64 = 4096;
/// Bytes that are read in one go: about an expert of Kimi K3.
const BLOCK: u64 = 16 << 20;
/// Files with less are left out.
const BLOCK_LEAST: u64 = 1 << 20;
/// Blocks that each reader reads in one repeat.
const BLOCKS_A_READER: usize = 2;

/// The blocks of a model's files.
pub(crate) struct Disk {
    files: Vec<(PathBuf, File)>,
    /// File and first byte of every block, in the order of the disk.
    blocks: Vec<(usize, u64)>,
    block_bytes: u64,
    /// Blocks read so far.
    count: usize,
    room: Vec<MmapMut>,
    /// Whether reads go past the system's memory.
    direct: bool,
}

impl Disk {
    /// Finds the blocks, to be read as experts are with this setting; None with the reason where there is no disk to measure.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub(crate) fn of(checkpoint: &Checkpoint, io: Access) -> Result<Result<Self, &'static str>, Failure> {
        let all = checkpoint.files();
        let (mut sizes, mut holes) = (Vec::new(), false);
        for shard in checkpoint.shards() {
            let Some(path) = all.path(*shard) else {
                return Ok(Err("the model lies in memory, so there is no disk to measure"));
            };
            let bytes = all.len(*shard).map_err(Failure::io("asking for the size of", path))?;
            holes |= has_holes(path, bytes).map_err(Failure::io("asking for the size of", path))?;
            sizes.push((path.to_owned(), bytes));
        }
        if holes {
            return Ok(Err("the model's files have holes for numbers, so there is no disk to measure"));
        }
        let largest = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let block_bytes = BLOCK.min(largest / PAGE * PAGE);
        if block_bytes < BLOCK_LEAST {
            return Ok(Err("the model's files are too small for a rate of the disk"));
        }
        sizes.retain(|(_, bytes)| *bytes >= block_bytes);
        let mut direct = io != Access::Buffered;
        let mut files = Vec::new();
        let mut blocks = Vec::new();
        for (path, bytes) in sizes {
            let opened = open(&path, &mut direct).map_err(Failure::io("opening", &path))?;
            blocks.extend((0..bytes / block_bytes).map(|i| (files.len(), i * block_bytes)));
            files.push((path, opened));
        }
        Ok(Ok(Disk { files, blocks, block_bytes, count: 0, room: Vec::new(), direct }))
    }

    /// What a reader of the figures has to know.
    pub(crate) fn note(&self) -> Option<&'static str> {
        (!self.direct).then_some(
            "disk: the system or the file system takes no direct reads; what it had in memory may have been measured",
        )
    }

    /// Bytes of one repeat.
    pub(crate) fn bytes(&self, readers: u32) -> u64 {
        self.block_bytes * (readers as usize * BLOCKS_A_READER) as u64
    }

    /// Reads other blocks than before on so many threads, as long as there are any.
    ///
    /// # Errors
    /// The first read that failed.
    pub(crate) fn read(&mut self, readers: u32) -> Result<(), Failure> {
        let readers = readers as usize;
        while self.room.len() < readers {
            let bytes = self.block_bytes;
            let mapped = MmapOptions::new().len(bytes as usize).map_anon();
            self.room.push(mapped.map_err(|source| memory::MemoryError::Refused { bytes, source })?);
        }
        // Blocks that follow each other in this walk lie far apart, and it comes to all before one comes again.
        let stride = stride(self.blocks.len());
        let block = |i: usize| self.blocks[i * stride % self.blocks.len()];
        let first = self.count;
        self.count += readers * BLOCKS_A_READER;
        let (files, direct) = (&self.files, self.direct);
        let one = |reader: usize, room: &mut [u8]| {
            for i in 0..BLOCKS_A_READER {
                let (file, start) = block(first + reader * BLOCKS_A_READER + i);
                let (path, file) = &files[file];
                read_block(file, start, room, direct).map_err(Failure::io("reading", path))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let room = self.room.iter_mut().take(readers).enumerate();
            let threads: Vec<_> =
                room.map(|(reader, room)| scope.spawn(move || one(reader, &mut room[..]))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(ended())))
        })
    }
}

/// Whether a file has less than half of its bytes on disk: they are read at the speed of memory.
fn has_holes(path: &Path, bytes: u64) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Ok(std::fs::metadata(path)?.blocks() * 512 < bytes / 2)
    }
    #[cfg(not(unix))]
    {
        let _ = (path, bytes);
        Ok(false)
    }
}

fn ended() -> Failure {
    Failure::Io { what: "reading".into(), source: io::Error::other("a thread ended early") }
}

/// A step through `count` things, about five eighths of them, that comes to all.
fn stride(count: usize) -> usize {
    fn divisor(a: usize, b: usize) -> usize {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    (count * 5 / 8..count).find(|step| *step > 0 && divisor(*step, count) == 1).unwrap_or(1)
}

fn read_block(file: &File, start: u64, into: &mut [u8], direct: bool) -> io::Result<()> {
    if !direct {
        // That the system forgets is a wish; the record notes that these reads may come from its memory.
        let _ = drop_from_cache(file, start, into.len() as u64);
    }
    let mut done = 0;
    while done < into.len() {
        match read_at(file, start + done as u64, &mut into[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Opens a file for direct reads; where a first one does not work, for others, for it and those after it.
fn open(path: &Path, direct: &mut bool) -> io::Result<File> {
    if *direct {
        let tried = sample::open(path, Way::Direct).and_then(|file| {
            let mut room = MmapOptions::new().len(PAGE as usize).map_anon()?;
            read_at(&file, 0, &mut room)?;
            Ok(file)
        });
        if let Ok(file) = tried {
            return Ok(file);
        }
        *direct = false;
    }
    sample::open(path, Way::Buffered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_walk_comes_to_all_blocks() {
        for count in [1, 2, 3, 8, 40, 97, 1000] {
            let step = stride(count);
            let seen: HashSet<usize> = (0..count).map(|i| i * step % count).collect();
            assert_eq!(seen.len(), count);
        }
    }

    #[cfg(unix)]
    #[test]
    fn holes_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 24).unwrap();
        assert!(has_holes(&path, 1 << 24).unwrap());
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(!has_holes(&path, 1 << 20).unwrap());
    }

    #[test]
    fn blocks_are_read_whole_and_a_short_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        let bytes: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mut direct = true;
        let file = open(&path, &mut direct).unwrap();
        let mut room = MmapOptions::new().len(4096).map_anon().unwrap();
        read_block(&file, 4096, &mut room, direct).unwrap();
        assert_eq!(room[..], bytes[4096..]);
        let error = read_block(&file, 8192, &mut room, direct).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
