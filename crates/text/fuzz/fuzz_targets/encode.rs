//! Any text: it comes back from its ids, and no id is a control token.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use text::{Segment, Tiktoken, Tokenizer};

static TOKENIZER: LazyLock<Tiktoken> = LazyLock::new(|| {
    let model = include_bytes!("../../../../data/k3-tiny/tiktoken.model");
    let config = include_bytes!("../../../../data/k3-tiny/tokenizer_config.json");
    Tiktoken::from_bytes(model, Some(config)).expect("data/k3-tiny")
});

fuzz_target!(|text: &str| {
    let ids = TOKENIZER.encode(&[Segment::Text(text)]).expect("text always encodes");
    assert!(!ids.iter().any(|&id| TOKENIZER.is_special(id)));
    assert_eq!(TOKENIZER.decode(&ids).expect("own ids"), text);
    let trusted = TOKENIZER.encode_with_specials(text).expect("few names");
    assert_eq!(TOKENIZER.decode(&trusted).expect("own ids"), text);
});
