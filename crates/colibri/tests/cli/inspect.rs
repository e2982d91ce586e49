//! `inspect`: the right numbers, what is missing, and damage.
use crate::common::{colibri, data, model_copy, text_of};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn inspect(model: &Path, more: &[&str]) -> crate::common::Answer {
    colibri(&[&["inspect", "--json", "--model", text_of(model)], more].concat())
}

#[test]
fn the_numbers_are_right() {
    let seen = colibri(&["inspect", "--json"]).good();
    assert_eq!(seen["family"], "kimi_k3");
    assert_eq!(seen["layers"], json!({"total": 9, "kda": 6, "mla": 3, "dense_mlp": 1, "moe": 8}));
    assert_eq!(
        seen["experts"],
        json!({"total": 256, "per_layer": 32, "per_token": 4, "shared": 2, "bytes_each": 9792, "whole": 256,
            "contiguous": 256})
    );
    // 3 matrices of 64 x 96, half a byte and one scale for 32 a number.
    let experts = &seen["classes"]["routed experts"];
    assert_eq!(experts["parameters"], 256 * 3 * 64 * 96);
    assert_eq!(experts["packing"], json!({"MXFP4": 256 * 9792}));
    assert_eq!(seen["classes"]["head"]["parameters"], 4096 * 192);
    assert_eq!((&seen["bytes"], &seen["shards"]), (&json!(12_809_056), &json!({"named": 12, "present": 12})));
    assert_eq!(
        (&seen["complete"], &seen["missing"], &seen["problems"]),
        (&json!(true), &json!([]), &json!([]))
    );
    let mut there = inspect(&data("k3-tiny"), &[]).good();
    there["model"] = seen["model"].clone();
    assert_eq!(there, seen, "the directory is the embedded model");
    let text = colibri(&["inspect"]).stdout;
    for wanted in [
        "9 (6 KDA, 3 MLA; 1 with a dense MLP, 8 with routed experts)",
        "256 (32 a layer, 4 a token",
        "MXFP4",
        "nothing is missing",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn reading_everything_finds_nothing_in_a_sound_model() {
    let deep = &colibri(&["inspect", "--json", "--deep"]).good()["deep"];
    assert_eq!(*deep, json!({"tensors": 1782, "bytes": 12_809_056, "faults": []}));
}

#[test]
fn missing_shards_are_listed() {
    let model = model_copy();
    // The first one holds the tensor by which names are recognised.
    for shard in ["model-00001-of-000012.safetensors", "model-00003-of-000012.safetensors"] {
        fs::remove_file(model.path().join(shard)).unwrap();
    }
    let seen = inspect(model.path(), &[]).good();
    assert_eq!(
        seen["missing"],
        json!([{"shard": "model-00001-of-000012.safetensors", "tensors": 23},
            {"shard": "model-00003-of-000012.safetensors", "tensors": 220}])
    );
    assert_eq!((&seen["complete"], &seen["experts"]["whole"]), (&json!(false), &json!(224)));
    assert_eq!(seen["classes"]["routed experts"]["missing"], 192);
    assert_eq!(
        seen["classes"]["dense MLP"],
        json!({"tensors": 0, "parameters": 0, "bytes": 0, "packing": {}, "missing": 3})
    );
    let text = colibri(&["inspect", "--model", text_of(model.path())]).stdout;
    assert!(text.contains("missing: model-00003-of-000012.safetensors with 220 tensors"), "{text}");
    assert!(text.contains("shards: 10 of 12 are here") && !text.contains("nothing is missing"), "{text}");
    let deep = inspect(model.path(), &["--deep"]);
    assert_eq!(
        (deep.code, &deep.json()["deep"]["faults"]),
        (1, &json!([])),
        "a deep look fails what is not whole"
    );
}

/// First byte of a tensor in a shard.
fn place(shard: &[u8], tensor: &str) -> usize {
    let header = u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    let table: Value = serde_json::from_slice(&shard[8..8 + header]).unwrap();
    8 + header + table[tensor]["data_offsets"][0].as_u64().unwrap() as usize
}

#[test]
fn damaged_numbers_are_found_by_a_deep_look_only() {
    let model = model_copy();
    let path = model.path().join("model-00002-of-000012.safetensors");
    let mut shard = fs::read(&path).unwrap();
    let layer = "language_model.model.layers.1";
    let scale = format!("{layer}.block_sparse_moe.experts.7.w2.weight_scale");
    let norm = format!("{layer}.input_layernorm.weight");
    let at = place(&shard, &scale) + 5;
    shard[at] = 255;
    let at = place(&shard, &norm) + 2 * 11;
    shard[at..at + 2].copy_from_slice(&[0x80, 0x7f]);
    fs::write(&path, shard).unwrap();
    assert_eq!(inspect(model.path(), &[]).good()["complete"], true);
    let deep = inspect(model.path(), &["--deep"]);
    assert_eq!(deep.code, 1);
    let faults = deep.json()["deep"]["faults"].clone();
    let found: Vec<(&str, &str)> = faults
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| (fault["tensor"].as_str().unwrap(), fault["what"].as_str().unwrap()))
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.contains(&(&scale, "1 scale bytes of 255 (NaN), the first at element 5")), "{found:?}");
    assert!(found.contains(&(&norm, "1 numbers that are not finite, the first at element 11")), "{found:?}");
    assert!(faults[0]["file"].as_str().unwrap().ends_with("model-00002-of-000012.safetensors"));
}
