//! A model at work for one command: planned, announced, loaded, fed with prompts. Knows no command.
use crate::args::{EngineArgs, RecordArgs};
use crate::errors::Failure;
use crate::load::{self, Held, Model};
use crate::report::{self, Pace, Settings, Stats};
use crate::sampling::Decoding;
use crate::settings::{self, LEAVE_AWAY};
use crate::{interrupt, profile, progress, timeline};
use engine::plan::Request;
use engine::{Engine, EngineError, Plan, Session, Streaming};
use models::kimi_k3::KimiK3Config;
use models::{Dense, Input, Logits, LookAhead, Output, PartError, Tap};
use ops::Device;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use store::cache::CacheStatistics;

/// What a command is planned for.
pub(crate) struct Demand {
    request: Request,
    tokens: usize,
    decoding: Option<Decoding>,
    /// What the command itself keeps in memory beside the engine, in bytes.
    held: Held,
    notes: Vec<String>,
    quiet: bool,
}

impl Demand {
    /// A prompt of `tokens` tokens.
    pub(crate) fn new(request: Request, tokens: usize) -> Self {
        Demand { request, tokens, decoding: None, held: Held::new(), notes: Vec::new(), quiet: false }
    }

    /// Tokens are chosen, in this way.
    pub(crate) fn choosing(mut self, decoding: Decoding) -> Self {
        self.decoding = Some(decoding);
        self
    }

    /// Nothing is said of it: the same was said before.
    pub(crate) fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Something about it is worth a word.
    pub(crate) fn noting(mut self, note: &str) -> Self {
        self.notes.push(note.to_owned());
        self
    }

    /// The command keeps so many bytes more.
    pub(crate) fn holding(mut self, what: &str, bytes: u64) -> Self {
        self.held.push((what.to_owned(), bytes));
        self
    }

    /// It is recorded.
    pub(crate) fn recording(self, records: &RecordArgs) -> Self {
        if records.timeline.is_none() {
            self
        } else {
            self.holding("events of the timeline", timeline::BYTES_MAX)
        }
    }

    /// The command takes rows of results: so few rows are fed at once that these stay small.
    pub(crate) fn taking(mut self, wanted: Wanted<'_>, config: &KimiK3Config) -> Self {
        let row = wanted.row_bytes(config) * COPIES_OF_RESULTS;
        let most = (RESULT_BYTES_MAX / row.max(1)).clamp(1, RESULT_ROWS_MAX) as u32;
        if let Some(asked) = self.request.chunk.filter(|asked| *asked > most) {
            self.notes.push(format!(
                "{most} tokens are computed together instead of {asked}, so that their results stay small"
            ));
        }
        let rows = self.request.chunk.map_or(most, |asked| asked.min(most));
        self.request.chunk = Some(rows);
        self.holding(&format!("results of {rows} rows on their way"), row * u64::from(rows))
    }
}

/// Rows whose results are in memory at once, at most ...
const RESULT_ROWS_MAX: u64 = 64;
/// ... and their bytes, unless one row takes more.
const RESULT_BYTES_MAX: u64 = 64 << 20;
/// From the device they come as bytes and become numbers, for a moment both are there.
const COPIES_OF_RESULTS: u64 = 2;

/// What is planned and not yet loaded.
pub(crate) struct Planned<'a> {
    model: &'a Model,
    args: &'a EngineArgs,
    /// Choices and bytes.
    pub(crate) plan: Plan,
    /// What is in force.
    pub(crate) settings: Settings,
    streaming: Streaming,
    quiet: bool,
}

impl<'a> Planned<'a> {
    /// Plans and says what is planned.
    pub(crate) fn new(model: &'a Model, args: &'a EngineArgs, demand: Demand) -> Result<Self, Failure> {
        let Demand { request, tokens, decoding, mut held, notes, quiet } = demand;
        profile::check(model, args)?;
        let (streaming, notes_on_reads) = load::streaming(model, args)?;
        held.extend(load::held_by_mirror(model, args, request.options.layers, &*streaming.reader));
        let mut plan = load::plan(model, &request, tokens, held)?;
        refuse_idle(&mut plan, args)?;
        plan.notes.extend(notes);
        if plan.slab.is_some() {
            plan.notes.extend(notes_on_reads);
        }
        let settings = Settings::new(model, args, &plan, decoding);
        if !quiet {
            report::announce(&settings, &plan, model);
        }
        Ok(Planned { model, args, plan, settings, streaming, quiet })
    }

    /// Loads it on the device that was asked for. From here on Ctrl-C only asks it to stop.
    pub(crate) fn load(self) -> Result<Work, Failure> {
        let device = load::device(self.args)?;
        self.load_on(device)
    }

