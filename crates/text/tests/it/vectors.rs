//! Every vector under `data/` that concerns the tokenizer: the ids of the release and of the small tokenizers.
//! They were made by other implementations; nothing here computes what is expected.

use crate::support::{
    K3, K3_MODEL, K3_TINY, TINY, TINY_VECTORS, VECTORS, encode, from_hex, hex, json, sha256,
};
use serde::Deserialize;
use text::{PATTERN, StreamDecoder, Tokenizer};

#[test]
fn the_rebuilt_file_is_the_release() {
    assert_eq!(sha256(K3_MODEL.as_bytes()), VECTORS.tiktoken_model_sha256);
}

#[test]
fn the_pattern_is_the_release() {
    assert_eq!(PATTERN, VECTORS.pattern);
}

#[test]
fn control_tokens_have_their_ids() {
    for (tokenizer, vocab, first, named) in [
        (&*K3, VECTORS.vocab, VECTORS.base_tokens, &VECTORS.named_special),
        (&*TINY, TINY_VECTORS.vocab, TINY_VECTORS.base_tokens, &TINY_VECTORS.named_special),
    ] {
        assert_eq!(tokenizer.vocabulary(), vocab);
        tokenizer.expect_vocabulary(vocab).expect("the same number");
        for (name, &id) in named {
            assert_eq!(tokenizer.special(name), Some(id), "{name}");
            assert_eq!(tokenizer.bytes(id), Some(name.as_bytes()));
        }
        let reserved = format!("<|reserved_token_{}|>", first + 8);
        assert_eq!(tokenizer.special(&reserved), Some(first + 8));
        assert_eq!((tokenizer.is_special(first - 1), tokenizer.is_special(first)), (false, true));
        assert_eq!((tokenizer.is_special(vocab - 1), tokenizer.is_special(vocab)), (true, false));
        assert_eq!(tokenizer.bytes(vocab), None);
    }
}

#[test]
fn k3_texts() {
    for case in &VECTORS.texts {
        assert_eq!(encode(&K3, &case.text), case.ids, "{:?}", case.text);
        // No token crosses the end of a piece: piece by piece gives the same ids.
        assert_eq!(case.pieces.concat(), case.text);
        let by_piece: Vec<u32> = case.pieces.iter().flat_map(|piece| encode(&K3, piece)).collect();
        assert_eq!(by_piece, case.ids, "{:?}", case.pieces);
    }
}

#[test]
fn k3_long_runs_are_cut_as_in_the_release() {
    for case in &VECTORS.long {
        let ids = encode(&K3, &(case.unit.repeat(case.count) + &case.suffix));
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(ids.len(), case.num_ids, "{:?}", case.unit);
        assert_eq!(sha256(&bytes), case.sha256_of_le_u32, "{:?}", case.unit);
    }
}

#[test]
fn tiny_texts() {
    assert_eq!(TINY_VECTORS.texts.len(), VECTORS.texts.len());
    for (case, ids) in VECTORS.texts.iter().zip(&TINY_VECTORS.texts) {
        assert_eq!(&encode(&TINY, &case.text), ids, "{:?}", case.text);
    }
}

#[test]
fn stream_decode() {
    for case in &VECTORS.stream_decode {
        let tokens: Vec<Vec<u8>> = case.token_bytes.iter().map(|token| from_hex(token)).collect();
        let mut decoder = StreamDecoder::new();
        let emitted: Vec<String> = tokens.iter().map(|token| decoder.push(token)).collect();
        assert_eq!(emitted, case.emit, "{:?}", case.token_bytes);
        assert_eq!(decoder.finish(), case.emit_at_end, "{:?}", case.token_bytes);
        let Some(ids) = &case.ids else { continue };
        let by_id: Vec<String> =
            ids.iter().map(|&id| decoder.push_id(&*K3, id).expect("an id of the release")).collect();
        assert_eq!(by_id, case.emit, "{ids:?}");
        let bytes: Vec<String> = ids.iter().map(|&id| hex(K3.bytes(id).expect("a known id"))).collect();
        assert_eq!(bytes, case.token_bytes);
    }
}

/// `data/k3-tiny/golden/tokenizer.json`.
#[derive(Deserialize)]
struct Golden {
    vocab: Sizes,
    cases: Vec<Case>,
    special_allowed: Vec<Case>,
}

#[derive(Deserialize)]
struct Sizes {
    base: u32,
    specials: u32,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn golden_texts() {
    let golden: Golden = json("k3-tiny/golden/tokenizer.json");
    assert_eq!(K3_TINY.vocabulary(), golden.vocab.base + golden.vocab.specials);
    for case in golden.cases {
        assert_eq!(encode(&K3_TINY, &case.text), case.ids, "{:?}", case.text);
    }
    for case in golden.special_allowed {
        assert_eq!(K3_TINY.encode_with_specials(&case.text).expect("few names"), case.ids, "{:?}", case.text);
    }
}
