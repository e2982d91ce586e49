//! A loaded model in conversation: what is asked goes in, the answer comes out for people or as JSON, Ctrl-C stops it.
//! Knows no orders and no input.
use super::conversation::{Conversation, Ending, Manner, News, Reply, advice, nothing_to_retry};
use super::orders::Thinking;
use super::saved::{self, Chat, Options};
use super::screen::{Screen, Streams, Surface as _};
use super::voice::{self, Voice};
use crate::args::{EngineArgs, HistoryArgs, ModelArgs, RecordArgs, SamplingArgs, SpeechArgs};
use crate::errors::Failure;
use crate::expert_history::ExpertHistory;
use crate::interrupt::{self, Stoppable};
use crate::load::{self, Model};
use crate::logprobs;
use crate::records::Records;
use crate::report::{self, Pace, Stats, counted};
use crate::sampling::{self, Decoding};
use crate::terminal::Stream;
use crate::work::{Demand, Planned, Work};
use engine::plan::{DEFAULT_CONTEXT_MAX, PlanError, Request};
use engine::{Engine, Plan, Session};
use memory::machine;
use models::Dense;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use text::chat::{ChatOptions, FinishReason, Message, Role};

/// The flags that a conversation depends on.
#[derive(Clone, Copy)]
pub(crate) struct Flags<'a> {
    pub(crate) speech: &'a SpeechArgs,
    pub(crate) sampling: &'a SamplingArgs,
    pub(crate) records: &'a RecordArgs,
    pub(crate) history: &'a HistoryArgs,
    pub(crate) model: &'a ModelArgs,
    pub(crate) engine: &'a EngineArgs,
    pub(crate) logprobs: Option<u32>,
    pub(crate) json: bool,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Asked<'a> {
    /// An answer to a text.
    Text(&'a str),
    /// Another answer to the last turn.
    Again,
}

/// A model that is spoken with.
pub(crate) struct Speaker {
    work: Work,
    records: Records,
    history: ExpertHistory,
    conversation: Conversation,
    decoding: Decoding,
    /// Where nothing may be written.
    models: Vec<PathBuf>,
    /// How conversations begin.
    options: ChatOptions,
    system: Option<String>,
    /// How thinking is shown.
    pub(crate) thinking: Thinking,
    json: bool,
    /// Whether log-probabilities are wanted.
    logprobs: bool,
    /// Of the last answer.
    pace: (Pace, Pace),
}

impl Speaker {
    /// Loads the model. A conversation in a file is looked at before.
    pub(crate) fn load(flags: Flags<'_>, saved: Option<&Path>, several: bool) -> Result<Self, Failure> {
        let Flags { speech, sampling, records, history, model: places, engine, logprobs, json } = flags;
        let model = load::open(places)?;
        let options = voice::options(speech);
        let voice = Voice::new(load::tokenizer(&model)?, &model.family, options.clone())
            .map_err(|failure| failure.within(&model.places[0]))?;
        let chat = saved.map(|file| saved::load(file, voice.model(), voice.vocabulary())).transpose()?;
        let decoding = sampling::of_chat(sampling, &model, voice.stop_ids())?.with_logprobs(logprobs);
        let tokens = chat.as_ref().map_or(0, |chat| chat.record.ids.len());
        let demand = demand(&model, engine, tokens, several)?.choosing(decoding.clone()).recording(records);
        let planned = Planned::new(&model, engine, demand)?;
        let mut records = Records::create(records, &places.model, &model)?;
        let mut work = planned.load()?;
        records.begin(&mut work.engine)?;
        let history = ExpertHistory::begin(history.history.0, &mut work.engine);
        interrupt::at_rest();
        let mut speaker = Speaker {
            work,
            records,
            history,
            conversation: Conversation::new(voice),
            decoding,
            models: places.model.clone(),
            options,
            system: speech.system.clone(),
            thinking: speech.thinking.unwrap_or_else(|| usual_thinking(json)),
            json,
            logprobs: logprobs.is_some(),
            pace: <(Pace, Pace)>::default(),
        };
        match (saved, chat) {
            (Some(file), Some(chat)) => speaker.resume(file, chat)?,
            _ => speaker.reset()?,
        }
        Ok(speaker)
    }

    /// Ends what is written about the conversation as long as it goes on. If something of that is not there, the exit code
    /// that says so.
    pub(crate) fn end(&mut self) -> Option<ExitCode> {
        self.records.end(&mut self.work.engine)
    }

    /// Begins as the flags say.
    pub(crate) fn reset(&mut self) -> Result<(), Failure> {
        self.conversation.reset(self.options.clone());
        self.system.clone().map_or(Ok(()), |text| self.add_system(&text))
    }

    /// Adds a system message.
    pub(crate) fn add_system(&mut self, text: &str) -> Result<(), Failure> {
        self.conversation.add(&self.work.engine, Message::new(Role::System, text))
    }

