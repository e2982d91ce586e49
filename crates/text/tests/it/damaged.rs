//! Damaged files: each kind of damage has its error, and no damage at all makes a panic or a tokenizer that
//! loses text. With `COLIBRI_TEST_FUZZ_SECONDS` the tests on mutated files go on for that long.

use crate::seeds::{Random, seeds};
use crate::support::{bytes, encode};
use text::{Segment, TextError, Tiktoken, Tokenizer};

/// The message of a file that must be refused.
fn refused(model: &str, config: Option<&str>) -> String {
    let error =
        Tiktoken::from_bytes(model.as_bytes(), config.map(str::as_bytes)).expect_err("a damaged file");
    error.to_string()
}

/// `tiny.tiktoken` with line `number` (from 1) replaced; none for a line left out.
fn with_line(number: usize, line: Option<&str>) -> String {
    let model = String::from_utf8(bytes("vectors/tiny.tiktoken")).expect("ASCII");
    let mut lines: Vec<&str> = model.lines().collect();
    match line {
        Some(line) => lines[number - 1] = line,
        None => drop(lines.remove(number - 1)),
    }
    lines.join("\n")
}

fn model() -> String {
    String::from_utf8(bytes("vectors/tiny.tiktoken")).expect("ASCII")
}

/// A config with these entries; the ranks are 512.
fn config(entries: &str) -> String {
    format!("{{\"added_tokens_decoder\": {{{entries}}}}}")
}

#[test]
fn line_ends_of_both_kinds_and_no_last_one_are_read() {
    let ids = encode(&Tiktoken::from_bytes(model().as_bytes(), None).expect("whole"), "Hello world");
    for same in [model().replace('\n', "\r\n"), model().trim_end().to_owned()] {
        assert_eq!(encode(&Tiktoken::from_bytes(same.as_bytes(), None).expect("whole"), "Hello world"), ids);
    }
}

#[test]
fn ranks_without_a_config_have_reserved_control_tokens() {
    let tokenizer = Tiktoken::from_bytes(model().as_bytes(), None).expect("whole");
    assert_eq!(tokenizer.special("<|reserved_token_512|>"), Some(512));
    assert_eq!(tokenizer.special("<|reserved_token_767|>"), Some(767));
    assert_eq!(tokenizer.special("<|open|>"), None);
    assert_eq!(tokenizer.encode(&[Segment::Special("<|reserved_token_600|>")]).expect("known"), [600]);
}

#[test]
fn damaged_lines_are_named() {
    for (line, expected) in [
        ("", "tiktoken.model line 3: expected `BASE64 RANK`, found ``"),
        ("Ag==", "tiktoken.model line 3: expected `BASE64 RANK`, found `Ag==`"),
        (" 2", "tiktoken.model line 3: expected `BASE64 RANK`, found ` 2`"),
        ("Ag== 2 2", "tiktoken.model line 3: expected `BASE64 RANK`, found `Ag== 2 2`"),
        ("A!== 2", "tiktoken.model line 3: expected a token in base64, found `A!==`"),
        ("Ag 2", "tiktoken.model line 3: expected a token in base64, found `Ag`"),
        ("Ag== two", "tiktoken.model line 3: expected rank 2, found `two`"),
        ("Ag== 3", "tiktoken.model line 3: expected rank 2, found `3`"),
        ("Ag== 99999999999999999999999", "tiktoken.model line 3: expected rank 2"),
        ("AA== 2", "tiktoken.model line 3: expected a new token, found that of line 1 again (`\\0`)"),
    ] {
        let message = refused(&with_line(3, Some(line)), None);
        assert!(message.starts_with(expected), "{line:?}: {message}");
    }
    let gap = refused(&with_line(3, None), None);
    assert!(gap.starts_with("tiktoken.model line 3: expected rank 2, found `3`"), "{gap}");
}

#[test]
fn a_vocabulary_that_cannot_encode_all_text_is_refused() {
    let message = refused(&with_line(8, Some("YWJjZGVm 7")), None);
    assert!(message.contains("found none for 0x07"), "{message}");
    let empty = refused("", None);
    assert!(empty.contains("found an empty file"), "{empty}");
    let pointer = refused("version https://git-lfs.github.com/spec/v1\n", None);
    assert!(
        pointer.contains("line 1: expected `BASE64 RANK`") || pointer.contains("line 1: expected a token"),
        "{pointer}"
    );
}

