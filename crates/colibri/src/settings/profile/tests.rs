//! The text of profiles: written, read again, and refused where it is not whole. A fixture holds version 1.
use super::*;
use crate::seeds_of_tests::{Random, seeds};
use crate::settings::{Definition, Surroundings, file::Place};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// What version 1 looks like. It never changes, so that files that were written stay readable.
const VERSION_1: &str = include_str!("version-1.toml");

fn sample() -> Profile {
    let tried = |value: &str, seconds, disturbed| Tried {
        setting: "readers".into(),
        value: value.into(),
        seconds,
        lower_quartile: seconds / 2.0,
        upper_quartile: seconds * 2.0,
        repeats: 6,
        disturbed,
    };
    Profile {
        subject: Subject {
            model: "ab12".into(),
            machine: MachineName {
                processor: "A \"fast\" one".into(),
                cores: 16,
                memory_bytes: 68_719_476_736,
            },
        },
        settings: vec![
            ("threads".into(), json!(12)),
            ("io".into(), json!("uring")),
            ("readers".into(), json!(16)),
            ("look-ahead".into(), json!("auto")),
            ("expert-cache".into(), json!("168x")),
        ],
        tried: vec![tried("4", 0.5, false), tried("16", 1e-7, true), tried("8", 2.0, false)],
        measured_with: "dense int4,\nio direct".into(),
    }
}

/// Names and values that a text sets, each with its line.
fn set(text: &str) -> Result<Vec<(String, String, usize)>, String> {
    let definition = Definition::of_program();
    let entries = entries_of(Path::new("a.toml"), text, definition.catalog());
    let entries = entries.map_err(|failure| failure.message())?;
    let one = |entry: Entry| {
        let Origin::Profile { key, line, .. } = entry.origin else { panic!("{:?}", entry.origin) };
        assert_eq!((key, entry.table), (format!("settings.{}", entry.name), None));
        (entry.name, entry.values[0].to_str().unwrap().to_owned(), line)
    };
    Ok(entries.into_iter().map(one).collect())
}

fn refusal(text: &str) -> String {
    set(text).expect_err(text)
}

#[test]
fn what_is_written_is_read_again() {
    let profile = sample();
    let text = profile.text();
    let found = set(&text).unwrap();
    for (name, value) in &profile.settings {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let (_, read, line) = found.iter().find(|(found, ..)| found == name).unwrap();
        assert_eq!(*read, value);
        assert!(text.lines().nth(line - 1).unwrap().starts_with(&format!("{name} = ")), "{text}");
    }
    assert_eq!(found.len(), SETTINGS.len());
    let place = TempDir::new().unwrap();
    let path = place.path().join("p.toml");
    fs::write(&path, text).unwrap();
    assert_eq!(Subject::read(&path).unwrap(), profile.subject);
}

#[test]
fn version_1_stays_readable() {
    let found = set(VERSION_1).unwrap();
    let found: Vec<_> = found.iter().map(|(name, value, _)| (name.as_str(), value.as_str())).collect();
    for pair in [
        ("threads", "8"),
        ("io", "uring"),
        ("readers", "16"),
        ("look-ahead", "off"),
        ("expert-cache", "2000x"),
    ] {
        assert!(found.contains(&pair), "{pair:?}");
    }
    assert_eq!(found.len(), 5);
}

