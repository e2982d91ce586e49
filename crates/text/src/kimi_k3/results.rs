//! Which call a tool's result answers, and in which order results stand. It deliberately renders nothing.

use crate::chat::{ChatError, Message, ToolCall};

/// The calls of the latest assistant message, and how many results came since.
#[derive(Default)]
pub(super) struct Results<'c> {
    calls: &'c [ToolCall],
    count: usize,
}

/// A result in its place.
pub(super) struct ToolResult<'c> {
    pub(super) message: &'c Message,
    pub(super) tool: &'c str,
    /// Counted from 1 since the assistant's message.
    pub(super) index: usize,
}

impl<'c> Results<'c> {
    /// The results that answer these calls.
    pub(super) fn of(calls: &'c [ToolCall]) -> Self {
        Self { calls, count: 0 }
    }

    /// An unbroken run of results, the first of which is message number `place`. If each has the id of a call, they
    /// come in the order of the calls and have their names; otherwise they stay as they are.
    pub(super) fn of_run(
        &mut self,
        run: &'c [Message],
        place: usize,
    ) -> Result<Vec<ToolResult<'c>>, ChatError> {
        let answered: Option<Vec<usize>> = run.iter().map(|message| self.answered(message)).collect();
        let mut order: Vec<(&Message, &str)> = Vec::new();
        if let Some(answered) = answered {
            let mut pairs: Vec<_> = answered.into_iter().zip(run).collect();
            pairs.sort_by_key(|(call, _)| *call);
            order.extend(pairs.into_iter().map(|(call, message)| (message, self.calls[call].name.as_str())));
        } else {
            for (at, message) in run.iter().enumerate() {
                let by_place = || self.calls.get(self.count + at).map(|call| call.name.as_str());
                let own = [&message.tool, &message.name].into_iter().flatten().find(|name| !name.is_empty());
                let place = || format!("messages[{}]", place + at);
                let tool = own.map(String::as_str).or_else(by_place);
                order.push((message, tool.ok_or_else(|| ChatError::UnnamedResult { place: place() })?));
            }
        }
        let first = self.count + 1;
        self.count += run.len();
        let numbered = (first..).zip(order);
        Ok(numbered.map(|(index, (message, tool))| ToolResult { message, tool, index }).collect())
    }

    /// The first call of the id that a result has.
    fn answered(&self, message: &Message) -> Option<usize> {
        let id = message.tool_call_id.as_deref().filter(|id| !id.is_empty())?;
        self.calls.iter().position(|call| call.id.as_deref() == Some(id))
    }
}
