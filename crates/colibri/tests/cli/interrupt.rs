//! Ctrl-C in the middle of a run.
use crate::common::program;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

/// Starts a run that would take long, and waits until it computes.
fn start(arguments: &[&str]) -> Child {
    let mut child = program().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("loaded in")));
    // What comes later must find a reader.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_tells_what_there_is() {
    let run = ["run", "Once", "--json", "--ignore-eos", "--temperature", "0", "--max-tokens", "4000"];
    let mut child = start(&run);
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["finish"], "cancelled");
    assert!(answer["ids"].as_array().unwrap().len() < 4000);
    assert!(answer["settings"]["max_tokens"] == 4000 && answer["stats"].is_object());
}

#[test]
fn a_file_is_not_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (vec!["5"; 4000].join(","), folder.path().join("logits"));
    let mut child =
        start(&["logits", "--json", "--chunk", "1", "--ids", &ids, "--out", out.to_str().unwrap()]);
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["error"]["kind"], "cancelled");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