#[test]
fn damaged_configs_are_named() {
    let named = |id: &str, name: &str| config(&format!("\"{id}\": {{\"content\": \"{name}\"}}"));
    for (config, expected) in [
        ("{".to_owned(), "tokenizer_config.json: EOF"),
        ("[]".to_owned(), "tokenizer_config.json: "),
        ("{}".to_owned(), "tokenizer_config.json: missing field `added_tokens_decoder`"),
        ("{\"added_tokens_decoder\": []}".to_owned(), "tokenizer_config.json: invalid type: sequence"),
        (config("\"512\": {}"), "tokenizer_config.json: missing field `content`"),
        (
            named("x", "[BOS]"),
            "tokenizer_config.json added_tokens_decoder: expected a token id as key, found `x`",
        ),
        (
            named("-1", "[BOS]"),
            "tokenizer_config.json added_tokens_decoder: expected a token id as key, found `-1`",
        ),
        (
            named("511", "[BOS]"),
            "tokenizer_config.json added_tokens_decoder `511` (`[BOS]`): expected an id from 512 to 767",
        ),
        (
            named("768", "[BOS]"),
            "tokenizer_config.json added_tokens_decoder `768` (`[BOS]`): expected an id from 512 to 767",
        ),
        (named("600", ""), "tokenizer_config.json added_tokens_decoder `600`: expected a name in `content`"),
        (
            config("\"512\": {\"content\": \"a\"}, \"0512\": {\"content\": \"b\"}"),
            "tokenizer_config.json added_tokens_decoder `512`: expected one entry, found two",
        ),
        (
            config("\"512\": {\"content\": \"a\"}, \"600\": {\"content\": \"a\"}"),
            "tokenizer_config.json added_tokens_decoder `600`: expected a name of its own, found that of `512` (`a`)",
        ),
        (
            named("600", "<|reserved_token_700|>"),
            "tokenizer_config.json added_tokens_decoder `700`: expected a name of its own, found that of `600`",
        ),
    ] {
        let message = refused(&model(), Some(&config));
        assert!(message.starts_with(expected), "{config}: {message}");
    }
}

#[test]
fn the_longest_of_two_spellings_wins() {
    let config = config("\"512\": {\"content\": \"<a\"}, \"513\": {\"content\": \"<a>\"}");
    let tokenizer = Tiktoken::from_bytes(model().as_bytes(), Some(config.as_bytes())).expect("whole");
    assert_eq!(tokenizer.encode_with_specials("<a><a").expect("few names"), [513, 512]);
}

#[test]
fn a_file_of_weights_is_refused_by_its_size() {
    let large = vec![b'a'; (64 << 20) + 1];
    let error = Tiktoken::from_bytes(&large, None).expect_err("too large");
    assert!(matches!(error, TextError::TooLarge { file: "tiktoken.model", .. }), "{error}");
    let error = Tiktoken::from_bytes(model().as_bytes(), Some(&large)).expect_err("too large");
    assert!(matches!(error, TextError::TooLarge { file: "tokenizer_config.json", .. }), "{error}");
}

/// One to three small damages: a byte changed, a stretch removed, doubled or moved.
pub(crate) fn damage(bytes: &mut Vec<u8>, numbers: &mut Random) {
    for _ in 0..=numbers.below(3) {
        if bytes.is_empty() {
            return;
        }
        let start = numbers.below(bytes.len());
        let end = (start + 1 + numbers.below(16)).min(bytes.len());
        match numbers.below(5) {
            0 => bytes[start] = numbers.below(256) as u8,
            1 => bytes[start] = b" \n\r=\"{}:,0129Az"[numbers.below(15)],
            2 => drop(bytes.drain(start..end)),
            3 => {
                let stretch = bytes[start..end].to_vec();
                let at = numbers.below(bytes.len());
                bytes.splice(at..at, stretch);
            }
            _ => bytes.truncate(end),
        }
    }
}

/// Whatever was damaged: an error that names its file, or a tokenizer that keeps its promises.
fn check_damaged(file: &str, model: &[u8], config: &[u8]) -> bool {
    match Tiktoken::from_bytes(model, Some(config)) {
        Err(error) => {
            assert!(error.to_string().contains(file), "{error}");
            false
        }
        Ok(tokenizer) => {
            let text = "Hello <|open|> \u{0}wörld 你好\n";
            let ids = encode(&tokenizer, text);
            assert!(ids.iter().all(|&id| !tokenizer.is_special(id)));
            assert_eq!(tokenizer.decode(&ids).expect("own ids"), text);
            let last = tokenizer.vocabulary() - 1;
            assert!(tokenizer.is_special(last) && tokenizer.bytes(last).is_some());
            true
        }
    }
}

#[test]
fn mutated_models_never_panic() {
    let (model, config) = (bytes("vectors/tiny.tiktoken"), config("\"512\": {\"content\": \"[BOS]\"}"));
    let mut numbers = Random(1);
    let (mut tried, mut accepted) = (0, 0);
    for _ in seeds(3000) {
        let mut damaged = model.clone();
        damage(&mut damaged, &mut numbers);
        tried += 1;
        accepted += usize::from(check_damaged("tiktoken.model", &damaged, config.as_bytes()));
    }
    assert!(accepted < tried / 2, "{accepted} of {tried} damaged files went unnoticed");
}

#[test]
fn mutated_configs_never_panic() {
    let model = bytes("vectors/tiny.tiktoken");
    // The names of k3-tiny, moved to where 512 ranks end.
    let config = String::from_utf8(bytes("k3-tiny/tokenizer_config.json")).expect("UTF-8");
    let config = (3840..4096)
        .fold(config, |config, id| config.replace(&format!("\"{id}\""), &format!("\"{}\"", id - 3328)));
    assert!(check_damaged("tokenizer_config.json", &model, config.as_bytes()), "the undamaged one is read");
    let mut numbers = Random(2);
    let (mut tried, mut accepted) = (0, 0);
    for _ in seeds(1500) {
        let mut damaged = config.clone().into_bytes();
        damage(&mut damaged, &mut numbers);
        tried += 1;
        accepted += usize::from(check_damaged("tokenizer_config.json", &model, &damaged));
    }
    assert!((1..tried).contains(&accepted), "{accepted} of {tried}: both outcomes must occur");
}
