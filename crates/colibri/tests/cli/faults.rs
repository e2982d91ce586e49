//! Faults around the program while it runs: files that change under it, other processes, kills, drives without room, more
//! asked for than there is. Each ends in a named error or in the right tokens, and nothing that was there is lost.
use crate::common::{
    answer_of, colibri, data, golden, limited, listed, model_copy, numbers, program, text_of,
};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use store::history::History;
use tempfile::TempDir;

const SUM: &str = "What is 7 plus 5?";
const TWELVE: &str = "7 plus 5 is 12.";
/// Experts of layer 5.
const SHARD: &str = "model-00006-of-000012.safetensors";

/// A chat that is spoken with line by line.
struct Chat {
    child: Child,
    input: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Chat {
    fn begin(model: &Path, more: &[&str]) -> Self {
        let mut command = program();
        command.args(["chat", "--json", "--no-think", "--temperature", "0", "--activations", "exact"]);
        command.args(["--model", text_of(model)]).args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Chat { child, input, answers: BufReader::new(output).lines() }
    }

    /// The answer to a text in a conversation of its own.
    fn ask(&mut self, text: &str) -> Value {
        writeln!(self.input, "/reset\n{text}").unwrap();
        serde_json::from_str(&self.answers.next().unwrap().unwrap()).unwrap()
    }

    fn assert_right(&mut self) {
        let answer = self.ask(SUM);
        assert_eq!(answer["content"], TWELVE, "{answer}");
    }

    /// The exit code.
    fn end(mut self) -> i32 {
        drop(self.input);
        assert!(self.answers.next().is_none());
        self.child.wait().unwrap().code().unwrap()
    }
}

/// An open file keeps its bytes, whatever gets its name.
#[test]
fn a_shard_that_is_replaced_while_the_model_runs_changes_nothing() {
    let (model, aside) = (model_copy(), TempDir::new().unwrap());
    for io in ["direct", "buffered"] {
        let mut chat = Chat::begin(model.path(), &["--expert-cache", "8x", "--io", io]);
        chat.assert_right();
        let shard = model.path().join(SHARD);
        let (sound, other) = (fs::read(&shard).unwrap(), aside.path().join("other"));
        fs::write(&other, vec![255; sound.len()]).unwrap();
        fs::rename(&other, &shard).unwrap();
        chat.assert_right();
        assert_eq!(chat.end(), 0);
        fs::write(&other, sound).unwrap();
        fs::rename(&other, &shard).unwrap();
    }
}

#[test]
fn a_shard_that_is_cut_off_while_the_model_runs_is_named_and_the_chat_goes_on() {
    let model = model_copy();
    let shard = model.path().join(SHARD);
    let sound = fs::read(&shard).unwrap();
    for io in ["direct", "buffered"] {
        let mut chat = Chat::begin(model.path(), &["--expert-cache", "8x", "--io", io]);
        chat.assert_right();
        File::options().write(true).open(&shard).unwrap().set_len(4096).unwrap();
        let answer = chat.ask(SUM);
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(answer["error"]["kind"], "expert", "{answer}");
        assert!(message.contains("layer 5 expert") && message.contains(SHARD), "{message}");
        assert!(message.contains("at byte"), "{message}");
        // The same file again, as a download that went on would leave it.
        fs::write(&shard, &sound).unwrap();
        chat.assert_right();
        assert_eq!(chat.end(), 1, "that of the failure");
    }
}

/// The handler of a drive's faults keeps no signal from ending the program.
#[cfg(unix)]
#[test]
fn a_signal_of_a_fault_that_somebody_sends_ends_a_program_with_mapped_weights() {
    use std::os::unix::process::ExitStatusExt as _;
    let place = TempDir::new().unwrap();
    let container = place.path().join("container");
    let model = data("k3-tiny");
    let made = colibri(&["convert", "--thin", "--dense", "int8", text_of(&model), text_of(&container)]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let mut chat = Chat::begin(&container, &["--dense-residency", "mapped", "--max-tokens", "1"]);
    assert!(chat.ask("Hi")["error"].is_null());
    Command::new("kill").args(["-BUS", &chat.child.id().to_string()]).output().unwrap();
    // One that lives on ends with its input.
    drop(chat.input);
    assert!(chat.child.wait().unwrap().signal().is_some());
}

/// Bytes that are as good as any others are found by checksums only: where there are any, by name.
#[test]
fn experts_that_are_overwritten_while_the_model_runs_are_found_by_their_checksums() {
    let place = TempDir::new().unwrap();
    let container = place.path().join("container");
    let model = data("k3-tiny");
    let made = colibri(&["convert", "--dense", "int8", text_of(&model), text_of(&container)]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let run = ["--expert-cache", "8x", "--check-experts", "on", "--max-tokens", "1"];
    let mut chat = Chat::begin(&container, &run);
    assert!(chat.ask("Hi")["error"].is_null());
    let shard = container.join("colibri-00006-of-00010.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for page in (start..bytes.len()).step_by(4096) {
        bytes[page] ^= 1;
    }
    // In place: the open file is this one.
    File::options().write(true).open(&shard).unwrap().write_all(&bytes).unwrap();
    // A longer text asks for experts that were not read before.
    let text = "The quick brown fox jumps over the lazy dog, 7 times 13 is 91. ".repeat(8);
    let answer = chat.ask(&text);
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(message.contains("layer 5 expert") && message.contains("colibri-00006"), "{message}");
    assert!(message.contains("--verify"), "{message}");
    assert_eq!(chat.end(), 1);
}

/// A call whose state lies in `place`.
fn with_history(place: &Path, more: &[&str]) -> Command {
    let mut command = program();
    command.args(["run", "Once upon a time", "--max-tokens", "8", "--seed", "1", "--json"]);
    command.args(["--expert-cache", "40x", "--history", "on"]).args(more);
    command.env("XDG_STATE_HOME", place).env("HOME", place);
    command
}

/// The one history in a state directory, and what lies beside it.
fn histories(place: &Path) -> (PathBuf, Vec<String>) {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() { walk(&entry.path(), found) } else { found.push(entry.path()) }
        }
    }
    let mut found = Vec::new();
    walk(place, &mut found);
    let is_lock = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "lock");
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let (mut own, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|path| name(path).starts_with("experts-") && path.extension().is_none());
    assert_eq!(own.len(), 1, "{own:?} {rest:?}");
    (own.remove(0), rest.iter().filter(|path| !is_lock(path)).map(name).collect())
}

