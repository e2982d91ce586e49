//! Damaged conversations and replies: an error that names its place or a prompt, and always an end, never a panic. With
//! `COLIBRI_TEST_FUZZ_SECONDS` the tests go on for that long.

use crate::chat_properties::{Token, as_reply, parser, push};
use crate::damaged::damage;
use crate::seeds::{Random, seeds};
use crate::support::{K3_TINY, json};
use serde_json::Value;
use text::chat::{Chat, ChatFormat as _, End, Role};
use text::kimi_k3::KimiK3;
use text::{Json, OwnedSegment, Tokenizer as _};

/// The conversations of the vectors.
fn conversations() -> Vec<String> {
    let file: Value = json("vectors/k3-render.json");
    let parts = |case: &Value| {
        let part = |key: &str| (key.to_owned(), case[key].clone());
        Value::Object(["messages", "tools", "options"].map(part).into_iter().collect()).to_string()
    };
    file["cases"].as_array().expect("cases").iter().map(parts).collect()
}

#[test]
fn damaged_conversations_are_refused_or_rendered() {
    let whole = conversations();
    let mut random = Random(3);
    let (mut tried, mut unread, mut refused, mut rendered) = (0, 0, 0, 0);
    for _ in seeds(4000) {
        let mut bytes = whole[random.below(whole.len())].clone().into_bytes();
        damage(&mut bytes, &mut random);
        tried += 1;
        let text = String::from_utf8_lossy(&bytes);
        let Ok(json) = Json::parse(&text) else {
            unread += 1;
            continue;
        };
        match Chat::from_json(&json).and_then(|chat| KimiK3.render(&chat)) {
            Ok(segments) => {
                rendered += 1;
                let special = |segment: &&OwnedSegment| matches!(segment, OwnedSegment::Special(_));
                let ids = K3_TINY.encode_owned(&segments).expect("known control tokens");
                let count = ids.iter().filter(|&&id| K3_TINY.is_special(id)).count();
                assert_eq!(count, segments.iter().filter(special).count(), "{text}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(": expected "), "{error}");
            }
        }
    }
    assert!(unread > 0 && refused > 0 && rendered > 0, "{unread}, {refused}, {rendered} of {tried}");
}

/// The answers in the vectors' conversations, as the model would have made them.
fn replies() -> Vec<Vec<Token>> {
    let mut replies = Vec::new();
    for text in conversations() {
        let chat = Chat::from_json(&Json::parse(&text).expect("JSON")).expect("a conversation");
        // A model does not say its own name.
        let answers =
            chat.messages.iter().filter(|message| message.role == Role::Assistant && message.name.is_none());
        replies.extend(answers.map(|message| as_reply(message, true)));
    }
    replies
}

#[test]
fn damaged_replies_come_to_an_end() {
    let whole = replies();
    assert!(whole.len() > 15);
    let mut random = Random(4);
    let mut different = 0;
    for _ in seeds(4000) {
        let original = &whole[random.below(whole.len())];
        let mut tokens = original.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(tokens.len());
            match random.below(4) {
                0 => drop(tokens.remove(at)),
                1 => tokens.insert(random.below(tokens.len()), tokens[at].clone()),
                2 => tokens.truncate(at + 1),
                _ => {
                    if let Token::Bytes(bytes) = &mut tokens[at] {
                        damage(bytes, &mut random);
                    }
                }
            }
            if tokens.is_empty() {
                break;
            }
        }
        different += usize::from(tokens != *original);
        let mut reader = parser(true, &["the".to_owned()]);
        push(&mut *reader, &tokens, 3);
        let closing: Vec<Token> = reader.closing().into_iter().map(Token::of).collect();
        reader.finish(End::Length);
        let mut again = parser(true, &[]);
        push(&mut *again, &[tokens, closing].concat(), 3);
        assert!(again.ended() && again.closing().is_empty());
    }
    assert!(different > 2000);
}
