//! A shard of any bytes; and, so that the fuzzer need not guess the length, any header with eight bytes of data.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    support::check(&[("config.json", b"{}"), ("model.safetensors", bytes)]);
    let mut shard = (bytes.len() as u64).to_le_bytes().to_vec();
    shard.extend_from_slice(bytes);
    shard.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    support::check(&[("config.json", b"{}"), ("model.safetensors", &shard)]);
});