#[test]
fn processes_that_run_at_once_give_the_same_tokens_and_lose_no_history() {
    let (together, apart) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let model = data("k3-tiny");
    let disk = ["--model", text_of(&model)];
    let one_by_one: Vec<_> =
        (0..3).map(|_| answer_of(with_history(apart.path(), &disk), "").good()["ids"].clone()).collect();
    let start = || {
        let mut command = with_history(together.path(), &disk);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children = [start(), start(), start()];
    for (child, ids) in children.into_iter().zip(&one_by_one) {
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(!told.contains("history"), "{told}");
        assert_eq!(&serde_json::from_slice::<Value>(&output.stdout).unwrap()["ids"], ids);
    }
    // All three ran the same, so whichever came first, the sum is that of one after the other.
    let ((a, beside), (b, _)) = (histories(together.path()), histories(apart.path()));
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "a run is missing");
    assert_eq!(beside, Vec::<String>::new());
}

const KILLS: u32 = 10;

/// Killed at any moment, above all while it writes: the history is the one before or the one after, and the next run uses it.
#[test]
fn a_kill_while_a_history_is_written_leaves_the_old_or_the_new_one() {
    let place = TempDir::new().unwrap();
    let first = answer_of(with_history(place.path(), &[]), "");
    let expected = first.good()["ids"].clone();
    let (file, _) = histories(place.path());
    let mut partial = file.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let (mut killed, mut states) = (0, vec![fs::read(&file).unwrap()]);
    // A kill that comes too late is no kill: another one follows, so that a busy machine takes more rounds, not fewer kills.
    for round in 0.. {
        if killed == KILLS {
            break;
        }
        assert!(round < 50 * KILLS, "only {killed} of {round} kills came in time");
        let mut child =
            with_history(place.path(), &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // From the moment on at which the new file appears, or the old one is replaced, a little later each time.
        let before = states.last().unwrap().clone();
        let is_written = || partial.exists() || fs::read(&file).unwrap() != before;
        while !is_written() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        for _ in 0..round % KILLS * 50 {
            std::hint::black_box(partial.exists());
        }
        let gone = child.try_wait().unwrap().is_some();
        if !gone {
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
        }
        let found = fs::read(&file).unwrap();
        History::parse(&found).unwrap_or_else(|error| panic!("round {round}: {error}"));
        states.push(found);
    }
    let answer = answer_of(with_history(place.path(), &[]), "");
    assert_eq!(answer.good()["ids"], expected);
    assert!(!answer.stderr.contains("history"), "{}", answer.stderr);
    let (_, beside) = histories(place.path());
    assert_eq!(beside, Vec::<String>::new(), "what was left half written is gone");
}

#[test]
fn results_that_find_no_room_are_named_with_what_they_take_and_leave_nothing() {
    let place = TempDir::new().unwrap();
    let ids = listed(&golden("story").0);
    let out = place.path().join("out");
    for (name, more) in [("logits", &[][..]), ("trace", &["--layers", "0,1"])] {
        let mut command = program();
        command.args([name, "--json", "--ids", &ids, "--out", text_of(&out)]).args(more);
        let (kind, message) = limited(40, &command).error(1);
        assert!(kind == "io" && message.contains(text_of(&out)), "{name}: {kind}: {message}");
        assert!(message.contains("which takes "), "{name}: {message}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{name}: nothing stays");
    }
}

#[test]
fn a_routing_trace_that_finds_no_room_costs_no_answer() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("routing");
    let (ids, greedy) = golden("story");
    let ids = listed(&ids);
    let mut command = program();
    command.args(["run", "--json", "--ids", &ids, "--temperature", "0", "--activations", "exact"]);
    command.args(["--max-tokens", "8", "--chunk", "1", "--trace-routing", text_of(&file)]);
    let answer = limited(1, &command);
    assert_eq!(answer.code, 1, "{}", answer.stderr);
    assert_eq!(numbers(&answer.json()["ids"]), greedy[..8]);
    let told = format!("error: writing the routing trace {}, which lacks its last steps", text_of(&file));
    assert_eq!(answer.stderr.matches(&told).count(), 1, "{}", answer.stderr);
    let simulated = colibri(&["simulate", text_of(&file), "--json"]);
    assert!(simulated.code == 0, "what was written is used: {}", simulated.stderr);
}

