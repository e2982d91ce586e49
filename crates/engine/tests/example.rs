//! The example is run as a user of the library would, against the golden text.
#[path = "../examples/stream.rs"]
#[allow(dead_code, reason = "its main function reads arguments, which a test has not")]
mod stream;

mod common;

use common::data;

#[test]
fn the_example_streams_the_golden_text() {
    let golden = std::fs::read(data("k3-tiny/golden/golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let (prompt, expected) = (&golden["prompts"][0], &golden["prompts"][0]["greedy_text"]);
    let mut out = Vec::new();
    stream::stream(data("k3-tiny"), prompt["text"].as_str().unwrap(), 32, &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap().trim_end_matches('\n'), expected.as_str().unwrap());
}

#[test]
fn the_example_names_what_is_wrong() {
    let absent = data("no-such-model");
    let error = stream::stream(absent, "x", 1, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("no-such-model"), "{error}");
}
