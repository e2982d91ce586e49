//! A device that runs every op on a candidate and on the oracle, from the oracle's inputs, and compares everything
//! the op writes.
//!
//! Whole-model comparison proves nothing where a rounding difference becomes another mixture of layers; this does.
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::{Kind, Op, Operand};
use crate::oracle::Oracle;
use crate::tensor::{Buffer, Ids};
use memory::{Fault, MappedPart, Slab};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How far a candidate may be from the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Not a bit: the contract between CPU devices.
    Nothing,
    /// What [`Op::tolerance`] says: for devices that cannot follow the contract's order.
    Tolerance,
}

/// The worst difference seen in one kind of op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worst {
    /// Ops compared.
    pub count: u64,
    /// Largest relative L2 distance of one operand.
    pub relative: f32,
    /// Largest absolute difference of one number.
    pub absolute: f32,
}

/// What was seen so far, by op name; shared, so that it can be read while the device is owned elsewhere.
pub type Report = Arc<Mutex<BTreeMap<&'static str, Worst>>>;

/// The oracle beside a candidate. Reads give the oracle's numbers.
pub struct Checked<D> {
    oracle: Oracle,
    candidate: D,
    allowed: Allowed,
    report: Report,
    name: String,
}

impl<D: Device> Checked<D> {
    /// Compares `candidate` with `oracle`; both are empty.
    pub fn new(oracle: Oracle, candidate: D, allowed: Allowed) -> Self {
        let name = format!("checked {}", candidate.name());
        Checked { oracle, candidate, allowed, report: Report::default(), name }
    }

    /// What is seen, now and later.
    #[must_use]
    pub fn report(&self) -> Report {
        Arc::clone(&self.report)
    }

    fn run(&mut self, op: &Op) -> Result<(), DeviceError> {
        self.oracle.run(op);
        let submission = self.candidate.submit(std::slice::from_ref(op))?;
        self.candidate.wait(submission, None)?;
        for operand in op.writes().iter() {
            self.compare(op, operand)?;
        }
        Ok(())
    }

    fn compare(&mut self, op: &Op, operand: Operand) -> Result<(), DeviceError> {
        let t = operand.tensor;
        let (start, end) = t.byte_range();
        let mut bytes = vec![0u8; (end - start) as usize];
        let ticket = self.candidate.read_later(t.buffer, start, end - start)?;
        self.candidate.take(ticket, &mut bytes)?;
        let got = gather(&bytes, operand);
        let want = match operand.kind {
            Kind::F32 => self.oracle.load(t).iter().map(|v| v.to_bits()).collect(),
            Kind::U32 => self.oracle.load_ids(Ids(t)),
        };
        let difference = Difference::of(&got, &want, operand.kind);
        let mut report = self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let worst = report.entry(op.name()).or_default();
        worst.count += 1;
        worst.relative = worst.relative.max(difference.relative);
        worst.absolute = worst.absolute.max(difference.absolute);
        drop(report);
        let limit = if self.allowed == Allowed::Nothing { 0.0 } else { op.tolerance() };
        if difference.bits && (difference.relative > limit || difference.relative.is_nan() || limit == 0.0) {
            return Err(DeviceError::Mismatch {
                op: op.name(),
                operand: format!("{t:?}"),
                error: difference.relative,
                limit,
                detail: format!("{op:?}"),
            });
        }
        // The next op starts from the oracle's numbers, so that differences never add up.
        if difference.bits {
            for (r, row) in want.chunks_exact(t.cols as usize).enumerate() {
                let at = (t.offset + r as u64 * u64::from(t.stride)) * 4;
                self.candidate.write(t.buffer, at, bytemuck::cast_slice(row))?;
            }
        }
        Ok(())
    }
}

/// The bits of an operand's numbers, row after row.
fn gather(bytes: &[u8], operand: Operand) -> Vec<u32> {
    let t = operand.tensor;
    let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let stride = if t.rows > 1 { t.stride } else { t.cols };
    words.enumerate().filter(|(i, _)| (*i as u32) % stride < t.cols).map(|(_, w)| w).collect()
}

struct Difference {
    /// Whether any bit differs.
    bits: bool,
    relative: f32,
    absolute: f32,
}

impl Difference {
    fn of(got: &[u32], want: &[u32], kind: Kind) -> Self {
        if got == want {
            return Difference { bits: false, relative: 0.0, absolute: 0.0 };
        }
        if kind == Kind::U32 {
            return Difference { bits: true, relative: f32::INFINITY, absolute: f32::INFINITY };
        }
        let (mut distance, mut norm, mut absolute) = (0.0f64, 0.0f64, 0.0f64);
        for (g, w) in got.iter().zip(want).map(|(g, w)| (f32::from_bits(*g), f32::from_bits(*w))) {
            let d = if g.to_bits() == w.to_bits() { 0.0 } else { f64::from(g) - f64::from(w) };
            distance += d * d;
            norm += f64::from(w) * f64::from(w);
            absolute = absolute.max(d.abs());
        }
        let relative = if norm == 0.0 { distance.sqrt() } else { (distance / norm).sqrt() };
        Difference { bits: true, relative: relative as f32, absolute: absolute as f32 }
    }
}

impl<D: Device> Device for Checked<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> MemoryInfo {
        let (oracle, candidate) = (self.oracle.memory(), self.candidate.memory());
        MemoryInfo { allocated: oracle.allocated + candidate.allocated, free: candidate.free }
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.oracle.allocate(bytes, label)?;
        assert_eq!(buffer, self.candidate.allocate(bytes, label)?, "both devices number buffers alike");
        Ok(buffer)
    }

    fn adopt(&mut self, slab: &Arc<Slab>, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.oracle.adopt(slab, label)?;
        assert_eq!(buffer, self.candidate.adopt(slab, label)?, "both devices number buffers alike");
        Ok(buffer)
    }

    fn map(&mut self, part: &MappedPart, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.oracle.map(part, label)?;
        assert_eq!(buffer, self.candidate.map(part, label)?, "both devices number buffers alike");
        Ok(buffer)
    }

    fn fault(&mut self) -> Option<Fault> {
        self.oracle.fault().or(self.candidate.fault())
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.oracle.free(buffer)?;
        self.candidate.free(buffer)
    }

    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.oracle.write(buffer, offset, bytes)?;
        self.candidate.write(buffer, offset, bytes)
    }

    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError> {
        self.oracle.copy(from, to, bytes)?;
        self.candidate.copy(from, to, bytes)
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        for op in ops {
            self.run(op)?;
        }
        self.oracle.submit(&[])
    }

    fn last(&self) -> Submission {
        self.oracle.last()
    }

    fn done(&mut self, submission: Submission) -> Result<bool, DeviceError> {
        self.oracle.done(submission)
    }

    fn wait(&mut self, submission: Submission, limit: Option<Duration>) -> Result<bool, DeviceError> {
        self.oracle.wait(submission, limit)
    }

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.oracle.read_later(buffer, offset, bytes)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.oracle.take(ticket, into)
    }
}
