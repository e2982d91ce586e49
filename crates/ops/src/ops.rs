//! The recorder: a method a word of the language. It places results in the arena, checks shapes (the only place
//! that does) and hands the ops to the device.
//!
//! A wrong shape is a fault of the program, not of its input (checkpoints and requests are checked where they
//! enter), so it panics with the shapes named.
use crate::device::{Device, DeviceError, Submission, Ticket, clear};
use crate::op::{Activation, DecayFormula, Op, Routing};
use crate::rehearsal::Rehearsal;
use crate::tensor::{
    Activations, Buffer, ExpertMatrices, Ids, LATENT_BLOCK, LatentCache, Matrix, Packing, Tensor,
};
use std::ops::Range;
use std::time::Instant;

/// Records ops for one device. Results live in the arena until [`release`](Ops::release) goes back before them.
pub struct Ops {
    device: Box<dyn Device>,
    arena: Buffer,
    capacity: u64,
    used: u64,
    peak: u64,
    largest: u64,
    steps: Vec<Op>,
    submissions: u64,
    sent: Vec<Sent>,
    notes_sent: bool,
}

/// A submission and from when to when it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub submission: Submission,
    /// The call, or what [`Device::ran`] says.
    pub span: Range<Instant>,
}

/// What steps needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The most numbers the arena has held.
    pub arena: u64,
    /// Numbers of the largest result of one op.
    pub largest: u64,
    /// Submissions made.
    pub submissions: u64,
}

/// A place in the arena to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

/// Results start at multiples of this many numbers (64 bytes).
const ALIGN: u64 = 16;

