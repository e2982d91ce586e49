//! A device that times every op of another one.
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::Op;
use crate::tensor::Buffer;
use memory::Slab;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one kind of op took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Ops run.
    pub count: u64,
    /// Time of all of them, each waited for by itself.
    pub time: Duration,
}

/// Costs by op name; shared, so that they can be read while the device is owned elsewhere.
pub type Costs = Arc<Mutex<BTreeMap<&'static str, Cost>>>;

/// Runs ops one by one and waits for each: a profile, not a way to be fast.
pub struct Traced<D> {
    device: D,
    costs: Costs,
}

impl<D: Device> Traced<D> {
    /// Times the ops of `device`.
    pub fn new(device: D) -> Self {
        Traced { device, costs: Costs::default() }
    }

    /// What was seen, now and later.
    #[must_use]
    pub fn costs(&self) -> Costs {
        Arc::clone(&self.costs)
    }
}

impl<D: Device> Device for Traced<D> {
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
        for op in ops {
            let start = Instant::now();
            let submission = self.device.submit(std::slice::from_ref(op))?;
            self.device.wait(submission, None)?;
            let mut costs = self.costs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let cost = costs.entry(op.name()).or_default();
            cost.count += 1;
            cost.time += start.elapsed();
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

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.device.read_later(buffer, offset, bytes)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.device.take(ticket, into)
    }
}
