//! What holds for every conversation and every reply: cuts change nothing, nothing from outside is a control token,
//! what was closed is whole, and what was rendered is read back.

use crate::support::{K3_TINY, TINY_VECTORS};
use proptest::prelude::*;
use text::chat::{Chat, ChatFormat as _, ChatOptions, Delta, End, Message, Piece, Reply, ReplyParser};
use text::kimi_k3::KimiK3;
use text::{Json, OwnedSegment, StopStrings, Tokenizer as _};

/// A token of a reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Special(&'static str),
    Bytes(Vec<u8>),
}

impl Token {
    pub(crate) fn of(segment: OwnedSegment) -> Self {
        match segment {
            OwnedSegment::Special(name) => Token::Special(name),
            OwnedSegment::Text(text) => Token::Bytes(text.into_bytes()),
        }
    }
}

pub(crate) fn parser(thinking: bool, stop: &[String]) -> Box<dyn ReplyParser> {
    let options = ChatOptions { thinking, ..ChatOptions::default() };
    let mut count = 0;
    let ids = move || {
        count += 1;
        count.to_string()
    };
    KimiK3.parser(&options, StopStrings::new(stop.to_vec()).expect("good ones"), Box::new(ids))
}

/// Pushes tokens, text in pieces of so many bytes.
pub(crate) fn push(parser: &mut dyn ReplyParser, tokens: &[Token], cut: usize) -> Vec<Delta> {
    let mut deltas = Vec::new();
    for token in tokens {
        match token {
            Token::Special(name) => deltas.extend(parser.push(Piece::Special(name))),
            Token::Bytes(bytes) => {
                deltas.extend(bytes.chunks(cut).flat_map(|piece| parser.push(Piece::Bytes(piece))));
            }
        }
    }
    deltas
}

/// Neighbours of one kind as one.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), &delta) {
            (Some(Delta::Reasoning(text)), Delta::Reasoning(more))
            | (Some(Delta::Content(text)), Delta::Content(more)) => text.push_str(more),
            (Some(Delta::Arguments { index, text }), Delta::Arguments { index: same, text: more })
                if index == same =>
            {
                text.push_str(more);
            }
            _ => all.push(delta),
        }
    }
    all
}

/// What deltas say, put together as a client does.
fn put_together(deltas: &[Delta]) -> (String, String, Vec<(String, String, String)>) {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => reasoning += text,
            Delta::Content(text) => content += text,
            Delta::Call { index, id, name } => {
                assert_eq!(*index, calls.len());
                calls.push((id.clone(), name.clone(), String::new()));
            }
            Delta::Arguments { index, text } => {
                assert!(!text.is_empty());
                calls[*index].2 += text;
            }
        }
    }
    (reasoning, content, calls)
}

/// Tokens as no sane model makes them.
fn soup() -> impl Strategy<Value = Vec<Token>> {
    let token = prop_oneof![
        8 => proptest::sample::select(&["<|open|>", "<|close|>", "<|sep|>"][..]).prop_map(Token::Special),
        1 => proptest::sample::select(&["<|end_of_msg|>", "[EOS]", "[PAD]"][..]).prop_map(Token::Special),
        6 => proptest::sample::select(&[
            "think", "response", "tools", "call tool=\"f\" index=\"1\"", "argument key=\"k\" type=\"string\"",
            "argument key=\"n\" type=\"number\"", "json type=\"object\"", "message", "call", "argument", "re", "x",
            "call tool=\"a", "argument type=\"string\"", " \n", "", "json",
        ][..]).prop_map(|text| Token::Bytes(text.as_bytes().to_vec())),
        3 => "[ a\"\\\n{}1é🚀]{0,5}".prop_map(|text| Token::Bytes(text.into_bytes())),
        1 => proptest::collection::vec(any::<u8>(), 0..4).prop_map(Token::Bytes),
    ];
    // Whole tags, so that deep states are reached.
    let tag = (0..2_usize, 0..7_usize).prop_map(|(side, name)| {
        let names = [
            "think",
            "response",
            "tools",
            "call tool=\"f\"",
            "argument key=\"k\" type=\"string\"",
            "json",
            "message",
        ];
        let name = if side == 1 { names[name].split(' ').next().expect("a word") } else { names[name] };
        let side = ["<|open|>", "<|close|>"][side];
        vec![Token::Special(side), Token::Bytes(name.as_bytes().to_vec()), Token::Special("<|sep|>")]
    });
    proptest::collection::vec(prop_oneof![token.prop_map(|token| vec![token]), tag], 0..24)
        .prop_map(|tokens| tokens.concat())
}

