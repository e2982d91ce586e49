//! What a device is: it holds bytes and runs ops in order. It knows no model and no file.
use crate::op::Op;
use crate::tensor::Buffer;
use memory::{Fault, MappedPart, Slab};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers a submission; later ones are larger. A device works in order, so a completed one completes all before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Submission(pub u64);

/// A read that was asked for and can be taken when `after` is done. Take it once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a ticket that is not taken keeps its bytes"]
pub struct Ticket {
    /// The work the read comes after.
    pub after: Submission,
    /// The device's own number of the read.
    pub id: u64,
    /// How many bytes [`Device::take`] gives.
    pub bytes: u64,
}

/// How much memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes of allocations alive.
    pub allocated: u64,
    /// Bytes it can still give, if it knows.
    pub free: Option<u64>,
}

/// Why a device cannot go on. After any of these the step's results are lost.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No memory for a buffer.
    #[error("{device}: no memory for {label} ({bytes} bytes): {reason}")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// What the buffer was for.
        label: String,
        /// How large it would have been.
        bytes: u64,
        /// The system's words.
        reason: String,
    },
    /// A handle that names nothing: freed, or of another device.
    #[error("{device}: {what} names no allocation (freed, or made by another device)")]
    UnknownHandle {
        /// The device's name.
        device: String,
        /// The handle.
        what: String,
    },
    /// A range outside its buffer.
    #[error("{device}: bytes {start}..{end} lie outside buffer {buffer:?} of {bytes} bytes")]
    OutOfRange {
        /// The device's name.
        device: String,
        /// The buffer.
        buffer: Buffer,
        /// First byte.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The buffer's size.
        bytes: u64,
    },
    /// [`crate::Checked`] found a candidate that departs from the oracle.
    #[error("{op} departs from the oracle: {operand} differs by {error:e} (limit {limit:e}); {detail}")]
    Mismatch {
        /// The op's name.
        op: &'static str,
        /// Which output or state.
        operand: String,
        /// Relative L2 distance.
        error: f32,
        /// What would have been allowed.
        limit: f32,
        /// The op with its operands.
        detail: String,
    },
    /// The device itself failed.
    #[error("{device}: {reason}")]
    Failed {
        /// The device's name.
        device: String,
        /// What happened.
        reason: String,
    },
}

/// A place where ops run. All work happens in the order of the calls; `submit`, `write`, `copy` and `read_later`
/// do not wait, [`wait`](Device::wait) and [`take`](Device::take) do.
///
/// Models meet a device through [`Ops`](crate::Ops), which also checks shapes. Bare, it looks like this:
///
/// ```
/// use ops::{Device, Op, Oracle, Tensor};
///
/// # fn main() -> Result<(), ops::DeviceError> {
/// let device: &mut dyn Device = &mut Oracle::new(1)?;
/// let buffer = device.allocate(24, "three pairs of numbers")?;
/// let numbers: Vec<u8> = [1.0_f32, 2.0, 10.0, 20.0].iter().flat_map(|number| number.to_le_bytes()).collect();
/// device.write(buffer, 0, &numbers)?;
/// // Offsets of tensors count numbers, those of buffers bytes.
/// let [x, y, out] = [0, 2, 4].map(|offset| Tensor::new(buffer, offset, 1, 2));
/// device.submit(&[Op::Add { x, y, out }])?;
/// let ticket = device.read_later(buffer, 16, 8)?;
/// let mut sum = [0; 8];
/// device.take(ticket, &mut sum)?;
/// assert_eq!(sum[..4], 11.0_f32.to_le_bytes());
/// # Ok(())
/// # }
/// ```
pub trait Device: Send {
    /// Its name in errors and reports.
    fn name(&self) -> &str;

    /// What it holds and could hold.
    fn memory(&self) -> MemoryInfo;

    /// A buffer of zeros; `label` says in errors what it is for.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError>;

    /// The slots of experts as a buffer: read in place, or kept in step by the device.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where it cannot be reached in place nor copied.
    fn adopt(&mut self, slab: &Arc<Slab>, label: &str) -> Result<Buffer, DeviceError>;

    /// Bytes of a mapped file as a buffer that holds matrices, read in place and never written. A device that cannot read it there
    /// refuses.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] of a device that needs its weights in memory of its own.
    fn map(&mut self, _part: &MappedPart, label: &str) -> Result<Buffer, DeviceError> {
        Err(DeviceError::Failed {
            device: self.name().into(),
            reason: format!("it cannot read {label} in a mapped file; take --dense-residency ram"),
        })
    }

    /// Whether a mapped file could not be read since the last call, and which one first: all results since then may be wrong. To
    /// be asked when all work is done; the file is read anew afterwards.
    fn fault(&mut self) -> Option<Fault> {
        None
    }

    /// Gives a buffer back once all work before is done.
    ///
    /// # Errors
    /// [`DeviceError::UnknownHandle`].
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Bytes into a buffer, after all work before and before all work after.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::UnknownHandle`].
    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// `bytes` bytes from one place to another, in order like an op; the ranges do not overlap.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::UnknownHandle`].
    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError>;

    /// Starts the ops in order.
    ///
    /// # Errors
    /// What the device finds at once; later failures come from [`wait`](Device::wait).
    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError>;

    /// The last submission made; [`Submission`] 0 before the first.
    fn last(&self) -> Submission;

    /// Whether a submission is completed, without waiting.
    ///
    /// # Errors
    /// The failure of the work waited for.
    fn done(&mut self, submission: Submission) -> Result<bool, DeviceError>;

    /// Waits for a submission, at most `limit` if given; whether it is completed.
    ///
    /// # Errors
    /// The failure of the work waited for.
    fn wait(&mut self, submission: Submission, limit: Option<Duration>) -> Result<bool, DeviceError>;

    /// From when to when a completed submission was worked on, of a device that works after [`submit`](Device::submit)
    /// has returned; it can say so for the last [`SPANS_KEPT`]. None of a device whose calls return when the work is done.
    fn ran(&mut self, _submission: Submission) -> Option<Range<Instant>> {
        None
    }

    /// Asks for bytes as they are after all work before.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::UnknownHandle`].
    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError>;

    /// Waits for a read and gives its bytes; `into` is `ticket.bytes` long.
    ///
    /// # Errors
    /// The failure of the work before it.
    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError>;
}

/// Submissions for which a device that works late keeps what [`Device::ran`] says: more than a step has.
pub const SPANS_KEPT: usize = 1 << 16;

/// Zeros that are written at a time.
const CLEAR_BYTES: u64 = 1 << 20;

/// Zeros into `range` of a buffer. Also makes memory that the system gives only at its first use be there from now on,
/// so that a plan that fits at the start fits to the end.
///
/// # Errors
/// What [`Device::write`] gives.
pub fn clear(device: &mut dyn Device, buffer: Buffer, range: Range<u64>) -> Result<(), DeviceError> {
    let zeros = vec![0; CLEAR_BYTES.min(range.end - range.start) as usize];
    let mut start = range.start;
    while start < range.end {
        let count = CLEAR_BYTES.min(range.end - start);
        device.write(buffer, start, &zeros[..count as usize])?;
        start += count;
    }
    Ok(())
}
