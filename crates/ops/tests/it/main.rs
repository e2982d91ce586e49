//! The tests of crate `ops` that use its public face only: conformance, test devices, references, invariances.

mod conformance;
mod desk;
mod devices;
mod hand_values;
mod invariances;
mod references;
