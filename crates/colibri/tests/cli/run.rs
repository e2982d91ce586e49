//! `run`: the right tokens, the same whatever changes no bit, and text as it should come.
#[cfg(target_os = "linux")]
use crate::common::started;
use crate::common::{PROMPTS, colibri, colibri_with, data, golden, listed, model_copy, numbers, text_of};
use serde_json::Value;
use std::fs;

const STORY: &str = "Once there was a bear who loved";
const GREEDY: [&str; 4] = ["--temperature", "0", "--activations", "exact"];

/// Runs a golden prompt greedily, for so many tokens.
fn greedy(name: &str, tokens: usize, more: &[&str]) -> Value {
    let (ids, count) = (listed(&golden(name).0), tokens.to_string());
    let base =
        [&["run", "--json", "--ignore-eos", "--ids", &ids, "--max-tokens", &count], &GREEDY[..]].concat();
    colibri(&[&base, more].concat()).good()
}

#[test]
fn greedy_ids_equal_the_goldens() {
    for name in PROMPTS {
        let answer = greedy(name, 32, &[]);
        assert_eq!(numbers(&answer["prompt_ids"]), golden(name).0);
        assert_eq!(numbers(&answer["ids"]), golden(name).1, "{name}");
        assert_eq!(answer["finish"], "length");
    }
}

#[test]
fn a_model_in_a_directory_equals_the_embedded_one() {
    let here = data("k3-tiny");
    let answer = greedy("mixed", 32, &["--model", text_of(&here)]);
    assert_eq!(numbers(&answer["ids"]), golden("mixed").1);
    assert_eq!(answer["text"], greedy("mixed", 32, &[])["text"]);
    assert_eq!(answer["settings"]["model"], serde_json::json!([text_of(&here)]));
}

#[test]
fn a_model_may_be_split_over_directories() {
    let (first, second) = (model_copy(), tempfile::tempdir().unwrap());
    for shard in ["model-00004-of-000012.safetensors", "model-00010-of-000012.safetensors"] {
        fs::rename(first.path().join(shard), second.path().join(shard)).unwrap();
    }
    let places = ["--model", text_of(first.path()), "--model", text_of(second.path())];
    assert_eq!(numbers(&greedy("story", 32, &places)["ids"]), golden("story").1);
}

/// Of a model on disk; where nothing of it stays and where much does.
#[test]
fn however_experts_are_read_the_tokens_are_the_same() {
    let (first, second) = (model_copy(), model_copy());
    let (first, second) = (text_of(first.path()), text_of(second.path()));
    for more in [
        &["--io", "direct"][..],
        &["--io", "direct", "--readers", "1"],
        &["--io", "buffered"],
        &["--mirror", second],
        &["--mirror", second, "--io", "buffered", "--readers", "1"],
    ] {
        for cache in ["2x", "60x", "all"] {
            let all = [&["--model", first, "--expert-cache", cache], more].concat();
            let answer = greedy("chat_plain", 12, &all);
            assert_eq!(numbers(&answer["ids"]), golden("chat_plain").1[..12], "{all:?}");
            let experts = &answer["stats"]["experts"];
            let number = |key: &str| experts[key].as_u64().unwrap();
            assert!(
                number("bytes_read") >= number("bytes_demanded") + number("bytes_guessed_used"),
                "{experts}"
            );
            assert_eq!(experts["disk_busy"].is_null(), cache == "all", "{experts}");
        }
    }
}

/// Many containers forbid `io_uring`; then the program says what to do instead. With `COLIBRI_TEST_URING` it must be there.
#[cfg(target_os = "linux")]
#[test]
fn uring_gives_the_same_tokens_or_is_refused_by_name() {
    let (folder, ids) = (model_copy(), listed(&golden("chat_plain").0));
    let base = ["run", "--json", "--ignore-eos", "--ids", &ids, "--max-tokens", "12", "--io", "uring"];
    let place = ["--model", text_of(folder.path()), "--expert-cache", "40x"];
    let answer = colibri(&[&base[..], &place, &GREEDY].concat());
    if answer.code == 0 || std::env::var_os("COLIBRI_TEST_URING").is_some() {
        assert_eq!(numbers(&answer.good()["ids"]), golden("chat_plain").1[..12]);
    } else {
        let told = answer.json()["error"]["message"].to_string();
        assert!(told.contains("gives no io_uring for reads of experts; take --io direct"), "{told}");
    }
}

