//! Lines about what the program does inside, for those who look for a fault: where they go and how much is told. Knows
//! no event; the libraries write them.
use crate::args::MessageArgs;
use crate::errors::Failure;
use crate::target;
use crate::terminal::{self, Stream};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Level {
    /// Nothing
    Off,
    /// What failed
    Error,
    /// What may fail soon: reads that are slow or had to be repeated
    Warn,
    /// Stages: what was opened, planned and loaded
    Info,
    /// Each step, each file that is opened
    Debug,
    /// Each layer, each expert that is read
    Trace,
}

impl Level {
    fn filter(self) -> LevelFilter {
        match self {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

/// Lets lines be written from now on. To be called once.
///
/// # Errors
/// The file is none, cannot be opened, or lies where a model's files are.
pub(crate) fn start(args: &MessageArgs, models: &[PathBuf]) -> Result<(), Failure> {
    if args.log_level == Level::Off && args.log_file.is_some() {
        return Err(Failure::Usage(
            "--log-file has no effect with --log-level off: leave one of them away".into(),
        ));
    }
    let file = args.log_file.as_deref().map(|path| open(path, models)).transpose()?;
    if args.log_level == Level::Off {
        return Ok(());
    }
    let lines = Lines { file, failed: AtomicBool::new(false) };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(args.log_level.filter())
        .with_ansi(false)
        // It would end the program where nobody reads standard error.
        .log_internal_errors(false)
        .with_writer(lines)
        .finish();
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|error| Failure::Io { what: "starting the log".into(), source: io::Error::other(error) })
}

fn open(path: &Path, models: &[PathBuf]) -> Result<(File, PathBuf), Failure> {
    let place = target::place("--log-file", path, models)?;
    let opened = OpenOptions::new().append(true).create(true).open(&place);
    Ok((opened.map_err(Failure::io("opening the file of --log-file", path))?, place))
}

/// Where lines go: to the file, or to standard error.
struct Lines {
    file: Option<(File, PathBuf)>,
    /// Whether a line was lost, which is told once.
    failed: AtomicBool,
}

impl<'l> MakeWriter<'l> for Lines {
    type Writer = Line<'l>;

    fn make_writer(&'l self) -> Line<'l> {
        Line(self)
    }
}

/// Takes one line at once.
struct Line<'l>(&'l Lines);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let outcome = match &self.0.file {
            // A log is read on terminals, so it is harmless from the start.
            Some((file, _)) => (&mut &*file).write_all(terminal::harmless(&text).as_bytes()),
            None => Stream::Error.write(&text),
        };
        if let (Err(error), Some((_, place))) = (outcome, &self.0.file)
            && !self.0.failed.swap(true, Ordering::Relaxed)
        {
            crate::report::tell(&format!("note: lines of the log are lost: {}: {error}", place.display()));
        }
        // Nobody can do anything about a line that is lost.
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who writes a line goes on without it, and it is told once.
    #[test]
    fn a_file_that_takes_no_more_is_no_failure() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let unwritable = File::open(place.path()).unwrap();
        let lines =
            Lines { file: Some((unwritable, place.path().to_path_buf())), failed: AtomicBool::new(false) };
        for _ in 0..2 {
            assert_eq!(lines.make_writer().write(b"a line\n").unwrap(), 7);
            assert!(lines.failed.load(Ordering::Relaxed));
        }
    }
}
