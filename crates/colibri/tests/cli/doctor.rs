//! `doctor`: what is well, what is not, and the list of files that complete a model.
use crate::common::{Answer, colibri, edit_json, model_copy, program, text_of};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn doctor(flags: &[&str]) -> Answer {
    colibri(&[&["doctor"], flags].concat())
}

/// The findings on a topic.
fn findings<'v>(report: &'v Value, topic: &str) -> Vec<&'v Value> {
    report["findings"].as_array().unwrap().iter().filter(|finding| finding["topic"] == topic).collect()
}

/// The shards of a model that are there.
fn shards(model: &Path) -> Vec<String> {
    let names = fs::read_dir(model).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".safetensors")).collect();
    names.sort();
    names
}

#[test]
fn a_sound_model_is_well() {
    let model = model_copy();
    let report = doctor(&["--json", "--model", text_of(model.path())]).good();
    assert_eq!((&report["problems"], &report["numerics_version"]), (&json!(0), &json!(1)));
    for topic in [
        "system",
        "processor",
        "memory",
        "settings",
        "model",
        "tokenizer",
        "drive",
        "reads",
        "packing",
        "plan",
    ] {
        assert_eq!(findings(&report, topic).len(), 1, "{topic}: {report}");
        assert_ne!(findings(&report, topic)[0]["standing"], "problem", "{topic}");
    }
    // As inspect sees it.
    let inspected = colibri(&["inspect", "--json", "--model", text_of(model.path())]).good();
    assert_eq!(report["model"], inspected);
    let machine = &report["machine"];
    let [usable, computing] =
        ["usable_processors", "compute_threads"].map(|name| machine[name].as_u64().unwrap());
    assert!(
        machine["memory"]["available_bytes"].as_u64().unwrap() > 0 && usable >= computing && computing > 0
    );
    let drive = &report["drives"][0];
    assert_eq!(
        (&drive["shards"], drive["bytes"].as_u64().unwrap() > 12_809_056),
        (&json!(12), true),
        "{drive}"
    );
    assert!(
        drive["buffered_bytes_per_second"].as_f64().unwrap() > 0.0 && drive["free_bytes"].is_u64(),
        "{drive}"
    );
    // 12.8 MB of weights fit everywhere, and everything stays in memory.
    let fits: Vec<&str> =
        report["packings"].as_array().unwrap().iter().map(|fit| fit["dense"].as_str().unwrap()).collect();
    assert_eq!(fits, ["bf16", "int8", "int4"]);
    assert!(report["packings"].as_array().unwrap().iter().all(|fit| fit["fits"] == true));
    let plan = &report["plan"];
    assert_eq!(
        (&plan["dense"], &plan["slots"], &plan["experts"]),
        (&json!("bf16"), &json!(256), &json!(256))
    );

    let text = doctor(&["--model", text_of(model.path())]).stdout;
    for words in [
        "ok       system",
        "12 shards",
        "nothing is missing",
        "/s",
        "256 experts in memory",
        "(numerics version 1)",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let quick = doctor(&["--json", "--no-measure", "--model", text_of(model.path())]).good();
    assert_eq!(
        (&quick["drives"][0]["buffered_bytes_per_second"], findings(&quick, "reads").len()),
        (&Value::Null, 0)
    );
    let own = doctor(&["--json"]).good();
    assert_eq!((&own["drives"], &own["model"]["complete"]), (&json!([]), &json!(true)));
}

#[test]
fn files_that_complete_a_model_are_listed() {
    let model = model_copy();
    let list = |flags: &[&str], code: i32| {
        let answer = doctor(&[&["--missing", "--model", text_of(model.path())], flags].concat());
        assert_eq!(answer.code, code, "{}{}", answer.stdout, answer.stderr);
        answer
    };
    assert_eq!(list(&[], 0).stdout, "");
    assert_eq!(list(&["--json"], 0).json(), json!({"missing": []}));
    // A model that could not chat is not whole.
    let names = model.path().join("tokenizer_config.json");
    let kept = fs::read(&names).unwrap();
    fs::remove_file(&names).unwrap();
    assert_eq!(list(&[], 1).stdout, "tokenizer_config.json\n");
    let report = doctor(&["--json", "--no-measure", "--model", text_of(model.path())]).json();
    assert!(report["findings"].to_string().contains("no chat"), "{report}");
    fs::write(&names, kept).unwrap();
    let all = shards(model.path());
    let remove = |name: &str| fs::remove_file(model.path().join(name)).unwrap();
    remove(&all[4]);
    remove(&all[2]);
    assert_eq!(list(&[], 1).stdout, format!("{}\n{}\n", all[2], all[4]));
    // One that is cut has to come anew as well, and so does the tokenizer.
    let cut = model.path().join(&all[7]);
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    remove("tiktoken.model");
    let answer = list(&[], 1);
    assert_eq!(answer.stdout, format!("{}\n{}\n{}\ntiktoken.model\n", all[2], all[4], all[7]));
    assert!(
        answer.stderr.contains(&all[7]) && answer.stderr.contains("remove the file"),
        "{}",
        answer.stderr
    );
    assert_eq!(list(&["--json"], 1).json()["missing"][2], all[7].as_str());
    // Without any shard.
    for name in shards(model.path()) {
        remove(&name);
    }
    let listed = list(&[], 1).stdout;
    assert_eq!(listed.lines().filter(|name| name.ends_with(".safetensors")).collect::<Vec<_>>(), all);
    let report = doctor(&["--json", "--model", text_of(model.path())]);
    assert_eq!((report.code, &report.json()["drives"]), (1, &json!([])));
}

#[test]
fn what_is_wrong_is_a_problem_with_advice() {
    let model = model_copy();
    let run = |code: i32| {
        let answer = doctor(&["--json", "--no-measure", "--model", text_of(model.path())]);
        assert_eq!(answer.code, code, "{}", answer.stderr);
        answer.json()
    };
    let problems = |report: &Value| -> Vec<String> {
        let all =
            report["findings"].as_array().unwrap().iter().filter(|finding| finding["standing"] == "problem");
        all.inspect(|finding| assert!(finding["advice"].is_string(), "{finding}"))
            .map(ToString::to_string)
            .collect()
    };
    fs::remove_file(model.path().join("model-00003-of-000012.safetensors")).unwrap();
    let report = run(1);
    let (said, space) = (problems(&report), findings(&report, "space"));
    assert!(said.len() == 1 && said[0].contains("1 of 12 shards are missing: model-00003"), "{said:?}");
    assert!(said[0].contains("--missing") && space.len() == 1, "{said:?} {space:?}");
    assert!(report["plan"].is_null() && report["problems"] == 1);
    // More is to come than any drive holds.
    edit_json(&model.path().join("model.safetensors.index.json"), |index| {
        index["metadata"]["total_size"] = json!(u64::MAX / 2);
    });
    assert!(problems(&run(1)).iter().any(|problem| problem.contains("still to come")));
    fs::write(model.path().join("tiktoken.model"), "no base64\n").unwrap();
    assert!(problems(&run(1)).iter().any(|problem| problem.contains("tiktoken.model line 1")));
    fs::write(model.path().join("config.json"), "{").unwrap();
    let report = run(1);
    assert!(report["model"].is_null() && problems(&report)[0].contains("config.json"), "{report}");
    let text = doctor(&["--no-measure", "--model", "absent"]);
    assert!(
        text.code == 1 && text.stdout.contains("problem  model") && text.stdout.contains("-> "),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout.ends_with("1 problem, 0 warnings\n") || text.stdout.contains("1 problem, "),
        "{}",
        text.stdout
    );
}

/// What `run` would be told elsewhere is in force, and is planned with.
#[test]
fn settings_in_force_are_shown_and_planned_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, "expert-cache = \"3x\"\n[run]\nchunk = 7\n").unwrap();
    let mut command = program();
    command.args(["doctor", "--json", "--config", text_of(&file)]).env("COLIBRI_DENSE", "int8");
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let plan = &report["plan"];
    assert_eq!(
        (&plan["slots"], &plan["chunk"], &plan["dense"]),
        (&json!(3), &json!(7), &json!("int8")),
        "{report}"
    );
    let said = findings(&report, "settings")[0]["text"].as_str().unwrap();
    for words in [text_of(&file), "dense int8 (COLIBRI_DENSE)", "chunk 7 (", "expert-cache 3x ("] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(report["settings"]["run"].as_array().unwrap().len(), 3, "{report}");
}
