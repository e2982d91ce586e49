//! From the pieces of a reply to reasoning, content and calls. Control tokens are known by what they are, never by
//! their spelling, so that nothing is held back to see whether a marker follows. It deliberately knows no ids.

use super::arguments::Arguments;
use super::structure::{Change, Element, Structure};
use super::tag::{Side, Tag};
use super::{CLOSE, END_OF_MESSAGE, OPEN, SEP, closing};
use crate::chat::{CallIds, Delta, End, FinishReason, Piece, Reply, ReplyCall, ReplyParser};
use crate::cuts::is_space;
use crate::{OwnedSegment, StopStrings, StreamDecoder};

/// What ends an answer.
pub(super) const END_TOKENS: [&str; 3] = [END_OF_MESSAGE, "[EOS]", "[EOT]"];

/// How far a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Going,
    /// By the token after a message.
    EndedByMessage,
    /// By another of [`END_TOKENS`], or the caller said so.
    Ended,
}

/// Reads a reply.
pub(super) struct Parser {
    stop: StopStrings,
    ids: CallIds,
    decoder: StreamDecoder,
    structure: Structure,
    /// The tag that is being read.
    tag: Option<Tag>,
    /// The call that is open, unless it has no name.
    call: Option<Arguments>,
    turn: Turn,
    /// What was open when the turn ended.
    left_open: Option<(Structure, Option<Tag>)>,
    end: Option<End>,
    /// Whether any content came, held back or not.
    content_begun: bool,
    deltas: Vec<Delta>,
    reasoning: String,
    content: String,
    calls: Vec<ReplyCall>,
}

impl Parser {
    /// At the beginning of an answer.
    pub(super) fn new(thinking: bool, stop: StopStrings, ids: CallIds) -> Self {
        Self {
            stop,
            ids,
            decoder: StreamDecoder::new(),
            structure: Structure::new(thinking),
            tag: None,
            call: None,
            turn: Turn::Going,
            left_open: None,
            end: None,
            content_begun: false,
            deltas: Vec::new(),
            reasoning: String::new(),
            content: String::new(),
            calls: Vec::new(),
        }
    }

    fn special(&mut self, name: &str) {
        let tail = self.decoder.finish();
        self.text(&tail);
        match name {
            OPEN => self.begin_tag(Side::Begin),
            CLOSE => self.begin_tag(Side::End),
            SEP => self.end_tag(),
            END_OF_MESSAGE => self.end_turn(Turn::EndedByMessage),
            name if END_TOKENS.contains(&name) => self.end_turn(Turn::Ended),
            _ => {}
        }
    }

    fn begin_tag(&mut self, side: Side) {
        self.end_tag();
        self.tag = Some(Tag::new(side));
    }

    /// The tag is whole.
    fn end_tag(&mut self) {
        let Some(tag) = self.tag.take() else { return };
        let changes = match tag.side {
            Side::Begin => self.structure.begin(tag.name()),
            Side::End => self.structure.end(tag.name()),
        };
        for change in changes {
            match change {
                Change::Begun(element) => self.begun(element, &tag),
                Change::Ended(element) => self.ended_element(element),
                Change::ThoughtWasAnswer => {
                    let answer = std::mem::take(&mut self.reasoning);
                    self.push_content(&answer);
                }
            }
        }
    }

    fn begun(&mut self, element: Element, tag: &Tag) {
        match element {
            Element::Think | Element::Response | Element::Tools => {}
            Element::Call => self.begin_call(tag.attribute("tool")),
            Element::Argument => {
                let (key, kind) = (tag.attribute("key"), tag.attribute("type"));
                self.arguments(|arguments| arguments.begin_argument(key.as_deref(), kind.as_deref()));
            }
            Element::Json => self.arguments(Arguments::begin_json),
        }
    }

    fn ended_element(&mut self, element: Element) {
        match element {
            Element::Think | Element::Response | Element::Tools => {}
            Element::Argument | Element::Json => self.arguments(Arguments::end_element),
            Element::Call => {
                self.arguments(Arguments::end_call);
                self.call = None;
            }
        }
    }

