//! `convert`: what is said before, what is there afterwards, and what happens when it is ended early.
use crate::common::{Answer, colibri, data, model_copy, text_of};
#[cfg(unix)]
use crate::common::{limited, program};
use std::fs;
#[cfg(unix)]
use std::io::Read as _;
use std::path::Path;
#[cfg(unix)]
use std::process::{Command, Stdio};

const PROMPT: &str = "Once upon a time";

fn tiny() -> String {
    text_of(&data("k3-tiny")).to_owned()
}

fn convert(flags: &[&str], place: &Path) -> Answer {
    colibri(&[&["convert", &tiny(), text_of(place)], flags].concat())
}

fn run(model: &str, flags: &[&str]) -> Answer {
    colibri(
        &[&["run", "--json", "--max-tokens", "6", "--seed", "1", "--model", model, PROMPT], flags].concat(),
    )
}

#[test]
fn a_container_answers_as_its_source_does_and_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for (number, flags) in [&["--dense", "int4"][..], &["--dense", "int8", "--thin"]].iter().enumerate() {
        let place = folder.path().join(number.to_string());
        let written = convert(&[flags, &["--verify", "--json"][..]].concat(), &place).good();
        assert_eq!(written["verified"]["passed"], true);
        assert_eq!(written["written"]["dense"], flags[1]);
        let expected = run(&tiny(), &flags[..2]).good();
        let found = run(text_of(&place), &[]).good();
        assert_eq!(found["ids"], expected["ids"]);
        assert_eq!(found["settings"]["dense"], flags[1]);
        #[cfg(unix)]
        mapped_weights_answer_alike(text_of(&place), &found["ids"]);
        let (kind, message) = run(text_of(&place), &["--dense", "bf16"]).error(2);
        assert!(kind == "usage" && message.contains("colibri convert SRC DST --dense bf16"), "{message}");
        let inspected = colibri(&["inspect", "--json", "--deep", "--model", text_of(&place)]).good();
        let source = colibri(&["inspect", "--json", "--model", &tiny()]).good();
        assert_eq!(inspected["experts"], source["experts"]);
        for (class, counted) in source["classes"].as_object().unwrap() {
            if !class.starts_with("not used") {
                assert_eq!(inspected["classes"][class]["parameters"], counted["parameters"], "{class}");
            }
        }
        let health = colibri(&["doctor", "--no-measure", "--json", "--model", text_of(&place)]);
        assert_eq!(health.good()["problems"], 0, "{}", health.stdout);
        // Once more: nothing to do.
        let again = convert(&[flags, &["--json"][..]].concat(), &place);
        assert_eq!(again.good()["written"]["was_complete"], true);
        assert!(again.stderr.contains("there already"), "{}", again.stderr);
    }
}

#[cfg(unix)]
fn mapped_weights_answer_alike(model: &str, expected: &serde_json::Value) {
    let answer = run(model, &["--dense-residency", "mapped"]);
    let found = answer.good();
    assert_eq!((&found["ids"], &found["settings"]["dense_residency"]), (expected, &"mapped".into()));
    assert!(found["stats"]["memory"]["mapped_bytes"].as_u64().unwrap() > 1_000_000, "{found}");
    assert!(
        answer.stderr.contains("of weights are mapped: kept as far as memory is left"),
        "{}",
        answer.stderr
    );
}

#[test]
fn it_says_what_it_will_write_and_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("container");
    let answer = convert(&["--dense", "int4"], &place);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert!(
        answer.stderr.contains("dense weights as int4") && answer.stderr.contains("are free"),
        "{}",
        answer.stderr
    );
    assert!(answer.stdout.contains("use it with --model"), "{}", answer.stdout);
    let verified = colibri(&["convert", "--verify", text_of(&place)]);
    assert!(verified.code == 0 && verified.stdout.contains("passed"), "{}", verified.stdout);
    let shard = place.join("colibri-00004-of-00010.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[200_000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let failed = colibri(&["convert", "--verify", text_of(&place)]);
    assert_eq!(failed.code, 1);
    assert!(
        failed.stdout.contains("DIFFERS") && failed.stdout.contains("colibri-00004"),
        "{}",
        failed.stdout
    );
    assert!(failed.stdout.contains("layer 3 expert"), "{}", failed.stdout);
}

