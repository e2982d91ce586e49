//! One prompt, one answer: prefill in chunks, then token by token.
use crate::engine::{Engine, EngineError};
use crate::sampler::Sampling;
use crate::session::Session;
use models::{Logits, PartError};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// Ids to go on from.
    pub prompt: &'a [u32],
    /// Tokens at most.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Ids that end the answer; they are not part of it.
    pub stop: &'a [u32],
    /// Set by another thread to end it.
    pub cancel: Option<&'a AtomicBool>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id came.
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
    /// Why it ended.
    pub finish: Finish,
    /// Prompt tokens computed, and the time.
    pub prefill: (u32, Duration),
    /// Tokens fed after the prompt, and the time.
    pub decode: (u32, Duration),
}

/// What happens while an answer is made.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Prompt tokens computed, of all.
    Prefilled(u32, u32),
    /// The next token.
    Token(u32),
}

/// Generates an answer in a session; `on_event` hears of every token as it comes.
///
/// # Errors
/// The prompt's, or what a step gives. A cancel is no error.
pub fn generate(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Answer, EngineError> {
    let room = room(engine, task)?;
    session.sync(engine, task.prompt)?;
    let mut answer = Answer {
        ids: Vec::new(),
        finish: Finish::Length,
        prefill: (0, Duration::ZERO),
        decode: (0, Duration::ZERO),
    };
    let task = &Task { max_tokens: task.max_tokens.min(room), ..task.clone() };
    if task.max_tokens == 0 {
        return Ok(answer);
    }
    match run(engine, session, task, &mut answer, on_event) {
        Err(EngineError::Part(PartError::Cancelled)) => answer.finish = Finish::Cancelled,
        other => other?,
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
    answer: &mut Answer,
    on_event: &mut dyn FnMut(Event),
) -> Result<(), EngineError> {
    let start = Instant::now();
    let prefilled = prefill(engine, session, task, answer, on_event);
    answer.prefill.1 = start.elapsed();
    let mut logits = prefilled?;
    let start = Instant::now();
    let outcome = loop {
        let position = session.state().position();
        let id = task.sampling.pick(&logits, position);
        if task.stop.contains(&id) {
            answer.finish = Finish::Stop;
            break Ok(());
        }
        answer.ids.push(id);
        on_event(Event::Token(id));
        if answer.ids.len() as u32 >= task.max_tokens {
            break Ok(());
        }
        match session.feed(engine, &[id], Logits::Last, task.cancel) {
            Ok(output) => logits = output.logits,
            Err(error) => break Err(error),
        }
        answer.decode.0 += 1;
    };
    answer.decode.1 = start.elapsed();
    outcome
}

/// Feeds what the session has not seen, in chunks; the logits of the last token.
fn prefill(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    answer: &mut Answer,
    on_event: &mut dyn FnMut(Event),
) -> Result<Vec<f32>, EngineError> {
    let rest = &task.prompt[session.ids().len()..];
    let chunk = engine.plan().chunk as usize;
    let mut logits = Vec::new();
    for (i, ids) in rest.chunks(chunk).enumerate() {
        let last = (i + 1) * chunk >= rest.len();
        let wanted = if last { Logits::Last } else { Logits::None };
        logits = session.feed(engine, ids, wanted, task.cancel)?.logits;
        answer.prefill.0 += ids.len() as u32;
        on_event(Event::Prefilled(answer.prefill.0, rest.len() as u32));
    }
    Ok(logits)
}
