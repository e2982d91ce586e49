//! Lines to texts: a line ending in `\` goes on in the next one, and `"""` opens and closes a block in which every line
//! is taken as it is. Knows no terminal: a line may come from an editor, with pasted line ends inside, or from a pipe.

/// Opens and closes a block.
const FENCE: &str = "\"\"\"";

/// Something whole that was entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Without the marks that held it together.
    pub(crate) text: String,
    /// Whether it stood in a block, where nothing is a command.
    pub(crate) block: bool,
}

/// What has been entered and is not whole yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Nothing.
    #[default]
    None,
    /// Lines that ended in `\`.
    GoingOn(Vec<String>),
    /// Lines of a block.
    Block(Vec<String>),
}

impl Lines {
    /// Whether more has to come.
    pub(crate) fn open(&self) -> bool {
        *self != Lines::None
    }

    /// Takes the next line, without its end; what is whole now.
    pub(crate) fn push(&mut self, line: &str) -> Option<Entry> {
        match std::mem::take(self) {
            Lines::None => match line.strip_prefix(FENCE) {
                Some("") => self.wait(Lines::Block(Vec::new())),
                Some(rest) => self.in_block(Vec::new(), rest),
                None => self.going_on(Vec::new(), line),
            },
            Lines::GoingOn(lines) => self.going_on(lines, line),
            Lines::Block(lines) => self.in_block(lines, line),
        }
    }

    fn wait(&mut self, for_more: Lines) -> Option<Entry> {
        *self = for_more;
        None
    }

    fn going_on(&mut self, mut lines: Vec<String>, line: &str) -> Option<Entry> {
        let more = line.strip_suffix('\\');
        lines.push(more.unwrap_or(line).to_owned());
        match more {
            Some(_) => self.wait(Lines::GoingOn(lines)),
            None => Some(Entry { text: lines.join("\n"), block: false }),
        }
    }

    fn in_block(&mut self, mut lines: Vec<String>, line: &str) -> Option<Entry> {
        let Some(last) = line.strip_suffix(FENCE) else {
            lines.push(line.to_owned());
            return self.wait(Lines::Block(lines));
        };
        // A mark alone in its line is no line of the block.
        if !last.is_empty() {
            lines.push(last.to_owned());
        }
        Some(Entry { text: lines.join("\n"), block: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the lines make: whole entries, and whether more has to come.
    fn entered(lines: &[&str]) -> (Vec<(String, bool)>, bool) {
        let mut open = Lines::default();
        let whole = lines.iter().filter_map(|line| open.push(line));
        let whole = whole.map(|entry| (entry.text, entry.block)).collect();
        (whole, open.open())
    }

    fn one(text: &str, block: bool) -> (Vec<(String, bool)>, bool) {
        (vec![(text.to_owned(), block)], false)
    }

    #[test]
    fn a_line_is_whole_unless_it_ends_in_a_backslash() {
        assert_eq!(entered(&["a \"b\" \\c"]), one("a \"b\" \\c", false));
        assert_eq!(entered(&["a\\", "b\\", "", "c"]).0, [("a\nb\n".into(), false), ("c".into(), false)]);
        assert_eq!(entered(&["a\\"]), (vec![], true));
        // Pasted line ends are inside of one line; only its end counts.
        assert_eq!(entered(&["make \\\n  all\nx"]), one("make \\\n  all\nx", false));
    }

    #[test]
    fn a_block_is_taken_as_it_is() {
        let fence = "\"\"\"";
        assert_eq!(entered(&[fence, "a\\", "", "  /quit", fence]), one("a\\\n\n  /quit", true));
        assert_eq!(entered(&[fence, "", "a", "", fence]), one("\na\n", true), "empty lines at both ends");
        assert_eq!(entered(&["\"\"\"a", "b\"\"\""]), one("a\nb", true));
        assert_eq!(entered(&["\"\"\"/quit\"\"\""]), one("/quit", true));
        assert_eq!(entered(&[fence, fence]), one("", true));
        assert_eq!(entered(&[fence, "a"]), (vec![], true));
        assert_eq!(entered(&["say \"\"\"", "b"]).0.len(), 2, "only the beginning of a line opens one");
    }
}
