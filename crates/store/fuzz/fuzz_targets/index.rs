//! An index of any bytes over two sound shards of one tensor each.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use store::testing::{PlainTensor, shard_bytes};

fn shard(name: &str) -> Vec<u8> {
    shard_bytes(&[PlainTensor { name: name.into(), dtype: "U8".into(), shape: vec![2], bytes: vec![1, 2] }])
}

fuzz_target!(|bytes: &[u8]| {
    support::check(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", bytes),
        ("a.safetensors", &shard("a")),
        ("b.safetensors", &shard("b")),
    ]);
});
