//! Verdicts by hand, and refusals.
use super::super::record::ModelFacts;
use super::*;
use crate::probe::facts::MachineFacts;
use crate::probe::floor::{PeakRates, Piece};
use crate::probe::samples::{Sample, Spread};

const RATES: PeakRates =
    PeakRates { threads: 2, read_bytes: 1e10, floats: 1e11, byte_products: 4e11, disk_bytes: None };

fn row(name: &str, seconds: &[f64]) -> Row {
    let sample =
        |seconds: &f64| Sample { seconds: *seconds, cpu_share: Some(1.0), paged: false, disturbed: false };
    let spread = Spread::of(&seconds.iter().map(sample).collect::<Vec<_>>());
    let piece = Piece { weight_bytes: 1e9, ..Piece::default() };
    Row::work("decode", name.into(), "token", spread, piece, &RATES)
}

fn record(rows: Vec<Row>) -> Record {
    Record {
        bench: VERSION,
        what: "decode".into(),
        version: "1.2.3".into(),
        machine: MachineFacts {
            processor: "Abacus".into(),
            architecture: "wood".into(),
            instructions: "AVX-512".into(),
            cores: 2,
            memory_bytes: 1 << 30,
            system: "Table 1".into(),
        },
        model: ModelFacts {
            places: vec!["here".into()],
            family: "kimi_k3".into(),
            layers: 9,
            width: 192,
            experts: 16,
            experts_a_token: 4,
            vocabulary: 4096,
            bytes: 1000,
        },
        settings: Map::from_iter([("chunk".to_owned(), json!(32)), ("version".to_owned(), json!("1.2.3"))]),
        limits: BTreeMap::from([("decode".to_owned(), RATES)]),
        rows,
        profiles: Vec::new(),
        disturbed: false,
        notes: Vec::new(),
    }
}

fn verdict(a: &[f64], b: &[f64]) -> (Verdict, usize) {
    let compared = compare(&record(vec![row("x", a)]), &record(vec![row("x", b)]), false).unwrap();
    let verdict = match compared.json["rows"][0]["verdict"].as_str().unwrap() {
        "faster" => Verdict::Faster,
        "slower" => Verdict::Slower,
        _ => Verdict::Same,
    };
    (verdict, compared.slower)
}

#[test]
fn chances_of_small_samples() {
    // Of 5 and 5, all of one before all of the other: 2 of 252 orders; 1 pair the other way: 4 of 252.
    let a = [1.0, 2.0, 3.0, 4.0, 5.0];
    assert!((chance(&a, &[6.0, 7.0, 8.0, 9.0, 10.0]) - 2.0 / 252.0).abs() < 1e-12);
    assert!((chance(&[6.0, 7.0, 8.0, 9.0, 10.0], &a) - 2.0 / 252.0).abs() < 1e-12);
    assert!((chance(&a, &[4.5, 7.0, 8.0, 9.0, 10.0]) - 4.0 / 252.0).abs() < 1e-12);
    // A tie counts half of a pair, and half a pair as a whole one.
    assert!((chance(&a, &[5.0, 7.0, 8.0, 9.0, 10.0]) - 4.0 / 252.0).abs() < 1e-12);
    assert_eq!(chance(&a, &a), 1.0);
    assert_eq!(chance(&[1.0], &[2.0]), 1.0);
}

#[test]
fn chances_of_many_samples_are_nearly_the_exact_ones() {
    for limit in [20, 60, 100, 140, 190] {
        let (exact, about) = (exact(20, 20, limit), approximate(20, 20, limit as f64));
        assert!((exact - about).abs() < 0.002, "{limit}: {exact} {about}");
    }
    let long = |start: f64| (0..50).map(|i| start + f64::from(i)).collect::<Vec<_>>();
    assert!(chance(&long(0.0), &long(1000.0)) < 1e-9);
    assert!(chance(&long(0.0), &long(0.5)) > 0.5);
}

#[test]
fn verdicts_follow_from_the_spreads() {
    let a = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 1.01];
    let scaled = |by: f64| a.map(|seconds| seconds * by);
    assert_eq!(verdict(&a, &scaled(0.9)), (Verdict::Faster, 0));
    assert_eq!(verdict(&a, &scaled(1.1)), (Verdict::Slower, 1));
    assert_eq!(verdict(&a, &a), (Verdict::Same, 0));
    // Apart without doubt, but by less than counts.
    let exact = |seconds: f64| [0.0, 1e-9, 2e-9, 3e-9, 4e-9].map(|more| seconds + more);
    assert_eq!(verdict(&exact(1.0), &exact(1.015)), (Verdict::Same, 0));
    // Far apart in the middle, but they overlap.
    assert_eq!(verdict(&[1.0, 1.0, 1.0, 9.0, 9.0], &[2.0, 2.0, 2.0, 2.0, 2.0]), (Verdict::Same, 0));
    // Too few to tell.
    assert_eq!(verdict(&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0]), (Verdict::Same, 0));
}

#[test]
fn other_machines_models_and_settings_are_refused_unless_told() {
    let rows = || vec![row("x", &[1.0, 2.0, 3.0])];
    let (a, mut b) = (record(rows()), record(rows()));
    b.version = "1.3.0".into();
    b.settings["version"] = json!("1.3.0");
    b.model.places = vec!["there".into()];
    assert!(compare(&a, &b, false).is_ok(), "another program and place of the model is what is compared");
    b.machine.cores = 4;
    b.settings["chunk"] = json!(64);
    b.settings.insert("dense".into(), json!("int4"));
    let refused = compare(&a, &b, false).err().unwrap();
    assert_eq!(refused.exit_code(), 2);
    for word in
        ["machine cores 2 and 4", "setting chunk 32 and 64", "setting dense absent and \"int4\"", "--anyway"]
    {
        assert!(refused.message().contains(word), "{word}: {}", refused.message());
    }
    let told = compare(&a, &b, true).unwrap();
    assert!(told.text.contains("machine cores 2 and 4") && told.json["differences"][0].is_string());
}

#[test]
fn rows_of_one_are_named_and_none_in_common_is_refused() {
    let one = |name| record(vec![row(name, &[1.0]), row("both", &[1.0])]);
    let compared = compare(&one("old"), &one("new"), false).unwrap();
    assert_eq!((&compared.json["only_a"][0], &compared.json["only_b"][0]), (&json!("old"), &json!("new")));
    assert!(compared.text.lines().all(|line| line.chars().count() <= 80), "{}", compared.text);
    let refused = compare(&record(vec![row("x", &[1.0])]), &record(vec![row("y", &[1.0])]), false);
    assert!(refused.is_err_and(|failure| failure.message().contains("no row in common")));
}

#[test]
fn records_come_back_from_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let a = record(vec![row("x", &[1.0, 2.0, 3.0])]);
    fs::write(&path, json!(a).to_string()).unwrap();
    assert_eq!(read(&path).unwrap(), a);
    for (text, word) in [
        ("{", "EOF"),
        ("{}", "`bench` is missing"),
        (r#"{"bench": 99}"#, "version 99, expected 1"),
        (r#"{"bench": 1}"#, "missing field"),
    ] {
        fs::write(&path, text).unwrap();
        let failure = read(&path).unwrap_err();
        assert!(failure.message().contains(word) && failure.exit_code() == 2, "{}", failure.message());
    }
}
