//! `colibri run`: continues a text, token by token.
use crate::args::RunArgs;
use crate::commands::chat;
use crate::errors::{Failure, INTERRUPTED};
use crate::expert_history::ExpertHistory;
use crate::records::Records;
use crate::report::{self, Pace};
use crate::sampling::Decoding;
use crate::work::{Demand, Planned};
use crate::{load, logprobs, progress, sampling};
use engine::{Cancel, EngineError, Event, Finish, Plan, Task};
use indicatif::ProgressBar;
use serde_json::json;
use std::ops::ControlFlow;
use std::process::ExitCode;
use text::{StopStrings, StreamDecoder, Tiktoken, Tokenizer};

/// Runs it.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    if args.logprobs.is_some() && !args.output.json {
        return Err(Failure::Usage(
            "--logprobs has no effect without --json, which prints them: add --json or leave --logprobs away"
                .into(),
        ));
    }
    if args.chat {
        return chat::once(args);
    }
    args.speech.refuse_idle()?;
    let model = load::open(&args.model)?;
    let decoding = sampling::decoding(&args.sampling, args.ignore_eos, &model)?.with_logprobs(args.logprobs);
    let tokenizer = load::tokenizer(&model)?;
    let prompt = load::prompt_by(&args.prompt, &model, || Ok(&tokenizer))?;
    let request = load::request(&args.engine, None, 1);
    let demand = Demand::new(request, prompt.len()).choosing(decoding.clone()).recording(&args.records);
    let planned = Planned::new(&model, &args.engine, demand)?;
    note_ends(&decoding, &planned.plan, prompt.len());
    let mut records = Records::create(&args.records, &args.model.model, &model)?;
    let mut work = planned.load()?;
    records.begin(&mut work.engine)?;
    let mut history = ExpertHistory::begin(args.history.history.0, &mut work.engine);
    drop(model);
    let mut output = Output::new(&tokenizer, decoding.stop_strings()?, !args.output.json, prompt.len());
    let task = Task {
        prompt: &prompt,
        max_tokens: decoding.max_tokens,
        stop: &decoding.stop_ids,
        cancel: Some(Cancel::at_once(work.cancel)),
    };
    let mut session = work.session()?;
    let mut sampler = work.engine.sampler(decoding.sampling()).map_err(EngineError::from)?;
    let mut answer = engine::generate(&mut work.engine, &mut session, &task, &mut sampler, &mut |event| {
        output.take(event)
    })?;
    let (text, stopped) = output.finish()?;
    if stopped {
        answer.finish = Finish::Stop;
    }
    history.save(&mut work.engine);
    let stats = work.stats(Pace::of(answer.prefill), Pace::of(answer.decode));
    if args.output.json {
        let mut object = json!({
            "prompt_ids": prompt,
            "ids": answer.ids,
            "text": text,
            "finish": answer.finish.name(),
            "settings": work.settings,
            "stats": stats,
        });
        if args.logprobs.is_some() {
            object["logprobs"] = json!(logprobs::shown(&tokenizer, &answer));
        }
        report::print_json(&object)?;
    } else {
        report::tell(&stats.summary());
        if answer.finish == Finish::Cancelled {
            report::tell("interrupted");
        }
    }
    let failed = records.end(&mut work.engine);
    Ok(match answer.finish {
        Finish::Cancelled => ExitCode::from(INTERRUPTED),
        Finish::Stop | Finish::Length => failed.unwrap_or(ExitCode::SUCCESS),
    })
}

/// Says so if the answer may end for another reason than was asked for.
fn note_ends(decoding: &Decoding, plan: &Plan, prompt: usize) {
    let context = plan.context;
    let room = u64::from(context).saturating_sub(prompt as u64);
    if u64::from(decoding.max_tokens) > room {
        let (room, advice) = (
            report::counted(room, "token"),
            if context < plan.context_most { "--context sets it" } else { "this model reaches no further" },
        );
        report::tell(&format!(
            "note: the context of {context} positions ends the answer after {room}; {advice}"
        ));
    }
    if decoding.names_no_end() {
        report::tell("note: the model names no token that ends a text; only --max-tokens does");
    }
}

/// Tokens on their way to text and to standard output.
struct Output<'a> {
    tokenizer: &'a Tiktoken,
    decoder: StreamDecoder,
    stop: StopStrings,
    text: String,
    /// Whether text is printed as it comes.
    live: bool,
    /// Why nobody takes the text any more.
    failed: Option<Failure>,
    prefill: ProgressBar,
}

impl<'a> Output<'a> {
    fn new(tokenizer: &'a Tiktoken, stop: StopStrings, live: bool, prompt: usize) -> Self {
        Output {
            tokenizer,
            decoder: StreamDecoder::new(),
            stop,
            text: String::new(),
            live,
            failed: None,
            prefill: progress::count("prompt tokens", prompt as u64),
        }
    }

    /// Prints what is certain; ends the answer at a stop string, or when nobody takes it.
    fn take(&mut self, event: Event) -> ControlFlow<Finish> {
        match event {
            Event::Prefilled(done, total) => {
                self.prefill.set_position(done.into());
                if done == total {
                    self.prefill.finish_and_clear();
                }
            }
            Event::Token { id } => {
                let text = self.text_of(id);
                let certain = self.stop.push(&text);
                self.add(&certain);
            }
        }
        match self.failed {
            Some(_) => ControlFlow::Break(Finish::Cancelled),
            None if self.stop.stopped() => ControlFlow::Break(Finish::Stop),
            None => ControlFlow::Continue(()),
        }
    }

    /// The text that is certain after a token; a control token has none and ends a character that is not whole.
    fn text_of(&mut self, id: u32) -> String {
        match self.tokenizer.bytes(id) {
            Some(bytes) if !self.tokenizer.is_special(id) => self.decoder.push(bytes),
            _ => self.decoder.finish(),
        }
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        if self.live
            && self.failed.is_none()
            && !text.is_empty()
            && let Err(failure) = report::print(text)
        {
            self.failed = Some(failure);
        }
    }

    /// All of the text, and whether a stop string ended it.
    fn finish(mut self) -> Result<(String, bool), Failure> {
        self.prefill.finish_and_clear();
        let rest = self.decoder.finish();
        let rest = self.stop.push(&rest) + &self.stop.finish();
        self.add(&rest);
        if self.live && self.failed.is_none() {
            report::print("\n")?;
        }
        let stopped = self.stop.stopped();
        self.failed.map_or(Ok((self.text, stopped)), Err)
    }
}
