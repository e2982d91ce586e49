//! What was asked for, with defaults, and what has no effect on what is measured. Measures nothing.
use crate::args::{BenchArgs, What};
use crate::errors::Failure;
use crate::settings::{self, LEAVE_AWAY};
use crate::values::List;

/// Inputs of kernels.
pub(crate) fn rows(args: &BenchArgs) -> Vec<u32> {
    numbers(args.rows.as_ref(), &[1, 4, 32, 128])
}

/// Tokens of a repeat.
pub(crate) fn tokens(args: &BenchArgs) -> u32 {
    args.tokens.unwrap_or(8)
}

/// Shares of guesses that are right, in thousandths.
pub(crate) fn precisions(args: &BenchArgs) -> Vec<u16> {
    args.guess_precision.as_ref().map_or(Vec::new(), |shares| shares.0.clone())
}

/// Tokens of prompts.
pub(crate) fn lengths(args: &BenchArgs) -> Vec<u32> {
    numbers(args.lengths.as_ref(), &[64, 256])
}

/// Tokens before the measured ones.
pub(crate) fn contexts(args: &BenchArgs) -> Vec<u32> {
    numbers(args.contexts.as_ref(), &[256, 1024, 4096])
}

fn numbers(list: Option<&List>, otherwise: &[u32]) -> Vec<u32> {
    list.map_or_else(|| otherwise.to_vec(), |list| list.0.clone())
}

const STEPS: &[What] = &[What::Decode, What::Prefill, What::Context];

/// Flags of this command, and what they act on.
fn own(args: &BenchArgs) -> [(&'static str, bool, &'static [What]); 8] {
    [
        ("rows", args.rows.is_some(), &[What::Kernels]),
        ("tokens", args.tokens.is_some(), &[What::Decode, What::Context]),
        ("lengths", args.lengths.is_some(), &[What::Prefill]),
        ("contexts", args.contexts.is_some(), &[What::Context]),
        ("guess-precision", args.guess_precision.is_some(), &[What::Decode]),
        ("text", args.text.is_some(), STEPS),
        ("trace-routing", args.records.trace_routing.is_some(), STEPS),
        ("timeline", args.records.timeline.is_some(), STEPS),
    ]
}

/// Settings that do not act on everything.
const SETTINGS: [(&str, &[What]); 16] = [
    ("chunk", STEPS),
    ("context", STEPS),
    ("expert-cache", STEPS),
    ("cache-policy", STEPS),
    ("expert-top-p", STEPS),
    ("activations", STEPS),
    ("io", STEPS),
    ("mirror", STEPS),
    ("readers", &[What::Machine, What::Decode, What::Prefill, What::Context]),
    ("overlap", STEPS),
    ("look-ahead", STEPS),
    ("check-experts", STEPS),
    ("governor", STEPS),
    ("dense", &[What::Kernels, What::Decode, What::Prefill, What::Context]),
    ("dense-residency", STEPS),
    ("device", &[What::Kernels, What::Decode, What::Prefill, What::Context]),
];

/// Refuses what was typed and has no effect on what is measured (None: nothing, two files are compared). Of what a file or
/// a variable says, which is for more runs than this one, it says so.
///
/// # Errors
/// The first flag of that kind.
pub(crate) fn refused(args: &BenchArgs, what: Option<What>) -> Result<Vec<String>, Failure> {
    let acts = |on: &[What]| on.iter().any(|part| what.is_some_and(|what| what.includes(*part)));
    let on = what.map_or("with --compare".to_owned(), |what| format!("on `bench {}`", what.name()));
    for (name, given, parts) in own(args) {
        if given && !acts(parts) {
            return Err(Failure::Usage(format!("--{name} has no effect {on}; {LEAVE_AWAY}")));
        }
    }
    let mut notes = Vec::new();
    let all = SETTINGS.into_iter().chain(what.is_none().then_some(("threads", &[][..])));
    for (name, _) in all.filter(|(_, parts)| !acts(parts)) {
        notes.extend(settings::idle(name, &format!("has no effect {on}"), LEAVE_AWAY)?);
    }
    Ok(notes)
}
