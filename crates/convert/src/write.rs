//! Writes what was planned: shard by shard into a directory of its own inside the destination, from where each file is renamed
//! into place when the drive has all of it; the index comes last, so that there is a model only when there is a whole one.
//! One thread reads ahead while another packs, sums and writes. Knows no tensor's meaning.
use crate::error::ConvertError;
use crate::journal::{self, Journal};
use crate::plan::{Plan, PlannedFile, Unit};
use models::LoadError;
use models::loader::pack;
use ops::Packing;
use ops::packing::PackError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use store::checkpoint::INDEX;
use store::checksums::{CHECKSUMS, Checksum, HEADER, Line, List, Summing, WHOLE};
use store::container::{PARTIAL, SOURCES};
use store::files::DiskFiles;
use store::{Checkpoint, Entry, FileId};

/// Bytes that are read, packed and written at a time.
const CHUNK_BYTES: u64 = 4 << 20;
/// Chunks that are read ahead.
const CHUNKS_AHEAD: usize = 4;

/// A plan and the place where it is carried out.
pub struct Conversion<'a> {
    plan: &'a Plan,
    checkpoint: &'a Checkpoint,
    destination: PathBuf,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is there.
    Fresh,
    /// An earlier run of the same conversion did not finish.
    Begun,
    /// It is all there.
    Complete,
}

impl<'a> Conversion<'a> {
    /// Looks at the destination and changes nothing.
    ///
    /// # Errors
    /// A destination that holds something else.
    pub fn new(plan: &'a Plan, checkpoint: &'a Checkpoint, destination: &Path) -> Result<Self, ConvertError> {
        let state = look(plan, destination)?;
        Ok(Conversion { plan, checkpoint, destination: destination.to_owned(), state })
    }

