//! Which expert is thrown out for another: how policies are called, and the order they give. The cache and the
//! [simulation](super::simulate) of it ask the same code. It knows experts and layers by number; no slot, no byte, and
//! no time but the number of requests.

use super::counts::Counts;
use std::fmt;
use std::str::FromStr;

/// How the cache chooses what to throw out. Written as `NAME[-per-layer][:HALF-LIFE]`: `lru`, `lfu:64`, `hybrid-per-layer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CachePolicy {
    /// Which expert of those that may go.
    pub order: Order,
    /// Which experts may go.
    pub shares: Shares,
}

/// What is thrown out first. A step is one pass through all layers: a token of an answer, or a chunk of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The expert asked for longest ago.
    Lru,
    /// The expert with the smallest count of requests, where a request counts 2^(-age / half-life).
    Lfu {
        /// In steps.
        half_life: u32,
    },
    /// Counts as in [`Order::Lfu`], of which only the power of two matters; of equal ones the expert asked for longest ago.
    Hybrid {
        /// In steps.
        half_life: u32,
    },
}

/// How the layers share the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shares {
    /// Any expert may go for any other.
    Whole,
    /// Every layer keeps as many slots as any other (give or take one): an expert goes for one of its own layer. A layer gets
    /// more for as long as it needs more at once, as long prompts make it.
    PerLayer,
}

/// How a policy for one layer only is marked.
const PER_LAYER: &str = "-per-layer";
/// The longest half-life.
const HALF_LIFE_MAX: u32 = 1_000_000;

impl CachePolicy {
    /// Half-life where none is named, in steps.
    pub const HALF_LIFE: u32 = 128;

    /// One of each kind, with the half-life that holds where none is named.
    pub const ALL: [Self; 6] = [
        Self { order: Order::Lru, shares: Shares::Whole },
        Self { order: Order::Lfu { half_life: Self::HALF_LIFE }, shares: Shares::Whole },
        Self { order: Order::Hybrid { half_life: Self::HALF_LIFE }, shares: Shares::Whole },
        Self { order: Order::Lru, shares: Shares::PerLayer },
        Self { order: Order::Lfu { half_life: Self::HALF_LIFE }, shares: Shares::PerLayer },
        Self { order: Order::Hybrid { half_life: Self::HALF_LIFE }, shares: Shares::PerLayer },
    ];
}

/// The fewest bytes read over the traces of `docs/running.md`.
impl Default for CachePolicy {
    fn default() -> Self {
        Self { order: Order::Lfu { half_life: Self::HALF_LIFE }, shares: Shares::Whole }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, half_life) = match self.order {
            Order::Lru => ("lru", None),
            Order::Lfu { half_life } => ("lfu", Some(half_life)),
            Order::Hybrid { half_life } => ("hybrid", Some(half_life)),
        };
        f.write_str(name)?;
        if self.shares == Shares::PerLayer {
            f.write_str(PER_LAYER)?;
        }
        match half_life {
            Some(half_life) if half_life != Self::HALF_LIFE => write!(f, ":{half_life}"),
            _ => Ok(()),
        }
    }
}

/// A text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no cache policy: {reason}; write lru, lfu or hybrid, for example lfu-per-layer:64")]
pub struct PolicyError {
    text: String,
    reason: String,
}

impl FromStr for CachePolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let refused = |reason: String| PolicyError { text: text.to_owned(), reason };
        let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
        let (name, shares) =
            name.strip_suffix(PER_LAYER).map_or((name, Shares::Whole), |name| (name, Shares::PerLayer));
        let half_life = match number.map(str::parse::<u32>) {
            None => Self::HALF_LIFE,
            Some(Ok(half_life)) if (1..=HALF_LIFE_MAX).contains(&half_life) => half_life,
            Some(_) => {
                return Err(refused(format!("its half-life is no whole number from 1 to {HALF_LIFE_MAX}")));
            }
        };
        let order = match name {
            "lru" if number.is_some() => return Err(refused("lru has no half-life".to_owned())),
            "lru" => Order::Lru,
            "lfu" => Order::Lfu { half_life },
            "hybrid" => Order::Hybrid { half_life },
            _ => return Err(refused(format!("there is no {name:?}"))),
        };
        Ok(Self { order, shares })
    }
}

