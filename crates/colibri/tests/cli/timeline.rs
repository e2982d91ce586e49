//! Timelines: what stands in them agrees with the statistics, and they are whole or named however a run ends.
use crate::common::{answer_of, colibri, data, golden, listed, model_copy, program, text_of};
#[cfg(unix)]
use crate::common::{limited, started};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The events of a file that is whole.
fn events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["cat"] == kind).collect()
}

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap_or_else(|| panic!("{key}: {event}"))
}

fn bytes(events: &[Value]) -> u64 {
    of_kind(events, "read").iter().map(|event| event["args"]["bytes"].as_u64().unwrap()).sum()
}

/// Beginnings and ends in microseconds, in order.
fn spans(events: &[&Value]) -> Vec<(f64, f64)> {
    let span = |event: &&Value| (number(event, "ts"), number(event, "ts") + number(event, "dur"));
    let mut spans: Vec<_> = events.iter().map(span).collect();
    spans.sort_by(|a, b| a.partial_cmp(b).unwrap());
    spans
}

/// Rounding of sums; times are told to a nanosecond.
const ROUNDING: f64 = 0.0005;

fn assert_no_overlap(events: &[&Value], what: &str) {
    for pair in spans(events).windows(2) {
        assert!(pair[0].1 <= pair[1].0 + ROUNDING, "{what}: {pair:?}");
    }
}

/// Forty slots of the model on disk.
fn run<'a>(model: &'a str, file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", "Once upon a time", "--model", model, "--max-tokens", "20", "--seed", "1", "--json"];
    [&run[..], &["--expert-cache", "40x", "--timeline", file], more].concat()
}

#[test]
fn a_timeline_agrees_with_the_statistics() {
    let place = TempDir::new().unwrap();
    let (file, model) = (place.path().join("timeline.json"), data("k3-tiny"));
    let answer = colibri(&run(text_of(&model), text_of(&file), &["--look-ahead", "off", "--chunk", "3"]));
    assert!(answer.stderr.contains("wrote a timeline of"), "{}", answer.stderr);
    assert!(answer.stderr.contains("23.07 MB  events of the timeline"), "{}", answer.stderr);
    let (answer, events) = (answer.good(), events(&file));
    let counted = &answer["stats"]["experts"];
    assert_eq!(bytes(&events), counted["bytes_read"].as_u64().unwrap());
    let reads = of_kind(&events, "read");
    assert!(reads.iter().all(|read| read["name"] == "demand" && read["args"]["end"] == "whole"));
    assert_eq!(reads.len() as u64, counted["misses"].as_u64().unwrap());
    assert!(reads.iter().all(|read| read["args"]["file"].as_str().unwrap().ends_with(".safetensors")));
    let under_way = events.iter().filter(|event| event["name"] == "drive 0: reads under way");
    let most = under_way.map(|event| event["args"]["waited for"].as_u64().unwrap()).max();
    assert_eq!(most, counted["reads_at_once_most"].as_u64());
    assert!(number(counted, "reads_at_once") >= 1.0 && number(counted, "guesses_at_once") == 0.0);

    // The prompt has more tokens than a chunk; each token of the answer but the last is a step.
    let steps = of_kind(&events, "step");
    let rows: u64 = steps.iter().map(|step| step["args"]["rows"].as_u64().unwrap()).sum();
    let prompt = answer["prompt_ids"].as_array().unwrap().len() as u64;
    assert_eq!(rows, prompt + answer["ids"].as_array().unwrap().len() as u64 - 1);
    let positions: Vec<_> = steps.iter().map(|step| step["args"]["position"].as_u64().unwrap()).collect();
    assert!(positions[..2] == [0, 3] && positions.is_sorted(), "{positions:?}");
    for layer in 0..9 {
        let of_layer = |event: &&Value| event["cat"] == "compute" && event["args"]["layer"] == layer;
        assert!(events.iter().filter(of_layer).count() >= 2 * steps.len(), "layer {layer}");
    }
}

