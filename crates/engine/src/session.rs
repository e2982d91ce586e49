//! One sequence: its ids and its state. The engine's users hand over the whole prompt; what the state has seen already
//! is not computed again.
use crate::engine::{Engine, EngineError};
use models::{Health, Input, Logits, Output, Part, PartError, State, StateError};
use std::sync::atomic::AtomicBool;

const MAGIC: &[u8; 8] = b"COLIBRIQ";
const VERSION: u32 = 1;
/// Magic number, version, how many ids.
const HEADER_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// What binds ids to the snapshot they belong to.
fn seal(head: &[u8], snapshot: &[u8]) -> [u8; HASH_BYTES] {
    let end = &snapshot[snapshot.len().saturating_sub(HASH_BYTES)..];
    *blake3::Hasher::new().update(head).update(end).finalize().as_bytes()
}

/// Ids and snapshot of saved bytes; what is wrong with them otherwise.
fn opened(bytes: &[u8]) -> Result<(Vec<u32>, &[u8]), String> {
    let number = |at: usize| bytes.get(at..at + 4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]));
    if !bytes.starts_with(MAGIC) {
        return Err("the bytes do not begin like one".into());
    }
    match number(8) {
        Some(VERSION) | None => {}
        Some(other) => return Err(format!("version {other} is not {VERSION}; make it again from its ids")),
    }
    let cut = || format!("{} bytes are too few: it was cut off", bytes.len());
    let count = number(12).ok_or_else(cut)?;
    let head_bytes = u64::from(count) * 4 + HEADER_BYTES as u64;
    if (bytes.len() as u64) < head_bytes + HASH_BYTES as u64 {
        return Err(cut());
    }
    let (head, rest) = bytes.split_at(head_bytes as usize);
    let (hash, snapshot) = rest.split_at(HASH_BYTES);
    if seal(head, snapshot) != *hash {
        return Err("the checksum of its ids does not fit: it was damaged or cut off".into());
    }
    let (ids, _) = head[HEADER_BYTES..].as_chunks();
    Ok((ids.iter().map(|id| u32::from_le_bytes(*id)).collect(), snapshot))
}

/// A sequence that can be extended. The [crate's first page](crate) goes on with one; it can also be forked, and saved
/// with its state:
///
/// ```
/// # use engine::{Engine, Limits, Session, Streaming, plan, plan::Request};
/// # use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/k3-tiny");
/// # let checkpoint = store::Checkpoint::open(&[DIRECTORY.into()])?;
/// # let family = models::Family::recognise(&checkpoint)?;
/// // A plan says how many sequences there can be.
/// let request = Request { sequences: 2, ..Request::default() };
/// let plan = plan(&checkpoint, &family, &request, Limits::of_machine()?)?;
/// # let (device, reader) = (Box::new(ops::Oracle::new(1)?), Arc::new(checkpoint.files()));
/// # let mut engine = Engine::load(&checkpoint, &family, plan, device, Streaming::new(reader, 4), &mut |_| {})?;
/// let mut session = Session::new(&mut engine)?;
/// let first = session.feed(&mut engine, &[576, 424], models::Logits::Last, None)?;
///
/// let bytes = session.save(&mut engine)?;
/// let mut copy = Session::restore(&mut engine, &bytes)?;
/// assert_eq!(copy.ids(), [576, 424]);
/// // Both go on alike, to the bit.
/// let [one, two] = [&mut session, &mut copy].map(|s| s.feed(&mut engine, &[292], models::Logits::Last, None));
/// assert_eq!(one?.logits, two?.logits);
/// # assert_eq!(first.logits.len(), 4096);
/// copy.close(&mut engine)?;
/// # Ok(())
/// # }
/// ```
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

    /// A second sequence that goes its own way from here; the plan must have room for it.
    ///
    /// # Errors
    /// No room for another sequence, a session that a failure left half moved, or the device's.
    pub fn fork(&self, engine: &mut Engine) -> Result<Session, EngineError> {
        self.whole()?;
        let (pool, device) = engine.states();
        Ok(Session { ids: self.ids.clone(), state: pool.fork(device, &self.state)? })
    }

    /// Whether the ids are those that the state has seen.
    fn whole(&self) -> Result<(), StateError> {
        let ready = self.state.health() == Health::Ready && self.state.position() as usize == self.ids.len();
        if ready { Ok(()) } else { Err(StateError::NeedsRebuild) }
    }

    /// Ids and state as bytes, which [`restore`](Self::restore) takes back: in little-endian order the magic number,
    /// the version (u32), how many ids (u32), the ids (u32 each), a BLAKE3 hash of all of these and of the last 32
    /// bytes, and [`StatePool::snapshot`](models::StatePool::snapshot), which ends with a hash of its own.
    ///
    /// # Errors
    /// A session that a failure left half moved, or the device's.
    pub fn save(&self, engine: &mut Engine) -> Result<Vec<u8>, EngineError> {
        self.whole()?;
        let (pool, device) = engine.states();
        let snapshot = pool.snapshot(device, &self.state)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.ids.len() as u32).to_le_bytes());
        bytes.extend(self.ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(seal(&bytes, &snapshot));
        bytes.extend(snapshot);
        Ok(bytes)
    }

    /// A session from the bytes of [`save`](Self::save).
    ///
    /// # Errors
    /// Bytes that are damaged, cut off or of another model, packing or activations mode; no room for the session; the
    /// device's.
    pub fn restore(engine: &mut Engine, bytes: &[u8]) -> Result<Session, EngineError> {
        let (ids, snapshot) = opened(bytes).map_err(EngineError::BadSession)?;
        let (pool, device) = engine.states();
        let session = Session { ids, state: pool.restore(device, snapshot)? };
        let (ids, position) = (session.ids.len(), session.state.position());
        if session.whole().is_err() {
            session.close(engine)?;
            return Err(EngineError::BadSession(format!("{ids} ids beside a state of {position}")));
        }
        Ok(session)
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
        // A failure leaves the state half moved; ids that a step has taken in and nobody has noted leave it ahead.
        if self.whole().is_ok()
            && (keep == self.ids.len() || pool.truncate(device, &mut self.state, keep as u32).is_ok())
        {
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
