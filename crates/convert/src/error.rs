//! Why a conversion does not begin, or stops. Each error says what to do.
use models::LoadError;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use store::StoreError;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model in it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A place that cannot be written to.
    #[error("{}: {why}", path.display())]
    Place {
        /// The place.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// Settings that go together with nothing.
    #[error("{0}")]
    Settings(String),
    /// A tensor whose name a list of lines cannot hold.
    #[error(
        "tensor {0:?}: its name has a control character, which no list of checksums can hold; this is no release of a model"
    )]
    Name(String),
    /// The drive is full.
    #[error(
        "there is no room to write {} ({source}); what is written stays, and the same command goes on where it stopped once \
         there is room",
        path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The system refuses something else.
    #[error(
        "{doing} {}: {source}; what is written stays, and the same command goes on where it stopped",
        path.display()
    )]
    Write {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// It was asked to stop.
    #[error("interrupted; the same command goes on where it stopped")]
    Cancelled,
}

impl ConvertError {
    /// A system error while something of the destination was worked on.
    pub(crate) fn write(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                ConvertError::Full { path, source }
            }
            _ => ConvertError::Write { doing, path, source },
        }
    }

    pub(crate) fn place(path: &Path, why: impl Into<String>) -> Self {
        ConvertError::Place { path: path.to_owned(), why: why.into() }
    }
}
