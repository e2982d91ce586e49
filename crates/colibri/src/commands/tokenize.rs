//! `colibri tokenize`: from text to ids and from ids to text.
use crate::args::TokenizeArgs;
use crate::errors::Failure;
use crate::terminal::Stream;
use crate::{load, report, values};
use serde_json::json;
use std::io::{self, Write as _};
use std::process::ExitCode;
use text::{Segment, Tiktoken, Tokenizer as _};

/// Runs it.
pub(crate) fn run(args: &TokenizeArgs) -> Result<ExitCode, Failure> {
    let text = match args.text.as_str() {
        "-" => load::standard_input("the text", "convert it")?,
        text => text.to_owned(),
    };
    let tokenizer = load::tokenizer_alone(&args.model)?;
    if args.decode {
        decode(&tokenizer, &text, args.output.json)?;
    } else {
        let ids = if args.specials {
            tokenizer.encode_with_specials(&text)?
        } else {
            tokenizer.encode(&[Segment::Text(&text)])?
        };
        if args.output.json {
            report::print_json(&json!({ "text": text, "ids": ids }))?;
        } else {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            report::print(&format!("{}\n", ids.join(",")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A list of ids to the bytes that they stand for.
fn decode(tokenizer: &Tiktoken, list: &str, json: bool) -> Result<(), Failure> {
    let ids = match list.trim() {
        "" => Vec::new(),
        list => values::list(list).map_err(|error| Failure::Usage(format!("--decode: {error}")))?.0,
    };
    let mut bytes = Vec::new();
    for &id in &ids {
        let known = tokenizer.known_bytes(id);
        bytes.extend_from_slice(known.map_err(|error| Failure::Usage(format!("--decode: {error}")))?);
    }
    let text = String::from_utf8_lossy(&bytes);
    if json {
        report::print_json(&json!({ "ids": ids, "text": text }))
    } else if Stream::Output.is_terminal() {
        report::print(&format!("{text}\n"))
    } else {
        let mut out = io::stdout().lock();
        report::written(out.write_all(&bytes).and_then(|()| out.flush()))
    }
}
