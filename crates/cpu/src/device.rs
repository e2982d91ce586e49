//! The device: an op's operands as views, the op's function, the next op. It works on the caller's thread and those of
//! its pool, and is done when a call returns.

use crate::attend::{Cache, Query, append_latent, attend_latent};
use crate::delta::{Inputs, decay_gate, delta_rule, short_conv};
use crate::elementwise::{add, combine, copy, finite, gate_mul, glu};
use crate::experts::{Task, experts};
use crate::level::Level;
use crate::linear::{head_mat_mul, mat_mul};
use crate::memory::{Access, Memory, NAME};
use crate::norm::{l2_norm, residual_mix, rms_norm};
use crate::pool::Pool;
use crate::route::route;
use crate::scratch::Scratch;
use memory::{Fault, MappedPart, Slab};
use ops::{Buffer, Device, DeviceError, MemoryInfo, Op, Submission, Ticket};
use std::sync::Arc;
use std::time::Duration;

/// What ops work with: instructions, threads, and room of the device's own.
pub(crate) struct Machine {
    pub(crate) level: Level,
    pub(crate) pool: Pool,
    pub(crate) scratch: Scratch,
}

/// The fast CPU device. Its work is done when a call returns.
pub struct Cpu {
    memory: Memory,
    machine: Machine,
    submissions: u64,
    reads: Reads,
}

/// Reads that were asked for and not yet taken: their bytes as they were. Memory of taken ones is used again.
#[derive(Default)]
struct Reads {
    waiting: Vec<(u64, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    last: u64,
}

impl Reads {
    /// Keeps bytes; the number to take them by.
    fn keep(&mut self, bytes: &[u8]) -> u64 {
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(bytes);
        self.last += 1;
        self.waiting.push((self.last, kept));
        self.last
    }

    /// Gives bytes; false if the number names none.
    fn take(&mut self, number: u64, into: &mut [u8]) -> bool {
        let Some(place) = self.waiting.iter().position(|(waiting, _)| *waiting == number) else {
            return false;
        };
        let (_, mut bytes) = self.waiting.swap_remove(place);
        into.copy_from_slice(&bytes);
        bytes.clear();
        self.spare.push(bytes);
        true
    }
}

impl Cpu {
    /// A device of `threads` threads, the caller's included, with the best instructions that the processor has.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        Self::with_level(threads, Level::best())
    }

    /// The same with the instructions of a level, for tests and measurements.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the processor lacks them, or if the threads cannot be started.
    pub fn with_level(threads: usize, level: Level) -> Result<Self, DeviceError> {
        if !level.is_available() {
            let reason = format!("the processor has no {}", level.name());
            return Err(DeviceError::Failed { device: NAME.into(), reason });
        }
        let machine = Machine { level, pool: Pool::new(threads)?, scratch: Scratch::default() };
        Ok(Cpu { memory: Memory::default(), machine, submissions: 0, reads: Reads::default() })
    }

    /// The instructions it uses.
    #[must_use]
    pub fn level(&self) -> Level {
        self.machine.level
    }

    /// Threads it works on, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.machine.pool.threads()
    }
}

