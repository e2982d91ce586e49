//! Configs of any bytes.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use store::testing::shard_bytes;

fuzz_target!(|bytes: &[u8]| {
    let shard = shard_bytes(&[]);
    support::check(&[("config.json", bytes), ("model.safetensors", &shard)]);
    support::check(&[("config.json", b"{}"), ("generation_config.json", bytes), ("model.safetensors", &shard)]);
});
