//! From logits to a token. The draw is a function of seed and position, so that neither batch nor chunk nor platform
//! changes it; exponentials and sums are the numerics contract's.
use ops::{lanes, math};
use std::cmp::Ordering;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest (ties: the lowest id) and ignores all else.
    pub temperature: f32,
    /// The K most likely stay; 0 keeps all.
    pub top_k: u32,
    /// The fewest most likely that together reach this share stay; 1 keeps all.
    pub top_p: f32,
    /// Tokens less likely than this share of the most likely go; 0 keeps all.
    pub min_p: f32,
    /// Of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// A setting or a row of logits that nothing can be chosen by.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number outside its range.
    #[error("{setting} is {found}; expected a number {expected}")]
    OutOfRange {
        /// The field of [`Sampling`].
        setting: &'static str,
        /// Its value.
        found: f32,
        /// Its range.
        expected: &'static str,
    },
    /// A row that is no row of this model.
    #[error("{found} logits, {expected} expected: one for each id of the vocabulary")]
    Width {
        /// Logits given.
        found: usize,
        /// Ids there are.
        expected: u32,
    },
    /// Nothing can be chosen from such a row.
    #[error(
        "the logit of id {id} after {position} tokens is {value}; it must be finite: the model or its numbers are damaged"
    )]
    NotFinite {
        /// The first such id.
        id: u32,
        /// Tokens before.
        position: u32,
        /// The logit.
        value: f32,
    },
}

/// Chooses the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: u32,
}

impl Sampler {
    /// For a model of that vocabulary.
    ///
    /// # Errors
    /// A setting outside its range.
    pub fn new(sampling: Sampling, vocabulary: u32) -> Result<Self, SamplingError> {
        sampling.check()?;
        Ok(Sampler { sampling, vocabulary })
    }

    /// A sequence begins with these ids.
    pub fn begin(&mut self, ids: &[u32]) {
        for &id in ids {
            self.took(id);
        }
    }

    /// The sequence goes on with an id.
    pub fn took(&mut self, _id: u32) {}

    /// The id that follows `position` ids.
    ///
    /// # Errors
    /// Logits that are not finite or not of this vocabulary.
    pub fn pick(&mut self, logits: &[f32], position: u32) -> Result<u32, SamplingError> {
        if logits.len() as u64 != u64::from(self.vocabulary) {
            return Err(SamplingError::Width { found: logits.len(), expected: self.vocabulary });
        }
        if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(SamplingError::NotFinite { id: at as u32, position, value: logits[at] });
        }
        Ok(self.sampling.pick(logits, position))
    }
}

impl Sampling {
    /// The likeliest token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    fn check(&self) -> Result<(), SamplingError> {
        let settings = [
            ("temperature", self.temperature, self.temperature >= 0.0, "of at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
        ];
        match settings.into_iter().find(|(_, found, valid, _)| !(*valid && found.is_finite())) {
            None => Ok(()),
            Some((setting, found, _, expected)) => {
                Err(SamplingError::OutOfRange { setting, found, expected })
            }
        }
    }

    /// The token that follows `position` tokens. `logits` are finite and not empty.
    fn pick(&self, logits: &[f32], position: u32) -> u32 {
        if self.temperature == 0.0 {
            return argmax(logits);
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| descending(logits[a as usize], logits[b as usize]).then(a.cmp(&b)));
        if self.top_k > 0 {
            ids.truncate(self.top_k as usize);
        }
        let top = logits[ids[0] as usize];
        let mut shares: Vec<f32> =
            ids.iter().map(|&id| math::exp((logits[id as usize] - top) / self.temperature)).collect();
        let kept = self.kept(&shares);
        shares.truncate(kept);
        let aim = uniform(self.seed, position) * lanes::sum(&shares);
        let mut reached = 0.0;
        for (share, id) in shares.iter().zip(&ids) {
            reached += share;
            if reached > aim {
                return *id;
            }
        }
        ids[kept - 1]
    }

    /// How many of the shares, largest first, pass top-p and min-p; at least one.
    fn kept(&self, shares: &[f32]) -> usize {
        let mut kept = shares.len();
        if self.top_p < 1.0 {
            let aim = self.top_p * lanes::sum(shares);
            let mut reached = 0.0;
            let enough = shares.iter().position(|share| {
                reached += share;
                reached >= aim
            });
            kept = enough.map_or(kept, |last| last + 1);
        }
        let least = self.min_p * shares[0];
        let likely = shares.iter().take_while(|&&share| share >= least).count();
        kept.min(likely).max(1)
    }
}

/// The largest; ties go to the lowest id.
#[must_use]
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, v) in logits.iter().enumerate() {
        if *v > logits[best] {
            best = i;
        }
    }
    best as u32
}

fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// A number in [0, 1) from seed and position: the 24 upper bits of two rounds of `SplitMix64`'s finaliser (Steele,
/// Lea, Flood 2014).
fn uniform(seed: u64, position: u32) -> f32 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let z = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
        ^ u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (z >> 40) as f32 / (1u32 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [1.0, 3.0, 3.0, 2.0];

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        assert_eq!(Sampling { temperature: 0.0, ..Sampling::default() }.pick(&LOGITS, 5), 1);
    }

    #[test]
    fn draws_depend_on_seed_and_position_only_and_follow_the_shares() {
        let counts = |sampling: &Sampling| {
            let mut counts = [0u32; 4];
            for position in 0..20_000 {
                counts[sampling.pick(&LOGITS, position) as usize] += 1;
            }
            counts
        };
        let sampling = Sampling { seed: 7, ..Sampling::default() };
        assert_eq!(counts(&sampling), counts(&sampling));
        assert_ne!(counts(&sampling), counts(&Sampling { seed: 8, ..sampling.clone() }));
        // exp(-2), 1, 1, exp(-1) over their sum 2.503: 5.4 %, 39.95 %, 39.95 %, 14.7 %.
        for (count, share) in counts(&sampling).iter().zip([0.054, 0.3995, 0.3995, 0.147]) {
            assert!(
                (f64::from(*count) / 20_000.0 - share).abs() < 0.015,
                "{count} of 20000, {share} expected"
            );
        }
    }

    #[test]
    fn the_draw_is_part_of_the_contract() {
        let draws =
            [(0, 0), (0, 1), (7, 0), (u64::MAX, u32::MAX)].map(|(seed, position)| uniform(seed, position));
        assert_eq!(draws.map(|u| u * 16_777_216.0), [4_727_170.0, 235_435.0, 7_648_683.0, 2_751_622.0]);
    }

    #[test]
    fn cuts_leave_what_they_say() {
        let seen = |sampling: &Sampling| {
            let mut ids: Vec<u32> = (0..500).map(|p| sampling.pick(&LOGITS, p)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let all = Sampling::default();
        assert_eq!(seen(&all), [0, 1, 2, 3]);
        assert_eq!(seen(&Sampling { top_k: 1, ..all.clone() }), [1]);
        assert_eq!(seen(&Sampling { top_p: 0.39, ..all.clone() }), [1]);
        assert_eq!(seen(&Sampling { top_p: 0.41, ..all.clone() }), [1, 2]);
        assert_eq!(seen(&Sampling { min_p: 0.2, ..all.clone() }), [1, 2, 3]);
    }
}
