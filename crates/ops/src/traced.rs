//! A device that says of another one what every op took and what it had to do at least.
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::Op;
use crate::tensor::{Buffer, Ids, NONE, Tensor};
use crate::work::{Picked, Work};
use memory::{Fault, MappedPart, Slab};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What one kind of op took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Ops run.
    pub count: u64,
    /// Time of all of them, each waited for by itself.
    pub time: Duration,
    /// What all of them had to do.
    pub work: Work,
}

/// Costs by op name.
pub type Costs = BTreeMap<&'static str, Cost>;

/// What a [`Traced`] has seen, and whether it looks; shared, because the device itself is owned by who uses it.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    looks: Arc<AtomicBool>,
    costs: Arc<Mutex<Costs>>,
}

impl Trace {
    /// From now on ops are run one by one and noted, or handed on as they come. A change holds from the next submission on.
    pub fn look(&self, looks: bool) {
        self.looks.store(looks, Ordering::Relaxed);
    }

    /// What was seen since the last call.
    #[must_use]
    pub fn take(&self) -> Costs {
        std::mem::take(&mut *self.costs())
    }

    fn looks(&self) -> bool {
        self.looks.load(Ordering::Relaxed)
    }

    fn costs(&self) -> MutexGuard<'_, Costs> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands everything on to another device. While its [`Trace`] looks, ops are run one by one and each is waited for: a
/// profile, not a way to be fast. The results are the same.
pub struct Traced {
    trace: Trace,
    device: Box<dyn Device>,
}

impl Traced {
    /// Looks at `device` when [`Trace::look`] says so.
    #[must_use]
    pub fn new(device: Box<dyn Device>) -> Self {
        Traced { trace: Trace::default(), device }
    }

    /// What it sees, now and later.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    fn run(&mut self, op: &Op) -> Result<(), DeviceError> {
        let work = op.work(self.picked(op)?);
        let start = Instant::now();
        let submission = self.device.submit(std::slice::from_ref(op))?;
        self.device.wait(submission, None)?;
        let time = start.elapsed();
        let mut costs = self.trace.costs();
        let cost = costs.entry(op.name()).or_default();
        cost.count += 1;
        cost.time += time;
        cost.work += work;
        Ok(())
    }

    /// What an op of routed experts finds.
    fn picked(&mut self, op: &Op) -> Result<Picked, DeviceError> {
        let Op::Experts { picks: Ids(picks), table: Ids(table), .. } = *op else {
            return Ok(Picked::default());
        };
        let slots = self.numbers(table)?;
        let mut experts: Vec<u32> = self.numbers(picks)?;
        experts.retain(|&id| id != NONE && slots[2 * id as usize] != NONE);
        let rows = experts.len() as u64;
        experts.sort_unstable();
        experts.dedup();
        Ok(Picked { experts: experts.len() as u64, rows })
    }

    /// Numbers as they are after all work before, row after row.
    fn numbers(&mut self, t: Tensor) -> Result<Vec<u32>, DeviceError> {
        let (start, end) = t.byte_range();
        let ticket = self.device.read_later(t.buffer, start, end - start)?;
        let mut bytes = vec![0; (end - start) as usize];
        self.device.take(ticket, &mut bytes)?;
        let all: Vec<u32> = bytes.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect();
        let rows = all.chunks(t.stride.max(1) as usize);
        Ok(rows.flat_map(|row| &row[..t.cols as usize]).copied().collect())
    }
}

impl Device for Traced {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        self.device.allocate(bytes, label)
    }

    fn adopt(&mut self, slab: &Arc<Slab>, label: &str) -> Result<Buffer, DeviceError> {
        self.device.adopt(slab, label)
    }

    fn map(&mut self, part: &MappedPart, label: &str) -> Result<Buffer, DeviceError> {
        self.device.map(part, label)
    }

    fn fault(&mut self) -> Option<Fault> {
        self.device.fault()
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
        if !self.trace.looks() {
            return self.device.submit(ops);
        }
        for op in ops {
            self.run(op)?;
        }
        Ok(self.device.last())
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
        self.device.ran(submission)
    }

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.device.read_later(buffer, offset, bytes)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.take(ticket, into)
    }
}
