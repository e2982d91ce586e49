//! Which experts the model asked for in earlier runs: where the file of each model lies, and what is said about it. That it
//! cannot be read or written is said once and stops nothing. What stands in it is [`store::history`]'s.
use crate::{report, target};
use engine::Engine;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The history of a loaded model, if one is kept.
pub(crate) struct ExpertHistory {
    file: Option<PathBuf>,
}

impl ExpertHistory {
    /// Reads what earlier runs left, in the same directory as the history of chats, and counts from now on.
    pub(crate) fn begin(wanted: bool, engine: &mut Engine) -> Self {
        let none = ExpertHistory { file: None };
        if !wanted {
            return none;
        }
        let Some(empty) = engine.empty_history() else {
            report::tell(
                "note: --history changes nothing: there is a slot for every expert, or there are none",
            );
            return none;
        };
        let folder = match target::state_folder() {
            Ok(folder) => folder,
            Err(error) => {
                report::tell(&format!("note: no history of experts is kept: {error}"));
                return none;
            }
        };
        let mut name = target::EXPERT_HISTORIES.to_owned();
        for byte in &empty.identity[..8] {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        let file = folder.join(name);
        let earlier = match fs::create_dir_all(&folder).map_err(Into::into).and_then(|()| empty.read(&file)) {
            Ok(earlier) => earlier,
            Err(error) => {
                report::tell(&format!("note: the history {} is not used: {error}", file.display()));
                None
            }
        };
        engine.begin_history(earlier.as_ref());
        ExpertHistory { file: Some(file) }
    }

    /// Adds what was asked for since the last call. The first failure ends it.
    pub(crate) fn save(&mut self, engine: &mut Engine) {
        let Some(file) = &self.file else { return };
        let Some(history) = engine.take_history() else { return };
        match history.merge_into(file) {
            Ok(None) => {}
            Ok(Some(aside)) => report::tell(&format!(
                "note: {} was no history of this model's experts; it is now {}, and a new history begins",
                file.display(),
                aside.display()
            )),
            Err(error) => {
                report::tell(&format!("note: the history {} is not written: {error}", file.display()));
                self.file = None;
            }
        }
    }
}
