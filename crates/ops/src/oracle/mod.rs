//! The oracle: what each op means, in scalar loops written to be read.
//!
//! The order of every sum is the contract of `docs/numerics.md`. The oracle may split whole rows, heads and experts over
//! threads, never a sum. Nobody speeds it up at the price of a harder text: the fast devices are elsewhere.
mod attend;
mod delta;
mod dispatch;
mod elementwise;
mod experts;
mod linear;
mod memory;
mod norm;
mod route;
mod split;

use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::Op;
use crate::tensor::{Buffer, Ids, Tensor};
use ::memory::{Fault, HostBuffer, MappedPart, Slab};
pub use dispatch::{Kernel, with_fma};
use memory::{Allocation, Memory, NAME};
use split::Split;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The scalar device. Its work is done when a call returns.
///
/// ```
/// use ops::{Device, Oracle};
///
/// # fn main() -> Result<(), ops::DeviceError> {
/// // The number of threads changes how fast results come, and no bit of them.
/// let oracle = Oracle::new(std::thread::available_parallelism().map_or(1, usize::from))?;
/// assert_eq!(oracle.name(), "oracle");
/// # Ok(())
/// # }
/// ```
pub struct Oracle {
    memory: Memory,
    split: Split,
    submissions: u64,
    tickets: BTreeMap<u64, Vec<u8>>,
    next_ticket: u64,
}

impl Oracle {
    /// An oracle that splits rows, heads and experts over `threads` threads.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        Ok(Oracle {
            memory: Memory::default(),
            split: Split::new(threads)?,
            submissions: 0,
            tickets: BTreeMap::new(),
            next_ticket: 0,
        })
    }

    /// The numbers of a tensor, row after row.
    #[must_use]
    pub fn load(&self, t: Tensor) -> Vec<f32> {
        self.memory.load(t)
    }

    /// The same for u32 numbers.
    #[must_use]
    pub fn load_ids(&self, ids: Ids) -> Vec<u32> {
        self.memory.load_ids(ids)
    }

    /// The slots that an adopted buffer stands for.
    #[cfg(feature = "testing")]
    pub(crate) fn slots(&self, buffer: Buffer) -> &Slab {
        self.memory.slots(buffer)
    }

    /// Puts numbers into a tensor, row after row.
    pub fn store(&mut self, t: Tensor, values: &[f32]) {
        self.memory.store(t, values);
    }

    /// Runs one op.
    pub fn run(&mut self, op: &Op) {
        let (memory, split) = (&mut self.memory, &self.split);
        match *op {
            Op::MatMul { out, x, weight, activations } => {
                linear::mat_mul(memory, split, out, x, weight, activations);
            }
            Op::HeadMatMul { out, x, weight, heads } => {
                linear::head_mat_mul(memory, split, out, x, weight, heads);
            }
            Op::RmsNorm { out, x, gain, eps } => norm::rms_norm(memory, split, out, x, gain, eps),
            Op::L2Norm { out, x, eps, scale } => norm::l2_norm(memory, split, out, x, eps, scale),
            Op::ShortConv { out, x, window, taps } => delta::short_conv(memory, split, out, x, window, taps),
            Op::DecayGate { out, f, a_log, dt_bias, formula } => {
                delta::decay_gate(memory, split, out, f, a_log, dt_bias, formula);
            }
            Op::DeltaRule { out, q, k, v, decay, beta, state } => {
                delta::delta_rule(memory, split, out, delta::Inputs { q, k, v, decay, beta }, state);
            }
            Op::AppendLatent { latent, rope, cache, position } => {
                attend::append_latent(memory, latent, rope, cache, position);
            }
            Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale } => {
                let query = attend::Query { q, q_rope, position, selected, heads, scale };
                attend::attend_latent(memory, split, out, query, cache);
            }
            Op::ResidualMix { out, running, snapshots, count, weight, eps } => {
                norm::residual_mix(memory, split, out, running, (snapshots, count), weight, eps);
            }
            Op::Glu { out, gate, up, activation } => {
                elementwise::glu(memory, split, out, gate, up, activation);
            }
            Op::GateMul { out, x, gate } => elementwise::gate_mul(memory, split, out, x, gate),
            Op::Route { picks, weights, logits, bias, routing } => {
                route::route(memory, picks, weights, logits, bias, routing);
            }
            Op::Experts { out, x, picks, table, experts, activation, activations } => {
                let expert = crate::Expert { experts, activation, activations };
                experts::experts(memory, split, out, x, picks, table, expert);
            }
            Op::Combine { out, rows, picks, weights } => {
                elementwise::combine(memory, split, out, rows, picks, weights);
            }
            Op::Add { out, x, y } => elementwise::add(memory, out, x, y),
            Op::Copy { out, x } => {
                let values = memory.load(x);
                memory.store(out, &values);
            }
            Op::Finite { out, x } => elementwise::finite(memory, out, x),
        }
    }
}

impl Device for Oracle {
    fn name(&self) -> &str {
        NAME
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { allocated: self.memory.allocated, free: None }
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let memory = HostBuffer::new(bytes).map_err(|e| DeviceError::OutOfMemory {
            device: NAME.into(),
            label: label.into(),
            bytes,
            reason: e.to_string(),
        })?;
        Ok(self.memory.add(Allocation::Owned(memory), bytes))
    }

    fn adopt(&mut self, slab: &Arc<Slab>, _label: &str) -> Result<Buffer, DeviceError> {
        Ok(self.memory.add(Allocation::Slots(Arc::clone(slab)), 0))
    }

    fn map(&mut self, part: &MappedPart, _label: &str) -> Result<Buffer, DeviceError> {
        Ok(self.memory.add(Allocation::Mapped(part.clone()), 0))
    }

    fn fault(&mut self) -> Option<Fault> {
        self.memory.fault()
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.memory.free(buffer)
    }

    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.memory.range_mut(buffer, offset, bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError> {
        let values = self.memory.range(from.0, from.1, bytes)?.to_vec();
        self.write(to.0, to.1, &values)
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        for op in ops {
            self.run(op);
        }
        self.submissions += 1;
        Ok(Submission(self.submissions))
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

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        let values = self.memory.range(buffer, offset, bytes)?.to_vec();
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, values);
        Ok(Ticket { after: self.last(), id: self.next_ticket, bytes })
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        let bytes = self
            .tickets
            .remove(&ticket.id)
            .ok_or_else(|| DeviceError::UnknownHandle { device: NAME.into(), what: format!("{ticket:?}") })?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}
