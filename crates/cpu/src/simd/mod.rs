//! Instructions by name: the only place of the crate that calls them, and with `unsafe`. It knows no op and no buffer.
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod outputs;
