//! Every vector under `data/` that concerns conversations: prompts, replies, options of requests. They were made by
//! other implementations; nothing here computes what is expected.

use crate::support::{K3, K3_TINY, TINY, bytes, from_hex, json};
use serde::Deserialize;
use serde_json::Value;
use text::chat::{
    Chat, ChatFormat as _, ChatOptions, Delta, Effort, End, Piece, Reply, ReplyParser, request_options,
};
use text::kimi_k3::KimiK3;
use text::{Json, OwnedSegment, StopStrings, Tiktoken, Tokenizer};

/// A list in a file below `data/`, read as conversations are.
fn cases(file: &str, list: &str) -> Vec<Json> {
    let text = String::from_utf8(bytes(file)).expect("UTF-8");
    match Json::parse(&text).expect("JSON").get(list) {
        Some(Json::Array(cases)) => cases.clone(),
        other => panic!("{file} {list}: {other:?}"),
    }
}

fn name(case: &Json) -> &str {
    case.get("name").and_then(Json::as_str).expect("a name")
}

/// A field of a case for the eyes of serde.
fn field<T: for<'de> Deserialize<'de>>(case: &Json, key: &str) -> T {
    let text = case.get(key).unwrap_or(&Json::Null).to_string();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{key}: {error}"))
}

fn ids(tokenizer: &Tiktoken, segments: &[OwnedSegment]) -> Vec<u32> {
    tokenizer.encode_owned(segments).expect("known control tokens")
}

#[test]
fn prompts_are_the_releases() {
    let tiny: Value = json("vectors/tiny-ids.json");
    let tiny = tiny["cases"].as_array().expect("cases");
    let cases = cases("vectors/k3-render.json", "cases");
    assert_eq!((cases.len(), tiny.len()), (38, 38));
    for (case, tiny) in cases.iter().zip(tiny) {
        let chat = Chat::from_json(case).unwrap_or_else(|error| panic!("{}: {error}", name(case)));
        let segments = KimiK3.render(&chat).unwrap_or_else(|error| panic!("{}: {error}", name(case)));
        let written = serde_json::to_value(&segments).expect("writes");
        assert_eq!(written, field::<Value>(case, "segments"), "{}", name(case));
        assert_eq!(ids(&K3, &segments), field::<Vec<u32>>(case, "ids"), "{}", name(case));
        assert_eq!(tiny["render_case"], name(case));
        assert_eq!(serde_json::json!(ids(&TINY, &segments)), tiny["ids"], "{}", name(case));
    }
}

#[test]
fn what_the_release_refuses_is_refused() {
    let places = [
        ("effort_medium", "options.thinking_effort: expected low, high or max, found `medium`"),
        ("arguments_are_a_json_list", "messages[1].tool_calls[0].function.arguments: expected an object"),
        ("arguments_are_a_number", "messages[1].tool_calls[0].function.arguments: expected an object"),
        ("tool_result_without_any_name", "messages[1]: expected `tool_call_id`"),
        ("image_part_without_image", "options.images: expected 1 sizes"),
        ("image_without_part", "options.images: expected 0 sizes"),
    ];
    let refusals = cases("vectors/k3-render.json", "refusals");
    assert_eq!(refusals.len(), places.len());
    for (case, (expected_name, place)) in refusals.iter().zip(places) {
        assert_eq!(name(case), expected_name);
        let refused = Chat::from_json(case).and_then(|chat| KimiK3.render(&chat));
        let message = refused.expect_err(expected_name).to_string();
        assert!(message.starts_with(place), "{expected_name}: {message}");
    }
}

/// The conversations of k3-tiny: what people wrote holds no control token, also where it spells one.
#[test]
fn golden_conversations() {
    let golden: Value = json("k3-tiny/golden/tokenizer.json");
    let mut spelled_by_users = 0;
    for case in golden["chat"].as_array().expect("conversations") {
        let options = serde_json::json!({
            "thinking": case["thinking"],
            "thinking_effort": case["thinking_effort"],
            "add_generation_prompt": case["add_generation_prompt"],
        });
        let chat = serde_json::json!({ "messages": case["messages"], "options": options });
        let chat: Chat = serde_json::from_value(chat).expect("a conversation");
        let ids = ids(&K3_TINY, &KimiK3.render(&chat).expect("renders"));
        assert_eq!(serde_json::json!(ids), case["ids"], "{case}");
        let rendered = case["rendered"].as_str().expect("a text");
        assert_eq!(K3_TINY.decode(&ids).expect("own ids"), rendered);
        let trusting = K3_TINY.encode_with_specials(rendered).expect("few names");
        spelled_by_users += usize::from(trusting != ids);
    }
    assert_eq!(spelled_by_users, 1);
}

#[test]
fn options_of_requests() {
    let cases = cases("vectors/k3-request-options.json", "cases");
    assert_eq!(cases.len(), 24);
    for case in &cases {
        let request = case.get("request").expect("a request");
        let options = request_options(request, Some(Effort::Max));
        match case.get("options") {
            Some(expected) => {
                let expected = ChatOptions::try_from(expected.clone()).expect("options");
                assert_eq!(options, Ok(expected), "{}", name(case));
            }
            None => assert!(options.is_err(), "{}", name(case)),
        }
    }
}