/// The place of an expert in the order of leaving: the smallest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Guesses whose layer has not come yet go last.
    guessed: bool,
    class: i64,
    /// When it was named last.
    stamp: u64,
}

/// What experts are ordered by.
#[derive(Debug)]
enum By {
    Policy(Order),
    /// For each expert the number of the request that needs it next: the latest goes first, which is Belady's optimum.
    NextUse(Vec<u64>),
}

/// Steps of a logarithm to base 2 that still tell two counts apart.
const FINE: f64 = (1_u64 << 24) as f64;
/// Steps of now that weigh as much as all that is known from before: texts differ in what they ask for, so that more misleads.
const STEPS_OF_BEFORE: f64 = 4.0;
/// A count of nothing has this class; there is none below.
const NEVER: i64 = i64::MIN;

/// The order in which experts leave. Each call takes constant time for each expert that it is told.
#[derive(Debug)]
pub(super) struct Ranking {
    by: By,
    shares: Shares,
    layers: u32,
    experts_per_layer: u32,
    counts: Counts,
    /// Experts named so far.
    names: u64,
    /// For each expert when it was named last.
    stamps: Vec<u64>,
    guessed: Vec<bool>,
}

impl Ranking {
    /// For `layers` times `experts_per_layer` experts, layer after layer.
    pub(super) fn new(policy: CachePolicy, layers: u32, experts_per_layer: u32) -> Self {
        let experts = layers * experts_per_layer;
        let half_life = match policy.order {
            Order::Lru => CachePolicy::HALF_LIFE,
            Order::Lfu { half_life } | Order::Hybrid { half_life } => half_life,
        };
        Self {
            by: By::Policy(policy.order),
            shares: policy.shares,
            layers,
            experts_per_layer,
            counts: Counts::new(half_life, layers, experts),
            names: 0,
            stamps: vec![0; experts as usize],
            guessed: vec![false; experts as usize],
        }
    }

    /// By the future, which [`Ranking::foresee`] tells.
    pub(super) fn optimal(layers: u32, experts_per_layer: u32) -> Self {
        let ranking = Self::new(CachePolicy::ALL[0], layers, experts_per_layer);
        Self { by: By::NextUse(vec![u64::MAX; ranking.stamps.len()]), ..ranking }
    }

    /// Number of experts.
    pub(super) fn experts(&self) -> u32 {
        self.stamps.len() as u32
    }

    /// Number of groups that slots are shared out to.
    pub(super) fn groups(&self) -> u32 {
        match self.shares {
            Shares::Whole => 1,
            Shares::PerLayer => self.layers,
        }
    }

    /// The group that an expert takes its slots from.
    pub(super) fn group(&self, expert: u32) -> usize {
        match self.shares {
            Shares::Whole => 0,
            Shares::PerLayer => (expert / self.experts_per_layer) as usize,
        }
    }

    /// All experts of the same layer.
    pub(super) fn layer_of(&self, expert: u32) -> std::ops::Range<u32> {
        let start = expert - expert % self.experts_per_layer;
        start..start + self.experts_per_layer
    }

    /// Experts are asked for, in this order.
    pub(super) fn request(&mut self, experts: &[u32]) {
        self.counts.request(experts);
        for &expert in experts {
            self.name(expert);
        }
    }

    /// An expert is guessed to be asked for: it stays until its layer comes. That is no request.
    pub(super) fn guess(&mut self, expert: u32) {
        self.name(expert);
        self.guessed[expert as usize] = true;
    }

    /// Whether an expert is guessed; its layer has come, so from now on it is not.
    pub(super) fn take_guess(&mut self, expert: u32) -> bool {
        std::mem::take(&mut self.guessed[expert as usize])
    }

    fn name(&mut self, expert: u32) {
        self.names += 1;
        self.stamps[expert as usize] = self.names;
    }

