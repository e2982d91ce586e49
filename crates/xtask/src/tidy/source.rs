//! Rust text with comments and literals taken out, so that rules can look for words without a parser. Knows
//! tokens of the language, no rule.

/// The code of one file.
pub(crate) struct Source {
    /// The text, line by line and column by column where it was, but comments are spaces and every character of
    /// a string or character literal is `"`.
    pub(crate) code: String,
    /// Whether a line (counted from 0) belongs to an item under `#[cfg(test)]`.
    test_lines: Vec<bool>,
    /// Names of modules declared as `#[cfg(test)] mod NAME;`.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let code = blank(text);
        let mut source =
            Source { test_lines: vec![false; code.lines().count()], code, test_modules: Vec::new() };
        source.find_tests();
        source
    }

    /// Whether the byte at `offset` of the code is test code.
    pub(crate) fn is_test(&self, offset: usize) -> bool {
        self.is_test_line(self.line(offset))
    }

    /// Whether a line, counted from 1, is test code.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    /// The line of a byte of the code, counted from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }

    /// Where `pattern` stands in the code as whole words: no letter, digit or `_` before it, nor behind it if
    /// it ends in one.
    pub(crate) fn find(&self, pattern: &str) -> Vec<usize> {
        let bytes = self.code.as_bytes();
        let ends_in_word = pattern.bytes().next_back().is_some_and(is_word);
        let is_whole = |start: &usize| {
            let before = start.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
            let behind = bytes.get(start + pattern.len()).is_some_and(|byte| is_word(*byte));
            !(before || ends_in_word && behind)
        };
        self.code.match_indices(pattern).map(|(start, _)| start).filter(is_whole).collect()
    }

    /// The end of the item that starts at `offset`: behind its closing brace, or behind its semicolon. The
    /// second value is where its body opens.
    pub(crate) fn item_end(&self, offset: usize) -> (usize, Option<usize>) {
        let mut nesting = 0_usize;
        let mut body = None;
        for (position, byte) in self.code.bytes().enumerate().skip(offset) {
            match byte {
                b'{' if nesting == 0 => {
                    body = Some(position);
                    nesting = 1;
                }
                b'(' | b'[' | b'{' => nesting += 1,
                b')' | b']' | b'}' => {
                    nesting = nesting.saturating_sub(1);
                    if nesting == 0 && byte == b'}' && body.is_some() {
                        return (position + 1, body);
                    }
                }
                b';' if nesting == 0 => return (position + 1, None),
                _ => {}
            }
        }
        (self.code.len(), body)
    }

    /// Marks what stands under `#[cfg(test)]`.
    fn find_tests(&mut self) {
        for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
            for (start, _) in self.code.clone().match_indices(attribute) {
                let item = start + self.code[start..].find(']').map_or(0, |end| end + 1);
                let (end, body) = self.item_end(item);
                for line in self.line(start)..=self.line(end) {
                    if let Some(mark) = self.test_lines.get_mut(line - 1) {
                        *mark = true;
                    }
                }
                let declaration = self.code[item..end].trim().trim_end_matches(';');
                if let (None, Some((_, name))) = (body, declaration.split_once("mod ")) {
                    self.test_modules.push(name.trim().to_owned());
                }
            }
        }
    }
}

/// Whether a byte may be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The text with comments as spaces and literals as `"`.
fn blank(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let (length, filler) = next_token(rest, previous);
        let token = &rest[..length];
        match filler {
            None => code.push_str(token),
            Some(filler) => {
                code.extend(token.chars().map(|letter| if letter == '\n' { '\n' } else { filler }));
            }
        }
        previous = token.chars().next_back().unwrap_or(first);
        rest = &rest[length..];
    }
    code
}

/// The length in bytes of a comment, a literal or a single character, and what to replace it by.
fn next_token(rest: &str, previous: char) -> (usize, Option<char>) {
    let first = rest.chars().next().map_or(1, char::len_utf8);
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Some(' '));
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Some(' '));
    }
    let after_word = previous.is_alphanumeric() || previous == '_';
    if !after_word && let Some(length) = raw_string(rest) {
        return (length, Some('"'));
    }
    if rest.starts_with('"') {
        return (quoted(rest, '"'), Some('"'));
    }
    if rest.starts_with('\'') && is_character(rest) {
        return (quoted(rest, '\''), Some('"'));
    }
    (first, None)
}

/// The length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut position = 0;
    while position < rest.len() {
        if rest[position..].starts_with("/*") {
            depth += 1;
            position += 2;
        } else if rest[position..].starts_with("*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += rest[position..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a raw string (`r"..."`, `br#"..."#`), if one begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let hashes = rest[prefix.len()..].bytes().take_while(|byte| *byte == b'#').count();
    let open = prefix.len() + hashes;
    if !rest[open..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let length = rest[open + 1..].find(&close).map_or(rest.len(), |end| open + 1 + end + close.len());
    Some(length)
}

/// The length of a literal in quotes that knows backslashes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (position, letter) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if letter == '\\' {
            escaped = true;
        } else if letter == quote {
            return position + 1;
        }
    }
    rest.len()
}

/// Whether the `'` here opens a character and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut letters = rest.chars().skip(1);
    letters.next() == Some('\\') || letters.next() == Some('\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_taken_out_in_place() {
        let text = "let a = \"x // y\\\" {\"; // } unsafe\n/* { /* ü */ } */ let b = 'c'; let c: &'a str = r#\"{\"#;\n";
        let code = blank(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(!code.contains('{') && !code.contains('}') && !code.contains("unsafe"), "{code}");
        assert!(code.contains("let b = \"\"\"; let c: &'a str = \"\"\"\"\"\";"), "{code}");
    }

    #[test]
    fn quotes_in_characters_do_not_open_strings() {
        assert_eq!(blank("f('\"', '\\'', b'x') + for_r(r)"), "f(\"\"\", \"\"\"\", b\"\"\") + for_r(r)");
    }

    #[test]
    fn words_are_whole_words() {
        let source = Source::new("unsafe fn unsafe_name() {} // unsafe\nmy_unsafe; unsafe {}\n");
        let lines: Vec<usize> = source.find("unsafe").into_iter().map(|start| source.line(start)).collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn items_under_cfg_test_are_test_code() {
        let source = Source::new(
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod d;\n",
        );
        let is_test = |pattern| source.is_test(source.find(pattern)[0]);
        assert!(!is_test("fn a") && is_test("fn b") && !is_test("fn c"));
        assert_eq!(source.test_modules, ["d"]);
    }
}
