//! What is written about the work while it goes on, beside its results: a routing trace and a timeline. Knows which there
//! are, not what stands in them.
use crate::args::RecordArgs;
use crate::errors::Failure;
use crate::load::Model;
use crate::routing::RoutingFile;
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
        let routing = RoutingFile::create(args.trace_routing.as_deref(), models)?;
        let files = model.checkpoint.files();
        let names = files.list().iter().map(|file| file.name.clone());
        if let (Some(path), Some(out)) = (routing.path(), &args.timeline)
            && out.canonicalize().is_ok_and(|out| out == path)
        {
            return Err(Failure::Usage(format!(
                "--timeline {0} and --trace-routing {0} are one file; choose two",
                out.display()
            )));
        }
        let timeline = TimelineFile::create(args.timeline.as_deref(), models, names)?;
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