    /// It is known from before that an expert is asked for in this share of all steps: it counts as so many steps of now would.
    pub(super) fn expect(&mut self, expert: u32, share: f64) {
        self.counts.set(expert, share * STEPS_OF_BEFORE);
    }

    /// The number of the request that needs an expert next.
    pub(super) fn foresee(&mut self, expert: u32, request: u64) {
        if let By::NextUse(next) = &mut self.by {
            next[expert as usize] = request;
        }
    }

    /// Where an expert stands now.
    pub(super) fn key(&self, expert: u32) -> Key {
        let class = match &self.by {
            By::Policy(Order::Lru) => 0,
            By::Policy(Order::Lfu { .. }) => class(self.counts.score(expert), FINE),
            By::Policy(Order::Hybrid { .. }) => class(self.counts.score(expert), 1.0),
            By::NextUse(next) => -i64::try_from(next[expert as usize]).unwrap_or(i64::MAX),
        };
        Key { guessed: self.guessed[expert as usize], class, stamp: self.stamps[expert as usize] }
    }
}

/// The class of a score, of which there are `steps` for each doubling.
fn class(score: f64, steps: f64) -> i64 {
    if score == f64::NEG_INFINITY { NEVER } else { (score * steps).floor() as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in CachePolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let long: CachePolicy = "lfu-per-layer:9".parse().unwrap();
        assert_eq!(long, CachePolicy { order: Order::Lfu { half_life: 9 }, shares: Shares::PerLayer });
        assert_eq!(long.to_string(), "lfu-per-layer:9");
        for (text, reason) in [
            ("", "there is no \"\""),
            ("LRU", "there is no \"LRU\""),
            ("lru:4", "lru has no half-life"),
            ("lfu:0", "from 1 to 1000000"),
            ("lfu:1000001", "from 1 to 1000000"),
            ("hybrid:-per-layer", "from 1 to 1000000"),
        ] {
            let error = text.parse::<CachePolicy>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    fn order(ranking: &Ranking) -> Vec<u32> {
        let mut experts: Vec<u32> = (0..ranking.experts()).collect();
        experts.sort_by_key(|expert| ranking.key(*expert));
        experts
    }

    fn after(order: Order, requests: &[&[u32]]) -> Ranking {
        let mut ranking = Ranking::new(CachePolicy { order, shares: Shares::Whole }, 1, 4);
        for request in requests {
            ranking.request(request);
        }
        ranking
    }

    #[test]
    fn recency_and_counts_give_different_orders() {
        let requests: &[&[u32]] = &[&[0, 1], &[0, 3], &[0], &[2], &[1]];
        assert_eq!(order(&after(Order::Lru, requests)), [3, 0, 2, 1]);
        // Counts with a long half-life: 3, 2, 1, 1.
        assert_eq!(order(&after(Order::Lfu { half_life: 1000 }, requests)), [3, 2, 1, 0]);
        // At the end: 0 has 2^-4 + 2^-3 + 2^-2 = 0.44, 1 has 1.06, 2 has 0.5, 3 has 0.125.
        assert_eq!(order(&after(Order::Lfu { half_life: 1 }, requests)), [3, 0, 2, 1]);
    }

    #[test]
    fn of_counts_of_one_power_of_two_the_hybrid_looks_at_the_time() {
        // 0 is asked for three times and 1 twice, last.
        let requests: &[&[u32]] = &[&[0], &[0], &[0], &[1], &[1], &[2]];
        assert_eq!(order(&after(Order::Lfu { half_life: 1000 }, requests)), [3, 2, 1, 0]);
        assert_eq!(order(&after(Order::Hybrid { half_life: 1_000_000 }, requests)), [3, 2, 0, 1]);
    }

    #[test]
    fn guesses_go_last_until_their_layer_comes() {
        let mut ranking = after(Order::Lfu { half_life: 1000 }, &[&[1], &[1, 2], &[2, 3]]);
        ranking.guess(0);
        assert_eq!(order(&ranking), [3, 1, 2, 0]);
        assert!(ranking.take_guess(0) && !ranking.take_guess(0));
        assert_eq!(order(&ranking), [0, 3, 1, 2]);
    }
}