#[test]
fn damaged_experts_are_named_when_they_are_first_read() {
    let folder = tempfile::tempdir().unwrap();
    let (place, thin) = (folder.path().join("container"), folder.path().join("thin"));
    convert(&["--dense", "int8"], &place);
    convert(&["--dense", "int8", "--thin"], &thin);
    let checked = |flags: &[&str]| run(text_of(&place), &[&["--check-experts", "on"], flags].concat());
    let expected = run(text_of(&place), &[]).good();
    for cache in ["all", "9x"] {
        let found = checked(&["--expert-cache", cache]).good();
        assert_eq!((&found["ids"], &found["settings"]["check_experts"]), (&expected["ids"], &true.into()));
    }
    let (kind, message) = run(text_of(&thin), &["--check-experts", "on"]).error(2);
    assert!(kind == "usage" && message.contains("has no checksum"), "{message}");
    // The lowest bit of a code of every expert of a layer: a number that is as good as any other.
    let shard = place.join("colibri-00004-of-00010.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for page in (start..bytes.len()).step_by(4096) {
        bytes[page] ^= 1;
    }
    fs::write(&shard, bytes).unwrap();
    for cache in ["all", "9x"] {
        let (kind, message) = checked(&["--expert-cache", cache]).error(1);
        assert!(kind == "expert" && message.contains("layer 3 expert"), "{kind}: {message}");
        assert!(message.contains("colibri-00004") && message.contains("--verify"), "{message}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("container");
    let model = model_copy();
    let refused = |arguments: &[&str], words: &[&str]| {
        let answer = colibri(&[&["convert"], arguments].concat());
        assert_eq!(answer.code, 2, "{arguments:?}: {}{}", answer.stdout, answer.stderr);
        let said = answer.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    };
    let (source, place) = (text_of(model.path()), text_of(&place));
    refused(&[source], &["colibri convert SRC DST"]);
    refused(&[source, source], &["it is the directory", "choose another place"]);
    refused(&[source, text_of(&model.path().join("inside"))], &["it lies in the directory"]);
    refused(&[source, place, "--dense", "int2"], &["--dense", "int4"]);
    refused(&[source, place, "--thin", "--dense", "bf16"], &["take int8 or int4"]);
    refused(&["--verify", "--dense", "int4", source], &["--dense has no effect"]);
    refused(&["--verify", source], &["no colibri.checksums"]);
    refused(&[source, text_of(folder.path().parent().unwrap())], &["holds other files"]);
    assert!(!Path::new(place).exists());
}

/// A model with a tensor of 8 TB, which takes no room as long as nobody reads it.
#[test]
fn too_little_room_is_seen_before_anything_is_written() {
    let (model, folder) = (model_copy(), tempfile::tempdir().unwrap());
    let bytes = 8_u64 << 40;
    let header = format!(
        "{{\"vision_tower.huge\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}"
    );
    let shard = model.path().join("model-00013-of-000013.safetensors");
    fs::write(&shard, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&shard).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
    crate::common::edit_json(&model.path().join("model.safetensors.index.json"), |index| {
        index["weight_map"]["vision_tower.huge"] = "model-00013-of-000013.safetensors".into();
    });
    let place = folder.path().join("container");
    let answer = colibri(&["convert", "--json", "--dense", "int4", text_of(model.path()), text_of(&place)]);
    let (kind, message) = answer.error(1);
    assert!(kind == "io" && message.contains("8.80 TB") && message.contains("make room"), "{message}");
    assert!(!place.exists());
}

/// A limit on the size of files stands in for a drive that becomes full.
#[cfg(unix)]
#[test]
fn a_full_drive_is_named_and_what_is_written_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (place, whole) = (folder.path().join("container"), folder.path().join("whole"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_colibri"));
    command.args(["convert", "--dense", "int4", "--json", &tiny(), text_of(&place)]);
    let answer = limited(2000, &command);
    let (kind, message) = answer.error(1);
    assert!(kind == "io" && message.contains("no room") && message.contains("goes on"), "{message}");
    assert!(!place.join("model.safetensors.index.json").exists());
    let (_, message) = run(text_of(&place), &[]).error(1);
    assert!(message.contains("unfinished conversion"), "{message}");
    let resumed = convert(&["--json"], &place).good();
    assert_eq!(
        (&resumed["written"]["resumed"], &resumed["written"]["dense"]),
        (&true.into(), &"int4".into())
    );
    convert(&["--json", "--dense", "int4"], &whole).good();
    for entry in fs::read_dir(&whole).unwrap().map(Result::unwrap) {
        let found = fs::read(place.join(entry.file_name())).unwrap();
        assert!(found == fs::read(entry.path()).unwrap(), "{:?}", entry.file_name());
    }
    assert_eq!(fs::read_dir(&place).unwrap().count(), fs::read_dir(&whole).unwrap().count());
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_it_and_it_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut interrupted = 0;
    for round in 0..12 {
        let place = folder.path().join(round.to_string());
        let mut command = program();
        command.args(["convert", "--dense", "int4", &tiny(), text_of(&place)]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !place.join(".colibri-partial").exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).output().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        if child.wait().unwrap().code() == Some(130) {
            interrupted += 1;
            assert!(said.contains("goes on where it stopped") && said.ends_with("interrupted\n"), "{said}");
            assert!(!place.join("model.safetensors.index.json").exists());
        }
        assert_eq!(convert(&["--json", "--verify"], &place).good()["verified"]["passed"], true);
    }
    assert!(interrupted > 0, "every signal came too late");
}
