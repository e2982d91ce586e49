//! The reader threads: each takes a job, reads the expert into its slot, looks for forbidden bytes and reports.
//! They know bytes and slots; who waits for them is the cache's business.

use super::error::ExpertError;
use super::queue::{Job, Queue};
use super::request::Event;
use crate::catalog::{Catalog, ExpertId};
use crate::reader::{ReadCount, ReadError, Reader, SpanReader};
use memory::Slab;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The end of a job.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) slot: u32,
    pub(super) result: Result<(), ExpertError>,
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
    /// Pause before the first repetition of a failed read.
    pub(super) first_pause: Duration,
}

/// A drive that takes longer for one expert is busy, spun down or about to fail.
const SLOW: Duration = Duration::from_secs(2);

/// For who follows the reads.
fn tell(id: ExpertId, took: Duration, count: &ReadCount, result: &Result<(), ExpertError>) {
    let ExpertId { layer, expert } = id;
    match result {
        // Its cache is closed: nobody wants it any more.
        Err(ExpertError::Read { source, .. }) if matches!(**source, ReadError::Abandoned { .. }) => {}
        Err(error) => {
            let error: &dyn std::error::Error = error;
            tracing::error!(layer, expert, error, "an expert could not be read");
        }
        Ok(()) if took >= SLOW => tracing::warn!(layer, expert, ?took, bytes = count.bytes, "a slow read"),
        Ok(()) => tracing::trace!(layer, expert, ?took, bytes = count.bytes, "an expert was read"),
    }
}

impl Fetcher {
    /// Works until the queue is closed.
    pub(super) fn run(&self) {
        while let Some(job) = self.queue.next() {
            if self.events.send(Event::Landed(self.fetch(job))).is_err() {
                return;
            }
        }
    }

    fn fetch(&self, job: Job) -> Landing {
        let id = self.catalog.id(job.expert);
        let start = Instant::now();
        let mut count = ReadCount::default();
        // A reader that panics must not leave the owner waiting for ever. What it may have left half done is the slot's
        // bytes, which are not used after an error.
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(job, id, &mut count)));
        let result = filled.unwrap_or(Err(ExpertError::Panicked { id }));
        tell(id, start.elapsed(), &count, &result);
        Landing { slot: job.slot, result, count }
    }

    fn fill(&self, job: Job, id: ExpertId, count: &mut ReadCount) -> Result<(), ExpertError> {
        let mut slot = self.slab.write(job.slot).ok_or(ExpertError::SlotHeld { id, slot: job.slot })?;
        for run in self.catalog.runs(job.expert) {
            let mut span = SpanReader {
                reader: self.reader.as_ref(),
                first_pause: self.first_pause,
                closed: self.queue.closed(),
                count: ReadCount::default(),
            };
            let start = run.payload_offset as usize;
            let read = span.read(run.file, run.file_offset, &mut slot[start..start + run.bytes as usize]);
            *count += span.count;
            read.map_err(|source| ExpertError::Read { id, source: Arc::new(source) })?;
        }
        self.check(job, id, &slot)
    }

    /// Refuses an expert with a forbidden byte: one NaN scale would spoil every logit without a trace of where it came from.
    fn check(&self, job: Job, id: ExpertId, payload: &[u8]) -> Result<(), ExpertError> {
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
        Ok(())
    }
}
