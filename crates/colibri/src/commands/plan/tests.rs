//! Mapped weights in a plan, with more of them than the embedded model has.
use super::*;
use crate::args::{Arguments, Command};
use clap::Parser as _;
use serde_json::{Value, json};

const GB: u64 = 1_000_000_000;
const PLENTY: Limits = Limits { total: 64 * GB, available: 64 * GB };

/// The embedded model and its plan with these flags, in plenty of memory.
fn planned(flags: &[&str]) -> (PlanArgs, Model, Plan) {
    let line = [&["colibri", "plan"], flags].concat();
    let Command::Plan(args) = Arguments::try_parse_from(line).unwrap().command else { unreachable!() };
    let model = load::open_for_plan(&args.model).unwrap();
    let request = load::request(&args.engine, args.layers.layers, 1);
    let plan = load::plan_within(&model, &request, 0, Held::new(), PLENTY).unwrap();
    (args, model, plan)
}

/// The plan of the embedded model with these flags, as if 1 GB of weights were mapped, in memory for the rest of the plan and
/// `room` bytes more, on a machine of made-up rates. In JSON, and as text.
fn told(flags: &[&str], room: u64) -> (Value, String) {
    let (args, model, mut plan) = planned(&[&["--context", "300"], flags].concat());
    plan.dense.mapped = GB;
    let limits = Limits { available: plan.bytes() + room, ..PLENTY };
    let rates = Rates { memory_bytes: 1e9, floats: 1e9, byte_products: 4e9, products: Vec::new() };
    let rates = (!args.no_measure).then_some(rates);
    let computing = |_: &[ops::Op]| Ok(Computing { rates, notes: Vec::new() });
    let outlook = outlook(&args, &model, &plan, limits, computing).unwrap();
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
        "1.00 GB of weights are mapped: kept in memory as far as there is room",
        "500 MB about so much of them has no room and is read again in every step, at least",
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
    assert!(
        text.contains("both columns are the same: nothing depends on guesses or on mapped weights"),
        "{text}"
    );
}

/// Reads that wait are explained once, however many steps wait.
#[test]
fn waits_are_explained_once() {
    let why = "waits: reads begin when it is known what is needed";
    let (plan, text) = told(&["--expert-cache", "64x", "--disk", "10MB/s", "--overlap", "off"], GB);
    assert_eq!(plan["steps"][0]["bound"]["at_worst"], "waits", "{}", plan["steps"][0]);
    assert_eq!(text.matches(why).count(), 1, "{text}");
    assert!(text.contains("; bound by waits"), "{text}");
    let (plan, text) = told(&STREAMED, GB / 2);
    assert!(!plan["steps"].to_string().contains("waits") && !text.contains("waits"), "{text}");
}

/// The first token of a context of one is its last.
#[test]
fn a_context_of_one_token_has_one_step() {
    let steps = |context: &str| {
        let (args, model, plan) = planned(&["--no-measure", "--context", context]);
        let outlook = outlook(&args, &model, &plan, PLENTY, |_| Ok(Computing::default())).unwrap();
        let told = outlook.json();
        let steps = told["steps"].as_array().unwrap().iter();
        steps
            .map(|step| (step["step"].as_str().unwrap().to_owned(), step["tokens_before"].clone()))
            .collect::<Vec<_>>()
    };
    let [token, prompt] = ["token", "prompt"].map(str::to_owned);
    assert_eq!(steps("1"), [(token.clone(), json!(0)), (prompt.clone(), json!(0))]);
    assert_eq!(steps("2"), [(token.clone(), json!(0)), (token, json!(1)), (prompt, json!(0))]);
}

/// What is told, and not refused, of settings that change nothing: their names and why.
fn told_idle(circumstances: &Circumstances<'_>) -> Vec<(&'static str, String)> {
    let idle = circumstances.idle().into_iter().filter(|(.., advice)| advice.is_none());
    idle.map(|(name, what, _)| (name, what.replace("has no effect on this plan: ", ""))).collect()
}

#[test]
fn what_could_not_be_measured_is_told_of_all_that_depends_on_it() {
    let (args, _, mut plan) = planned(&["--expert-cache", "40x"]);
    plan.packs = false;
    let of = |lacks_drive, lacks_computing| {
        told_idle(&Circumstances {
            args: &args,
            plan: &plan,
            available: PLENTY.available,
            lacks_computing,
            lacks_drive,
        })
    };
    let listed = |names: &[&'static str], why: &str| {
        names.iter().map(|name| (*name, format!("{why}, so that seconds stay unknown"))).collect::<Vec<_>>()
    };
    let of_drive = listed(&["io", "readers", "overlap", "look-ahead"], "no drive could be measured");
    let of_computing = |names: &[&'static str]| listed(names, "computing could not be measured");
    assert_eq!(of(true, false), of_drive);
    let all = ["overlap", "look-ahead", "device", "activations", "threads"];
    assert_eq!(of(false, true), of_computing(&all));
    assert_eq!(of(true, true), [of_drive, of_computing(&all[2..])].concat());
    assert_eq!(of(false, false), []);
}

/// Whether mapped weights have room is a matter of memory, and so is not refused.
#[test]
fn what_memory_decides_is_told() {
    let of = |flags: &[&str], name: &str| {
        let (mut args, _, mut plan) = planned(flags);
        // Of the embedded model nothing can be mapped.
        (args.engine.dense_residency, plan.dense.mapped) = (models::Residency::Mapped, GB);
        let available = PLENTY.available;
        let circumstances =
            Circumstances { args: &args, plan: &plan, available, lacks_computing: false, lacks_drive: false };
        let found = circumstances.idle().into_iter().find(|(found, ..)| *found == name);
        found.map(|(_, what, advice)| (what, advice.is_some()))
    };
    let told = |why: &str| Some((format!("has no effect on this plan: {why}"), false));
    let resident = "there is a slot for every expert, and mapped weights have room";
    assert_eq!(of(&["--no-measure", "--io", "buffered"], "io"), told(resident));
    assert_eq!(of(&["--disk", "1GB/s"], "disk"), told(resident));
    let no_experts = "none of the layers in use has routed experts, and mapped weights have room";
    for name in ["io", "readers"] {
        assert_eq!(of(&["--layers", "1"], name), told(no_experts), "{name}");
    }
    // Whatever memory there is, no drive is measured.
    assert!(of(&["--no-measure"], "io").unwrap().1);
}
