//! From logits to a token. The draw is a function of seed and position, so that neither batch nor chunk nor platform
//! changes it; exponentials, logarithms and sums are the numerics contract's (docs/numerics.md, section 5). Knows no
//! text and no model.
mod history;
mod logprobs;
mod mask;
mod ranks;
mod shares;

pub use logprobs::Logprobs;
pub use mask::{TokenMask, TokenSet};

use history::{History, Penalties};
use ranks::Ranks;
use shares::{Share, Shares, Sum};
use std::collections::BTreeMap;
use std::fmt;

/// How tokens are chosen. The rules work in this order: bias and mask, penalties, temperature, top-k, top-p, min-p,
/// draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits, at least 0; 0 takes the largest (ties: the lowest id) and ignores the cuts and the seed.
    pub temperature: f32,
    /// The K most likely stay; 0 keeps all.
    pub top_k: u32,
    /// The fewest most likely that together reach this share stay, above 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// Tokens less likely than this share of the most likely go, 0 to 1; 0 keeps all.
    pub min_p: f32,
    /// Of the draws.
    pub seed: u64,
    /// Added to the logits of these ids, [`BIAS_MAX`] either way at most.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Divides the logit of every id that has come if it is above 0 and multiplies it otherwise (Keskar et al. 2019),
    /// [`REPETITION_MIN`] to [`REPETITION_MAX`]; 1 changes nothing. As for the other penalties, prompt and answer count.
    pub repetition_penalty: f32,
    /// Taken from the logit of every id that has come, [`PENALTY_MAX`] either way at most.
    pub presence_penalty: f32,
    /// Taken from the logit of an id as often as it has come, [`PENALTY_MAX`] either way at most.
    pub frequency_penalty: f32,
    /// How many of the likeliest ids are given with their log-probabilities beside that of the token taken, at most
    /// [`LOGPROBS_MAX`]; None: no log-probabilities.
    pub logprobs: Option<u32>,
}

/// The largest bias of a logit, either way.
pub const BIAS_MAX: f32 = 100.0;
/// The smallest repetition penalty.
pub const REPETITION_MIN: f32 = 0.01;
/// The largest repetition penalty.
pub const REPETITION_MAX: f32 = 100.0;
/// The largest presence or frequency penalty, either way.
pub const PENALTY_MAX: f32 = 2.0;
/// The most ids that are given with log-probabilities.
pub const LOGPROBS_MAX: u32 = 20;

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            logit_bias: BTreeMap::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// The likeliest token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    fn check(&self, vocabulary: u32) -> Result<(), SamplingError> {
        let within = |value: f32, most: f32| (-most..=most).contains(&value);
        let repetition = REPETITION_MIN..=REPETITION_MAX;
        let settings = [
            ("temperature", self.temperature, self.temperature >= 0.0, "of at least 0"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                repetition.contains(&self.repetition_penalty),
                "from 0.01 to 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                within(self.presence_penalty, PENALTY_MAX),
                "from -2 to 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                within(self.frequency_penalty, PENALTY_MAX),
                "from -2 to 2",
            ),
        ];
        let bias =
            self.logit_bias.values().map(|v| ("logit_bias", *v, within(*v, BIAS_MAX), "from -100 to 100"));
        for (setting, found, valid, expected) in settings.into_iter().chain(bias) {
            if !(valid && found.is_finite()) {
                return Err(SamplingError::OutOfRange { setting, found, expected });
            }
        }
        if let Some(&id) = self.logit_bias.keys().find(|id| **id >= vocabulary) {
            return Err(SamplingError::BiasOfUnknown { id, vocabulary });
        }
        match self.logprobs {
            Some(found) if found > LOGPROBS_MAX => Err(SamplingError::TooManyLogprobs { found }),
            _ => Ok(()),
        }
    }

    fn penalties(&self) -> Penalties {
        Penalties {
            repetition: self.repetition_penalty,
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
        }
    }
}