    /// Asks, and shows the answer as it comes; it is over when this returns. None: it was stopped before its first token.
    ///
    /// # Errors
    /// What the turn gives, of which nothing is left then; standard output that cannot be written to.
    pub(crate) fn ask(&mut self, asked: Asked<'_>) -> Result<Option<Reply>, Failure> {
        let stoppable = Stoppable::begin();
        let manner = Manner {
            sampling: self.decoding.sampling(),
            max_tokens: self.decoding.max_tokens,
            stop: self.decoding.stop_strings()?,
            cancel: stoppable.flag(),
        };
        let mut screen = Screen::new(Streams, self.thinking, !self.json);
        let mut closed = None;
        let mut news = |news: News<'_>| {
            let shown = match news {
                News::Read(done, all) => {
                    screen.read(done, all);
                    Ok(())
                }
                News::Said(deltas) => screen.said(deltas),
            };
            shown.map_or_else(
                |failure| {
                    closed = Some(failure);
                    ControlFlow::Break(())
                },
                ControlFlow::Continue,
            )
        };
        let engine = &mut self.work.engine;
        let outcome = match asked {
            Asked::Text(text) => self.conversation.ask(engine, text, &manner, &mut news),
            Asked::Again => self.conversation.retry(engine, &manner, &mut news),
        };
        let shown = screen.finish();
        self.history.save(&mut self.work.engine);
        drop(stoppable);
        if let Some(failure) = closed {
            return Err(failure);
        }
        shown?;
        let reply = outcome?;
        if let Some(reply) = &reply {
            self.pace = reply.pace();
            if self.json {
                report::print_json(&self.answer_json(reply))?;
            }
        }
        Ok(reply)
    }

    /// Takes other draws from now on; what to say about it.
    ///
    /// # Errors
    /// That there is no answer to take another one for.
    pub(crate) fn draw_anew(&mut self) -> Result<String, Failure> {
        if self.conversation.record().turns.is_empty() {
            return Err(nothing_to_retry());
        }
        let Some(seed) = self.decoding.seed else {
            return Ok("temperature 0 takes the likeliest tokens, so it will be the same".into());
        };
        let seed = seed.wrapping_add(1);
        self.decoding.seed = Some(seed);
        self.work.settings.choose(self.decoding.clone());
        Ok(format!("with --seed {seed}"))
    }

    /// What an answer cost, and that it is not whole.
    pub(crate) fn tell_cost(&self, reply: &Reply) {
        report::tell(&self.stats(reply.pace()).summary());
        match reply.ending {
            Ending::Stop | Ending::Cancelled => {}
            Ending::Length => report::tell("note: --max-tokens ended the answer"),
            Ending::Context => {
                report::tell("note: the context ended the answer; --context sets how long it is");
            }
        }
    }

    /// Why an answer is not whole, and what becomes of it.
    pub(crate) fn tell_ending(&self, reply: &Reply) {
        let plan = self.work.engine.plan();
        match reply.ending {
            Ending::Stop => {}
            Ending::Cancelled => report::tell("stopped; what was said stays in the conversation"),
            Ending::Length => {
                report::tell("note: --max-tokens ended the answer; it stays in the conversation as it is");
            }
            Ending::Context => report::tell(&format!(
                "note: the context of {} positions is full and ended the answer: {}",
                plan.context,
                advice(plan, true)
            )),
        }
    }

    fn stats(&self, pace: (Pace, Pace)) -> Stats {
        self.work.stats(pace.0, pace.1)
    }

    fn answer_json(&self, reply: &Reply) -> Value {
        let said = &reply.said;
        let finish = match (reply.ending, said.finish_reason) {
            (Ending::Cancelled, _) => "cancelled",
            (_, FinishReason::ToolCalls) => "tool_calls",
            (_, reason) => reason.name(),
        };
        let call = |call: &text::chat::ReplyCall| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        };
        let mut object = json!({
            "prompt_ids": reply.prompt_ids,
            "ids": reply.answer.ids,
            "reasoning": said.reasoning,
            "content": said.content,
            "tool_calls": said.tool_calls.iter().map(call).collect::<Vec<_>>(),
            "finish": finish,
            "settings": self.work.settings,
            "stats": self.stats(reply.pace()),
        });
        if self.logprobs {
            object["logprobs"] = json!(logprobs::shown(self.conversation.voice().tokenizer(), &reply.answer));
        }
        object
    }

    /// Figures of the conversation and of the last turn.
    pub(crate) fn show_stats(&self) -> Result<(), Failure> {
        let (record, plan) = (self.conversation.record(), self.work.engine.plan());
        let seen = self.conversation.state().map_or(0, |state| state.ids().len());
        let stats = self.stats(self.pace);
        if self.json {
            return report::print_json(&json!({
                "turns": record.turns.len(),
                "tokens": record.ids.len(),
                "computed": seen,
                "context": plan.context,
                "stats": stats,
            }));
        }
        report::tell(&format!(
            "conversation: {}, {} of {} ({seen} computed)",
            counted(record.turns.len(), "turn"),
            counted(record.ids.len(), "token"),
            plan.context
        ));
        report::tell(&format!("last turn: {}", stats.summary()));
        Ok(())
    }

    /// Shows what the model thought last.
    pub(crate) fn show_last_thought(&self) {
        let last = self.conversation.record().last_answer();
        if let Some(thought) = last.and_then(|message| message.reasoning.as_deref()) {
            Streams.aside(&format!("{thought}\n"));
        }
    }

    /// Writes the conversation, with its state if there is one and memory for its bytes.
    pub(crate) fn save(&mut self, file: &Path) -> Result<(), Failure> {
        let voice = self.conversation.voice();
        let options = Options::from(&voice.options);
        let (model, record) = (voice.model().clone(), self.conversation.record().clone());
        let (state, with) = match self.conversation.state().filter(|state| !state.ids().is_empty()) {
            None => (None, "without a state: none is computed yet"),
            Some(state)
                if bytes_of(state, &mut self.work.engine) * COPIES_OF_A_STATE
                    > machine::available_memory()? =>
            {
                (None, "without its state, for which memory is short: it is computed anew when it is loaded")
            }
            Some(state) => (Some(state.save(&mut self.work.engine)?), "with its state"),
        };
        saved::save(file, &self.models, Chat { model, options, record }, state.as_deref())?;
        report::tell(&format!("saved {} {with}", file.display()));
        Ok(())
    }

    /// Goes on with a conversation from a file.
    pub(crate) fn open(&mut self, file: &Path) -> Result<(), Failure> {
        let voice = self.conversation.voice();
        let chat = saved::load(file, voice.model(), voice.vocabulary())?;
        let (tokens, plan) = (chat.record.ids.len(), self.work.engine.plan());
        if tokens >= plan.context as usize {
            return Err(Failure::Usage(format!(
                "{}: its {} leave no room for an answer in the context of {}; start with a larger --context, up to {}",
                file.display(),
                counted(tokens, "token"),
                plan.context,
                plan.context_most
            )));
        }
        self.resume(file, chat)
    }

    fn resume(&mut self, file: &Path, chat: Chat) -> Result<(), Failure> {
        let options = chat.options.chat_options().map_err(Failure::Usage)?;
        let state = saved::load_state(file, machine::available_memory()?);
        let (state, mut fault) = state.map_or_else(|fault| (None, Some(fault)), |state| (state, None));
        let engine = &mut self.work.engine;
        let (messages, tokens) = (chat.record.messages.len(), chat.record.ids.len());
        let refused = self.conversation.resume(engine, options, chat.record, state.as_deref())?;
        report::tell(&format!(
            "loaded {}: {}, {}",
            file.display(),
            counted(messages, "message"),
            counted(tokens, "token")
        ));
        let path = saved::state_path(file);
        fault = fault.or(refused.map(|why| format!("{}: {why}", path.display())));
        if fault.is_none() && state.is_none() && tokens > 0 {
            fault = Some(format!("{} is not there", path.display()));
        }
        if let Some(fault) = fault {
            report::tell(&format!(
                "note: the state is not used, the next turn computes the conversation anew: {fault}"
            ));
        }
        Ok(())
    }
}

