//! `--governor`: what a run says when memory is short, with files that stand for Linux' own.
use crate::common::{Answer, answer_of, colibri, program};
use serde_json::Value;
use std::fs;

/// A run with ten slots for experts, of which eight are always kept, on a machine with so much memory left.
fn run(available: &str, flags: &[&str]) -> Answer {
    let machine = tempfile::tempdir().unwrap();
    fs::create_dir(machine.path().join("proc")).unwrap();
    fs::write(machine.path().join("proc/meminfo"), format!("MemAvailable: {available} kB\n")).unwrap();
    let mut command = program();
    let always = ["run", "Once", "--max-tokens", "8", "--temperature", "0", "--expert-cache", "10x"];
    command.args(always).args(flags).env("COLIBRI_TEST_PRESSURE", machine.path());
    answer_of(command, "")
}

#[test]
fn slots_are_given_back_and_no_token_changes() {
    let (plenty, short) = (run("99999999999", &["--json"]).good(), run("1000", &["--json"]).good());
    assert_eq!(plenty["ids"], short["ids"]);
    let slots = |answer: &Value| {
        let experts = &answer["stats"]["experts"];
        ["slots", "slots_given_back", "slots_least"].map(|name| experts[name].as_u64().unwrap())
    };
    assert_eq!((slots(&plenty), slots(&short)), ([10, 0, 10], [10, 2, 8]));
    let off = run("1000", &["--json", "--governor", "off"]).good();
    assert_eq!((slots(&off), &off["settings"]["governor"]), ([10, 0, 10], &"off".into()));
}

#[test]
fn it_is_told_once_and_stands_in_the_statistics() {
    let told = run("1000", &["--log-level", "warn"]).stderr;
    for wanted in [
        "memory is short: slots for experts are given back",
        "only 1 MB are left",
        "slots=2 of=10",
        ", 2 slots of 10 given back (8 were left at least)",
    ] {
        assert_eq!(told.matches(wanted).count(), 1, "{wanted}: {told}");
    }
    let quiet = run("99999999999", &["--log-level", "warn"]).stderr;
    assert!(!quiet.contains("memory is short") && !quiet.contains("given back"), "{quiet}");
}

#[test]
fn what_cannot_be_given_back_is_said() {
    let answer = colibri(&["run", "Once", "--max-tokens", "1", "--io", "uring", "--governor", "on"]);
    let told = &answer.stderr;
    assert_eq!(answer.code, 2, "{told}");
    assert!(told.contains("--governor on: the kernel holds the memory of slots"), "{told}");
    let answer = colibri(&["run", "Once", "--max-tokens", "1", "--governor", "on"]);
    assert!(
        answer.stderr.contains("note: --governor changes nothing: there is a slot for every expert"),
        "{}",
        answer.stderr
    );
}