#[test]
fn what_is_no_whole_profile_is_refused_with_its_line() {
    let with = |from: &str, to: &str| {
        assert!(VERSION_1.contains(from), "{from}");
        VERSION_1.replacen(from, to, 1)
    };
    for (text, words) in [
        (String::new(), &["line 1", "no profile", "`profile`"][..]),
        ("threads = 4\n".into(), &["line 1", "no profile"]),
        (with("profile = 1", "profile = 2"), &["line 2", "version 2, this program reads version 1"]),
        (with("profile = 1", "profile = \"1\""), &["`profile`", "whole number"]),
        (with("profile = 1", "profile = 1\nname = 3"), &["line 3", "`name` is no part of a profile"]),
        (with("[machine]", "[machines]"), &["`machines` is no part"]),
        (with("cores = 8\n", ""), &["[machine] has no key `cores`"]),
        (with("cores = 8", "cores = -8"), &["`cores`", "whole number of at least 0"]),
        (with("cores = 8", "cores = 8\ncolour = 1"), &["`colour` is no key of [machine]"]),
        (with("identity = ", "identity = 3 #"), &["`identity`", "text between quotes"]),
        (with("seconds = 1.5", "seconds = 1"), &["`seconds`", "number with a point"]),
        (with("disturbed = false", "disturbed = 0"), &["`disturbed`", "true or false"]),
        (with("threads = 8", "seed = 8"), &["`seed` is no setting of a profile", "threads, io, readers"]),
        (with("threads = 8", "thread = 8"), &["`thread` is no setting of a profile"]),
        (with("threads = 8", "threads = 'x'"), &["`threads`: expected a number without quotes"]),
        (VERSION_1[..VERSION_1.find("[settings]").unwrap()].to_owned(), &["one of them is missing"]),
        (with("[model]", "[model"), &["line 4"]),
    ] {
        let message = refusal(&text);
        assert!(message.starts_with("a.toml, line "), "{message}");
        for word in words {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
    assert!(refusal(&with("profile = 1", "profile = 2")).contains("write it anew with `colibri tune`"));
}

#[test]
fn damaged_profiles_are_read_or_refused_by_their_line() {
    let mut refused = 0;
    for seed in seeds(500) {
        let mut random = Random(seed);
        let mut bytes = VERSION_1.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.next() as u8,
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        if let Err(message) = set(&String::from_utf8_lossy(&bytes)) {
            refused += 1;
            assert!(message.starts_with("a.toml, line "), "{message}");
        }
    }
    assert!(refused > 0, "some damage is seen");
}

/// What holds for `--readers` of `run` with a profile, a file and a command line: its value and origin.
fn readers(file: &str, line: &[&str], profile: &str) -> Result<(String, &'static str), String> {
    let place = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(place.path().join(name), text).unwrap();
        place.path().join(name)
    };
    write("p.toml", profile);
    let usual = write("config.toml", file);
    let surroundings = Surroundings { variables: Vec::new(), usual: Place::Usual(usual) };
    let path = |word: &&str| match *word {
        "PROFILE" => place.path().join("p.toml").into(),
        word => OsString::from(word),
    };
    let line: Vec<OsString> = ["colibri", "run", "x"].iter().chain(line).map(path).collect();
    let definition = Definition::of_program();
    let effective = definition.effective(&line, &surroundings).and_then(|effective| {
        definition.judged(&effective, true)?;
        Ok(effective)
    });
    let effective = effective.map_err(|refusal| refusal.into_failure().message())?;
    let row = effective.rows.get("readers").unwrap();
    Ok((row.values[0].to_str().unwrap().to_owned(), row.origin.kind()))
}

#[test]
fn a_profile_goes_before_defaults_and_after_everything_else() {
    for (file, line, expected) in [
        ("", &[][..], ("4", "default")),
        ("", &["--profile", "PROFILE"], ("16", "profile")),
        ("profile = 'p.toml'", &[], ("16", "profile")),
        ("[run]\nprofile = 'p.toml'", &[], ("16", "profile")),
        ("[chat]\nprofile = 'p.toml'", &[], ("4", "default")),
        ("profile = 'p.toml'", &["--profile", "off"], ("4", "default")),
        ("profile = 'p.toml'\n[run]\nprofile = 'off'", &[], ("4", "default")),
        ("readers = 5", &["--profile", "PROFILE"], ("5", "file")),
        ("readers = 5", &["--profile", "PROFILE", "--readers", "6"], ("6", "command line")),
    ] {
        let found = readers(file, line, VERSION_1).unwrap();
        assert_eq!((found.0.as_str(), found.1), expected, "{file:?} {line:?}");
    }
    // A value that no flag takes is refused by the line where it stands.
    let wrong = VERSION_1.replacen("readers = 16", "readers = 0", 1);
    let message = readers("", &["--profile", "PROFILE"], &wrong).unwrap_err();
    assert!(message.contains("`settings.readers` in line") && message.contains("from 1 to 256"), "{message}");
    let message = readers("profile = 'absent'", &[], "").unwrap_err();
    assert!(message.contains("absent") && message.contains("cannot be read"), "{message}");
    let binary = entries(&PathBuf::from("/dev/null"), Definition::of_program().catalog());
    assert!(binary.unwrap_err().message().contains("no profile"));
}
