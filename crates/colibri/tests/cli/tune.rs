//! `colibri tune` on the embedded model with few repeats: no time is judged, only what is made of it, and what becomes of the
//! profile.
#[cfg(unix)]
use crate::common::limited;
use crate::common::{answer_of, colibri, model_copy, program, text_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// As little as there can be, and experts that come and go.
const LITTLE: [&str; 7] = ["tune", "--tokens", "1", "--repeats", "4", "--expert-cache", "64x"];
/// A run with the same cache.
const RUN: [&str; 9] =
    ["run", "Once", "--max-tokens", "4", "--temperature", "0", "--expert-cache", "64x", "--json"];

/// Tunes one setting and gives the profile's place and text.
fn profile(place: &Path) -> (String, String) {
    let path = text_of(&place.join("k3.toml")).to_owned();
    let answer = colibri(&[&LITTLE[..], &["--sweep", "look-ahead", "--out", &path]].concat());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let text = fs::read_to_string(&path).unwrap();
    let chosen = text.split_once("[settings]\n").unwrap().1.lines().next().unwrap();
    assert!(["look-ahead = \"auto\"", "look-ahead = \"off\""].contains(&chosen), "{text}");
    (path, text)
}

#[test]
fn every_open_setting_is_tried_and_one_value_of_each_taken() {
    let place = TempDir::new().unwrap();
    let path = text_of(&place.path().join("k3.toml")).to_owned();
    let answer = colibri(&[&LITTLE[..], &["--out", &path, "--json"]].concat());
    assert!(answer.stderr.contains("trying --readers: 4, 2, 8, 16"), "{}", answer.stderr);
    assert_eq!(answer.stderr.matches("planned memory").count(), 1, "{}", answer.stderr);
    let tuned = answer.good();
    let tried = tuned["tried"].as_array().unwrap();
    let chosen = tuned["chosen"].as_object().unwrap();
    let names: BTreeSet<&str> = tried.iter().map(|line| line["setting"].as_str().unwrap()).collect();
    // The size of the cache is set.
    assert_eq!(names, ["io", "look-ahead", "readers", "threads"].into());
    assert_eq!(chosen.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    for name in names {
        let lines: Vec<&Value> = tried.iter().filter(|line| line["setting"] == name).collect();
        let taken: Vec<&&Value> = lines.iter().filter(|line| line["taken"] == true).collect();
        let value = chosen[name].as_str().map_or_else(|| chosen[name].to_string(), str::to_owned);
        assert!(taken.len() == 1 && taken[0]["value"] == value.as_str(), "{name}: {lines:?}");
        let measured: Vec<&&Value> = lines.iter().filter(|line| !line["seconds"].is_null()).collect();
        let ratios = measured.iter().map(|line| line["ratio"].as_f64().unwrap());
        assert_eq!(ratios.fold(f64::INFINITY, f64::min), 1.0, "{name}");
        for line in measured {
            let repeats = line["seconds"]["repeats"].as_u64().unwrap();
            assert!((4..=8).contains(&repeats) && line["seconds"]["median"].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!((&tuned["profile"], &tuned["settings"]["expert_cache"]), (&json!(path), &json!("64x")));

    // What was chosen holds where the profile is taken, and says where it comes from.
    let shown = colibri(&["config", "run", "--profile", &path, "--readers", "3", "--json"]).good();
    for (name, value) in chosen.iter().filter(|(name, _)| *name != "readers") {
        let row = &shown["settings"][name];
        assert_eq!((&row["value"], &row["origin"]), (value, &json!("profile")), "{name}");
        assert_eq!(row["key"], format!("settings.{name}"));
    }
    assert_eq!(shown["settings"]["readers"]["origin"], "command line");
    let (without, with) = (colibri(&RUN).good(), colibri(&[&RUN[..], &["--profile", &path]].concat()).good());
    assert_eq!(with["settings"]["readers"], chosen["readers"]);
    assert_eq!(with["ids"], without["ids"], "no setting of a profile changes a token");
}

#[test]
fn the_table_fits_and_says_what_was_not_tried() {
    let place = TempDir::new().unwrap();
    let path = text_of(&place.path().join("k3.toml")).to_owned();
    let answer = colibri(&["tune", "--tokens", "1", "--repeats", "4", "--out", &path]);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let words = answer.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("not tried: --io, --readers, --look-ahead, --expert-cache: every expert"),
        "{words}"
    );
    assert!(words.contains("chosen: --threads "), "{words}");
    assert!(words.contains(&format!("wrote {path}; --profile {path} takes it")), "{words}");
    let narrow = |line: &str| line.chars().count() <= 80 || line.contains(&path);
    assert!(answer.stdout.lines().all(narrow), "{}", answer.stdout);
    let rows = answer.stdout.lines().filter(|line| line.contains('±')).count();
    assert!((2..=4).contains(&rows), "{}", answer.stdout);
}

#[test]
fn profiles_of_something_else_are_refused_with_what_to_do() {
    let place = TempDir::new().unwrap();
    let (path, text) = profile(place.path());
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}: {text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let (kind, message) = colibri(&[&RUN[..], &["--profile", &path]].concat()).error(2);
        assert!(kind == "usage" && message.contains(&path), "{message}");
        message
    };
    let message = refused("identity = \"", "identity = \"0");
    assert!(message.contains("another model") && message.contains("colibri tune"), "{message}");
    let message = refused("cores = ", "cores = 100");
    assert!(message.contains("another machine") && message.contains("cores that may be used"), "{message}");
    let message = refused("profile = 1", "profile = 2");
    assert!(message.contains("version 2, this program reads version 1"), "{message}");
    let message = refused("[settings]", "[settings]\nseed = 1");
    assert!(message.contains("`seed` is no setting of a profile"), "{message}");
    let message = refused("look-ahead = ", "look-ahead = \"sideways\" #");
    assert!(message.contains("`settings.look-ahead` in line") && message.contains("sideways"), "{message}");
    let message = refused("[machine]", "[machine");
    assert!(message.contains("line "), "{message}");
    fs::remove_file(&path).unwrap();
    let (_, message) = colibri(&[&RUN[..], &["--profile", &path]].concat()).error(2);
    assert!(message.contains("cannot be read") && message.contains("or off"), "{message}");

    // `config` shows what it says, and that a run would refuse it.
    fs::write(&path, text.replacen("cores = ", "cores = 100", 1)).unwrap();
    let shown = colibri(&["config", "run", "--profile", &path]);
    assert!(shown.code == 0 && shown.stderr.contains("another machine"), "{}", shown.stderr);
    // What goes before it may be anywhere, and nothing of it is needed.
    fs::write(&path, &text).unwrap();
    let good = colibri(&[&RUN[..], &["--profile", &path, "--look-ahead", "3"]].concat()).good();
    assert_eq!(good["settings"]["look_ahead"], "3");
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_no_profile() {
    let (place, model) = (TempDir::new().unwrap(), model_copy());
    let path = text_of(&place.path().join("k3.toml")).to_owned();
    let with = |flags: &[&str]| colibri(&[&["tune", "--json", "--tokens", "1"], flags].concat());
    let nothing = with(&["--sweep", "io,readers", "--out", &path]).error(2);
    assert!(
        nothing.1.contains("nothing to try") && nothing.1.contains("every expert has a slot"),
        "{}",
        nothing.1
    );
    let all = [
        "--threads",
        "1",
        "--io",
        "direct",
        "--readers",
        "2",
        "--look-ahead",
        "off",
        "--expert-cache",
        "64x",
    ];
    let nothing = with(&[&all[..], &["--out", &path]].concat()).error(2).1;
    assert!(nothing.contains("name what to try with --sweep"), "{nothing}");
    let within = text_of(&model.path().join("k3.toml")).to_owned();
    let message = with(&["--model", text_of(model.path()), "--out", &within]).error(2).1;
    assert!(message.contains("--out") && message.contains("model directory"), "{message}");
    let message = with(&["--out", text_of(place.path())]).error(2).1;
    assert!(message.contains("a file name is expected"), "{message}");
    let message = with(&["--context", "10", "--out", &path]).error(2).1;
    assert!(message.contains("--context"), "{message}");
    for (flag, value) in [("--sweep", "seed"), ("--repeats", "3"), ("--tokens", "0")] {
        assert!(with(&[flag, value]).error(2).1.contains(flag), "{flag}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

/// With a folder that stands for the one in which Linux tells of memory.
#[cfg(target_os = "linux")]
#[test]
fn nothing_is_tried_while_memory_is_short() {
    let place = TempDir::new().unwrap();
    fs::create_dir(place.path().join("proc")).unwrap();
    fs::write(place.path().join("proc/meminfo"), "MemAvailable: 1000 kB\n").unwrap();
    let path = place.path().join("k3.toml");
    let mut command = program();
    command.args(LITTLE).args(["--json", "--out", text_of(&path)]);
    command.env("COLIBRI_TEST_PRESSURE", place.path());
    let (kind, message) = answer_of(command, "").error(1);
    assert!(kind == "memory" && message.contains("only 1 MB are left"), "{message}");
    assert!(message.contains("smaller --expert-cache") && !path.exists(), "{message}");
}

#[cfg(unix)]
#[test]
fn a_full_drive_leaves_the_profile_that_was_there() {
    let place = TempDir::new().unwrap();
    let (path, text) = profile(place.path());
    let mut command = program();
    command.args(LITTLE).args(["--sweep", "look-ahead", "--json", "--no-config", "--out", &path]);
    let answer = limited(0, &command);
    let (kind, message) = answer.error(1);
    assert!(kind == "io" && message.contains("writing") && message.contains(&path), "{message}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}
