//! A chat as somebody at a terminal meets it: line editing, Ctrl-C, history, files.
use crate::chat::rendered;
use crate::common::{colibri_with, numbers, program, text_of};
use rexpect::process::{Signal, WaitStatus};
use rexpect::session::{PtySession, spawn_command};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Only to fail rather than to wait for ever.
const PATIENCE_MS: u64 = 300_000;
const GREEDY: [&str; 4] = ["--temperature", "0", "--activations", "exact"];
/// One slot for experts and the definition of every op on one thread: what comes after the first words of a story takes
/// seconds of computing, and the test has to answer them with one key.
const SLOW: [&str; 8] = ["--device", "oracle", "--expert-cache", "1x", "--threads", "1", "--readers", "1"];
const SUM: &str = "What is 7 plus 5?";
/// Every answer is followed by the next prompt.
const PROMPT: &str = "> ";

/// A chat on a terminal of its own, whose history is kept in a folder of the test.
fn chat(home: &Path, more: &[&str]) -> PtySession {
    let mut command = program();
    command.arg("chat").args(GREEDY).args(more).env("TERM", "xterm").env("NO_COLOR", "1");
    command.env("XDG_STATE_HOME", home).env("XDG_DATA_HOME", home).env("HOME", home);
    let mut session = spawn_command(command, Some(PATIENCE_MS)).unwrap();
    session.exp_string("Ctrl-D ends the program").unwrap();
    session.exp_string(PROMPT).unwrap();
    session
}

/// Enters a line and gives what comes up to some words.
fn enter(session: &mut PtySession, line: &str, until: &str) -> String {
    session.send_line(line).unwrap();
    session.exp_string(until).unwrap()
}

/// Ends it at the next prompt: before that, Ctrl-D means nothing to it.
fn quit(mut session: PtySession) {
    session.exp_string(PROMPT).unwrap();
    session.send_control('d').unwrap();
    session.exp_eof().unwrap();
    assert!(matches!(session.process().wait().unwrap(), WaitStatus::Exited(_, 0)));
}

#[test]
fn an_answer_is_stopped_and_the_conversation_goes_on_and_is_saved() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("saved");
    let mut session = chat(home.path(), &[&SLOW[..], &["--no-think"]].concat());
    enter(&mut session, SUM, "7 plus 5 is 12.");
    enter(&mut session, "Tell me a story about a fox.", "Once upon a time");
    session.send_control('c').unwrap();
    // Neither is glued to the answer's line.
    session.exp_string("\nstopping; once more").unwrap();
    session.exp_string("\nstopped; what was said stays").unwrap();
    session.exp_string(PROMPT).unwrap();
    enter(&mut session, "What is 3 plus 4?", "3 plus 4 is 7.");
    enter(&mut session, &format!("/save {}", file.display()), "with its state");
    quit(session);

    let saved: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let record = &saved["chat"]["record"];
    let messages = record["messages"].as_array().unwrap();
    assert_eq!((messages.len(), record["turns"].as_array().unwrap().len()), (6, 3));
    let story = messages[3]["content"].as_str().unwrap();
    assert!(story.starts_with("Once upon a time") && !story.ends_with("afraid."), "{story}");
    assert!(story.len() < 400, "stopped in its middle: {story}");
    let ids = numbers(&record["ids"]);

    let options = json!({"thinking": false, "add_generation_prompt": false});
    assert_eq!(ids, rendered(&record["messages"], &options));
    let load = ["chat", "--json", "--load", text_of(&file)];
    let loaded = colibri_with(&[&load[..], &GREEDY].concat(), SUM).stdout;
    let next: Value = serde_json::from_str(&loaded).unwrap();
    let prompt = numbers(&next["prompt_ids"]);
    assert!(prompt.starts_with(&ids));
    assert_eq!(next["stats"]["prefill"]["tokens"], prompt.len() - (ids.len() - 1));
    assert_eq!(next["content"], "7 plus 5 is 12.");
}

