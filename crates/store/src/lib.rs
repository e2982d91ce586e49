//! Checkpoints on disk: which bytes of which file belong to which name. Knows names, files and bytes; no tensor
//! maths, no device, no model family.
//!
//! ```
//! use store::{Checkpoint, Dtype};
//!
//! # fn main() -> Result<(), store::StoreError> {
//! # const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
//! let checkpoint = Checkpoint::open(&[DIRECTORY.into()])?;
//! // What is asked for has this name, type and shape, or the error says what was found instead.
//! let norm = checkpoint.require("language_model.model.norm.weight", &[Dtype::Bf16], &[192])?;
//! assert_eq!(checkpoint.read_vec(norm)?.len(), 2 * 192);
//! let error = checkpoint.require("language_model.model.norm.weight", &[Dtype::Bf16], &[7168]);
//! assert!(error.is_err_and(|error| error.to_string().contains("7168")));
//! # Ok(())
//! # }
//! ```
//!
//! [`ExpertCache`] keeps the routed experts of such a checkpoint in memory slots.

pub mod cache;
pub mod catalog;
pub mod checkpoint;
pub mod checksums;
pub mod container;
pub mod content;
pub mod disk_reader;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod faulty_reader;
pub mod files;
pub mod history;
mod index;
mod lookup;
mod mapped;
pub mod mirror;
mod read;
pub mod reader;
#[cfg(target_os = "linux")]
mod ring;
pub mod routing;
pub mod safetensors;
#[cfg(feature = "testing")]
pub mod testing;

pub use cache::ExpertCache;
pub use catalog::{Catalog, CatalogBuilder, ExpertId, ExpertLayout, PieceSpec};
pub use checkpoint::Checkpoint;
pub use container::{Container, Packed};
pub use disk_reader::{Access, DiskReader};
pub use error::StoreError;
pub use files::{FileId, Files};
pub use mapped::Mappings;
pub use mirror::MirroredReader;
pub use reader::Reader;
pub use safetensors::{Dtype, Entry};