#[test]
fn a_mirror_that_is_none_is_refused_by_name() {
    let (model, other) = (model_copy(), model_copy());
    fs::remove_file(other.path().join("model-00004-of-000012.safetensors")).unwrap();
    let run = |mirror: &str| {
        let answer = colibri(&["run", "x", "--model", text_of(model.path()), "--mirror", mirror, "--json"]);
        answer.error(1).1
    };
    let told = run(text_of(other.path()));
    assert!(
        told.contains("model-00004-of-000012.safetensors is not in") && told.contains("--mirror"),
        "{told}"
    );
    assert!(run(text_of(model.path())).contains("are one file"));
    assert!(run("/absent-mirror").contains("/absent-mirror"));
}

#[test]
fn what_changes_no_bit_changes_no_token() {
    for more in [
        &["--expert-cache", "1x"][..],
        &["--expert-cache", "8x", "--readers", "1"],
        &["--expert-cache", "40x", "--look-ahead", "off"],
        &["--expert-cache", "40x", "--look-ahead", "64"],
        &["--expert-cache", "40x", "--overlap", "off"],
        &["--expert-cache", "all", "--readers", "9"],
        &["--chunk", "1"],
        &["--chunk", "5", "--threads", "3"],
        &["--threads", "1", "--context", "128"],
    ] {
        let answer = greedy("chat_plain", 12, more);
        assert_eq!(numbers(&answer["ids"]), golden("chat_plain").1[..12], "{more:?}");
        let experts = &answer["stats"]["experts"];
        if more[1] == "1x" {
            assert_eq!(experts["slots"], 1);
            assert!(experts["hit_rate"].as_f64().unwrap() < 1.0 && experts["misses"].as_u64().unwrap() > 0);
            // One slot: nothing is read twice for a miss, and nothing without one.
            assert_eq!(experts["bytes_read"].as_u64().unwrap(), experts["misses"].as_u64().unwrap() * 9792);
            assert_eq!(experts["preloaded_bytes"], 0);
        }
        if more[1] == "all" {
            assert_eq!((&experts["slots"], &experts["hit_rate"]), (&256.into(), &Value::Null));
            assert_eq!(
                (&experts["preloaded_bytes"], &experts["bytes_read"]),
                (&(256 * 9792).into(), &0.into())
            );
        }
    }
}

