//! The time of a step belongs to the section that submitted the work, also on a device that works long after the call; and
//! who watches is told of it.
mod common;

use common::{Setup, part, some_ids};
use engine::{Engine, Session, StepSpan, Watch};
use models::{Logits, Part, Section, Wait, WaitFor, Work};
use ops::testing::Late;
use ops::{Buffer, Device, DeviceError, MemoryInfo, Op, Oracle, Submission, Ticket};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::cache::{ReadSpan, UnderWay, Waiting, WatchReads};

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

/// Keeps what it is told of steps: position, parts, rows and whether there are times of the device, of the host and of reads.
#[derive(Default)]
struct Told {
    steps: Mutex<Vec<(u32, usize, u64)>>,
    work: Mutex<Vec<Work>>,
    waits: Mutex<Vec<Wait>>,
    reads: AtomicU64,
}

impl WatchReads for Told {
    fn read(&self, read: &ReadSpan) {
        self.reads.fetch_add(read.bytes, Ordering::SeqCst);
    }

    fn under_way(&self, _counts: &UnderWay) {}

    fn waiting(&self, _counts: &Waiting) {}
}

impl Watch for Told {
    fn step(&self, step: &StepSpan<'_>) {
        self.steps.lock().unwrap().push((step.position, step.parts, step.rows));
        self.work.lock().unwrap().extend_from_slice(step.times.work);
        let waits = step.times.expert_waits.iter().chain(step.times.other_waits);
        for wait in waits.clone() {
            let (all, span) = (&step.times.span, &wait.span);
            assert!(all.start <= span.start && span.end <= all.end, "{wait:?} in {all:?}");
        }
        self.waits.lock().unwrap().extend(waits.cloned());
    }
}

#[test]
fn a_watcher_is_told_when_the_device_worked() {
    let device = Box::new(Hourly { device: Late::new(Oracle::new(1).unwrap(), 7), first: None });
    let mut engine = Setup { device, ..Setup::new() }.load();
    let told = Arc::new(Told::default());
    engine.watch(told.clone());
    let mut session = Session::new(&mut engine).unwrap();
    session.feed(&mut engine, &some_ids(5, 3), Logits::Last, None).unwrap();
    assert_eq!(*told.steps.lock().unwrap(), [(0, 1, 3)]);
    let work = told.work.lock().unwrap();
    assert!(work.iter().all(|work| work.sent.span.end - work.sent.span.start == HOUR));
    let places: Vec<_> = work.iter().map(|work| (work.section, work.layer)).collect();
    let layers = (0..9).flat_map(|layer| [(Section::Attention, Some(layer)), (Section::Moe, Some(layer))]);
    let head = [(Section::Head, None); 2];
    assert_eq!(places, layers.chain(head).collect::<Vec<_>>());
}

#[test]
fn a_watcher_is_told_of_reads_and_waits_and_of_no_step_that_never_was() {
    let mut engine = Setup::new().slots(8).load();
    let told = Arc::new(Told::default());
    engine.watch(told.clone());
    let before = engine.cache_statistics().bytes_read;
    let mut state = engine.create_state().unwrap();
    let ids = some_ids(5, 4);
    engine.step(&mut [part(&mut state, &ids)]).unwrap().remove(0).unwrap();
    let refused = Part { position: 99, ..part(&mut state, &ids) };
    engine.step(&mut [refused]).unwrap().remove(0).unwrap_err();
    engine.step(&mut [part(&mut state, &ids[..1])]).unwrap().remove(0).unwrap();
    assert_eq!(*told.steps.lock().unwrap(), [(0, 1, 4), (4, 1, 1)]);
    let read = engine.cache_statistics().bytes_read - before;
    assert_eq!(told.reads.load(Ordering::SeqCst), read);
    let waits = told.waits.lock().unwrap();
    let count =
        |what, layer| waits.iter().filter(|wait| wait.what == what && wait.layer == Some(layer)).count();
    for layer in 1..9 {
        assert_eq!((count(WaitFor::Picks, layer), count(WaitFor::Cache, layer)), (2, 2), "layer {layer}");
        assert!(count(WaitFor::Experts, layer) >= 2, "layer {layer}");
    }
    // Four tokens want more than eight experts a layer.
    assert!(waits.iter().any(|wait| wait.what == WaitFor::Slots));
}
