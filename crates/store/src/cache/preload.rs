//! All experts at once, where there is a slot for each. It knows what an owner of the cache knows.

use super::error::{CacheError, ExpertError};
use super::request::{Arrival, Next};
use super::{ExpertCache, ExpertId};

impl ExpertCache {
    /// Reads every expert, so that [`ExpertCache::place_of`] finds them all and nothing is read afterwards. `progress` is
    /// told how many of how many are there. Counts as one request for each layer.
    ///
    /// # Errors
    /// [`CacheError::TooFewSlots`]; [`CacheError::Expert`] for the first expert that could not be read;
    /// [`CacheError::SlotsHeld`].
    pub fn preload(&mut self, progress: &mut dyn FnMut(u32, u32)) -> Result<(), CacheError> {
        let (experts, slots) = (self.catalog.experts(), self.slots.len());
        if slots < experts {
            return Err(CacheError::TooFewSlots { experts, slots });
        }
        let mut loaded = 0;
        for layer in self.catalog.layers() {
            let ids: Vec<_> =
                (0..self.catalog.experts_per_layer()).map(|expert| ExpertId { layer, expert }).collect();
            let mut request = self.request(&ids);
            loop {
                match self.next(&mut request, None) {
                    Next::Arrived(arrivals) => {
                        loaded += arrivals.len() as u32;
                        self.release_all(arrivals)?;
                        progress(loaded, experts);
                    }
                    Next::Finished => break,
                    Next::NeedsSlots | Next::TimedOut => return self.all_are_ready(),
                }
            }
        }
        self.all_are_ready()
    }

    /// Where there are slots for all, one can be wanting, or one expert have been evicted for another, only because a slot
    /// is held for a failed expert.
    fn all_are_ready(&self) -> Result<(), CacheError> {
        let (experts, slots) = (self.catalog.experts(), self.slots.len());
        let ready = (0..experts).filter(|&expert| self.slots.has(expert)).count() as u32;
        if ready < experts { Err(CacheError::SlotsHeld { experts, slots, ready }) } else { Ok(()) }
    }

    /// Releases leases that no submission used; the first error is returned after that.
    pub(super) fn release_all(&mut self, arrivals: Vec<Arrival>) -> Result<(), ExpertError> {
        let mut first = Ok(());
        for arrival in arrivals {
            match arrival.result {
                Ok(lease) => self.release(lease, 0),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }
}
