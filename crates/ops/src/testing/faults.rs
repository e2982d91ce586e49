//! Devices with a fault: in a state, in a result, in a call.
use super::hand_on;
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::{Kind, Op};
use crate::oracle::Oracle;
use crate::tensor::{Buffer, Tensor};
use memory::Slab;
use std::sync::Arc;
use std::time::Duration;

/// The oracle, but after each op of a kind one number of the state it moved on is off by its last bit: the window of
/// `short_conv`, the state of `delta_rule`, a new row of `append_latent`. Results are right.
pub struct WrongState {
    oracle: Oracle,
    op: &'static str,
}

impl WrongState {
    /// Disturbs the state of the ops of that name.
    #[must_use]
    pub fn new(oracle: Oracle, op: &'static str) -> Self {
        WrongState { oracle, op }
    }
}

fn state_of(op: &Op) -> Option<Tensor> {
    match *op {
        Op::ShortConv { window, .. } => Some(window),
        Op::DeltaRule { state, .. } => Some(state),
        Op::AppendLatent { cache, .. } => Some(cache.pool),
        _ => None,
    }
}

impl Device for WrongState {
    fn name(&self) -> &'static str {
        "oracle with a wrong state"
    }

    hand_on!(oracle: memory, allocate, adopt, free, write, copy, last, done, wait, read_later, take);

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        for op in ops {
            let state = state_of(op).filter(|_| op.name() == self.op);
            let before = state.map(|state| self.oracle.load(state));
            self.oracle.run(op);
            if let (Some(state), Some(before)) = (state, before) {
                let mut after = self.oracle.load(state);
                let moved = before.iter().zip(&after).position(|(b, a)| b.to_bits() != a.to_bits());
                if let Some(number) = moved.and_then(|at| after.get_mut(at)) {
                    *number = f32::from_bits(number.to_bits() ^ 1);
                }
                self.oracle.store(state, &after);
            }
        }
        self.oracle.submit(&[])
    }
}

/// Another device, but the first number of one result is a NaN: of the n-th op of a kind, counted from 1.
pub struct Poisoned<D> {
    device: D,
    op: &'static str,
    /// Ops of the kind until the poisoned one.
    left: u64,
}

impl<D: Device> Poisoned<D> {
    /// Poisons the `nth` op named `op`.
    pub fn new(device: D, op: &'static str, nth: u64) -> Self {
        Poisoned { device, op, left: nth }
    }

    /// Whether this is the op; counts it.
    fn is_the_one(&mut self, op: &Op) -> bool {
        if op.name() != self.op || self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }
}

impl<D: Device> Device for Poisoned<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    hand_on!(device: memory, allocate, adopt, free, write, copy, last, done, wait, read_later, take);

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        let mut start = 0;
        for (i, op) in ops.iter().enumerate() {
            if !self.is_the_one(op) {
                continue;
            }
            self.device.submit(&ops[start..=i])?;
            start = i + 1;
            if let Some(result) = op.writes().iter().find(|operand| operand.kind == Kind::F32) {
                let place = result.tensor;
                self.device.write(place.buffer, place.offset * 4, &f32::NAN.to_le_bytes())?;
            }
        }
        self.device.submit(&ops[start..])
    }
}

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Device::submit`]
    Submit,
    /// [`Device::wait`] and [`Device::done`]
    Wait,
    /// [`Device::take`]
    Take,
}

/// Another device, but the n-th call of a kind, counted from 1, and all calls of that kind after it fail: a device that
/// is lost stays lost.
pub struct Failing<D> {
    device: D,
    call: Call,
    left: u64,
}

impl<D: Device> Failing<D> {
    /// Fails from the `nth` call of that kind on.
    pub fn new(device: D, call: Call, nth: u64) -> Self {
        Failing { device, call, left: nth }
    }

    fn count(&mut self, call: Call) -> Result<(), DeviceError> {
        if call != self.call {
            return Ok(());
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Ok(());
        }
        let reason = format!("{call:?} was told to fail");
        Err(DeviceError::Failed { device: self.device.name().to_owned(), reason })
    }
}

impl<D: Device> Device for Failing<D> {
    fn name(&self) -> &str {
        self.device.name()
    }

    hand_on!(device: memory, allocate, adopt, free, write, copy, last, read_later);

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        self.count(Call::Submit)?;
        self.device.submit(ops)
    }

    fn done(&mut self, submission: Submission) -> Result<bool, DeviceError> {
        self.count(Call::Wait)?;
        self.device.done(submission)
    }

    fn wait(&mut self, submission: Submission, limit: Option<Duration>) -> Result<bool, DeviceError> {
        self.count(Call::Wait)?;
        self.device.wait(submission, limit)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.count(Call::Take)?;
        self.device.take(ticket, into)
    }
}