    /// Whether the container is there already.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether an earlier run is gone on with.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.state == State::Begun
    }

    /// Bytes of the whole container.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.plan.bytes(self.checkpoint)
    }

    /// Bytes that are still to be written, at most.
    ///
    /// # Errors
    /// A journal that cannot be read.
    pub fn left(&self) -> Result<u64, ConvertError> {
        let there = match self.state {
            State::Fresh => 0,
            State::Complete => return Ok(0),
            State::Begun => (0..self.plan.files.len()).map(|number| self.there(number)).sum(),
        };
        Ok(self.bytes().saturating_sub(there))
    }

    /// Bytes of a shard that take room already.
    fn there(&self, number: usize) -> u64 {
        let name = &self.plan.files[number].name;
        let length = |path: PathBuf| fs::metadata(path).map(|found| found.len()).ok();
        let published = length(self.destination.join(name));
        published.or_else(|| length(self.partial(name))).unwrap_or(0)
    }

    fn partial(&self, name: &str) -> PathBuf {
        self.destination.join(PARTIAL).join(name)
    }

    /// Writes what is not there yet; `progress` hears how many bytes of shards are there. Ends with an error within moments when
    /// `cancel` is set; what was written stays for the next run.
    ///
    /// # Errors
    /// What cannot be read, packed or written.
    pub fn run(&self, cancel: &AtomicBool, progress: &mut dyn FnMut(u64)) -> Result<(), ConvertError> {
        if self.is_complete() {
            return Ok(());
        }
        let work = self.destination.join(PARTIAL);
        fs::create_dir_all(&work).map_err(ConvertError::write("making", &work))?;
        sync_directory(&self.destination)?;
        let mut journal = Journal::open(&self.destination, self.plan.id, self.plan.settings)?;
        sync_directory(&work)?;
        let mut done = 0;
        for number in 0..self.plan.files.len() {
            self.shard(number, &mut journal, cancel, &mut |bytes| {
                done += bytes;
                progress(done);
            })?;
        }
        let mut lines = self.shard_lines(&journal)?;
        for &file in &self.plan.copies {
            stop_if(cancel)?;
            lines.push(self.copy(file)?);
        }
        if let Some(sources) = &self.plan.sources {
            let text =
                serde_json::to_string(sources).map_err(|error| ConvertError::Settings(error.to_string()))?;
            lines.push(whole_line(SOURCES, text.as_bytes()));
            self.publish(SOURCES, text.as_bytes())?;
        }
        lines.push(whole_line(INDEX, self.plan.index.as_bytes()));
        let list = List { conversion: self.plan.id, lines };
        self.publish(CHECKSUMS, list.text().as_bytes())?;
        self.publish(INDEX, self.plan.index.as_bytes())?;
        fs::remove_dir_all(&work).map_err(ConvertError::write("removing", &work))?;
        sync_directory(&self.destination)
    }

    /// Writes one shard, from where the journal says, and puts it into place.
    fn shard(
        &self,
        number: usize,
        journal: &mut Journal,
        cancel: &AtomicBool,
        more: &mut dyn FnMut(u64),
    ) -> Result<(), ConvertError> {
        let planned = &self.plan.files[number];
        let place = self.destination.join(&planned.name);
        if place.is_file() {
            let all = journal.done(number) == planned.units.len();
            more(self.plan.file_bytes(self.checkpoint, number));
            let why = "it is there, but the journal does not know it: remove it, or choose another place";
            return if all { Ok(()) } else { Err(ConvertError::place(&place, why)) };
        }
        let header = self.plan.header(self.checkpoint, number);
        let path = self.partial(&planned.name);
        let failed = || ConvertError::write("writing", &path);
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed())?;
        let length = file.metadata().map_err(failed())?.len();
        let end =
            |units: usize| header.len() as u64 + planned.units[..units].iter().map(Unit::padded).sum::<u64>();
        let done = Some(journal.done(number)).filter(|done| end(*done) <= length).unwrap_or(0);
        let start = if done == 0 { 0 } else { end(done) };
        file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start)).map(drop)).map_err(failed())?;
        if done == 0 {
            file.write_all(&header).map_err(failed())?;
        }
        more(end(done));
        tracing::info!(file = planned.name, units = planned.units.len(), done, "a shard is written");
        let mut writer = Writer { plan: self.plan, number, path: &path, file, journal, since: 0 };
        let written = std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(CHUNKS_AHEAD);
            scope.spawn(move || self.read_ahead(&planned.units[done..], &sender));
            writer.units(planned, done, &receiver, (cancel, more), self.checkpoint)
        });
        // Whatever ended it: what is written need not be written again.
        let kept = writer.keep();
        written.and(kept)?;
        drop(writer);
        fs::rename(&path, &place).map_err(ConvertError::write("putting into place", &place))?;
        sync_directory(&self.destination)
    }

    /// Reads what these units need, in order, until nobody wants it.
    fn read_ahead(&self, units: &[Unit], sender: &SyncSender<Result<Vec<u8>, ConvertError>>) {
        for unit in units {
            for (entry, start, bytes) in spans(unit, self.checkpoint) {
                let mut buffer = vec![0; bytes as usize];
                let read = self.checkpoint.read_range(entry, start, &mut buffer);
                let failed = read.is_err();
                if sender.send(read.map(|()| buffer).map_err(ConvertError::from)).is_err() || failed {
                    return;
                }
            }
        }
    }

    /// The lines of all shards.
    fn shard_lines(&self, journal: &Journal) -> Result<Vec<Line>, ConvertError> {
        let mut lines = Vec::new();
        for (number, file) in self.plan.files.iter().enumerate() {
            let header = self.plan.header(self.checkpoint, number);
            let line = |checksum, offset, bytes, what: &str| Line {
                checksum,
                offset,
                bytes,
                file: file.name.clone(),
                what: what.to_owned(),
            };
            lines.push(line(Checksum::of(&header), 0, header.len() as u64, HEADER));
            let mut offset = header.len() as u64;
            for (place, unit) in file.units.iter().enumerate() {
                let sum = journal.sum(number, place).ok_or_else(|| {
                    let path = self.destination.join(&file.name);
                    ConvertError::place(&path, "the journal lacks a checksum of it: remove it and run again")
                })?;
                lines.push(line(sum, offset, unit.bytes, &unit.what));
                offset += unit.padded();
            }
        }
        Ok(lines)
    }

    /// Copies a small file as it is.
    fn copy(&self, file: FileId) -> Result<Line, ConvertError> {
        let files = self.checkpoint.files();
        let name = &files.list()[file.0 as usize].name;
        let unreadable = |cause| store::StoreError::Unreadable { path: files.location(file), cause };
        let bytes = files.len(file).map_err(unreadable)?;
        let path = self.partial(name);
        let failed = || ConvertError::write("writing", &path);
        let mut copy = File::create(&path).map_err(failed())?;
        let mut summing = Summing::default();
        for start in (0..bytes).step_by(CHUNK_BYTES as usize) {
            let mut part = vec![0; CHUNK_BYTES.min(bytes - start) as usize];
            files.read_exact_at(file, start, &mut part).map_err(unreadable)?;
            summing.add(&part);
            copy.write_all(&part).map_err(failed())?;
        }
        copy.sync_all().map_err(failed())?;
        self.put_into_place(name)?;
        let (file, what) = (name.clone(), WHOLE.to_owned());
        Ok(Line { checksum: summing.sum(), offset: 0, bytes, file, what })
    }

    /// Writes a small file of our own.
    fn publish(&self, name: &str, content: &[u8]) -> Result<(), ConvertError> {
        let path = self.partial(name);
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.map_err(ConvertError::write("writing", &path))?;
        self.put_into_place(name)
    }

    fn put_into_place(&self, name: &str) -> Result<(), ConvertError> {
        let place = self.destination.join(name);
        fs::rename(self.partial(name), &place).map_err(ConvertError::write("putting into place", &place))?;
        sync_directory(&self.destination)
    }
}

