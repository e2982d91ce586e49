//! Damaged configs by the thousand, from a fixed seed: reading never panics and never loops, gives the same answer
//! twice, and whatever is accepted has sizes that fit together. With `COLIBRI_TEST_FUZZ_SECONDS` the tests go on for that
//! long.

#[path = "../../../tests/seeds.rs"]
mod seeds;
mod support;

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use models::kimi_k3::KimiK3Config;
use models::{Family, LoadError, LoadOptions};
use seeds::{Random, seeds};
use serde_json::{Value, json};
use store::Checkpoint;
use store::files::MemoryFiles;
use support::assert_consistent;

/// The config of the tiny model.
fn sound() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny/config.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A checkpoint with this config and one tensor, the one by which the names' prefix is recognised.
fn checkpoint(config: &Value) -> Checkpoint {
    let name = "language_model.model.layers.0.input_layernorm.weight";
    let header = json!({ name: { "dtype": "BF16", "shape": [1], "data_offsets": [0, 2] } }).to_string();
    let shard = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0, 0]].concat();
    let files = [("config.json", config.to_string().into_bytes()), ("model.safetensors", shard)];
    let files = files.map(|(name, bytes)| (name.to_owned(), Cow::Owned(bytes)));
    Checkpoint::from_files(Arc::new(MemoryFiles::new(files))).unwrap()
}

/// Reads, twice, and checks what must hold; says whether the config was accepted.
fn check(config: &Value) -> bool {
    let (one, other) = (KimiK3Config::read(config), KimiK3Config::read(config));
    assert_eq!(one, other, "two readings differ");
    match &one {
        Ok(read) => assert_consistent(read),
        Err(error) => assert!(error.to_string().contains("config.json: `"), "{error}"),
    }
    one.is_ok()
}

/// The same through the family. What is accepted is planned as well: the sizes of its weights and experts are computed
/// until the first tensor that is missing, which the error names.
fn check_family(config: &Value) -> bool {
    let checkpoint = checkpoint(config);
    match Family::recognise(&checkpoint) {
        Err(LoadError::Config(error)) => {
            assert!(error.to_string().starts_with("config.json: "), "{error}");
            false
        }
        Err(other) => panic!("an error that is not the config's: {other}"),
        Ok(family) => {
            assert_consistent(&family.config);
            let loaded = family.load(&checkpoint, None, &LoadOptions::default(), &mut |_| ());
            let missing = loaded.err().expect("all tensors but one are missing").to_string();
            assert!(missing.contains("model.layers.0."), "{missing}");
            if family.config.first_moe_layer < family.config.layers() {
                assert!(family.catalog(&checkpoint, None).is_err(), "no expert is there");
            }
            true
        }
    }
}

/// A place in the config: its parent objects' keys and lists' indexes.
fn paths(value: &Value, path: &str, all: &mut Vec<String>) {
    if !path.is_empty() {
        all.push(path.to_owned());
    }
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                paths(inner, &format!("{path}/{key}"), all);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                paths(inner, &format!("{path}/{index}"), all);
            }
        }
        _ => {}
    }
}

/// One change that leaves JSON: a value replaced, removed, or put in another's place.
fn mutate(config: &mut Value, random: &mut Random) {
    let mut all = Vec::new();
    paths(config, "", &mut all);
    let Some(path) = all.get(random.below(all.len())) else { return };
    let other = all[random.below(all.len())].as_str();
    let donor = config.pointer(other).cloned().unwrap_or_default();
    if random.below(8) == 0 {
        return remove(config, path);
    }
    let Some(target) = config.pointer_mut(path) else { return };
    let old = target.as_u64().unwrap_or(1);
    let choices = [
        json!(old.wrapping_add(1)),
        json!(old.wrapping_sub(1)),
        json!(old.wrapping_mul(2)),
        json!(old / 2),
        json!(1u64 << random.below(64)),
        json!((1u64 << random.below(64)) - 1),
        json!(0),
        json!(-1),
        json!(0.5),
        json!(f64::from_bits(random.next())),
        json!(true),
        json!(false),
        json!("silu"),
        json!("kimi_linear"),
        json!([]),
        json!({}),
        Value::Null,
        donor,
    ];
    *target = choices[random.below(choices.len())].clone();
}

/// Takes away what lies at a path.
fn remove(config: &mut Value, path: &str) {
    let Some((parent, key)) = path.rsplit_once('/') else { return };
    match config.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.remove(key)),
        Some(Value::Array(list)) => drop(key.parse().map(|index: usize| list.remove(index))),
        _ => {}
    }
}

/// The config of the tiny model, nested or flat, after one to three changes.
fn mutated(sound: &Value, seed: u64) -> Value {
    let mut random = Random(seed);
    let mut config = sound.clone();
    if random.below(4) == 0 {
        config = config["text_config"].take();
    }
    for _ in 0..=random.below(3) {
        mutate(&mut config, &mut random);
    }
    config
}

#[test]
fn damaged_configs_are_refused_or_consistent() {
    let sound = sound();
    assert!(check(&sound) && check(&sound["text_config"]), "the model's own config is read");
    let (mut rounds, mut accepted) = (0, 0);
    for seed in seeds(20_000) {
        rounds += 1;
        accepted += u64::from(check(&mutated(&sound, seed)));
    }
    assert!(accepted > rounds / 50 && accepted < rounds, "{accepted} of {rounds} were accepted");
}

#[test]
fn damaged_configs_of_a_checkpoint() {
    let sound = sound();
    assert!(check_family(&sound), "the model's own config is recognised");
    let (mut rounds, mut accepted) = (0, 0);
    // A file whose top is no object is refused by the store already.
    for config in seeds(4_000).map(|seed| mutated(&sound, seed)).filter(Value::is_object) {
        rounds += 1;
        accepted += u64::from(check_family(&config));
    }
    assert!(accepted > rounds / 50 && accepted < rounds, "{accepted} of {rounds} were accepted");
}

#[test]
fn damaged_text_of_a_config() {
    let sound = sound().to_string().into_bytes();
    let (mut rounds, mut parsed) = (0, 0);
    for seed in seeds(20_000) {
        let mut random = Random(seed);
        let mut text = sound.clone();
        let place = random.below(text.len());
        match random.below(3) {
            0 => text[place] = b"0123456789-.e,:\"[]{}"[random.below(20)],
            1 => drop(text.drain(place..(place + 1 + random.below(24)).min(sound.len()))),
            _ => text.insert(place, b'0' + random.below(10) as u8),
        }
        rounds += 1;
        if let Ok(config) = serde_json::from_slice(&text) {
            parsed += 1;
            check(&config);
        }
    }
    assert!(parsed > rounds / 50 && parsed < rounds, "{parsed} of {rounds} were JSON");
}
