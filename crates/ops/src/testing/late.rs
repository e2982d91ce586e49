//! A device that is late: nothing happens at the call, everything in order and later.
use crate::device::{Device, DeviceError, MemoryInfo, SPANS_KEPT, Submission, Ticket};
use crate::op::Op;
use crate::tensor::Buffer;
use memory::{Fault, MappedPart, Slab};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Queues all work for another device. A submission is completed after a seeded number of questions: [`Device::done`]
/// says false until then, [`Device::wait`] with a limit may come back without it (it does not sleep: the limit is over
/// at once), and only [`Device::wait`] without a limit and [`Device::take`] insist.
///
/// Buffers are made at once, for they are new and empty. Bytes of a write are copied at the call; slots of experts
/// are read when the work is done, so that a slot that is refilled too early shows.
pub struct Late<D> {
    device: D,
    name: String,
    random: u64,
    /// Sizes of the live buffers of its own; None for slots.
    buffers: BTreeMap<Buffer, Option<u64>>,
    queue: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    /// When the last completed submissions were worked on, the latest at the end.
    spans: VecDeque<Range<Instant>>,
    /// Questions until the next submission is completed.
    patience: u64,
    tickets: u64,
    read: BTreeMap<u64, Vec<u8>>,
}

enum Work {
    Write { buffer: Buffer, offset: u64, bytes: Vec<u8> },
    Copy { from: (Buffer, u64), to: (Buffer, u64), bytes: u64 },
    Free(Buffer),
    Submit(Vec<Op>),
    Read { id: u64, buffer: Buffer, offset: u64, bytes: u64 },
}

impl<D: Device> Late<D> {
    /// Makes an empty `device` late; the seed decides how late.
    pub fn new(device: D, seed: u64) -> Self {
        let name = format!("late {}", device.name());
        let mut late = Late {
            device,
            name,
            random: seed,
            buffers: BTreeMap::new(),
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            spans: VecDeque::new(),
            patience: 0,
            tickets: 0,
            read: BTreeMap::new(),
        };
        late.patience = late.draw();
        late
    }

    /// How many calls wait to be done.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A small seeded number (Knuth's linear congruential generator).
    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % 5
    }

    /// One more question was asked: perhaps the next submission completes.
    fn ask(&mut self) -> Result<(), DeviceError> {
        if self.patience > 0 {
            self.patience -= 1;
            return Ok(());
        }
        self.patience = self.draw();
        let next = Submission(self.completed + 1);
        self.work_until(|late| late.completed >= next.0)
    }

    /// Does queued work until that holds, or none is left.
    fn work_until(&mut self, enough: impl Fn(&Self) -> bool) -> Result<(), DeviceError> {
        while !enough(self) {
            let Some(work) = self.queue.pop_front() else { break };
            self.work(work)?;
        }
        Ok(())
    }

    fn work(&mut self, work: Work) -> Result<(), DeviceError> {
        match work {
            Work::Write { buffer, offset, bytes } => self.device.write(buffer, offset, &bytes),
            Work::Copy { from, to, bytes } => self.device.copy(from, to, bytes),
            Work::Free(buffer) => self.device.free(buffer),
            Work::Submit(ops) => {
                // Counted first: a submission that failed is over too.
                self.completed += 1;
                let start = Instant::now();
                let done = self.device.submit(&ops).and_then(|sent| self.device.wait(sent, None));
                if self.spans.len() == SPANS_KEPT {
                    self.spans.pop_front();
                }
                self.spans.push_back(start..Instant::now());
                done.map(|_| ())
            }
            Work::Read { id, buffer, offset, bytes } => {
                let ticket = self.device.read_later(buffer, offset, bytes)?;
                let mut into = vec![0; bytes as usize];
                self.device.take(ticket, &mut into)?;
                self.read.insert(id, into);
                Ok(())
            }
        }
    }

    fn unknown(&self, what: String) -> DeviceError {
        DeviceError::UnknownHandle { device: self.name.clone(), what }
    }

    /// Whether the range lies in a live buffer.
    fn check(&self, buffer: Buffer, start: u64, bytes: u64) -> Result<(), DeviceError> {
        let Some(Some(size)) = self.buffers.get(&buffer).copied() else {
            return Err(self.unknown(format!("{buffer:?}")));
        };
        let end = start.saturating_add(bytes);
        if end <= size {
            return Ok(());
        }
        Err(DeviceError::OutOfRange { device: self.name.clone(), buffer, start, end, bytes: size })
    }

    fn is_completed(&self, submission: Submission) -> Result<bool, DeviceError> {
        if submission.0 > self.submitted {
            return Err(self.unknown(format!("{submission:?}")));
        }
        Ok(self.completed >= submission.0)
    }
}

impl<D: Device> Device for Late<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.device.allocate(bytes, label)?;
        self.buffers.insert(buffer, Some(bytes));
        Ok(buffer)
    }

    fn adopt(&mut self, slab: &Arc<Slab>, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.device.adopt(slab, label)?;
        self.buffers.insert(buffer, None);
        Ok(buffer)
    }

    fn map(&mut self, part: &MappedPart, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.device.map(part, label)?;
        self.buffers.insert(buffer, Some(part.bytes()));
        Ok(buffer)
    }

    fn fault(&mut self) -> Option<Fault> {
        self.device.fault()
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.buffers.remove(&buffer).ok_or_else(|| self.unknown(format!("{buffer:?}")))?;
        self.queue.push_back(Work::Free(buffer));
        Ok(())
    }

    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(buffer, offset, bytes.len() as u64)?;
        self.queue.push_back(Work::Write { buffer, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError> {
        self.check(from.0, from.1, bytes)?;
        self.check(to.0, to.1, bytes)?;
        self.queue.push_back(Work::Copy { from, to, bytes });
        Ok(())
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        self.queue.push_back(Work::Submit(ops.to_vec()));
        self.submitted += 1;
        Ok(Submission(self.submitted))
    }

    fn last(&self) -> Submission {
        Submission(self.submitted)
    }

    fn done(&mut self, submission: Submission) -> Result<bool, DeviceError> {
        if !self.is_completed(submission)? {
            self.ask()?;
        }
        self.is_completed(submission)
    }

    fn wait(&mut self, submission: Submission, limit: Option<Duration>) -> Result<bool, DeviceError> {
        if limit.is_some() {
            return self.done(submission);
        }
        self.is_completed(submission)?;
        self.work_until(|late| late.completed >= submission.0)?;
        Ok(true)
    }

    fn ran(&mut self, submission: Submission) -> Option<Range<Instant>> {
        let back = self.completed.checked_sub(submission.0)? as usize;
        let at = self.spans.len().checked_sub(back + 1)?;
        self.spans.get(at).cloned()
    }

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.check(buffer, offset, bytes)?;
        self.tickets += 1;
        self.queue.push_back(Work::Read { id: self.tickets, buffer, offset, bytes });
        Ok(Ticket { after: self.last(), id: self.tickets, bytes })
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.work_until(|late| late.read.contains_key(&ticket.id))?;
        let bytes = self.read.remove(&ticket.id).ok_or_else(|| self.unknown(format!("{ticket:?}")))?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}
