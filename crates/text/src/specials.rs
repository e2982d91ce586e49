//! The control tokens: 256 ids after the ranks, named by `added_tokens_decoder` of `tokenizer_config.json`.
//! It deliberately ignores `special: false`: the release says so of `<|open|>`, `<|close|>` and `<|sep|>`,
//! which are control tokens all the same. Nothing here looks at ordinary tokens.

use crate::TextError;
use crate::error::excerpt;
use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

/// How many control tokens follow the ranks, used or not.
pub(crate) const COUNT: u32 = 256;

/// The control tokens and the search for their spellings.
pub(crate) struct Specials {
    /// The id of the first: the number of ranks.
    first: u32,
    /// In the order of ids.
    names: Vec<String>,
    id_of: HashMap<String, u32>,
    /// Built when it is first asked for: most programs never are. Its pattern numbers are offsets from `first`.
    automaton: OnceLock<AhoCorasick>,
}

impl Specials {
    /// The control tokens after `first` ranks; ids without an entry in `config_json` are reserved ones.
    ///
    /// # Errors
    /// One that names the entry: ids in range, once each, and names that differ are expected.
    pub(crate) fn new(first: u32, config_json: Option<&[u8]>) -> Result<Self, TextError> {
        let names = match config_json {
            Some(json) => listed_names(first, json)?,
            None => vec![None; COUNT as usize],
        };
        let names: Vec<String> = (first..)
            .zip(names)
            .map(|(id, name)| name.unwrap_or_else(|| format!("<|reserved_token_{id}|>")))
            .collect();
        let mut id_of = HashMap::new();
        for (id, name) in (first..).zip(&names) {
            if let Some(first) = id_of.insert(name.clone(), id) {
                return Err(TextError::SameName { first, second: id, name: excerpt(name.as_bytes()) });
            }
        }
        Ok(Self { first, names, id_of, automaton: OnceLock::new() })
    }

    /// The names in the order of ids.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        self.id_of.get(name).copied()
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        (self.first..self.first + COUNT).contains(&id)
    }

    /// The search for their spellings.
    ///
    /// # Errors
    /// [`TextError::UnsearchableSpecials`] if the names are too much for it.
    pub(crate) fn finder(&self) -> Result<Finder<'_>, TextError> {
        let first = self.first;
        if let Some(automaton) = self.automaton.get() {
            return Ok(Finder { first, automaton });
        }
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&self.names)
            .map_err(|source| TextError::UnsearchableSpecials { source })?;
        // Another thread may have been first: then ours is dropped.
        Ok(Finder { first, automaton: self.automaton.get_or_init(|| built) })
    }
}

/// The search for spellings of control tokens.
#[derive(Clone, Copy)]
pub(crate) struct Finder<'s> {
    first: u32,
    automaton: &'s AhoCorasick,
}

impl<'s> Finder<'s> {
    /// Where `text` spells control tokens, from left to right: the longest name where several begin.
    pub(crate) fn find(self, text: &'s str) -> impl Iterator<Item = (Range<usize>, u32)> + 's {
        let found = self.automaton.find_iter(text);
        found.map(move |found| (found.range(), self.first + found.pattern().as_u32()))
    }
}

/// The names that `tokenizer_config.json` gives, by offset from `first`.
fn listed_names(first: u32, json: &[u8]) -> Result<Vec<Option<String>>, TextError> {
    let config: Config = serde_json::from_slice(json).map_err(|source| TextError::BadConfig { source })?;
    let mut names = vec![None; COUNT as usize];
    for (key, token) in config.added_tokens_decoder.0 {
        let Ok(id) = key.parse::<u32>() else {
            return Err(TextError::BadSpecialId { found: excerpt(key.as_bytes()) });
        };
        let slot = id.checked_sub(first).and_then(|offset| names.get_mut(offset as usize));
        let Some(slot) = slot else {
            let name = excerpt(token.content.as_bytes());
            return Err(TextError::SpecialOutside { id, name, first, last: first + COUNT - 1 });
        };
        if token.content.is_empty() {
            return Err(TextError::EmptySpecial { id });
        }
        if slot.replace(token.content).is_some() {
            return Err(TextError::SpecialTwice { id });
        }
    }
    Ok(names)
}

/// The one field of `tokenizer_config.json` that ids depend on.
#[derive(Deserialize)]
struct Config {
    added_tokens_decoder: Entries,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
}

/// The entries of an object in their order. A map would keep the last of two entries for one id in silence.
struct Entries(Vec<(String, AddedToken)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of token ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = object.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}
