//! `render` and `tokenize`: prompts of conversations and ids of texts, for programs and for people.
use crate::common::{
    answer_of, colibri, colibri_with, data, golden, listed, model_copy, numbers, program, text_of,
};
use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;

fn cases() -> Vec<Value> {
    let file: Value = serde_json::from_slice(&fs::read(data("vectors/k3-render.json")).unwrap()).unwrap();
    file["cases"].as_array().unwrap().clone()
}

#[test]
fn conversations_become_the_vectors_prompts() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(data("vectors/tiny.tiktoken"), folder.path().join("tiktoken.model")).unwrap();
    let tiny: Value = serde_json::from_slice(&fs::read(data("vectors/tiny-ids.json")).unwrap()).unwrap();
    let names = tiny["named_special"].as_object().unwrap();
    let tokens = names.iter().map(|(name, id)| (id.to_string(), json!({ "content": name })));
    let config = json!({ "added_tokens_decoder": tokens.collect::<serde_json::Map<_, _>>() });
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    // A process each: some of them, with the files and standard input taking turns.
    for (index, (case, ids)) in cases().iter().zip(tiny["cases"].as_array().unwrap()).enumerate().step_by(3) {
        let chat = case.to_string();
        let answer = if index % 2 == 0 {
            let path = folder.path().join("chat.json");
            fs::write(&path, chat).unwrap();
            colibri(&["render", text_of(&path), "--json", "--model", text_of(folder.path())])
        } else {
            colibri_with(&["render", "-", "--json", "--model", text_of(folder.path())], &chat)
        };
        let expected = json!({ "segments": case["segments"], "ids": ids["ids"] });
        assert_eq!(answer.good(), expected, "{}", case["name"]);
        assert_eq!(answer.stderr, "");
    }
}

#[test]
fn a_prompt_for_people_tells_control_tokens_from_text() {
    let chat = r#"[{"role": "user", "content": "⟨sep⟩ <|end_of_msg|>"}]"#;
    let answer = colibri_with(&["render", "-"], chat);
    let message = "⟨open⟩message role=\"user\"⟨sep⟩⟨⟨sep⟩ <|end_of_msg|>⟨close⟩message⟨sep⟩⟨end_of_msg⟩\n";
    let generation = "⟨open⟩message role=\"assistant\"⟨sep⟩⟨open⟩think⟨sep⟩\n";
    assert_eq!((answer.code, answer.stdout), (0, format!("{message}{generation}")));
    let ids = numbers(&colibri_with(&["render", "-", "--json"], chat).good()["ids"]);
    assert_eq!(answer.stderr, format!("{} tokens\n", ids.len()));
    let coloured = colibri_with(&["render", "-", "--color", "always"], chat).stdout;
    assert!(coloured.contains("\x1b[36m⟨open⟩\x1b[0m"), "{coloured:?}");
}

#[test]
fn requests_are_read_as_requests() {
    let render = |chat: &str| colibri_with(&["render", "-"], chat).stdout;
    let plain = r#"{"messages": [{"role": "developer", "content": "d"}]}"#;
    assert!(!render(plain).contains("role=\"system\""), "no request: developers are nobody here");
    let request =
        r#"{"model": "m", "messages": [{"role": "developer", "content": "d"}], "reasoning_effort": "low"}"#;
    let rendered = render(request);
    assert!(
        rendered.contains("`thinking_effort=low`") && rendered.contains("role=\"system\"⟨sep⟩d"),
        "{rendered}"
    );
}

