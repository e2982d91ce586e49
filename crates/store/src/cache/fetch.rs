//! The reader threads: each takes a job of its drive, reads the expert into its slot, looks for forbidden bytes and
//! reports. They know bytes and slots; who waits for them is the cache's business.

use super::busy::Busy;
use super::error::ExpertError;
use super::queue::{Job, Queue};
use super::request::Event;
use super::watch::{Began, ReadEnd, Watched};
use crate::catalog::{Catalog, ExpertId, Run};
use crate::reader::{ReadCount, ReadError, Reader, SpanReader};
use memory::{HostBuffer, Slab, SlotWrite};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A guess is read in parts of so many bytes, so that who waits for its drive waits for no more than one part a thread.
pub(super) const SLICE_BYTES: u64 = 1 << 20;

/// The end of a job.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) slot: u32,
    /// Where the payload begins in the slot.
    pub(super) result: Result<u64, ExpertError>,
    pub(super) count: ReadCount,
}

/// What a reader thread needs.
#[derive(Clone)]
pub(super) struct Fetcher {
    pub(super) catalog: Arc<Catalog>,
    pub(super) reader: Arc<dyn Reader>,
    pub(super) slab: Arc<Slab>,
    pub(super) queue: Arc<Queue>,
    pub(super) events: Sender<Event>,
    /// Clocks of all drives.
    pub(super) busy: Arc<[Busy]>,
    /// Pause before the first repetition of a failed read.
    pub(super) first_pause: Duration,
    /// Told of every read.
    pub(super) watched: Watched,
    /// Number of the thread on its drive.
    pub(super) number: u32,
}

/// A drive that takes longer for one expert is busy, spun down or about to fail.
const SLOW: Duration = Duration::from_secs(2);

/// For who follows the reads.
pub(super) fn tell(id: ExpertId, took: Duration, count: &ReadCount, result: &Result<u64, ExpertError>) {
    let ExpertId { layer, expert } = id;
    match result {
        // Its cache is closed: nobody wants it any more.
        Err(ExpertError::Read { source, .. }) if matches!(**source, ReadError::Abandoned { .. }) => {}
        Err(error) => {
            let error: &dyn std::error::Error = error;
            tracing::error!(layer, expert, error, "an expert could not be read");
        }
        Ok(_) if took >= SLOW => tracing::warn!(layer, expert, ?took, bytes = count.bytes, "a slow read"),
        Ok(_) => tracing::trace!(layer, expert, ?took, bytes = count.bytes, "an expert was read"),
    }
}

/// How the bytes of a job come into its slot.
pub(super) enum Way {
    /// A whole number of blocks, straight into the slot from its first byte on: the expert lies somewhere in between.
    Straight(Run),
    /// Run by run, to where the layout has them.
    ByRun(Vec<Run>),
}

/// How far a thread came with a job.
enum Stretch {
    /// To its end; the payload begins at this byte of the slot.
    Whole(u64),
    /// To the end of a slice, after which others come first.
    GivesWay,
}

impl Fetcher {
    /// Works for one drive until the queue is closed. `aside` is for bytes that cannot go straight to their place.
    pub(super) fn run(&self, drive: usize, mut aside: HostBuffer) {
        while let Some(job) = self.queue.next(drive) {
            if let Some(landing) = self.fetch(job, &mut aside)
                && self.events.send(Event::Landed(landing)).is_err()
            {
                return;
            }
        }
    }

