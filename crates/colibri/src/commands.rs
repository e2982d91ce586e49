//! One file for each command.
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod golden;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod render;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod tokenize;
pub(crate) mod trace;
pub(crate) mod verify;