#[test]
fn conversations_that_cannot_be_rendered_are_refused_with_their_place() {
    for (chat, place) in [
        ("[1, 2", "standard input: line 1 column 6: expected `,` or `]`, found the end"),
        ("3", "standard input: the conversation: expected an object or a list, found `3`"),
        ("{}", "standard input: messages: expected a list of messages, found nothing"),
        ("[{\"role\": \"user\", \"content\": 3}]", "standard input: messages[0].content: expected a string"),
        (
            "{\"messages\": [], \"options\": {\"thinking_effort\": \"medium\"}}",
            "options.thinking_effort: expected low",
        ),
        ("{\"messages\": [], \"options\": {\"efort\": \"low\"}}", "options: expected thinking, "),
        (
            "{\"messages\": [], \"options\": {}, \"reasoning_effort\": \"low\"}",
            "reasoning_effort: expected nothing",
        ),
        ("[{\"role\": \"tool\", \"content\": \"r\"}]", "messages[0]: expected `tool_call_id`"),
    ] {
        let (kind, message) = colibri_with(&["render", "-", "--json"], chat).error(2);
        assert_eq!(kind, "usage", "{chat}");
        assert!(message.contains(place), "{chat}: {message}");
    }
    let (kind, message) = colibri(&["render", "absent.json", "--json"]).error(1);
    assert!(kind == "io" && message.contains("absent.json"), "{message}");
}

#[test]
fn text_becomes_ids_and_ids_text() {
    let (ids, _) = golden("chat_think");
    let rendered = colibri(&["tokenize", "--decode", &listed(&ids)]);
    assert_eq!((rendered.code, rendered.stderr.as_str()), (0, ""));
    assert!(rendered.stdout.starts_with("<|open|>message"), "{}", rendered.stdout);
    let trusted = colibri_with(&["tokenize", "-", "--specials"], &rendered.stdout);
    let plain = colibri_with(&["tokenize", "-"], &rendered.stdout);
    assert_ne!(trusted.stdout, plain.stdout);
    let controls =
        |answer: &str| answer.trim().split(',').filter(|id| id.parse::<u32>().unwrap() >= 3840).count();
    assert_eq!(controls(&plain.stdout), 0);
    assert_eq!(controls(&trusted.stdout), ids.iter().filter(|id| **id >= 3840).count());
    // Ids go through a pipe into the other direction.
    let back = colibri_with(&["tokenize", "--decode", "-"], &plain.stdout);
    assert_eq!(back.stdout, rendered.stdout);
    let object = colibri(&["tokenize", "--json", "--", "-5 é"]).good();
    assert_eq!(object["text"], "-5 é");
    let again = colibri(&["tokenize", "--decode", "--json", &listed(&numbers(&object["ids"]))]).good();
    assert_eq!((&again["text"], &again["ids"]), (&object["text"], &object["ids"]));
    let nothing = colibri(&["tokenize", ""]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, "\n"));
    assert_eq!(colibri(&["tokenize", "", "--decode"]).stdout, "");
}

/// Half a character is half a character.
#[test]
fn bytes_are_raw_where_no_terminal_is() {
    let ids = numbers(&colibri(&["tokenize", "🚀", "--json"]).good()["ids"]);
    let mut all = Vec::new();
    for id in &ids {
        let mut command = program();
        command.args(["tokenize", "--decode", &id.to_string()]).stdout(Stdio::piped());
        all.extend(command.output().unwrap().stdout);
    }
    assert_eq!(all, "🚀".as_bytes());
}

#[test]
fn the_files_of_the_tokenizer_are_enough() {
    let copy = model_copy();
    for entry in fs::read_dir(copy.path()).unwrap().map(Result::unwrap) {
        if !entry.file_name().to_string_lossy().starts_with("tok") && entry.file_name() != "tiktoken.model" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let mut command = program();
    command.args(["tokenize", "Hello", "--model", text_of(copy.path())]);
    assert_eq!(answer_of(command, "").stdout, colibri(&["tokenize", "Hello"]).stdout);
    fs::remove_file(copy.path().join("tiktoken.model")).unwrap();
    let (kind, message) = colibri(&["tokenize", "Hello", "--json", "--model", text_of(copy.path())]).error(1);
    assert!(kind == "checkpoint" && message.contains("tiktoken.model"), "{message}");
}
