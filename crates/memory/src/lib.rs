//! Memory that is sized before it is allocated: slots for experts, buffers for devices, and what the machine has.
//! This crate knows bytes only: no file, no tensor, no expert.
//!
//! ```
//! use memory::{CacheSize, Slab};
//!
//! # fn main() -> Result<(), memory::MemoryError> {
//! // What "1MB" is in slots of 100 kB, of which no more than 40 are of use, on a machine with 8 GB.
//! let plan = CacheSize::Bytes(1_000_000).plan(100_000, 40, 8_000_000_000)?;
//! assert_eq!((plan.slots(), plan.slot_bytes() % memory::SLOT_ALIGNMENT), (7, 0));
//!
//! // The memory itself. A slot has many readers or one writer.
//! let slab = Slab::from_plan(plan)?;
//! if let Some(mut bytes) = slab.write(3) {
//!     bytes[..2].copy_from_slice(&[1, 2]);
//! }
//! assert_eq!(slab.read(3)[..3], [1, 2, 0]);
//! # Ok(())
//! # }
//! ```

mod buffer;
mod cache_size;
mod error;
#[cfg(unix)]
mod fault_signal;
pub mod machine;
mod mapping;
mod plan;
pub mod pressure;
mod region;
mod slab;

pub use buffer::HostBuffer;
pub use cache_size::CacheSize;
pub use error::MemoryError;
pub use mapping::{Fault, MappedFile, MappedPart};
pub use plan::{SLOT_ALIGNMENT, SlabPlan, WINDOW_BYTES};
pub use region::{SlotRead, SlotWrite};
pub use slab::Slab;
