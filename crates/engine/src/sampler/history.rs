//! How often each id has come, and what that takes from its logit. The counts are kept as ids come: a draw looks at
//! each different id once and never at the sequence.

/// How a sequence's own ids weigh against it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Penalties {
    pub(super) repetition: f32,
    pub(super) presence: f32,
    pub(super) frequency: f32,
}

impl Penalties {
    pub(super) fn change_nothing(self) -> bool {
        self == Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }

    /// The logit of an id that has come `count` times, at least once. It stays finite.
    fn applied(self, logit: f32, count: u32) -> f32 {
        let logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        let logit = (logit - self.frequency * count as f32) - self.presence;
        logit.clamp(f32::MIN, f32::MAX)
    }
}

/// Counts of the ids of one sequence.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// By id.
    counts: Vec<u32>,
    /// Ids with a count, each once.
    seen: Vec<u32>,
}

impl History {
    pub(super) fn new(vocabulary: u32) -> Self {
        History { counts: vec![0; vocabulary as usize], seen: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        for id in self.seen.drain(..) {
            self.counts[id as usize] = 0;
        }
    }

    /// Counts an id; one of no vocabulary is passed over, the step that takes it in refuses it.
    pub(super) fn add(&mut self, id: u32) {
        let Some(count) = self.counts.get_mut(id as usize) else { return };
        if *count == 0 {
            self.seen.push(id);
        }
        *count = count.saturating_add(1);
    }

    pub(super) fn apply(&self, penalties: Penalties, logits: &mut [f32]) {
        for &id in &self.seen {
            let logit = &mut logits[id as usize];
            // An id that a mask has taken out stays out.
            if *logit > f32::NEG_INFINITY {
                *logit = penalties.applied(*logit, self.counts[id as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// The ids 1, 3 and 1 have come.
    fn penalised(penalties: Penalties, mut logits: [f32; 5]) -> [f32; 5] {
        let mut history = History::new(5);
        for id in [4, 4, 2] {
            history.add(id);
        }
        history.clear();
        for id in [1, 3, 1, 5, u32::MAX] {
            history.add(id);
        }
        history.apply(penalties, &mut logits);
        logits
    }

    #[test]
    fn penalties_have_their_hand_values() {
        let logits = [1.0, 3.0, 2.0, -1.0, 0.5];
        assert_eq!(penalised(NONE, logits), logits);
        let repetition = Penalties { repetition: 2.0, ..NONE };
        assert_eq!(penalised(repetition, logits), [1.0, 1.5, 2.0, -2.0, 0.5]);
        let presence = Penalties { presence: 0.5, ..NONE };
        assert_eq!(penalised(presence, logits), [1.0, 2.5, 2.0, -1.5, 0.5]);
        let frequency = Penalties { frequency: 0.5, ..NONE };
        assert_eq!(penalised(frequency, logits), [1.0, 2.0, 2.0, -1.5, 0.5]);
        let all = Penalties { repetition: 2.0, presence: 0.25, frequency: 0.5 };
        assert_eq!(penalised(all, logits), [1.0, 0.25, 2.0, -2.75, 0.5]);
        let rewards = Penalties { repetition: 0.5, presence: -1.0, frequency: -1.0 };
        assert_eq!(penalised(rewards, logits), [1.0, 9.0, 2.0, 1.5, 0.5]);
    }

    #[test]
    fn penalties_leave_logits_finite_and_masked_ids_out() {
        let reward = Penalties { repetition: 0.01, ..NONE };
        assert_eq!(penalised(reward, [0.0, 3e38, 0.0, -3e38, 0.0])[1], f32::MAX);
        let harsh = Penalties { repetition: 100.0, ..NONE };
        let logits = penalised(harsh, [0.0, -3e38, 0.0, f32::NEG_INFINITY, 0.0]);
        assert_eq!((logits[1], logits[3]), (f32::MIN, f32::NEG_INFINITY));
    }
}
