//! A device that counts, and strikes at an op that a test chooses while an engine uses it. It knows ops, no model.
//! Devices whose fault is set before they are used come from `ops::testing`.
use ops::{Buffer, Device, DeviceError, MemoryInfo, Op, Operand, Oracle, Submission, Ticket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What a [`Rigged`] device does once, at its trigger.
#[derive(Clone, Debug)]
pub(crate) enum Strike {
    /// Puts a NaN into the result of the op, into row `row` of the `rows` rows of the step.
    Poison { row: u32, rows: u32 },
    /// Raises a cancel flag before the op.
    Raise(Arc<AtomicBool>),
    /// Fails in place of the op.
    Fail,
}

/// Counts, and the strike to come.
#[derive(Default)]
pub(crate) struct Rig {
    /// Ops run, writes and copies included.
    pub(crate) calls: u64,
    /// Reads asked for.
    pub(crate) reads: u64,
    /// Reads waited for.
    pub(crate) takes: u64,
    /// Other waits.
    pub(crate) waits: u64,
    /// The most bytes held at a time.
    pub(crate) most_allocated: u64,
    /// The name of the op ("" for any), how many of these pass before, and what happens then.
    trigger: Option<(&'static str, u64, Strike)>,
}

/// Shared with the test, which cannot reach the device inside its engine.
#[derive(Clone, Default)]
pub(crate) struct Controls(Arc<Mutex<Rig>>);

impl Controls {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Rig> {
        self.0.lock().unwrap()
    }

    /// Reads waited for so far, and other waits.
    pub(crate) fn waits(&self) -> (u64, u64) {
        let rig = self.lock();
        (rig.takes, rig.waits)
    }

    /// Strikes at the op of that name ("" for any) that comes after `pass` others.
    pub(crate) fn strike(&self, name: &'static str, pass: u64, strike: Strike) {
        self.lock().trigger = Some((name, pass, strike));
    }

    /// Whether the last strike has happened.
    pub(crate) fn has_struck(&self) -> bool {
        self.lock().trigger.is_none()
    }

    /// Counts a call; the strike if it is due.
    fn call(&self, name: &str) -> Option<Strike> {
        let mut rig = self.lock();
        rig.calls += 1;
        let (wanted, pass, _) = rig.trigger.as_mut()?;
        if !wanted.is_empty() && *wanted != name {
            return None;
        }
        if *pass > 0 {
            *pass -= 1;
            return None;
        }
        rig.trigger.take().map(|(.., strike)| strike)
    }
}

/// An oracle that counts and strikes.
pub(crate) struct Rigged {
    oracle: Oracle,
    controls: Controls,
}

impl Rigged {
    pub(crate) fn new() -> (Self, Controls) {
        let controls = Controls::default();
        (Rigged { oracle: Oracle::new(1).unwrap(), controls: controls.clone() }, controls)
    }

    fn failure<T>(&self) -> Result<T, DeviceError> {
        Err(DeviceError::Failed { device: self.oracle.name().into(), reason: "made to fail".into() })
    }

    /// A call that is no op; only failing strikes it.
    fn plain(&self, name: &str) -> Result<(), DeviceError> {
        match self.controls.call(name) {
            Some(Strike::Fail) => self.failure(),
            Some(Strike::Raise(flag)) => {
                flag.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(Strike::Poison { .. }) => panic!("{name} cannot be poisoned"),
            None => Ok(()),
        }
    }

    fn run(&mut self, op: &Op) -> Result<(), DeviceError> {
        match self.controls.call(op.name()) {
            Some(Strike::Fail) => return self.failure(),
            Some(Strike::Raise(flag)) => flag.store(true, Ordering::Relaxed),
            Some(Strike::Poison { row, rows }) => {
                self.oracle.run(op);
                let Operand { tensor: t, .. } = op.writes().iter().next().unwrap();
                let first = row * (t.rows / rows);
                let at = (t.offset + u64::from(first) * u64::from(t.stride)) * 4;
                return self.oracle.write(t.buffer, at, &f32::NAN.to_le_bytes());
            }
            None => {}
        }
        self.oracle.run(op);
        Ok(())
    }
}

impl Device for Rigged {
    fn name(&self) -> &str {
        self.oracle.name()
    }

    fn memory(&self) -> MemoryInfo {
        self.oracle.memory()
    }

    fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let buffer = self.oracle.allocate(bytes, label)?;
        let mut rig = self.controls.lock();
        rig.most_allocated = rig.most_allocated.max(self.oracle.memory().allocated);
        Ok(buffer)
    }

    fn adopt(&mut self, slab: &Arc<memory::Slab>, label: &str) -> Result<Buffer, DeviceError> {
        self.oracle.adopt(slab, label)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.oracle.free(buffer)
    }

    fn write(&mut self, buffer: Buffer, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.plain("write")?;
        self.oracle.write(buffer, offset, bytes)
    }

    fn copy(&mut self, from: (Buffer, u64), to: (Buffer, u64), bytes: u64) -> Result<(), DeviceError> {
        self.plain("copy bytes")?;
        self.oracle.copy(from, to, bytes)
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
        self.controls.lock().waits += 1;
        self.oracle.wait(submission, limit)
    }

    fn read_later(&mut self, buffer: Buffer, offset: u64, bytes: u64) -> Result<Ticket, DeviceError> {
        self.controls.lock().reads += 1;
        self.oracle.read_later(buffer, offset, bytes)
    }

    fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
        self.controls.lock().takes += 1;
        self.oracle.take(ticket, into)
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % limit
    }
}
