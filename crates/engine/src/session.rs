//! One sequence: its ids and its state. The engine's users hand over the whole prompt; what the state has seen already
//! is not computed again.
use crate::engine::{Engine, EngineError};
use models::{Health, Input, Logits, Output, Part, PartError, State};
use std::sync::atomic::AtomicBool;

/// A sequence that can be extended.
#[derive(Debug)]
pub struct Session {
    ids: Vec<u32>,
    state: State,
}

impl Session {
    /// An empty sequence.
    ///
    /// # Errors
    /// The device's.
    pub fn new(engine: &mut Engine) -> Result<Self, EngineError> {
        Ok(Session { ids: Vec::new(), state: engine.create_state()? })
    }

    /// Ids that the state has seen.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The state, for reading.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// The device's.
    pub fn close(self, engine: &mut Engine) -> Result<(), EngineError> {
        let (pool, device) = engine.states();
        Ok(pool.release(device, self.state)?)
    }

    /// Makes the state one of `prompt` without its last token, or as near to it as can be kept: what is left to feed
    /// is `prompt[ids().len()..]`, at least one token.
    ///
    /// # Errors
    /// The device's.
    pub fn sync(&mut self, engine: &mut Engine, prompt: &[u32]) -> Result<(), EngineError> {
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = common.min(prompt.len().saturating_sub(1));
        let (pool, device) = engine.states();
        // Ids that a step has taken in and nobody has noted leave the state ahead of the session.
        let ready = self.state.health() == Health::Ready && self.state.position() as usize == self.ids.len();
        if ready && (keep == self.ids.len() || pool.truncate(device, &mut self.state, keep as u32).is_ok()) {
            self.ids.truncate(keep);
        } else {
            pool.reset(device, &mut self.state)?;
            self.ids.clear();
        }
        Ok(())
    }

    /// Feeds tokens in one step; logits of the last on demand. After an error the session must be synced again.
    ///
    /// # Errors
    /// The part's or the step's.
    pub fn feed(
        &mut self,
        engine: &mut Engine,
        ids: &[u32],
        logits: Logits,
        cancel: Option<&AtomicBool>,
    ) -> Result<Output, EngineError> {
        let mut batch = [self.part(ids, logits, cancel)];
        let outcome = engine.step(&mut batch)?.pop().unwrap_or(Err(PartError::Empty))?;
        self.ids.extend(ids);
        Ok(outcome)
    }

    /// This sequence's part of a step with others; call [`fed`](Self::fed) if it succeeds.
    pub fn part<'a>(
        &'a mut self,
        ids: &'a [u32],
        logits: Logits,
        cancel: Option<&'a AtomicBool>,
    ) -> Part<'a> {
        let position = self.state.position();
        Part { input: Input::Ids(ids), position, state: &mut self.state, logits, taps: &[], cancel }
    }

    /// Notes ids that a step has taken in.
    pub fn fed(&mut self, ids: &[u32]) {
        self.ids.extend(ids);
    }
}
