//! Any bytes as `tiktoken.model`: an error, or a tokenizer that gives text back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::{Segment, Tiktoken, Tokenizer};

fuzz_target!(|model: &[u8]| {
    let Ok(tokenizer) = Tiktoken::from_bytes(model, None) else { return };
    let text = "Hello <|open|> \u{0}wörld 你好\n";
    let ids = tokenizer.encode(&[Segment::Text(text)]).expect("text always encodes");
    assert_eq!(tokenizer.decode(&ids).expect("own ids"), text);
});