/// While it becomes bytes, a state is in memory so often besides itself.
const COPIES_OF_A_STATE: u64 = 2;

/// Bytes of what a state has seen.
fn bytes_of(state: &Session, engine: &mut Engine) -> u64 {
    let layout = engine.states().0.layout();
    layout.fixed_bytes() + layout.latent_row_bytes() * u64::from(state.state().position())
}

/// Where thinking is read by nobody it is not shown.
fn usual_thinking(json: bool) -> Thinking {
    if Stream::Error.is_terminal() && !json { Thinking::Show } else { Thinking::Hide }
}

/// Room for the conversation, and for its state from before the latest turn, so that it can be gone back to; unless memory
/// is so short that this would cost context or bits. One turn alone has nothing to go back to.
fn demand(model: &Model, args: &EngineArgs, tokens: usize, several: bool) -> Result<Demand, Failure> {
    let with = |sequences| Request { sequences, ..load::request(args, None, 1) };
    if !several {
        return Ok(Demand::new(with(1), tokens));
    }
    let two = room_for_two(|sequences| load::plan(model, &with(sequences), tokens, Vec::new()))?;
    let (sequences, note) = if two {
        (2, "two states are planned: the conversation's, and the one before the latest turn, to go back to")
    } else {
        (
            1,
            "memory is short: no state before the latest turn is kept; after /retry, a failure, or Ctrl-C while a \
             prompt is read, the next turn computes the conversation anew",
        )
    };
    Ok(Demand::new(with(sequences), tokens).noting(note))
}

/// Whether a second state fits and costs neither context nor bits of the weights; `plan` gives the plan for so many states.
pub(super) fn room_for_two(plan: impl Fn(u32) -> Result<Plan, Failure>) -> Result<bool, Failure> {
    let two = match plan(2) {
        Ok(two) => two,
        Err(Failure::Plan(PlanError::DoesNotFit(_))) => return Ok(false),
        Err(failure) => return Err(failure),
    };
    let most = DEFAULT_CONTEXT_MAX.min(two.context_most);
    if two.context >= most && two.options.dense == Dense::ALL[0] {
        return Ok(true);
    }
    let one = plan(1)?;
    Ok(two.context >= one.context && two.options.dense == one.options.dense)
}
