//! Test data and the tokenizers it describes. It knows no test.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::LazyLock;
use text::{Segment, Tiktoken, Tokenizer};

/// A file below `data/`.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(name);
    std::fs::read(path).unwrap_or_else(|error| panic!("data/{name}: {error}"))
}

pub(crate) fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|error| panic!("data/{name}: {error}"))
}

/// `data/vectors/k3-tokenizer.json`, as far as tests of several modules use it.
#[derive(Deserialize)]
pub(crate) struct Vectors {
    pub(crate) tiktoken_model_sha256: String,
    pub(crate) base_tokens: u32,
    pub(crate) vocab: u32,
    pub(crate) pattern: String,
    pub(crate) named_special: BTreeMap<String, u32>,
    pub(crate) texts: Vec<TextCase>,
    pub(crate) long: Vec<LongCase>,
    pub(crate) stream_decode: Vec<StreamCase>,
}

#[derive(Deserialize)]
pub(crate) struct TextCase {
    pub(crate) text: String,
    pub(crate) pieces: Vec<String>,
    pub(crate) ids: Vec<u32>,
}

#[derive(Deserialize)]
pub(crate) struct LongCase {
    pub(crate) unit: String,
    pub(crate) count: usize,
    pub(crate) suffix: String,
    pub(crate) num_ids: usize,
    pub(crate) sha256_of_le_u32: String,
}

#[derive(Deserialize)]
pub(crate) struct StreamCase {
    pub(crate) ids: Option<Vec<u32>>,
    pub(crate) token_bytes: Vec<String>,
    pub(crate) emit: Vec<String>,
    pub(crate) emit_at_end: String,
}

/// `data/vectors/tiny-ids.json` without the cases that need rendering.
#[derive(Deserialize)]
pub(crate) struct TinyVectors {
    pub(crate) base_tokens: u32,
    pub(crate) vocab: u32,
    pub(crate) named_special: BTreeMap<String, u32>,
    pub(crate) texts: Vec<Vec<u32>>,
}

pub(crate) static VECTORS: LazyLock<Vectors> = LazyLock::new(|| json("vectors/k3-tokenizer.json"));
pub(crate) static TINY_VECTORS: LazyLock<TinyVectors> = LazyLock::new(|| json("vectors/tiny-ids.json"));

/// The bytes of the release's `tiktoken.model`, rebuilt from a crate that carries the same ranks.
pub(crate) static K3_MODEL: LazyLock<String> = LazyLock::new(|| {
    let carrier = tiktoken::get_encoding("kimi_k3").expect("the feature of Cargo.toml");
    let mut model = String::new();
    for rank in 0..VECTORS.base_tokens {
        writeln!(model, "{} {rank}", STANDARD.encode(carrier.decode(&[rank]))).expect("a string grows");
    }
    model
});

/// The release's tokenizer.
pub(crate) static K3: LazyLock<Tiktoken> = LazyLock::new(|| {
    let config = config_of(&VECTORS.named_special);
    Tiktoken::from_bytes(K3_MODEL.as_bytes(), Some(&config)).expect("the release's own ranks")
});

/// 512 ranks.
pub(crate) static TINY: LazyLock<Tiktoken> = LazyLock::new(|| {
    let config = config_of(&TINY_VECTORS.named_special);
    Tiktoken::from_bytes(&bytes("vectors/tiny.tiktoken"), Some(&config)).expect("tiny.tiktoken")
});

/// The tokenizer of k3-tiny: 3,840 ranks.
pub(crate) static K3_TINY: LazyLock<Tiktoken> = LazyLock::new(|| {
    let config = bytes("k3-tiny/tokenizer_config.json");
    Tiktoken::from_bytes(&bytes("k3-tiny/tiktoken.model"), Some(&config)).expect("data/k3-tiny")
});

/// A `tokenizer_config.json` that names these control tokens.
pub(crate) fn config_of(names: &BTreeMap<String, u32>) -> Vec<u8> {
    let entries: BTreeMap<String, serde_json::Value> = names
        .iter()
        .map(|(name, id)| (id.to_string(), serde_json::json!({ "content": name, "special": true })))
        .collect();
    serde_json::json!({ "added_tokens_decoder": entries }).to_string().into_bytes()
}

/// The ids of one ordinary text.
pub(crate) fn encode(tokenizer: &Tiktoken, text: &str) -> Vec<u32> {
    tokenizer.encode(&[Segment::Text(text)]).expect("text encodes")
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}
