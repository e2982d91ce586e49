//! `verify`: passes where it should, and fails where something was changed.
use crate::common::{colibri, data, edit_json, text_of};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A golden directory with one prompt of the tiny model's.
fn story() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["golden.json", "story.safetensors"] {
        fs::copy(data("k3-tiny/golden").join(name), folder.path().join(name)).unwrap();
    }
    edit_json(&folder.path().join("golden.json"), |all| {
        all["prompts"].as_array_mut().unwrap().retain(|prompt| prompt["name"] == "story");
    });
    folder
}

fn verify(golden: &Path, more: &[&str]) -> crate::common::Answer {
    colibri(&[&["verify", "--json", "--golden", text_of(golden)], more].concat())
}

#[test]
fn the_goldens_pass_in_both_modes() {
    let golden = data("k3-tiny/golden");
    let exact = verify(&golden, &["--activations", "exact"]).good();
    assert_eq!(exact["passed"], true);
    for kind in ["logits", "hidden", "kda_state", "kda_conv", "mla_latent", "mla_krope", "router_weights"] {
        let worst = &exact["tensors"][kind];
        assert!(worst["compared"].as_u64().unwrap() > 0 && worst["limit"] == json!(1e-5), "{kind}: {worst}");
        assert!(worst["relative"].as_f64().unwrap() < 1e-5, "{kind}: {worst}");
    }
    assert_eq!(exact["router_picks"], json!({"compared": 1312, "different": 0, "first": null}));
    assert_eq!(exact["greedy_prompts"]["compared"], 4);
    let int15 = verify(&golden, &[]).good();
    assert_eq!(int15["passed"], true);
    assert_eq!(
        (&int15["tensors"]["logits"]["limit"], &int15["tensors"]["hidden"]["limit"]),
        (&json!(5e-4), &Value::Null)
    );
    assert!(int15["tensors"]["logits, router gap < 1e-4"]["compared"].as_u64().unwrap() > 0);
}

#[test]
fn doctored_goldens_fail() {
    let doctored = story();
    let passes = verify(doctored.path(), &["--activations", "exact", "--expert-cache", "8x"]);
    assert_eq!(passes.good()["passed"], true);
    edit_json(&doctored.path().join("golden.json"), |all| all["prompts"][0]["greedy_ids"][5] = json!(1));
    let failed = verify(doctored.path(), &["--activations", "exact"]);
    assert_eq!(failed.code, 1);
    assert_eq!(failed.json()["passed"], false);
    assert_eq!(failed.json()["greedy_prompts"]["first"], "story token 5");

    let doctored = story();
    let path = doctored.path().join("story.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // Somewhere in the middle of some tensor: one exponent is another.
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = table["logits"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[8 + header + start + 403] ^= 0x01;
    fs::write(&path, bytes).unwrap();
    for mode in ["exact", "int15"] {
        let failed = verify(doctored.path(), &["--activations", mode]);
        assert_eq!(failed.code, 1, "{mode}");
        assert_eq!(failed.json()["tensors"]["logits"]["at"], "story position 0", "{mode}");
    }
    let table = colibri(&["verify", "--golden", text_of(doctored.path())]);
    assert_eq!(table.code, 1);
    assert!(table.stdout.contains("FAILED") && table.stdout.contains("story position 0"), "{}", table.stdout);
}

#[test]
fn goldens_of_another_model_or_none_are_refused() {
    let other = story();
    edit_json(&other.path().join("golden.json"), |all| all["prompts"][0]["ids"][0] = json!(4096));
    let (kind, message) = verify(other.path(), &[]).error(1);
    assert!(kind == "golden" && message.contains("4096"), "{message}");
    edit_json(&other.path().join("golden.json"), |all| all["prompts"][0]["ids"] = json!([1, 2]));
    let (kind, message) = verify(other.path(), &[]).error(1);
    assert!(kind == "golden" && message.contains("router_gap"), "{message}");
    edit_json(&other.path().join("golden.json"), |all| all["prompts"][0]["file"] = json!("../x"));
    assert_eq!(verify(other.path(), &[]).error(1).0, "golden");
    edit_json(&other.path().join("golden.json"), |all| all["prompts"] = json!([]));
    assert_eq!(verify(other.path(), &[]).error(1).0, "golden");
    fs::remove_file(other.path().join("golden.json")).unwrap();
    assert_eq!(verify(other.path(), &[]).error(1).0, "io");
}

#[test]
fn settings_without_limits_are_refused() {
    for more in [["--activations", "int8"], ["--dense", "int8"], ["--expert-top-p", "0.5"], ["--layers", "3"]]
    {
        let (kind, message) = verify(&data("k3-tiny/golden"), &more).error(2);
        assert!(kind == "usage" && message.contains(more[0]), "{message}");
    }
}

#[test]
fn checked_ops_differ_in_no_bit() {
    let run =
        ["verify", "--checked", "Once there was a bear", "--chunk", "3", "--expert-cache", "16x", "--json"];
    for more in
        [&["--activations", "int15"][..], &["--activations", "exact", "--dense", "int4", "--threads", "1"]]
    {
        let answer = colibri(&[&run, more].concat()).good();
        assert_eq!((&answer["passed"], &answer["mismatch"]), (&json!(true), &Value::Null));
        let ops = answer["ops"].as_object().unwrap();
        assert!(ops.len() >= 17, "{ops:?}");
        for (op, worst) in ops {
            assert!(worst["count"].as_u64().unwrap() > 0, "{op}");
            assert_eq!((&worst["relative"], &worst["absolute"]), (&json!(0.0), &json!(0.0)), "{op}");
        }
    }
    let fewer = colibri(&["verify", "--checked", "--ids", "1,2", "--layers", "3"]);
    assert_eq!(fewer.code, 0);
    assert!(fewer.stdout.contains("passed") && !fewer.stdout.contains("attend_latent"), "{}", fewer.stdout);
}