fn whole_line(name: &str, content: &[u8]) -> Line {
    let (checksum, bytes) = (Checksum::of(content), content.len() as u64);
    Line { checksum, offset: 0, bytes, file: name.to_owned(), what: WHOLE.to_owned() }
}

fn stop_if(cancel: &AtomicBool) -> Result<(), ConvertError> {
    if cancel.load(Ordering::Relaxed) { Err(ConvertError::Cancelled) } else { Ok(()) }
}

/// What is in the destination, if it is of this conversion or nothing.
fn look(plan: &Plan, destination: &Path) -> Result<State, ConvertError> {
    let refused = |why: &str| Err(ConvertError::place(destination, why));
    match fs::metadata(destination) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::Fresh),
        Err(error) => return Err(ConvertError::write("looking at", destination)(error)),
        Ok(found) if !found.is_dir() => {
            return refused("it is no directory; name a directory that is empty or not there");
        }
        Ok(_) => {}
    }
    if let Some(begun) = journal::begun(destination)? {
        if begun.id == plan.id {
            return Ok(State::Begun);
        }
        let why = format!(
            "it holds an unfinished conversion of another model or with other settings (--dense {}{}): finish that one, or \
             remove the directory",
            begun.dense.name(),
            if begun.thin { " --thin" } else { "" }
        );
        return refused(&why);
    }
    let names = fs::read_dir(destination).map_err(ConvertError::write("looking at", destination))?;
    let mut others = names.filter(|entry| entry.as_ref().map_or(true, |entry| entry.file_name() != PARTIAL));
    if others.next().is_none() {
        return Ok(State::Fresh);
    }
    let list = if destination.join(INDEX).is_file() {
        List::read(&DiskFiles::open(&[destination.to_owned()])?)?
    } else {
        None
    };
    match list {
        Some(list) if list.conversion == plan.id => Ok(State::Complete),
        Some(_) => refused(
            "it holds a container of another model or with other settings, which is never written over; choose another \
             place, or remove it",
        ),
        None => refused("it holds other files; name a directory that is empty or not there"),
    }
}

/// The reads that a unit needs: whole rows where it is packed.
fn spans<'c>(unit: &'c Unit, checkpoint: &'c Checkpoint) -> impl Iterator<Item = (&'c Entry, u64, u64)> {
    // The plan was made from this very table.
    let entries = unit.tensors.iter().filter_map(|name| checkpoint.tensor(name));
    entries.flat_map(move |entry| {
        let row = unit.packed.as_ref().map_or(1, |(_, matrix)| entry.bytes / u64::from(matrix.rows.max(1)));
        let step = (CHUNK_BYTES / row.max(1)).max(1) * row.max(1);
        (0..entry.bytes)
            .step_by(step as usize)
            .map(move |start| (entry, start, step.min(entry.bytes - start)))
    })
}

