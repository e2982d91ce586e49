//! Reads JSON as Python's `json.loads` does: strictly by its grammar, with `NaN`, `Infinity` and `-Infinity` besides.
//! It deliberately keeps a number as its spelling.

use super::Json;
use crate::error::excerpt;
use indexmap::IndexMap;

/// How deep values may lie in each other; deeper ones would be a load on the stack and are no conversation.
const DEPTH_MAX: usize = 256;

/// Why a text is no JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} column {column}: expected {expected}, found {found}; correct the JSON")]
pub struct JsonError {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// What would go on there.
    pub expected: &'static str,
    /// What is there instead.
    pub found: String,
    /// Whether the text may be JSON, but of more depth than is read.
    pub too_deep: bool,
}

/// See [`Json::parse`].
pub(super) fn parse(text: &str) -> Result<Json, JsonError> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.skip_spaces();
    if reader.at == text.len() { Ok(value) } else { Err(reader.error("the end")) }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Whether this comes next; then it is behind.
    fn take(&mut self, word: &str) -> bool {
        let here = self.rest().starts_with(word);
        if here {
            self.at += word.len();
        }
        here
    }

    fn error(&self, expected: &'static str) -> JsonError {
        let before = &self.text[..self.at];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let found = match self.rest() {
            "" => "the end".to_owned(),
            rest => format!("`{}`", excerpt(rest.chars().take(16).collect::<String>().as_bytes())),
        };
        JsonError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            expected,
            found,
            too_deep: false,
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        if depth > DEPTH_MAX {
            return Err(JsonError { too_deep: true, ..self.error("at most 256 values in each other") });
        }
        self.skip_spaces();
        if self.take("{") {
            return self.object(depth);
        }
        if self.take("[") {
            return self.array(depth);
        }
        if self.take("\"") {
            return self.string().map(Json::String);
        }
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
        {
            if self.take(word) {
                return Ok(value);
            }
        }
        for word in ["NaN", "Infinity", "-Infinity"] {
            if self.take(word) {
                return Ok(Json::Number(word.to_owned()));
            }
        }
        self.number()
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        let mut members = IndexMap::new();
        self.skip_spaces();
        if self.take("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_spaces();
            if !self.take("\"") {
                return Err(self.error("a key between quotes"));
            }
            let key = self.string()?;
            self.skip_spaces();
            if !self.take(":") {
                return Err(self.error("`:`"));
            }
            members.insert(key, self.value(depth + 1)?);
            self.skip_spaces();
            if self.take("}") {
                return Ok(Json::Object(members));
            }
            if !self.take(",") {
                return Err(self.error("`,` or `}`"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        let mut items = Vec::new();
        self.skip_spaces();
        if self.take("]") {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_spaces();
            if self.take("]") {
                return Ok(Json::Array(items));
            }
            if !self.take(",") {
                return Err(self.error("`,` or `]`"));
            }
        }
    }

    /// `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`
    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        self.take("-");
        if !self.take("0") && self.digits() == 0 {
            self.at = start;
            return Err(self.error("a value"));
        }
        // As in Python, a point or exponent without digits is no part of the number; what follows is then wrong.
        let whole = self.at;
        if self.take(".") && self.digits() == 0 {
            self.at = whole;
        }
        let mantissa = self.at;
        if self.take("e") || self.take("E") {
            let _sign = self.take("+") || self.take("-");
            if self.digits() == 0 {
                self.at = mantissa;
            }
        }
        Ok(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn digits(&mut self) -> usize {
        let rest = self.rest();
        let count = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        self.at += count;
        count
    }

    /// What follows the opening quote, to the closing one.
    fn string(&mut self) -> Result<String, JsonError> {
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            text.push_str(&rest[..plain]);
            self.at += plain;
            if self.take("\"") {
                return Ok(text);
            }
            if !self.take("\\") {
                return Err(self.error("`\"`, or an escape for a control character"));
            }
            text.push(self.escape()?);
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<char, JsonError> {
        const SHORT: [(&str, char); 8] = [
            ("\"", '"'),
            ("\\", '\\'),
            ("/", '/'),
            ("b", '\u{8}'),
            ("f", '\u{c}'),
            ("n", '\n'),
            ("r", '\r'),
            ("t", '\t'),
        ];
        if let Some((_, character)) = SHORT.into_iter().find(|(letter, _)| self.take(letter)) {
            return Ok(character);
        }
        if !self.take("u") {
            return Err(self.error("an escape: one of `\"\\/bfnrtu`"));
        }
        let high = self.hex()?;
        if !(0xd800..0xdc00).contains(&high) {
            return Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        let after = self.at;
        if self.take("\\u") {
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        self.at = after;
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hex(&mut self) -> Result<u32, JsonError> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            return Err(self.error("four hexadecimal digits"));
        };
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::json::Json;
    use proptest::prelude::*;

    #[test]
    fn what_python_reads_is_read() {
        let read = |text| parse(text).expect("JSON").to_string();
        assert_eq!(read(" {\"b\" : 1.50 ,\r\n\t\"a\":[ ] } "), r#"{"b":1.50,"a":[]}"#);
        assert_eq!(read("[NaN,Infinity,-Infinity,-0]"), "[NaN,Infinity,-Infinity,-0]");
        let long = "-9".to_owned() + &"0".repeat(400);
        assert_eq!(read(&long), long);
        assert_eq!(read(r#"{"a":1,"b":2,"a":3}"#), r#"{"a":3,"b":2}"#);
        assert_eq!(parse(r#""\u00e9\/\ud83d\ude80\"\b""#).expect("JSON"), Json::String("é/🚀\"\u{8}".into()));
        // Halves of pairs have no UTF-8; their ids are those of U+FFFD in the release too.
        assert_eq!(
            parse(r#""\ud83dx\ude80\ud83d\u0041""#).expect("JSON"),
            Json::String("\u{fffd}x\u{fffd}\u{fffd}A".into())
        );
    }

    #[test]
    fn what_python_refuses_is_refused_with_its_place() {
        for (text, place) in [
            ("", "line 1 column 1: expected a value, found the end"),
            ("\n é", "line 2 column 2: expected a value, found `é`"),
            ("[1,]", "line 1 column 4: expected a value, found `]`"),
            ("{\"a\":1,}", "column 8: expected a key between quotes, found `}`"),
            ("{\"a\" 1}", "column 6: expected `:`, found `1}`"),
            ("{\"a\":1 2}", "column 8: expected `,` or `}`, found `2}`"),
            ("[1 2]", "column 4: expected `,` or `]`, found `2]`"),
            ("01", "column 2: expected the end, found `1`"),
            ("1.", "column 2: expected the end, found `.`"),
            (".5", "column 1: expected a value"),
            ("-", "column 1: expected a value, found `-`"),
            ("+1", "column 1: expected a value"),
            ("1e", "column 2: expected the end, found `e`"),
            ("nan", "column 1: expected a value"),
            ("'a'", "column 1: expected a value"),
            ("\"a\tb\"", "column 3: expected `\"`, or an escape for a control character, found `\\tb"),
            ("\"\\x41\"", "column 3: expected an escape"),
            ("\"\\u00g1\"", "column 4: expected four hexadecimal digits"),
            ("\"\\u00", "column 4: expected four hexadecimal digits"),
            ("\"abc", "column 5: expected `\"`"),
            ("\u{feff}1", "column 1: expected a value"),
            ("1\u{a0}", "column 2: expected the end"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(place), "{text:?}: {message}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(&nested(257)).is_ok());
        let error = parse(&nested(100_000)).expect_err("too deep");
        assert!(error.too_deep && error.to_string().contains("at most 256"), "{error}");
    }

    proptest! {
        /// Whatever serde_json reads, this reads as the same value.
        #[test]
        fn json_is_read_as_the_library_reads_it(text in "[\\[\\]{}\",:0-9eE.+a \\\\/ntrue-]{0,12}") {
            match (serde_json::from_str::<serde_json::Value>(&text), parse(&text)) {
                (Ok(theirs), Ok(ours)) => {
                    let ours: serde_json::Value = serde_json::from_str(&ours.to_string()).expect("JSON");
                    prop_assert_eq!(ours, theirs);
                }
                // It refuses numbers that no f64 holds, and halves of pairs.
                (Err(error), Ok(_)) => prop_assert!(error.to_string().contains("out of range"), "{text:?}: {error}"),
                (theirs, ours) => prop_assert_eq!(theirs.is_ok(), ours.is_ok(), "{:?}", text),
            }
        }
    }
}
