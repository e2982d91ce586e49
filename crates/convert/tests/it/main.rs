//! Containers of the tiny model: what they hold, what they compute, what happens to them.
mod contents;
#[cfg(unix)]
mod kills;
#[cfg(unix)]
mod mapped;
mod refusals;
mod support;
mod tokens;
mod verifying;
