//! One file for each command.
pub(crate) mod logits;
pub(crate) mod run;
pub(crate) mod trace;
