//! The language in which models are written, and its meaning.
//!
//! A model records typed [`Op`] values with [`Ops`]; a [`Device`] runs them. The scalar [`Oracle`] is each op's
//! definition; [`Checked`] compares any other device with it, op by op, and [`Traced`] times one. The crate knows no
//! model, no file and no tokenizer.
//!
//! ```
//! use ops::{Activation, Ops, Oracle};
//!
//! # fn main() -> Result<(), ops::DeviceError> {
//! // A recorder on the oracle with two threads and room for 4096 numbers of intermediate results.
//! let mut ops = Ops::new(Box::new(Oracle::new(2)?), 4096)?;
//! let gate = ops.input(1, 4, &[0.0, 1.0, -1.0, 20.0])?;
//! let up = ops.input(1, 4, &[5.0, 1.0, 1.0, 2.0])?;
//! // Nothing is computed here: words are recorded, with the place of their result.
//! let product = ops.glu(gate, up, Activation::Silu);
//! let sum = ops.add(product, up);
//! // Here they are submitted in one go, and waited for.
//! let numbers = ops.read(sum)?;
//! assert_eq!((numbers[0], numbers[3]), (5.0, 42.0));
//! # Ok(())
//! # }
//! ```
pub mod cases;
pub mod checked;
pub mod device;
pub mod lanes;
pub mod math;
mod op;
mod ops;
mod oracle;
pub mod packing;
mod rehearsal;
mod tensor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod traced;
mod work;

pub use checked::{Allowed, Checked};
pub use device::{Device, DeviceError, MemoryInfo, SPANS_KEPT, Submission, Ticket, clear};
pub use op::{Activation, DecayFormula, Kind, Op, Operand, Operands, Routing};
pub use ops::{Expert, Mark, Ops, Pending, Sent, Usage};
pub use oracle::{Kernel, Oracle, with_fma};
pub use rehearsal::Rehearsal;
pub use tensor::{
    Activations, Buffer, ExpertMatrices, Ids, LATENT_BLOCK, LatentCache, Matrix, NONE, Packing, Tensor,
};
pub use traced::{Trace, Traced};
pub use work::{Picked, Work};

/// Version of the numerics contract (docs/numerics.md), stored wherever results are.
pub const NUMERICS_VERSION: u32 = 1;