#[test]
fn spans_of_a_track_do_not_overlap_and_cover_the_steps() {
    let place = TempDir::new().unwrap();
    let (file, model) = (place.path().join("timeline.json"), data("k3-tiny"));
    colibri(&run(text_of(&model), text_of(&file), &[])).good();
    let events = events(&file);
    let mut tracks: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X" && event["cat"] != "step") {
        tracks.entry(event["tid"].as_u64().unwrap()).or_default().push(event);
    }
    for (track, spans) in &tracks {
        assert_no_overlap(spans, &format!("track {track}"));
        let named = |event: &&Value| event["name"] == "thread_name" && event["tid"] == *track;
        assert_eq!(events.iter().filter(named).count(), 1, "track {track}");
    }
    let steps = of_kind(&events, "step");
    assert_no_overlap(&steps, "steps");
    // Compute and waits, which on this device do not overlap either.
    let inside = spans(&[of_kind(&events, "compute"), of_kind(&events, "wait")].concat());
    let mut shares: Vec<_> = spans(&steps)
        .iter()
        .map(|&(start, end)| {
            let within = inside.iter().filter(|span| span.0 >= start - ROUNDING && span.1 <= end + ROUNDING);
            within.map(|span| span.1 - span.0).sum::<f64>() / (end - start)
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    // What is left is the program's own, in every step; in some it is more, since others want the processor too.
    let (least, most) = (shares[0], shares[shares.len() - 1]);
    assert!(least > 0.0 && (0.8..=1.001).contains(&most), "{shares:?}");
}

#[test]
fn guesses_are_told_from_demands_and_a_bench_writes_one_too() {
    let place = TempDir::new().unwrap();
    let (file, model) = (place.path().join("timeline.json"), data("k3-tiny"));
    let answer = colibri(&run(text_of(&model), text_of(&file), &["--look-ahead", "4"])).good();
    let all = events(&file);
    let counted = &answer["stats"]["experts"];
    // Guesses that are still on their way at the end are told and not counted.
    assert!(bytes(&all) >= counted["bytes_read"].as_u64().unwrap());
    let guess = |event: &&Value| event["name"].as_str().unwrap().starts_with("guess");
    assert!(of_kind(&all, "read").into_iter().filter(guess).count() > 0);
    let bench = ["bench", "decode", "--repeats", "1", "--bytes", "16MB", "--tokens", "1", "--json"];
    colibri(&[&bench[..], &["--expert-cache", "40x", "--timeline", text_of(&file)]].concat()).good();
    assert!(!of_kind(&events(&file), "step").is_empty() && bytes(&events(&file)) > 0);
}

#[test]
fn a_chat_and_a_resident_model_have_timelines() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("timeline.json");
    let mut command = program();
    command.args(["chat", "--max-tokens", "4", "--timeline", text_of(&file)]);
    let answer = answer_of(command, "Hello\nAnd again\n");
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let events = events(&file);
    assert!(
        bytes(&events) == 0 && of_kind(&events, "step").len() >= 4 && of_kind(&events, "wait").is_empty()
    );
}

#[test]
fn a_timeline_changes_no_token() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("timeline.json");
    let (ids, greedy) = golden("story");
    let ids = listed(&ids);
    let fixed = ["run", "--ids", &ids, "--temperature", "0", "--max-tokens", "8", "--json"];
    let more = ["--activations", "exact", "--expert-cache", "24x", "--timeline", text_of(&file)];
    let answer = colibri(&[&fixed[..], &more].concat()).good();
    assert_eq!(crate::common::numbers(&answer["ids"]), greedy[..8]);
}