/// Runs one op.
fn run(machine: &mut Machine, memory: &mut Access<'_>, op: &Op) -> Result<(), DeviceError> {
    match *op {
        Op::MatMul { out, x, weight, activations } => {
            let bytes = memory.matrix(weight)?;
            mat_mul(machine, memory.write(out)?, memory.read(x)?, bytes, weight, activations);
        }
        Op::HeadMatMul { out, x, weight, heads } => {
            let [codes, _] = memory.matrix(weight)?;
            head_mat_mul(machine, memory.write(out)?, memory.read(x)?, codes, weight, heads as usize);
        }
        Op::RmsNorm { out, x, gain, eps } => {
            rms_norm(machine, memory.write(out)?, memory.read(x)?, memory.read(gain)?, eps);
        }
        Op::L2Norm { out, x, eps, scale } => {
            l2_norm(machine, memory.write(out)?, memory.read(x)?, eps, scale);
        }
        Op::ShortConv { out, x, window, taps } => {
            let (out, window) = (memory.write(out)?, memory.write(window)?);
            short_conv(machine, out, memory.read(x)?, window, memory.read(taps)?);
        }
        Op::DecayGate { out, f, a_log, dt_bias, formula } => {
            let (f, a_log, dt_bias) = (memory.read(f)?, memory.read(a_log)?, memory.read(dt_bias)?);
            decay_gate(machine, memory.write(out)?, f, a_log, dt_bias, formula);
        }
        Op::DeltaRule { out, q, k, v, decay, beta, state } => {
            let [q, k, v, decay, beta] = memory.read_all([q, k, v, decay, beta])?;
            let (out, state) = (memory.write(out)?, memory.write(state)?);
            delta_rule(machine, out, Inputs { q, k, v, decay, beta }, state);
        }
        Op::AppendLatent { latent, rope, cache, position } => {
            append_latent(memory, (latent, rope), cache, position)?;
        }
        Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale } => {
            let selected = selected.map(|selected| memory.read_ids(selected)).transpose()?;
            let (q, q_rope) = (memory.read(q)?, memory.read_some(q_rope)?);
            let query = Query { q, q_rope, position, selected, heads, scale };
            let cache = Cache::read(memory, cache)?;
            attend_latent(machine, memory.write(out)?, query, cache);
        }
        Op::ResidualMix { out, running, snapshots, count, weight, eps } => {
            let snapshots = snapshots.rows_at(0, count * running.rows);
            let [running, snapshots, weight] = memory.read_all([running, snapshots, weight])?;
            residual_mix(machine, memory.write(out)?, running, snapshots, weight, eps);
        }
        Op::Glu { out, gate, up, activation } => {
            glu(machine, memory.write(out)?, memory.read(gate)?, memory.read(up)?, activation);
        }
        Op::GateMul { out, x, gate } => {
            gate_mul(machine, memory.write(out)?, memory.read(x)?, memory.read(gate)?);
        }
        Op::Route { picks, weights, logits, bias, routing } => {
            let (logits, bias) = (memory.read(logits)?, memory.read_some(bias)?);
            route(machine, memory.write_ids(picks)?, memory.write(weights)?, logits, bias, routing);
        }
        Op::Experts { out, x, picks, table, experts: matrices, activation, activations } => {
            let task = Task { experts: matrices, activation, activations };
            let (picks, table) = (memory.read_ids(picks)?, memory.read_ids(table)?);
            let slab = memory.slots(matrices.gate.buffer)?;
            experts(machine, memory.write(out)?, memory.read(x)?, picks, table, slab, task);
        }
        Op::Combine { out, rows, picks, weights } => {
            let (rows, picks, weights) = (memory.read(rows)?, memory.read_ids(picks)?, memory.read(weights)?);
            combine(machine, memory.write(out)?, rows, picks, weights);
        }
        Op::Add { out, x, y } => add(machine, memory.write(out)?, memory.read(x)?, memory.read(y)?),
        Op::Copy { out, x } => copy(machine, memory.write(out)?, memory.read(x)?),
        Op::Finite { out, x } => finite(machine, memory.write_ids(out)?, memory.read(x)?),
    }
    Ok(())
}

impl Device for Cpu {
    fn name(&self) -> &str {
        NAME
    }

    fn memory(&self) -> MemoryInfo {
        MemoryInfo { allocated: self.memory.allocated + self.machine.scratch.bytes(), free: None }
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        self.memory.allocate(bytes, label)
    }

    fn adopt(&mut self, slab: &Arc<Slab>, _label: &str) -> Result<Buffer, DeviceError> {
        Ok(self.memory.adopt(slab))
    }

    fn map(&mut self, part: &MappedPart, _label: &str) -> Result<Buffer, DeviceError> {
        Ok(self.memory.map(part))
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
        self.memory.copy(from, to, bytes)
    }

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        for op in ops {
            run(&mut self.machine, &mut self.memory.access(), op)?;
            self.machine.pool.check()?;
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
        let id = self.reads.keep(self.memory.range(buffer, offset, bytes)?);
        Ok(Ticket { after: self.last(), id, bytes })
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        if self.reads.take(ticket.id, into) {
            return Ok(());
        }
        Err(DeviceError::UnknownHandle { device: NAME.into(), what: format!("{ticket:?}") })
    }
}
