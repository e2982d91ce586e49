//! Any bytes as `tokenizer_config.json`: an error, or 256 control tokens that differ.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::{Tiktoken, Tokenizer};

const MODEL: &[u8] = include_bytes!("../../../../data/vectors/tiny.tiktoken");

fuzz_target!(|config: &[u8]| {
    let Ok(tokenizer) = Tiktoken::from_bytes(MODEL, Some(config)) else { return };
    for id in 512..tokenizer.vocabulary() {
        let name = tokenizer.bytes(id).and_then(|name| std::str::from_utf8(name).ok()).expect("a name");
        assert_eq!(tokenizer.special(name), Some(id));
        assert!(tokenizer.is_special(id));
    }
});
