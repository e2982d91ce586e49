//! Writes JSON as Python's `json.dumps(..., ensure_ascii=False)` does: its separators, escapes and spelling of
//! numbers. It deliberately knows no conversation.

use super::Json;
use serde::de::IgnoredAny;
use std::fmt::{self, Write as _};

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// `", "` and `": "` instead of `,` and `:`.
    spaces: bool,
    /// Keys by code point instead of in their order.
    sorted: bool,
    numbers: Numbers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// As they were spelled.
    Kept,
    /// As they were spelled, and `null` for what JSON does not have.
    Strict,
    /// As Python spells the value.
    Python,
}

impl Style {
    /// `json.dumps(value, ensure_ascii=False)`
    pub(crate) const PYTHON: Style = Style { spaces: true, sorted: false, numbers: Numbers::Python };
    /// `json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))`
    pub(crate) const SORTED: Style = Style { spaces: false, sorted: true, numbers: Numbers::Python };
    /// As it was read.
    const KEPT: Style = Style { spaces: false, sorted: false, numbers: Numbers::Kept };
    /// As it was read, for readers of JSON alone.
    pub(super) const STRICT: Style = Style { spaces: false, sorted: false, numbers: Numbers::Strict };
}

impl fmt::Display for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&to_string(self, Style::KEPT))
    }
}

impl Json {
    /// The text of a value.
    pub(crate) fn written(&self, style: Style) -> String {
        to_string(self, style)
    }
}

/// The text of a value.
pub(super) fn to_string(value: &Json, style: Style) -> String {
    let mut text = String::new();
    write(value, style, &mut text);
    text
}

fn write(value: &Json, style: Style, text: &mut String) {
    let comma = if style.spaces { ", " } else { "," };
    match value {
        Json::Null => text.push_str("null"),
        Json::Bool(true) => text.push_str("true"),
        Json::Bool(false) => text.push_str("false"),
        Json::Number(spelling) => text.push_str(&number(spelling, style.numbers)),
        Json::String(string) => quote(string, text),
        Json::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push_str(comma);
                }
                write(item, style, text);
            }
            text.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if style.sorted {
                // The order of UTF-8 bytes is that of code points.
                members.sort_by_key(|(key, _)| *key);
            }
            text.push('{');
            for (index, (key, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    text.push_str(comma);
                }
                quote(key, text);
                text.push_str(if style.spaces { ": " } else { ":" });
                write(member, style, text);
            }
            text.push('}');
        }
    }
}

/// A string between quotes.
fn quote(string: &str, text: &mut String) {
    text.push('"');
    escape_into(text, string);
    text.push('"');
}

/// The inside of a JSON string. Only quotes, backslashes and control characters below U+0020 are escaped.
pub(crate) fn escape_into(text: &mut String, string: &str) {
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            // Writing to a string cannot fail.
            control if control < ' ' => drop(write!(text, "\\u{:04x}", u32::from(control))),
            other => text.push(other),
        }
    }
}

fn number(spelling: &str, numbers: Numbers) -> String {
    let special = spelling.ends_with(['N', 'y']);
    match numbers {
        Numbers::Strict if special => "null".to_owned(),
        Numbers::Python if !special => python(spelling),
        _ => spelling.to_owned(),
    }
}

/// A number as Python writes it after reading it: an integer digit by digit, anything else as a float.
fn python(spelling: &str) -> String {
    if spelling == "-0" {
        return "0".to_owned(); // Python's integers have no negative zero.
    }
    match spelling.parse::<f64>() {
        Ok(value) if spelling.contains(['.', 'e', 'E']) => float(value),
        _ => spelling.to_owned(),
    }
}

/// `repr(value)` of Python: the shortest digits that give the value back; an exponent below 1e-4 and from 1e16 on.
fn float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        // Rust writes 1e-7, Python 1e-07.
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

/// A text that is JSON, without the white space between its tokens and otherwise as it is; `None` if it is no JSON.
pub(crate) fn without_spaces(text: &str) -> Option<String> {
    // Reading without keeping anything has no limit of depth.
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut compact = String::with_capacity(text.len());
    let (mut inside, mut escaped) = (false, false);
    for character in text.chars() {
        match character {
            ' ' | '\t' | '\n' | '\r' if !inside => continue,
            '"' if !escaped => inside = !inside,
            _ => {}
        }
        escaped = character == '\\' && !escaped;
        compact.push(character);
    }
    Some(compact)
}

