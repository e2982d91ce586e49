//! `inspect`: the right numbers, what is missing, and damage.
use crate::common::{colibri, data, model_copy, text_of};
use safetensors::tensor::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

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
    let answer = inspect(model.path(), &[]);
    assert_eq!(answer.code, 1);
    let seen = answer.json();
    assert_eq!((&seen["missing_tensors"]["count"], &seen["damaged"]), (&json!(243), &json!([])));
    assert_eq!(seen["missing_tensors"]["first"].as_array().unwrap().len(), 20);
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
    assert!(text.contains("missing tensors: 243") && text.contains("and 223 more"), "{text}");
    let deep = inspect(model.path(), &["--deep"]);
    assert_eq!((deep.code, &deep.json()["deep"]["faults"]), (1, &json!([])));
}

fn shard_of(model: &TempDir, number: usize) -> PathBuf {
    model.path().join(format!("model-{number:05}-of-000012.safetensors"))
}

/// A report in spite of everything: what cannot be used is named, all of it at once, and the rest is counted.
#[test]
fn damaged_and_absent_shards_are_listed_together() {
    let model = model_copy();
    let shard = |number| shard_of(&model, number);
    let cut = fs::read(shard(2)).unwrap();
    fs::write(shard(2), &cut[..cut.len() - 100]).unwrap();
    fs::write(shard(3), "").unwrap();
    let long = [fs::read(shard(4)).unwrap(), vec![0; 10]].concat();
    fs::write(shard(4), long).unwrap();
    fs::remove_file(shard(5)).unwrap();
    fs::write(shard(6), "<html>no such file</html>").unwrap();
    let (copy, second) = (fs::read(shard(7)).unwrap(), tempfile::tempdir().unwrap());
    fs::write(second.path().join(shard(7).file_name().unwrap()), copy).unwrap();
    let more = ["--model", text_of(second.path())];
    let answer = inspect(model.path(), &more);
    assert_eq!(answer.code, 1);
    let seen = answer.json();
    assert_eq!(seen["shards"], json!({"named": 12, "present": 7}));
    assert_eq!(seen["missing"].as_array().unwrap().len(), 1);
    let damaged: Vec<&str> =
        seen["damaged"].as_array().unwrap().iter().map(|shard| shard["shard"].as_str().unwrap()).collect();
    assert_eq!(damaged, [2, 3, 4, 6].map(|number| format!("model-{number:05}-of-000012.safetensors")));
    // Layers 1 to 5.
    assert_eq!(seen["experts"]["whole"], 256 - 5 * 32);
    assert!(seen["missing_tensors"]["count"].as_u64().unwrap() > 5 * 192, "{seen}");
    let problems = seen["problems"].to_string();
    for (number, what) in
        [(2, "is cut"), (3, "is empty"), (4, "10 more than"), (6, "should be"), (7, "two places")]
    {
        assert!(problems.contains(what), "{number}: {problems}");
    }
    let text = colibri(&[&["inspect", "--model", text_of(model.path())], &more[..]].concat()).stdout;
    assert!(text.contains("routed experts: 256") && text.matches("problem: ").count() == 5, "{text}");
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_listed() {
    let model = model_copy();
    fs::remove_file(shard_of(&model, 8)).unwrap();
    std::os::unix::fs::symlink("../blobs/0123", shard_of(&model, 8)).unwrap();
    let answer = inspect(model.path(), &[]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.json()["problems"][0].as_str().unwrap().contains("is a link to ../blobs/0123"),
        "{}",
        answer.stdout
    );
    assert_eq!(answer.json()["shards"], json!({"named": 12, "present": 11}));
}

/// Tensors of all shards in one file, some left out.
fn single(model: &TempDir, keep: impl Fn(&str) -> bool) {
    let files: Vec<Vec<u8>> = (1..=12).map(|number| fs::read(shard_of(model, number)).unwrap()).collect();
    let parsed: Vec<SafeTensors<'_>> =
        files.iter().map(|file| SafeTensors::deserialize(file).unwrap()).collect();
    let all = parsed.iter().flat_map(SafeTensors::tensors).filter(|(name, _)| keep(name));
    serialize_to_file(all, None, &model.path().join("model.safetensors")).unwrap();
    (1..=12).for_each(|number| fs::remove_file(shard_of(model, number)).unwrap());
    fs::remove_file(model.path().join("model.safetensors.index.json")).unwrap();
}

#[test]
fn all_missing_tensors_are_found() {
    let model = model_copy();
    let lost = |name: &str| {
        name.contains("layers.4.self_attn.q_proj")
            || name.contains("layers.7.block_sparse_moe.gate.")
            || name.contains("layers.6.block_sparse_moe.experts.9.w3")
    };
    single(&model, |name| !lost(name));
    let answer = inspect(model.path(), &[]);
    assert_eq!(answer.code, 1);
    let missing = &answer.json()["missing_tensors"];
    let names: Vec<&str> =
        missing["first"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.len() == missing["count"].as_u64().unwrap() as usize && names.len() >= 4, "{names:?}");
    assert!(names.iter().all(|name| lost(name)), "{names:?}");
    for part in
        ["4.self_attn.q_proj", "7.block_sparse_moe.gate.", "6.block_sparse_moe.experts.9.w3.weight_scale"]
    {
        assert!(names.iter().any(|name| name.contains(part)), "{part}: {names:?}");
    }
    // The only file is cut.
    let path = model.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..1000]).unwrap();
    let answer = inspect(model.path(), &[]);
    assert_eq!((answer.code, &answer.json()["shards"]), (1, &json!({"named": 1, "present": 0})));
}

#[test]
fn missing_small_files_are_told() {
    let model = model_copy();
    for name in ["tokenizer_config.json", "generation_config.json"] {
        fs::remove_file(model.path().join(name)).unwrap();
        let seen = inspect(model.path(), &[]).good();
        assert!(seen["notes"].to_string().contains(&format!("{name} is not there")), "{seen}");
    }
    fs::write(model.path().join("tiktoken.model"), "no base64\n").unwrap();
    let seen = inspect(model.path(), &[]);
    assert!(seen.code == 1 && seen.json()["problems"][0].as_str().unwrap().contains("tiktoken.model line 1"));
    fs::remove_file(model.path().join("tiktoken.model")).unwrap();
    let seen = inspect(model.path(), &[]);
    assert!(seen.code == 1 && seen.json()["complete"] == false, "{}", seen.stdout);
    assert!(seen.json()["problems"][0].as_str().unwrap().contains("tiktoken.model is not in"));
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
    let path = shard_of(&model, 2);
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
