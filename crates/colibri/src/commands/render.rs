//! `colibri render`: the prompt that a conversation becomes, without a model that answers it.
use crate::args::RenderArgs;
use crate::errors::Failure;
use crate::terminal::Stream;
use crate::{load, report};
use anstyle::{AnsiColor, Style};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use text::chat::{Chat, ChatFormat as _};
use text::kimi_k3::KimiK3;
use text::{Json, OwnedSegment, Tokenizer as _};

/// What the format says, as against what people say.
const CONTROL: Style = AnsiColor::Cyan.on_default();

/// Runs it.
pub(crate) fn run(args: &RenderArgs) -> Result<ExitCode, Failure> {
    let (place, chat) = read(&args.chat)?;
    let refused = |error: &dyn std::fmt::Display| Failure::Usage(format!("{place}: {error}"));
    let chat = Json::parse(&chat).map_err(|error| refused(&error))?;
    let chat = Chat::from_json(&chat).map_err(|error| refused(&error))?;
    let segments = KimiK3.render(&chat).map_err(|error| refused(&error))?;
    let ids = load::tokenizer_alone(&args.model)?.encode_owned(&segments)?;
    if args.output.json {
        report::print_json(&json!({ "segments": segments, "ids": ids }))?;
    } else {
        report::written(Stream::Output.put(&shown(&segments)))?;
        report::tell(&report::counted(ids.len(), "token"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The text of the file, and how it is called in messages.
fn read(path: &Path) -> Result<(String, String), Failure> {
    if path == Path::new("-") {
        let text = load::standard_input("the conversation", "convert it")?;
        return Ok(("standard input".to_owned(), text));
    }
    let place = path.display().to_string();
    let bytes = fs::read(path).map_err(Failure::io("reading the conversation", path))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((place, text)),
        Err(error) => Err(Failure::Usage(format!(
            "{place}: expected UTF-8, found something else at byte {} (counted from 0); convert it",
            error.utf8_error().valid_up_to()
        ))),
    }
}

/// For people. Control tokens stand between the brackets ⟨ and ⟩, in colour where there is colour; an opening bracket of
/// somebody's text is doubled, so that no text looks like a control token. A new line after each message is for the eye.
fn shown(segments: &[OwnedSegment]) -> String {
    let stream = Stream::Output;
    let mut text = String::new();
    for segment in segments {
        match segment {
            OwnedSegment::Text(words) => text += &stream.shown(&words.replace('⟨', "⟨⟨")),
            OwnedSegment::Special(name) => {
                let bare = name.trim_start_matches("<|").trim_end_matches("|>");
                text += &stream.painted(CONTROL, &format!("⟨{bare}⟩"));
                if *name == "<|end_of_msg|>" {
                    text.push('\n');
                }
            }
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