/// A shard on its way to the drive.
struct Writer<'w> {
    plan: &'w Plan,
    number: usize,
    path: &'w Path,
    file: File,
    journal: &'w mut Journal,
    /// Bytes that the drive may not have yet.
    since: u64,
}

type Chunks = Receiver<Result<Vec<u8>, ConvertError>>;

impl Writer<'_> {
    /// Writes units from number `first` on, from what comes.
    fn units(
        &mut self,
        planned: &PlannedFile,
        first: usize,
        chunks: &Chunks,
        (cancel, more): (&AtomicBool, &mut dyn FnMut(u64)),
        checkpoint: &Checkpoint,
    ) -> Result<(), ConvertError> {
        for (place, unit) in planned.units.iter().enumerate().skip(first) {
            let mut next = || {
                stop_if(cancel)?;
                // A reader that ends early has sent its error before.
                chunks.recv().unwrap_or(Err(ConvertError::Cancelled))
            };
            let sum = match &unit.packed {
                None => self.plain(unit, &mut next, more)?,
                Some((packing, matrix)) => {
                    let entry = checkpoint.find(&matrix.name)?;
                    self.packed(unit, (*packing, matrix.cols, entry), &mut next, more)?
                }
            };
            self.put(&vec![0; unit.padding() as usize])?;
            more(unit.padding());
            self.journal.note(self.number, place, sum);
            if self.since >= self.plan.settings.sync_bytes {
                self.keep()?;
            }
        }
        Ok(())
    }

    fn plain(
        &mut self,
        unit: &Unit,
        next: &mut dyn FnMut() -> Result<Vec<u8>, ConvertError>,
        more: &mut dyn FnMut(u64),
    ) -> Result<Checksum, ConvertError> {
        let (mut summing, mut left) = (Summing::default(), unit.bytes);
        while left > 0 {
            let chunk = next()?;
            summing.add(&chunk);
            self.put(&chunk)?;
            left -= chunk.len() as u64;
            more(chunk.len() as u64);
        }
        Ok(summing.sum())
    }

    /// All codes, then all scales, as the loader lays them out.
    fn packed(
        &mut self,
        unit: &Unit,
        (packing, cols, entry): (Packing, u32, &Entry),
        next: &mut dyn FnMut() -> Result<Vec<u8>, ConvertError>,
        more: &mut dyn FnMut(u64),
    ) -> Result<Checksum, ConvertError> {
        let (mut summing, mut left, mut row) = (Summing::default(), entry.bytes, 0);
        let (mut codes, mut scales, mut all_scales) = (Vec::new(), Vec::new(), Vec::new());
        let row_bytes = u64::from(cols) * entry.dtype.bits() / 8;
        while left > 0 {
            let raw = next()?;
            let packed = pack(packing, cols, (&raw, entry.dtype), (&mut codes, &mut scales));
            packed.map_err(|error| LoadError::Weight {
                tensor: unit.what.clone(),
                reason: PackError { row: error.row + row, ..error },
            })?;
            summing.add(&codes);
            self.put(&codes)?;
            all_scales.extend_from_slice(&scales);
            left -= raw.len() as u64;
            row += (raw.len() as u64 / row_bytes) as usize;
            more(codes.len() as u64);
        }
        summing.add(&all_scales);
        self.put(&all_scales)?;
        more(all_scales.len() as u64);
        Ok(summing.sum())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ConvertError> {
        self.since += bytes.len() as u64;
        self.file.write_all(bytes).map_err(ConvertError::write("writing", self.path))
    }

    /// The drive gets everything, then the journal tells of it.
    fn keep(&mut self) -> Result<(), ConvertError> {
        self.since = 0;
        self.file.sync_all().map_err(ConvertError::write("writing", self.path))?;
        self.journal.keep()
    }
}

/// Names in a directory are on the drive only after this, where the system has a way to ask for it.
#[cfg(unix)]
fn sync_directory(path: &Path) -> Result<(), ConvertError> {
    let synced: io::Result<()> = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(ConvertError::write("writing", path))
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
fn sync_directory(_path: &Path) -> Result<(), ConvertError> {
    let _: io::Result<()> = Ok(());
    Ok(())
}
