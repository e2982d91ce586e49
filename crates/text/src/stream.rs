//! Text out of a stream of tokens: never half a character, never later than needed.
//! It deliberately holds no tokenizer: bytes come in, strings go out.

use crate::{TextError, Tokenizer};

/// Decodes the bytes of tokens as they come. A character is given out with its last byte; bytes that cannot
/// become UTF-8 any more are given out as U+FFFD, as many as [`String::from_utf8_lossy`] makes of the whole.
///
/// All pushes and [`finish`](Self::finish) together are the lossy text of all bytes together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamDecoder {
    /// The beginning of a character whose end has not come: three bytes at most.
    pending: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the beginning of a text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and gives the text that is certain now, perhaps none.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let certain = self.pending.len() - unfinished(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..certain]).into_owned();
        self.pending.drain(..certain);
        text
    }

    /// [`push`](Self::push) of the bytes of an id; a control token gives its name.
    ///
    /// # Errors
    /// [`TextError::UnknownId`] for an id past the vocabulary; the decoder is as before then.
    pub fn push_id(&mut self, tokenizer: &dyn Tokenizer, id: u32) -> Result<String, TextError> {
        tokenizer.known_bytes(id).map(|bytes| self.push(bytes))
    }

    /// Ends the text: gives U+FFFD for a character whose end never came, otherwise nothing. The decoder is new
    /// afterwards. Whoever takes control tokens out of the stream calls it at each of them.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// How many of the last bytes may still become a character.
fn unfinished(bytes: &[u8]) -> usize {
    // The halves of surrogate pairs are no characters. The reference decoder, Python's, waits for their third
    // byte all the same; so do we, to give out the same text at the same token.
    if let [.., 0xed, 0xa0..=0xbf] = bytes {
        return 2;
    }
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
}
