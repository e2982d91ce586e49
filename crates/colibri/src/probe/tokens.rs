//! Tokens that steps are measured with: those of a text, or random ones. Knows no step.
use crate::errors::Failure;
use crate::load::{self, Model};
use std::path::Path;
use text::{Segment, Tokenizer as _};

/// Tokens to feed: those of a text over and over, or seeded random ones.
pub(crate) enum Tokens {
    Text { ids: Vec<u32>, next: usize },
    Random { state: u64, vocabulary: u32 },
}

impl Tokens {
    /// Of the text in a file, or random ones without one.
    ///
    /// # Errors
    /// A file that cannot be read, or has no token.
    pub(crate) fn new(model: &Model, text: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = text else {
            return Ok(Tokens::Random { state: 1, vocabulary: model.family.config.vocabulary });
        };
        let text = std::fs::read_to_string(path).map_err(Failure::io("reading", path))?;
        let ids = load::tokenizer(model)?.encode(&[Segment::Text(&text)])?;
        if ids.is_empty() {
            return Err(Failure::Usage(format!("--text {}: the text is empty", path.display())));
        }
        Ok(Tokens::Text { ids, next: 0 })
    }

    /// The next so many.
    pub(crate) fn take(&mut self, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> u32 {
        match self {
            Tokens::Text { ids, next } => {
                let id = ids[*next % ids.len()];
                *next += 1;
                id
            }
            Tokens::Random { state, vocabulary } => {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((*state >> 33) % u64::from(*vocabulary)) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_again_and_random_tokens_are_the_models() {
        let mut text = Tokens::Text { ids: vec![5, 6, 7], next: 0 };
        assert_eq!((text.take(2), text.take(3)), (vec![5, 6], vec![7, 5, 6]));
        let mut random = Tokens::Random { state: 1, vocabulary: 10 };
        let ids = random.take(1000);
        assert!(ids.iter().all(|id| *id < 10) && (0..10).all(|id| ids.contains(&id)));
    }
}
