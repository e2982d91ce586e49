//! The program as its users meet it: real processes, real files, what comes out on each stream.
mod bench;
mod chat;
#[cfg(unix)]
mod chat_terminal;
mod common;
mod config;
mod convert;
mod doctor;
#[cfg(unix)]
mod documents;
mod failures;
#[cfg(unix)]
mod faults;
mod files;
#[cfg(target_os = "linux")]
mod governor;
mod help;
mod history;
mod inspect;
#[cfg(unix)]
mod interrupt;
mod logging;
mod outputs;
mod pipes;
mod plan;
#[cfg(unix)]
mod plan_settings;
#[cfg(unix)]
mod pty;
mod render;
mod run;
mod sampling;
mod settings;
mod shell;
mod simulate;
#[cfg(unix)]
mod terminal;
mod timeline;
mod tune;
mod usage;
mod verify;
mod walk;
