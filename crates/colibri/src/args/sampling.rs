//! Flags of the commands that choose tokens.
use crate::values::{self, Biases};
use clap::Args;

/// Above these flags in help texts.
pub(crate) const HEADING: &str = "Sampling (defaults: the model's generation_config.json, else as given)";

/// How tokens are chosen and what ends an answer, in the order in which the rules work.
#[derive(Debug, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct SamplingArgs {
    /// Tokens to generate, at most [default: the model's `max_new_tokens`, else 256, in a
    /// chat what the context holds]
    #[arg(long, value_name = "N", value_parser = values::count, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<u32>,
    /// Add to the logits of tokens, by id, -100 to 100, such as 5=2.5,17=-100; may be repeated [default: none]
    #[arg(long, value_name = "ID=VALUE,..", value_parser = values::biases, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<Biases>,
    /// Divide the logits above 0 of tokens that the prompt or the answer has, and multiply those below 0; 0.01 to 100
    /// [default: the model's `repetition_penalty`, else 1, none]
    #[arg(long, value_name = "R", value_parser = values::repetition, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Take this from the logits of tokens that the prompt or the answer has, -2 to 2 [default: 0]
    #[arg(long, value_name = "A", value_parser = values::penalty, allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Take this from the logit of a token for each time that the prompt or the answer has it, -2 to 2 [default: 0]
    #[arg(long, value_name = "A", value_parser = values::penalty, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Divides the logits, 0 to 100; 0 takes the likeliest token [default: 1]
    #[arg(long, value_name = "T", value_parser = values::temperature, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep this many of the likeliest tokens, 1 or more; 0 keeps all [default: 0]
    #[arg(long, value_name = "K", value_parser = values::whole, allow_negative_numbers = true)]
    pub(crate) top_k: Option<u32>,
    /// Keep the fewest likeliest tokens that together have this share, above 0 to 1 [default: 1, all]
    #[arg(long, value_name = "P", value_parser = values::share, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest, 0 to 1 [default: 0, none]
    #[arg(long, value_name = "P", value_parser = values::share_or_zero, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Of the draws, 0 to 2^64 - 1; a draw depends on seed and position only [default: from the clock, printed]
    #[arg(long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// End the answer before this text, which is not printed; may be repeated [default: none]
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}
