//! Routing traces as files: one that a command writes, those that a command reads. Knows no engine's insides.
use crate::errors::Failure;
use crate::report::{self, counted};
use engine::{Engine, show_bytes};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use store::routing::RoutingTrace;

/// A trace that is being written; empty if none is wanted.
pub(crate) struct RoutingFile(Option<(PathBuf, Option<File>)>);

impl RoutingFile {
    /// Opens the file that was asked for: before the work, because that it cannot be written is better known now.
    pub(crate) fn create(place: Option<PathBuf>) -> Result<Self, Failure> {
        let Some(path) = place else { return Ok(RoutingFile(None)) };
        let file = File::create(&path).map_err(Failure::io("writing", &path))?;
        Ok(RoutingFile(Some((path, Some(file)))))
    }

    /// From now on the engine writes to it.
    pub(crate) fn begin(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        if let Some((_, file)) = &mut self.0
            && let Some(file) = file.take()
        {
            engine.trace_routing(Box::new(file))?;
        }
        Ok(())
    }

    /// Ends it and says what is there.
    pub(crate) fn end(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        let Some((path, _)) = self.0.take() else { return Ok(()) };
        let bytes = engine.end_routing().map_err(|source| Failure::Io {
            what: format!("writing the routing trace {}, which lacks its last steps", path.display()),
            source,
        })?;
        report::tell(&format!("wrote a routing trace of {} to {}", show_bytes(bytes), path.display()));
        Ok(())
    }
}

/// The trace in a file. That its last step is not whole is said.
pub(crate) fn read(path: &Path) -> Result<RoutingTrace, Failure> {
    let bytes = fs::read(path).map_err(Failure::io("reading", path))?;
    let told = |error: &dyn std::fmt::Display| Failure::Told {
        kind: "routing",
        message: format!("{}: {error}", path.display()),
    };
    let trace = RoutingTrace::parse(&bytes).map_err(|error| told(&error))?;
    if trace.cut > 0 {
        report::tell(&format!(
            "note: {}: the last {} are no whole step and are left out: writing it was interrupted",
            path.display(),
            counted(trace.cut, "byte")
        ));
    }
    Ok(trace)
}
