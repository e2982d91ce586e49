//! A tokenizer for a generated checkpoint: the embedded model's own where the vocabulary has its size, else one
//! that is made up: every byte, then words of small letters, shortest first. Knows the two files' formats only.

use super::geometry::{Geometry, SPECIALS};
use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The fewest ids: 256 bytes and [`SPECIALS`].
pub(crate) const VOCABULARY_MIN: usize = 256 + SPECIALS;

/// The two files' names and contents. `tiny` is the folder of the embedded model.
///
/// # Errors
/// When its tokenizer files cannot be read.
pub(crate) fn files(geometry: &Geometry, tiny: &Path) -> Result<[(&'static str, String); 2]> {
    let read =
        |name| fs::read_to_string(tiny.join(name)).with_context(|| tiny.join(name).display().to_string());
    let (ranks, config) = (read("tiktoken.model")?, read("tokenizer_config.json")?);
    let tiny_ranks = ranks.lines().count();
    if geometry.vocabulary == tiny_ranks + SPECIALS {
        return Ok([("tiktoken.model", ranks), ("tokenizer_config.json", config)]);
    }
    let wanted = geometry.vocabulary - SPECIALS;
    let config = renumbered(&config, tiny_ranks, wanted).context("data/k3-tiny/tokenizer_config.json")?;
    Ok([("tiktoken.model", made_up_ranks(wanted)), ("tokenizer_config.json", config)])
}

/// The special tokens of a tokenizer with `from` ranks for one with `to` ranks.
fn renumbered(config: &str, from: usize, to: usize) -> Result<String> {
    let mut config: Value = serde_json::from_str(config)?;
    let tokens =
        config["added_tokens_decoder"].as_object().context("expected the object added_tokens_decoder")?;
    let mut moved = Map::new();
    for (id, token) in tokens {
        let id: usize =
            id.parse().with_context(|| format!("added_tokens_decoder: expected an id, found `{id}`"))?;
        let offset = id
            .checked_sub(from)
            .with_context(|| format!("added_tokens_decoder: id {id} is among the ranks"))?;
        moved.insert((to + offset).to_string(), token.clone());
    }
    config["added_tokens_decoder"] = Value::Object(moved);
    Ok(serde_json::to_string_pretty(&config)?)
}

/// Lines `base64(bytes) rank`. Bytes come in the release's order. Then words, each with a space before it and
/// without; a word without its last letter is always there before it, so merging pairs can reach it.
fn made_up_ranks(count: usize) -> String {
    let first = (33..=126).chain(161..=172).chain(174..=255_u8);
    let rest = (0..=32).chain(127..=160).chain([173_u8]);
    let bytes = first.chain(rest).map(|byte| vec![byte]);
    let words = (1..).flat_map(|number| {
        let word = word(number);
        let spaced = [b" ", word.as_slice()].concat();
        // A word of one letter is a byte, which is there already.
        std::iter::once(spaced).chain((word.len() > 1).then_some(word))
    });
    let mut lines = String::new();
    for (rank, token) in bytes.chain(words).take(count).enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{} {rank}", STANDARD.encode(token));
    }
    lines
}

/// The words over a-z by length, then by letters: 1 is `a`, 26 `z`, 27 `aa`.
fn word(mut number: usize) -> Vec<u8> {
    let mut letters = Vec::new();
    while number > 0 {
        letters.push(b'a' + ((number - 1) % 26) as u8);
        number = (number - 1) / 26;
    }
    letters.reverse();
    letters
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Preset;
    use super::*;
    use std::collections::HashMap;

    fn tiny() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny")
    }

    #[test]
    fn made_up_tokens_are_distinct_and_reachable_by_merging() {
        let text = made_up_ranks(20_000);
        let mut ranks: HashMap<Vec<u8>, usize> = HashMap::new();
        for (line, expected) in text.lines().zip(0..) {
            let (token, rank) = line.split_once(' ').expect("two words");
            assert_eq!(rank, expected.to_string());
            let token = STANDARD.decode(token).expect("base64");
            let prefix = ranks.get(&token[..token.len() - 1]);
            assert!(token.len() == 1 || prefix.is_some(), "{token:?} has no prefix among earlier ranks");
            assert_eq!(ranks.insert(token.clone(), expected), None, "{token:?} is there twice");
        }
        assert_eq!(ranks.len(), 20_000);
        assert!((0..=255_u8).all(|byte| ranks[&vec![byte]] < 256));
        assert_eq!((ranks[&vec![b'!']], ranks[&vec![0]]), (0, 94 + 12 + 82));
    }

    #[test]
    fn byte_ranks_are_those_of_the_embedded_model() {
        let tiny = fs::read_to_string(tiny().join("tiktoken.model")).expect("it is in the repository");
        let made_up = made_up_ranks(256);
        assert_eq!(tiny.lines().take(256).collect::<Vec<_>>(), made_up.lines().collect::<Vec<_>>());
    }

    #[test]
    fn specials_move_with_the_ranks() {
        let geometry = Geometry::of(Preset::Small, 1000);
        let [(_, ranks), (_, config)] = files(&geometry, &tiny()).expect("the files are there");
        assert_eq!(ranks.lines().count(), 1000 - SPECIALS);
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let (bos, eos, pad) = geometry.special_ids();
        for (id, content) in [(bos, "[BOS]"), (eos, "<|end_of_msg|>"), (pad, "[PAD]")] {
            assert_eq!(config["added_tokens_decoder"][id.to_string()]["content"], content);
        }
    }

    #[test]
    fn the_embedded_models_vocabulary_brings_its_own_files() {
        let [(_, ranks), _] =
            files(&Geometry::of(Preset::Small, 4096), &tiny()).expect("the files are there");
        assert_eq!(
            ranks,
            fs::read_to_string(tiny().join("tiktoken.model")).expect("it is in the repository")
        );
    }
}