/// Rules of section 3 that no vector shows.
#[test]
fn options_of_more_requests() {
    let options = |request: &str| {
        let options = request_options(&Json::parse(request).expect("JSON"), Some(Effort::Max));
        options.map(|options| Json::from(options).to_string()).map_err(|error| error.to_string())
    };
    for (request, expected) in [
        (
            r#"{"chat_template_kwargs": {"reasoning_effort": "xhigh"}, "reasoning_effort": "low"}"#,
            r#"{"thinking":true,"thinking_effort":"max"}"#,
        ),
        (
            r#"{"reasoning_effort": "low", "reasoning": {"effort": "none"}}"#,
            r#"{"thinking":true,"thinking_effort":"low"}"#,
        ),
        (r#"{"reasoning": {"effort": "none"}, "enable_thinking": true}"#, r#"{"thinking":false}"#),
        (r#"{"enable_thinking": false, "thinking": {"type": "enabled"}}"#, r#"{"thinking":false}"#),
        (
            r#"{"chat_template_kwargs": {"thinking": false}, "reasoning_effort": "banana"}"#,
            r#"{"thinking":false}"#,
        ),
        (
            r#"{"chat_template_kwargs": null, "reasoning_effort": null}"#,
            r#"{"thinking":true,"thinking_effort":"max"}"#,
        ),
        (r#"{"tool_choice": "required", "tools": []}"#, r#"{"thinking":true,"thinking_effort":"max"}"#),
        (
            r#"{"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [{}]}"#,
            r#"{"thinking":true,"thinking_effort":"max","tool_choice":{"type":"function","function":{"name":"f"}}}"#,
        ),
        (
            r#"{"response_format": {"type": "json_schema", "json_schema": {"json_schema": {"b": 1, "a": 2}}}}"#,
            r#"{"thinking":true,"thinking_effort":"max","response_format":{"type":"json_schema","json_schema":{"schema":{"b":1,"a":2}}}}"#,
        ),
    ] {
        assert_eq!(options(request).as_deref(), Ok(expected), "{request}");
    }
    for (request, place) in [
        (
            r#"{"chat_template_kwargs": {"thinking_effort": "none"}}"#,
            "chat_template_kwargs.thinking_effort: expected low",
        ),
        (
            r#"{"chat_template_kwargs": {"thinking": "no"}}"#,
            "chat_template_kwargs.thinking: expected true or false",
        ),
        (r#"{"chat_template_kwargs": []}"#, "chat_template_kwargs: expected an object"),
        (r#"{"thinking": true}"#, "thinking: expected an object"),
        (r#"{"reasoning_effort": 3}"#, "reasoning_effort: expected none, minimal"),
        (r#"{"tool_choice": "sometimes"}"#, "tool_choice: expected auto"),
        (r#"{"tools": {}}"#, "tools: expected a list"),
        (r#"{"response_format": {"type": "yaml"}}"#, "response_format.type: expected text"),
        (
            r#"{"response_format": {"type": "json_schema"}}"#,
            "response_format.json_schema: expected an object",
        ),
    ] {
        let message = options(request).expect_err(request);
        assert!(message.starts_with(place), "{request}: {message}");
    }
    let request =
        r#"{"model": "m", "messages": [{"role": "developer", "content": "d"}], "reasoning_effort": "low"}"#;
    let chat = Chat::from_json(&Json::parse(request).expect("JSON")).expect("a request");
    assert_eq!((chat.messages[0].role.name(), chat.options.effort), ("system", Some(Effort::Low)));
}

/// A case of `k3-parse.json`.
#[derive(Deserialize)]
struct ParseCase {
    name: String,
    start: String,
    #[serde(default)]
    stop: Vec<String>,
    #[serde(default)]
    limit: bool,
    chunks: Vec<Vec<PieceCase>>,
    visible_after_chunk: Vec<Visible>,
    events: Vec<Value>,
    finish_reason: String,
    message: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PieceCase {
    Special(String),
    Text(String),
    Hex(String),
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct Visible {
    reasoning_content: String,
    content: String,
}

impl Visible {
    fn add(&mut self, deltas: &[Delta]) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning_content += text,
                Delta::Content(text) => self.content += text,
                Delta::Call { .. } | Delta::Arguments { .. } => {}
            }
        }
    }
}

impl ParseCase {
    fn parser(&self) -> Box<dyn ReplyParser> {
        let options = ChatOptions { thinking: self.start == "think", ..ChatOptions::default() };
        let mut count = 0;
        let ids = move || {
            count += 1;
            format!("id{count}")
        };
        KimiK3.parser(&options, StopStrings::new(self.stop.clone()).expect("good ones"), Box::new(ids))
    }

    fn end(&self) -> End {
        if self.limit { End::Length } else { End::Stop }
    }
}

/// Deltas as the vectors have them: neighbours of one kind joined, a call with its arguments.
fn events(deltas: &[Delta]) -> Vec<Value> {
    let mut events: Vec<Value> = Vec::new();
    let mut arguments: Vec<String> = Vec::new();
    let text = |key: &str, text: &str, events: &mut Vec<Value>| match events.last_mut() {
        Some(last) if last[key].is_string() => {
            last[key] = (last[key].as_str().expect("a string").to_owned() + text).into();
        }
        _ => events.push(serde_json::json!({ key: text })),
    };
    for delta in deltas {
        match delta {
            Delta::Reasoning(reasoning) => text("reasoning_content", reasoning, &mut events),
            Delta::Content(content) => text("content", content, &mut events),
            Delta::Call { index, id, name } => {
                assert_eq!((*index, id.as_str()), (arguments.len(), format!("id{}", index + 1).as_str()));
                arguments.push(String::new());
                events.push(serde_json::json!({ "tool_call": { "index": index, "name": name } }));
            }
            Delta::Arguments { index, text } => arguments[*index] += text,
        }
    }
    for event in &mut events {
        if let Some(index) = event["tool_call"]["index"].as_u64() {
            let (key, value) = arguments_of(&arguments[index as usize]);
            event["tool_call"][key] = value;
        }
    }
    // Indexing made nulls.
    for event in &mut events {
        event.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    }
    events
}

/// Whole arguments as a value, others as text.
fn arguments_of(text: &str) -> (&'static str, Value) {
    serde_json::from_str(text)
        .map_or_else(|_| ("arguments_unfinished", text.into()), |value| ("arguments_value", value))
}

fn message_of(reply: &Reply) -> Value {
    let calls = reply.tool_calls.iter().enumerate().map(|(index, call)| {
        let (key, value) = arguments_of(&call.arguments);
        serde_json::json!({ "index": index, "name": call.name, key: value })
    });
    serde_json::json!({
        "reasoning_content": reply.reasoning,
        "content": reply.content,
        "tool_calls": calls.collect::<Vec<_>>(),
    })
}

#[test]
fn replies_are_read_as_the_vectors_say() {
    let file: Value = json("vectors/k3-parse.json");
    let cases: Vec<ParseCase> = serde_json::from_value(file["cases"].clone()).expect("cases");
    assert_eq!(cases.len(), 30);
    for case in &cases {
        let name = &case.name;
        // As it came, and byte by byte: the same after every chunk.
        for cut in [usize::MAX, 1, 3] {
            let mut parser = case.parser();
            let mut deltas = Vec::new();
            assert_eq!(case.chunks.len(), case.visible_after_chunk.len());
            for (index, chunk) in case.chunks.iter().enumerate() {
                for piece in chunk {
                    let bytes = match piece {
                        PieceCase::Special(name) => {
                            deltas.extend(parser.push(Piece::Special(name)));
                            continue;
                        }
                        PieceCase::Text(text) => text.clone().into_bytes(),
                        PieceCase::Hex(hex) => from_hex(hex),
                    };
                    for bytes in bytes.chunks(cut) {
                        deltas.extend(parser.push(Piece::Bytes(bytes)));
                    }
                }
                let mut visible = Visible::default();
                visible.add(&deltas);
                assert_eq!(visible, case.visible_after_chunk[index], "{name}, chunk {index}");
            }
            deltas.extend(parser.finish(case.end()));
            assert_eq!(events(&deltas), case.events, "{name}");
            let reply = parser.reply();
            assert_eq!(message_of(&reply), case.message, "{name}");
            assert_eq!(reply.finish_reason.name(), case.finish_reason, "{name}");
        }
    }
}

/// A field that would have no effect is refused by its name, and any field of a request makes one.
#[test]
fn fields_beside_a_conversation() {
    let effort = |fields: &str| {
        let json = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}]{fields}}}"#);
        let chat = text::chat::Chat::from_json(&Json::parse(&json).expect("JSON"));
        chat.map(|chat| chat.options.effort).map_err(|error| error.to_string())
    };
    for fields in
        ["", r#", "options": {}"#, r#", "name": "a case", "segments": [], "ids": [], "refuse": true"#]
    {
        assert_eq!(effort(fields), Ok(None), "{fields}");
    }
    for fields in [r#", "temperature": 1"#, r#", "model": "k3", "stream": true"#, r#", "user": "u""#] {
        assert_eq!(effort(fields), Ok(Some(Effort::Max)), "{fields}");
    }
    for (fields, name) in [
        (r#", "thinking_effort": "low""#, "thinking_effort"),
        (r#", "optionz": {}"#, "optionz"),
        (r#", "add_generation_prompt": false"#, "add_generation_prompt"),
        (r#", "model": "k3", "optionz": {}"#, "optionz"),
        (r#", "options": {}, "temperature": 1"#, "temperature"),
        (r#", "options": {}, "optionz": 1"#, "optionz"),
    ] {
        let refusal = effort(fields).expect_err(fields);
        assert!(refusal.starts_with(name), "{fields}: {refusal}");
    }
}
