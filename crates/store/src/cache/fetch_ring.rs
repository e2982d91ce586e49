//! The reader of a drive that has many reads under way at once through a ring (Linux' `io_uring`), from one thread. It does
//! what [`Fetcher::run`] does with several; what a ring cannot do, and what goes wrong in it, goes that way.

use super::busy::Reading;
use super::error::ExpertError;
use super::fetch::{Fetcher, Landing, Way, part_end, tell};
use super::queue::Job;
use super::request::Event;
use super::watch::{Began, ReadEnd};
use crate::catalog::Run;
use crate::ring::{Done, Ring};
use memory::{HostBuffer, SlotWrite};
use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a wait for reads leaves the queue alone while there is room for one more: a small part of what an expert takes.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// The same while there is none.
const FULL: Duration = Duration::from_millis(100);

/// An expert that is being read.
struct Active<'s> {
    job: Job,
    run: Run,
    file: &'s File,
    align: u64,
    /// Where the read that is under way ends, in bytes of the slot.
    next: u64,
    began: Began,
    reading: Reading<'s>,
}

impl Active<'_> {
    /// Where the payload begins in the slot.
    fn payload(&self) -> u64 {
        self.run.file_offset % self.align
    }

    /// Bytes of the slot that have to come.
    fn wanted(&self) -> u64 {
        self.payload() + self.run.bytes
    }
}

type Reads<'s> = Ring<'s, Active<'s>>;

impl Fetcher {
    /// Works for one drive with up to `depth` reads at once until the queue is closed.
    pub(super) fn run_ring(&self, drive: usize, depth: u32, mut aside: HostBuffer) {
        // It was tried when the cache was made; where the kernel takes it back, reads go on one by one.
        let mut ring = match Ring::new(&self.slab, depth) {
            Ok(ring) => ring,
            Err(error) => {
                tracing::warn!(%error, "the kernel refuses io_uring; one thread reads from the drive");
                return self.run(drive, aside);
            }
        };
        ring.hold_slab();
        while !self.queue.closed().load(Ordering::Relaxed) {
            while ring.in_flight() < depth as usize {
                let idle = ring.in_flight() == 0;
                let job = if idle { self.queue.next(drive) } else { self.queue.try_next(drive) };
                let Some(job) = job else { break };
                let landing = self.begin(job, &mut ring, &mut aside);
                if !self.report(landing) {
                    return;
                }
            }
            if ring.in_flight() == 0 {
                continue; // the queue was closed, or all that was taken has come already
            }
            let full = ring.in_flight() == depth as usize;
            if let Some(done) = ring.wait(if full { FULL } else { LOOK_EVERY }) {
                let landing = self.go_on(done, &mut ring, &mut aside);
                if !self.report(landing) {
                    return;
                }
            }
        }
    }

    /// Tells the cache of what has landed; false if it is gone.
    fn report(&self, landing: Option<Landing>) -> bool {
        landing.is_none_or(|landing| self.events.send(Event::Landed(landing)).is_ok())
    }

    /// Hands the first part of a job to the ring, or reads it here if it does not come in one piece.
    fn begin<'s>(&'s self, job: Job, ring: &mut Reads<'s>, aside: &mut HostBuffer) -> Option<Landing> {
        let Way::Straight(run) = self.way(&job, self.slab.slot_bytes()) else {
            return self.fetch(job, aside);
        };
        let Some(file) = self.reader.direct_file(run.file) else { return self.fetch(job, aside) };
        let Some(slot) = self.slab.write(job.slot) else {
            let id = self.catalog.id(job.expert);
            return Some(self.landed(
                &job,
                Err(ExpertError::SlotHeld { id, slot: job.slot }),
                &Began::now(&job),
            ));
        };
        let (align, began) = (self.reader.alignment(run.file), Began::now(&job));
        let reading = self.busy[job.drive].begin(job.guess);
        next_part(ring, Active { job, run, file, align, next: 0, began, reading }, slot);
        None
    }

    /// Takes in a part that has come: the expert lands, gives way, or goes on.
    fn go_on<'s>(
        &'s self,
        done: Done<'s, Active<'s>>,
        ring: &mut Reads<'s>,
        aside: &mut HostBuffer,
    ) -> Option<Landing> {
        let Done { slot, tag: mut active, came } = done;
        let least = active.wanted().min(active.next) - active.job.done;
        active.job.count.bytes += *came.as_ref().unwrap_or(&0) as u64;
        if came.is_ok_and(|came| came as u64 >= least) {
            active.job.done = active.next;
            let more = active.job.done < active.wanted();
            if more && !self.queue.gives_way(&mut active.job) {
                next_part(ring, active, slot);
                return None;
            }
            drop(active.reading);
            if more {
                drop(slot);
                self.told(&active.began, &active.job, ReadEnd::Part);
                self.queue.put_back(active.job);
                return None;
            }
            let (id, payload) = (self.catalog.id(active.job.expert), active.run.file_offset % active.align);
            let checked = self.check(&active.job, id, &slot[payload as usize..]);
            drop(slot);
            return Some(self.landed(&active.job, checked.map(|()| payload), &active.began));
        }
        // An error, or fewer bytes than there should be: read on here, with repetitions and words for what stays.
        drop((slot, active.reading));
        self.told(&active.began, &active.job, ReadEnd::Part);
        self.fetch(active.job, aside)
    }

    fn landed(&self, job: &Job, result: Result<u64, ExpertError>, began: &Began) -> Landing {
        self.queue.ended(job);
        tell(self.catalog.id(job.expert), began.at().elapsed(), &job.count, &result);
        self.told(began, job, if result.is_ok() { ReadEnd::Whole } else { ReadEnd::Failed });
        Landing { slot: job.slot, result, count: job.count }
    }
}

fn next_part<'s>(ring: &mut Reads<'s>, mut active: Active<'s>, slot: SlotWrite<'s>) {
    active.next = part_end(&active.job, active.wanted().next_multiple_of(active.align));
    active.job.count.reads += 1;
    let (done, bytes) = (active.job.done, (active.next - active.job.done) as usize);
    let offset = active.run.file_offset - active.payload() + done;
    ring.read((active.file, offset), slot, (done as usize, bytes), active);
}