#[test]
fn guesses_are_counted_and_save_waits() {
    let run = |look_ahead| greedy("chat_plain", 24, &["--expert-cache", "40x", "--look-ahead", look_ahead]);
    let (off, auto) = (run("off"), run("auto"));
    let misses = |answer: &Value| answer["stats"]["experts"]["misses"].as_u64().unwrap();
    assert!(misses(&auto) < misses(&off), "{} of {} misses are left", misses(&auto), misses(&off));
    assert_eq!(off["stats"]["experts"]["guesses"], Value::Null);
    let guesses = &auto["stats"]["experts"]["guesses"];
    let precision: Vec<f64> =
        guesses["precision"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
    assert_eq!(precision.len(), 4, "one for each rank");
    assert!(precision[0] > 0.8 && precision[0] > precision[3], "{precision:?}");
    assert!(guesses["right"].as_u64().unwrap() < guesses["made"].as_u64().unwrap());
}

#[test]
fn what_reads_do_meanwhile_is_refused_where_it_is_nothing() {
    let without = ["--expert-cache", "40x", "--overlap", "off", "--look-ahead", "4"];
    let (kind, message) =
        colibri(&[&["run", "Once", "--json", "--max-tokens", "1"], &without[..]].concat()).error(2);
    assert!(
        kind == "usage" && message.starts_with("--look-ahead has no effect without overlap"),
        "{message}"
    );
    let resident = colibri(&["run", "Once", "--max-tokens", "1", "--look-ahead", "4"]);
    let note = "note: --look-ahead has no effect: all experts stay in memory";
    assert!(resident.code == 0 && resident.stderr.contains(note), "{}", resident.stderr);
}

#[test]
fn the_text_is_continued_as_it_is() {
    let answer = colibri(&[&["run", STORY, "--json", "--max-tokens", "32"], &GREEDY[..]].concat()).good();
    assert_eq!(numbers(&answer["prompt_ids"]), golden("story").0, "no token before the text");
    let text = answer["text"].as_str().unwrap();
    assert!(text.starts_with(" very much. He had a cozy home"), "{text}");
    let from_input =
        colibri_with(&[&["run", "-", "--json", "--max-tokens", "32"], &GREEDY[..]].concat(), STORY).good();
    assert_eq!((&from_input["ids"], &from_input["text"]), (&answer["ids"], &answer["text"]));
    let live = colibri(&[&["run", STORY, "--max-tokens", "32"], &GREEDY[..]].concat());
    assert_eq!((live.code, live.stdout), (0, format!("{text}\n")));
}

#[test]
fn the_end_token_ends_the_text_and_control_tokens_are_no_text() {
    let ids = listed(&golden("chat_plain").0);
    let stopped = colibri(&["run", "--json", "--ids", &ids, "--temperature", "0"]).good();
    assert_eq!(stopped["finish"], "stop");
    let wanted: Vec<u32> = golden("chat_plain").1.into_iter().take_while(|id| *id != 3842).collect();
    assert_eq!(numbers(&stopped["ids"]), wanted);
    // <|close|>response<|sep|><|close|>message<|sep|>: names stay, control tokens go.
    assert_eq!(stopped["text"], "7 plus 5 is 12.responsemessage");
    let gone_on = colibri(&[
        "run",
        "--json",
        "--ids",
        &ids,
        "--temperature",
        "0",
        "--ignore-eos",
        "--max-tokens",
        "20",
    ]);
    let gone_on = gone_on.good();
    assert_eq!((numbers(&gone_on["ids"]).len(), &gone_on["finish"]), (20, &"length".into()));
}

#[test]
fn a_seed_gives_the_same_text_again_and_is_always_told() {
    let run =
        |more: &[&str]| colibri(&[&["run", "Once", "--json", "--max-tokens", "24"], more].concat()).good();
    let (seven, eight) = (run(&["--seed", "7"]), run(&["--seed", "8"]));
    assert_eq!(seven["ids"], run(&["--seed", "7", "--chunk", "3"])["ids"]);
    assert_ne!(seven["ids"], eight["ids"]);
    let unknown = run(&[]);
    let seed = unknown["settings"]["seed"].as_u64().unwrap().to_string();
    assert_eq!(run(&["--seed", &seed])["ids"], unknown["ids"]);
}

#[test]
fn a_full_context_ends_the_answer_and_is_announced() {
    let answer = colibri(&["run", STORY, "--json", "--ignore-eos", "--context", "16", "--max-tokens", "99"]);
    let json = answer.good();
    assert_eq!((numbers(&json["ids"]).len(), &json["finish"]), (9, &"length".into()));
    assert!(
        answer
            .stderr
            .contains("the context of 16 positions ends the answer after 9 tokens; --context sets it"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_context_that_cannot_grow_is_not_said_to() {
    let answer = colibri(&["run", STORY, "--max-tokens", "1", "--context", "4096"]);
    assert!(!answer.stderr.contains("ends the answer"), "{}", answer.stderr);
    let run = ["run", STORY, "--json", "--max-tokens", "5000", "--temperature", "0"];
    let answer = colibri(&run);
    assert!(
        answer.stderr.contains("ends the answer after 4089 tokens; this model reaches no further"),
        "{}",
        answer.stderr
    );
}

#[test]
fn plan_settings_and_summary_are_told() {
    let answer = colibri(&["run", STORY, "--max-tokens", "4", "--expert-top-p", "0.5"]);
    for wanted in [
        "settings: activations int15, cache-policy lfu, check-experts false, chunk 512,",
        " expert-top-p 0.5,",
        " ignore-eos false,",
        " model embedded k3-tiny,",
        " stop-ids 3842,",
        "planned memory (weights are read, not mapped):",
        "dense weights",
        "routed experts, 256 slots",
        "in all",
        "note: dense weights: bf16",
        "note: lossy: --expert-top-p 0.5",
        "loaded in",
        "prefill 7 tokens",
        "decode 3 tokens",
        "memory: planned",
    ] {
        assert!(answer.stderr.contains(wanted), "{wanted}: {}", answer.stderr);
    }
    let settings = answer.stderr.lines().take_while(|line| !line.starts_with("planned")).collect::<Vec<_>>();
    assert!(settings.len() > 1 && settings.iter().all(|line| line.len() <= 80), "{settings:?}");
    let summary = |more: &[&str]| colibri(&[&["run"], more].concat()).stderr;
    let one = summary(&["--ids", "576", "--max-tokens", "1"]);
    assert!(one.contains("prefill 1 token, ") && one.contains("; decode 0 tokens; "), "{one}");
    let two = summary(&["--ids", "576", "--max-tokens", "2", "--temperature", "0"]);
    assert!(two.contains("; decode 1 token, "), "{two}");
    assert!(!answer.stderr.contains('{') && !answer.stderr.contains("null"), "{}", answer.stderr);
    let stats = &colibri(&["run", STORY, "--json", "--max-tokens", "4", "--ignore-eos"]).good()["stats"];
    assert_eq!((&stats["prefill"]["tokens"], &stats["decode"]["tokens"]), (&7.into(), &3.into()));
    for place in ["/seconds/attention", "/seconds/moe", "/seconds/head", "/seconds/load", "/prefill/seconds"]
    {
        assert!(stats.pointer(place).unwrap().as_f64().unwrap() > 0.0, "{place}: {stats}");
    }
    assert!(stats["memory"]["planned_bytes"].as_u64().unwrap() > 20_000_000, "{stats}");
}

#[test]
fn the_summary_says_where_experts_are() {
    for (arguments, wanted) in [
        (&["run", "Once", "--max-tokens", "2"][..], "experts: all resident, 2.51 MB read while loading;"),
        (&["run", "Once", "--max-tokens", "2", "--expert-cache", "9x"], " % hits, "),
        (&["logits", "--ids", "1", "--layers", "1", "--out"], "experts: none in the layers in use;"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("logits");
        let more = if arguments[0] == "logits" { &[text_of(&out)][..] } else { &[] };
        let answer = colibri(&[arguments, more].concat());
        assert_eq!(answer.code, 0, "{}", answer.stderr);
        assert!(answer.stderr.contains(wanted), "{wanted}: {}", answer.stderr);
    }
}

#[test]
fn a_cache_smaller_than_an_expert_has_one_slot() {
    for size in ["1KB", "0.000001%"] {
        let run = ["run", "Once", "--json", "--max-tokens", "2", "--expert-cache", size];
        let answer = colibri(&run);
        assert_eq!(answer.good()["stats"]["experts"]["slots"], 1, "{size}");
        let note = answer.stderr.lines().find(|line| line.starts_with("note: --expert-cache")).unwrap();
        assert!(note.contains("takes 65.54 kB; one slot is used"), "{note}");
    }
    let enough = colibri(&["run", "Once", "--max-tokens", "2", "--expert-cache", "66kB"]);
    assert!(!enough.stderr.contains("note: --expert-cache"), "{}", enough.stderr);
}

/// The pool that libraries share exists from the start, as large as asked for: without it they would make one of their
/// own with a thread for each core.
#[cfg(target_os = "linux")]
#[test]
fn shared_threads_are_as_many_as_asked() {
    for count in ["1", "3"] {
        let run =
            ["run", "Once", "--ignore-eos", "--max-tokens", "4000", "--dense", "int4", "--threads", count];
        let (mut child, _) = started(&run);
        let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
        let shared = names.filter(|name| name.starts_with("shared-")).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shared.to_string(), count);
    }
}
