//! Log-probabilities as JSON in the form that clients of `OpenAI` know, with the ids beside. Knows no flag.
use crate::report::decimal;
use engine::Answer;
use serde::Serialize;
use text::{Tiktoken, Tokenizer};

/// A token of an answer.
#[derive(Debug, Serialize)]
pub(crate) struct TokenLogprob<'a> {
    #[serde(flatten)]
    taken: Likelihood<'a>,
    top_logprobs: Vec<Likelihood<'a>>,
}

/// How likely a token is to the model.
#[derive(Debug, Serialize)]
struct Likelihood<'a> {
    id: u32,
    /// With replacement characters where its bytes are no text.
    token: String,
    /// None for an id without any.
    bytes: Option<&'a [u8]>,
    /// A natural logarithm; it becomes null where it is not finite.
    #[serde(serialize_with = "decimal")]
    logprob: f32,
}

/// Of each token of an answer.
pub(crate) fn shown<'a>(tokenizer: &'a Tiktoken, answer: &Answer) -> Vec<TokenLogprob<'a>> {
    let likelihood = |id: u32, logprob: f32| {
        let bytes = tokenizer.bytes(id);
        let token = String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
        Likelihood { id, token, bytes, logprob }
    };
    let tokens = answer.ids.iter().zip(&answer.logprobs);
    tokens
        .map(|(id, logprobs)| TokenLogprob {
            taken: likelihood(*id, logprobs.taken),
            top_logprobs: logprobs.top.iter().map(|(id, logprob)| likelihood(*id, *logprob)).collect(),
        })
        .collect()
}
