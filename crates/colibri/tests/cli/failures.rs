//! What is wrong with a model is said by kind and by name.
#[cfg(unix)]
use crate::common::program;
use crate::common::{colibri, edit_json, model_copy, text_of};
use serde_json::json;
use std::fs;

const RUN: [&str; 5] = ["run", "Once", "--json", "--max-tokens", "2"];

#[test]
fn a_directory_that_is_none() {
    let (kind, message) = colibri(&[&RUN[..], &["--model", "no/such/place"]].concat()).error(1);
    assert!(kind == "checkpoint" && message.contains("no/such/place"), "{message}");
}

#[test]
fn broken_models() {
    let model = model_copy();
    let place = ["--model", text_of(model.path())];
    let run = || colibri(&[&RUN[..], &place].concat()).error(1);
    let config = model.path().join("config.json");
    let sound = fs::read(&config).unwrap();

    edit_json(&config, |value| value["text_config"]["hidden_size"] = json!(191));
    let (kind, message) = run();
    assert!(kind == "config" && message.contains("hidden_size"), "{message}");
    assert!(message.starts_with(&format!("{}: config.json", place[1])), "{message}");
    edit_json(&config, |value| *value = json!({"model_type": "llama"}));
    let (kind, message) = run();
    assert!(kind == "config" && message.contains("llama") && message.contains("kimi_k3"), "{message}");
    assert_eq!(colibri(&["inspect", "--json", place[0], place[1]]).error(1).0, "config");
    fs::write(&config, sound).unwrap();

    let tokenizer = model.path().join("tiktoken.model");
    let sound = fs::read(&tokenizer).unwrap();
    fs::write(&tokenizer, "no base64\n").unwrap();
    let (kind, message) = run();
    assert!(
        kind == "tokenizer" && message.contains(&format!("{}: tiktoken.model line 1", place[1])),
        "{message}"
    );
    fs::remove_file(&tokenizer).unwrap();
    let (kind, message) = run();
    assert!(kind == "checkpoint" && message.contains("tiktoken.model"), "{message}");
    fs::write(&tokenizer, sound).unwrap();

    let shard = model.path().join("model-00005-of-000012.safetensors");
    let sound = fs::read(&shard).unwrap();
    fs::write(&shard, &sound[..sound.len() - 10]).unwrap();
    let (kind, message) = run();
    assert!(
        kind == "checkpoint" && message.contains("model-00005-of-000012.safetensors is cut"),
        "{message}"
    );
    fs::remove_file(&shard).unwrap();
    let (kind, message) = run();
    assert!(kind == "checkpoint" && message.contains("model-00005-of-000012.safetensors"), "{message}");
    // It is there, by another name.
    fs::write(model.path().join("shard5.safetensors"), sound).unwrap();
    let (_, message) = run();
    assert!(message.contains("shard5.safetensors is ignored: the index does not name it"), "{message}");
}

#[test]
fn directories_that_are_not_what_was_meant() {
    let (_, message) = colibri(&[&RUN[..], &["--model", "one,two"]].concat()).error(1);
    assert!(message.contains("give --model once for each directory"), "{message}");
    let (model, empty) = (model_copy(), tempfile::tempdir().unwrap());
    let places = ["--model", text_of(model.path()), "--model", text_of(empty.path())];
    let answer = colibri(&[&RUN[..], &places].concat());
    answer.good();
    let note = format!("note: --model {} holds no shard of this model", places[3]);
    assert!(answer.stderr.contains(&note), "{}", answer.stderr);
    let (kind, message) = colibri(&["verify", "--json", "--golden", "no/such/place"]).error(1);
    assert!(kind == "io" && message.contains("no/such/place/golden.json"), "{message}");
    assert!(message.contains("--golden expects a directory with golden.json"), "{message}");
}

/// Runs with standard output going to this file or stream.
#[cfg(target_os = "linux")]
fn into(out: std::process::Stdio, arguments: &[&str]) -> (Option<i32>, String) {
    let output = program().args(arguments).stdout(out).stderr(std::process::Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_is_full_is_a_failure_with_a_word() {
    for run in [&RUN[..], &["run", "Once", "--max-tokens", "2"], &["inspect"], &["inspect", "--json"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, told) = into(full.into(), run);
        assert!(code == Some(1) && told.contains("error: writing to standard output"), "{code:?} {told}");
    }
}

#[test]
fn a_scale_that_is_none_stops_the_run_by_name() {
    let model = model_copy();
    let path = model.path().join("model-00006-of-000012.safetensors");
    let mut shard = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    let table: serde_json::Value = serde_json::from_slice(&shard[8..8 + header]).unwrap();
    for (name, tensor) in table.as_object().unwrap() {
        if name.ends_with("weight_scale") {
            shard[8 + header + tensor["data_offsets"][0].as_u64().unwrap() as usize] = 255;
        }
    }
    fs::write(&path, shard).unwrap();
    // Found while all experts are loaded, or when a token picks one.
    for cache in ["all", "8x"] {
        let run = [&RUN[..], &["--model", text_of(model.path()), "--expert-cache", cache]].concat();
        let (kind, message) = colibri(&run).error(1);
        assert_eq!(kind, "expert", "{message}");
        assert!(message.contains("layer 5 expert") && message.contains("255"), "{message}");
    }
}

#[test]
fn without_json_an_error_goes_to_the_other_stream() {
    let answer = colibri(&["run", "x", "--model", "no/such/place"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (1, ""));
    assert!(answer.stderr.starts_with("error: the model directory no/such/place"), "{}", answer.stderr);
}
