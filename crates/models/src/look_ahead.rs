//! Guesses which experts the next layer will pick, so that the disk can read them while this layer computes. It changes
//! when bytes move, never which experts run.
//!
//! The guess is the next layer's own router on what is known before this layer's experts are: what is still missing is
//! this layer's MLP and the next layer's attention. How often that is right depends on the model, so it is measured, rank
//! by rank, by comparing guesses with what was picked then; the comparison costs no read. This file knows no device and
//! no cache.
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// How many experts of the next layer are guessed for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LookAhead {
    /// None.
    Off,
    /// As many ranks as were right often enough.
    #[default]
    Auto,
    /// The most likely ones, so many.
    Ranks(u32),
}

impl LookAhead {
    /// Most ranks that can be asked for.
    pub const MOST: u32 = 64;
}

impl fmt::Display for LookAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookAhead::Off => f.write_str("off"),
            LookAhead::Auto => f.write_str("auto"),
            LookAhead::Ranks(ranks) => write!(f, "{ranks}"),
        }
    }
}

impl FromStr for LookAhead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranks = || text.parse().ok().filter(|ranks| (1..=Self::MOST).contains(ranks));
        match text {
            "off" => Ok(LookAhead::Off),
            "auto" => Ok(LookAhead::Auto),
            _ => ranks()
                .map(LookAhead::Ranks)
                .ok_or_else(|| format!("expected auto, off or a number from 1 to {}", Self::MOST)),
        }
    }
}

/// Where guesses come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuessSource {
    /// The model's own routers, as the setting says.
    #[default]
    Routers,
    /// Nowhere.
    Nothing,
    /// As many layers' guesses as there are, in order, for measurements: the layer and its experts.
    Given(VecDeque<(u32, Vec<u32>)>),
}

/// What was guessed and how much of it was right, since the model was loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookAheadStatistics {
    /// Layers for which a guess was compared with the picks.
    pub compared: u64,
    /// Of each rank of the guesses: how often it was picked, and how often it was guessed.
    pub ranks: Vec<(u64, u64)>,
    /// Ranks that are read at present.
    pub width: u32,
}

/// A rank is read if at least this share of its guesses is right: a wrong read costs time of a disk that would idle, and
/// a place in the cache.
const WORTH: f32 = 0.3;
/// How much of the precision is the last layer's: about ten layers are remembered.
const FRESH: f32 = 0.1;
/// While nothing is read, every so many tokens all layers are guessed, to see whether it has become worth it.
const PROBE: u32 = 32;
/// A guess may fill this share of the slots.
const SHARE_OF_SLOTS: u32 = 4;

/// The guesses of one model in use.
#[derive(Debug)]
pub(crate) struct Guesses {
    mode: LookAhead,
    /// Ranks of a guess.
    ranks: u32,
    /// For each rank the share of guesses that were right, of late.
    precision: Vec<f32>,
    /// The layer that was guessed last, and its experts, a row of ranks a token.
    last: Option<(u32, Vec<u32>)>,
    /// Steps since guesses were made though none are read.
    since_probe: u32,
    statistics: LookAheadStatistics,
    /// Room for what is to be read, and whether an expert of the layer is among it.
    chosen: Vec<u32>,
    is_chosen: Vec<bool>,
    source: GuessSource,
}

