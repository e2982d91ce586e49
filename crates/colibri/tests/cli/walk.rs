//! The walk over all settings of all commands, as the program itself lists them: each must have a row here. Set to the
//! row's value, in the file, in a variable and on the command line, it must show in `colibri config`; set on the command line
//! and in one of the other two, the command must behave differently, or the start must fail by name. A setting without a
//! row fails the test.
use crate::common::{Answer, answer_of, model_copy, program, text_of};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// What must be seen of a setting.
enum Seen {
    /// The value, in the settings of the command's JSON answer, under this key.
    In(&'static str),
    /// The same, and this of the answers without and with it: that it was not only printed.
    Both(&'static str, fn(&Answer, &Answer) -> bool),
    /// This, of the answers without and with it.
    That(fn(&Answer, &Answer) -> bool),
    /// An error, for which the command gets arguments that cannot be honoured, in colour.
    ColouredError,
    /// A file in the value's place.
    File,
    /// A refusal that names where the value stands.
    Refusal,
}

/// A setting and a value that is no default.
struct Row {
    name: &'static str,
    /// These commands; none: all others that have it.
    commands: &'static [&'static str],
    value: Value,
    seen: Seen,
}

fn row(name: &'static str, value: Value, seen: Seen) -> Row {
    Row { name, commands: &[], value, seen }
}

fn row_of(commands: &'static [&'static str], name: &'static str, value: Value, seen: Seen) -> Row {
    Row { name, commands, value, seen }
}

