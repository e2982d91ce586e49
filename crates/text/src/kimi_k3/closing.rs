//! What closes an interrupted message, so that a conversation can go on behind it. It deliberately adds no words to
//! what the model said.

use super::render::Prompt;
use super::structure::{Element, Structure};
use super::tag::{Side, Tag};
use super::{END_OF_MESSAGE, SEP};
use crate::OwnedSegment;

/// The segments that are missing: the rest of a tag, the ends of what is open, an empty response if there is none.
pub(super) fn closing(mut structure: Structure, tag: Option<Tag>) -> Vec<OwnedSegment> {
    let mut prompt = Prompt::default();
    if let Some(tag) = tag {
        match tag.side {
            Side::Begin => finish_begin(&mut prompt, &mut structure, tag),
            Side::End => finish_end(&mut prompt, &mut structure, tag),
        }
    }
    while let Some(element) = structure.innermost() {
        prompt.end(element.name());
        structure.end(element.name());
    }
    if structure.message_open() {
        if !structure.response_seen() && !structure.tools_seen() {
            prompt.begin("response", &[]);
            prompt.end("response");
        }
        prompt.end("message");
    }
    prompt.special(END_OF_MESSAGE);
    prompt.into_segments()
}

/// The rest of a tag that begins an element: the end of an attribute, or of a name that is the beginning of one.
fn finish_begin(prompt: &mut Prompt, structure: &mut Structure, mut tag: Tag) {
    let inside_value = tag.text.matches('"').count() % 2 == 1;
    let rest = if inside_value { "\"" } else { rest_of_name(structure, &tag) };
    prompt.text(rest);
    prompt.special(SEP);
    tag.text.push_str(rest);
    let name = tag.name();
    if structure.begin(name).is_empty() && name != "message" {
        // Unknown, or without meaning here: it is closed by its own name, which means as little.
        prompt.end(name);
    }
}

/// What makes the beginning of a name a whole one, if there is one.
fn rest_of_name(structure: &Structure, tag: &Tag) -> &'static str {
    let name = tag.name();
    if !tag.text.ends_with(name) {
        return ""; // The name is behind already.
    }
    // What may begin here comes first.
    let first = match structure.innermost() {
        Some(Element::Tools) => Element::Call,
        Some(Element::Call) => Element::Argument,
        _ if structure.response_seen() => Element::Tools,
        _ => Element::Response,
    };
    let mut names = std::iter::once(first).chain(Element::ALL).map(Element::name);
    names.find_map(|whole| whole.strip_prefix(name)).unwrap_or_default()
}

/// The rest of a tag that ends an element: of the innermost, if that is what it began to name.
fn finish_end(prompt: &mut Prompt, structure: &mut Structure, mut tag: Tag) {
    let innermost = structure.innermost().map_or("message", Element::name);
    let rest = if tag.text.ends_with(tag.name()) { innermost.strip_prefix(tag.name()) } else { None };
    let rest = rest.unwrap_or_default();
    prompt.text(rest);
    prompt.special(SEP);
    tag.text.push_str(rest);
    structure.end(tag.name());
}
