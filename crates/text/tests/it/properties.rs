//! What holds for every text: round trips, the definition of byte-pair encoding, no control token from text,
//! streams equal to wholes.

use crate::support::{K3, K3_TINY, TINY, TINY_VECTORS, VECTORS, encode};
use fancy_regex::Regex;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::LazyLock;
use text::{PATTERN, Segment, StreamDecoder, TextError, Tiktoken, Tokenizer};

static PIECES: LazyLock<Regex> = LazyLock::new(|| Regex::new(PATTERN).expect("the pattern"));

/// The ranks of `tokenizer`, by bytes.
fn ranks(tokenizer: &'static Tiktoken) -> HashMap<&'static [u8], u32> {
    (0..tokenizer.vocabulary())
        .filter(|&id| !tokenizer.is_special(id))
        .map(|id| (tokenizer.bytes(id).expect("below the vocabulary"), id))
        .collect()
}

static TINY_RANKS: LazyLock<HashMap<&'static [u8], u32>> = LazyLock::new(|| ranks(&TINY));
static K3_TINY_RANKS: LazyLock<HashMap<&'static [u8], u32>> = LazyLock::new(|| ranks(&K3_TINY));

/// The definition, as slow as it reads: of all adjacent pairs the one of lowest rank, the leftmost of equals.
fn merged_by_definition(piece: &str, ranks: &HashMap<&[u8], u32>) -> Vec<u32> {
    if let Some(&rank) = ranks.get(piece.as_bytes()) {
        return vec![rank];
    }
    let mut parts: Vec<Vec<u8>> = piece.bytes().map(|byte| vec![byte]).collect();
    loop {
        let lowest = parts
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| Some((*ranks.get(pair.concat().as_slice())?, at)))
            .min();
        let Some((_, at)) = lowest else { break };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
    parts.iter().map(|part| ranks[part.as_slice()]).collect()
}

fn encoded_by_definition(text: &str, ranks: &HashMap<&[u8], u32>) -> Vec<u32> {
    PIECES
        .find_iter(text)
        .flat_map(|piece| merged_by_definition(piece.expect("a short text").as_str(), ranks))
        .collect()
}

/// Texts of the classes that the pattern tells apart, so that all alternatives and their borders occur.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[ \t\r\n\u{a0}\u{3000}a.]{0,40}",
        "[a-zA-Z0-9 '\n!\u{1c}]{0,60}",
        "('s|'LL|'t|don't|[A-Za-zé\u{1c5}\u{2b0}ª]){0,20}",
        "[中文々〇ㅎひ한\u{301}\u{16ff0}A a1²½😀\u{200d}]{0,40}",
        // Longer than the length at which the library changes its way of merging.
        "[ab]{90,260}",
        "[ ]{90,260}[a\n]?",
        "(ab|Ab|the| ){40,80}",
    ]
}