impl Ops {
    /// A recorder with room for `capacity` numbers of intermediate results.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn new(mut device: Box<dyn Device>, capacity: u64) -> Result<Self, DeviceError> {
        let arena = device.allocate(capacity * 4, "intermediate results")?;
        clear(&mut *device, arena, 0..capacity * 4)?;
        Ok(Self::on(device, arena, capacity))
    }

    /// A recorder on a device that computes nothing, with room for whatever comes; see [`Rehearsal`].
    #[must_use]
    pub fn rehearsal() -> Self {
        Self::rehearsal_on(Rehearsal::default())
    }

    /// The same with a rehearsal that keeps what it is given.
    #[must_use]
    pub fn rehearsal_on(device: Rehearsal) -> Self {
        Self::on(Box::new(device), Buffer(u32::MAX), u64::MAX / 8)
    }

    fn on(device: Box<dyn Device>, arena: Buffer, capacity: u64) -> Self {
        Ops {
            device,
            arena,
            capacity,
            used: 0,
            peak: 0,
            largest: 0,
            steps: Vec::new(),
            submissions: 0,
            sent: Vec::new(),
            notes_sent: false,
        }
    }

    /// The device, for loading and for reading state.
    pub fn device(&mut self) -> &mut dyn Device {
        &mut *self.device
    }

    /// What was needed so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage { arena: self.peak, largest: self.largest, submissions: self.submissions }
    }

    /// The present place in the arena.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.used)
    }

    /// Forgets results made after `mark`. Safe while the device still works: it works in order.
    pub fn release(&mut self, mark: Mark) {
        assert!(mark.0 <= self.used, "a mark is released once");
        self.used = mark.0;
    }

    /// Forgets ops that are recorded and not submitted: those of a step that was given up.
    pub fn discard(&mut self) {
        self.steps.clear();
    }

    /// Room for `rows` rows of `cols` numbers.
    pub fn scratch(&mut self, rows: u32, cols: u32) -> Tensor {
        let tensor = Tensor::new(self.arena, self.used, rows, cols);
        self.used += tensor.elements().next_multiple_of(ALIGN);
        self.largest = self.largest.max(tensor.elements());
        self.peak = self.peak.max(self.used);
        assert!(
            self.used <= self.capacity,
            "the arena was planned for {} numbers, {} are needed",
            self.capacity,
            self.used
        );
        tensor
    }

    /// Room for u32 numbers.
    pub fn scratch_ids(&mut self, rows: u32, cols: u32) -> Ids {
        Ids(self.scratch(rows, cols))
    }

    /// Values of the host as a tensor.
    ///
    /// # Errors
    /// What [`Device::write`] gives.
    pub fn input(&mut self, rows: u32, cols: u32, values: &[f32]) -> Result<Tensor, DeviceError> {
        assert_eq!(values.len() as u64, u64::from(rows) * u64::from(cols), "values of an input");
        let tensor = self.scratch(rows, cols);
        self.write(tensor.buffer, tensor.offset * 4, bytemuck::cast_slice(values))?;
        Ok(tensor)
    }

    /// Bytes into a buffer, in order with the recorded ops.
    ///
    /// # Errors
    /// What [`Device::submit`] and [`Device::write`] give.
    pub fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.submit()?;
        self.device.write(buffer, offset, bytes)
    }

    /// Starts what is recorded.
    ///
    /// # Errors
    /// What [`Device::submit`] gives.
    pub fn submit(&mut self) -> Result<Submission, DeviceError> {
        if self.steps.is_empty() {
            return Ok(self.device.last());
        }
        self.submissions += 1;
        let start = Instant::now();
        let submission = self.device.submit(&self.steps);
        self.steps.clear();
        if let (true, Ok(submission)) = (self.notes_sent, &submission) {
            self.sent.push(Sent { submission: *submission, span: start..Instant::now() });
        }
        submission
    }

    /// From now on submissions are noted or not; those noted before are forgotten.
    pub fn note_sent(&mut self, notes: bool) {
        self.notes_sent = notes;
        self.sent.clear();
    }

    /// The submissions noted since the last call, in order.
    pub fn sent(&mut self) -> impl Iterator<Item = Sent> + '_ {
        self.sent.drain(..)
    }

    /// Asks for rows as they are after everything recorded so far.
    ///
    /// # Errors
    /// What [`Device::submit`] and [`Device::read_later`] give.
    pub fn read_later(&mut self, tensor: Tensor) -> Result<Pending, DeviceError> {
        self.submit()?;
        let (start, end) = tensor.byte_range();
        Ok(Pending { ticket: self.device.read_later(tensor.buffer, start, end - start)?, tensor })
    }

    /// The numbers of a pending read, row after row; waits for it.
    ///
    /// # Errors
    /// What [`Device::take`] gives.
    pub fn take(&mut self, pending: Pending) -> Result<Vec<f32>, DeviceError> {
        self.take_numbers(pending)
    }

    /// The same for u32 numbers.
    ///
    /// # Errors
    /// What [`Device::take`] gives.
    pub fn take_ids(&mut self, pending: Pending) -> Result<Vec<u32>, DeviceError> {
        self.take_numbers(pending)
    }

    fn take_numbers<N: bytemuck::Pod>(&mut self, pending: Pending) -> Result<Vec<N>, DeviceError> {
        let Pending { ticket, tensor } = pending;
        let mut numbers = vec![N::zeroed(); (ticket.bytes / 4) as usize];
        self.device.take(ticket, bytemuck::cast_slice_mut(&mut numbers))?;
        if !tensor.is_contiguous() {
            let (stride, cols) = (tensor.stride as usize, tensor.cols as usize);
            for row in 1..tensor.rows as usize {
                numbers.copy_within(row * stride..row * stride + cols, row * cols);
            }
            numbers.truncate(tensor.elements() as usize);
        }
        Ok(numbers)
    }

    /// Waits for a tensor's numbers.
    ///
    /// # Errors
    /// What [`Device::submit`] and [`Device::take`] give.
    pub fn read(&mut self, tensor: Tensor) -> Result<Vec<f32>, DeviceError> {
        let pending = self.read_later(tensor)?;
        self.take(pending)
    }

    /// Waits for u32 numbers.
    ///
    /// # Errors
    /// What [`Device::submit`] and [`Device::take`] give.
    pub fn read_ids(&mut self, ids: Ids) -> Result<Vec<u32>, DeviceError> {
        let pending = self.read_later(ids.0)?;
        self.take_ids(pending)
    }

    /// Waits for bytes.
    ///
    /// # Errors
    /// What [`Device::submit`] and [`Device::take`] give.
    pub fn read_bytes(&mut self, buffer: Buffer, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.submit()?;
        let ticket = self.device.read_later(buffer, offset, into.len() as u64)?;
        self.device.take(ticket, into)
    }
}

/// A read on its way.
#[derive(Debug)]
#[must_use = "a read that is not taken was for nothing"]
pub struct Pending {
    /// The device's part of it.
    pub ticket: Ticket,
    tensor: Tensor,
}

fn same_shape(op: &str, a: Tensor, b: Tensor) {
    assert_eq!((a.rows, a.cols), (b.rows, b.cols), "{op}: shapes differ");
}

/// The words. Each returns its result's place; what it computes is said at [`Op`].
impl Ops {
    fn push(&mut self, op: Op) {
        self.steps.push(op);
    }

    /// [`Op::MatMul`]
    pub fn mat_mul(&mut self, x: Tensor, weight: Matrix, activations: Activations) -> Tensor {
        assert_eq!(x.cols, weight.cols, "mat_mul: {x:?} meets {weight:?}");
        let out = self.scratch(x.rows, weight.rows);
        self.push(Op::MatMul { out, x, weight, activations });
        out
    }

