//! One file for each command.
pub(crate) mod golden;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod run;
pub(crate) mod trace;
pub(crate) mod verify;
