//! Strings to ids and back: the tokenizer of `tiktoken.model` checkpoints and the decoder of a token stream; and
//! conversations to segments and back, in the format of each family. It deliberately knows no model and no tensor.
//!
//! ```
//! use text::{Segment, StreamDecoder, Tiktoken, Tokenizer};
//!
//! # fn main() -> Result<(), text::TextError> {
//! # macro_rules! file { ($name:literal) => {
//! #     include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny/", $name))
//! # } }
//! let (ranks, config) = (file!("tiktoken.model"), file!("tokenizer_config.json"));
//! let tokenizer = Tiktoken::from_bytes(ranks, Some(config))?;
//! // The control token comes from us; the text comes from a user and stays text, whatever it spells.
//! let ids = tokenizer.encode(&[Segment::Special("<|open|>"), Segment::Text("a <|close|> b")])?;
//! assert_eq!(ids.iter().filter(|&&id| tokenizer.is_special(id)).count(), 1);
//!
//! let mut decoder = StreamDecoder::new();
//! let mut text = String::new();
//! for &id in &ids[1..] {
//!     text += &decoder.push_id(&tokenizer, id)?;
//! }
//! text += &decoder.finish();
//! assert_eq!(text, "a <|close|> b");
//! # Ok(())
//! # }
//! ```

pub mod chat;
mod cuts;
mod error;
mod json;
pub mod kimi_k3;
mod ranks;
mod specials;
mod stop;
mod stream;
mod tiktoken;
mod tokenizer;

pub use crate::error::TextError;
pub use crate::json::{Json, JsonError};
pub use crate::stop::{StopError, StopStrings};
pub use crate::stream::StreamDecoder;
pub use crate::tiktoken::{PATTERN, Tiktoken};
pub use crate::tokenizer::{OwnedSegment, Segment, Tokenizer};
