//! The device from outside.
mod conformance;
mod device;