    /// Reads a job to its end, or a guess until it gives way.
    pub(super) fn fetch(&self, mut job: Job, aside: &mut HostBuffer) -> Option<Landing> {
        let id = self.catalog.id(job.expert);
        let began = Began::now(&job);
        // A reader that panics must not leave the owner waiting for ever. What it may have left half done is the slot's
        // bytes, which are not used after an error.
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(&mut job, id, aside)));
        let result = match filled.unwrap_or(Err(ExpertError::Panicked { id })) {
            Ok(Stretch::GivesWay) => {
                self.told(&began, &job, ReadEnd::Part);
                self.queue.put_back(job);
                return None;
            }
            Ok(Stretch::Whole(payload)) => Ok(payload),
            Err(error) => Err(error),
        };
        self.queue.ended(&job);
        tell(id, began.at().elapsed(), &job.count, &result);
        self.told(&began, &job, if result.is_ok() { ReadEnd::Whole } else { ReadEnd::Failed });
        Some(Landing { slot: job.slot, result, count: job.count })
    }

    /// Tells whoever watches, if anybody does, of the time since `began`.
    pub(super) fn told(&self, began: &Began, job: &Job, end: ReadEnd) {
        if let Some(watch) = self.watched.get() {
            let (id, place) = (self.catalog.id(job.expert), self.catalog.disk_order(job.expert));
            watch.read(&began.span(job, self.number, id, place, end));
        }
    }

    fn fill(&self, job: &mut Job, id: ExpertId, aside: &mut HostBuffer) -> Result<Stretch, ExpertError> {
        let mut slot = self.slab.write(job.slot).ok_or(ExpertError::SlotHeld { id, slot: job.slot })?;
        let reading = self.busy[job.drive].begin(job.guess);
        let read = match self.way(job, slot.len() as u64) {
            Way::Straight(run) => self.straight(job, &run, &mut slot),
            Way::ByRun(runs) => self.by_run(job, &runs, &mut slot, aside),
        };
        drop(reading);
        let stretch = read.map_err(|source| ExpertError::Read { id, source: Arc::new(source) })?;
        if let Stretch::Whole(payload) = stretch {
            self.check(job, id, &slot[payload as usize..])?;
        }
        Ok(stretch)
    }

    /// Straight where the drive asks for blocks and the blocks around the expert fit into the slot.
    pub(super) fn way(&self, job: &Job, slot_bytes: u64) -> Way {
        let runs: Vec<Run> = self.catalog.runs(job.expert).collect();
        if let [run] = runs[..] {
            let align = self.reader.alignment(run.file);
            let end = (run.file_offset % align + run.bytes).next_multiple_of(align);
            if align > 1 && end <= slot_bytes {
                return Way::Straight(run);
            }
        }
        Way::ByRun(runs)
    }

    fn straight(&self, job: &mut Job, run: &Run, slot: &mut SlotWrite<'_>) -> Result<Stretch, ReadError> {
        let align = self.reader.alignment(run.file);
        let payload = run.file_offset % align;
        let (start, wanted) = (run.file_offset - payload, payload + run.bytes);
        while job.done < wanted {
            let next = part_end(job, wanted.next_multiple_of(align));
            let part = &mut slot[job.done as usize..next as usize];
            let least = (wanted.min(next) - job.done) as usize;
            self.read(job, (run.file, start + job.done), part, least)?;
            job.done = next;
            if job.done < wanted && self.queue.gives_way(job) {
                return Ok(Stretch::GivesWay);
            }
        }
        Ok(Stretch::Whole(payload))
    }

    fn by_run(
        &self,
        job: &mut Job,
        runs: &[Run],
        slot: &mut SlotWrite<'_>,
        aside: &mut HostBuffer,
    ) -> Result<Stretch, ReadError> {
        while job.runs < runs.len() {
            let run = &runs[job.runs];
            while job.done < run.bytes {
                job.done = self.part_of_run(job, run, slot, aside)?;
                let more = job.done < run.bytes || job.runs + 1 < runs.len();
                if more && self.queue.gives_way(job) {
                    return Ok(Stretch::GivesWay);
                }
            }
            (job.runs, job.done) = (job.runs + 1, 0);
        }
        Ok(Stretch::Whole(0))
    }

    /// Reads the next bytes of a run to their place and returns how many of it are there. Blocks that begin before them
    /// or end behind them would overwrite what lies beside, so they come into memory aside first.
    fn part_of_run(
        &self,
        job: &mut Job,
        run: &Run,
        slot: &mut SlotWrite<'_>,
        aside: &mut HostBuffer,
    ) -> Result<u64, ReadError> {
        let align = self.reader.alignment(run.file);
        let next = part_end(job, run.bytes);
        let place = |done: u64| (run.payload_offset + done) as usize;
        let first = run.file_offset + job.done;
        if align == 1 {
            let part = &mut slot[place(job.done)..place(next)];
            let least = part.len();
            self.read(job, (run.file, first), part, least)?;
            return Ok(next);
        }
        let start = first - first % align;
        let blocks = (run.file_offset + next).next_multiple_of(align) - start;
        let blocks = blocks.min(aside.bytes());
        let end = (run.file_offset + next).min(start + blocks);
        let part = &mut aside.as_mut_slice()[..blocks as usize];
        self.read(job, (run.file, start), part, (end - start) as usize)?;
        let next = end - run.file_offset;
        let came = &part[(first - start) as usize..(end - start) as usize];
        slot[place(job.done)..place(next)].copy_from_slice(came);
        Ok(next)
    }

    /// Fills `into` from a file and an offset on, as far as the first `least` bytes at least.
    fn read(
        &self,
        job: &mut Job,
        (file, offset): (u32, u64),
        into: &mut [u8],
        least: usize,
    ) -> Result<(), ReadError> {
        let mut span = SpanReader {
            reader: self.reader.as_ref(),
            first_pause: self.first_pause,
            closed: self.queue.closed(),
            count: ReadCount::default(),
        };
        let read = span.read_at_least(file, offset, into, least);
        job.count += span.count;
        read
    }

    /// Refuses an expert with a forbidden byte: one NaN scale would spoil every logit without a trace of where it came from.
    pub(super) fn check(&self, job: &Job, id: ExpertId, payload: &[u8]) -> Result<(), ExpertError> {
        let layout = self.catalog.layout();
        for (number, piece) in layout.pieces().iter().enumerate() {
            let Some(byte) = piece.forbidden else { continue };
            let bytes = &payload[layout.range(number)];
            // `contains` is the fast search; the place is wanted only once in a damaged file's life.
            if !bytes.contains(&byte) {
                continue;
            }
            let place = bytes.iter().position(|found| *found == byte).unwrap_or_default() as u64;
            let (file, start) = self.catalog.place(job.expert, number);
            return Err(ExpertError::ForbiddenByte {
                id,
                piece: piece.name.clone(),
                row: place / piece.row_bytes,
                byte,
                file: self.reader.file_name(file),
                offset: start + place,
            });
        }
        if let Some((found, expected)) = self.catalog.differs(job.expert, payload) {
            let (file, offset) = self.catalog.place(job.expert, 0);
            let file = self.reader.file_name(file);
            return Err(ExpertError::Checksum { id, file, offset, found, expected });
        }
        Ok(())
    }
}

/// Where the next read ends: a slice further for a guess, at `end` for what somebody waits for.
pub(super) fn part_end(job: &Job, end: u64) -> u64 {
    if job.guess { end.min(job.done + SLICE_BYTES) } else { end }
}
