//! The time of a step belongs to the section that submitted the work, also on a device that works long after the call.
mod common;

use common::{Setup, some_ids};
use engine::{Engine, Session};
use models::{Logits, Section};
use ops::testing::Late;
use ops::{Buffer, Device, DeviceError, MemoryInfo, Op, Oracle, Submission, Ticket};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_hours(1);

/// A late device whose submissions, it says, took an hour each, one after the other.
struct Hourly {
    device: Late<Oracle>,
    first: Option<(Submission, Instant)>,
}

impl Device for Hourly {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        self.device.allocate(bytes, label)
    }

    fn adopt(&mut self, slab: &Arc<memory::Slab>, label: &str) -> Result<Buffer, DeviceError> {
        self.device.adopt(slab, label)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.device.free(buffer)
    }

    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(buffer, offset, bytes)
    }

    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError> {
        self.device.copy(from, to, bytes)
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        let submission = self.device.submit(ops)?;
        self.first.get_or_insert((submission, Instant::now()));
        Ok(submission)
    }

    fn last(&self) -> Submission {
        self.device.last()
    }

    fn done(&mut self, submission: Submission) -> Result<bool, DeviceError> {
        self.device.done(submission)
    }

    fn wait(&mut self, submission: Submission, limit: Option<Duration>) -> Result<bool, DeviceError> {
        self.device.wait(submission, limit)
    }

    fn ran(&mut self, submission: Submission) -> Option<Range<Instant>> {
        self.device.ran(submission)?;
        let (first, start) = self.first?;
        let start = start + HOUR * (submission.0 - first.0) as u32;
        Some(start..start + HOUR)
    }

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.device.read_later(buffer, offset, bytes)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.take(ticket, into)
    }
}

/// One step of three tokens; the whole hours of each section, and the submissions of all.
fn hours(mut engine: Engine) -> ([u64; 4], u64) {
    let mut session = Session::new(&mut engine).unwrap();
    session.feed(&mut engine, &some_ids(5, 3), Logits::Last, None).unwrap();
    let sections = [Section::Attention, Section::Moe, Section::ExpertWait, Section::Head];
    let hours = sections.map(|section| engine.clock().spent(section).as_secs() / HOUR.as_secs());
    (hours, engine.usage().submissions)
}

#[test]
fn work_counts_where_it_was_submitted() {
    let device = Box::new(Hourly { device: Late::new(Oracle::new(1).unwrap(), 7), first: None });
    let (hours, submissions) = hours(Setup { device, ..Setup::new() }.load());
    // Nine layers submit once in each half; then there are the check and the logits.
    assert_eq!((hours, submissions), ([9, 9, 0, 2], 20));
}

#[test]
fn a_device_that_is_done_at_once_has_no_hours() {
    let (hours, submissions) = hours(Setup::new().load());
    assert_eq!((hours, submissions), ([0; 4], 20));
}
