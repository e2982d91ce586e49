//! Routing on its way into a trace. A trace that cannot be written ends; the answer goes on. Knows no file.
use crate::engine::{Engine, EngineError};
use std::io::{self, Write};
use store::history::History;
use store::routing::{LayerPicks, RoutingHead, RoutingStep, RoutingWriter};

/// A trace that is being written, and why it is not any more.
pub(crate) struct Recorder {
    writer: RoutingWriter,
    failed: Option<io::Error>,
}

impl Recorder {
    /// Adds what a step has asked for, if it came to that.
    pub(crate) fn add(&mut self, step: &RoutingStep) {
        if step.is_empty() || self.failed.is_some() {
            return;
        }
        if let Err(error) = self.writer.append(step) {
            tracing::warn!(%error, "the routing trace ends: it cannot be written");
            self.failed = Some(error);
        }
    }
}

impl Engine {
    /// Runs `work` and gives, beside what it returns, which experts its steps picked, layer after layer: for measurements.
    pub fn picks_of<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> (T, RoutingStep) {
        self.kept = Some(RoutingStep::default());
        self.experts.keep_routing(true);
        let result = work(self);
        let picks = self.kept.take().unwrap_or_default();
        self.experts.keep_routing(self.recorder.is_some() || self.history.is_some());
        (result, picks)
    }

    /// Writes the picks of every step from now on, as [`store::routing`] has them; each is there when [`Engine::step`]
    /// returns. A write that fails ends the trace and nothing else; [`Engine::end_routing`] tells of it.
    ///
    /// # Errors
    /// [`EngineError::NoExperts`]; [`EngineError::Routing`] if not even the head can be written.
    pub fn trace_routing(&mut self, out: Box<dyn Write + Send>) -> Result<(), EngineError> {
        let catalog = self.experts.catalog().ok_or(EngineError::NoExperts)?;
        let head = RoutingHead {
            identity: self.identities.session,
            first_layer: catalog.layers().start,
            layers: catalog.layers().len() as u16,
            experts_per_layer: catalog.experts_per_layer(),
            ranks: self.ranks as u16,
            expert_bytes: catalog.layout().payload_bytes(),
        };
        let writer = RoutingWriter::new(out, head).map_err(EngineError::Routing)?;
        self.experts.keep_routing(true);
        self.recorder = Some(Recorder { writer, failed: None });
        Ok(())
    }

    /// An empty history of this model, if its experts come and go.
    #[must_use]
    pub fn empty_history(&self) -> Option<History> {
        let catalog = self.experts.catalog().filter(|_| self.experts.come_and_go())?;
        let (layers, experts) = (catalog.layers().len() as u32, u32::from(catalog.experts_per_layer()));
        Some(History::new(self.identities.model, layers, experts))
    }

    /// Counts what steps ask for from now on, if experts come and go. The policy of the cache begins with what an earlier
    /// history of this model says; that changes no result.
    pub fn begin_history(&mut self, earlier: Option<&History>) {
        let Some(empty) = self.empty_history() else { return };
        if let Some(earlier) = earlier {
            self.experts.expect(&earlier.shares());
        }
        self.experts.keep_routing(true);
        self.history = Some(empty);
    }

    /// What steps have asked for since the last call; None if that is nothing or is not counted.
    pub fn take_history(&mut self) -> Option<History> {
        let empty = self.empty_history()?;
        let history = self.history.as_mut().filter(|history| !history.is_empty())?;
        Some(std::mem::replace(history, empty))
    }

    /// Passes on what a step has asked for.
    pub(crate) fn note_routing(&mut self) {
        let step = self.experts.take_routing();
        if step.is_empty() {
            return;
        }
        if let Some(history) = &mut self.history {
            let first = self.experts.catalog().map_or(0, |catalog| catalog.layers().start);
            let experts = self.experts.catalog().map_or(0, |catalog| u32::from(catalog.experts_per_layer()));
            let place = |layer: &LayerPicks| {
                let start = u32::from(layer.layer - first) * experts;
                layer.experts().into_iter().map(move |expert| start + u32::from(expert))
            };
            history.add_step(step.iter().flat_map(place));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&step);
        }
        if let Some(kept) = &mut self.kept {
            kept.extend(step);
        }
    }

    /// Ends the trace; its bytes, 0 if there is none.
    ///
    /// # Errors
    /// Why it lacks steps.
    pub fn end_routing(&mut self) -> io::Result<u64> {
        self.experts.keep_routing(self.history.is_some());
        match self.recorder.take() {
            None => Ok(0),
            Some(Recorder { failed: Some(error), .. }) => Err(error),
            Some(Recorder { writer, .. }) => Ok(writer.bytes()),
        }
    }
}
