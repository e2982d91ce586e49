//! Files that a call writes: none is another one's, one that the call reads, or one that the program keeps by itself.
use crate::common::{answer_of, colibri, colibri_with, program, text_of};
use std::fs;
use std::path::Path;

/// Every pair of flags that name a file to write.
#[test]
fn two_outputs_are_two_files() {
    let place = tempfile::tempdir().unwrap();
    let same = text_of(&place.path().join("same")).to_owned();
    let records = ["log-file", "trace-routing", "timeline"];
    let out = ["log-file", "out"];
    let commands: [(&[&str], &[&str]); 6] = [
        (&["run", "Once", "--max-tokens", "1"], &records),
        (&["chat"], &records),
        (&["bench", "decode", "--repeats", "1", "--bytes", "16MB", "--tokens", "1"], &records),
        (&["logits", "Once"], &out),
        (&["trace", "Once", "--layers", "1"], &out),
        (&["tune", "--sweep", "threads", "--tokens", "1", "--repeats", "4"], &out),
    ];
    for (command, flags) in commands {
        for (at, first) in flags.iter().enumerate() {
            for second in &flags[at + 1..] {
                let both = [format!("--{first}={same}"), format!("--{second}={same}")];
                let line: Vec<&str> =
                    command.iter().copied().chain(both.iter().map(String::as_str)).collect();
                let refused = || {
                    let (_, message) =
                        colibri(&[&line[..], &["--json", "--log-level", "debug"]].concat()).error(2);
                    let named = [first, second].iter().all(|flag| message.contains(&format!("--{flag} ")));
                    assert!(named && message.ends_with("; choose two files"), "{line:?}: {message}");
                };
                refused();
                assert!(!Path::new(&same).exists(), "{line:?}");
                fs::write(&same, "kept").unwrap();
                refused();
                assert_eq!(fs::read_to_string(&same).unwrap(), "kept", "{line:?}");
                fs::remove_file(&same).unwrap();
            }
        }
    }
    let page = text_of(&place.path().join("colibri.1")).to_owned();
    let pages = colibri(&["man", "--out", text_of(place.path()), "--log-file", &page]);
    assert!(pages.code == 2 && pages.stderr.contains("; choose two files"), "{}", pages.stderr);
    let chat = colibri_with(&["chat", "--log-file", &same], &format!("/save {same}\n"));
    let refused = format!("/save and --log-file both name {same}; choose two files");
    assert!(chat.stderr.contains(&refused), "{}", chat.stderr);
}

#[test]
fn what_a_call_reads_or_keeps_by_itself_is_no_output_of_it() {
    let place = tempfile::tempdir().unwrap();
    let read = text_of(&place.path().join("read")).to_owned();
    for line in [
        &["run", "Once", "--config", &read, "--timeline", &read][..],
        &["plan", "--trace", &read, "--log-file", &read],
        &["chat", "--load", &read, "--trace-routing", &read],
        &["bench", "--compare", &read, "other", "--log-file", &read],
        &["trace", "--inputs", &read, "--out", &read],
    ] {
        fs::write(&read, "# kept\n").unwrap();
        let (_, message) = colibri(&[line, &["--json", "--log-level", "debug"]].concat()).error(2);
        assert!(message.ends_with("; choose two files"), "{line:?}: {message}");
        assert_eq!(fs::read_to_string(&read).unwrap(), "# kept\n", "{line:?}");
    }
    let kept = place.path().join("colibri");
    fs::create_dir(&kept).unwrap();
    for name in ["chat-history", "experts-0123456789abcdef", "profile-0123456789abcdef.toml"] {
        let file = kept.join(name);
        fs::write(&file, "kept").unwrap();
        let mut command = program();
        command.args(["run", "Once", "--max-tokens", "1", "--timeline", text_of(&file)]);
        command.env("XDG_STATE_HOME", place.path()).env("HOME", place.path());
        let answer = answer_of(command, "");
        // Where programs keep such things elsewhere, the file is one like any other.
        if cfg!(target_os = "linux") {
            assert_eq!(answer.code, 2, "{}", answer.stderr);
            assert!(answer.stderr.contains("that colibri keeps by itself"), "{}", answer.stderr);
            assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        }
    }
}
