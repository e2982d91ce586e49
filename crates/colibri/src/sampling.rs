//! How tokens are chosen and what ends a text: flags first, then the model's `generation_config.json`, then
//! neutral values. A flag that could change nothing is refused.
use crate::args::SamplingArgs;
use crate::errors::Failure;
use crate::load::Model;
use crate::report::decimal;
use crate::values;
use engine::Sampling;
use models::kimi_k3::text_part;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};
use text::StopStrings;

/// What is in force.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Decoding {
    /// Tokens at most.
    pub(crate) max_tokens: u32,
    /// By id.
    #[serde(serialize_with = "decimals")]
    logit_bias: BTreeMap<u32, f32>,
    #[serde(serialize_with = "decimal")]
    repeat_penalty: f32,
    #[serde(serialize_with = "decimal")]
    presence_penalty: f32,
    #[serde(serialize_with = "decimal")]
    frequency_penalty: f32,
    #[serde(serialize_with = "decimal")]
    temperature: f32,
    top_k: u32,
    #[serde(serialize_with = "decimal")]
    top_p: f32,
    #[serde(serialize_with = "decimal")]
    min_p: f32,
    /// None where nothing is drawn.
    pub(crate) seed: Option<u64>,
    /// Texts that end the answer.
    pub(crate) stop: Vec<String>,
    ignore_eos: bool,
    /// Ids that end the text.
    pub(crate) stop_ids: Vec<u32>,
    /// Likeliest ids that are given beside each token; None: no log-probabilities.
    logprobs: Option<u32>,
}

/// Numbers by id with the digits that they were given in.
fn decimals<S: Serializer>(biases: &BTreeMap<u32, f32>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown(#[serde(serialize_with = "decimal")] f32);
    serializer.collect_map(biases.iter().map(|(id, bias)| (id, Shown(*bias))))
}

impl Decoding {
    /// In the engine's terms.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or(0),
            logit_bias: self.logit_bias.clone(),
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logprobs: self.logprobs,
        }
    }

    /// Beside each token come this many of the likeliest, with log-probabilities.
    pub(crate) fn with_logprobs(self, logprobs: Option<u32>) -> Self {
        Decoding { logprobs, ..self }
    }

    /// The search for texts that end the answer.
    pub(crate) fn stop_strings(&self) -> Result<StopStrings, Failure> {
        StopStrings::new(self.stop.clone()).map_err(|error| Failure::Usage(format!("--stop: {error}")))
    }

    /// Whether a text should end at a token, and there is none.
    pub(crate) fn names_no_end(&self) -> bool {
        !self.ignore_eos && self.stop_ids.is_empty() && self.stop.is_empty()
    }
}

/// Tokens of an answer where neither flag nor model says how many.
const MAX_TOKENS: u32 = 256;

/// Flags and the model's defaults together; with `ignore_eos` no token ends the text.
///
/// # Errors
/// A flag without effect, or a default that is none.
pub(crate) fn decoding(args: &SamplingArgs, ignore_eos: bool, model: &Model) -> Result<Decoding, Failure> {
    combined(args, ignore_eos, model).map_err(|failure| match failure {
        Failure::Config(_) => failure.within(&model.places[0]),
        other => other,
    })
}

/// The same for the answers of a conversation, which end with these ids. Without a word about it they may be as long as the
/// context holds: unlike a text, an answer comes to its end.
///
/// # Errors
/// As above.
pub(crate) fn of_chat(args: &SamplingArgs, model: &Model, ends: &[u32]) -> Result<Decoding, Failure> {
    let mut decoding = Decoding { stop_ids: ends.to_vec(), ..decoding(args, false, model)? };
    let limits = Defaults(model.checkpoint.generation_config());
    if args.max_tokens.is_none() && limits.get("max_new_tokens").is_none() {
        decoding.max_tokens = model.family.config.context;
    }
    Ok(decoding)
}

fn combined(args: &SamplingArgs, ignore_eos: bool, model: &Model) -> Result<Decoding, Failure> {
    let defaults = Defaults(model.checkpoint.generation_config());
    let (temperature, origin) = match args.temperature {
        Some(temperature) => (temperature, "--temperature 0"),
        None if !defaults.sampled()? => (0.0, "do_sample false of the model's generation_config.json"),
        None => {
            let temperature = defaults.number("temperature", values::temperature, 1.0)?;
            (temperature, "temperature 0 of the model's generation_config.json")
        }
    };
    let stop_ids = if ignore_eos { Vec::new() } else { stop_ids(model)? };
    let mut decoding = Decoding {
        max_tokens: args
            .max_tokens
            .map_or_else(|| defaults.number("max_new_tokens", values::count, MAX_TOKENS), Ok)?,
        logit_bias: biases(args, model.family.config.vocabulary)?,
        repeat_penalty: args
            .repeat_penalty
            .map_or_else(|| defaults.number("repetition_penalty", values::repetition, 1.0), Ok)?,
        presence_penalty: args
            .presence_penalty
            .map_or_else(|| defaults.number("presence_penalty", values::penalty, 0.0), Ok)?,
        frequency_penalty: args
            .frequency_penalty
            .map_or_else(|| defaults.number("frequency_penalty", values::penalty, 0.0), Ok)?,
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: None,
        stop: args.stop.clone(),
        ignore_eos,
        stop_ids,
        logprobs: None,
    };
    decoding.stop_strings()?;
    if temperature == 0.0 {
        refuse_idle(args, origin)?;
        return Ok(decoding);
    }
    decoding.top_p = args.top_p.map_or_else(|| defaults.number("top_p", values::share, 1.0), Ok)?;
    decoding.top_k = args.top_k.map_or_else(|| defaults.number("top_k", values::whole, 0), Ok)?;
    decoding.min_p = args.min_p.map_or_else(|| defaults.number("min_p", values::share_or_zero, 0.0), Ok)?;
    decoding.seed = Some(args.seed.unwrap_or_else(clock_seed));
    Ok(decoding)
}

