//! A conversation with a model: turn by turn its ids grow, the model's state goes along, and whatever fails leaves both as
//! they were before the turn. Knows no terminal, no order and no file.
use super::record::Record;
use super::voice::{Hearing, Voice};
use crate::errors::Failure;
use crate::report::{Pace, counted};
use engine::{Answer, Cancel, Engine, EngineError, Event, Finish, Plan, Sampling, Session, Task};
use models::Health;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use text::StopStrings;
use text::chat::{self, ChatOptions, Delta, Message, Role};

/// How an answer is made.
#[derive(Clone, Debug)]
pub(crate) struct Manner<'a> {
    /// How tokens are chosen.
    pub(crate) sampling: Sampling,
    /// Tokens of an answer at most.
    pub(crate) max_tokens: u32,
    /// Strings that end the answer's text.
    pub(crate) stop: StopStrings,
    /// Set to stop it.
    pub(crate) cancel: &'a AtomicBool,
}

/// What happens while an answer is made.
#[derive(Debug)]
pub(crate) enum News<'a> {
    /// Prompt tokens computed, of all that have to be.
    Read(u32, u32),
    /// A token of the answer and what it adds.
    Said(&'a [Delta]),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model's own end.
    Stop,
    /// So many tokens as were allowed.
    Length,
    /// The context is full.
    Context,
    /// It was stopped.
    Cancelled,
}

/// An answer and what it cost.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// Ids that the model was given, all of the conversation.
    pub(crate) prompt_ids: Vec<u32>,
    /// Ids that it chose, and what they cost.
    pub(crate) answer: Answer,
    /// What they say.
    pub(crate) said: chat::Reply,
    /// Why it ended.
    pub(crate) ending: Ending,
}

impl Reply {
    /// Prompt tokens computed, and tokens fed after the first.
    pub(crate) fn pace(&self) -> (Pace, Pace) {
        (Pace::of(self.answer.prefill), Pace::of(self.answer.decode))
    }

    /// Whether it was stopped before its end.
    pub(crate) fn stopped(&self) -> bool {
        self.ending == Ending::Cancelled
    }
}

/// Without an answer there is no other one.
pub(crate) fn nothing_to_retry() -> Failure {
    Failure::Usage("/retry: there is no answer yet to take another one for; say something first".into())
}

/// What to do when the context is full, `begun` where there is a conversation to forget.
pub(crate) fn advice(plan: &Plan, begun: bool) -> String {
    let larger = match plan.context_most {
        most if most > plan.context => format!("start with a larger --context, up to {most}"),
        most => format!("this model reaches no further than {most}"),
    };
    if begun { format!("/reset begins a new conversation; {larger}") } else { larger }
}

/// A conversation in a loaded model.
pub(crate) struct Conversation {
    voice: Voice,
    record: Record,
    /// The last one goes along with the record; the one before it, if any, stands where the latest turn began.
    states: Vec<Session>,
}

impl Conversation {
    /// An empty one.
    pub(crate) fn new(voice: Voice) -> Self {
        Conversation { voice, record: Record::default(), states: Vec::new() }
    }

    /// What has been said.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// A state that has seen the first of the record's ids, if there is one.
    pub(crate) fn state(&self) -> Option<&Session> {
        self.states.last().filter(|state| self.fits(state))
    }

    /// How it is spoken.
    pub(crate) fn voice(&self) -> &Voice {
        &self.voice
    }

    /// Begins again, with these options.
    pub(crate) fn reset(&mut self, options: ChatOptions) {
        self.voice.options = options;
        self.record = Record::default();
    }

