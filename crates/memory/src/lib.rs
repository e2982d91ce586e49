//! Memory that is sized before it is allocated: slots for experts, buffers for devices, and what the machine has.
//! This crate knows bytes only: no file, no tensor, no expert.

mod buffer;
mod cache_size;
mod error;
pub mod machine;
mod plan;
mod region;
mod slab;

pub use buffer::HostBuffer;
pub use cache_size::CacheSize;
pub use error::MemoryError;
pub use plan::{SLOT_ALIGNMENT, SlabPlan, WINDOW_BYTES};
pub use region::{SlotRead, SlotWrite};
pub use slab::Slab;