/// A setting, a row of logits or a constraint that nothing can be chosen by.
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
    /// A bias for an id that is none.
    #[error("logit_bias names id {id}; ids of this model are below {vocabulary}")]
    BiasOfUnknown {
        /// The id.
        id: u32,
        /// Ids are below this.
        vocabulary: u32,
    },
    /// More log-probabilities than are given.
    #[error("logprobs is {found}; expected at most {LOGPROBS_MAX}")]
    TooManyLogprobs {
        /// Ids asked for.
        found: u32,
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
        "the logit of id {id} after {position} tokens is {value}; expected a finite number: look for damaged \
         weights with `colibri inspect --deep`"
    )]
    NotFinite {
        /// The first such id.
        id: u32,
        /// Tokens before.
        position: u32,
        /// The logit.
        value: f32,
    },
    /// The mask leaves nothing.
    #[error("after {position} tokens the constraint on the answer allows no token at all")]
    NoneAllowed {
        /// Tokens before.
        position: u32,
    },
    /// The mask cannot say what is allowed.
    #[error("the constraint on the answer failed after {position} tokens: {reason}")]
    Mask {
        /// Tokens before.
        position: u32,
        /// Its words.
        reason: String,
    },
}

/// Ranks that are looked at before the whole row is put in order.
const FIRST_RANKS: usize = 512;

/// Chooses the tokens of one sequence. It holds what a draw needs and uses it again for the next one.
///
/// ```
/// use engine::{Sampler, Sampling, TokenMask, TokenSet};
///
/// // A model of four ids, of which id 1 may never come; what has come is less likely to come again.
/// struct NotOne;
/// impl TokenMask for NotOne {
///     fn restrict(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
///         allowed.remove(1);
///         Ok(())
///     }
///     fn took(&mut self, _id: u32) -> Result<(), String> {
///         Ok(())
///     }
/// }
/// let sampling = Sampling { presence_penalty: 1.5, ..Sampling::greedy() };
/// let mut sampler = Sampler::new(sampling, 4)?.masked(Box::new(NotOne));
/// let (prompt, logits) = ([0, 2], [1.0, 9.0, 3.0, 2.0]);
/// sampler.begin(&prompt);
/// assert_eq!(sampler.next(&logits, 2)?, 3); // 2.0 is more than 3.0 - 1.5
/// assert_eq!(sampler.next(&logits, 3)?, 2); // and 1.5 more than 2.0 - 1.5
/// # Ok::<(), engine::SamplingError>(())
/// ```
pub struct Sampler {
    sampling: Sampling,
    vocabulary: u32,
    /// None where no penalty asks for it.
    history: Option<History>,
    mask: Option<(Box<dyn TokenMask>, TokenSet)>,
    /// Logits after bias, mask and penalties.
    changed: Vec<f32>,
    ranks: Ranks,
    shares: Vec<f32>,
    logprobs: Option<Logprobs>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sampler { sampling, vocabulary, mask, .. } = self;
        let mut shown = f.debug_struct("Sampler");
        shown.field("sampling", sampling).field("vocabulary", vocabulary).field("masked", &mask.is_some());
        shown.finish_non_exhaustive()
    }
}

impl Sampler {
    /// For a model of that vocabulary.
    ///
    /// # Errors
    /// A setting outside its range.
    pub fn new(sampling: Sampling, vocabulary: u32) -> Result<Self, SamplingError> {
        sampling.check(vocabulary)?;
        let history = (!sampling.penalties().change_nothing()).then(|| History::new(vocabulary));
        Ok(Sampler {
            sampling,
            vocabulary,
            history,
            mask: None,
            changed: Vec::new(),
            ranks: Ranks::default(),
            shares: Vec::new(),
            logprobs: None,
        })
    }

    /// Constrains what is chosen.
    #[must_use]
    pub fn masked(mut self, mask: Box<dyn TokenMask>) -> Self {
        self.mask = Some((mask, TokenSet::full(self.vocabulary)));
        self
    }

    /// A sequence begins with these ids. They count for penalties; a mask, which knows of answers only, is not told.
    pub fn begin(&mut self, ids: &[u32]) {
        if let Some(history) = &mut self.history {
            history.clear();
            for id in ids {
                history.add(*id);
            }
        }
    }

