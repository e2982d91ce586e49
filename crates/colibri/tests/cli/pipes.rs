//! Streams that nobody reads any more: quiet, with the exit code that the help promises.
use crate::common::{colibri, model_copy, program, text_of};
use std::fs;
use std::process::{Output, Stdio};

/// The writing end of a pipe without a reading end.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn into(arguments: &[&str], out: Stdio, error: Stdio) -> Output {
    program().args(arguments).stdin(Stdio::null()).stdout(out).stderr(error).output().unwrap()
}

/// Command lines that say something on standard output, each command at least once, and the code of a reader's run.
fn talkative(model: &str) -> Vec<(Vec<&str>, i32)> {
    vec![
        (vec!["--help"], 0),
        (vec!["--version"], 0),
        (vec!["run", "--help"], 0),
        (vec!["run", "Once", "--max-tokens", "3", "--temperature", "0"], 0),
        (vec!["verify", "--checked", "--ids", "1,2", "--layers", "1"], 0),
        (vec!["inspect"], 0),
        (vec!["inspect", "--model", model], 1),
        (vec!["completions", "bash"], 0),
        (vec!["man"], 0),
        (vec!["man", "run"], 0),
        (vec!["doctor", "--no-measure"], 0),
        (vec!["doctor", "--missing", "--model", model], 1),
        (vec!["config"], 0),
        (vec!["tokenize", "Once"], 0),
        (vec!["run", "--chat", "Once", "--no-think", "--max-tokens", "8", "--temperature", "0"], 0),
        (vec!["tokenize", "Once", "--json"], 0),
        (vec!["run", "Once", "--max-tokens", "3", "--temperature", "0", "--json"], 0),
        (vec!["run", "--chat", "Hi", "--max-tokens", "3", "--json"], 0),
    ]
}

/// A model of which a shard is missing.
fn incomplete() -> tempfile::TempDir {
    let model = model_copy();
    fs::remove_file(model.path().join("model-00003-of-000012.safetensors")).unwrap();
    model
}

#[test]
fn who_stops_reading_ends_the_program_quietly() {
    let model = incomplete();
    for (arguments, _) in talkative(text_of(model.path())) {
        let output = into(&arguments, closed(), Stdio::piped());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {told}");
        assert!(!told.contains("error") && !told.contains("panicked"), "{arguments:?}: {told}");
        // Nobody is left at all.
        let output = into(&arguments, closed(), closed());
        assert_eq!(output.status.code(), Some(141), "{arguments:?}");
    }
}

#[test]
fn nobody_needs_to_hear_what_is_told_beside() {
    let model = incomplete();
    for (arguments, code) in talkative(text_of(model.path())) {
        let heard = colibri(&arguments);
        assert_eq!(heard.code, code, "{arguments:?}: {}{}", heard.stdout, heard.stderr);
        let output = into(&arguments, Stdio::piped(), closed());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        // What changes from run to run, such as free memory and times, stands in what doctor says and in figures.
        if arguments[0] != "doctor" && !(arguments[0] == "run" && arguments.contains(&"--json")) {
            assert_eq!(String::from_utf8(output.stdout).unwrap(), heard.stdout, "{arguments:?}");
        }
    }
    for (arguments, code) in [
        (&["run"][..], 2),
        (&["run", "x", "--bogus"], 2),
        (&["run", "x", "--model", "absent"], 1),
        (&["man", "fly"], 2),
        (&["inspect", "--log-file", "absent/log"], 1),
    ] {
        let output = into(arguments, Stdio::piped(), closed());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{arguments:?}");
    }
}
