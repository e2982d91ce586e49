//! Sessions, sampling and the plan of memory: what stands between a model and whoever wants tokens. The crate knows
//! ids and no text, no command line and no socket.
mod engine;
pub mod generate;
pub mod plan;
pub mod sampler;
mod session;

pub use engine::{Engine, EngineError, Progress};
pub use generate::{Answer, Cancel, During, Event, Finish, Task, generate};
pub use plan::{Limits, Plan, PlanError, plan, show_bytes};
pub use sampler::{Sampler, Sampling, SamplingError};
pub use session::Session;
