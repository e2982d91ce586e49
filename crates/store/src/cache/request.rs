//! What passes between the cache and those who use experts: requests, arrivals and leases. Both tell the cache when they
//! are dropped instead of being given back, so that nothing leaks in silence.

use super::error::ExpertError;
use super::fetch::Landing;
use crate::catalog::ExpertId;
use std::sync::mpsc::Sender;

/// What the owner of the cache learns through its channel.
#[derive(Debug)]
pub(super) enum Event {
    /// A read has ended.
    Landed(Landing),
    /// A request was dropped without being finished.
    Dropped(Held),
    /// A lease of this slot was dropped without being released.
    Lost(u32),
}

/// An expert that a request holds a slot for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) expert: u32,
    pub(super) slot: u32,
}

/// What a request still has to get.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Experts with a slot, which is pinned; read or not.
    pub(super) pending: Vec<Pending>,
    /// Experts without a slot, in ascending order.
    pub(super) waiting: Vec<u32>,
    /// Experts that cannot be.
    pub(super) refused: Vec<ExpertError>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty() && self.refused.is_empty()
    }
}

/// Experts that were asked for and have not all arrived. Dropping it is the same as
/// [`ExpertCache::abandon`](super::ExpertCache::abandon).
#[must_use = "the experts arrive through `ExpertCache::next`"]
#[derive(Debug)]
pub struct Request {
    pub(super) held: Held,
    events: Sender<Event>,
}

impl Request {
    pub(super) fn new(events: Sender<Event>) -> Self {
        Self { held: Held::default(), events }
    }

    /// Experts that have not arrived yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.held.pending.len() + self.held.waiting.len() + self.held.refused.len()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            // If the cache is gone, so are its pins.
            let _ = self.events.send(Event::Dropped(std::mem::take(&mut self.held)));
        }
    }
}

/// What [`ExpertCache::next`](super::ExpertCache::next) found.
#[must_use]
#[derive(Debug)]
pub enum Next {
    /// All experts that are here, one at least.
    Arrived(Vec<Arrival>),
    /// Nothing is on its way, and what remains gets no slot before leases are released and submissions retired.
    NeedsSlots,
    /// The deadline passed before anything arrived.
    TimedOut,
    /// Every expert of the request has arrived.
    Finished,
}

/// One expert of a request, or why it cannot be had.
#[must_use]
#[derive(Debug)]
pub struct Arrival {
    /// The expert.
    pub id: ExpertId,
    /// Its slot, held until it is released.
    pub result: Result<Lease, ExpertError>,
}

/// The right to use an expert's bytes in their slot. It goes back with [`ExpertCache::release`](super::ExpertCache::release);
/// one that is dropped keeps its slot out of use until [`ExpertCache::reclaim_lost`](super::ExpertCache::reclaim_lost).
#[must_use = "a lease that is dropped keeps its slot out of use"]
#[derive(Debug)]
pub struct Lease {
    id: ExpertId,
    slot: u32,
    payload_offset: u64,
    released: bool,
    events: Sender<Event>,
}

impl Lease {
    pub(super) fn new(id: ExpertId, (slot, payload_offset): (u32, u64), events: Sender<Event>) -> Self {
        Self { id, slot, payload_offset, released: false, events }
    }

    /// The expert.
    #[must_use]
    pub fn id(&self) -> ExpertId {
        self.id
    }

    /// The slot of the slab that holds it.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Where its first piece starts, in bytes from the start of the slot. It may be any number: a direct read brings the
    /// expert as it lies in the blocks of its file. Safetensors files begin their tensors at multiples of 8.
    #[must_use]
    pub fn payload_offset(&self) -> u64 {
        self.payload_offset
    }

    /// Ends the lease in the ordinary way and returns its slot.
    pub(super) fn end(mut self) -> u32 {
        self.released = true;
        self.slot
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released {
            // If the cache is gone, so are its pins.
            let _ = self.events.send(Event::Lost(self.slot));
        }
    }
}
