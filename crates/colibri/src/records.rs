//! What is written about the work while it goes on, beside its results: a routing trace and a timeline. Knows which there
//! are, not what stands in them.
use crate::args::RecordArgs;
use crate::errors::Failure;
use crate::load::Model;
use crate::routing::RoutingFile;
use crate::target;
use crate::timeline::TimelineFile;
use engine::Engine;
use std::path::PathBuf;
use std::process::ExitCode;

/// The files that are being written.
pub(crate) struct Records {
    routing: RoutingFile,
    timeline: TimelineFile,
}

impl Records {
    /// Opens what was asked for, before the work.
    pub(crate) fn create(args: &RecordArgs, models: &[PathBuf], model: &Model) -> Result<Self, Failure> {
        let place = |flag, out: &Option<PathBuf>| {
            out.as_deref().map(|out| target::place(flag, out, models)).transpose()
        };
        // Both places before either file is emptied.
        let routing = place("--trace-routing", &args.trace_routing)?;
        let timeline = place("--timeline", &args.timeline)?;
        let routing = RoutingFile::create(routing)?;
        let files = model.checkpoint.files();
        let names = files.list().iter().map(|file| file.name.clone());
        let timeline = TimelineFile::create(timeline, names)?;
        Ok(Records { routing, timeline })
    }

    /// From now on the engine writes to them.
    pub(crate) fn begin(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        self.routing.begin(engine)?;
        self.timeline.begin(engine)
    }

    /// Ends them. The work is done and its answer given whatever became of a record: what is wrong with one is said here, on
    /// standard error, and makes the exit code that of a failure.
    pub(crate) fn end(&mut self, engine: &mut Engine) -> Option<ExitCode> {
        let ends = [self.routing.end(engine), self.timeline.end()];
        ends.into_iter().filter_map(Result::err).map(|failure| failure.report(false)).last()
    }
}
