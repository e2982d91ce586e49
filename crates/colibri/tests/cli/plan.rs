//! `colibri plan`: the plan of a run, from the index alone, for a described machine, with hits from traces; and what it
//! refuses.
#[cfg(target_os = "linux")]
use crate::common::answer_of;
use crate::common::{colibri, edit_json, model_copy, text_of};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Of the embedded model: layers with experts, picks a token, bytes of an expert.
const LAYERS: f64 = 8.0;
const PICKS: f64 = 4.0;
const EXPERT: f64 = 9792.0;

/// The steps of a plan by name: a first token, one at the end of the context, a prompt.
fn steps(plan: &Value) -> [&Value; 3] {
    let steps = plan["steps"].as_array().unwrap();
    [&steps[0], &steps[1], &steps[2]]
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} in {value}"))
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-9), "{found}, expected {expected}");
}

/// Lets only the files stay that a download begins with.
fn index_alone() -> TempDir {
    let model = model_copy();
    for entry in fs::read_dir(model.path()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name != "config.json" && name != "model.safetensors.index.json" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    model
}

#[test]
fn a_run_takes_what_was_planned() {
    let flags = ["--context", "300", "--chunk", "32", "--expert-cache", "40x", "--dense", "int8", "--json"];
    let plan = colibri(&[&["plan", "--no-measure"], &flags[..]].concat()).good();
    let run = colibri(&[&["run", "Once", "--max-tokens", "1"], &flags[..]].concat());
    assert!(run.stderr.contains("of experts; were they picked evenly, 15.6 % of them"), "{}", run.stderr);
    let run = run.good();
    assert_eq!(plan["memory"]["planned_bytes"], run["stats"]["memory"]["planned_bytes"]);
    assert_eq!(plan["experts"]["slots"], run["stats"]["experts"]["slots"]);
    for setting in ["dense", "context", "chunk", "expert_cache", "look_ahead"] {
        assert_eq!(plan["settings"][setting], run["settings"][setting], "{setting}");
    }
    // An item of each kind of dense weights makes up their sum.
    let sum = |list: &str| {
        plan["memory"][list].as_array().unwrap().iter().map(|row| number(row, "/bytes")).sum::<f64>()
    };
    close(sum("items"), number(&plan, "/memory/planned_bytes"));
    close(sum("dense"), number(&plan["memory"]["items"][0], "/bytes"));
    assert_eq!(plan["memory"]["packings"].as_array().unwrap().len(), 3);
}

/// Without shards nothing holds the config to its claim: 512 rows of so many logits are 34 GB.
#[cfg(target_os = "linux")]
#[test]
fn a_vocabulary_that_is_only_claimed_takes_no_memory() {
    let model = index_alone();
    let path = model.path().join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    let claimed = config.replace("\"vocab_size\": 4096", "\"vocab_size\": 16777216");
    assert_ne!(claimed, config);
    fs::write(&path, claimed).unwrap();
    let mut command = std::process::Command::new("sh");
    let limited = "ulimit -v 4000000; exec \"$0\" \"$@\"";
    command.args(["-c", limited, env!("CARGO_BIN_EXE_colibri"), "plan", "--model", text_of(model.path())]);
    command.args(["--ram", "64GB", "--chunk", "512", "--no-measure", "--json", "--no-config"]);
    let plan = answer_of(command, "").good();
    assert_eq!(plan["settings"]["chunk"], 512);
}

/// As many layers, as wide and as long as a config may say: the sum has more than 64 bits.
#[test]
fn sizes_beyond_all_numbers_are_refused_by_their_sum() {
    const LAYERS: u64 = 4096;
    let model = index_alone();
    edit_json(&model.path().join("config.json"), |config| {
        let text = &mut config["text_config"];
        text["num_hidden_layers"] = LAYERS.into();
        text["first_k_dense_replace"] = LAYERS.into();
        text["linear_attn_config"]["kda_layers"] = json!([]);
        text["linear_attn_config"]["full_attn_layers"] = (1..=LAYERS).collect();
        (text["num_attention_heads"], text["num_key_value_heads"]) = (1.into(), 1.into());
        (text["kv_lora_rank"], text["qk_rope_head_dim"]) = ((1 << 20).into(), 65536.into());
        text["max_position_embeddings"] = (1 << 30).into();
    });
    edit_json(&model.path().join("model.safetensors.index.json"), |index| {
        index["metadata"]["total_size"] = u64::MAX.into();
        let map = index["weight_map"].as_object_mut().unwrap();
        // The parts of a layer with attention over positions, and those of one with a dense MLP.
        let part = |name: &&String| {
            name.contains(".layers.3.") && !name.contains(".block_sparse_moe.")
                || name.contains(".layers.0.mlp.")
        };
        let parts: Vec<String> = map.keys().filter(part).cloned().collect();
        for (layer, name) in (0..LAYERS).flat_map(|layer| parts.iter().map(move |name| (layer, name))) {
            let name = name.replace(".layers.3.", ".layers.0.").replace(".0.", &format!(".{layer}."));
            map.insert(name, "model-00001-of-000012.safetensors".into());
        }
    });
    let place = text_of(model.path());
    let flags = ["--model", place, "--ram", "18446744TB", "--no-measure", "--json"];
    let (kind, message) = colibri(&[&["plan", "--context", "1073741824"], &flags[..]].concat()).error(1);
    assert!(kind == "memory" && message.contains("the model needs 18446744 TB"), "{kind}: {message}");
    assert!(message.contains("With all else as asked this would fit: --context "), "{message}");
    // What fits is planned, and what the index claims is taken as it is.
    let plan = colibri(&[&["plan"], &flags[..]].concat()).good();
    assert_eq!(plan["source"]["missing_bytes"], u64::MAX);
}

#[test]
fn the_index_is_enough_for_a_described_machine() {
    let model = index_alone();
    let place = text_of(model.path());
    let flags =
        ["--model", place, "--ram", "64GB", "--disk", "7GB/s", "--expert-cache", "64x", "--no-measure"];
    let plan = colibri(&[&["plan", "--json"], &flags[..]].concat()).good();
    assert_eq!(plan["source"]["from"], "config.json and the index alone");
    assert_eq!(
        (&plan["source"]["shards"]["named"], &plan["source"]["shards"]["present"]),
        (&12.into(), &0.into())
    );
    let index: Value =
        serde_json::from_slice(&fs::read(model.path().join("model.safetensors.index.json")).unwrap())
            .unwrap();
    assert_eq!(plan["source"]["bytes"], index["metadata"]["total_size"]);
    assert_eq!(plan["source"]["missing_bytes"], plan["source"]["bytes"]);
    let memory = &plan["machine"]["memory"];
    assert_eq!((&memory["total_bytes"], &memory["origin"]), (&64_000_000_000_u64.into(), &"given".into()));
    close(number(memory, "/usable_bytes"), 64e9 - 64e9 / 50.0 - f64::from(256 << 20));
    assert_eq!(plan["machine"]["disk_bytes_per_second"]["origin"], "given");

    let [first, last, prompt] = steps(&plan);
    let cold = LAYERS * PICKS * EXPERT;
    close(number(first, "/bytes_per_token_cold"), cold);
    close(number(first, "/bytes_per_token"), cold * 0.75);
    close(number(first, "/seconds_per_token/reads"), cold * 0.75 / 7e9);
    assert_eq!(
        (&first["hits_from"], &first["tokens_before"], &last["tokens_before"]),
        (&"chance".into(), &0.into(), &4095.into())
    );
    // 512 rows ask for all experts of a layer, once for the whole chunk.
    let asked = 32.0 * (1.0 - (1.0 - 4.0 / 32.0_f64).powi(512));
    close(number(prompt, "/bytes_per_token_cold"), LAYERS * asked * EXPERT / 512.0);
    // What computing takes was not measured, so nothing is said of all together.
    assert!(first["seconds_per_token"]["compute"].is_null() && first["bound"]["at_worst"].is_null());

    let text = colibri(&[&["plan"], &flags[..]].concat());
    assert_eq!(text.code, 0, "{}", text.stderr);
    let long = text.stdout.lines().find(|line| line.chars().count() > 80 && !line.contains(place));
    assert_eq!(long, None);
    for part in ["the index alone", "to be downloaded", "memory (given)", "disk 7.00 GB/s (given)", "25.0%"] {
        assert!(text.stdout.contains(part), "{part} in {}", text.stdout);
    }

    // With some shards it says so; a name that the index lacks is refused as ever.
    let shard = "model-00003-of-000012.safetensors";
    fs::copy(model_copy().path().join(shard), model.path().join(shard)).unwrap();
    let some = colibri(&[&["plan", "--json"], &flags[..]].concat()).good();
    assert_eq!(some["source"]["from"], "config.json, the index and some of the shards");
    assert!(number(&some, "/source/missing_bytes") < number(&plan, "/source/missing_bytes"));
    // Of so small a model a header tells of padding that is read ahead, and nothing else.
    let bytes = |plan: &Value| number(plan, "/memory/planned_bytes");
    assert!((bytes(&some) - bytes(&plan)).abs() < 1000.0);
    let mut lacking = index;
    let names = lacking["weight_map"].as_object_mut().unwrap();
    names.remove("language_model.model.layers.4.self_attn.q_proj.weight").unwrap();
    fs::write(model.path().join("model.safetensors.index.json"), lacking.to_string()).unwrap();
    let (_, message) = colibri(&[&["plan", "--json"], &flags[..]].concat()).error(1);
    assert!(message.contains("layers.4.self_attn.q_proj.weight"), "{message}");
}

/// Guesses and overlap decide how reads and computing go together; computing is measured, the drive is given.
#[test]
fn seconds_follow_from_what_waits_for_what() {
    let plan = |flags: &[&str]| {
        let fixed = ["plan", "--json", "--expert-cache", "40x", "--disk", "1MB/s", "--chunk", "8"];
        colibri(&[&fixed[..], flags].concat()).good()
    };
    let of = |plan: &Value, what: &str| number(steps(plan)[0], &format!("/seconds_per_token/{what}"));
    let range = plan(&[]);
    let (compute, reads) = (of(&range, "compute"), of(&range, "reads"));
    let (least, most) = (of(&range, "at_best"), of(&range, "at_worst"));
    assert!(compute > 0.0 && reads > 0.0);
    close(least, compute.max(reads));
    assert!(least <= most && most <= compute + reads, "{least} {most}");
    assert_eq!(range["machine"]["memory_bytes_per_second"]["origin"], "measured");
    let kinds = range["machine"]["products"].as_array().unwrap();
    assert!(
        kinds.iter().any(|kind| kind["packing"] == "mxfp4")
            && kinds.iter().any(|kind| kind["packing"] == "bf16")
    );
    let off = plan(&["--look-ahead", "off"]);
    close(of(&off, "at_best"), of(&off, "at_worst"));
    let in_turn = plan(&["--overlap", "off"]);
    close(of(&in_turn, "at_worst"), of(&in_turn, "compute") + of(&in_turn, "reads"));
    // 300 kB at 1 MB/s take longer than computing on any machine of today.
    assert_eq!(steps(&range)[0]["bound"]["at_best"], "disk");
    // The embedded model lies in memory: without a given rate nothing can be measured.
    let unknown = colibri(&["plan", "--json", "--expert-cache", "40x"]).good();
    assert!(steps(&unknown)[0]["seconds_per_token"]["reads"].is_null());
    assert!(unknown["notes"].to_string().contains("seconds are not predicted: the model lies in memory"));
    let resident = colibri(&["plan", "--json", "--disk", "1GB/s"]).good();
    assert!(
        resident["notes"]
            .to_string()
            .contains("--disk has no effect on this plan: there is a slot for every expert")
    );
    close(of(&resident, "reads"), 0.0);
    close(of(&resident, "at_worst"), of(&resident, "compute"));
}

/// Tokens of one text, and what a plan made from the trace of another said of them.
fn traced(place: &Path, name: &str, prompt: &str, seed: &str) -> String {
    let file = text_of(&place.join(name)).to_owned();
    let flags = ["--max-tokens", "300", "--seed", seed, "--expert-cache", "64x", "--look-ahead", "off"];
    colibri(&[&["run", prompt, "--trace-routing", &file, "--json"], &flags[..]].concat()).good();
    file
}

#[test]
fn hits_come_from_traces_of_runs() {
    let place = TempDir::new().unwrap();
    let one = traced(place.path(), "one", "The little girl went to the forest with her mother", "3");
    let other = traced(place.path(), "other", "One day a boy found a red ball", "4");
    let planned = |trace: &str, slots: &str| {
        let plan =
            colibri(&["plan", "--no-measure", "--expert-cache", slots, "--trace", trace, "--json"]).good();
        let token = steps(&plan)[0].clone();
        assert_eq!(token["hits_from"], "traces");
        (number(&token, "/hit_rate"), plan)
    };
    let ((predicted, _), (found, _)) = (planned(&one, "64x"), planned(&other, "64x"));
    assert!((predicted - found).abs() <= 0.02, "{predicted}, found {found}");
    // What is found is what the run itself counted: tokens and the prompt together.
    let (_, plan) = planned(&other, "64x");
    let simulated = colibri(&["simulate", &other, "--slots", "64", "--policy", "lfu", "--json"]).good();
    let [token, _, prompt] = steps(&plan);
    let rows = number(&simulated["traces"][0], "/rows");
    let asked = |step: &Value, times: f64| number(step, "/experts_a_layer") * LAYERS * times;
    let (tokens, prompts) = (asked(token, rows - prompt_rows(&other)), asked(prompt, 1.0));
    // A chunk is as long as the prompt was, whatever the plan allows.
    assert_eq!(number(prompt, "/rows"), prompt_rows(&other));
    let hits = tokens * number(token, "/hit_rate") + prompts * number(prompt, "/hit_rate");
    let line =
        simulated["results"].as_array().unwrap().iter().find(|line| line["known"] == "nothing").unwrap();
    assert!((hits - number(line, "/hits")).abs() < 0.5, "{hits} of {line}");
}

/// Tokens of the prompt, which was fed in one chunk.
fn prompt_rows(trace: &str) -> f64 {
    let trace = store::routing::RoutingTrace::parse(&fs::read(trace).unwrap()).unwrap();
    (trace.steps[0][0].picks.len() / usize::from(trace.head.ranks)) as f64
}

#[test]
fn what_cannot_be_is_refused() {
    let place = TempDir::new().unwrap();
    let trace = traced(place.path(), "a", "Once", "1");
    let cases: [(&[&str], i32, &str); 19] = [
        (&["--ram", "64"], 2, "the unit is missing; expected bytes from 256MiB on, such as 64GB"),
        (&["--ram", "25%"], 2, "'--ram <SIZE>': expected bytes from 256MiB on, such as 64GB"),
        (&["--ram", "1MB"], 2, "256MiB"),
        (&["--disk", "7GB"], 2, "such as 7GB/s"),
        (
            &["--no-measure", "--readers", "2"],
            2,
            "--readers has no effect on this plan: no drive is measured",
        ),
        (&["--disk", "7GB/s", "--io", "buffered"], 2, "--io has no effect on this plan"),
        (&["--mirror", "absent-mirror"], 1, "absent-mirror"),
        (&["--mirror", "x", "--io", "uring"], 2, "--mirror cannot be read with --io uring; take --io direct"),
        (
            &["--layers", "1", "--trace", &trace],
            2,
            "--trace has no effect on this plan: none of the layers in use has routed experts; leave it away or use more",
        ),
        (&["--cache-policy", "lru"], 2, "--cache-policy has no effect on this plan: without --trace hits"),
        (&["--expert-top-p", "0.5", "--trace", &trace], 2, "--expert-top-p has no effect on this plan"),
        (
            &["--no-measure", "--look-ahead", "off"],
            2,
            "--look-ahead has no effect on this plan: with --no-measure seconds stay unknown",
        ),
        (
            &["--disk", "1GB/s", "--overlap", "off", "--look-ahead", "4"],
            2,
            "without overlap nothing is read on a guess; take --overlap on or leave it away",
        ),
        (
            &["--layers", "1", "--cache-policy", "lru"],
            2,
            "none of the layers in use has routed experts; leave it away or use more layers",
        ),
        (&["--no-measure", "--overlap", "off"], 2, "--overlap has no effect on this plan: with --no-measure"),
        (
            &["--no-measure", "--activations", "int8"],
            2,
            "--activations has no effect on this plan: with --no-measure",
        ),
        (
            &["--layers", "3", "--trace", &trace],
            1,
            "it is of a run with other --layers: expected 2 layers of 32 experts, of which a token picks 4, found 8 layers",
        ),
        (&["--trace", "absent"], 1, "absent"),
        (&["--ram", "256MiB"], 1, "the model needs"),
    ];
    for (flags, code, part) in cases {
        let (_, message) = colibri(&[&["plan", "--json"], flags].concat()).error(code);
        assert!(message.contains(part), "{flags:?}: {message}");
    }
}

/// What memory or files decide is told, not refused; and what was refused elsewhere acts where it can.
#[test]
fn what_acts_is_taken_and_what_happens_not_to_act_is_told() {
    let place = TempDir::new().unwrap();
    let trace = traced(place.path(), "a", "Once upon a time", "1");
    let plan = |flags: &[&str]| colibri(&[&["plan", "--json", "--no-measure"], flags].concat()).good();
    // Who packs needs room for every thread, also in a plan that is only offered.
    let offered =
        |threads: &str| plan(&["--dense", "bf16", "--threads", threads])["memory"]["packings"].clone();
    assert_ne!(offered("9"), offered("1"));
    let bytes = |threads: &str| {
        number(&plan(&["--dense", "int8", "--threads", threads]), "/memory/planned_bytes") as u64
    };
    // The matrix that takes most room, the head, has rows of 192 numbers.
    assert_eq!(bytes("9") - bytes("1"), 8 * 192 * 4);
    let hits = |policy: &str| {
        let plan = plan(&["--expert-cache", "20x", "--trace", &trace, "--cache-policy", policy]);
        number(steps(&plan)[0], "/hit_rate")
    };
    assert!(hits("lru") < hits("lfu"), "{} {}", hits("lru"), hits("lfu"));
    for (flags, note) in [
        (&["--readers", "2"][..], "--readers has no effect on this plan: there is a slot for every expert"),
        (
            &["--io", "buffered", "--expert-cache", "40x"],
            "--io has no effect on this plan: no drive could be measured",
        ),
        (
            &["--disk", "1GB/s", "--trace", &trace],
            "--trace has no effect on this plan: there is a slot for every expert",
        ),
    ] {
        let plan = colibri(&[&["plan", "--json"], flags].concat()).good();
        assert!(plan["notes"].to_string().contains(note), "{note}: {}", plan["notes"]);
    }
}

/// What a run keeps in memory for its mirror is planned, for as many reads as are under way at once.
#[test]
fn a_mirror_takes_the_memory_that_it_takes_in_a_run() {
    let mirror = model_copy();
    let flags = ["--mirror", text_of(mirror.path()), "--expert-cache", "40x", "--context", "300", "--json"];
    let planned = |flags: &[&str]| colibri(&[&["plan", "--no-measure"], flags].concat()).good();
    let bytes = |plan: &Value| plan["memory"]["planned_bytes"].as_u64().unwrap();
    let plan = planned(&flags);
    let run =
        colibri(&[&["run", "Once", "--max-tokens", "1", "--governor", "off"], &flags[..]].concat()).good();
    assert_eq!(plan["memory"]["planned_bytes"], run["stats"]["memory"]["planned_bytes"]);
    assert!(plan["memory"]["items"].to_string().contains("buffers of the mirror"), "{plan}");
    assert_eq!(bytes(&plan) - bytes(&planned(&flags[2..])), 4 * (16 << 20));
    assert_eq!(bytes(&planned(&[&flags[..], &["--readers", "6"]].concat())) - bytes(&plan), 2 * (16 << 20));
    let note = "what a mirror gives is not predicted: add its rate to that of --disk";
    assert!(plan["notes"].to_string().contains(note), "{}", plan["notes"]);
    // What each packing needs has them, too, so that as much memory as is needed is enough.
    let needed = |plan: &Value| number(plan, "/memory/packings/2/needed_bytes") as u64;
    assert_eq!(needed(&plan) - needed(&planned(&flags[2..])), 4 * (16 << 20));
}

/// Where seconds stay unknown, nothing that they alone depend on acts.
#[test]
fn what_only_seconds_depend_on_is_told_where_they_are_unknown() {
    let fixed = ["plan", "--json", "--expert-cache", "40x"];
    let notes = |flags: &[&str]| colibri(&[&fixed[..], flags].concat()).good()["notes"].to_string();
    for flags in [["--overlap", "off"], ["--look-ahead", "off"]] {
        let note = format!("{} has no effect on this plan: no drive could be measured, so that", flags[0]);
        assert!(notes(&flags).contains(&note), "{note}");
    }
    let note =
        "--look-ahead has no effect on this plan: a plan asks whether experts are guessed, not how many";
    assert!(notes(&["--disk", "1GB/s", "--look-ahead", "8"]).contains(note));
    assert!(!notes(&["--disk", "1GB/s", "--look-ahead", "off"]).contains("has no effect"));
}

/// What a plan says that it needs is enough, and a byte less is not.
#[test]
fn as_much_memory_as_is_needed_is_enough() {
    let fixed = ["plan", "--json", "--no-measure", "--context", "256", "--chunk", "1", "--dense", "int4"];
    let plan = |cache: &str, ram: u64| {
        colibri(&[&fixed[..], &["--expert-cache", cache, "--ram", &format!("{ram}B")]].concat())
    };
    let needed = |plan: &Value| number(&plan["memory"]["packings"][2], "/needed_bytes") as u64;
    // Of eight slots one can be given up, and then the rest is planned.
    for (cache, slots) in [("8x", 8), ("1x", 1)] {
        let roomy = plan(cache, 1 << 30).good();
        let bytes = needed(&roomy);
        assert_eq!(roomy["memory"]["planned_bytes"], bytes);
        let usable = |ram: u64| (ram - ram / 50).saturating_sub(256 << 20);
        let ram = (1 << 28..1 << 30).find(|ram| usable(*ram) >= bytes).unwrap();
        let exact = plan(cache, ram).good();
        assert_eq!((&exact["experts"]["slots"], needed(&exact)), (&slots.into(), bytes));
        assert_eq!(exact["memory"]["planned_bytes"], number(&exact, "/machine/memory/usable_bytes") as u64);
        let less = plan(cache, ram - 1);
        match slots {
            1 => assert!(less.error(1).1.contains("the model needs")),
            _ => assert_eq!(less.good()["experts"]["slots"], 7),
        }
    }
}

/// Experts in the file cache may take room of mapped weights, which is all that --io changes where no drive is measured.
#[cfg(unix)]
#[test]
fn only_buffered_reads_can_act_on_mapped_weights() {
    let place = TempDir::new().unwrap();
    let container = text_of(&place.path().join("int4")).to_owned();
    colibri(&["convert", "--dense", "int4", "--json", text_of(model_copy().path()), &container]).good();
    let fixed = ["plan", "--json", "--model", &container, "--dense-residency", "mapped", "--ram", "64GB"];
    for drive in [&["--no-measure"][..], &["--no-measure", "--disk", "1GB/s"]] {
        let with = |io| colibri(&[&fixed[..], drive, &["--expert-cache", "64x", "--io", io]].concat());
        let (_, message) = with("direct").error(2);
        assert_eq!(message, "--io has no effect on this plan: no drive is measured; leave it away");
        let plan = with("buffered").good();
        assert!(number(&plan, "/memory/mapped_bytes") > 1e6);
        close(number(steps(&plan)[0], "/mapped_bytes_per_token/most"), 0.0);
        let note = "--io has no effect on this plan: no drive is measured, and it changes nothing for mapped weights";
        assert!(plan["notes"].to_string().contains(note), "{}", plan["notes"]);
    }
}
