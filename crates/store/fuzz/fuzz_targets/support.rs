//! Opens files in memory; whatever opens must be sound.

use std::borrow::Cow;
use std::sync::Arc;

use store::files::MemoryFiles;
use store::{Checkpoint, testing};

/// Panics when the files open to something unsound.
pub fn check(files: &[(&str, &[u8])]) {
    let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), Cow::Owned(bytes.to_vec())));
    if let Ok(checkpoint) = Checkpoint::from_files(Arc::new(MemoryFiles::new(files))) {
        testing::check_consistent(&checkpoint).unwrap();
    }
}
