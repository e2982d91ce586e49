//! The device from outside.
mod conformance;