    /// Goes on with a conversation from elsewhere, and with the state that was saved with it. Why that state is of no use,
    /// if it is not.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn resume(
        &mut self,
        engine: &mut Engine,
        options: ChatOptions,
        record: Record,
        state: Option<&[u8]>,
    ) -> Result<Option<String>, Failure> {
        self.voice.options = options;
        self.record = record;
        // There may be room for one only: the old ones go before a new one comes.
        while let Some(state) = self.states.pop() {
            state.close(engine)?;
        }
        let Some(bytes) = state else { return Ok(None) };
        match Session::restore(engine, bytes) {
            Ok(state) if self.fits(&state) => self.states.push(state),
            Ok(state) => {
                state.close(engine)?;
                return Ok(Some("it is the state of another conversation".into()));
            }
            Err(error) => return Ok(Some(error.to_string())),
        }
        Ok(None)
    }

    /// Adds a message that asks for no answer.
    ///
    /// # Errors
    /// A context that is full.
    pub(crate) fn add(&mut self, engine: &Engine, said: Message) -> Result<(), Failure> {
        let old = self.record.clone();
        let added = self.append(vec![said], false).and_then(|()| self.check_room(engine));
        if added.is_err() {
            self.record = old;
        }
        added
    }

    /// Asks for an answer to a text. None: it was stopped before its first token, and nothing has happened.
    ///
    /// # Errors
    /// What the turn gives; nothing has happened then.
    pub(crate) fn ask(
        &mut self,
        engine: &mut Engine,
        text: &str,
        manner: &Manner<'_>,
        news: &mut dyn FnMut(News<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Reply>, Failure> {
        let old = self.record.clone();
        let asked = vec![Message::new(Role::User, text)];
        let outcome = self.turn(engine, asked, manner, news);
        self.settle(engine, old, outcome)
    }

    /// Asks for another answer to the last turn; messages that came after its answer come before the new one. None: as
    /// for [`ask`](Self::ask).
    ///
    /// # Errors
    /// As for [`ask`](Self::ask); that there was no turn.
    pub(crate) fn retry(
        &mut self,
        engine: &mut Engine,
        manner: &Manner<'_>,
        news: &mut dyn FnMut(News<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Reply>, Failure> {
        let old = self.record.clone();
        let Some(asked) = self.record.take_turn() else {
            return Err(nothing_to_retry());
        };
        let outcome = self.turn(engine, asked, manner, news);
        self.settle(engine, old, outcome)
    }

    /// Takes back what led to no answer.
    fn settle(
        &mut self,
        engine: &mut Engine,
        old: Record,
        outcome: Result<Option<Reply>, Failure>,
    ) -> Result<Option<Reply>, Failure> {
        if !matches!(outcome, Ok(Some(_))) {
            self.record = old;
            self.go_back(engine)?;
        }
        outcome
    }

    fn turn(
        &mut self,
        engine: &mut Engine,
        asked: Vec<Message>,
        manner: &Manner<'_>,
        news: &mut dyn FnMut(News<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Reply>, Failure> {
        self.go_back(engine)?;
        let mark = self.record.end();
        self.append(asked, true)?;
        self.check_room(engine)?;
        self.prepare_states(engine)?;
        let mut hearing = self.voice.hearing(manner.stop.clone());
        let answer = self.generate(engine, manner, &mut hearing, news)?;
        if answer.ids.is_empty() && answer.finish == Finish::Cancelled {
            return Ok(None);
        }
        let prompt_ids = self.record.ids.clone();
        let full = prompt_ids.len() + answer.ids.len() >= engine.plan().context as usize;
        let ending = match answer.finish {
            Finish::Stop => Ending::Stop,
            Finish::Length if full => Ending::Context,
            Finish::Length => Ending::Length,
            Finish::Cancelled => Ending::Cancelled,
        };
        let last = hearing.finish(ending);
        let _ = news(News::Said(&last.deltas));
        self.record.ids.extend(&answer.ids);
        self.record.ids.extend(self.voice.encode(&last.closing)?);
        self.record.messages.push(last.reply.clone().into());
        self.record.turns.push(mark);
        Ok(Some(Reply { prompt_ids, answer, ending, said: last.reply }))
    }

    /// Lets the model go on from the record's ids, and hears what it says.
    fn generate(
        &mut self,
        engine: &mut Engine,
        manner: &Manner<'_>,
        hearing: &mut Hearing,
        news: &mut dyn FnMut(News<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, Failure> {
        let task = Task {
            prompt: &self.record.ids,
            max_tokens: manner.max_tokens,
            stop: self.voice.stop_ids(),
            cancel: Some(Cancel::between_tokens(manner.cancel)),
        };
        let mut sampler = engine.sampler(manner.sampling.clone()).map_err(EngineError::from)?;
        let mut failed = None;
        let mut on_event = |event| {
            let flow = match event {
                Event::Prefilled(done, all) => news(News::Read(done, all)),
                Event::Token { id, .. } => match self.voice.hear(hearing, id) {
                    Ok(deltas) => news(News::Said(&deltas)),
                    Err(failure) => {
                        failed = Some(failure);
                        ControlFlow::Break(())
                    }
                },
            };
            match flow {
                ControlFlow::Break(()) => ControlFlow::Break(Finish::Cancelled),
                ControlFlow::Continue(()) if hearing.ended() => ControlFlow::Break(Finish::Stop),
                ControlFlow::Continue(()) => ControlFlow::Continue(()),
            }
        };
        let Some(state) = self.states.last_mut() else { return Err(EngineError::EmptyPrompt.into()) };
        let answer = engine::generate(engine, state, &task, &mut sampler, &mut on_event)?;
        failed.map_or(Ok(answer), Err)
    }

    /// Adds messages, and the beginning of an answer.
    fn append(&mut self, said: Vec<Message>, answer: bool) -> Result<(), Failure> {
        let first = self.record.messages.len();
        self.record.messages.extend(said);
        self.record.ids.extend(self.voice.ids(&self.record.messages, first, answer)?);
        Ok(())
    }

    /// Refuses ids that leave no room for an answer.
    fn check_room(&self, engine: &Engine) -> Result<(), Failure> {
        let (tokens, plan) = (self.record.ids.len(), engine.plan());
        if tokens < plan.context as usize {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "the context is full: with this message the conversation has {}, {} fit with an answer; say less, or: {}",
            counted(tokens, "token"),
            plan.context,
            advice(plan, !self.record.turns.is_empty())
        )))
    }

    /// The state for the next turn is the last one. One that stands where it stands now is kept, if there is room and it
    /// is worth it.
    fn prepare_states(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        while self.states.len() > 1 {
            self.states.remove(0).close(engine)?;
        }
        match self.states.first() {
            None => self.states.push(Session::new(engine)?),
            Some(state) if engine.plan().sequences > 1 && !state.ids().is_empty() && self.fits(state) => {
                self.states.insert(0, state.fork(engine)?);
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Takes up the state from before if the present one is of no use any more. Without one of use the next turn computes
    /// all of its prompt.
    fn go_back(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        if let [before, state] = self.states.as_slice()
            && !self.fits(state)
            && self.fits(before)
            && let Some(state) = self.states.pop()
        {
            state.close(engine)?;
        }
        Ok(())
    }

    /// Whether a state has seen the beginning of the conversation and nothing else.
    fn fits(&self, state: &Session) -> bool {
        let whole =
            state.state().health() == Health::Ready && state.state().position() as usize == state.ids().len();
        whole && self.record.ids.starts_with(state.ids())
    }
}
