//! Sessions, sampling and the plan of memory: what stands between a model and whoever wants tokens. The crate knows
//! ids and no text, no command line and no socket.
//!
//! ```
//! use engine::plan::Request;
//! use engine::{Engine, Limits, Sampler, Sampling, Session, Streaming, Task, generate, plan};
//! use models::Family;
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//! use store::Checkpoint;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
//! // A checkpoint, what it is, and what running it takes: nothing is loaded yet.
//! let checkpoint = Checkpoint::open(&[DIRECTORY.into()])?;
//! let family = Family::recognise(&checkpoint)?;
//! let plan = plan(&checkpoint, &family, &Request::default(), Limits::of_machine()?)?;
//! assert!(plan.bytes() < 200_000_000);
//!
//! // The model on a device, with four threads that read experts.
//! let (device, reader) = (Box::new(ops::Oracle::new(1)?), Arc::new(checkpoint.files()));
//! let mut engine = Engine::load(&checkpoint, &family, plan, device, Streaming::new(reader, 4), &mut |_| {})?;
//!
//! // One sequence. It has seen the prompt and all of the answer but its last token, so going on computes only what is new.
//! let mut session = Session::new(&mut engine)?;
//! let mut sampler = Sampler::new(Sampling::greedy(), family.config.vocabulary)?;
//! let mut ids = vec![576, 424, 292, 258, 875]; // "Once there was a bear"
//! let task = Task { prompt: &ids, max_tokens: 3, stop: &[], cancel: None };
//! let answer = generate(&mut engine, &mut session, &task, &mut sampler, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!((answer.prefill.0, answer.ids.len()), (5, 3));
//!
//! ids.extend(answer.ids);
//! let task = Task { prompt: &ids, max_tokens: 1, stop: &[], cancel: None };
//! let answer = generate(&mut engine, &mut session, &task, &mut sampler, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(answer.prefill.0, 1);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/stream.rs` does the same with text, on one page.
mod engine;
pub mod generate;
pub mod plan;
pub mod predict;
mod rehearsal;
mod routing;
pub mod sampler;
mod session;
mod watch;

pub use engine::{Engine, EngineError, Progress, Streaming};
pub use generate::{Answer, Cancel, During, Event, Finish, Task, generate};
pub use plan::{Limits, Plan, PlanError, plan, show_bytes};
pub use rehearsal::ops_of_step;
pub use sampler::{Logprobs, Sampler, Sampling, SamplingError, TokenMask, TokenSet};
pub use session::Session;
pub use watch::{StepSpan, Watch};
