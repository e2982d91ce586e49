//! Any tokens as a reply: cut into bytes it says the same, and closing it makes an end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::chat::{ChatFormat as _, ChatOptions, End, Piece, ReplyParser};
use text::kimi_k3::KimiK3;
use text::{OwnedSegment, StopStrings};

const SPECIALS: [&str; 6] = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "[PAD]"];

fn parser(thinking: bool) -> Box<dyn ReplyParser> {
    let options = ChatOptions { thinking, ..ChatOptions::default() };
    let stop = StopStrings::new(vec!["stop".to_owned()]).expect("a good one");
    KimiK3.parser(&options, stop, Box::new(|| "id".to_owned()))
}

fn push(parser: &mut dyn ReplyParser, tokens: &[(Option<u8>, Vec<u8>)], cut: usize) {
    for (special, bytes) in tokens {
        match special.and_then(|special| SPECIALS.get(special as usize % 8)) {
            Some(name) => drop(parser.push(Piece::Special(name))),
            None => bytes.chunks(cut).for_each(|piece| drop(parser.push(Piece::Bytes(piece)))),
        }
    }
}

fuzz_target!(|input: (bool, Vec<(Option<u8>, Vec<u8>)>)| {
    let (thinking, tokens) = input;
    let (mut whole, mut cut) = (parser(thinking), parser(thinking));
    push(&mut *whole, &tokens, usize::MAX);
    push(&mut *cut, &tokens, 1);
    assert_eq!(whole.closing(), cut.closing());
    if !whole.ended() {
        for segment in whole.closing() {
            match &segment {
                OwnedSegment::Special(name) => whole.push(Piece::Special(name)),
                OwnedSegment::Text(text) => whole.push(Piece::Bytes(text.as_bytes())),
            };
            match &segment {
                OwnedSegment::Special(name) => cut.push(Piece::Special(name)),
                OwnedSegment::Text(text) => cut.push(Piece::Bytes(text.as_bytes())),
            };
        }
        assert!(whole.ended() && whole.closing().is_empty());
    }
    whole.finish(End::Stop);
    cut.finish(End::Stop);
    assert_eq!(whole.reply(), cut.reply());
});
