//! The release's cuts: no more than 400,000 characters, and no more than 25,000 in a row of one class (space or
//! not), are split into pieces together. Long runs get other ids than without the cuts, so they are part of the
//! tokenizer; they also bound the work of each call of the pattern and of each merge, whatever the text.
//! It deliberately knows no token.

/// How much may be encoded together, in characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Of any kind.
    pub(crate) call: usize,
    /// In a row of one class.
    pub(crate) run: usize,
}

/// The release's.
pub(crate) const LIMITS: Limits = Limits { call: 400_000, run: 25_000 };

/// The slices of `text` that are encoded each by itself; together they are the text, and none is empty.
pub(crate) fn cuts(text: &str, limits: Limits) -> Cuts<'_> {
    Cuts { rest: text, used: 0, limits }
}

/// See [`cuts`].
pub(crate) struct Cuts<'t> {
    rest: &'t str,
    /// Characters since the last cut that was made for `limits.call`.
    used: usize,
    limits: Limits,
}

impl<'t> Iterator for Cuts<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let mut class = None;
        let mut run = 0;
        for (at, character) in self.rest.char_indices() {
            let here = Some(is_space(character));
            run = if here == class { run + 1 } else { 1 };
            class = here;
            if self.used == self.limits.call {
                self.used = 0;
                return Some(self.take(at));
            }
            if run > self.limits.run {
                return Some(self.take(at));
            }
            self.used += 1;
        }
        Some(self.take(self.rest.len())).filter(|slice| !slice.is_empty())
    }
}

impl<'t> Cuts<'t> {
    fn take(&mut self, length: usize) -> &'t str {
        let (slice, rest) = self.rest.split_at(length);
        self.rest = rest;
        slice
    }
}

/// Whether a text is empty or white space by [`is_space`].
pub(crate) fn is_blank(text: &str) -> bool {
    text.chars().all(is_space)
}

/// Python's `str.isspace`, which the release cuts and trims by: Unicode's white space and four separators of ASCII.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::{LIMITS, Limits, cuts, is_space};
    use proptest::prelude::*;

    /// The definition by character numbers: blocks first, then the runs inside each.
    fn by_definition(text: &str, limits: Limits) -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        let mut slices = Vec::new();
        for block in characters.chunks(limits.call) {
            let mut slice = String::new();
            let mut run: Vec<char> = Vec::new();
            for &character in block {
                if run.last().is_some_and(|&last| is_space(last) != is_space(character)) {
                    run.clear();
                }
                if run.len() == limits.run {
                    run.clear();
                    slices.push(std::mem::take(&mut slice));
                }
                run.push(character);
                slice.push(character);
            }
            slices.push(slice);
        }
        slices
    }

    proptest! {
        #[test]
        fn cuts_are_the_definition(text in "[ab \u{1c}\u{3000}中]{0,60}", call in 1_usize..20, run in 1_usize..8) {
            let limits = Limits { call, run };
            let slices: Vec<&str> = cuts(&text, limits).collect();
            prop_assert_eq!(slices, by_definition(&text, limits));
        }
    }

    #[test]
    fn python_calls_29_characters_space() {
        // `[c for c in range(0x110000) if chr(c).isspace()]` in Python 3.
        let spaces: Vec<u32> =
            (0..=0x0010_ffff).filter(|&code| char::from_u32(code).is_some_and(is_space)).collect();
        let expected: Vec<u32> = (0x09..=0x0d)
            .chain(0x1c..=0x20)
            .chain([0x85, 0xa0, 0x1680])
            .chain(0x2000..=0x200a)
            .chain([0x2028, 0x2029, 0x202f, 0x205f, 0x3000])
            .collect();
        assert_eq!(spaces, expected);
        assert_eq!(spaces.len(), 29);
    }

    /// A megabyte of one class reaches the library in slices whose number grows with the text and whose size
    /// does not: the work for a slice is bounded by a constant, so that for the text is linear.
    #[test]
    fn a_run_of_any_length_is_cut_to_bounded_slices() {
        for unit in ["x", " ", "7", "\n", "中", "😀", "!"] {
            let characters = 1_000_000 / unit.len();
            let text = unit.repeat(characters);
            let lengths: Vec<usize> = cuts(&text, LIMITS).map(|slice| slice.chars().count()).collect();
            assert_eq!(lengths.len(), characters.div_ceil(LIMITS.run), "{unit:?}");
            assert!(lengths.iter().all(|&length| length <= LIMITS.run), "{unit:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_every_400_000_characters() {
        let text = "é ".repeat(500_000);
        let lengths: Vec<usize> = cuts(&text, LIMITS).map(|slice| slice.chars().count()).collect();
        assert_eq!(lengths, [400_000, 400_000, 200_000]);
    }
}
