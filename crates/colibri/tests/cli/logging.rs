//! `--log-level` and `--log-file`: how much is told, where it goes, and what never is.
use crate::common::{answer_of, colibri, model_copy, program, text_of};
use std::fs;
use std::process::Stdio;

const RUN: [&str; 6] = ["run", "Once there was", "--temperature", "0", "--max-tokens", "3"];

/// Lines of a log.
fn lines(text: &str) -> Vec<&str> {
    let is_line = |line: &&str| {
        ["ERROR ", " WARN ", " INFO ", "DEBUG ", "TRACE "].iter().any(|level| line.contains(level))
    };
    text.lines().filter(is_line).collect()
}

fn log(flags: &[&str]) -> String {
    let answer = colibri(&[&RUN[..], &["--json"], flags].concat());
    answer.good();
    lines(&answer.stderr).join("\n")
}

#[test]
fn each_level_tells_more() {
    assert_eq!(log(&[]), "");
    assert_eq!(log(&["--log-level", "off"]), "");
    let info = log(&["--log-level", "info"]);
    assert!(info.contains("a checkpoint is open") && !info.contains("DEBUG"), "{info}");
    let debug = log(&["--log-level", "debug"]);
    // The prompt at once, then two tokens; the third is chosen and not fed.
    assert_eq!(debug.matches("a step is done").count(), 3, "{debug}");
    let trace = log(&["--log-level", "trace"]);
    assert!(trace.contains("a layer begins") && trace.lines().count() > debug.lines().count());
    // Whatever the level, what was asked and answered is nobody else's business.
    let answer = colibri(&[&RUN[..], &["--json"]].concat()).good()["text"].as_str().unwrap().to_owned();
    for secret in ["Once there was", "there", answer.trim()] {
        assert!(!secret.is_empty() && !trace.contains(secret), "{secret}");
    }
}

#[test]
fn a_file_takes_the_lines_one_run_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let flags = ["--log-level", "info", "--log-file", text_of(&file)];
    assert_eq!(log(&flags), "", "none goes to the other place");
    let once = fs::read_to_string(&file).unwrap();
    assert_eq!(once.lines().count(), lines(&once).len(), "{once}");
    assert_eq!(once.matches("a checkpoint is open").count(), 1);
    assert_eq!(log(&flags), "");
    let twice = fs::read_to_string(&file).unwrap();
    assert!(twice.starts_with(&once) && twice.matches("a checkpoint is open").count() == 2, "{twice}");
}

/// Whoever names a file for a call wants lines in it; a configuration file only says where lines would go.
#[test]
fn a_file_without_lines_is_refused_unless_the_configuration_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (config, file) = (folder.path().join("config.toml"), folder.path().join("log"));
    let asked = |text: &str, variables: &[(&str, &str)], flags: &[&str]| {
        fs::write(&config, text).unwrap();
        let mut command = program();
        command.args(["tokenize", "Once", "--json"]).args(flags).envs(variables.iter().copied());
        command.env("COLIBRI_CONFIG", &config);
        answer_of(command, "")
    };
    let (off, named) = ("log-level = 'off'\n", format!("log-file = '{}'\n", text_of(&file)));
    let variables = [("COLIBRI_LOG_FILE", text_of(&file))];
    for (text, variables, flags, name) in [
        ("", &[][..], &["--log-level", "off", "--log-file", text_of(&file)][..], "--log-file"),
        (off, &[], &["--log-file", text_of(&file)], "--log-file"),
        (off, &variables, &[], "COLIBRI_LOG_FILE"),
        ("", &variables, &["--log-level", "off"], "COLIBRI_LOG_FILE"),
    ] {
        let (kind, message) = asked(text, variables, flags).error(2);
        assert!(kind == "usage" && message.starts_with(&format!("{name} has no effect")), "{message}");
    }
    asked(&named, &[], &["--log-level", "off"]).good();
    asked(&named, &[("COLIBRI_LOG_LEVEL", "off")], &[]).good();
    asked(&(off.to_owned() + &named), &[], &[]).good();
    assert!(!file.exists());
    asked(&(off.to_owned() + &named), &[], &["--log-level", "info"]).good();
    assert!(file.exists());
}

#[test]
fn a_file_that_cannot_take_lines_is_refused_by_name() {
    let (folder, model) = (tempfile::tempdir().unwrap(), model_copy());
    let shard = model.path().join("model-00001-of-000012.safetensors");
    let before = fs::read(&shard).unwrap();
    for (place, code, why) in [
        (folder.path().to_path_buf(), 2, "a file name is expected"),
        (folder.path().join("absent/log"), 1, "the directory of --log-file"),
        (shard.clone(), 2, "into which nothing is ever written"),
        (model.path().join("log"), 2, "into which nothing is ever written"),
    ] {
        let run = ["inspect", "--json", "--model", text_of(model.path()), "--log-file", text_of(&place)];
        let (_, message) = colibri(&run).error(code);
        assert!(message.contains("--log-file") && message.contains(why), "{message}");
        assert!(message.contains(text_of(place.parent().unwrap())), "{message}");
    }
    assert!(fs::read(&shard).unwrap() == before && !model.path().join("log").exists());
}

#[test]
fn what_fails_is_told_at_the_usual_level() {
    let model = model_copy();
    let path = model.path().join("model-00006-of-000012.safetensors");
    let mut shard = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    let table: serde_json::Value = serde_json::from_slice(&shard[8..8 + header]).unwrap();
    for (_, tensor) in table.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("weight_scale")) {
        shard[8 + header + tensor["data_offsets"][0].as_u64().unwrap() as usize] = 255;
    }
    fs::write(&path, shard).unwrap();
    let run = [&RUN[..], &["--expert-cache", "8x", "--model", text_of(model.path())]].concat();
    let told = colibri(&run).stderr;
    assert!(
        lines(&told).iter().any(|line| line.contains("ERROR store::cache") && line.contains("layer=5")),
        "{told}"
    );
    assert_eq!(lines(&colibri(&[&run[..], &["--log-level", "off"]].concat()).stderr), [""; 0]);
}

/// File names are quoted, lines stay whole, and nothing steers the terminal on which a log is read.
#[cfg(unix)]
#[test]
fn lines_cannot_be_forged() {
    let (place, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = place.path().join("m\x1b[2J\u{9b}\u{202e}\n2026 ERROR forged");
    fs::rename(model_copy().keep(), &model).unwrap();
    let run = ["inspect", "--log-level", "debug", "--model", text_of(&model)];
    let screen = crate::pty::on_terminal(100, &run, &[("NO_COLOR", "1")]);
    let file = logs.path().join("log");
    assert_eq!(colibri(&[&run[..], &["--log-file", text_of(&file)]].concat()).code, 0);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("opened") && text.lines().all(|line| line.contains(" store::")), "{text}");
    for text in [&screen.text, &text] {
        assert!(text.contains("opened") && !text.contains(['\x1b', '\u{9b}', '\u{202e}']), "{text:?}");
    }
}

#[cfg(unix)]
#[test]
fn nobody_needs_to_read_the_lines() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = program();
    command.args(RUN).args(["--log-level", "trace"]).stdout(Stdio::piped()).stderr(writer);
    let output = command.output().unwrap();
    let heard = colibri(&RUN);
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), heard.stdout));
}