fn ends() -> impl Strategy<Value = End> {
    proptest::sample::select(&[End::Stop, End::Length, End::Cancelled][..])
}

/// Texts of people and models, spellings of control tokens among them.
fn texts() -> BoxedStrategy<String> {
    let names: Vec<String> = TINY_VECTORS.named_special.keys().cloned().collect();
    let part = prop_oneof![
        proptest::sample::select(names),
        (3840_u32..4096).prop_map(|id| format!("<|reserved_token_{id}|>")),
        "[a-zé&\"<>| \n中]{0,6}",
    ];
    proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat()).boxed()
}

/// Values that JSON's readers agree on.
fn values() -> BoxedStrategy<Json> {
    let number = prop_oneof!["-?[1-9][0-9]{0,30}", Just("1e2".to_owned()), Just("-0.5".to_owned())];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number.prop_map(Json::Number),
        texts().prop_map(Json::String),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::Array), objects(inner),]
    })
    .boxed()
}

fn objects(value: impl Strategy<Value = Json>) -> impl Strategy<Value = Json> {
    let member = (texts(), value);
    proptest::collection::vec(member, 0..4).prop_map(|members| Json::Object(members.into_iter().collect()))
}

fn object(members: Vec<(&str, Json)>) -> Json {
    Json::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

fn string(text: &str) -> Json {
    Json::String(text.to_owned())
}

/// Messages of assistants as clients send them.
fn assistants() -> impl Strategy<Value = Json> {
    let call = (
        "[a-z]{1,3}",
        texts(),
        prop_oneof![
            objects(values()),
            objects(values()).prop_map(|object| Json::String(object.to_string())),
            Just(Json::Null),
            Just(string("{\"a\": ")),
        ],
    )
        .prop_map(|(id, name, arguments)| {
            let function = object(vec![("name", string(&format!("f{name}"))), ("arguments", arguments)]);
            object(vec![("id", string(&id)), ("type", string("function")), ("function", function)])
        });
    (texts(), texts(), proptest::collection::vec(call, 0..3)).prop_map(|(reasoning, content, calls)| {
        object(vec![
            ("role", string("assistant")),
            ("reasoning_content", string(&reasoning)),
            ("content", string(&content)),
            ("tool_calls", Json::Array(calls)),
        ])
    })
}

/// Conversations as clients send them.
fn conversations() -> impl Strategy<Value = Json> {
    let plain = (proptest::sample::select(&["system", "user", "developer"][..]), texts(), texts()).prop_map(
        |(role, content, name)| {
            let part = object(vec![("type", string("text")), ("text", string(&content))]);
            let content =
                if name.len() > 3 { Json::Array(vec![part.clone(), part]) } else { string(&content) };
            object(vec![("role", string(role)), ("content", content), ("name", string(&name))])
        },
    );
    let result = ("[a-z]{1,3}", texts()).prop_map(|(id, content)| {
        object(vec![
            ("role", string("tool")),
            ("content", string(&content)),
            ("tool_call_id", string(&id)),
            ("name", string("f")),
        ])
    });
    let declaration = values()
        .prop_map(|tool| object(vec![("role", string("system")), ("tools", Json::Array(vec![tool]))]));
    let message = prop_oneof![3 => plain, 3 => assistants(), 2 => result, 1 => declaration];
    let options =
        (any::<bool>(), proptest::sample::select(&["low", "high", "max"][..]), 0..3_usize, values())
            .prop_map(|(thinking, effort, format, schema)| {
                let kind = ["text", "json_object", "json_schema"][format];
                let schema = object(vec![("schema", schema)]);
                object(vec![
                    ("thinking", Json::Bool(thinking)),
                    ("thinking_effort", string(effort)),
                    ("tool_choice", string(["auto", "required", "none"][format])),
                    ("response_format", object(vec![("type", string(kind)), ("json_schema", schema)])),
                ])
            });
    let tools = proptest::collection::vec(values(), 0..2).prop_map(Json::Array);
    (proptest::collection::vec(message, 0..6), tools, options).prop_map(|(messages, tools, options)| {
        object(vec![("messages", Json::Array(messages)), ("tools", tools), ("options", options)])
    })
}

/// The tokens of a rendered assistant's message, as the model would have made them after the prompt.
pub(crate) fn as_reply(message: &Message, thinking: bool) -> Vec<Token> {
    let options = ChatOptions { thinking, generation_prompt: false, ..ChatOptions::default() };
    let chat = Chat { messages: vec![message.clone()], tools: Vec::new(), options };
    let segments = KimiK3.render(&chat).expect("renders");
    let prompt = Chat {
        messages: Vec::new(),
        options: ChatOptions { generation_prompt: true, ..chat.options },
        tools: Vec::new(),
    };
    let begun = KimiK3.render(&prompt).expect("renders");
    assert_eq!(segments[..begun.len()], begun);
    segments[begun.len()..].iter().cloned().map(Token::of).collect()
}

/// Whether a message, begun in think or response, is well formed to the letter: whole tags, each element closed by its
/// own name in its own turn, and the end of the message last.
fn is_whole(tokens: &[Token], thinking: bool) -> bool {
    let mut open = vec!["message".to_owned(), if thinking { "think" } else { "response" }.to_owned()];
    let mut tag: Option<(bool, String)> = None;
    for (at, token) in tokens.iter().enumerate() {
        match (token, &mut tag) {
            (Token::Bytes(bytes), Some((_, text))) => *text += &String::from_utf8_lossy(bytes),
            (Token::Bytes(_), None) => {}
            (Token::Special("<|open|>"), None) => tag = Some((true, String::new())),
            (Token::Special("<|close|>"), None) => tag = Some((false, String::new())),
            (Token::Special("<|sep|>"), Some((begin, text))) => {
                let name = text.split(' ').next().unwrap_or_default().to_owned();
                if text.matches('"').count() % 2 == 1 || name.is_empty() {
                    return false;
                }
                if *begin {
                    open.push(name);
                } else if open.pop() != Some(name) {
                    return false;
                }
                tag = None;
            }
            (Token::Special("<|end_of_msg|>"), None) => return open.is_empty() && at + 1 == tokens.len(),
            _ => return false,
        }
    }
    false
}

proptest! {
    /// However the bytes of a reply are cut, it says the same; and the deltas are the message.
    #[test]
    fn cuts_change_nothing(
        tokens in soup(),
        thinking: bool,
        end in ends(),
        stop in proptest::collection::vec("[a\" ]{1,2}", 0..2),
    ) {
        let read = |cut| {
            let mut parser = parser(thinking, &stop);
            let mut deltas = push(&mut *parser, &tokens, cut);
            deltas.extend(parser.finish(end));
            (joined(deltas), parser.reply(), parser.closing())
        };
        let (deltas, reply, closing) = read(usize::MAX);
        for cut in 1..4 {
            prop_assert_eq!(&read(cut), &(deltas.clone(), reply.clone(), closing.clone()));
        }
        let (reasoning, content, calls) = put_together(&deltas);
        prop_assert_eq!(reply.content.unwrap_or_default(), content);
        // Thought that turned out to be the answer is sent as both.
        prop_assert!(reasoning.ends_with(&reply.reasoning.unwrap_or_default()));
        let of_reply: Vec<_> = reply.tool_calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect();
        prop_assert_eq!(of_reply, calls);
    }

    /// Whatever came, closing it makes an end behind which a conversation can go on, and adds nothing to what was said.
    #[test]
    fn what_was_closed_is_an_end(tokens in soup(), thinking: bool) {
        let mut interrupted = parser(thinking, &[]);
        push(&mut *interrupted, &tokens, 7);
        interrupted.finish(End::Cancelled);
        let (reply, closing) = (interrupted.reply(), interrupted.closing());
        // A token that ended the turn otherwise, and what came behind the end, is left out.
        let kept = tokens.iter().position(|token| matches!(token, Token::Special("[EOS]" | "<|end_of_msg|>")));
        let kept = kept.map_or(tokens.len(), |at| at + usize::from(tokens[at] != Token::Special("[EOS]")));
        let closing: Vec<Token> = closing.into_iter().map(Token::of).collect();
        let mut whole = parser(thinking, &[]);
        push(&mut *whole, &[&tokens[..kept], &closing].concat(), 7);
        prop_assert!(whole.ended());
        prop_assert_eq!(whole.closing(), vec![]);
        whole.finish(End::Stop);
        let again = whole.reply();
        if again.content == reply.content {
            prop_assert_eq!(again.reasoning, reply.reasoning);
        } else {
            // The tag that was being read turned thought into the answer.
            prop_assert!(reply.content.is_none() && again.content == reply.reasoning);
        }
        // Where the model itself ended in the middle of an argument, that is so.
        let cut = closing.is_empty();
        let raw = tokens.iter().any(|token| matches!(token, Token::Bytes(bytes) if bytes.starts_with(b"j")));
        for call in again.tool_calls {
            prop_assert!(cut || raw || serde_json::from_str::<serde_json::Value>(&call.arguments).is_ok(), "{}", call.arguments);
        }
    }

    /// A good reply, interrupted anywhere, is made whole to the letter, as is one that needs nothing.
    #[test]
    fn a_good_reply_is_closed_to_the_letter(message in assistants(), thinking: bool, at: prop::sample::Index, byte: prop::sample::Index) {
        let message = Message::try_from(message).expect("a message");
        let all = as_reply(&message, thinking);
        prop_assert!(is_whole(&all, thinking));
        let mut tokens = all[..at.index(all.len() + 1)].to_vec();
        if let Some(Token::Bytes(bytes)) = tokens.last_mut() {
            let text = String::from_utf8(bytes.clone()).expect("UTF-8");
            let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            bytes.truncate(cuts[byte.index(cuts.len())]);
        }
        let mut parser = parser(thinking, &[]);
        push(&mut *parser, &tokens, usize::MAX);
        let closing = parser.closing().into_iter().map(Token::of);
        let whole: Vec<Token> = tokens.iter().cloned().chain(closing).collect();
        prop_assert!(is_whole(&whole, thinking), "{whole:?}");
        prop_assert_eq!(whole == tokens, tokens == all);
    }

    /// What was rendered and read is rendered as before.
    #[test]
    fn a_rendered_reply_is_read_back(message in assistants(), thinking: bool) {
        let message = Message::try_from(message).expect("a message");
        let tokens = as_reply(&message, thinking);
        let mut parser = parser(thinking, &[]);
        push(&mut *parser, &tokens, 5);
        parser.finish(End::Stop);
        let reply: Reply = parser.reply();
        prop_assert_eq!(reply.tool_calls.len(), message.tool_calls.len());
        prop_assert_eq!(as_reply(&Message::from(reply), thinking), tokens);
    }

    /// Control tokens are those of the format and no others, whatever texts, names, keys and schemas spell.
    #[test]
    fn nothing_from_outside_is_a_control_token(conversation in conversations()) {
        let chat = Chat::from_json(&conversation).expect("a conversation");
        let segments = KimiK3.render(&chat).expect("renders");
        let specials = segments.iter().filter(|segment| matches!(segment, OwnedSegment::Special(_))).count();
        let ids = K3_TINY.encode_owned(&segments).expect("known control tokens");
        prop_assert_eq!(ids.iter().filter(|&&id| K3_TINY.is_special(id)).count(), specials);
        let empty = OwnedSegment::Text(String::new());
        prop_assert!(!segments.contains(&empty));
    }

    /// A turn is what a whole prompt has behind the messages before it.
    #[test]
    fn a_turn_is_the_rest_of_a_prompt(conversation in conversations(), first: prop::sample::Index) {
        let chat = Chat::from_json(&conversation).expect("a conversation");
        let all = KimiK3.render(&chat).expect("renders");
        prop_assert_eq!([KimiK3.front(&chat).expect("renders"), KimiK3.turn(&chat, 0).expect("renders")].concat(), all.clone());
        // Not within a run of results, which may change its order as a whole.
        let mut first = first.index(chat.messages.len() + 1);
        while first < chat.messages.len() && chat.messages[first].role.name() == "tool" {
            first += 1;
        }
        let mut before = chat.clone();
        before.messages.truncate(first);
        before.options = ChatOptions { generation_prompt: false, thinking: chat.options.thinking, effort: chat.options.effort, ..ChatOptions::default() };
        let before = KimiK3.render(&before).expect("renders");
        prop_assert_eq!([before, KimiK3.turn(&chat, first).expect("renders")].concat(), all);
    }

    /// A conversation that was saved is the same, and so is its prompt.
    #[test]
    fn a_saved_conversation_is_the_same(conversation in conversations()) {
        let chat = Chat::from_json(&conversation).expect("a conversation");
        let saved = serde_json::to_string(&chat).expect("writes");
        let loaded: Chat = serde_json::from_str(&saved).expect("reads");
        prop_assert_eq!(KimiK3.render(&loaded).expect("renders"), KimiK3.render(&chat).expect("renders"));
        prop_assert_eq!(loaded, chat);
    }
}
