//! The fast CPU device: every op with SIMD and threads, equal to the oracle (`ops::Oracle`) bit for bit.
//!
//! What an op means is said there and in docs/numerics.md; here stands only how to be quick. It knows no model and no
//! file.
mod level;

pub use level::Level;
