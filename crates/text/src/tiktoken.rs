//! The tokenizer of `tiktoken.model` checkpoints. The library `tiktoken-rs` splits and merges ordinary text;
//! files, cuts and control tokens are ours. It deliberately knows no chat format and no model.

use crate::cuts::{LIMITS, cuts};
use crate::error::excerpt;
use crate::specials::{COUNT, Specials};
use crate::{Segment, TextError, Tokenizer, ranks};
use std::collections::HashMap;
use std::fmt;
use tiktoken_rs::CoreBPE;

const MODEL: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";

/// The most bytes either file may have: twenty times the largest tokenizer known, so that a file of weights
/// under the wrong name is refused before it is parsed. It also keeps ids far from the end of u32.
const FILE_BYTES_MAX: usize = 64 << 20;

/// How text falls into pieces before any merge, alternatives in order (Kimi K2 and K3).
pub const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// Byte-pair encoding by ranks: text is cut, split by [`PATTERN`], and in each piece that is no token the
/// adjacent pair of lowest rank is merged, the leftmost of equals, until none is left. 256 control tokens
/// follow the ranks.
pub struct Tiktoken {
    ordinary: CoreBPE,
    /// The bytes of every id: ranks, then names of control tokens.
    bytes: Vec<Box<[u8]>>,
    specials: Specials,
}

impl Tiktoken {
    /// The tokenizer in the bytes of `tiktoken.model`. The control tokens are named by `added_tokens_decoder`
    /// of `tokenizer_config.json`; those without an entry, and all without a file, are
    /// `<|reserved_token_{id}|>`.
    ///
    /// # Errors
    /// One that names the file and the line or entry, if they are not what this type's files hold.
    pub fn from_bytes(model: &[u8], config_json: Option<&[u8]>) -> Result<Self, TextError> {
        check_size(MODEL, model)?;
        check_size(CONFIG, config_json.unwrap_or_default())?;
        let mut bytes = ranks::parse(model)?;
        let specials = Specials::new(bytes.len() as u32, config_json)?;
        let ranks = (0..).zip(&bytes).map(|(rank, token)| (token.to_vec(), rank)).collect();
        // The library gets no control tokens: it must not be able to make one.
        let ordinary = CoreBPE::new(ranks, HashMap::default(), PATTERN)
            .map_err(|error| TextError::Pattern { message: error.to_string() })?;
        bytes.extend(specials.names().iter().map(|name| name.as_bytes().into()));
        Ok(Self { ordinary, bytes, specials })
    }

    /// The ids of text in which the spelling of a control token is that token. Never for a user's text: see
    /// [`Tokenizer::encode`]. The cuts come first, as in the release: a spelling across one is ordinary text.
    ///
    /// # Errors
    /// [`TextError::UnsearchableSpecials`] if the names of the control tokens are too much for a search.
    pub fn encode_with_specials(&self, trusted: &str) -> Result<Vec<u32>, TextError> {
        let finder = self.specials.finder()?;
        let mut ids = Vec::new();
        for slice in cuts(trusted, LIMITS) {
            let mut done = 0;
            for (range, id) in finder.find(slice) {
                ids.extend(self.ordinary.encode_ordinary(&slice[done..range.start]));
                ids.push(id);
                done = range.end;
            }
            ids.extend(self.ordinary.encode_ordinary(&slice[done..]));
        }
        Ok(ids)
    }

    /// The ids of ordinary text. The library's pattern gives up, and panics, past a million characters of white
    /// space in a row; the cuts leave it 25,000 at most.
    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        for slice in cuts(text, LIMITS) {
            ids.extend(self.ordinary.encode_ordinary(slice));
        }
    }
}

impl Tokenizer for Tiktoken {
    fn encode(&self, segments: &[Segment<'_>]) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for segment in segments {
            match *segment {
                Segment::Text(text) => self.encode_text(text, &mut ids),
                Segment::Special(name) => ids.push(
                    self.special(name)
                        .ok_or_else(|| TextError::UnknownSpecial { name: excerpt(name.as_bytes()) })?,
                ),
            }
        }
        Ok(ids)
    }

    fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize).map(AsRef::as_ref)
    }

    fn special(&self, name: &str) -> Option<u32> {
        self.specials.id(name)
    }

    fn is_special(&self, id: u32) -> bool {
        self.specials.contains(id)
    }

    fn vocabulary(&self) -> u32 {
        self.bytes.len() as u32
    }
}

impl fmt::Debug for Tiktoken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.vocabulary() - COUNT;
        formatter.debug_struct("Tiktoken").field("ranks", &ranks).field("specials", &COUNT).finish()
    }
}

fn check_size(file: &'static str, bytes: &[u8]) -> Result<(), TextError> {
    if bytes.len() <= FILE_BYTES_MAX {
        Ok(())
    } else {
        Err(TextError::TooLarge { file, limit: FILE_BYTES_MAX })
    }
}
