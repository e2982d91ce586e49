//! Every flag acts: it shows in the settings, or it is refused. Defaults come from the model.
use crate::common::{colibri, edit_json, model_copy, numbers, text_of};
use serde_json::{Value, json};
use std::fs;

fn settings(arguments: &[&str]) -> Value {
    let base = ["run", "Once", "--json", "--max-tokens", "1"];
    colibri(&[&base, arguments].concat()).good()["settings"].clone()
}

#[test]
fn defaults_are_told() {
    let all = settings(&[]);
    for (key, value) in [
        ("numerics_version", json!(1)),
        ("model", json!(["embedded k3-tiny"])),
        ("family", json!("kimi_k3")),
        ("device", json!("cpu")),
        ("activations", json!("int15")),
        ("dense", json!("bf16")),
        ("layers", Value::Null),
        ("expert_top_p", json!(1.0)),
        ("chunk", json!(512)),
        ("context", json!(4096)),
        ("expert_cache", json!("auto")),
        ("io", json!("direct")),
        ("mirror", json!([])),
        ("readers", json!(4)),
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("top_k", json!(0)),
        ("min_p", json!(0.0)),
        ("logit_bias", json!({})),
        ("repeat_penalty", json!(1.0)),
        ("presence_penalty", json!(0.0)),
        ("frequency_penalty", json!(0.0)),
        ("stop", json!([])),
        ("logprobs", Value::Null),
        ("ignore_eos", json!(false)),
        ("stop_ids", json!([3842])),
    ] {
        assert_eq!(all[key], value, "{key}");
    }
    assert!(all["threads"].as_u64().unwrap() >= 1);
}

#[test]
fn every_flag_shows() {
    for (flag, value, key, shown) in [
        ("--temperature", "0.5", "temperature", json!(0.5)),
        ("--top-p", "0.9", "top_p", json!(0.9)),
        ("--top-k", "40", "top_k", json!(40)),
        ("--min-p", "0.05", "min_p", json!(0.05)),
        ("--seed", "18446744073709551615", "seed", json!(u64::MAX)),
        ("--logit-bias", "5=2.3,17=-100", "logit_bias", json!({"5": 2.3, "17": -100.0})),
        ("--repeat-penalty", "1.3", "repeat_penalty", json!(1.3)),
        ("--presence-penalty", "-0.4", "presence_penalty", json!(-0.4)),
        ("--frequency-penalty", "2", "frequency_penalty", json!(2.0)),
        ("--stop", "- and on", "stop", json!(["- and on"])),
        ("--logprobs", "20", "logprobs", json!(20)),
        ("--chunk", "7", "chunk", json!(7)),
        ("--context", "300", "context", json!(300)),
        ("--expert-cache", "512KiB", "expert_cache", json!("524288B")),
        ("--expert-cache", "40x", "expert_cache", json!("40x")),
        ("--expert-cache", "25%", "expert_cache", json!("25%")),
        ("--expert-cache", "all", "expert_cache", json!("all")),
        ("--io", "buffered", "io", json!("buffered")),
        ("--readers", "2", "readers", json!(2)),
        ("--threads", "3", "threads", json!(3)),
        ("--activations", "int8", "activations", json!("int8")),
        ("--activations", "exact", "activations", json!("exact")),
        ("--dense", "int4", "dense", json!("int4")),
        ("--dense", "int8", "dense", json!("int8")),
        ("--expert-top-p", "0.75", "expert_top_p", json!(0.75)),
    ] {
        assert_eq!(settings(&[flag, value])[key], shown, "{flag} {value}");
    }
    let ignoring = settings(&["--ignore-eos"]);
    assert_eq!((&ignoring["ignore_eos"], &ignoring["stop_ids"]), (&json!(true), &json!([])));
    let seven = colibri(&["run", "Once", "--json", "--max-tokens", "7", "--ignore-eos"]).good();
    assert_eq!((&seven["settings"]["max_tokens"], numbers(&seven["ids"]).len()), (&json!(7), 7));
}

