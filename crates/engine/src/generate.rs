//! One prompt, one answer: prefill in chunks, then token by token.
use crate::engine::{Engine, EngineError};
use crate::sampler::{Logprobs, Sampler};
use crate::session::Session;
use models::{Logits, PartError};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Ids to go on from.
    pub prompt: &'a [u32],
    /// Tokens at most.
    pub max_tokens: u32,
    /// Ids that end the answer; they are not part of it.
    pub stop: &'a [u32],
    /// Whoever may end it from outside.
    pub cancel: Option<Cancel<'a>>,
}

/// A flag that another thread sets to end an answer, and where it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Cancel<'a> {
    /// Set to end it.
    pub flag: &'a AtomicBool,
    /// How soon.
    pub during: During,
}

impl<'a> Cancel<'a> {
    /// As soon as possible: the session must be synced from the start.
    #[must_use]
    pub fn at_once(flag: &'a AtomicBool) -> Self {
        Cancel { flag, during: During::Step }
    }

    /// A prompt is given up between layers, an answer only between two tokens, so that the session keeps it.
    #[must_use]
    pub fn between_tokens(flag: &'a AtomicBool) -> Self {
        Cancel { flag, during: During::Prompt }
    }

    fn raised(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

/// Which steps a cancel may leave half done; such a step leaves a session that must begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// Every step.
    Step,
    /// Steps of the prompt; an answer's are finished, and the cancel is looked at between them.
    Prompt,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id came, or the caller saw the end.
    Stop,
    /// Enough tokens, or the context is full.
    Length,
    /// It was given up.
    Cancelled,
}

impl Finish {
    /// The name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// An answer and what it cost.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Generated ids.
    pub ids: Vec<u32>,
    /// Log-probabilities beside each of these ids, if they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// Why it ended.
    pub finish: Finish,
    /// The stop id that ended it, which no step has taken in.
    pub stop_id: Option<u32>,
    /// Prompt tokens computed, and the time.
    pub prefill: (u32, Duration),
    /// Tokens fed after the prompt, and the time.
    pub decode: (u32, Duration),
}

/// What happens while an answer is made.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Prompt tokens computed, of all that the session had not seen.
    Prefilled(u32, u32),
    /// The next token; no step has taken it in yet.
    Token {
        /// Its id.
        id: u32,
    },
}

/// Generates an answer in a session. `on_event` hears of every token as it comes and may end the answer there; the
/// token is then its last.
///
/// The session has seen the prompt and the answer without its last token, and can go on from there; only a step that
/// failed or was left half done makes it begin anew.
///
/// # Errors
/// The prompt's, the sampler's, or what a step gives. A cancel is no error.
pub fn generate(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    sampler: &mut Sampler,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Finish>,
) -> Result<Answer, EngineError> {
    let room = room(engine, task)?;
    session.sync(engine, task.prompt)?;
    sampler.begin(task.prompt);
    let mut answer = Answer {
        ids: Vec::new(),
        logprobs: Vec::new(),
        finish: Finish::Length,
        stop_id: None,
        prefill: (0, Duration::ZERO),
        decode: (0, Duration::ZERO),
    };
    let task = &Task { max_tokens: task.max_tokens.min(room), ..*task };
    if task.max_tokens == 0 {
        return Ok(answer);
    }
    match run(engine, session, task, sampler, &mut answer, on_event) {
        Ok(finish) => answer.finish = finish,
        Err(EngineError::Part(PartError::Cancelled)) => answer.finish = Finish::Cancelled,
        Err(error) => return Err(error),
    }
    Ok(answer)
}

/// Tokens that the context holds besides the prompt.
fn room(engine: &Engine, task: &Task<'_>) -> Result<u32, EngineError> {
    if task.prompt.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let (tokens, plan) = (task.prompt.len() as u64, engine.plan());
    let (context, most) = (plan.context, plan.context_most);
    if tokens > u64::from(context) {
        return Err(EngineError::TooLong { tokens, context, most });
    }
    Ok(context - tokens as u32)
}

fn run(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    sampler: &mut Sampler,
    answer: &mut Answer,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Finish>,
) -> Result<Finish, EngineError> {
    let start = Instant::now();
    let prefilled = prefill(engine, session, task, answer, on_event);
    answer.prefill.1 = start.elapsed();
    let logits = match prefilled? {
        ControlFlow::Continue(logits) => logits,
        ControlFlow::Break(finish) => return Ok(finish),
    };
    let start = Instant::now();
    let outcome = decode(engine, session, task, sampler, (logits, answer), on_event);
    answer.decode.1 = start.elapsed();
    outcome
}

/// Feeds what the session has not seen, in chunks; the logits of the last token.
fn prefill(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    answer: &mut Answer,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Finish>,
) -> Result<ControlFlow<Finish, Vec<f32>>, EngineError> {
    let rest = &task.prompt[session.ids().len()..];
    let chunk = engine.plan().chunk as usize;
    let cancel = task.cancel.map(|cancel| cancel.flag);
    let mut logits = Vec::new();
    for (i, ids) in rest.chunks(chunk).enumerate() {
        let last = (i + 1) * chunk >= rest.len();
        let wanted = if last { Logits::Last } else { Logits::None };
        logits = session.feed(engine, ids, wanted, cancel)?.logits;
        answer.prefill.0 += ids.len() as u32;
        if let ControlFlow::Break(finish) = on_event(Event::Prefilled(answer.prefill.0, rest.len() as u32)) {
            return Ok(ControlFlow::Break(finish));
        }
    }
    Ok(ControlFlow::Continue(logits))
}

/// Takes token after token; the first one from `logits`.
fn decode(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    sampler: &mut Sampler,
    (mut logits, answer): (Vec<f32>, &mut Answer),
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Finish>,
) -> Result<Finish, EngineError> {
    // A step that is not to be left half done is given no flag.
    let cancel = task.cancel.filter(|cancel| cancel.during == During::Step).map(|cancel| cancel.flag);
    loop {
        let id = sampler.next(&logits, session.state().position())?;
        if task.stop.contains(&id) {
            answer.stop_id = Some(id);
            return Ok(Finish::Stop);
        }
        answer.ids.push(id);
        answer.logprobs.extend(sampler.logprobs().cloned());
        if let ControlFlow::Break(finish) = on_event(Event::Token { id }) {
            return Ok(finish);
        }
        if answer.ids.len() as u32 >= task.max_tokens {
            return Ok(Finish::Length);
        }
        if task.cancel.is_some_and(|cancel| cancel.raised()) {
            return Ok(Finish::Cancelled);
        }
        logits = session.feed(engine, &[id], Logits::Last, cancel)?.logits;
        answer.decode.0 += 1;
    }
}
