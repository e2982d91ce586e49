//! `chat` and `run --chat` with their input from a pipe: the right tokens, one growing list of them, and what is refused.
use crate::common::{Answer, PROMPTS, colibri, colibri_with, golden, numbers, text_of};
use serde_json::{Value, json};
use std::fs;

const GREEDY: [&str; 4] = ["--temperature", "0", "--activations", "exact"];
const END: u32 = 3842;
const SUM: &str = "What is 7 plus 5?";
const FOX: &str = "Tell me a story about a fox who loses a hat.";

fn chat(more: &[&str], input: &str) -> Answer {
    colibri_with(&[&["chat"][..], &GREEDY, more].concat(), input)
}

/// One JSON object a line.
fn lines(answer: &Answer) -> Vec<Value> {
    answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// An id of the list, until the end.
fn until_end(ids: &[u32]) -> Vec<u32> {
    ids.iter().copied().take_while(|id| *id != END).collect()
}

#[test]
fn greedy_ids_equal_the_goldens_of_chats() {
    assert!(PROMPTS.contains(&"chat_plain") && PROMPTS.contains(&"chat_think"));
    let plain = ["run", "--chat", SUM, "--no-think", "--json"];
    let answer = colibri(&[&plain[..], &GREEDY].concat()).good();
    assert_eq!(numbers(&answer["prompt_ids"]), golden("chat_plain").0);
    assert_eq!(numbers(&answer["ids"]), until_end(&golden("chat_plain").1));
    assert_eq!((&answer["content"], &answer["reasoning"]), (&"7 plus 5 is 12.".into(), &Value::Null));
    assert_eq!((&answer["finish"], &answer["tool_calls"]), (&"stop".into(), &json!([])));
    for effort in [&[][..], &["--effort", "max"]] {
        let think = ["run", "--chat", FOX, "--json", "--max-tokens", "32"];
        let answer = colibri(&[&think[..], effort, &GREEDY].concat()).good();
        assert_eq!(numbers(&answer["prompt_ids"]), golden("chat_think").0);
        assert_eq!(numbers(&answer["ids"]), golden("chat_think").1);
        assert_eq!((&answer["finish"], &answer["content"]), (&"length".into(), &Value::Null));
        assert!(answer["reasoning"].as_str().unwrap().starts_with("The user wants a story. Ember loses"));
        assert!(answer["settings"]["temperature"] == 0.0 && answer["stats"].is_object());
    }
}

#[test]
fn a_text_may_come_from_standard_input() {
    let run = [&["run", "--chat", "-", "--no-think"][..], &GREEDY].concat();
    let answer = colibri_with(&run, SUM);
    assert_eq!((answer.code, answer.stdout.as_str()), (0, "7 plus 5 is 12.\n"));
    assert!(answer.stderr.contains("prefill 29 tokens"), "{}", answer.stderr);
    let likely = colibri_with(&[&run[..], &["--json", "--logprobs", "1"]].concat(), SUM).good();
    assert_eq!(likely["logprobs"].as_array().unwrap().len(), numbers(&likely["ids"]).len());
    let stopped = colibri_with(&[&run[..], &["--json", "--stop", " 5"]].concat(), SUM).good();
    assert_eq!((&stopped["content"], &stopped["finish"]), (&"7 plus".into(), &"stop".into()));
}

#[test]
fn each_line_is_a_turn_and_computes_only_what_is_new() {
    let input = format!(
        "{SUM}\n/stats\nWhat is 3 plus 4?\n\n/system Be kind.\nWhat is the opposite of happy?\n/stats"
    );
    let answer = chat(&["--no-think", "--json"], &input);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let said = lines(&answer);
    let (one, first, two, three, last) = (&said[0], &said[1], &said[2], &said[3], &said[4]);
    assert_eq!(
        (said.len(), &one["content"], &two["content"]),
        (5, &"7 plus 5 is 12.".into(), &"3 plus 4 is 7.".into())
    );
    assert_eq!(numbers(&one["prompt_ids"]), golden("chat_plain").0);
    let mut before: Vec<u32> = Vec::new();
    for turn in [one, two, three] {
        let prompt = numbers(&turn["prompt_ids"]);
        assert!(prompt.starts_with(&before));
        // The end of the last answer is computed with what follows it.
        let new = prompt.len() - before.len().saturating_sub(1);
        assert_eq!(turn["stats"]["prefill"]["tokens"], new);
        before = [prompt, numbers(&turn["ids"]), vec![END]].concat();
    }
    assert_eq!((&first["turns"], &last["turns"]), (&1.into(), &3.into()));
    assert_eq!((&last["tokens"], &last["computed"]), (&before.len().into(), &(before.len() - 1).into()));
    // What the program rendered bit by bit is what it renders at once.
    let rendered = rendered(
        &json!([
            {"role": "user", "content": SUM},
            {"role": "assistant", "content": one["content"]},
            {"role": "user", "content": "What is 3 plus 4?"},
            {"role": "assistant", "content": two["content"]},
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "What is the opposite of happy?"},
            {"role": "assistant", "content": three["content"]},
        ]),
        &json!({"thinking": false, "add_generation_prompt": false}),
    );
    assert_eq!(before, rendered);
}

