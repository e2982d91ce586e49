//! A device that computes nothing: it takes every call, and what is read from it is
//! all ones (a number that is finite, a flag that is set, a pick that exists). A model's step run on it shows how much room
//! its intermediate results need, so that nobody has to keep a formula beside the model.
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::Op;
use crate::tensor::Buffer;
use memory::Slab;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Holds no byte.
#[derive(Default)]
pub struct Rehearsal {
    buffers: u32,
    allocated: u64,
    submissions: u64,
    kept: Option<Arc<Mutex<Vec<Op>>>>,
}

impl Rehearsal {
    /// One that keeps the ops it is given, and where they are kept.
    #[must_use]
    pub fn keeping() -> (Self, Arc<Mutex<Vec<Op>>>) {
        let kept = Arc::default();
        (Rehearsal { kept: Some(Arc::clone(&kept)), ..Rehearsal::default() }, kept)
    }
}

impl Device for Rehearsal {
    fn name(&self) -> &'static str {
        "rehearsal"
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { allocated: self.allocated, free: None }
    }

    fn allocate(&mut self, bytes: u64, _: &str) -> Result<Buffer, DeviceError> {
        self.allocated += bytes;
        self.buffers += 1;
        Ok(Buffer(self.buffers - 1))
    }

    fn adopt(&mut self, _: &Arc<Slab>, label: &str) -> Result<Buffer, DeviceError> {
        self.allocate(0, label)
    }

    fn free(&mut self, _: Buffer) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&mut self, _: Buffer, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn copy(&mut self, _: (Buffer, u64), _: (Buffer, u64), _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        if let Some(kept) = &self.kept {
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend(ops);
        }
        self.submissions += 1;
        Ok(self.last())
    }

    fn last(&self) -> Submission {
        Submission(self.submissions)
    }

    fn done(&mut self, _: Submission) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&mut self, _: Submission, _: Option<Duration>) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn read_later(&mut self, _: Buffer, _: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        Ok(Ticket { after: self.last(), id: 0, bytes })
    }

    fn take(&mut self, _: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        for word in into.chunks_exact_mut(4) {
            word.copy_from_slice(&1u32.to_le_bytes());
        }
        Ok(())
    }
}
