//! The tests of crate `text` that use its public face only: vectors, properties, damaged files and texts.

mod chat_properties;
mod chat_vectors;
mod damaged;
mod damaged_chats;
mod properties;
#[path = "../../../../tests/seeds.rs"]
mod seeds;
mod support;
mod vectors;
