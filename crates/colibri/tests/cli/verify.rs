//! `verify`: passes where it should, and fails where something was changed.
use crate::common::{colibri, data, edit_json, text_of};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
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
    // All positions of two prompts with all logits, and the last of four; no close choice of a router is let off.
    assert_eq!(int15["tensors"]["logits"]["compared"], 7 + 96 + 4);
    for seen in [&exact, &int15] {
        // Beside these, the golden continuations: 4 of 32 tokens, all but one with a margin above 0.01.
        let argmax = &seen["argmax"];
        assert!(argmax["compared"].as_u64().unwrap() > 127 + 90 && argmax["different"] == 0, "{argmax}");
        assert_eq!(seen["not_compared"], json!([]));
        assert_eq!(seen["unused_tensors"], json!(["final_norm_out", "router_gap"]));
    }
}

/// One sequence at a time is planned for, and what is planned is enough.
#[test]
fn a_context_as_long_as_needed_is_enough() {
    let golden = data("k3-tiny/golden");
    assert_eq!(verify(&golden, &["--context", "192"]).good()["passed"], true);
    assert_eq!(verify(&golden, &["--context", "128"]).good()["passed"], true);
    let (kind, message) = verify(&golden, &["--context", "127"]).error(2);
    assert!(kind == "usage" && message.contains("128 tokens") && message.contains("--context"), "{message}");
}

/// Writes a golden file again with what `keep` leaves of its tensors.
fn rewrite(path: &Path, mut keep: impl FnMut(&str, TensorView<'_>) -> Option<(Dtype, Vec<usize>, Vec<u8>)>) {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut kept = Vec::new();
    for (name, view) in tensors.tensors() {
        if let Some(tensor) = keep(&name, view) {
            kept.push((name, tensor));
        }
    }
    let views = kept.iter().map(|(name, (dtype, shape, data))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

fn same(view: &TensorView<'_>) -> (Dtype, Vec<usize>, Vec<u8>) {
    (view.dtype(), view.shape().to_vec(), view.data().to_vec())
}

#[test]
fn what_golden_files_lack_is_told_and_nothing_at_all_fails() {
    let folder = story();
    let path = folder.path().join("story.safetensors");
    rewrite(&path, |name, view| (name == "logits").then(|| same(&view)));
    let little = verify(folder.path(), &["--activations", "exact"]).good();
    let missing = little["not_compared"].as_array().unwrap();
    for kind in ["hidden", "kda_state", "mla_latent", "router_weights", "router_picks"] {
        assert!(missing.contains(&json!(kind)), "{kind}: {missing:?}");
    }
    assert!(!missing.contains(&json!("logits")) && !missing.contains(&json!("argmax")), "{missing:?}");
    let table = colibri(&["verify", "--golden", text_of(folder.path())]).stdout;
    assert!(table.contains("not compared, for want of golden results: attention_input,"), "{table}");

    rewrite(&path, |_, _| None);
    edit_json(&folder.path().join("golden.json"), |all| {
        let prompt = all["prompts"][0].as_object_mut().unwrap();
        prompt.remove("greedy_ids");
        prompt.remove("greedy_top5");
    });
    for mode in ["exact", "int15"] {
        let nothing = verify(folder.path(), &["--activations", mode]);
        assert_eq!((nothing.code, &nothing.json()["passed"]), (1, &json!(false)));
    }
    let table = colibri(&["verify", "--golden", text_of(folder.path())]).stdout;
    assert!(table.contains("FAILED: nothing was compared"), "{table}");
}

/// A golden token whose margin is large is another one: in both modes this fails, though no number is off by more than
/// the limit.
#[test]
fn another_likeliest_token_fails_in_int15_too() {
    let folder = story();
    edit_json(&folder.path().join("golden.json"), |all| {
        all["prompts"][0]["greedy_top5"][3][0][0] = json!(77);
    });
    let failed = verify(folder.path(), &[]);
    assert_eq!(failed.code, 1);
    let first = failed.json()["argmax"]["first"].as_str().unwrap().to_owned();
    assert!(first.starts_with("story golden token 3: token ") && first.ends_with("instead of 77"), "{first}");
}

#[test]
fn tensors_of_the_wrong_kind_are_named() {
    let spoiled = |tensor: &str, dtype: Dtype, shape: &[usize], word: u32| {
        let folder = story();
        rewrite(&folder.path().join("story.safetensors"), |name, view| {
            let count: usize = shape.iter().product();
            Some(if name == tensor {
                (dtype, shape.to_vec(), word.to_le_bytes().repeat(count))
            } else {
                same(&view)
            })
        });
        let (kind, message) = verify(folder.path(), &[]).error(1);
        assert_eq!(kind, "golden", "{message}");
        assert!(
            message.contains("story.safetensors: ") && message.contains(&format!("`{tensor}`")),
            "{message}"
        );
        message
    };
    assert!(spoiled("logits", Dtype::I32, &[7, 4096], 0).contains("is I32; expected one of [F32]"));
    assert!(spoiled("logits", Dtype::F32, &[4096, 7], 0).contains("[4096, 7], this model gives 7 x 4096"));
    assert!(spoiled("logits_last", Dtype::F32, &[0], 0).contains("[0], this model gives 1 x 4096"));
    assert!(spoiled("positions", Dtype::I32, &[0], 0).contains("[0]"));
    assert!(spoiled("positions", Dtype::I32, &[4], u32::MAX).contains("holds -1"));
    assert!(
        spoiled("positions", Dtype::I32, &[4], 7).contains("holds 7, the prompt has the positions 0 to 6")
    );
    assert!(spoiled("router_ids", Dtype::I32, &[7, 0], 0).contains("[7, 0], this model gives 7 x 32"));
    assert!(spoiled("router_ids", Dtype::I32, &[7, 8, 4], 32).contains("holds 32"));
    assert!(spoiled("ids", Dtype::I32, &[7], 1).contains("differs from the ids in golden.json"));
    spoiled("layer8.hidden", Dtype::F32, &[4, 191], 0);
    spoiled("kda_state.layer0", Dtype::F32, &[8, 32, 31], 0);
    spoiled("mla_krope.layer3", Dtype::F32, &[7, 0], 0);
    // It is not read any more.
    let folder = story();
    rewrite(&folder.path().join("story.safetensors"), |name, view| {
        Some(if name == "router_gap" { (Dtype::F32, vec![7, 0], Vec::new()) } else { same(&view) })
    });
    assert_eq!(verify(folder.path(), &[]).good()["passed"], true);
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
    assert!(kind == "golden" && message.contains("`ids`"), "{message}");
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