    /// [`Op::HeadMatMul`]
    pub fn head_mat_mul(&mut self, x: Tensor, weight: Matrix, heads: u32) -> Tensor {
        assert!(matches!(weight.packing, Packing::F32 | Packing::Bf16), "head_mat_mul: {weight:?}");
        assert_eq!((x.cols, x.rows % heads, weight.rows % heads), (weight.cols, 0, 0), "head_mat_mul: {x:?}");
        let out = self.scratch(x.rows, weight.rows / heads);
        self.push(Op::HeadMatMul { out, x, weight, heads });
        out
    }

    /// [`Op::RmsNorm`]
    pub fn rms_norm(&mut self, x: Tensor, gain: Tensor, eps: f32) -> Tensor {
        assert_eq!((gain.rows, gain.cols), (1, x.cols), "rms_norm: gain of {x:?}");
        let out = self.scratch(x.rows, x.cols);
        self.push(Op::RmsNorm { out, x, gain, eps });
        out
    }

    /// [`Op::L2Norm`]
    pub fn l2_norm(&mut self, x: Tensor, eps: f32, scale: f32) -> Tensor {
        let out = self.scratch(x.rows, x.cols);
        self.push(Op::L2Norm { out, x, eps, scale });
        out
    }

    /// [`Op::ShortConv`] into `out`
    pub fn short_conv_into(&mut self, out: Tensor, x: Tensor, window: Tensor, taps: Tensor) {
        same_shape("short_conv", out, x);
        assert_eq!((taps.rows, window.rows), (x.cols, x.cols), "short_conv: channels of {x:?}");
        assert_eq!(window.cols + 1, taps.cols, "short_conv: window {window:?} and taps {taps:?}");
        self.push(Op::ShortConv { out, x, window, taps });
    }

    /// [`Op::DecayGate`]
    pub fn decay_gate(&mut self, f: Tensor, a_log: Tensor, dt_bias: Tensor, formula: DecayFormula) -> Tensor {
        assert_eq!((dt_bias.rows, dt_bias.cols), (a_log.cols, f.cols), "decay_gate: {f:?}");
        assert_eq!(f.rows % a_log.cols, 0, "decay_gate: rows of {f:?}");
        let out = self.scratch(f.rows, f.cols);
        self.push(Op::DecayGate { out, f, a_log, dt_bias, formula });
        out
    }

    /// [`Op::DeltaRule`] into `out`
    pub fn delta_rule_into(
        &mut self,
        out: Tensor,
        (q, k): (Tensor, Tensor),
        v: Tensor,
        decay: Tensor,
        beta: Tensor,
        state: Tensor,
    ) {
        same_shape("delta_rule q, k", q, k);
        same_shape("delta_rule q, decay", q, decay);
        same_shape("delta_rule out, v", out, v);
        let heads = beta.cols;
        assert_eq!((q.rows, v.rows), (beta.rows * heads, beta.rows * heads), "delta_rule: rows of {q:?}");
        assert_eq!((state.rows, state.cols), (heads * q.cols, v.cols), "delta_rule: {state:?}");
        self.push(Op::DeltaRule { out, q, k, v, decay, beta, state });
    }

    /// [`Op::AppendLatent`]
    pub fn append_latent(&mut self, latent: Tensor, rope: Option<Tensor>, cache: LatentCache, position: u32) {
        let rope_cols = rope.map_or(0, |r| r.cols);
        assert_eq!((latent.cols, latent.cols + rope_cols), (cache.latent, cache.pool.cols), "append_latent");
        assert!(
            position + latent.rows <= cache.table.0.cols * LATENT_BLOCK,
            "append_latent: table too short"
        );
        self.push(Op::AppendLatent { latent, rope, cache, position });
    }

