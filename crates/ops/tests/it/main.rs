//! The tests of crate `ops` that use its public face only: the contract's words, conformance, test devices, references,
//! invariances.

mod by_the_words;
mod conformance;
mod desk;
mod devices;
mod hand_values;
mod invariances;
mod references;
