//! The history of experts across runs: kept, used without changing an answer, and never written over unread.
use crate::common::{Answer, answer_of, program};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const RUN: [&str; 9] =
    ["run", "Once upon a time", "--max-tokens", "8", "--seed", "1", "--json", "--expert-cache", "40x"];

/// A call whose state lies in `place`.
fn call(place: &Path, arguments: &[&str], input: &str) -> Answer {
    let mut command = program();
    command.args(arguments).env("XDG_STATE_HOME", place).env("HOME", place);
    command.env("LOCALAPPDATA", place).env("APPDATA", place);
    answer_of(command, input)
}

/// All files in the folder of histories, by name.
fn files(place: &Path) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                walk(&entry.path(), found);
            } else if entry.file_name().to_str().unwrap().starts_with("experts-") {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(place, &mut found);
    found.retain(|path| path.extension().is_none_or(|ending| ending != "lock"));
    found.sort();
    found
}

#[test]
fn runs_and_chats_add_to_a_history_that_changes_no_answer() {
    let place = TempDir::new().unwrap();
    let with = [&RUN[..], &["--history", "on"]].concat();
    let plain = call(place.path(), &RUN, "").good();
    assert_eq!(files(place.path()), Vec::<PathBuf>::new(), "it is off unless it is asked for");
    let first = call(place.path(), &with, "").good();
    let [file] = &files(place.path())[..] else { panic!("one file") };
    let before = fs::read(file).unwrap();
    assert!(before.starts_with(b"COLIHIST"));
    let second = call(place.path(), &with, "").good();
    assert_eq!((&first["ids"], &second["ids"]), (&plain["ids"], &plain["ids"]));
    assert_ne!(fs::read(file).unwrap(), before);
    // Another packing is the same model.
    let before = fs::read(file).unwrap();
    call(place.path(), &[&with[..], &["--dense", "int4"]].concat(), "").good();
    assert_ne!(fs::read(file).unwrap(), before);
    let before = fs::read(file).unwrap();
    let chat = ["chat", "--max-tokens", "4", "--expert-cache", "40x", "--history", "on"];
    assert_eq!(call(place.path(), &chat, "Hello\n").code, 0);
    assert_ne!(fs::read(file).unwrap(), before);
    assert_eq!(files(place.path()).len(), 1, "no other file is left");
}

#[test]
fn a_history_that_is_not_understood_is_named_and_moved_aside() {
    let place = TempDir::new().unwrap();
    let with = [&RUN[..], &["--history", "on"]].concat();
    let plain = call(place.path(), &with, "").good();
    let file = files(place.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut newer = whole.clone();
    newer[8] = 7;
    for (number, (bytes, words)) in [
        (b"other".to_vec(), "does not begin with COLIHIST"),
        (newer, "version 7, but this program reads version 1"),
        (whole[..whole.len() - 1].to_vec(), "it is damaged"),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(&file, &bytes).unwrap();
        let answer = call(place.path(), &with, "");
        assert_eq!(answer.stderr.matches(words).count(), 1, "{}", answer.stderr);
        assert!(answer.stderr.contains(".unread-"), "{}", answer.stderr);
        assert_eq!(answer.good()["ids"], plain["ids"]);
        let mut aside = file.clone().into_os_string();
        aside.push(format!(".unread-{}", number + 1));
        assert_eq!(fs::read(aside).unwrap(), bytes);
        assert!(fs::read(&file).unwrap().starts_with(b"COLIHIST"));
    }
}

#[test]
fn where_every_expert_stays_a_history_changes_nothing_and_says_so() {
    let place = TempDir::new().unwrap();
    let answer = call(place.path(), &["run", "Once", "--max-tokens", "1", "--history", "on"], "");
    assert!(answer.stderr.contains("--history changes nothing"), "{}", answer.stderr);
    assert!(answer.code == 0 && files(place.path()).is_empty());
}
