//! Any bytes as `config.json`: an error, or sizes that fit together.
#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use models::kimi_k3::{KimiK3Config, is_kimi_k3};

fuzz_target!(|text: &[u8]| {
    let Ok(config) = serde_json::from_slice(text) else { return };
    let _ = is_kimi_k3(&config);
    if let Ok(config) = KimiK3Config::read(&config) {
        support::assert_consistent(&config);
    }
});
