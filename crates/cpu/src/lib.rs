//! The fast CPU device: every op with SIMD and threads, equal to the oracle (`ops::Oracle`) bit for bit.
//!
//! What an op means is said there and in docs/numerics.md; here stands only how to be quick. It knows no model and no
//! file.
mod attend;
mod delta;
mod device;
mod elementwise;
mod experts;
mod level;
mod linear;
mod math;
mod memory;
mod norm;
mod pool;
pub mod product;
mod route;
mod scratch;
mod simd;

pub use device::Cpu;
pub use level::Level;
pub use simd::matrix::limits;
