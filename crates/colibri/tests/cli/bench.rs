//! `colibri bench` on the embedded model, with few repeats: no figure is judged, only what it is made of.
use crate::common::{colibri, text_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;

/// Everything, as little of it as there can be.
const LITTLE: [&str; 12] = [
    "bench",
    "--repeats",
    "1",
    "--bytes",
    "16MB",
    "--rows",
    "1",
    "--tokens",
    "1",
    "--lengths",
    "3",
    "--contexts=5,5000",
];

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().map(String::as_str).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

/// The floor of a row, from its work and the limits of its part.
fn floor(work: &Value, limits: &Value) -> f64 {
    let [memory, f32s, bytes] = ["read_bytes", "floats", "byte_products"].map(|name| number(&limits[name]));
    let of = |name: &str| number(&work[name]);
    let moved = (of("weight_bytes") + of("state_bytes")) / memory;
    let computed = of("floats") / f32s + of("byte_products") / bytes;
    assert_eq!(of("disk_bytes"), 0.0, "all experts are resident");
    moved.max(computed)
}

#[test]
fn every_figure_has_its_floor_spread_and_circumstances() {
    let record = colibri(&[&LITTLE[..], &["--json", "--dense", "int4"]].concat()).good();
    let top = [
        "bench",
        "disturbed",
        "limits",
        "machine",
        "model",
        "notes",
        "profiles",
        "rows",
        "settings",
        "version",
        "what",
    ];
    assert_eq!((keys(&record), &record["bench"], &record["what"]), (top.into(), &json!(1), &json!("all")));
    let machine = ["architecture", "cores", "instructions", "memory_bytes", "processor", "system"];
    assert_eq!(keys(&record["machine"]), machine.into());
    assert_eq!((&record["model"]["layers"], &record["settings"]["dense"]), (&json!(9), &json!("int4")));
    let parts = ["context", "decode", "kernels", "machine", "prefill"];
    assert_eq!(keys(&record["limits"]), parts.into());

    let rows = record["rows"].as_array().unwrap();
    let row_keys = [
        "cache",
        "floor",
        "how",
        "in_turn",
        "name",
        "of_f32_peak",
        "part",
        "per",
        "ratio",
        "seconds",
        "sections",
        "work",
    ];
    let mut names = BTreeSet::new();
    for row in rows {
        assert_eq!(keys(row), row_keys.into());
        assert!(names.insert(format!("{} {}", row["part"], row["name"])), "{row} comes twice");
        let seconds = &row["seconds"];
        let order = ["least", "lower_quartile", "median", "upper_quartile", "most"];
        let values = order.map(|name| number(&seconds[name]));
        assert!(values.is_sorted() && values[0] > 0.0, "{seconds}");
        assert!(number(&seconds["repeats"]) >= 1.0, "{seconds}");
        if row["part"] == "machine" {
            assert!(row["floor"].is_null() && row["ratio"].is_null() && row["work"].is_null());
            continue;
        }
        let (found, median) = (number(&row["floor"]["seconds"]), values[2]);
        let limits = &record["limits"][row["part"].as_str().unwrap()];
        assert!(close(found, floor(&row["work"], limits)), "{row}");
        assert!(close(number(&row["ratio"]), found / median), "{row}");
        let equivalent = number(&row["work"]["multiply_adds"]) / number(&limits["floats"]) / median;
        assert!(close(number(&row["of_f32_peak"]), equivalent), "{row}");
    }
    let named = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}"));
    named("memory, reading, 1 thread");
    // An expert's gate and up, as they lie in the checkpoint: [64, 96] codes and scales.
    let kernel = named("mxfp4 64x96 int15, 1");
    assert_eq!(kernel["work"]["weight_bytes"], json!(64.0 * 51.0));
    assert!(named("decode, 16 tokens before")["sections"]["attention"].is_number());
    named("prefill, 3 tokens");
    named("context, 5 tokens before");
    let notes = record["notes"].to_string();
    for part in ["--bytes 16.00 MB", "lies in memory", "left out: context, 5000 tokens before"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let ops: BTreeSet<&str> = record["profiles"][0]["ops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|op| op["op"].as_str().unwrap())
        .collect();
    assert!(ops.contains("mat_mul") && ops.contains("experts") && ops.contains("delta_rule"), "{ops:?}");
}

/// What guesses are worth is a matter of time, and so of no test; here all arms do the same work.
#[test]
fn decode_is_measured_with_guesses_of_a_precision() {
    let arguments = ["bench", "decode", "--json", "--bytes", "16MB", "--repeats", "1", "--tokens", "8"];
    let more = ["--expert-cache", "100x", "--guess-precision", "0,1"];
    let record = colibri(&[&arguments[..], &more].concat()).good();
    let rows = record["rows"].as_array().unwrap();
    let names: Vec<&str> =
        rows.iter().filter_map(|row| row["name"].as_str()).filter(|n| n.starts_with("decode")).collect();
    assert_eq!(
        names,
        [
            "decode, 16 tokens before",
            "decode, no guesses",
            "decode, 100.0 % of guesses right",
            "decode, 0.0 % of guesses right"
        ]
    );
    let cache = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        [number(&row["cache"]["hits"]), number(&row["cache"]["misses"])]
    };
    for name in names {
        // 8 tokens, 8 layers, 4 experts; a repeat that was disturbed is made again, and both are counted.
        let [hits, misses] = cache(name);
        let rounds = (hits + misses) / (8.0 * 8.0 * 4.0);
        assert!(rounds == 1.0 || rounds == 2.0, "{name}: {hits} hits, {misses} misses");
        // Right guesses may all be there in time.
        assert!(misses > 0.0 || name.contains("100.0 %"), "{name}: {hits} hits, {misses} misses");
    }

    let resident = colibri(&[&arguments[..], &["--guess-precision", "1"]].concat()).error(2).1;
    assert!(resident.starts_with("--guess-precision has no effect"), "{resident}");
}

#[test]
fn the_cache_and_the_disk_count_where_experts_are_streamed() {
    let arguments =
        ["bench", "decode", "--repeats", "1", "--bytes", "16MB", "--tokens", "2", "--expert-cache", "8x"];
    let record = colibri(&[&arguments[..], &["--json"]].concat()).good();
    let row = &record["rows"][0];
    let cache = &row["cache"];
    let (hits, misses) = (number(&cache["hits"]), number(&cache["misses"]));
    assert!(close(number(&cache["hit_rate"]), hits / (hits + misses)) && misses > 0.0, "{cache}");
    assert!(number(&cache["drive_rate"]) > 0.0, "{cache}");
    assert!(number(&cache["bytes_read"]) > 0.0 && number(&row["work"]["disk_bytes"]) > 0.0, "{row}");
    assert!(record["limits"]["decode"]["disk_bytes"].is_null(), "the embedded model has no disk");
}

#[test]
fn the_table_fits_80_columns() {
    let answer = colibri(&[&LITTLE[..], &["--dense", "int8"]].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    for line in answer.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in ["machine ", "kernels ", "decode, 16 tokens before", "by: memory ", "ops of decode", "note: "]
    {
        assert!(answer.stdout.contains(part), "{part}: {}", answer.stdout);
    }
}

/// A record of one row with these seconds.
fn record_of(seconds: [f64; 7], cores: u32) -> Value {
    let mut record =
        colibri(&["bench", "machine", "--repeats", "1", "--bytes", "16MB", "--threads", "1", "--json"])
            .good();
    record["machine"]["cores"] = cores.into();
    let row = &mut record["rows"][0];
    row["seconds"]["samples"] = json!(seconds);
    row["seconds"]["median"] = json!(seconds[3]);
    record["rows"] = json!([row]);
    record
}

#[test]
fn a_comparison_says_faster_slower_or_neither_and_its_code_says_slower() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, record: &Value| {
        let path = folder.path().join(name);
        fs::write(&path, record.to_string()).unwrap();
        text_of(&path).to_owned()
    };
    let seconds = [0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03];
    let a = record_of(seconds, 2);
    let mut b = a.clone();
    let slow = seconds.map(|s| s * 1.2);
    (b["rows"][0]["seconds"]["samples"], b["rows"][0]["seconds"]["median"]) = (json!(slow), json!(slow[3]));
    let (first, second) = (file("a.json", &a), file("b.json", &b));
    let compare = |one: &str, other: &str, more: &[&str]| {
        colibri(&[&["bench", "--compare", one, other][..], more].concat())
    };
    let answer = compare(&first, &second, &["--json"]);
    assert_eq!(
        (answer.code, &answer.json()["rows"][0]["verdict"]),
        (1, &json!("slower")),
        "{}",
        answer.stdout
    );
    let answer = compare(&second, &first, &[]);
    assert!(answer.code == 0 && answer.stdout.contains(" faster\n"), "{}", answer.stdout);
    let answer = compare(&first, &first, &[]);
    assert!(answer.code == 0 && answer.stdout.contains("no difference seen"), "{}", answer.stdout);

    b["machine"]["cores"] = json!(64);
    let other = file("c.json", &b);
    let (kind, message) = compare(&first, &other, &["--json"]).error(2);
    assert!(kind == "usage" && message.contains("machine cores 2 and 64"), "{message}");
    let answer = compare(&first, &other, &["--anyway"]);
    assert!(answer.code == 1 && answer.stdout.contains("machine cores 2 and 64"), "{}", answer.stdout);
}

#[test]
fn flags_that_have_no_effect_are_refused() {
    for (arguments, word) in [
        (&["bench", "machine", "--rows", "1"][..], "--rows has no effect on `bench machine`"),
        (&["bench", "kernels", "--chunk", "5"], "--chunk has no effect on `bench kernels`"),
        (&["bench", "decode", "--lengths", "5"], "--lengths has no effect on `bench decode`"),
        (&["bench", "--compare", "a", "b", "--threads", "1"], "--threads has no effect with --compare"),
        (&["bench", "context", "--contexts", "5000"], "nothing to measure fits into a context of 4096"),
    ] {
        let (_, message) = colibri(&[arguments, &["--json"]].concat()).error(2);
        assert!(message.contains(word), "{word}: {message}");
    }
}
