//! Why an expert did not arrive, and why a cache cannot be.

use crate::catalog::ExpertId;
use crate::checksums::Checksum;
use crate::reader::ReadError;
use std::ops::Range;
use std::sync::Arc;

/// Why one expert did not arrive. It can be copied because several requests may wait for one read.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// The model has no such expert.
    #[error("{id} was asked for, but the model has experts 0 to {experts} (excluded) in layers {layers:?}")]
    Unknown {
        /// The expert.
        id: ExpertId,
        /// Layers with experts.
        layers: Range<u16>,
        /// Experts in each.
        experts: u16,
    },
    /// Its bytes did not come.
    #[error("{id} could not be read")]
    Read {
        /// The expert.
        id: ExpertId,
        /// What happened to which file.
        source: Arc<ReadError>,
    },
    /// Its bytes hold one that must not occur, such as a scale that is NaN.
    #[error(
        "{id}: row {row} of {piece} holds the byte {byte}, which no valid {piece} has (byte {offset} of {file}); \
         the file is damaged, download it again"
    )]
    ForbiddenByte {
        /// The expert.
        id: ExpertId,
        /// Name of the piece.
        piece: String,
        /// Row within the piece, from 0.
        row: u64,
        /// The byte.
        byte: u8,
        /// Name of the file.
        file: String,
        /// Where in the file the byte lies.
        offset: u64,
    },
    /// Its bytes are not those that the container was written with.
    #[error(
        "{id} in {file} (from byte {offset} on) has the checksum {found}, expected {expected}: the file is damaged; `colibri \
         convert --verify DIR` lists all that is, then make the container again"
    )]
    Checksum {
        /// The expert.
        id: ExpertId,
        /// Name of the file.
        file: String,
        /// Where in the file it begins.
        offset: u64,
        /// Of the bytes that came.
        found: Checksum,
        /// Of those that were written.
        expected: Checksum,
    },
    /// Somebody reads the slot that the cache was told nobody uses.
    #[error(
        "{id} cannot be read into slot {slot}, because a device still uses it after its lease was released and its \
         submission retired; this is a mistake in the program"
    )]
    SlotHeld {
        /// The expert.
        id: ExpertId,
        /// The slot.
        slot: u32,
    },
    /// The code that reads files panicked.
    #[error("{id} could not be read, because its reader panicked; this is a mistake in the program")]
    Panicked {
        /// The expert.
        id: ExpertId,
    },
}

impl ExpertError {
    /// The expert that did not arrive.
    #[must_use]
    pub fn id(&self) -> ExpertId {
        match self {
            Self::Unknown { id, .. }
            | Self::Read { id, .. }
            | Self::ForbiddenByte { id, .. }
            | Self::Checksum { id, .. }
            | Self::SlotHeld { id, .. }
            | Self::Panicked { id } => *id,
        }
    }
}

/// Why a cache cannot be made or filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The slab is for smaller experts.
    #[error("an expert takes {payload_bytes} bytes, but the slots have only {slot_bytes}")]
    SlotTooSmall {
        /// Bytes of an expert.
        payload_bytes: u64,
        /// Bytes of a slot.
        slot_bytes: u64,
    },
    /// Nobody to read.
    #[error("the cache needs at least one reader thread, but 0 were set")]
    NoReaders,
    /// The system gives no thread.
    #[error("the operating system refused a reader thread; set fewer than {readers}")]
    Thread {
        /// Threads asked for.
        readers: u32,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system gives no memory for reads that cannot go straight into a slot.
    #[error("the reader threads get no memory; set fewer than {readers}")]
    Memory {
        /// Threads asked for.
        readers: u32,
        /// The reason.
        source: memory::MemoryError,
    },
    /// Reads through `io_uring` are not to be had.
    #[error("this system gives no io_uring for reads of experts; take --io direct")]
    Ring {
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not all experts fit.
    #[error("all {experts} experts are to be loaded, but the cache has {slots} slots; give it more memory")]
    TooFewSlots {
        /// Experts of the model.
        experts: u32,
        /// Slots of the cache.
        slots: u32,
    },
    /// All experts would fit, but not beside failed ones of which some request has not heard yet.
    #[error(
        "all {experts} experts are to be loaded into {slots} slots, but only {ready} are there: the other slots are held \
         for experts that could not be read, whose requests have not ended; this is a mistake in the program"
    )]
    SlotsHeld {
        /// Experts of the model.
        experts: u32,
        /// Slots of the cache.
        slots: u32,
        /// Experts that are there.
        ready: u32,
    },
    /// An expert did not arrive.
    #[error("loading all experts stopped")]
    Expert(#[from] ExpertError),
}
