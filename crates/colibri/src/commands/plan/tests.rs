//! Mapped weights in a plan, with more of them than the embedded model has.
use super::*;
use crate::args::{Arguments, Command};
use clap::Parser as _;
use serde_json::{Value, json};

const GB: u64 = 1_000_000_000;

/// The plan of the embedded model with these flags, as if 1 GB of weights were mapped, in memory for the rest of the plan and
/// `room` bytes more. In JSON, and as text.
fn told(flags: &[&str], room: u64) -> (Value, String) {
    let line = [&["colibri", "plan", "--context", "300"], flags].concat();
    let Command::Plan(args) = Arguments::try_parse_from(line).unwrap().command else { unreachable!() };
    let model = load::open_for_plan(&args.model).unwrap();
    let request = load::request(&args.engine, args.layers.layers, 1);
    let plenty = Limits { total: 64 * GB, available: 64 * GB };
    let mut plan = load::plan_within(&model, &request, 0, plenty).unwrap();
    plan.dense.mapped = GB;
    let limits = Limits { available: plan.bytes() + room, ..plenty };
    let outlook = outlook(&args, &model, &plan, limits).unwrap();
    let text = text::text(&outlook).split_whitespace().collect::<Vec<_>>().join(" ");
    (outlook.json(), text)
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} in {value}"))
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-9), "{found}, expected {expected}");
}

/// Bytes of mapped weights that a token reads again: the least and the most.
fn again(plan: &Value) -> [f64; 2] {
    ["least", "most"].map(|which| number(plan, &format!("/steps/0/mapped_bytes_per_token/{which}")))
}

const STREAMED: [&str; 6] = ["--expert-cache", "64x", "--disk", "1MB/s", "--chunk", "8"];
const UNMEASURED: [&str; 5] = ["--expert-cache", "64x", "--disk", "1MB/s", "--no-measure"];

#[test]
fn what_stays_free_is_room_for_mapped_weights() {
    let of = |room| again(&told(&UNMEASURED, room).0);
    assert_eq!(of(GB), [0.0, 0.0]);
    assert_eq!(of(GB - 1), [1.0, 1e9]);
    assert_eq!(of(GB / 4), [0.75e9, 1e9]);
    assert_eq!(of(0), [1e9, 1e9]);
}

/// As many bytes as all experts have make the difference.
#[test]
fn buffered_experts_crowd_only_where_all_of_them_find_no_room() {
    const EXPERTS: u64 = 8 * 32 * 9792;
    let of = |room| told(&[&UNMEASURED[..], &["--io", "buffered"]].concat(), room).0;
    let plenty = of(GB + EXPERTS);
    assert_eq!(again(&plenty), [0.0, 0.0]);
    assert!(!plenty["notes"].to_string().contains("of these again"), "{}", plenty["notes"]);
    let crowded = of(GB + EXPERTS - 1);
    assert_eq!(again(&crowded), [0.0, 1e9]);
    let notes = crowded["notes"].to_string();
    assert!(notes.contains("up to 1.00 GB of these again, none at best"), "{notes}");
    assert!(!notes.contains("have no room"), "{notes}");
    // Where nothing streams nothing crowds.
    assert_eq!(again(&told(&["--no-measure", "--io", "buffered"], GB).0), [0.0, 0.0]);
}

#[test]
fn mapped_weights_without_room_are_read_again() {
    let (plan, text) = told(&STREAMED, GB / 2);
    let experts = 8.0 * 4.0 * 9792.0;
    let token = &plan["steps"][0];
    close(number(token, "/bytes_per_token_cold"), experts + 0.5e9);
    close(number(token, "/bytes_per_token"), 0.75 * experts + 0.5e9);
    let seconds = |what: &str| number(token, &format!("/seconds_per_token/{what}"));
    close(seconds("reads"), (0.75 * experts + 0.5e9) / 1e6);
    close(seconds("reads_most"), (0.75 * experts + 1e9) / 1e6);
    close(seconds("at_best"), seconds("compute").max(seconds("reads")));
    let worst = seconds("at_worst");
    assert!(worst >= seconds("reads_most") && worst <= seconds("compute") + seconds("reads_most"));
    assert_eq!(token["bound"]["at_best"], "disk");
    // A chunk reads them once for all its tokens.
    close(number(&plan, "/steps/2/mapped_bytes_per_token/least"), 0.5e9 / 8.0);
    assert!(
        plan["notes"].to_string().contains(
            "reads at least about 500 MB of mapped weights again, which have no room, and at most 1.00 GB"
        ),
        "{}",
        plan["notes"]
    );
    for part in [
        "500 MB of these, about, have no room: every step reads at least so much again",
        " s to ",
        "at best: all experts are guessed right, and the system keeps the mapped weights that have room",
        "at worst: none is, and all of them are read again and waited for",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// What the two columns stand for is what they depend on, and nothing is said of hits where there are no experts.
#[test]
fn the_best_and_the_worst_are_told_by_what_they_depend_on() {
    let (plan, text) = told(&["--layers", "1", "--disk", "1MB/s"], GB / 2);
    close(number(&plan, "/steps/0/seconds_per_token/reads"), 500.0);
    for field in ["experts_a_layer", "hit_rate", "hits_from"] {
        assert_eq!(plan["steps"][0][field], json!(null), "{field}");
    }
    assert!(text.contains("answer, first token 500 MB - 500 MB"), "{text}");
    assert!(text.contains("at best: the system keeps") && !text.contains("guessed"), "{text}");
    let text = told(&["--expert-cache", "64x", "--disk", "1MB/s", "--chunk", "1"], GB).1;
    assert!(text.contains("at best: all experts are guessed right; at worst: none is"), "{text}");
    assert!(text.contains("prompt, chunks of 1 "), "{text}");
    let text = told(&[&STREAMED[..], &["--look-ahead", "off"]].concat(), GB).1;
    assert!(text.contains("at best is at worst: nothing depends on guesses or on mapped weights"), "{text}");
}
