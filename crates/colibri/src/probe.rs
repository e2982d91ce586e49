//! Short measurements of this machine, for every command that needs its rates: reading memory, arithmetic, the model's
//! matrix products, the model's disk; in `rates.rs` all that a prediction needs. Knows no command; what the figures mean is decided where they are used.
pub(crate) mod disk;
pub(crate) mod facts;
pub(crate) mod floor;
pub(crate) mod kernels;
pub(crate) mod machine;
pub(crate) mod rates;
pub(crate) mod samples;
pub(crate) mod tokens;
