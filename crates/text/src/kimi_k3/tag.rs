//! The inside of a tag: a name and attributes. It deliberately knows no names.

use crate::cuts::is_space;

/// Whether a tag begins or ends an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Begin,
    End,
}

/// A tag as far as it was read.
#[derive(Debug, Clone)]
pub(super) struct Tag {
    pub(super) side: Side,
    pub(super) text: String,
}

impl Tag {
    pub(super) fn new(side: Side) -> Self {
        Self { side, text: String::new() }
    }

    /// The first word.
    pub(super) fn name(&self) -> &str {
        self.text.split(is_space).find(|word| !word.is_empty()).unwrap_or_default()
    }

    /// The value of the last attribute `key="value"` after the name.
    pub(super) fn attribute(&self, key: &str) -> Option<String> {
        let after_name = self.text.trim_start_matches(is_space).strip_prefix(self.name())?;
        let found = Attributes(after_name).filter(|(name, _)| *name == key).last();
        found.map(|(_, value)| value.replace("&quot;", "\"").replace("&amp;", "&"))
    }
}

/// All that looks like `(\w+)="([^"]*)"`, from left to right.
struct Attributes<'t>(&'t str);

impl<'t> Iterator for Attributes<'t> {
    type Item = (&'t str, &'t str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (before, after) = self.0.split_once("=\"")?;
            let is_word = |character: char| character.is_alphanumeric() || character == '_';
            let name = &before[before.trim_end_matches(is_word).len()..];
            if name.is_empty() {
                self.0 = after;
                continue;
            }
            let (value, rest) = after.split_once('"')?;
            self.0 = rest;
            return Some((name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Side, Tag};

    fn tag(text: &str) -> Tag {
        Tag { side: Side::Begin, text: text.to_owned() }
    }

    #[test]
    fn names_and_attributes() {
        let call = tag(" call\ttool=\"a&amp;quot;b&quot;\"  index=\"1\" x=\"\" tool2=\"t\" broken=\"y");
        assert_eq!(call.name(), "call");
        assert_eq!(call.attribute("tool").as_deref(), Some("a&quot;b\""));
        assert_eq!(call.attribute("index").as_deref(), Some("1"));
        assert_eq!(call.attribute("x").as_deref(), Some(""));
        assert_eq!(call.attribute("broken"), None);
        assert_eq!(call.attribute("all"), None);
        assert_eq!(tag(" \n").name(), "");
        assert_eq!(tag("call =\"z\" k=\"1\" k=\"2\"").attribute("k").as_deref(), Some("2"));
        assert_eq!(tag("a k=\"=\" l=\"2\"").attribute("l").as_deref(), Some("2"));
        assert_eq!(tag("tool=\"x\"").attribute("tool"), None, "the first word is the name");
    }
}
