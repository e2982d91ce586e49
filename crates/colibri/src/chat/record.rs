//! What has been said in a conversation: its messages, the ids they are for the model, and where turns began. Knows no
//! model and no state.
use serde::{Deserialize, Serialize};
use text::chat::{Message, Role};

/// Where a turn began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    /// Messages before it.
    pub(crate) messages: usize,
    /// Ids before it.
    pub(crate) ids: usize,
}

/// A conversation so far. The ids only grow from turn to turn: what the model has said stays as it said it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Everything that was said, as the chat API's JSON has it.
    pub(crate) messages: Vec<Message>,
    /// The same for the model.
    pub(crate) ids: Vec<u32>,
    /// Turns that were answered.
    pub(crate) turns: Vec<Mark>,
}

impl Record {
    /// The place after everything.
    pub(crate) fn end(&self) -> Mark {
        Mark { messages: self.messages.len(), ids: self.ids.len() }
    }

    /// Forgets the last turn with all after it; what was said there, the model's answer left out.
    pub(crate) fn take_turn(&mut self) -> Option<Vec<Message>> {
        let mark = self.turns.pop()?;
        self.ids.truncate(mark.ids);
        let mut asked = self.messages.split_off(mark.messages);
        asked.retain(|message| message.role != Role::Assistant);
        Some(asked)
    }

    /// The last answer.
    pub(crate) fn last_answer(&self) -> Option<&Message> {
        self.messages.iter().rev().find(|message| message.role == Role::Assistant)
    }

    /// What cannot be, if it came from a file.
    pub(crate) fn fault(&self, vocabulary: u32) -> Option<String> {
        if let Some(id) = self.ids.iter().find(|id| **id >= vocabulary) {
            return Some(format!("`ids` holds {id}, ids are below {vocabulary}"));
        }
        let end = self.end();
        let past = |mark: &&Mark| mark.messages >= end.messages || mark.ids >= end.ids;
        let ordered = self.turns.is_sorted_by(|a, b| a.messages < b.messages && a.ids < b.ids);
        let mark = self.turns.iter().find(past).or(self.turns.first().filter(|_| !ordered));
        mark.map(|mark| {
            format!("`turns` names message {} and id {}, which cannot be", mark.messages, mark.ids)
        })
    }
}