#[test]
fn what_changes_numbers_changes_them() {
    let ids = |more: &[&str]| {
        let base =
            ["run", "Once upon a time", "--json", "--max-tokens", "40", "--temperature", "0", "--ignore-eos"];
        colibri(&[&base, more].concat()).good()["ids"].clone()
    };
    let plain = ids(&[]);
    assert_ne!(plain, ids(&["--dense", "int4"]));
    assert_ne!(plain, ids(&["--expert-top-p", "0.3"]));
}

#[test]
fn the_models_own_defaults_hold_until_a_flag_is_given() {
    let model = model_copy();
    let generation = model.path().join("generation_config.json");
    let place = ["--model", text_of(model.path())];
    let with = |more: &[&str]| settings(&[&place, more].concat());
    edit_json(&generation, |value| {
        *value = json!({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01,
            "repetition_penalty": 1.05, "eos_token_id": [3842, 3844]});
    });
    let own = with(&["--temperature", "0.7"]);
    let keys = ["temperature", "top_p", "top_k", "min_p", "stop_ids", "repeat_penalty"];
    assert_eq!(json!(keys.map(|key| &own[key])), json!([0.7, 0.95, 20, 0.01, [3842, 3844], 1.05]));
    assert_eq!(with(&["--repeat-penalty", "1"])["repeat_penalty"], json!(1.0), "the flag goes before it");
    assert_eq!(with(&["--temperature", "0"])["repeat_penalty"], json!(1.05), "it acts without a draw too");
    assert_eq!(own["max_tokens"], 1);
    edit_json(&generation, |value| value["max_new_tokens"] = json!(3));
    let run = ["run", "Once", "--json", "--temperature", "0", "--ignore-eos", place[0], place[1]];
    assert_eq!(colibri(&run).good()["settings"]["max_tokens"], 3);
    assert_eq!(with(&[])["max_tokens"], 1, "the flag goes before the default");
    edit_json(&generation, |value| value["max_new_tokens"] = json!(0));
    let (kind, message) = colibri(&run).error(1);
    assert!(
        kind == "config" && message.contains("max_new_tokens") && message.contains(place[1]),
        "{message}"
    );
    edit_json(&generation, |value| value["max_new_tokens"] = Value::Null);
    let greedy = with(&["--temperature", "0"]);
    assert_eq!((&greedy["top_p"], &greedy["seed"]), (&json!(1.0), &Value::Null));

    edit_json(&generation, |value| *value = json!({"do_sample": false, "temperature": 0.6}));
    assert_eq!(with(&[])["temperature"], json!(0.0));
    assert_eq!(with(&[])["stop_ids"], json!([3842]), "of config.json");
    let refused = colibri(&["run", "x", "--json", "--top-k", "5", place[0], place[1]]).error(2).1;
    assert!(refused.contains("--top-k") && refused.contains("do_sample false"), "{refused}");

    fs::remove_file(&generation).unwrap();
    edit_json(&model.path().join("config.json"), |value| {
        value["text_config"]["eos_token_id"] = Value::Null;
        value["eos_token_id"] = json!(3843);
    });
    assert_eq!(with(&[])["stop_ids"], json!([3843]), "of the top of config.json");
    edit_json(&model.path().join("config.json"), |value| value["eos_token_id"] = Value::Null);
    let answer = colibri(&["run", "Once", "--max-tokens", "1", place[0], place[1]]);
    assert!(answer.stderr.contains("the model names no token that ends a text"), "{}", answer.stderr);
}

#[test]
fn defaults_that_are_none_are_named() {
    let model = model_copy();
    let place = text_of(model.path());
    for (key, value) in [
        ("do_sample", json!("yes")),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_k", json!(-1)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!("much")),
        ("eos_token_id", json!("<|end|>")),
        ("eos_token_id", json!([1, 2.5])),
        ("eos_token_id", json!([3842, 4096])),
        ("eos_token_id", json!(-1)),
    ] {
        fs::copy(
            crate::common::data("k3-tiny/generation_config.json"),
            model.path().join("generation_config.json"),
        )
        .unwrap();
        edit_json(&model.path().join("generation_config.json"), |all| all[key] = value.clone());
        let (kind, message) = colibri(&["run", "x", "--json", "--model", place]).error(1);
        assert_eq!(kind, "config", "{message}");
        assert!(message.contains("generation_config.json") && message.contains(key), "{message}");
        assert!(message.contains(&value.to_string()), "{message}");
    }
}