    /// The id that follows `position` ids; the sequence goes on with it.
    ///
    /// # Errors
    /// Logits that are not finite or not of this vocabulary; a mask that fails or allows nothing.
    pub fn next(&mut self, logits: &[f32], position: u32) -> Result<u32, SamplingError> {
        if logits.len() as u64 != u64::from(self.vocabulary) {
            return Err(SamplingError::Width { found: logits.len(), expected: self.vocabulary });
        }
        refuse_not_finite(logits, position)?;
        self.change(logits, position)?;
        let row = if self.changed.is_empty() { logits } else { &self.changed };
        let top = self.ranks.look(row);
        if top == f32::NEG_INFINITY {
            return Err(SamplingError::NoneAllowed { position });
        }
        let id = match self.sampling.temperature {
            0.0 => self.ranks.best(row, top),
            temperature => draw(
                &self.sampling,
                row,
                Share { top, temperature },
                position,
                &mut self.ranks,
                &mut self.shares,
            ),
        };
        let wanted = self.sampling.logprobs;
        self.logprobs = wanted.map(|count| Logprobs::of(&mut self.ranks, logits, id, count));
        if let Some(history) = &mut self.history {
            history.add(id);
        }
        if let Some((mask, _)) = &mut self.mask {
            mask.took(id).map_err(|reason| SamplingError::Mask { position, reason })?;
        }
        Ok(id)
    }

    /// Log-probabilities beside the last token, if they were asked for.
    #[must_use]
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_ref()
    }

    /// Applies bias, mask and penalties to a copy; none is made where nothing changes.
    fn change(&mut self, logits: &[f32], position: u32) -> Result<(), SamplingError> {
        self.changed.clear();
        if self.sampling.logit_bias.is_empty() && self.mask.is_none() && self.history.is_none() {
            return Ok(());
        }
        self.changed.extend(logits);
        for (id, bias) in &self.sampling.logit_bias {
            self.changed[*id as usize] += bias;
        }
        if let Some((mask, allowed)) = &mut self.mask {
            allowed.fill();
            mask.restrict(allowed).map_err(|reason| SamplingError::Mask { position, reason })?;
            allowed.apply(&mut self.changed);
        }
        if let Some(history) = &self.history {
            history.apply(self.sampling.penalties(), &mut self.changed);
        }
        Ok(())
    }
}

fn refuse_not_finite(logits: &[f32], position: u32) -> Result<(), SamplingError> {
    // Without an early end the loop is a few instructions for many logits.
    if logits.iter().fold(true, |all, logit| all & logit.is_finite()) {
        return Ok(());
    }
    match logits.iter().zip(0..).find(|(logit, _)| !logit.is_finite()) {
        Some((&value, id)) => Err(SamplingError::NotFinite { id, position, value }),
        None => Ok(()),
    }
}

/// Draws from a row that `ranks` has looked at: from the first ranks if they decide, else from all.
fn draw(
    sampling: &Sampling,
    row: &[f32],
    share: Share,
    position: u32,
    ranks: &mut Ranks,
    shares: &mut Vec<f32>,
) -> u32 {
    let uniform = uniform(sampling.seed, position);
    let mut choose = |count: usize, sum: Option<Sum>| {
        ranks.rank(row, count);
        shares.clear();
        shares.extend(ranks.logits());
        share.replace(shares);
        let sum = sum.filter(|_| shares.len() == count);
        let all = Shares { first: shares, whole: sum.is_none(), sum: sum.unwrap_or_else(|| Sum::of(shares)) };
        all.draw(sampling.top_p, sampling.min_p, uniform).map(|rank| ranks.id(rank))
    };
    if sampling.top_k == 0 && row.len() > FIRST_RANKS {
        let bounds = share.bounds(row);
        if let Some(id) = choose(FIRST_RANKS, Some(bounds)) {
            return id;
        }
    }
    let count = if sampling.top_k == 0 { row.len() } else { sampling.top_k as usize };
    choose(count, None).expect("of a whole row the draw can always be told")
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
mod tests;