#[test]
fn a_program_that_is_ended_leaves_the_terminal_in_order() {
    let home = tempfile::tempdir().unwrap();
    let mut session = chat(home.path(), &["--no-think"]);
    session.send("half a line").unwrap();
    session.flush().unwrap();
    session.exp_string("a line").unwrap();
    session.process_mut().signal(Signal::SIGTERM).unwrap();
    // Pasted text is announced no more.
    session.exp_string("\x1b[?2004l").unwrap();
    session.exp_string("error: interrupted").unwrap();
    session.exp_eof().unwrap();
    assert!(matches!(session.process().wait().unwrap(), WaitStatus::Exited(_, 130)));
}

#[test]
fn lines_are_edited_and_what_was_typed_is_remembered() {
    let home = tempfile::tempdir().unwrap();
    let mut session = chat(home.path(), &["--no-think"]);
    session.send_control('c').unwrap();
    session.exp_string("Ctrl-D or /quit ends the program").unwrap();
    session.exp_string(PROMPT).unwrap();
    // Ctrl-A goes to the beginning of the line.
    session.send("is 7 plus 5?\x01What ").unwrap();
    session.flush().unwrap();
    enter(&mut session, "", "7 plus 5 is 12.");
    session.exp_string(PROMPT).unwrap();
    // Given up in the middle, nothing is asked.
    enter(&mut session, "never \\", ". ");
    session.send_control('c').unwrap();
    session.exp_string("given up").unwrap();
    session.exp_string(PROMPT).unwrap();
    // Pasted lines are one entry.
    session.send("\x1b[200~What is\n3 plus 4?\x1b[201~").unwrap();
    session.flush().unwrap();
    enter(&mut session, "", "3 plus 4");
    session.exp_string(PROMPT).unwrap();
    enter(&mut session, "/stats", "conversation: 2 turns");
    quit(session);

    let history = home.path().join("colibri/chat-history");
    let text = fs::read_to_string(&history).unwrap();
    assert!(text.contains("\nWhat is 7 plus 5?\nWhat is\\n3 plus 4?\n/stats\n"), "{text}");
    assert!(!text.contains("never"), "{text}");
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);

    // The next chat knows it: one up is /stats, two more go through both lines of the pasted entry.
    let mut session = chat(home.path(), &["--no-think"]);
    session.send(&"\x1b[A".repeat(4)).unwrap();
    session.flush().unwrap();
    enter(&mut session, "", "7 plus 5 is 12.");
    quit(session);

    let other = tempfile::tempdir().unwrap();
    let mut session = chat(other.path(), &["--no-think", "--no-history"]);
    enter(&mut session, "/stats", "conversation: 0 turns");
    quit(session);
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0, "nothing is kept");
}

#[test]
fn thinking_folds_into_one_line() {
    let home = tempfile::tempdir().unwrap();
    let mut session = chat(home.path(), &["--thinking", "fold", "--max-tokens", "80"]);
    let shown = enter(&mut session, "Tell me a story.", "thought: ");
    assert!(shown.contains("\rthinking: 1 token") && !shown.contains("The user"), "{shown}");
    session.exp_string(PROMPT).unwrap();
    let unfolded = enter(&mut session, "/think", "The user wants");
    assert!(unfolded.contains("thinking is shown"), "{unfolded}");
    quit(session);
}

/// Whoever types ahead, or pastes into a terminal that does not say so, has several lines on their way at once.
#[test]
fn lines_that_come_together_are_all_read() {
    let home = tempfile::tempdir().unwrap();
    let mut session = chat(home.path(), &["--no-think"]);
    session.send("What is 7 plus 5?\r\"\"\"\rWhat is\r3 plus 4?\r\"\"\"\r/stats\r").unwrap();
    session.flush().unwrap();
    session.exp_string("7 plus 5 is 12.").unwrap();
    session.exp_string("2 turns").unwrap();
    quit(session);
}
