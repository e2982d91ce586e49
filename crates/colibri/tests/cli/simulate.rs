//! Routing traces from the command line: written by a run, counted by `simulate`, cut, foreign and refused.
use crate::common::{Answer, colibri, model_copy, text_of};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A run of so many slots that guesses nothing and keeps what it picks in a file of `place`.
fn traced(place: &Path, name: &str, flags: &[&str]) -> (String, Answer) {
    let file = text_of(&place.join(name)).to_owned();
    let fixed = ["run", "Once upon a time there was a dog", "--max-tokens", "40", "--seed", "1", "--json"];
    let trace = ["--trace-routing", &file, "--look-ahead", "off"];
    let answer = colibri(&[&fixed, &trace[..], flags].concat());
    answer.good();
    (file, answer)
}

fn line<'a>(simulated: &'a Value, policy: &str, known: &str) -> &'a Value {
    let lines = simulated["results"].as_array().unwrap();
    lines.iter().find(|line| line["policy"] == policy && line["known"] == known).unwrap()
}

#[test]
fn a_simulation_counts_what_the_run_counted() {
    let place = TempDir::new().unwrap();
    for (policy, slots) in [("lru", 40), ("lfu:64", 20), ("hybrid-per-layer", 16)] {
        let cache = format!("{slots}x");
        let flags = ["--cache-policy", policy, "--expert-cache", &cache, "--chunk", "5"];
        let (file, run) = traced(place.path(), "run.routing", &flags);
        assert!(run.stderr.contains("wrote a routing trace of"), "{}", run.stderr);
        let run = run.good();
        assert_eq!(run["settings"]["cache_policy"], policy);
        let simulated =
            colibri(&["simulate", &file, "--slots", &slots.to_string(), "--policy", policy, "--json"]).good();
        let line = line(&simulated, policy, "nothing");
        for count in ["hits", "misses", "bytes_read", "hit_rate"] {
            assert_eq!(line[count], run["stats"]["experts"][count], "{policy} {count}");
        }
        assert_eq!(line["slots"], slots);
        assert!(line["regret"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn every_policy_stands_in_the_table_for_every_size() {
    let place = TempDir::new().unwrap();
    let (file, _) = traced(place.path(), "a", &[]);
    let table = colibri(&["simulate", &file, "--slots", "7,25%,64x,all,100%", "--before", &file]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    // The optimum and six policies, each as it is, with counts and with pins.
    let all = [("7 slots", 1 + 6 * 3), ("256 slots", 1 + 6 * 3)];
    for (size, count) in all {
        let section = table.stdout.split("\n\n").find(|part| part.starts_with(size)).unwrap();
        assert_eq!(section.trim_end().lines().count(), 1 + count, "{section}");
    }
    assert!(table.stdout.lines().all(|line| line.len() <= 80), "{}", table.stdout);
    // Every expert is read once where there is room for all.
    let simulated = colibri(&["simulate", &file, "--slots", "all", "--json"]).good();
    for line in simulated["results"].as_array().unwrap() {
        assert_eq!((&line["regret"], &line["evictions"]), (&0.0.into(), &0.into()));
    }
}

#[test]
fn traces_that_cannot_be_used_are_named() {
    let place = TempDir::new().unwrap();
    let (file, _) = traced(place.path(), "whole", &[]);
    let bytes = fs::read(&file).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        fs::write(&path, bytes).unwrap();
        text_of(&path).to_owned()
    };
    let cut = write("cut", &bytes[..bytes.len() - 3]);
    let answer = colibri(&["simulate", &cut, "--json"]);
    assert!(answer.stderr.contains("cut: the last "), "{}", answer.stderr);
    assert!(answer.good()["traces"][0]["cut_bytes"].as_u64().unwrap() > 0);

    let mut newer = bytes.clone();
    newer[8] = 9;
    let (empty, newer, foreign) =
        (write("empty", &bytes[..64]), write("newer", &newer), write("foreign", b"abc"));
    let (other, _) = traced(place.path(), "other", &["--dense", "int4"]);
    for (arguments, words) in [
        (vec!["simulate", &empty], "it holds no step"),
        (vec!["simulate", &newer], "version 9, but this program reads version 1"),
        (vec!["simulate", &foreign], "no routing trace"),
        (vec!["simulate", &file, &other], "of another model than the first trace"),
        (vec!["simulate", &file, "--before", &other], "of another model than the first trace"),
        (vec!["simulate", "absent"], "absent"),
    ] {
        let (kind, message) = colibri(&[&arguments[..], &["--json"]].concat()).error(1);
        assert!(message.contains(words), "{kind}: {message}");
    }
}

#[test]
fn flags_of_traces_act_or_are_refused() {
    let copy = model_copy();
    let inside = text_of(&copy.path().join("x")).to_owned();
    let model = text_of(copy.path()).to_owned();
    let place = TempDir::new().unwrap();
    let file = text_of(&place.path().join("x")).to_owned();
    for (arguments, words) in [
        (
            vec!["run", "Once", "--model", &model, "--trace-routing", &inside],
            "it lies in the model directory",
        ),
        (
            vec!["bench", "machine", "--trace-routing", &file],
            "--trace-routing has no effect on `bench machine`",
        ),
        (vec!["run", "Once", "--cache-policy", "fifo"], "there is no \"fifo\""),
        (vec!["simulate", "x", "--policy", "lru,"], "there is no \"\""),
        (vec!["simulate", "x", "--slots", "4,5y"], "not a unit"),
    ] {
        let answer = colibri(&arguments);
        assert_eq!(answer.code, 2, "{arguments:?}: {}", answer.stderr);
        assert!(answer.stderr.contains(words), "{arguments:?}: {}", answer.stderr);
    }
    let answer = colibri(&["run", "Once", "--max-tokens", "1", "--cache-policy", "lfu"]);
    assert!(
        answer.stderr.contains("--cache-policy changes nothing: there is a slot for every expert"),
        "{}",
        answer.stderr
    );
}
