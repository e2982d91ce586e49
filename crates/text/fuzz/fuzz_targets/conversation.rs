//! Any text as a conversation: an error, or a prompt whose control tokens are the format's alone, of a conversation that
//! is the same after it was saved.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use text::chat::{Chat, ChatFormat as _};
use text::kimi_k3::KimiK3;
use text::{Json, OwnedSegment, Tiktoken, Tokenizer as _};

static TOKENIZER: LazyLock<Tiktoken> = LazyLock::new(|| {
    let model = include_bytes!("../../../../data/k3-tiny/tiktoken.model");
    let config = include_bytes!("../../../../data/k3-tiny/tokenizer_config.json");
    Tiktoken::from_bytes(model, Some(config)).expect("data/k3-tiny")
});

fuzz_target!(|text: &str| {
    let Ok(json) = Json::parse(text) else { return };
    let Ok(chat) = Chat::from_json(&json) else { return };
    let Ok(segments) = KimiK3.render(&chat) else { return };
    let specials = segments.iter().filter(|segment| matches!(segment, OwnedSegment::Special(_))).count();
    let ids = TOKENIZER.encode_owned(&segments).expect("known control tokens");
    assert_eq!(ids.iter().filter(|&&id| TOKENIZER.is_special(id)).count(), specials);
    let saved = Json::from(chat).to_string();
    let again = Chat::from_json(&Json::parse(&saved).expect("own JSON")).expect("own conversation");
    assert_eq!(KimiK3.render(&again).expect("as before"), segments);
});
