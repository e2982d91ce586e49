//! A model at work for one command: planned, announced, loaded, with one sequence. Knows no command.
use crate::args::EngineArgs;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::report::{self, Pace, Settings, Stats};
use crate::sampling::Decoding;
use crate::{interrupt, progress};
use engine::plan::Request;
use engine::{Engine, EngineError, Plan, Session};
use models::{Input, Logits, Output, PartError};
use ops::Device;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use store::cache::CacheStatistics;

/// What is planned and not yet loaded.
pub(crate) struct Planned<'a> {
    model: &'a Model,
    args: &'a EngineArgs,
    /// Choices and bytes.
    pub(crate) plan: Plan,
    /// What is in force.
    pub(crate) settings: Settings,
}

impl<'a> Planned<'a> {
    /// Plans for a prompt of `tokens` tokens and says what is planned.
    pub(crate) fn new(
        model: &'a Model,
        args: &'a EngineArgs,
        request: &Request,
        tokens: usize,
        decoding: Option<Decoding>,
    ) -> Result<Self, Failure> {
        let plan = load::plan(model, request, tokens)?;
        refuse_idle(args, &plan)?;
        let settings = Settings::new(model, args, &plan, decoding);
        report::announce(&settings, &plan, model);
        Ok(Planned { model, args, plan, settings })
    }

    /// Loads it on the device that was asked for. From here on Ctrl-C only asks it to stop.
    pub(crate) fn load(self) -> Result<Work, Failure> {
        let device = load::device(self.args)?;
        self.load_on(device)
    }

    /// The same on another device.
    pub(crate) fn load_on(self, device: Box<dyn Device>) -> Result<Work, Failure> {
        let (mut engine, load_time) = load::load(self.model, self.plan, device, self.args.readers)?;
        let session = Session::new(&mut engine)?;
        let cancel = interrupt::stoppable();
        report::loaded(load_time);
        let before = engine.cache_statistics();
        Ok(Work { engine, session, settings: self.settings, cancel, load_time, before })
    }
}

/// Refuses settings of experts where no layer has any.
fn refuse_idle(args: &EngineArgs, plan: &Plan) -> Result<(), Failure> {
    let given =
        [("--expert-cache", args.expert_cache.is_some()), ("--expert-top-p", args.expert_top_p < 1.0)];
    match given.iter().find(|(_, given)| *given && plan.slab.is_none()) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::Usage(format!(
            "{flag} has no effect: none of the layers in use has routed experts; leave it away or use more layers"
        ))),
    }
}

/// A loaded model and a sequence.
pub(crate) struct Work {
    /// The model.
    pub(crate) engine: Engine,
    /// The sequence.
    pub(crate) session: Session,
    /// What is in force.
    pub(crate) settings: Settings,
    /// Set by Ctrl-C.
    pub(crate) cancel: &'static AtomicBool,
    load_time: Duration,
    /// What loading itself asked of the cache.
    before: CacheStatistics,
}

/// What a whole prompt is computed for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Rows with logits, chunk by chunk.
    pub(crate) logits: Logits,
    /// Layers whose rows are wanted, ascending ...
    pub(crate) taps: &'a [u32],
    /// ... in chunks with one of these positions; None: in all.
    pub(crate) positions: Option<&'a [u32]>,
}

impl Work {
    /// Feeds a prompt chunk by chunk; `take` gets each chunk's positions and output. Rows and time.
    pub(crate) fn feed(
        &mut self,
        input: Input<'_>,
        wanted: Wanted<'_>,
        take: &mut dyn FnMut(Range<u32>, Output) -> Result<(), Failure>,
    ) -> Result<Pace, Failure> {
        let start = Instant::now();
        let width = self.engine.model().width() as usize;
        let rows = match input {
            Input::Ids(ids) => ids.len(),
            Input::Rows(values) => values.len() / width,
        };
        let bar = progress::count("prompt tokens", rows as u64);
        let chunk = self.engine.plan().chunk as usize;
        for first in (0..rows).step_by(chunk) {
            let end = rows.min(first + chunk);
            let part = match input {
                Input::Ids(ids) => Input::Ids(&ids[first..end]),
                Input::Rows(values) => Input::Rows(&values[first * width..end * width]),
            };
            let range = first as u32..end as u32;
            let tapped = wanted.positions.is_none_or(|all| all.iter().any(|p| range.contains(p)));
            let output = self.step(part, wanted.logits, if tapped { wanted.taps } else { &[] })?;
            take(range, output)?;
            bar.set_position(end as u64);
        }
        bar.finish_and_clear();
        Ok(Pace::of((rows as u32, start.elapsed())))
    }

    fn step(&mut self, input: Input<'_>, logits: Logits, taps: &[u32]) -> Result<Output, Failure> {
        let mut part = self.session.part(&[], logits, Some(self.cancel));
        part.input = input;
        part.taps = taps;
        let outcome = self.engine.step(&mut [part]).map_err(EngineError::from)?.pop();
        Ok(outcome.unwrap_or(Err(PartError::Empty)).map_err(EngineError::from)?)
    }

    /// What it cost.
    pub(crate) fn stats(&self, prefill: Pace, decode: Pace) -> Stats {
        Stats::new(&self.engine, &self.before, self.load_time, prefill, decode)
    }
}