    /// [`Op::AttendLatent`] into `out`
    pub fn attend_latent_into(
        &mut self,
        out: Tensor,
        (q, q_rope): (Tensor, Option<Tensor>),
        cache: LatentCache,
        position: u32,
        selected: Option<Ids>,
        (heads, scale): (u32, f32),
    ) {
        let tokens = q.rows / heads;
        let rope = q_rope.map_or(0, |r| r.cols);
        same_shape("attend_latent", out, q);
        assert_eq!(
            (q.cols, q.cols + rope, q.rows % heads),
            (cache.latent, cache.pool.cols, 0),
            "attend_latent"
        );
        assert!(q_rope.is_none_or(|r| r.rows == q.rows), "attend_latent: rows of the rope part");
        assert!(selected.is_none_or(|s| s.0.rows == tokens), "attend_latent: a list of positions a token");
        assert!(position + tokens <= cache.table.0.cols * LATENT_BLOCK, "attend_latent: table too short");
        self.push(Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale });
    }

    /// [`Op::ResidualMix`]
    pub fn residual_mix(
        &mut self,
        running: Tensor,
        snapshots: Tensor,
        count: u32,
        weight: Tensor,
        eps: f32,
    ) -> Tensor {
        assert_eq!((snapshots.cols, weight.cols), (running.cols, running.cols), "residual_mix");
        assert!(snapshots.rows >= count * running.rows, "residual_mix: {count} snapshots in {snapshots:?}");
        let out = self.scratch(running.rows, running.cols);
        self.push(Op::ResidualMix { out, running, snapshots, count, weight, eps });
        out
    }

    /// [`Op::Glu`]
    pub fn glu(&mut self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor {
        same_shape("glu", gate, up);
        let out = self.scratch(gate.rows, gate.cols);
        self.push(Op::Glu { out, gate, up, activation });
        out
    }

    /// [`Op::GateMul`]
    pub fn gate_mul(&mut self, x: Tensor, gate: Tensor) -> Tensor {
        same_shape("gate_mul", x, gate);
        let out = self.scratch(x.rows, x.cols);
        self.push(Op::GateMul { out, x, gate });
        out
    }

    /// [`Op::Route`]; picks and weights, `k` a token
    pub fn route(&mut self, logits: Tensor, bias: Option<Tensor>, k: u32, routing: Routing) -> (Ids, Tensor) {
        assert!(k <= logits.cols, "route: {k} of {}", logits.cols);
        assert!(bias.is_none_or(|b| b.cols == logits.cols), "route: bias");
        let (picks, weights) = (self.scratch_ids(logits.rows, k), self.scratch(logits.rows, k));
        self.push(Op::Route { picks, weights, logits, bias, routing });
        (picks, weights)
    }

    /// [`Op::Experts`] into `out`, which several submissions may fill
    pub fn experts_into(&mut self, out: Tensor, x: Tensor, picks: Ids, table: Ids, expert: Expert) {
        let Expert { experts, activation, activations } = expert;
        assert_eq!(
            (out.rows, out.cols),
            (picks.0.rows * picks.0.cols, experts.down.rows),
            "experts: {out:?}"
        );
        assert_eq!((x.rows, x.cols), (picks.0.rows, experts.gate.cols), "experts: {x:?}");
        assert_eq!(table.0.cols, 2, "experts: slot and payload a row");
        self.push(Op::Experts { out, x, picks, table, experts, activation, activations });
    }

    /// [`Op::Combine`]
    pub fn combine(&mut self, rows: Tensor, picks: Ids, weights: Tensor) -> Tensor {
        same_shape("combine", picks.0, weights);
        assert_eq!(rows.rows, weights.rows * weights.cols, "combine: {rows:?}");
        let out = self.scratch(weights.rows, rows.cols);
        self.push(Op::Combine { out, rows, picks, weights });
        out
    }

    /// [`Op::Add`]
    pub fn add(&mut self, x: Tensor, y: Tensor) -> Tensor {
        same_shape("add", x, y);
        let out = self.scratch(x.rows, x.cols);
        self.push(Op::Add { out, x, y });
        out
    }

    /// [`Op::Copy`] into `out`
    pub fn copy_into(&mut self, out: Tensor, x: Tensor) {
        same_shape("copy", out, x);
        self.push(Op::Copy { out, x });
    }

    /// [`Op::Finite`]
    pub fn finite(&mut self, x: Tensor) -> Ids {
        let out = self.scratch_ids(x.rows, 1);
        self.push(Op::Finite { out, x });
        out
    }
}

/// What all routed experts of a layer have in common.
#[derive(Clone, Copy, Debug)]
pub struct Expert {
    /// Where the three matrices lie in a slot.
    pub experts: ExpertMatrices,
    /// The gate function between them.
    pub activation: Activation,
    /// What activations become before they meet the weights.
    pub activations: Activations,
}

impl Expert {
    /// The same with its matrices in the slots of `slab`.
    #[must_use]
    pub fn within(mut self, slab: Buffer) -> Self {
        let ExpertMatrices { gate, up, down } = &mut self.experts;
        for matrix in [gate, up, down] {
            matrix.buffer = slab;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;

    #[test]
    fn numbers_are_read_as_what_they_are() {
        let mut ops = Ops::new(Box::new(Oracle::new(1).unwrap()), 1024).unwrap();
        let x = ops.input(2, 3, &[1.0, 2.0, 3.0, 4.0, f32::NAN, 6.0]).unwrap();
        let flags = ops.finite(x);
        assert_eq!(ops.read_ids(flags).unwrap(), [1, 0]);
        assert_eq!(ops.read(x.columns_at(0, 1)).unwrap(), [1.0, 4.0]);
        let mut bytes = [0; 8];
        ops.read_bytes(x.buffer, x.offset * 4 + 4, &mut bytes).unwrap();
        assert_eq!(bytes[..], [2.0f32.to_le_bytes(), 3.0f32.to_le_bytes()].concat());
        assert_eq!(ops.usage().submissions, 1);
    }
}