/// Ids of messages by `colibri render`.
pub(crate) fn rendered(messages: &Value, options: &Value) -> Vec<u32> {
    let chat = json!({ "messages": messages, "options": options }).to_string();
    numbers(&colibri_with(&["render", "-", "--json"], &chat).good()["ids"])
}

#[test]
fn answers_are_on_standard_output_and_nothing_else_is() {
    let input = format!("/help\n{SUM}\n\"\"\"\nWhat is\n3 plus 4?\n\"\"\"\n/quit\nnever\n");
    let answer = chat(&["--no-think"], &input);
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let spoken: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!((spoken.len(), spoken[0]), (2, "7 plus 5 is 12."), "{}", answer.stdout);
    for words in ["/retry", "/save FILE", "note: two states are planned", "recurrent state, 2 x"] {
        assert!(answer.stderr.contains(words), "{words}: {}", answer.stderr);
    }
    assert!(!answer.stdout.contains('\x1b') && !answer.stderr.contains('\x1b'));
}

#[test]
fn thinking_is_shown_folded_or_hidden() {
    let thought = "The user wants";
    let run = |more: &[&str]| {
        let answer = colibri(
            &[&["run", "--chat", "Tell me a story.", "--max-tokens", "60"], &GREEDY[..], more].concat(),
        );
        assert_eq!(answer.code, 0, "{}", answer.stderr);
        assert!(!answer.stdout.contains(thought) && !answer.stdout.is_empty(), "{}", answer.stdout);
        assert!(answer.stderr.contains("note: --max-tokens ended the answer"), "{}", answer.stderr);
        answer.stderr
    };
    assert!(!run(&[]).contains(thought), "not where nobody looks");
    assert!(!run(&["--thinking", "hide"]).contains(thought));
    assert!(run(&["--thinking", "show"]).contains(thought));
    let folded = run(&["--thinking", "fold"]);
    assert!(!folded.contains(thought) && folded.contains("thought: "), "{folded}");
    let answer = chat(&["--thinking", "fold"], &format!("{SUM}\n/think\n/think hide\n"));
    let (before, after) = answer.stderr.split_once("thinking is shown\n").unwrap();
    assert!(before.contains("thought: ") && after.ends_with("thinking is hidden\n"), "{}", answer.stderr);
    assert!(after.lines().count() > 1, "unfolding shows what was folded: {after}");
}

#[test]
fn another_answer_says_by_which_draw() {
    let answer = chat(&["--no-think"], &format!("{SUM}\n/retry\n"));
    assert!(answer.stderr.contains("another answer: temperature 0"), "{}", answer.stderr);
    assert_eq!(answer.stdout, "7 plus 5 is 12.\n7 plus 5 is 12.\n");
    let drawn = ["chat", "--no-think", "--seed", "41", "--max-tokens", "12", "--temperature", "2", "--json"];
    let answer = colibri_with(&drawn, "Tell me a story.\n/retry\n/retry\n");
    assert!(answer.stderr.contains("another answer: with --seed 42"), "{}", answer.stderr);
    let said = lines(&answer);
    assert_eq!(
        said.iter().map(|turn| turn["settings"]["seed"].as_u64().unwrap()).collect::<Vec<_>>(),
        [41, 42, 43]
    );
    assert!(said[0]["ids"] != said[1]["ids"] && said[1]["ids"] != said[2]["ids"]);
    assert_eq!(said[0]["prompt_ids"], said[2]["prompt_ids"]);
    let alone = [
        "run",
        "--chat",
        "Tell me a story.",
        "--no-think",
        "--seed",
        "42",
        "--max-tokens",
        "12",
        "--temperature",
        "2",
    ];
    assert_eq!(colibri(&[&alone[..], &["--json"]].concat()).good()["ids"], said[1]["ids"]);
}

