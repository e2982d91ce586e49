//! What can go wrong with memory. Knows no caller: messages name sizes and settings, never models.

/// An allocation that was refused, a size that cannot be understood, or a machine that does not say what it has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A slab of nothing, or slots of nothing.
    #[error(
        "a slab needs at least one slot of at least one byte, but {slots} slots of {payload_bytes} bytes were asked for"
    )]
    EmptySlab {
        /// Slots asked for.
        slots: u32,
        /// Bytes a slot was to hold.
        payload_bytes: u64,
    },
    /// A slot may not cross a window, so it cannot be larger than one.
    #[error(
        "a slot of {slot_bytes} bytes does not fit into one window of {window_bytes} bytes, the most a device binds at once; \
         experts this large are not supported"
    )]
    SlotTooLarge {
        /// Bytes of the slot after rounding.
        slot_bytes: u64,
        /// Bytes of a window.
        window_bytes: u64,
    },
    /// More bytes than this machine has addresses for.
    #[error("{bytes} bytes are more than this machine can address; ask for less memory")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The operating system refused the memory.
    #[error(
        "the operating system refused {bytes} bytes of memory; ask for less (a smaller cache, a shorter context) or free some"
    )]
    Refused {
        /// Bytes asked for.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A cache size that is none of the known forms.
    #[error(
        "cache size {text:?}: {reason}; write bytes (8GB, 512MiB), a share of the memory (25%), a number of experts (40x) or all"
    )]
    CacheSize {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A cache that cannot hold one expert.
    #[error(
        "a cache of {bytes} bytes cannot hold one expert, which takes {slot_bytes} bytes; give the cache at least that much"
    )]
    CacheTooSmall {
        /// Bytes the setting comes to.
        bytes: u64,
        /// Bytes of one slot.
        slot_bytes: u64,
    },
    /// The system file that tells about memory could not be read.
    #[error("{path} could not be read to learn about this machine's memory; set the sizes by hand")]
    MachineFile {
        /// The file.
        path: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system file that tells about memory lacks a field or has it in an unknown form.
    #[error("{path} has no field {field:?} of the form \"123 kB\"; set the sizes by hand")]
    MachineField {
        /// The file.
        path: String,
        /// The field.
        field: &'static str,
    },
    /// A file that cannot be mapped.
    #[error("{file} cannot be mapped: {source}")]
    NotMapped {
        /// The file.
        file: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A part that a mapped file does not have.
    #[error(
        "{file} has {length} bytes, but {bytes} from byte {start} on were asked for; it has become shorter since it was opened"
    )]
    BehindEnd {
        /// The file.
        file: String,
        /// First byte.
        start: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the file.
        length: u64,
    },
    /// This operating system does not tell.
    #[error("{what} is not known on this operating system")]
    NotKnown {
        /// What was asked for.
        what: &'static str,
    },
}
