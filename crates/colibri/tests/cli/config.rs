//! `colibri config`, and where settings come from, as users meet it.
use crate::common::{Answer, answer_of, data, edit_json, model_copy, program, text_of};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A run with these variables; `home` is where the platform's file is looked for.
fn colibri_in(home: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Answer {
    let mut command = program();
    command.env("HOME", home).env("XDG_CONFIG_HOME", home).env("APPDATA", home);
    command.envs(variables.iter().copied()).args(arguments);
    answer_of(command, "")
}

/// A home with this configuration file in its usual place.
fn home_with(text: &str) -> TempDir {
    let home = TempDir::new().unwrap();
    let path = colibri_in(home.path(), &[], &["config", "--path", "--json"]).good()["path"].clone();
    let path = Path::new(path.as_str().unwrap());
    assert!(path.starts_with(home.path()) && path.ends_with("colibri/config.toml"), "{}", path.display());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    home
}

fn setting(home: &TempDir, variables: &[(&str, &str)], arguments: &[&str], name: &str) -> (Value, Value) {
    let all = colibri_in(home.path(), variables, &[&["config", "--json"], arguments].concat()).good();
    (all["settings"][name]["value"].clone(), all["settings"][name]["origin"].clone())
}

#[test]
fn each_origin_goes_before_the_next() {
    let home = home_with("chunk = 5\nignore-eos = true\n[run]\nchunk = 6\n[inspect]\njson = true\n");
    let chunk =
        |variables: &[(&str, &str)], arguments: &[&str]| setting(&home, variables, arguments, "chunk");
    assert_eq!(chunk(&[], &["--no-config"]), (json!(null), json!("default")));
    assert_eq!(chunk(&[], &["logits"]), (json!(5), json!("file")));
    assert_eq!(chunk(&[], &[]), (json!(6), json!("file")), "run is what is shown if nothing is asked");
    let eight = [("COLIBRI_CHUNK", "8")];
    assert_eq!(chunk(&eight, &[]), (json!(8), json!("environment")));
    assert_eq!(chunk(&eight, &["run", "--chunk", "9"]), (json!(9), json!("command line")));
    assert_eq!(setting(&home, &[], &["run", "--ignore-eos=false"], "ignore-eos").0, json!(false));
    // The commands themselves do what is shown.
    let run = |variables: &[(&str, &str)], more: &[&str]| {
        let base = ["run", "Once", "--json", "--max-tokens", "1", "--threads", "1"];
        colibri_in(home.path(), variables, &[&base, more].concat()).good()["settings"].clone()
    };
    assert_eq!((&run(&[], &[])["chunk"], &run(&[], &[])["ignore_eos"]), (&json!(6), &json!(true)));
    assert_eq!(run(&eight, &[])["chunk"], 8);
    assert_eq!(run(&eight, &["--chunk", "9", "--ignore-eos=false"])["ignore_eos"], false);
    assert_eq!(run(&[], &["--no-config"])["chunk"], 512);
    let inspected = colibri_in(home.path(), &[], &["inspect"]).good();
    assert_eq!(inspected["family"], "kimi_k3");
    assert!(!colibri_in(home.path(), &[], &["inspect", "--json=false"]).stdout.starts_with('{'));
    let all = colibri_in(home.path(), &[], &["config", "--all", "--json"]);
    let all = all.good();
    let chunks: Vec<&Value> =
        all["commands"].as_array().unwrap().iter().map(|c| &c["settings"]["chunk"]["value"]).collect();
    assert!(chunks.contains(&&json!(5)) && chunks.contains(&&json!(6)), "{chunks:?}");
}

#[test]
fn a_setting_without_effect_is_shown_and_does_not_stop_the_command_line() {
    let home = home_with("seed = 7\ntop-k = 9\n");
    let greedy = ["run", "Once", "--temperature", "0", "--max-tokens", "1"];
    let run = colibri_in(home.path(), &[], &[&greedy[..], &["--json"]].concat()).good();
    assert_eq!(run["settings"]["seed"], Value::Null);
    let shown = colibri_in(home.path(), &[], &[&["config"], &greedy[..]].concat());
    let line = shown.stdout.lines().find(|line| line.starts_with("seed")).unwrap();
    assert!(line.contains("7 of config.toml:1 has no effect beside --temperature 0"), "{line}");
    let refused =
        colibri_in(home.path(), &[("COLIBRI_SEED", "3")], &[&greedy[..], &["--seed", "3"]].concat());
    assert!(refused.code == 2 && refused.stderr.contains("--seed has no effect"), "{}", refused.stderr);
    // Of one origin, or where the idle one comes from the higher: refused by the name that the user gave it.
    let home = home_with("seed = 7\ntemperature = 0\n");
    let refused = colibri_in(home.path(), &[], &["run", "Once"]);
    assert!(refused.code == 2 && refused.stderr.contains("`seed` in line 1 of"), "{}", refused.stderr);
    let refused = colibri_in(home.path(), &[("COLIBRI_TOP_K", "3")], &["run", "Once", "--json"]).error(2).1;
    assert!(refused.contains("COLIBRI_TOP_K has no effect with `temperature` in line 2 of"), "{refused}");
}

#[test]
fn files_are_found_named_and_refused() {
    let home = home_with("chunk = 5");
    let other = home.path().join("other.toml");
    fs::write(&other, "chunk = 6\nmodel = 'm'\n").unwrap();
    let other = text_of(&other);
    for (variables, arguments, chunk) in [
        (&[][..], &["run"][..], Some(5)),
        (&[("COLIBRI_CONFIG", other)], &["run"], Some(6)),
        (&[], &["run", "--config", other], Some(6)),
        (&[("COLIBRI_CONFIG", "absent")], &["run", "--config", other], Some(6)),
        (&[("COLIBRI_NO_CONFIG", "1")], &["run", "--config", other], Some(6)),
        (&[("COLIBRI_CONFIG", other)], &["run", "--no-config"], None),
    ] {
        assert_eq!(
            setting(&home, variables, arguments, "chunk").0,
            json!(chunk),
            "{variables:?} {arguments:?}"
        );
    }
    let before = colibri_in(home.path(), &[], &["config", "--json", "--config", other, "run"]).good();
    assert_eq!(before["settings"]["chunk"]["value"], 6);
    let model = home.path().join("m");
    assert_eq!(before["settings"]["model"]["value"], json!([text_of(&model)]));
    let absent = colibri_in(home.path(), &[], &["inspect", "--json", "--config", "absent.toml"]).error(2).1;
    assert!(absent.contains("--config absent.toml") && absent.contains("cannot be read"), "{absent}");
    fs::write(other, b"chunk = 6\n# \xff").unwrap();
    let no_text = colibri_in(home.path(), &[], &["run", "x", "--json", "--config", other]).error(2).1;
    assert!(no_text.contains("line 2") && no_text.contains("UTF-8"), "{no_text}");
    fs::write(other, vec![b'#'; 2 << 20]).unwrap();
    let long = colibri_in(home.path(), &[], &["run", "x", "--json", "--config", other]).error(2).1;
    assert!(long.contains("longer than"), "{long}");
    let folder =
        colibri_in(home.path(), &[], &["run", "x", "--json", "--config", text_of(home.path())]).error(2).1;
    assert!(folder.contains("cannot be read"), "{folder}");
}

#[test]
fn while_the_file_is_wrong_help_path_and_template_answer_and_all_else_is_refused() {
    let home = home_with("chunk = 5\nchunk = 6\n");
    for arguments in [&["inspect"][..], &["run", "x"], &["config"], &["config", "--all"]] {
        let refused = colibri_in(home.path(), &[], arguments);
        assert!(refused.code == 2 && refused.stderr.contains("config.toml, line 2"), "{}", refused.stderr);
    }
    for arguments in [
        &["config", "--path"][..],
        &["config", "--template"],
        &["run", "--help"],
        &["--version"],
        &["inspect", "--no-config"],
    ] {
        assert_eq!(colibri_in(home.path(), &[], arguments).code, 0, "{arguments:?}");
    }
    let none = colibri_in(home.path(), &[], &["config", "--path", "--no-config", "--json"]).error(2).1;
    assert!(none.contains("--no-config"), "{none}");
}

#[test]
fn the_template_can_be_used_as_it_is() {
    let empty = home_with("");
    let template = colibri_in(empty.path(), &[], &["config", "--template"]).stdout;
    let home = home_with(&template);
    let shown = |home: &TempDir| colibri_in(home.path(), &[], &["config", "--all", "--json"]).stdout;
    let of_template: Value = serde_json::from_str(&shown(&home)).unwrap();
    let of_empty: Value = serde_json::from_str(&shown(&empty)).unwrap();
    let settings = |all: &Value| {
        all["commands"].as_array().unwrap().iter().map(|c| c["settings"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(settings(&of_template), settings(&of_empty));
    for key in [
        "#expert-cache =",
        "#chunk =",
        "#readers = 4",
        "COLIBRI_EXPERT_CACHE",
        "#[run]",
        "ignore-eos = false",
    ] {
        assert!(template.contains(key), "{key}");
    }
}

#[test]
fn what_the_model_and_the_plan_choose_is_shown() {
    let (model, home) = (model_copy(), home_with("temperature = 0.7\n"));
    edit_json(&model.path().join("generation_config.json"), |value| {
        *value = json!({"temperature": 0.6, "top_p": 0.95, "max_new_tokens": 3, "repetition_penalty": 1.25});
    });
    let place = text_of(model.path());
    let shown = |more: &[&str]| {
        let line = [&["config", "--json", "run", "--model", place], more].concat();
        colibri_in(home.path(), &[], &line).good()["settings"].clone()
    };
    let all = shown(&["--max-tokens", "9", "--threads", "3", "--context", "300"]);
    for (name, value, origin) in [
        ("temperature", json!(0.7), "file"),
        ("top-p", json!(0.95), "model"),
        ("repeat-penalty", json!(1.25), "model"),
        ("max-tokens", json!(9), "command line"),
        ("top-k", Value::Null, "default"),
        ("context", json!(300), "command line"),
    ] {
        assert_eq!((&all[name]["value"], &all[name]["origin"]), (&value, &json!(origin)), "{name}");
    }
    assert_eq!(all["dense"]["planned"], "bf16");
    assert_eq!((&all["threads"]["planned"], &all["context"]["planned"]), (&Value::Null, &Value::Null));
    let plain = shown(&[]);
    assert_eq!((&plain["context"]["planned"], &plain["max-tokens"]["value"]), (&json!(4096), &json!(3)));
    assert!(plain["threads"]["planned"].as_u64().unwrap() >= 1);
    assert!(plain["expert-cache"]["planned"].as_str().unwrap().ends_with('B'));
    let greedy = shown(&["--temperature", "0"]);
    assert_eq!(
        (&greedy["top-p"]["origin"], &greedy["max-tokens"]["origin"]),
        (&json!("default"), &json!("model"))
    );
    // A model that is not there keeps nobody from seeing the rest.
    let absent = colibri_in(home.path(), &[], &["config", "run", "--model", "absent"]);
    assert!(absent.code == 0 && absent.stderr.contains("absent"), "{}", absent.stderr);
    assert!(absent.stdout.contains("temperature"), "{}", absent.stdout);
}

#[test]
fn refusals_are_said_as_the_settings_ask() {
    let home = home_with("[inspect]\njson = true\n");
    let refused = |variables: &[(&str, &str)], line: &[&str]| colibri_in(home.path(), variables, line);
    let json = [("COLIBRI_JSON", "1")];
    for (variables, line, in_json) in [
        (&[][..], &["inspect", "--bogus"][..], true),
        (&[], &["inspect", "--bogus", "--no-config"], false),
        (&[], &["inspect", "--bogus", "--json=false"], false),
        (&[], &["run", "x", "--bogus"], false),
        (&json, &["run", "x", "--bogus"], true),
        (&json, &["run"], true),
        (&[("COLIBRI_JSON", "1"), ("COLIBRI_CHUNK", "0")], &["run", "x"], true),
        (&[("COLIBRI_JSON", "1"), ("COLIBRI_BOGUS", "0")], &["run", "x"], true),
    ] {
        let answer = refused(variables, line);
        assert_eq!(answer.code, 2, "{line:?}");
        if in_json {
            assert_eq!(answer.error(2).0, "usage");
        } else {
            assert!(
                answer.stdout.is_empty() && answer.stderr.contains("error: "),
                "{line:?}: {}",
                answer.stdout
            );
        }
    }
}

#[test]
fn settings_of_a_file_that_cannot_act_here_are_told_and_do_not_stop_a_run() {
    let home = home_with("expert-cache = '40x'\nreaders = 2\nactivations = 'int8'\ndense = 'bf16'\n");
    let out = home.path().join("out");
    let line = ["logits", "Once", "--out", text_of(&out), "--layers", "1"];
    let answer = colibri_in(home.path(), &[("COLIBRI_EXPERT_TOP_P", "0.5")], &line);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    for name in [
        "`expert-cache` in line 1 of",
        "`readers` in line 2 of",
        "`activations` in line 3",
        "COLIBRI_EXPERT_TOP_P",
    ] {
        let note = answer.stderr.lines().find(|line| line.starts_with("note: ") && line.contains(name));
        assert!(note.is_some_and(|note| note.contains("has no effect")), "{name}: {}", answer.stderr);
    }
    let golden = data("k3-tiny/golden");
    let typed = ["verify", "--golden", text_of(&golden), "--activations", "exact"];
    assert_eq!(colibri_in(home.path(), &[], &typed).code, 0, "where they act they act");
}
