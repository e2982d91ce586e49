//! Test devices: wrappers with one property or one fault each, for tests of this and other crates. Behind the feature
//! `testing`; no product code uses them.
//!
//! | device | what it does |
//! |---|---|
//! | [`Late`] | queues all work and completes it late, as a GPU does |
//! | [`Reversed`] | sums a `mat_mul` from the end: close to the oracle, another order |
//! | [`WrongState`] | disturbs one number of the state that a kind of op moves on |
//! | [`Poisoned`] | puts a NaN into one result of a kind of op |
//! | [`Failing`] | fails at the n-th call |
//!
//! [`textbook`] is no device: it gives what an op means in f64.
//!
//! A test of crate `x` asks for them with `ops = { workspace = true, features = ["testing"] }` among its
//! dev-dependencies.
mod faults;
mod late;
mod reversed;
mod textbook;

pub use faults::{Call, Failing, Poisoned, WrongState};
pub use late::Late;
pub use reversed::Reversed;
pub use textbook::textbook;

/// Writes the methods of [`crate::Device`] that only hand on to a field. The names of the signatures are the caller's.
macro_rules! hand_on {
    ($field:ident: $($method:ident),+) => { $( hand_on!(@ $field $method); )+ };
    (@ $field:ident memory) => {
        fn memory(&self) -> MemoryInfo { self.$field.memory() }
    };
    (@ $field:ident allocate) => {
        fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
            self.$field.allocate(bytes, label)
        }
    };
    (@ $field:ident adopt) => {
        fn adopt(
            &mut self,
            slab: &Arc<Slab>,
            label: &str,
        ) -> Result<Buffer, DeviceError> {
            self.$field.adopt(slab, label)
        }
    };
    (@ $field:ident free) => {
        fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
            self.$field.free(buffer)
        }
    };
    (@ $field:ident write) => {
        fn write(
            &mut self,
            buffer: Buffer,
            offset: u64,
            bytes: &[u8],
        ) -> Result<(), DeviceError> {
            self.$field.write(buffer, offset, bytes)
        }
    };
    (@ $field:ident copy) => {
        fn copy(
            &mut self,
            from: (Buffer, u64),
            to: (Buffer, u64),
            bytes: u64,
        ) -> Result<(), DeviceError> {
            self.$field.copy(from, to, bytes)
        }
    };
    (@ $field:ident submit) => {
        fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
            self.$field.submit(ops)
        }
    };
    (@ $field:ident last) => {
        fn last(&self) -> Submission { self.$field.last() }
    };
    (@ $field:ident done) => {
        fn done(&mut self, submission: Submission) -> Result<bool, DeviceError> {
            self.$field.done(submission)
        }
    };
    (@ $field:ident wait) => {
        fn wait(
            &mut self,
            submission: Submission,
            limit: Option<Duration>,
        ) -> Result<bool, DeviceError> {
            self.$field.wait(submission, limit)
        }
    };
    (@ $field:ident read_later) => {
        fn read_later(
            &mut self,
            buffer: Buffer,
            offset: u64,
            bytes: u64,
        ) -> Result<Ticket, DeviceError> {
            self.$field.read_later(buffer, offset, bytes)
        }
    };
    (@ $field:ident take) => {
        fn take(&mut self, ticket: Ticket, into: &mut [u8]) -> Result<(), DeviceError> {
            self.$field.take(ticket, into)
        }
    };
}
use hand_on;