/// The rows. `place` is a folder with a copy of the model in `model`.
fn rows(place: &Path) -> Vec<Row> {
    let path = |name: &str| json!(text_of(&place.join(name)));
    vec![
        row("model", json!([path("model")]), Seen::In("model")),
        row_of(
            &["inspect", "doctor"],
            "model",
            json!([path("model")]),
            Seen::That(|without, with| without.good()["model"] != with.good()["model"]),
        ),
        // Of a model they give no more than its text.
        row_of(
            &["render", "tokenize"],
            "model",
            json!([path("absent-model")]),
            Seen::That(|_, with| with.error(1).1.contains("absent-model")),
        ),
        row("chunk", json!(7), Seen::In("chunk")),
        row("context", json!(300), Seen::Both("context", other_plan)),
        row("expert-cache", json!("40x"), Seen::Both("expert_cache", fewer_slots)),
        // One layer of experts has fewer than 40.
        row_of(&["trace"], "expert-cache", json!("20x"), Seen::Both("expert_cache", fewer_slots)),
        // Its answer has no plan.
        row_of(&["plan"], "context", json!(300), Seen::Both("context", other_memory)),
        row_of(&["plan"], "dense", json!("int4"), Seen::Both("dense", other_memory)),
        row_of(&["plan"], "expert-cache", json!("40x"), Seen::Both("expert_cache", other_memory)),
        row_of(&["plan"], "io", json!("buffered"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "mirror", json!([path("model")]), Seen::Both("mirror", other_memory)),
        row_of(&["plan"], "readers", json!(2), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "check-experts", json!("on"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "governor", json!("off"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "device", json!("oracle"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "activations", json!("int8"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "overlap", json!("off"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "look-ahead", json!("off"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "cache-policy", json!("lru-per-layer"), Seen::That(idle_in_a_plan)),
        row_of(&["plan"], "expert-top-p", json!(0.75), Seen::That(idle_in_a_plan)),
        row_of(&["bench", "tune"], "context", json!(300), Seen::In("context")),
        row_of(&["bench", "tune"], "expert-cache", json!("40x"), Seen::In("expert_cache")),
        row_of(&["bench", "tune"], "dense", json!("int4"), Seen::In("dense")),
        row(
            "profile",
            path("profile.toml"),
            Seen::That(|without, with| {
                let threads = |answer: &Answer| answer.good()["settings"]["threads"].clone();
                threads(without) != PROFILE_THREADS && threads(with) == PROFILE_THREADS
            }),
        ),
        row("io", json!("buffered"), Seen::In("io")),
        row("mirror", json!([path("model")]), Seen::In("mirror")),
        row("cache-policy", json!("lru-per-layer"), Seen::In("cache_policy")),
        row("readers", json!(2), Seen::In("readers")),
        row("overlap", json!("off"), Seen::In("overlap")),
        row("look-ahead", json!("off"), Seen::In("look_ahead")),
        // The embedded model has no checksums.
        row("check-experts", json!("on"), Seen::That(|_, with| with.error(2).1.contains("has no checksum"))),
        // The embedded model is no container.
        row(
            "dense-residency",
            json!("mapped"),
            Seen::That(|_, with| with.error(2).1.contains("colibri convert --thin --dense int4 SRC DST")),
        ),
        row("governor", json!("off"), Seen::In("governor")),
        row("threads", json!(3), Seen::In("threads")),
        row("activations", json!("int8"), Seen::In("activations")),
        row("dense", json!("int4"), Seen::Both("dense", other_plan)),
        row_of(
            &["convert"],
            "dense",
            json!("int4"),
            Seen::That(|without, with| {
                without.good()["written"]["dense"] == "bf16" && with.good()["written"]["dense"] == "int4"
            }),
        ),
        row("expert-top-p", json!(0.75), Seen::In("expert_top_p")),
        row("device", json!("oracle"), Seen::In("device")),
        row("max-tokens", json!(2), Seen::That(|without, with| ids(without) == 4 && ids(with) == 2)),
        row("temperature", json!(0.5), Seen::Both("temperature", other_ids)),
        row("top-p", json!(0.1), Seen::Both("top_p", other_ids)),
        row("top-k", json!(1), Seen::Both("top_k", other_ids)),
        row("min-p", json!(0.9), Seen::Both("min_p", other_ids)),
        row("seed", json!(u64::MAX), Seen::Both("seed", other_ids)),
        row("ignore-eos", json!(true), Seen::In("ignore_eos")),
        row("logit-bias", json!(["5=100"]), Seen::That(|_, with| with.good()["ids"] == json!([5, 5, 5, 5]))),
        row("repeat-penalty", json!(0.1), Seen::Both("repeat_penalty", other_ids)),
        row("presence-penalty", json!(0.5), Seen::In("presence_penalty")),
        row("frequency-penalty", json!(-0.5), Seen::In("frequency_penalty")),
        row("stop", json!(["."]), Seen::In("stop")),
        row(
            "logprobs",
            json!(2),
            Seen::That(|without, with| {
                without.good()["logprobs"].is_null() && with.good()["logprobs"].is_array()
            }),
        ),
        row(
            "json",
            json!(false),
            Seen::That(|without, with| without.stdout.starts_with('{') && !with.stdout.starts_with('{')),
        ),
        row("color", json!("always"), Seen::ColouredError),
        row(
            "log-level",
            json!("debug"),
            Seen::That(|without, with| !without.stderr.contains(" INFO ") && with.stderr.contains(" INFO ")),
        ),
        // They do nothing of which a log could tell.
        row_of(&["completions", "man", "simulate"], "log-level", json!("loud"), Seen::Refusal),
        row("log-file", path("log"), Seen::File),
        row("system", json!("Be kind."), Seen::That(other_prompt)),
        row("effort", json!("low"), Seen::That(other_prompt)),
        row("no-think", json!(true), Seen::That(other_prompt)),
        row(
            "thinking",
            json!("show"),
            Seen::That(|without, with| {
                let thought = without.good()["reasoning"].as_str().unwrap().to_owned();
                !without.stderr.contains(&thought) && with.stderr.contains(&thought)
            }),
        ),
        // It is kept at a terminal only, where other tests look.
        row("no-history", json!("perhaps"), Seen::Refusal),
        // It acts across runs, where other tests look.
        row("history", json!("perhaps"), Seen::Refusal),
    ]
}

/// Settings of a conversation, which act on `run` where it is one.
const OF_CHATS: [&str; 4] = ["system", "effort", "no-think", "thinking"];

/// Whether the ids before the answer differ.
fn other_prompt(without: &Answer, with: &Answer) -> bool {
    without.good()["prompt_ids"] != with.good()["prompt_ids"]
}

/// Whether other tokens were chosen.
fn other_ids(without: &Answer, with: &Answer) -> bool {
    ids(without) > 0 && without.good()["ids"] != with.good()["ids"]
}

/// Whether `plan` planned other memory.
fn other_memory(without: &Answer, with: &Answer) -> bool {
    without.good()["memory"]["planned_bytes"] != with.good()["memory"]["planned_bytes"]
}

/// Where nothing is measured some settings change nothing in a plan: typed they are refused, otherwise it is said.
fn idle_in_a_plan(_: &Answer, with: &Answer) -> bool {
    let what = "has no effect on this plan";
    match with.code {
        0 => with.good()["notes"].to_string().contains(what),
        _ => with.error(2).1.contains(what),
    }
}

/// Whether other memory was planned.
fn other_plan(without: &Answer, with: &Answer) -> bool {
    let planned = |answer: &Answer| answer.good()["stats"]["memory"]["planned_bytes"].as_u64().unwrap();
    planned(without) != planned(with)
}

/// Whether the cache has as many slots as its setting says, and fewer than before.
fn fewer_slots(without: &Answer, with: &Answer) -> bool {
    let slots = |answer: &Answer| answer.good()["stats"]["experts"]["slots"].as_u64().unwrap();
    let asked = with.good()["settings"]["expert_cache"].as_str().unwrap().to_owned();
    slots(with) < slots(without) && format!("{}x", slots(with)) == asked
}

/// How many ids an answer has.
fn ids(answer: &Answer) -> usize {
    answer.good()["ids"].as_array().map_or(0, Vec::len)
}

/// A command that works, and arguments for which it fails.
struct Call {
    works: Vec<String>,
    fails: Vec<String>,
    /// Of the command that works, with no settings but those of [`BASE`].
    plain: Answer,
}

/// What the profile of the walk says of threads; by itself the program takes one a core.
const PROFILE_THREADS: u64 = 37;

/// A profile of the embedded model on this machine.
fn write_profile(path: &Path) {
    let fixed = ["tune", "--sweep", "threads", "--tokens", "1", "--repeats", "4", "--json"];
    crate::common::colibri(&[&fixed[..], &["--out", text_of(path)]].concat()).good();
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| match line.split_once(" = ") {
        Some(("threads", _)) => format!("threads = {PROFILE_THREADS}\n"),
        _ => format!("{line}\n"),
    };
    fs::write(path, text.lines().map(line).collect::<String>()).unwrap();
}

fn calls(place: &Path) -> Vec<(&'static str, Call)> {
    let (out, chat) = (place.join("out"), place.join("chat.json"));
    fs::write(&chat, r#"[{"role": "user", "content": "Once"}]"#).unwrap();
    let (out, chat) = (text_of(&out).to_owned(), text_of(&chat).to_owned());
    let model = text_of(&place.join("model")).to_owned();
    let routing = text_of(&place.join("routing")).to_owned();
    crate::common::colibri(&["run", "Once", "--max-tokens", "4", "--trace-routing", &routing]);
    write_profile(&place.join("profile.toml"));
    let call = |works: &[&str], fails: &[&str]| {
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
        let works = owned(works);
        let plain = run(&[], &works, BASE, &[], Layer::File);
        Call { works, fails: owned(fails), plain }
    };
    vec![
        ("run", call(&["run", "Once"], &["run"])),
        ("run --chat", call(&["run", "--chat", "Once"], &["run", "--chat"])),
        ("chat", call(&["chat"], &["chat", "--load", "absent"])),
        ("logits", call(&["logits", "Once", "--out", &out], &["logits", "--out", &out])),
        ("trace", call(&["trace", "Once", "--out", &out, "--layers", "1"], &["trace", "--out", &out])),
        ("verify", call(&["verify", "--checked", "Once"], &["verify"])),
        ("inspect", call(&["inspect"], &["inspect", "--model", "absent"])),
        (
            "bench",
            call(
                &["bench", "decode", "--repeats", "1", "--bytes", "16MB", "--tokens", "1"],
                &["bench", "--compare", "absent", "absent"],
            ),
        ),
        (
            "tune",
            call(
                &["tune", "--sweep", "threads", "--tokens", "1", "--repeats", "4", "--out", &out],
                &["tune", "--model", "absent"],
            ),
        ),
        ("doctor", call(&["doctor", "--no-measure"], &["doctor", "--missing", "--model", "absent"])),
        // Each run has a folder of its own, so that the place is always new.
        ("convert", call(&["convert", &model, "container"], &["convert", "absent", "container"])),
        ("config", call(&["config", "run"], &["config", "abacus"])),
        ("render", call(&["render", &chat], &["render", "absent.json"])),
        ("tokenize", call(&["tokenize", "Once"], &["tokenize", "--decode", "abacus"])),
        ("plan", call(&["plan", "--no-measure"], &["plan", "--trace", "absent"])),
        ("simulate", call(&["simulate", &routing], &["simulate", "absent"])),
        ("completions", call(&["completions", "bash"], &["completions", "abacus"])),
        ("man", call(&["man", "run"], &["man", "abacus"])),
    ]
}

/// What every call is given at the top of the file, where all that is set in the walk goes before it.
const BASE: &str = "json = true\nmax-tokens = 4\nseed = 1\n";

/// Where a value is set.
#[derive(Clone, Copy, Debug)]
enum Layer {
    File,
    Environment,
    CommandLine,
}

const LAYERS: [Layer; 3] = [Layer::File, Layer::Environment, Layer::CommandLine];

impl Layer {
    /// As `colibri config` calls it.
    fn name(self) -> &'static str {
        match self {
            Layer::File => "file",
            Layer::Environment => "environment",
            Layer::CommandLine => "command line",
        }
    }
}

/// Runs arguments, the first of which is the command, with settings in one layer. `before` stands before the command.
fn run(
    before: &[&str],
    arguments: &[String],
    base: &str,
    settings: &[(&str, &Value)],
    layer: Layer,
) -> Answer {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.toml");
    let mut text = base.to_owned();
    let mut command = program();
    command.args(before).arg(&arguments[0]);
    match layer {
        Layer::File => {
            writeln!(text, "[{}]", arguments[0]).unwrap();
            // Values in JSON are values in TOML.
            for (name, value) in settings {
                writeln!(text, "{name} = {value}").unwrap();
            }
        }
        Layer::Environment => {
            for (name, value) in settings {
                let name = format!("COLIBRI_{}", name.replace('-', "_").to_uppercase());
                let texts = texts(value);
                command.env(name, std::env::join_paths(&texts).unwrap());
            }
        }
        Layer::CommandLine => {
            for (name, value) in settings {
                command.args(texts(value).iter().map(|text| format!("--{name}={text}")));
            }
        }
    }
    fs::write(&file, text).unwrap();
    command.args(&arguments[1..]).env("COLIBRI_CONFIG", &file).current_dir(folder.path());
    answer_of(command, if arguments[0] == "chat" { "Once\n" } else { "" })
}

fn texts(value: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    value.as_array().map_or_else(|| vec![text(value)], |list| list.iter().map(text).collect())
}

/// All settings of all commands, as the program lists them.
fn settings() -> Vec<(String, Vec<String>)> {
    let answer = answer_of(
        {
            let mut command = program();
            command.args(["config", "--all", "--json"]);
            command
        },
        "",
    );
    let all = answer.good()["commands"].clone();
    let names = |command: &Value| command["settings"].as_object().unwrap().keys().cloned().collect();
    let command = |command: &Value| (command["command"].as_str().unwrap().to_owned(), names(command));
    all.as_array().unwrap().iter().map(command).collect()
}

/// A setting of a command on its way.
struct Step<'a> {
    /// With `--chat` where the setting needs it.
    command: &'a str,
    call: &'a Call,
    row: &'a Row,
}

#[test]
fn every_setting_shows_from_every_layer_and_acts_or_is_refused_from_two() {
    let place = TempDir::new().unwrap();
    fs::rename(model_copy().keep(), place.path().join("model")).unwrap();
    let (rows, calls) = (rows(place.path()), calls(place.path()));
    let all = settings();
    let mut steps = Vec::new();
    for (command, names) in &all {
        for name in names {
            let needs_chat = command == "run" && OF_CHATS.contains(&name.as_str());
            let called = if needs_chat { "run --chat" } else { command };
            let call = calls.iter().find(|(name, _)| *name == called);
            let (called, call) =
                call.unwrap_or_else(|| panic!("tests/cli/walk.rs has no call of `{called}`"));
            let row = rows.iter().filter(|row| row.name == name);
            let row = row.filter(|row| row.commands.is_empty() || row.commands.contains(&command.as_str()));
            let row = row.max_by_key(|row| row.commands.len());
            let row =
                row.unwrap_or_else(|| panic!("tests/cli/walk.rs has no row for --{name} of `{command}`"));
            steps.push(Step { command: called, call, row });
        }
    }
    for row in &rows {
        assert!(steps.iter().any(|step| std::ptr::eq(step.row, row)), "{} is no setting any more", row.name);
    }
    for (command, _) in &calls {
        // They exclude each other.
        shows(command, &steps, "effort");
        shows(command, &steps, "no-think");
    }
    side_by_side(&steps);
}

/// `colibri config` shows every value of a command with its origin, one setting left out.
fn shows(command: &str, steps: &[Step<'_>], without: &str) {
    let steps = steps.iter().filter(|step| step.command == command && step.row.name != without);
    let steps = steps.filter(|step| !matches!(step.row.seen, Seen::Refusal));
    let settings: Vec<(&str, &Value)> = steps.map(|step| (step.row.name, &step.row.value)).collect();
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    for layer in LAYERS {
        let shown = run(&["config", "--json"], &words, "", &settings, layer).good();
        for (name, value) in &settings {
            let row = &shown["settings"][name];
            assert_eq!((&row["value"], &row["origin"]), (*value, &json!(layer.name())), "{command} --{name}");
        }
    }
}

/// Where the step at this place of the list acts from: the command line, and the file or the environment in turn.
fn layers_of(place: usize) -> [Layer; 2] {
    [Layer::CommandLine, if place.is_multiple_of(2) { Layer::File } else { Layer::Environment }]
}

/// Every step, several at a time; all that go wrong are told together.
fn side_by_side(steps: &[Step<'_>]) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(step) = steps.get(place) else { break };
                    for layer in layers_of(place) {
                        if let Err(why) = acts(step, layer) {
                            let told = format!("{} --{}: {why}", step.command, step.row.name);
                            wrong.lock().unwrap().push(told);
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the value stands in the settings of the answer with it, and another one in those of the answer without it.
fn echoes(row: &Row, key: &str, without: &Answer, with: &Answer) -> bool {
    let (without, with) = (without.good(), with.good());
    with["settings"][key] == row.value && without["settings"][key] != row.value
}

/// The command behaves differently.
fn acts(step: &Step<'_>, layer: Layer) -> Result<(), String> {
    let Step { call, row, .. } = step;
    let setting = [(row.name, &row.value)];
    let with = |arguments: &[String], base: &str| run(&[], arguments, base, &setting, layer);
    let said = |answer: &Answer| format!("{layer:?}: {}{}", answer.stdout, answer.stderr);
    match &row.seen {
        Seen::In(key) => {
            let after = with(&call.works, BASE);
            echoes(row, key, &call.plain, &after).then_some(()).ok_or_else(|| said(&after))
        }
        Seen::Both(key, holds) => {
            let after = with(&call.works, BASE);
            let seen = echoes(row, key, &call.plain, &after) && holds(&call.plain, &after);
            seen.then_some(()).ok_or_else(|| said(&after))
        }
        Seen::That(holds) => {
            let after = with(&call.works, BASE);
            holds(&call.plain, &after).then_some(()).ok_or_else(|| said(&after))
        }
        Seen::ColouredError => {
            let before = run(&[], &call.fails, "", &[], layer);
            let after = with(&call.fails, "");
            let coloured = !before.stderr.contains('\u{1b}') && after.stderr.starts_with('\u{1b}');
            (coloured && before.code != 0).then_some(()).ok_or_else(|| said(&after))
        }
        Seen::File => {
            let path = PathBuf::from(row.value.as_str().unwrap());
            let path = path.with_extension(format!("{}{layer:?}", step.command.replace(' ', "")));
            let value = json!(text_of(&path));
            let answer = run(&[], &call.works, BASE, &[(row.name, &value)], layer);
            (answer.code == 0 && path.is_file()).then_some(()).ok_or_else(|| said(&answer))
        }
        Seen::Refusal => {
            let answer = with(&call.works, "");
            let name = match layer {
                Layer::File => format!("`{}.{}`", step.command, row.name),
                Layer::Environment => format!("COLIBRI_{}", row.name.replace('-', "_").to_uppercase()),
                Layer::CommandLine => format!("--{}", row.name),
            };
            let placed = !matches!(layer, Layer::File) || answer.stderr.contains("line 2");
            (answer.code == 2 && placed && answer.stderr.contains(&name))
                .then_some(())
                .ok_or_else(|| said(&answer))
        }
    }
}
