//! Checkpoints on disk: which bytes of which file belong to which name. Knows names, files and bytes; no tensor
//! maths, no device, no model family.
//!
//! ```no_run
//! # fn main() -> Result<(), store::StoreError> {
//! let checkpoint = store::Checkpoint::open(&["/models/kimi-k3".into()])?;
//! let norm = checkpoint.require("language_model.model.norm.weight", &[store::Dtype::Bf16], &[7168])?;
//! let bytes = checkpoint.read_vec(norm)?;
//! # Ok(())
//! # }
//! ```

pub mod cache;
pub mod catalog;
pub mod checkpoint;
pub mod content;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod faulty_reader;
pub mod files;
mod index;
mod lookup;
mod read;
pub mod reader;
pub mod safetensors;
#[cfg(feature = "testing")]
pub mod testing;

pub use cache::ExpertCache;
pub use catalog::{Catalog, CatalogBuilder, ExpertId, ExpertLayout, PieceSpec};
pub use checkpoint::Checkpoint;
pub use error::StoreError;
pub use files::{FileId, Files};
pub use reader::Reader;
pub use safetensors::{Dtype, Entry};