/// What is added to logits, by id.
fn biases(args: &SamplingArgs, vocabulary: u32) -> Result<BTreeMap<u32, f32>, Failure> {
    let mut biases = BTreeMap::new();
    for (id, bias) in args.logit_bias.iter().flat_map(|list| &list.0) {
        if *id >= vocabulary {
            return Err(Failure::Usage(format!(
                "--logit-bias: {id} is no token of this model; its ids are below {vocabulary}"
            )));
        }
        if biases.insert(*id, *bias).is_some() {
            return Err(Failure::Usage(format!(
                "--logit-bias: token {id} is given twice; give one number for it"
            )));
        }
    }
    Ok(biases)
}

/// With temperature 0 the likeliest token is taken, whatever else was said.
fn refuse_idle(args: &SamplingArgs, origin: &str) -> Result<(), Failure> {
    let given = [
        ("--top-p", args.top_p.is_some()),
        ("--top-k", args.top_k.is_some()),
        ("--min-p", args.min_p.is_some()),
        ("--seed", args.seed.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::Usage(format!(
            "{flag} has no effect with {origin}, which takes the likeliest token: leave {flag} away or give a \
             --temperature above 0"
        ))),
    }
}

/// Nanoseconds, cut to what every reader of JSON can hold.
fn clock_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 & ((1 << 53) - 1)
}

const GENERATION_CONFIG: &str = "generation_config.json";

/// The model's `generation_config.json`, if it has one.
struct Defaults<'a>(Option<&'a Value>);

impl Defaults<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0?.get(key).filter(|value| !value.is_null())
    }

    /// Whether tokens are drawn at all.
    fn sampled(&self) -> Result<bool, Failure> {
        match self.get("do_sample") {
            None => Ok(true),
            Some(Value::Bool(sampled)) => Ok(*sampled),
            Some(value) => Err(Failure::Config(format!(
                "{GENERATION_CONFIG}: `do_sample` is {value}; expected true or false: correct it, or set --temperature"
            ))),
        }
    }

    fn number<T: Display>(
        &self,
        key: &str,
        parse: fn(&str) -> Result<T, String>,
        neutral: T,
    ) -> Result<T, Failure> {
        let Some(value) = self.get(key) else { return Ok(neutral) };
        parse(&value.to_string()).map_err(|expected| {
            Failure::Config(format!(
                "{GENERATION_CONFIG}: `{key}` is {value}; {expected}: correct it, or set the flag for it"
            ))
        })
    }
}

/// What the model gives for flags that nobody gave, by their names; `temperature` is the one that was given.
///
/// # Errors
/// A `do_sample` that is neither true nor false.
pub(crate) fn of_model(
    model: &Model,
    temperature: Option<f32>,
) -> Result<Vec<(&'static str, String)>, Failure> {
    const KEYS: [(&str, &str); 8] = [
        ("max-tokens", "max_new_tokens"),
        ("repeat-penalty", "repetition_penalty"),
        ("presence-penalty", "presence_penalty"),
        ("frequency-penalty", "frequency_penalty"),
        ("temperature", "temperature"),
        ("top-p", "top_p"),
        ("top-k", "top_k"),
        ("min-p", "min_p"),
    ];
    let defaults = Defaults(model.checkpoint.generation_config());
    let named =
        KEYS.iter().filter_map(|(flag, key)| defaults.get(key).map(|value| (*flag, value.to_string())));
    let mut named: Vec<(&'static str, String)> = named.collect();
    if temperature.is_none() && !defaults.sampled()? {
        named.retain(|(flag, _)| *flag != "temperature");
        named.push(("temperature", "0".to_owned()));
    }
    let own = named.iter().find(|(flag, _)| *flag == "temperature").and_then(|(_, text)| text.parse().ok());
    if temperature.or(own) == Some(0.0) {
        // Nothing is drawn.
        named.retain(|(flag, _)| !["top-p", "top-k", "min-p"].contains(flag));
    }
    Ok(named)
}

/// `eos_token_id` of `generation_config.json`, else of `config.json`, a number or a list of numbers.
fn stop_ids(model: &Model) -> Result<Vec<u32>, Failure> {
    const KEY: &str = "eos_token_id";
    let (checkpoint, vocabulary) = (&model.checkpoint, model.family.config.vocabulary);
    let config = checkpoint.config();
    let places = [
        (GENERATION_CONFIG, checkpoint.generation_config()),
        ("config.json", Some(text_part(config).0)),
        ("config.json", Some(config)),
    ];
    let found = places.into_iter().find_map(|(file, object)| {
        object.and_then(|o| o.get(KEY)).filter(|v| !v.is_null()).map(|value| (file, value))
    });
    let Some((file, value)) = found else { return Ok(Vec::new()) };
    let id = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|id| *id < vocabulary);
    let ids: Option<Vec<u32>> = match value {
        Value::Array(list) => list.iter().map(id).collect(),
        single => id(single).map(|id| vec![id]),
    };
    ids.ok_or_else(|| {
        Failure::Config(format!(
            "{file}: `{KEY}` is {value}; expected a token id below {vocabulary} or a list of them: correct it, or give --ignore-eos"
        ))
    })
}
