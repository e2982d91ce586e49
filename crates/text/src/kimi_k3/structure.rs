//! Which elements of a reply are open, and how a tag changes that: the rules for what is well formed and for what is
//! not. It deliberately knows no text.

/// An element inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Think,
    Response,
    Tools,
    Call,
    Argument,
    Json,
}

impl Element {
    pub(super) const ALL: [Element; 6] =
        [Element::Response, Element::Tools, Element::Think, Element::Call, Element::Argument, Element::Json];

    pub(super) fn name(self) -> &'static str {
        match self {
            Element::Think => "think",
            Element::Response => "response",
            Element::Tools => "tools",
            Element::Call => "call",
            Element::Argument => "argument",
            Element::Json => "json",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Element::ALL.into_iter().find(|element| element.name() == name)
    }
}

/// What a tag did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Begun(Element),
    Ended(Element),
    /// What was thought turned out to be the answer.
    ThoughtWasAnswer,
}

/// The open elements.
#[derive(Debug, Clone)]
pub(super) struct Structure {
    /// Above the message, from the outermost to the innermost.
    open: Vec<Element>,
    message_open: bool,
    response_seen: bool,
    tools_seen: bool,
}

impl Structure {
    /// At the beginning of an answer.
    pub(super) fn new(thinking: bool) -> Self {
        let open = vec![if thinking { Element::Think } else { Element::Response }];
        Self { open, message_open: true, response_seen: !thinking, tools_seen: false }
    }

    /// The innermost open element; None directly in the message or after it.
    pub(super) fn innermost(&self) -> Option<Element> {
        self.open.last().copied()
    }

    pub(super) fn message_open(&self) -> bool {
        self.message_open
    }

    pub(super) fn response_seen(&self) -> bool {
        self.response_seen
    }

    pub(super) fn tools_seen(&self) -> bool {
        self.tools_seen
    }

    /// The tag that begins an element of this name.
    pub(super) fn begin(&mut self, name: &str) -> Vec<Change> {
        // `message` is open already; an unknown element is as if it were not there.
        let Some(element) = Element::named(name) else { return Vec::new() };
        let mut changes = match element {
            Element::Think | Element::Response | Element::Tools => self.end_down_to(0),
            // A call does not lie in another.
            Element::Call => self.depth_of(Element::Call).map_or(Vec::new(), |depth| self.end_down_to(depth)),
            Element::Argument | Element::Json => match self.depth_of(Element::Call) {
                Some(depth) => self.end_down_to(depth + 1),
                None => return Vec::new(),
            },
        };
        self.response_seen |= element == Element::Response;
        self.tools_seen |= matches!(element, Element::Tools | Element::Call);
        self.open.push(element);
        changes.push(Change::Begun(element));
        changes
    }

    /// The tag that ends an element of this name.
    pub(super) fn end(&mut self, name: &str) -> Vec<Change> {
        if name == "message" {
            // What begins after the message is not in it.
            let was_open = std::mem::replace(&mut self.message_open, false);
            return if was_open { self.end_down_to(0) } else { Vec::new() };
        }
        let Some(element) = Element::named(name) else { return Vec::new() };
        if let Some(depth) = self.depth_of(element) {
            return self.end_down_to(depth);
        }
        if element == Element::Response && self.innermost() == Some(Element::Think) && !self.response_seen {
            self.response_seen = true;
            let mut changes = self.end_down_to(self.open.len() - 1);
            changes.push(Change::ThoughtWasAnswer);
            return changes;
        }
        Vec::new()
    }

    fn depth_of(&self, element: Element) -> Option<usize> {
        self.open.iter().rposition(|open| *open == element)
    }

    /// Ends the innermost elements until so many are left.
    fn end_down_to(&mut self, depth: usize) -> Vec<Change> {
        self.open.drain(depth..).rev().map(Change::Ended).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Element, Structure};

    #[test]
    fn a_message_ends_once() {
        let mut structure = Structure::new(false);
        assert_eq!(structure.end("message"), [Change::Ended(Element::Response)]);
        assert_eq!(structure.begin("tools"), [Change::Begun(Element::Tools)]);
        assert_eq!(structure.end("message"), []);
        assert_eq!(structure.innermost(), Some(Element::Tools));
    }
}