impl Guesses {
    /// For a model that picks `picks` of `experts` experts.
    pub(crate) fn new(mode: LookAhead, picks: u32, experts: u32) -> Self {
        let ranks = match mode {
            LookAhead::Off => 0,
            LookAhead::Auto => picks,
            LookAhead::Ranks(ranks) => ranks,
        }
        .min(experts);
        let statistics =
            LookAheadStatistics { ranks: vec![(0, 0); ranks as usize], ..LookAheadStatistics::default() };
        // The first guesses are read: the doubt comes with experience.
        let precision = vec![1.0; ranks as usize];
        Guesses {
            mode,
            ranks,
            precision,
            last: None,
            since_probe: 0,
            statistics,
            chosen: Vec::new(),
            is_chosen: vec![false; experts as usize],
            source: GuessSource::default(),
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self) {
        self.last = None;
        self.since_probe = if self.since_probe >= PROBE { 1 } else { self.since_probe + 1 };
    }

    /// From now on guesses come from there.
    pub(crate) fn come_from(&mut self, source: GuessSource) {
        self.source = source;
    }

    /// What is given for a layer, if guesses are given and this is its turn.
    pub(crate) fn given(&mut self, layer: u32) -> Option<Vec<u32>> {
        let GuessSource::Given(guesses) = &mut self.source else { return None };
        guesses.pop_front_if(|(next, _)| *next == layer).map(|(_, experts)| experts)
    }

    /// The ranks to be guessed for the next layer; None if it is not worth the router's time, or not the routers' turn.
    pub(crate) fn ranks(&self) -> Option<u32> {
        if self.source != GuessSource::Routers {
            return None;
        }
        let is_wanted = self.width() > 0 || (self.ranks > 0 && self.since_probe >= PROBE);
        is_wanted.then_some(self.ranks)
    }

    /// The first ranks whose guesses are worth reading.
    pub(crate) fn width(&self) -> u32 {
        match self.mode {
            LookAhead::Off => 0,
            LookAhead::Ranks(_) => self.ranks,
            LookAhead::Auto => self.precision.iter().take_while(|p| **p >= WORTH).count() as u32,
        }
    }

    /// Takes a guess, a row of ranks a token, best first; the experts to be read, best ranks first, each once and no more
    /// than a part of `slots`.
    pub(crate) fn take(&mut self, layer: u32, picks: Vec<u32>, slots: u32) -> &[u32] {
        let (ranks, width) = (self.ranks as usize, self.width() as usize);
        self.chosen.clear();
        self.is_chosen.fill(false);
        let most = (slots / SHARE_OF_SLOTS) as usize;
        let by_rank = (0..width).flat_map(|rank| picks.chunks_exact(ranks).map(move |row| row[rank]));
        for expert in by_rank.filter(|expert| *expert != ops::NONE) {
            if self.chosen.len() == most {
                break;
            }
            if !std::mem::replace(&mut self.is_chosen[expert as usize], true) {
                self.chosen.push(expert);
            }
        }
        self.last = Some((layer, picks));
        &self.chosen
    }

    /// Compares the last guess with what a layer wants.
    pub(crate) fn compare(&mut self, layer: u32, wanted: &[bool]) {
        let Some((guessed, picks)) = self.last.take() else { return };
        if guessed != layer || picks.is_empty() {
            return;
        }
        self.statistics.compared += 1;
        let ranks = self.ranks as usize;
        for rank in 0..ranks {
            let all = picks.chunks_exact(ranks).map(|row| row[rank]).filter(|expert| *expert != ops::NONE);
            let (mut right, mut made) = (0_u64, 0_u64);
            for expert in all {
                made += 1;
                right += u64::from(wanted[expert as usize]);
            }
            if made == 0 {
                continue;
            }
            let sums = &mut self.statistics.ranks[rank];
            *sums = (sums.0 + right, sums.1 + made);
            let precision = &mut self.precision[rank];
            *precision += FRESH * (right as f32 / made as f32 - *precision);
        }
    }

    pub(crate) fn statistics(&self) -> LookAheadStatistics {
        LookAheadStatistics { width: self.width(), ..self.statistics.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guesses `picks` for layer 1 and says what of it was right.
    fn guess(guesses: &mut Guesses, picks: &[u32], right: &[u32]) -> Vec<u32> {
        guesses.begin();
        let read = guesses.take(1, picks.to_vec(), 1000).to_vec();
        let wanted: Vec<bool> = (0..100).map(|expert| right.contains(&expert)).collect();
        guesses.compare(1, &wanted);
        read
    }

    #[test]
    fn names_of_the_setting() {
        for text in ["off", "auto", "1", "64"] {
            assert_eq!(text.parse::<LookAhead>().unwrap().to_string(), text);
        }
        for text in ["", "0", "65", "-1", "on", "1.0"] {
            assert_eq!(text.parse::<LookAhead>(), Err("expected auto, off or a number from 1 to 64".into()));
        }
    }

    #[test]
    fn best_ranks_are_read_first_each_expert_once_and_within_the_slots() {
        let mut guesses = Guesses::new(LookAhead::Ranks(3), 2, 100);
        guesses.begin();
        let picks = vec![5, 6, 7, 8, 5, ops::NONE];
        assert_eq!(guesses.take(1, picks.clone(), 1000), [5, 8, 6, 7]);
        assert_eq!(guesses.take(1, picks.clone(), 11), [5, 8]);
        assert_eq!(guesses.take(1, picks, 3), [0_u32; 0]);
    }

    #[test]
    fn width_follows_precision_and_comes_back() {
        let mut guesses = Guesses::new(LookAhead::Auto, 4, 100);
        assert_eq!(guesses.width(), 4);
        for _ in 0..50 {
            guess(&mut guesses, &[1, 2, 3, 4], &[1, 2, 9]);
        }
        assert_eq!(guesses.width(), 2);
        assert_eq!(guess(&mut guesses, &[1, 2, 3, 4], &[1, 2]), [1, 2]);
        for _ in 0..50 {
            guess(&mut guesses, &[1, 2, 3, 4], &[]);
        }
        assert_eq!(guesses.width(), 0);
        // Now only every PROBE-th step guesses, and reads nothing.
        let asked = (0..4 * PROBE).filter(|_| {
            guesses.begin();
            guesses.ranks().is_some()
        });
        assert_eq!(asked.count(), 4);
        for _ in 0..50 {
            guess(&mut guesses, &[1, 2, 3, 4], &[1, 2, 3, 4]);
        }
        assert_eq!(guesses.width(), 4);
    }

    #[test]
    fn a_guess_is_compared_with_its_own_layer_only() {
        let mut guesses = Guesses::new(LookAhead::Ranks(2), 2, 100);
        guesses.begin();
        guesses.take(3, vec![1, 2], 100);
        guesses.compare(2, &[true; 100]);
        guesses.compare(3, &[true; 100]);
        assert_eq!(guesses.statistics().compared, 0);
        guesses.take(3, vec![1, 2], 100);
        guesses.compare(3, &[false, true, false]);
        assert_eq!(guesses.statistics().ranks, [(1, 1), (0, 1)]);
    }

    #[test]
    fn off_guesses_nothing() {
        let mut guesses = Guesses::new(LookAhead::Off, 16, 100);
        for _ in 0..3 * PROBE {
            guesses.begin();
            assert_eq!((guesses.ranks(), guesses.width()), (None, 0));
        }
    }
}
