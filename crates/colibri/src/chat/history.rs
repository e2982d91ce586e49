//! What was entered at a terminal in earlier chats: a file that only its owner can read. That it cannot be read or
//! written is said once and stops nothing.
use crate::{report, target};
use rustyline::history::{FileHistory, History as _};
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// A history and its file, if it is kept.
pub(crate) struct History {
    file: Option<PathBuf>,
}

impl History {
    /// Entries that are kept.
    pub(crate) const ENTRIES_MAX: usize = 1000;

    /// One that ends with the program.
    pub(crate) fn forgotten() -> Self {
        History { file: None }
    }

    /// The one in the platform's directory for such things: `$XDG_STATE_HOME/colibri`, or where programs keep their
    /// data if the platform has no such place.
    pub(crate) fn kept() -> Self {
        match target::state_folder() {
            Ok(folder) => History { file: Some(folder.join(target::CHAT_HISTORY)) },
            Err(error) => {
                report::tell(&format!(
                    "note: no history is kept: {error}; --no-history says that none is wanted"
                ));
                History::forgotten()
            }
        }
    }

    /// Takes in what earlier chats have left.
    pub(crate) fn load(&mut self, entries: &mut FileHistory) {
        let Some(file) = &self.file else { return };
        let loaded = prepared(file).map_err(|error| error.to_string());
        let loaded = loaded.and_then(|()| entries.load(file).map_err(|error| error.to_string()));
        if let Err(error) = loaded {
            self.give_up("read", &error);
        }
    }

    /// Adds an entry, in the file too, so that it is not lost however the program ends.
    pub(crate) fn add(&mut self, entries: &mut FileHistory, entry: &str) {
        // It only fails where the entries lie in a database.
        let new = entries.add(entry).unwrap_or(false);
        let Some(file) = &self.file else { return };
        if new && let Err(error) = entries.append(file) {
            self.give_up("written", &error.to_string());
        }
    }

    fn give_up(&mut self, what: &str, error: &str) {
        if let Some(file) = self.file.take() {
            report::tell(&format!(
                "note: no history is kept: {} cannot be {what}: {error}; --no-history says that none is wanted",
                file.display()
            ));
        }
    }
}

/// Makes sure that the file is there and nobody else can read it.
fn prepared(file: &Path) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
        let opened = options.mode(0o600).open(file)?;
        opened.set_permissions(fs::Permissions::from_mode(0o600))
    }
    #[cfg(not(unix))]
    options.open(file).map(|_| ())
}