    /// The same on another device.
    pub(crate) fn load_on(self, device: Box<dyn Device>) -> Result<Work, Failure> {
        let (engine, load_time) = load::load(self.model, self.plan, device, self.streaming)?;
        let cancel = interrupt::stoppable();
        if !self.quiet {
            report::loaded(load_time);
        }
        let before = engine.cache_statistics();
        Ok(Work { engine, settings: self.settings, cancel, load_time, before })
    }
}

/// What is for routed experts alone ...
pub(crate) const OF_EXPERTS: [&str; 8] = [
    "expert-cache",
    "expert-top-p",
    "mirror",
    "overlap",
    "look-ahead",
    "cache-policy",
    "check-experts",
    "governor",
];
/// ... and how these are read.
pub(crate) const OF_READS: [&str; 2] = ["io", "readers"];
/// Why all of that changes nothing ...
pub(crate) const NO_EXPERTS: &str = "none of the layers in use has routed experts";
/// ... and what to do.
pub(crate) const MORE_LAYERS: &str = "leave it away or use more layers";

/// Settings that can change nothing with the layers in use are refused if they were typed. Where memory decides that they
/// change nothing, it is enough to say so.
fn refuse_idle(plan: &mut Plan, args: &EngineArgs) -> Result<(), Failure> {
    if plan.slab.is_some() {
        if plan.all_resident() {
            let what = "changes nothing: there is a slot for every expert";
            plan.notes
                .extend(["cache-policy", "governor"].iter().filter_map(|name| settings::told(name, what)));
        }
        return idle_overlap(plan, args);
    }
    for name in OF_EXPERTS.into_iter().chain(OF_READS) {
        plan.notes.extend(settings::idle(name, &format!("has no effect: {NO_EXPERTS}"), MORE_LAYERS)?);
    }
    if plan.options.dense == Dense::Bf16 {
        let what = "has no effect: none of the weights in use are packed";
        plan.notes.extend(settings::idle("activations", what, LEAVE_AWAY)?);
    }
    Ok(())
}

/// How reads and computing overlap matters only where experts come and go. Guesses without overlap are a contradiction.
fn idle_overlap(plan: &mut Plan, args: &EngineArgs) -> Result<(), Failure> {
    if !args.overlap.0 && args.look_ahead != LookAhead::Off {
        let what = "has no effect without overlap: nothing is read while something is computed";
        plan.notes.extend(settings::idle("look-ahead", what, "take --overlap on or leave it away")?);
    }
    if plan.all_resident() {
        let what = "has no effect: all experts stay in memory";
        plan.notes.extend(["overlap", "look-ahead"].iter().filter_map(|name| settings::told(name, what)));
    }
    Ok(())
}

/// A loaded model.
pub(crate) struct Work {
    /// The model.
    pub(crate) engine: Engine,
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

/// Rows of a layer that a tap brings, as they are called in files, each as wide as the model.
pub(crate) const PARTS: [&str; 5] =
    ["attention_input", "attention_output", "mlp_input", "mlp_output", "hidden"];

/// The rows of a tap in the order of [`PARTS`].
pub(crate) fn parts(tap: &Tap) -> [&[f32]; PARTS.len()] {
    [&tap.attention_input, &tap.attention_output, &tap.mlp_input, &tap.mlp_output, &tap.hidden]
}

impl Wanted<'_> {
    /// Bytes of what one row gives.
    fn row_bytes(&self, config: &KimiK3Config) -> u64 {
        let logits = if self.logits == Logits::All { u64::from(config.vocabulary) } else { 0 };
        let tap = PARTS.len() as u64 * u64::from(config.width) + 2 * u64::from(config.ranks);
        (logits + self.taps.len() as u64 * tap) * 4
    }
}

impl Work {
    /// An empty sequence. There is one at a time: close it before the next.
    pub(crate) fn session(&mut self) -> Result<Session, Failure> {
        Ok(Session::new(&mut self.engine)?)
    }

    /// Feeds a sequence chunk by chunk; `take` gets the positions and the output of each. Rows and time.
    pub(crate) fn feed(
        &mut self,
        session: &mut Session,
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
            let position = session.state().position();
            let range = position..position + (end - first) as u32;
            let tapped = wanted.positions.is_none_or(|all| all.iter().any(|p| range.contains(p)));
            let output = self.step(session, part, wanted.logits, if tapped { wanted.taps } else { &[] })?;
            take(range, output)?;
            bar.set_position(end as u64);
        }
        bar.finish_and_clear();
        Ok(Pace::of((rows as u32, start.elapsed())))
    }

    fn step(
        &mut self,
        session: &mut Session,
        input: Input<'_>,
        logits: Logits,
        taps: &[u32],
    ) -> Result<Output, Failure> {
        let mut part = session.part(&[], logits, Some(self.cancel));
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