#[test]
fn a_history_that_finds_no_room_stays_as_it_was() {
    let place = TempDir::new().unwrap();
    let expected = answer_of(with_history(place.path(), &[]), "").good()["ids"].clone();
    let (file, _) = histories(place.path());
    let before = fs::read(&file).unwrap();
    let answer = limited(1, &with_history(place.path(), &[]));
    assert_eq!(answer.good()["ids"], expected);
    let told = format!("note: the history {} is not written: ", file.display());
    assert_eq!(answer.stderr.matches(&told).count(), 1, "{}", answer.stderr);
    let (_, beside) = histories(place.path());
    assert!(fs::read(&file).unwrap() == before && beside.is_empty(), "{beside:?}");
}

/// More than there is of experts is all of them. (Budgets beyond memory: the tests of plans, where memory can be said.)
#[test]
fn a_budget_beyond_the_model_is_all_of_it() {
    let (ids, greedy) = golden("story");
    let ids = listed(&ids);
    let run =
        ["run", "--json", "--ids", &ids, "--temperature", "0", "--activations", "exact", "--max-tokens", "8"];
    let answer = colibri(&[&run[..], &["--expert-cache", "10TB"]].concat()).good();
    assert_eq!(numbers(&answer["ids"]), greedy[..8]);
    assert_eq!(answer["stats"]["experts"]["slots"], 256);
}