#[cfg(test)]
mod tests {
    use super::{Style, without_spaces};
    use crate::json::Json;
    use proptest::prelude::*;

    fn python(text: &str) -> String {
        Json::parse(text).expect("JSON").written(Style::PYTHON)
    }

    /// Pairs of what Python reads and what `json.dumps(json.loads(text), ensure_ascii=False)` then writes.
    #[test]
    fn numbers_are_spelled_as_in_python() {
        for (read, written) in [
            ("1.50", "1.5"),
            ("1e2", "100.0"),
            ("1E+2", "100.0"),
            ("1e16", "1e+16"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("0.000012345", "1.2345e-05"),
            ("-0.0", "-0.0"),
            ("-0", "0"),
            ("0", "0"),
            ("-0e5", "-0.0"),
            ("1e21", "1e+21"),
            ("1e-7", "1e-07"),
            ("1.5e300", "1.5e+300"),
            ("-1.25e-300", "-1.25e-300"),
            ("5e-324", "5e-324"),
            ("1e-999", "0.0"),
            ("1e999", "Infinity"),
            ("-1e999", "-Infinity"),
            ("0.1", "0.1"),
            ("123456789012345680.0", "1.2345678901234568e+17"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
        ] {
            assert_eq!(python(read), written, "{read}");
        }
    }

    #[test]
    fn spaces_order_and_escapes() {
        let text = "{\"z\":[1,\"é\\u2028\"],\"a\":{\"é\":\"\\u0001\\u001f\\u007f\\n\\\"\\\\\\/\"},\"Z\":{},\"e\":[]}";
        assert_eq!(
            python(text),
            "{\"z\": [1, \"é\u{2028}\"], \"a\": {\"é\": \"\\u0001\\u001f\u{7f}\\n\\\"\\\\/\"}, \"Z\": {}, \"e\": []}"
        );
        let sorted = Json::parse(text).expect("JSON").written(Style::SORTED);
        assert_eq!(
            sorted,
            "{\"Z\":{},\"a\":{\"é\":\"\\u0001\\u001f\u{7f}\\n\\\"\\\\/\"},\"e\":[],\"z\":[1,\"é\u{2028}\"]}"
        );
    }

    #[test]
    fn serde_keeps_spellings_and_makes_nan_null() {
        let value: Json = serde_json::from_str("{\"b\":1.50,\"a\":12345678901234567890123}").expect("JSON");
        assert_eq!(
            serde_json::to_string(&value).expect("writes"),
            "{\"b\":1.50,\"a\":12345678901234567890123}"
        );
        let value = Json::parse("[NaN,-Infinity]").expect("Python's");
        assert_eq!(serde_json::to_string(&value).expect("writes"), "[null,null]");
        let through: Json = serde_json::from_value(serde_json::json!({"k": [1, null]})).expect("JSON");
        assert_eq!(through.to_string(), "{\"k\":[1,null]}");
    }

    #[test]
    fn only_white_space_between_tokens_goes() {
        assert_eq!(
            without_spaces(" {\"a b\" : [ 1.50 , \"\\\" c\\\\\" ] }\n").as_deref(),
            Some("{\"a b\":[1.50,\"\\\" c\\\\\"]}")
        );
        assert_eq!(without_spaces(" 1e2 ").as_deref(), Some("1e2"));
        for bad in ["", "about 3", "{bad", "NaN", "1 2", "\u{a0}1"] {
            assert_eq!(without_spaces(bad), None, "{bad}");
        }
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        assert_eq!(without_spaces(&deep), Some(deep));
    }

    proptest! {
        #[test]
        fn floats_come_back(value in any::<f64>().prop_filter("finite", |value| value.is_finite())) {
            let text = python(&format!("{value:?}"));
            prop_assert_eq!(text.parse::<f64>().expect("a number").to_bits(), value.to_bits());
        }
    }
}
