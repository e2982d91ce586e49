//! Which ids may be drawn next. Whoever constrains an answer (to a grammar, say) implements [`TokenMask`]; nothing here
//! knows why an id is allowed.

/// Ids of a vocabulary, one bit each: id i is bit i mod 32 of word i / 32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
    vocabulary: u32,
}

impl TokenSet {
    /// All ids below `vocabulary`.
    #[must_use]
    pub fn full(vocabulary: u32) -> Self {
        TokenSet { words: vec![u32::MAX; vocabulary.div_ceil(32) as usize], vocabulary }
    }

    /// Ids are below this.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Puts all ids in.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
    }

    /// Takes all ids out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Puts an id in; ids of no vocabulary are passed over.
    pub fn insert(&mut self, id: u32) {
        if id < self.vocabulary {
            self.words[(id / 32) as usize] |= 1 << (id % 32);
        }
    }

    /// Takes an id out.
    pub fn remove(&mut self, id: u32) {
        if id < self.vocabulary {
            self.words[(id / 32) as usize] &= !(1 << (id % 32));
        }
    }

    /// Whether an id is in.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        id < self.vocabulary && self.words[(id / 32) as usize] >> (id % 32) & 1 == 1
    }

    /// The bits; those past the vocabulary mean nothing.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The bits, to be written.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Makes the logits of absent ids minus infinity.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (logits, word) in logits.chunks_mut(32).zip(&self.words) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// A constraint on an answer, asked before every draw and told its outcome.
pub trait TokenMask: Send {
    /// Takes out of `allowed`, which holds all ids, those that must not come next. Ids that end the answer must be left
    /// in where it may end.
    ///
    /// # Errors
    /// Why nothing can be said, for people.
    fn restrict(&mut self, allowed: &mut TokenSet) -> Result<(), String>;

    /// The sequence goes on with this id.
    ///
    /// # Errors
    /// Why it cannot go on, for people.
    fn took(&mut self, id: u32) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bits_of_words() {
        let mut set = TokenSet::full(70);
        assert_eq!((set.words().len(), set.vocabulary()), (3, 70));
        assert!(set.contains(69) && !set.contains(70));
        set.clear();
        for id in [0, 31, 32, 69, 70, u32::MAX] {
            set.insert(id);
        }
        assert_eq!(set.words(), [0x8000_0001, 1, 1 << 5]);
        set.remove(31);
        set.remove(70);
        assert!(!set.contains(31) && set.contains(32) && set.contains(69));
        let mut logits = [1.0; 70];
        set.apply(&mut logits);
        let left: Vec<usize> = (0..70).filter(|id| logits[*id] == 1.0).collect();
        assert_eq!(left, [0, 32, 69]);
        set.fill();
        assert_eq!(set, TokenSet::full(70));
        logits = [2.0; 70];
        set.apply(&mut logits);
        assert_eq!(logits, [2.0; 70]);
    }
}