#[test]
fn what_fails_is_said_and_the_conversation_goes_on() {
    let answer = chat(&["--no-think", "--json"], &format!("/retry\n/hlep\n/save\n/load nowhere\n{SUM}\n"));
    assert_eq!(answer.code, 2, "that of the first failure");
    let said = lines(&answer);
    for (line, words) in said.iter().zip(["no answer yet", "/help?", "/save FILE", "nowhere"]) {
        assert!(line["error"]["message"].as_str().unwrap().contains(words), "{line}");
    }
    assert_eq!((said.len(), &said[4]["content"]), (5, &"7 plus 5 is 12.".into()));
    let answer = chat(&["--no-think", "--context", "64"], &format!("{FOX}\nMore.\n/reset\n{SUM}\n"));
    assert_eq!(answer.code, 2);
    for words in
        ["context of 64 positions is full and ended the answer: /reset", "error: the context is full"]
    {
        assert!(answer.stderr.contains(words), "{words}: {}", answer.stderr);
    }
    assert!(answer.stdout.ends_with("\n7 plus 5 is 12.\n"), "{}", answer.stdout);
    for (input, words) in [("\"\"\"\na", "close it with"), ("a\\", "let another line follow")] {
        let (kind, message) = chat(&["--json"], input).error(2);
        assert!(kind == "usage" && message.contains(words), "{message}");
    }
}

#[test]
fn flags_that_cannot_be_honoured_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat");
    fs::write(&file, "{}").unwrap();
    let file = text_of(&file);
    for (arguments, words) in [
        (&["chat", "--no-think", "--effort", "low"][..], "--effort"),
        (&["chat", "--effort", "medium"], "low, high or max"),
        (&["chat", "--ignore-eos"], "--ignore-eos"),
        (&["chat", "--load", file], "no saved chat"),
        (&["chat", "--load", file, "--system", "x"], "--system"),
        (&["run", "x", "--system", "y"], "--system has no effect"),
        (&["run", "x", "--no-think"], "--no-think has no effect"),
        (&["run", "--chat", " "], "the message is empty"),
        (&["run", "--chat"], "nothing to answer"),
        (&["run", "--chat", "--ids", "1"], "--ids"),
    ] {
        let answer = colibri_with(&[arguments, &["--json"]].concat(), "");
        let (kind, message) = answer.error(2);
        assert!(kind == "usage" && message.contains(words), "{arguments:?}: {message}");
        assert!(!answer.stderr.contains("planned memory"), "before anything is done: {}", answer.stderr);
    }
}

#[test]
fn a_conversation_is_saved_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a chat");
    let file = text_of(&file);
    let whole = chat(&["--no-think", "--json"], &format!("{SUM}\nWhat is 3 plus 4?\n"));
    let saved = chat(&["--no-think", "--json"], &format!("{SUM}\n/save {file}\n"));
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    assert!(saved.stderr.contains("with its state"), "{}", saved.stderr);
    let wanted = &lines(&whole)[1];
    for (load, loaded) in [
        ("What is 3 plus 4?\n", chat(&["--json", "--load", file], "What is 3 plus 4?\n")),
        ("/load", chat(&["--json"], &format!("/load {file}\nWhat is 3 plus 4?\n"))),
    ] {
        let said = lines(&loaded);
        assert_eq!(
            (&said[0]["prompt_ids"], &said[0]["ids"]),
            (&wanted["prompt_ids"], &wanted["ids"]),
            "{load}"
        );
        assert_eq!(said[0]["stats"]["prefill"]["tokens"], wanted["stats"]["prefill"]["tokens"]);
        assert!(!loaded.stderr.contains("computes the conversation anew"), "{}", loaded.stderr);
    }
    let short = chat(&["--json", "--context", "40"], &format!("/load {file}\n/stats\n"));
    let said = lines(&short);
    let message = said[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("a larger --context, up to 4096"), "{message}");
    assert_eq!(said[1]["tokens"], 0, "what was there before stays");
    let (_, message) = chat(&["--json", "--context", "40", "--load", file], "").error(2);
    assert!(message.contains("--context"), "{message}");
    // Made in another mode, the state is of no use, and the ids are.
    let other = ["chat", "--json", "--temperature", "0", "--load", file];
    let other = colibri_with(&other, "What is 3 plus 4?\n");
    assert!(other.stderr.contains("the next turn computes the conversation anew"), "{}", other.stderr);
    let said = lines(&other);
    assert_eq!(said[0]["prompt_ids"], wanted["prompt_ids"]);
    assert_eq!(said[0]["stats"]["prefill"]["tokens"], numbers(&wanted["prompt_ids"]).len());
    #[cfg(unix)]
    for name in ["a chat", "a chat.state"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no leftovers");
}

#[test]
fn a_model_that_cannot_chat_says_what_it_lacks() {
    let model = crate::common::model_copy();
    let config = model.path().join("tokenizer_config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("<|end_of_msg|>", "<|over|>")).unwrap();
    let answer = colibri_with(&["chat", "--json", "--model", text_of(model.path())], SUM);
    let (kind, message) = answer.error(2);
    assert!(kind == "usage" && message.contains("names no <|end_of_msg|>"), "{message}");
    assert!(
        message.contains(text_of(model.path())) && !answer.stderr.contains("planned memory"),
        "{message}"
    );
}
