//! The fast CPU device: every op with SIMD and threads, equal to the oracle (`ops::Oracle`) bit for bit.
//!
//! What an op means is said there and in docs/numerics.md; here stands only how to be quick. It knows no model and no
//! file.
//!
//! ```
//! use cpu::Cpu;
//! use ops::{Activation, Device, Ops, Oracle};
//!
//! # fn main() -> Result<(), ops::DeviceError> {
//! let devices: [Box<dyn Device>; 2] = [Box::new(Oracle::new(1)?), Box::new(Cpu::new(2)?)];
//! let mut results = Vec::new();
//! for device in devices {
//!     let mut ops = Ops::new(device, 4096)?;
//!     let x = ops.input(2, 3, &[0.1, -2.0, 3.5, 1e-9, 77.0, -0.25])?;
//!     let product = ops.glu(x, x, Activation::Silu);
//!     results.push(ops.read(product)?);
//! }
//! assert_eq!(results[0], results[1]); // to the bit
//! # Ok(())
//! # }
//! ```
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
