//! Conversations with a model that speaks a chat format: what is entered, what is said, what is kept.
mod conversation;
mod history;
mod input;
mod lines;
mod orders;
mod record;
mod saved;
mod screen;
mod speaker;
#[cfg(test)]
mod tests;
mod voice;

pub(crate) use conversation::Reply;
pub(crate) use history::History;
pub(crate) use input::{Input, Inputs};
pub(crate) use lines::Entry;
pub(crate) use orders::{Entered, Order, Thinking, help, read};
pub(crate) use speaker::{Asked, Flags, Speaker};