    /// A call without a name is none.
    fn begin_call(&mut self, name: Option<String>) {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return };
        let (index, id) = (self.calls.len(), (self.ids)());
        self.deltas.push(Delta::Call { index, id: id.clone(), name: name.clone() });
        self.calls.push(ReplyCall { id, name, arguments: String::new() });
        self.call = Some(Arguments::default());
    }

    /// What happens to the arguments of the open call, if it has a name.
    fn arguments(&mut self, change: impl FnOnce(&mut Arguments) -> String) {
        let (Some(arguments), Some(call)) = (&mut self.call, self.calls.last_mut()) else { return };
        let text = change(arguments);
        if !text.is_empty() {
            call.arguments.push_str(&text);
            self.deltas.push(Delta::Arguments { index: self.calls.len() - 1, text });
        }
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(tag) = &mut self.tag {
            tag.text.push_str(text);
            return;
        }
        match self.structure.innermost() {
            Some(Element::Think) => {
                self.reasoning.push_str(text);
                self.deltas.push(Delta::Reasoning(text.to_owned()));
            }
            Some(Element::Response) => self.push_content(text),
            Some(Element::Argument | Element::Json) => self.arguments(|arguments| arguments.push(text)),
            None if self.structure.message_open() && !self.structure.response_seen() => {
                let text = if self.content_begun { text } else { text.trim_start_matches(is_space) };
                self.push_content(text);
            }
            Some(Element::Tools | Element::Call) | None => {}
        }
    }

    fn push_content(&mut self, text: &str) {
        self.content_begun |= !text.is_empty();
        let certain = self.stop.push(text);
        self.certain_content(certain);
    }

    fn certain_content(&mut self, text: String) {
        if !text.is_empty() {
            self.content.push_str(&text);
            self.deltas.push(Delta::Content(text));
        }
    }

    /// The model ended its turn.
    fn end_turn(&mut self, turn: Turn) {
        self.left_open = Some((self.structure.clone(), self.tag.clone()));
        // An end that lacks only its last token is one; a beginning is nothing yet.
        if self.tag.as_ref().is_some_and(|tag| tag.side == Side::End) {
            self.end_tag();
        }
        if self.structure.innermost() == Some(Element::Json) {
            self.arguments(Arguments::end_element);
        }
        if matches!(self.structure.innermost(), Some(Element::Call | Element::Json)) {
            self.arguments(Arguments::end_call);
        }
        self.turn = turn;
    }
}

impl ReplyParser for Parser {
    fn push(&mut self, piece: Piece<'_>) -> Vec<Delta> {
        if !self.ended() {
            match piece {
                Piece::Special(name) => self.special(name),
                Piece::Bytes(bytes) => {
                    let text = self.decoder.push(bytes);
                    self.text(&text);
                }
            }
        }
        std::mem::take(&mut self.deltas)
    }

    fn ended(&self) -> bool {
        self.turn != Turn::Going || self.stop.stopped() || self.end.is_some()
    }

    fn finish(&mut self, end: End) -> Vec<Delta> {
        if self.end.is_none() {
            if !self.ended() {
                let tail = self.decoder.finish();
                self.text(&tail);
                if end == End::Stop && !self.stop.stopped() {
                    self.end_turn(Turn::Ended);
                }
            }
            let held = self.stop.finish();
            self.certain_content(held);
            let ended = self.turn != Turn::Going || self.stop.stopped();
            self.end = Some(if ended { End::Stop } else { end });
        }
        std::mem::take(&mut self.deltas)
    }

    fn reply(&self) -> Reply {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let finish_reason = match self.end {
            Some(End::Length) => FinishReason::Length,
            _ if self.turn != Turn::Going && !self.stop.stopped() && !self.calls.is_empty() => {
                FinishReason::ToolCalls
            }
            _ => FinishReason::Stop,
        };
        Reply {
            reasoning: some(&self.reasoning),
            content: some(&self.content),
            tool_calls: self.calls.clone(),
            finish_reason,
        }
    }

    fn closing(&self) -> Vec<OwnedSegment> {
        if self.turn == Turn::EndedByMessage {
            return Vec::new();
        }
        let (structure, mut tag) =
            self.left_open.clone().unwrap_or_else(|| (self.structure.clone(), self.tag.clone()));
        if let Some(tag) = &mut tag {
            tag.text.push_str(&self.decoder.clone().finish());
        }
        closing::closing(structure, tag)
    }
}