/// Texts full of the spellings of control tokens, whole and broken.
fn spellings() -> impl Strategy<Value = String> {
    let names: Vec<String> = TINY_VECTORS.named_special.keys().cloned().collect();
    let part = prop_oneof![
        proptest::sample::select(names),
        (500_u32..800).prop_map(|id| format!("<|reserved_token_{id}|>")),
        "[<|>a \\[\\]]{0,4}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn encoding_is_its_definition(text in texts()) {
        prop_assert_eq!(encode(&TINY, &text), encoded_by_definition(&text, &TINY_RANKS));
        prop_assert_eq!(encode(&K3_TINY, &text), encoded_by_definition(&text, &K3_TINY_RANKS));
    }

    #[test]
    fn decoding_gives_the_text_back(text in prop_oneof![texts(), spellings()]) {
        for tokenizer in [&*TINY, &*K3_TINY, &*K3] {
            prop_assert_eq!(tokenizer.decode(&encode(tokenizer, &text)).expect("own ids"), text.as_str());
        }
        let trusted = TINY.encode_with_specials(&text).expect("few names");
        prop_assert_eq!(TINY.decode(&trusted).expect("own ids"), text);
    }

    #[test]
    fn no_text_becomes_a_control_token(text in spellings()) {
        prop_assert!(!encode(&TINY, &text).iter().any(|&id| TINY.is_special(id)));
    }

    /// The same text gives the same ids, whatever was encoded before, beside it and on another thread.
    #[test]
    fn encoding_depends_on_the_text_alone(text in texts(), other in spellings()) {
        let alone = encode(&K3_TINY, &text);
        let open = Segment::Special("<|open|>");
        let beside = K3_TINY.encode(&[Segment::Text(&other), open, Segment::Text(&text)]).expect("known names");
        prop_assert!(beside.ends_with(&alone));
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| encode(&K3_TINY, &text)).join().expect("no panic"));
        prop_assert_eq!(elsewhere, alone);
    }

    #[test]
    fn a_stream_of_ids_is_the_whole(ids in proptest::collection::vec(0_u32..768, 0..60)) {
        let mut decoder = StreamDecoder::new();
        let mut streamed = String::new();
        for &id in &ids {
            streamed += &decoder.push_id(&*TINY, id).expect("below the vocabulary");
        }
        streamed += &decoder.finish();
        prop_assert_eq!(streamed, TINY.decode(&ids).expect("below the vocabulary"));
        prop_assert_eq!(decoder, StreamDecoder::new());
    }

    /// Bytes of every kind of lead, cut anywhere: the stream is the lossy whole, and a character comes out with
    /// the push of its last byte.
    #[test]
    fn a_stream_of_bytes_is_the_whole(
        parts in proptest::collection::vec(
            proptest::collection::vec(
                proptest::sample::select(&[0x41_u8, 0x80, 0x90, 0xa0, 0xbf, 0xc0, 0xc3, 0xe0, 0xe4, 0xed, 0xf0, 0xf4, 0xff][..]),
                0..5,
            ),
            0..12,
        )
    ) {
        let mut decoder = StreamDecoder::new();
        let mut streamed = String::new();
        let mut seen = Vec::new();
        for part in &parts {
            streamed += &decoder.push(part);
            seen.extend_from_slice(part);
            let whole = String::from_utf8_lossy(&seen).into_owned();
            prop_assert!(whole.starts_with(&streamed));
            let late = whole[streamed.len()..].trim_matches('\u{fffd}');
            prop_assert_eq!(late, "", "held back although certain");
        }
        streamed += &decoder.finish();
        prop_assert_eq!(streamed, String::from_utf8_lossy(&seen));
    }
}

#[test]
fn a_spelling_is_a_control_token_only_where_trusted() {
    let open = TINY.special("<|open|>").expect("named");
    assert_eq!(TINY.encode(&[Segment::Special("<|open|>")]).expect("named"), [open]);
    assert_eq!(TINY.encode_with_specials("<|open|>").expect("few names"), [open]);
    // Half a spelling on each side of a segment's end stays text.
    let halves = TINY.encode(&[Segment::Text("<|op"), Segment::Text("en|>")]).expect("text");
    assert!(!halves.contains(&open));
    let error = TINY.encode(&[Segment::Special("<|opened|>")]).expect_err("no such name");
    assert!(matches!(&error, TextError::UnknownSpecial { name } if name == "<|opened|>"), "{error}");
}

#[test]
fn an_id_past_the_vocabulary_is_an_error() {
    let error = TINY.decode(&[65, 768]).expect_err("768 ids");
    assert!(matches!(error, TextError::UnknownId { id: 768, vocabulary: 768 }), "{error}");
    let mut decoder = StreamDecoder::new();
    decoder.push(&[0xe4]);
    assert!(decoder.push_id(&*TINY, 768).is_err());
    assert_eq!(decoder.push(&[0xbd, 0xa0]), "你", "the decoder goes on after the error");
    let error = TINY.expect_vocabulary(VECTORS.vocab).expect_err("two releases");
    assert!(matches!(error, TextError::VocabularyMismatch { vocabulary: 768, rows: 163_840 }), "{error}");
}

/// A megabyte of one class, where backtracking or quadratic merging would not come back: ids give the text back,
/// and all full slices between the cuts give the same ids, each as long as the first.
#[test]
fn a_megabyte_of_one_class() {
    for unit in ["x", "A", " ", "\n", "7", "!", "中", "ㅎ", "😀", "\r\n", "\u{301}", "xY"] {
        let per_slice = 25_000 / unit.chars().count();
        let slices = 1_000_000 / unit.len() / per_slice;
        let slice = encode(&K3, &unit.repeat(per_slice));
        let ids = encode(&K3, &unit.repeat(per_slice * slices));
        assert_eq!(ids.len(), slice.len() * slices, "{unit:?}");
        assert!(ids.chunks(slice.len()).all(|ids| ids == slice), "{unit:?}");
        assert!(K3.decode(&slice).expect("own ids") == unit.repeat(per_slice), "{unit:?}");
    }
}

/// The pattern's look-ahead has its hardest case at the cut: white space up to it, then a letter.
#[test]
fn white_space_up_to_the_cut() {
    for count in [24_999, 25_000, 25_001, 50_000, 1_000_000] {
        let text = " ".repeat(count) + "z";
        assert!(K3.decode(&encode(&K3, &text)).expect("own ids") == text, "{count}");
    }
}
