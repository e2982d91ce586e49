//! Stop strings in a text that comes in pieces: what is certain goes on, what may begin a stop string waits.
//! It deliberately knows no token and no chat format.

/// More stop strings than any client sends are a mistake.
const COUNT_MAX: usize = 64;
/// The most bytes one may have; it bounds the work for each piece.
const BYTES_MAX: usize = 4096;

/// Why stop strings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// One of them is empty, so that it would match everywhere.
    #[error("stop string {number}: expected at least one character, found an empty string; leave it out")]
    Empty {
        /// Counted from 1.
        number: usize,
    },
    /// One of them is too long.
    #[error("stop string {number}: expected at most {BYTES_MAX} bytes, found {bytes}; give its beginning")]
    TooLong {
        /// Counted from 1.
        number: usize,
        /// Its length.
        bytes: usize,
    },
    /// There are too many.
    #[error("stop strings: expected at most {COUNT_MAX}, found {count}; give fewer")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// Looks for stop strings. The text ends before the match that begins earliest, however the text is cut; the
/// longest tail that could begin one is held back until it is certain.
///
/// ```
/// let mut stop = text::StopStrings::new(vec!["END".to_owned()])?;
/// assert_eq!(stop.push("one EN"), "one ");
/// assert_eq!(stop.push("O two E"), "ENO two ");
/// assert_eq!(stop.push("ND three"), "");
/// assert!(stop.stopped());
/// # Ok::<(), text::StopError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    /// What may begin a stop string.
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// A search for these; for none, everything is certain at once.
    ///
    /// # Errors
    /// If one is empty or longer than 4096 bytes, or if there are more than 64.
    pub fn new(strings: Vec<String>) -> Result<Self, StopError> {
        if strings.len() > COUNT_MAX {
            return Err(StopError::TooMany { count: strings.len() });
        }
        for (number, string) in (1..).zip(&strings) {
            match string.len() {
                0 => return Err(StopError::Empty { number }),
                bytes if bytes > BYTES_MAX => return Err(StopError::TooLong { number, bytes }),
                _ => {}
            }
        }
        Ok(Self { strings, held: String::new(), stopped: false })
    }

    /// Takes more text and gives what is certain now, perhaps nothing. After a match it gives nothing more.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        let (found, open) = (self.earliest_match(), self.earliest_beginning());
        // A match may have to wait: an earlier place may still become one.
        self.stopped = found.is_some_and(|found| open.is_none_or(|open| found <= open));
        let certain = found.into_iter().chain(open).min().unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        let certain = std::mem::replace(&mut self.held, rest);
        if self.stopped {
            self.held.clear();
        }
        certain
    }

    /// Whether a stop string was found, so that the text has ended.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text: gives what was held, up to a match in it.
    pub fn finish(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.held);
        let found = self.strings.iter().filter_map(|string| rest.find(string)).min();
        if let Some(found) = found {
            rest.truncate(found);
            self.stopped = true;
        }
        rest
    }

    /// Where the first whole stop string begins.
    fn earliest_match(&self) -> Option<usize> {
        self.strings.iter().filter_map(|string| self.held.find(string)).min()
    }

    /// Where the longest tail begins that is the beginning of a stop string, but not a whole one.
    fn earliest_beginning(&self) -> Option<usize> {
        let longest = self.strings.iter().map(String::len).max()?;
        let first = self.held.len().saturating_sub(longest - 1);
        let begins = |tail: &str| self.strings.iter().any(|s| s.len() > tail.len() && s.starts_with(tail));
        (first..self.held.len()).find(|&at| self.held.is_char_boundary(at) && begins(&self.held[at..]))
    }
}

#[cfg(test)]
mod tests {
    use super::{StopError, StopStrings};
    use proptest::prelude::*;

    fn stop(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect()).expect("good ones")
    }

    #[test]
    fn an_earlier_place_may_still_become_the_match() {
        let mut earlier = stop(&["abcd", "bc"]);
        assert_eq!((earlier.push("xabc").as_str(), earlier.stopped()), ("x", false));
        assert_eq!((earlier.push("d").as_str(), earlier.stopped()), ("", true));
        let mut later = stop(&["abcd", "bc"]);
        assert_eq!(later.push("xabc"), "x");
        assert_eq!((later.push("e").as_str(), later.stopped()), ("a", true));
        let mut end = stop(&["abcd", "bc"]);
        assert_eq!(end.push("xabc"), "x");
        assert_eq!((end.finish().as_str(), end.stopped()), ("a", true));
    }

    #[test]
    fn what_cannot_be_searched_for_is_refused() {
        let refused = |strings| StopStrings::new(strings).expect_err("refused");
        assert_eq!(refused(vec!["a".into(), String::new()]), StopError::Empty { number: 2 });
        assert_eq!(refused(vec!["a".into(); 65]), StopError::TooMany { count: 65 });
        assert_eq!(refused(vec!["a".repeat(4097)]), StopError::TooLong { number: 1, bytes: 4097 });
        assert!(StopStrings::new(vec!["a".repeat(4096); 64]).is_ok());
    }

    proptest! {
        /// Cuts change nothing, and what comes out is a naive search over the whole text.
        #[test]
        fn cuts_change_nothing(
            strings in proptest::collection::vec("[abé]{1,4}", 0..4),
            pieces in proptest::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let whole = pieces.concat();
            let found = strings.iter().filter_map(|string| whole.find(string)).min();
            let mut stop = StopStrings::new(strings.clone()).expect("good ones");
            let mut certain = String::new();
            for piece in &pieces {
                certain += &stop.push(piece);
                // Whatever comes later, what was given out stays.
                prop_assert!(whole[..found.unwrap_or(whole.len())].starts_with(&certain));
            }
            certain += &stop.finish();
            prop_assert_eq!(&certain, &whole[..found.unwrap_or(whole.len())]);
            prop_assert_eq!(stop.stopped(), found.is_some());
        }

        /// Nothing is held longer than needed: only a tail that begins a stop string.
        #[test]
        fn only_a_beginning_is_held(string in "[ab]{1,5}", text in "[abc]{0,12}") {
            prop_assume!(!text.contains(&string));
            let mut stop = stop(&[&string]);
            let held = text.len() - stop.push(&text).len();
            let longest = (0..string.len()).rev().find(|&length| text.ends_with(&string[..length]));
            prop_assert_eq!(Some(held), longest);
        }
    }
}
