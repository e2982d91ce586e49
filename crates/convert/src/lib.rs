//! Containers: a model written anew so that it is read best. Routed experts lie one after the other, each in one piece from a
//! page's start on; dense matrices are packed as the loader would pack them; everything has a checksum. A container is a
//! model directory of valid safetensors files, which [`store::Checkpoint`] opens like any other.
//!
//! [`Plan`] says which bytes go where, [`Conversion`] writes them and goes on where an earlier run was ended, [`verify`] reads
//! them back. The source is only read. The crate knows no terminal and no settings; what packings are is `ops`' matter, what
//! tensors are for the families'.

mod error;
mod journal;
mod places;
mod plan;
mod verify;
mod write;

pub use error::ConvertError;
pub use journal::{Begun, begun};
pub use places::check_places;
pub use plan::{PAGE_BYTES, Plan, Settings};
pub use verify::{Fault, Report, bytes_to_verify, verify};
pub use write::Conversion;
