//! The tests of crate `text` that use its public face only: vectors, properties, damaged files.

mod damaged;
mod properties;
#[path = "../../../../tests/seeds.rs"]
mod seeds;
mod support;
mod vectors;