#[test]
fn a_place_that_cannot_be_is_refused() {
    let copy = model_copy();
    let place = TempDir::new().unwrap();
    let (inside, model) = (copy.path().join("x"), text_of(copy.path()).to_owned());
    let same = text_of(&place.path().join("same")).to_owned();
    let folder = text_of(place.path()).to_owned();
    for (arguments, words) in [
        (
            vec!["run", "Once", "--model", &model, "--timeline", text_of(&inside)],
            "it lies in the model directory",
        ),
        (vec!["run", "Once", "--timeline", &folder], "a file name is expected"),
        (vec!["run", "Once", "--timeline", &same, "--trace-routing", &same], "; choose two files"),
        (vec!["bench", "machine", "--timeline", &same], "--timeline has no effect on `bench machine`"),
        (vec!["logits", "Once", "--out", &same, "--timeline", &same], "--timeline"),
        #[cfg(unix)]
        (vec!["chat", "--timeline", "/dev/null"], "no regular file"),
    ] {
        let answer = colibri(&arguments);
        assert_eq!(answer.code, 2, "{arguments:?}: {}", answer.stderr);
        assert!(answer.stderr.contains(words), "{arguments:?}: {}", answer.stderr);
    }
    let answer = colibri(&["run", "Once", "--timeline", "no/such/place"]);
    assert!(answer.code == 1 && answer.stderr.contains("no/such"), "{}", answer.stderr);
    assert!(!inside.exists());
}

#[cfg(unix)]
#[test]
fn a_run_that_is_interrupted_leaves_a_whole_timeline() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("timeline.json");
    let endless = ["run", "Once", "--ignore-eos", "--max-tokens", "4000", "--expert-cache", "40x"];
    for signals in ["kill -INT $0", "kill -INT $0; sleep 0.001; kill -INT $0"] {
        let (mut child, _) = started(&[&endless[..], &["--timeline", text_of(&file)]].concat());
        // The second signal may find nobody any more.
        Command::new("sh").args(["-c", signals, &child.id().to_string()]).output().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(!events(&file).is_empty());
    }
}

/// A chat that waits for its next entry is ended at once.
#[cfg(unix)]
#[test]
fn a_chat_that_is_ended_at_rest_leaves_a_whole_timeline() {
    use std::io::{Read as _, Write as _};
    let place = TempDir::new().unwrap();
    let file = place.path().join("timeline.json");
    let mut command = program();
    command.args(["chat", "--json", "--max-tokens", "4", "--timeline", text_of(&file)]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"Hello\n").unwrap();
    let output = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while byte != *b"\n" {
        output.read_exact(&mut byte).unwrap();
    }
    // The first signal may still be meant for the answer.
    let ended = loop {
        Command::new("kill").args(["-INT", &child.id().to_string()]).output().unwrap();
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
    };
    assert_eq!(ended.code(), Some(130));
    assert!(!of_kind(&events(&file), "step").is_empty());
    drop(input);
}

/// A kill leaves what was written: whole lines, but for the last, which it may have cut; the end of the list is missing.
#[cfg(unix)]
#[test]
fn a_run_that_is_killed_leaves_what_was_written() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("timeline.json");
    let endless = ["run", "Once", "--ignore-eos", "--max-tokens", "4000", "--expert-cache", "40x"];
    let (mut child, _) = started(&[&endless[..], &["--timeline", text_of(&file)]].concat());
    while fs::metadata(&file).unwrap().len() < 1000 {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let (whole, _cut) = text.rsplit_once('\n').unwrap();
    let mut lines = whole.lines();
    assert_eq!(lines.next(), Some("["));
    assert!(lines.clone().count() > 1);
    for line in lines {
        let line = line.strip_suffix(',').unwrap_or(line);
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

/// A limit on the size of files stands in for a drive that becomes full.
#[cfg(unix)]
#[test]
fn a_full_drive_ends_the_timeline_and_nothing_else() {
    let place = TempDir::new().unwrap();
    let (file, model) = (place.path().join("timeline.json"), data("k3-tiny"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_colibri"));
    command.args(run(text_of(&model), text_of(&file), &[])).arg("--no-config");
    let answer = limited(100, &command);
    let plain = colibri(&run(text_of(&model), text_of(&place.path().join("other")), &[])).good();
    assert_eq!(answer.code, 1, "{}", answer.stderr);
    assert_eq!(answer.json()["ids"], plain["ids"], "the answer is whole");
    let told = format!("error: writing the timeline {}, which lacks its last events: ", text_of(&file));
    assert_eq!(answer.stderr.matches(&told).count(), 1, "{}", answer.stderr);
    assert!(!events(&file).is_empty(), "what is there is whole");
}
