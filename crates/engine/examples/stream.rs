//! Loads a model and prints the continuation of a text as it comes: the library in one page.
//!
//! `cargo run --release --example stream -p engine -- [DIR [TEXT]]`; without arguments it takes the model of this
//! project.
use cpu::Cpu;
use engine::plan::Request;
use engine::{Engine, Event, Finish, Limits, Sampler, Sampling, Session, Streaming, Task, generate, plan};
use models::Family;
use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use store::Checkpoint;
use text::{Segment, StreamDecoder, Tiktoken, Tokenizer};

/// Writes what the model of a directory makes of a text, at most `max_tokens` tokens, to `out`.
pub(crate) fn stream(
    directory: PathBuf,
    text: &str,
    max_tokens: u32,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    // What is on disk, and what it is.
    let checkpoint = Checkpoint::open(&[directory])?;
    let family = Family::recognise(&checkpoint)?;
    let file = |name| checkpoint.metadata_file(name, 64 << 20);
    let ranks = file("tiktoken.model")?.ok_or("the model has no tiktoken.model")?;
    let tokenizer = Tiktoken::from_bytes(&ranks, file("tokenizer_config.json")?.as_deref())?;

    // What it takes, before anything is loaded; then the model.
    let plan = plan(&checkpoint, &family, &Request::default(), Limits::of_machine()?)?;
    let device = Box::new(Cpu::new(std::thread::available_parallelism()?.get())?);
    let streaming = Streaming::new(Arc::new(checkpoint.files()), 4);
    let mut engine = Engine::load(&checkpoint, &family, plan, device, streaming, &mut |_| {})?;

    // One sequence, and one answer in it.
    let mut session = Session::new(&mut engine)?;
    let mut sampler = Sampler::new(Sampling::greedy(), family.config.vocabulary)?;
    let prompt = tokenizer.encode(&[Segment::Text(text)])?;
    let end = tokenizer.special("<|end_of_msg|>").ok_or("the tokenizer has no <|end_of_msg|>")?;
    let task = Task { prompt: &prompt, max_tokens, stop: &[end], cancel: None };
    let mut decoder = StreamDecoder::new();
    let mut write = |id| -> Result<(), Box<dyn Error>> {
        out.write_all(decoder.push_id(&tokenizer, id)?.as_bytes())?;
        Ok(out.flush()?)
    };
    generate(&mut engine, &mut session, &task, &mut sampler, &mut |event| match event {
        Event::Token { id, .. } if write(id).is_err() => ControlFlow::Break(Finish::Cancelled),
        _ => ControlFlow::Continue(()),
    })?;
    Ok(writeln!(out, "{}", decoder.finish())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let embedded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
    let directory = arguments.next().unwrap_or_else(|| embedded.to_owned());
    let text = arguments.next().unwrap_or_else(|| "Once upon a time".to_owned());
    stream(directory.into(), &text, 256, &mut std::io::stdout())
}
