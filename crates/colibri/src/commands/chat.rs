//! `colibri chat`: a conversation, entry by entry. Knows what orders do, not how.
use crate::args::{ChatArgs, RunArgs};
use crate::chat::{
    Asked, Entered, Entry, Flags, History, Input, Inputs, Order, Reply, Speaker, Thinking, help, read,
};
use crate::errors::{self, Failure, INTERRUPTED};
use crate::{load, report};
use engine::EngineError;
use models::PartError;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &ChatArgs) -> Result<ExitCode, Failure> {
    let ChatArgs { speech, load, no_history, sampling, records, history, model, engine, json } = args;
    let json = *json;
    let flags = Flags { speech, sampling, records, history, model, engine, logprobs: None, json };
    let speaker = Speaker::load(flags, load.as_deref(), true)?;
    let entries = || if *no_history { History::forgotten() } else { History::kept() };
    let inputs = Inputs::new(entries)?;
    if inputs.typed() {
        report::tell("/help lists what can be entered; Ctrl-D ends the program");
    }
    Talk { speaker, inputs, json, failed: None }.hold()
}

/// Runs one turn, for `colibri run --chat`.
pub(crate) fn once(args: &RunArgs) -> Result<ExitCode, Failure> {
    let RunArgs { prompt, speech, sampling, logprobs, records, history, model, engine, output, .. } = args;
    let text = load::text(prompt)?;
    if text.trim().is_empty() {
        return Err(Failure::Usage(
            "the message is empty: say something, or give `-` for standard input".into(),
        ));
    }
    let json = output.json;
    let flags = Flags { speech, sampling, records, history, model, engine, logprobs: *logprobs, json };
    let mut speaker = Speaker::load(flags, None, false)?;
    let reply = speaker.ask(Asked::Text(&text))?;
    let failed = speaker.end();
    let reply = reply.ok_or(EngineError::Part(PartError::Cancelled))?;
    if !json {
        speaker.tell_cost(&reply);
        if reply.stopped() {
            report::tell("interrupted");
        }
    }
    Ok(if reply.stopped() { ExitCode::from(INTERRUPTED) } else { failed.unwrap_or(ExitCode::SUCCESS) })
}

/// A turn was stopped before its answer began.
const NOTHING_HAPPENED: &str = "stopped before the answer began; the conversation is as it was";

/// A conversation that is being held.
struct Talk {
    speaker: Speaker,
    inputs: Inputs,
    json: bool,
    /// The exit code of the first entry that failed, where nobody types.
    failed: Option<u8>,
}

/// Whether the next entry is wanted.
enum Next {
    Entry,
    End(ExitCode),
}

impl Talk {
    fn hold(mut self) -> Result<ExitCode, Failure> {
        loop {
            let outcome = match self.inputs.next()? {
                Input::Entry(entry) => self.take(entry),
                Input::GivenUp => {
                    report::tell("what was entered is given up");
                    Ok(Next::Entry)
                }
                Input::Interrupted => {
                    report::tell("Ctrl-D or /quit ends the program");
                    Ok(Next::Entry)
                }
                Input::End => Ok(self.end()),
            };
            match outcome {
                Ok(Next::Entry) => {}
                Ok(Next::End(code)) => {
                    let failed = self.speaker.end();
                    return Ok(if code == ExitCode::SUCCESS { failed.unwrap_or(code) } else { code });
                }
                // Nobody reads on.
                Err(failure @ Failure::OutputClosed) => return Err(failure),
                Err(failure) => {
                    failure.report(self.json);
                    self.failed = self.failed.or(Some(failure.exit_code()));
                }
            }
        }
    }

    /// Whoever types has seen what failed.
    fn end(&self) -> Next {
        let failed = self.failed.filter(|_| !self.inputs.typed());
        Next::End(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
    }

    fn take(&mut self, entry: Entry) -> Result<Next, Failure> {
        match read(entry).map_err(Failure::Usage)? {
            Entered::Blank => Ok(Next::Entry),
            Entered::Text(text) => self.ask(Asked::Text(&text)),
            Entered::Order(order) => self.order(order),
        }
    }

    fn ask(&mut self, asked: Asked<'_>) -> Result<Next, Failure> {
        let reply = self.speaker.ask(asked)?;
        let stopped = reply.as_ref().is_none_or(Reply::stopped);
        match reply {
            Some(reply) => self.speaker.tell_ending(&reply),
            None if self.json => errors::say("cancelled", NOTHING_HAPPENED, true),
            None => report::tell(NOTHING_HAPPENED),
        }
        // Where nobody types, whoever stops one answer does not want the others.
        Ok(if stopped && !self.inputs.typed() { Next::End(ExitCode::from(INTERRUPTED)) } else { Next::Entry })
    }

    fn order(&mut self, order: Order) -> Result<Next, Failure> {
        let speaker = &mut self.speaker;
        match order {
            Order::Help => report::tell(&help()),
            Order::System(text) => {
                speaker.add_system(&text)?;
                report::tell("the system message stands before what comes next");
            }
            Order::Reset => {
                speaker.reset()?;
                report::tell("the conversation begins anew");
            }
            Order::Retry => {
                report::tell(&format!("another answer: {}", speaker.draw_anew()?));
                return self.ask(Asked::Again);
            }
            Order::Stats => speaker.show_stats()?,
            Order::Save(file) => speaker.save(&file)?,
            Order::Load(file) => speaker.open(&file)?,
            Order::Think(thinking) => self.think(thinking),
            Order::Quit => return Ok(self.end()),
        }
        Ok(Next::Entry)
    }

    /// Shows thinking in another way; unfolding shows what was folded last.
    fn think(&mut self, thinking: Option<Thinking>) {
        let before = self.speaker.thinking;
        let unfolded = if before == Thinking::Show { Thinking::Fold } else { Thinking::Show };
        self.speaker.thinking = thinking.unwrap_or(unfolded);
        report::tell(match self.speaker.thinking {
            Thinking::Show => "thinking is shown",
            Thinking::Fold => "thinking is folded into one line",
            Thinking::Hide => "thinking is hidden",
        });
        if before != Thinking::Show && self.speaker.thinking == Thinking::Show {
            self.speaker.show_last_thought();
        }
    }
}
