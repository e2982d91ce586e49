//! What is tried of a setting, and which value is taken. Measures nothing and asks no system.
use crate::args::EngineArgs;
use crate::probe::samples::Spread;
use memory::CacheSize;
use models::LookAhead;
use serde_json::{Value as Json, json};
use std::fmt;
use store::Access;

/// A value of a setting that decides speed and no result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Threads(u32),
    Io(Access),
    Readers(u32),
    LookAhead(LookAhead),
    /// None: what is left.
    ExpertCache(Option<CacheSize>),
}

impl Value {
    /// Sets it.
    pub(super) fn apply(self, engine: &mut EngineArgs) {
        match self {
            Value::Threads(threads) => engine.threads = Some(threads),
            Value::Io(io) => engine.io = io,
            Value::Readers(readers) => engine.readers = readers,
            Value::LookAhead(look_ahead) => engine.look_ahead = look_ahead,
            Value::ExpertCache(size) => engine.expert_cache = size,
        }
    }

    /// As it stands in a file; nothing for what only words say.
    pub(super) fn json(self) -> Option<Json> {
        match self {
            Value::Threads(number) | Value::Readers(number) => Some(json!(number)),
            Value::ExpertCache(None) => None,
            _ => Some(json!(self.to_string())),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Threads(number) | Value::Readers(number) => write!(f, "{number}"),
            Value::Io(io) => f.write_str(io.name()),
            Value::LookAhead(look_ahead) => write!(f, "{look_ahead}"),
            Value::ExpertCache(Some(size)) => write!(f, "{size}"),
            Value::ExpertCache(None) => f.write_str("what is left"),
        }
    }
}

/// What values depend on beside the settings themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Threads that compute with the settings as they are.
    pub(super) threads: u32,
    /// Processors that this process may use.
    pub(super) processors: u32,
    /// Slots of experts with the settings as they are, and experts.
    pub(super) slots: u32,
    pub(super) experts: u32,
    /// Whether `io_uring` can be had.
    pub(super) uring: bool,
}

/// As many threads, or reads for a drive, as can be asked for.
const MOST: u32 = 256;

/// The values to try of a setting, first the one that is set; or why there is nothing to try.
pub(super) fn values(setting: &str, engine: &EngineArgs, at: &Situation) -> Result<Vec<Value>, String> {
    if setting != "threads" && at.experts == 0 {
        return Err("there are no routed experts".into());
    }
    if setting != "threads" && at.slots >= at.experts {
        return Err("every expert has a slot, so none is read while tokens are computed".into());
    }
    let values: Vec<Value> = match setting {
        "threads" => threads(at).into_iter().map(Value::Threads).collect(),
        "io" => {
            let others = Access::ALL.into_iter().filter(|io| *io != Access::Uring || at.uring);
            [engine.io].into_iter().chain(others).map(Value::Io).collect()
        }
        "readers" => {
            let now = engine.readers;
            let others = [now / 2, now * 2, now * 4].into_iter().filter(|n| (1..=MOST).contains(n));
            [now].into_iter().chain(others).map(Value::Readers).collect()
        }
        "look-ahead" if !engine.overlap.0 => {
            return Err("with --overlap off nothing is read on a guess".into());
        }
        "look-ahead" => {
            let all = [engine.look_ahead, LookAhead::Auto, LookAhead::Off];
            all.into_iter().map(Value::LookAhead).collect()
        }
        _ => {
            let others = [at.slots / 4 * 3, at.slots / 2].into_iter().filter(|slots| *slots > 0);
            let others = others.map(|slots| Some(CacheSize::Slots(slots)));
            [engine.expert_cache].into_iter().chain(others).map(Value::ExpertCache).collect()
        }
    };
    let mut different: Vec<Value> = Vec::new();
    for value in values {
        if !different.contains(&value) {
            different.push(value);
        }
    }
    if different.len() < 2 { Err("there is no other value".into()) } else { Ok(different) }
}

/// As many as compute now, half of them, one fewer, and all processors. On one processor also two: who knows what it is.
fn threads(at: &Situation) -> Vec<u32> {
    let now = at.threads;
    let mut numbers = vec![now];
    numbers.extend([now / 2, now - 1, at.processors].into_iter().filter(|n| (1..=MOST).contains(n)));
    if numbers.iter().all(|number| *number == now) {
        numbers.push(if now < MOST { now + 1 } else { now - 1 });
    }
    numbers
}

/// Below this share of the median of the value that is set, another one may be taken.
const BETTER: f64 = 0.98;

/// The place of the value to take: that of the first one, which is set, unless another one is faster by more than both
/// spread. Where most repeats of one of the two were disturbed nothing can be said.
pub(super) fn choose(spreads: &[Option<Spread>]) -> usize {
    let Some(Some(set)) = spreads.first() else { return 0 };
    let is_better = |spread: &Spread| {
        !spread.disturbed
            && !set.disturbed
            && spread.median <= BETTER * set.median
            && spread.upper_quartile < set.lower_quartile
    };
    let better = spreads.iter().enumerate().skip(1).filter_map(|(place, spread)| {
        spread.as_ref().filter(|spread| is_better(spread)).map(|spread| (place, spread.median))
    });
    better.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::samples::Sample;
    use clap::{Args as _, FromArgMatches as _};

    fn engine(words: &[&str]) -> EngineArgs {
        let command = EngineArgs::augment_args(clap::Command::new("test"));
        let matches = command.get_matches_from(["test"].iter().chain(words));
        EngineArgs::from_arg_matches(&matches).unwrap()
    }

    const STREAMED: Situation =
        Situation { threads: 8, processors: 16, slots: 100, experts: 400, uring: true };

    fn tried(setting: &str, words: &[&str], at: &Situation) -> Result<String, String> {
        let values = values(setting, &engine(words), at)?;
        Ok(values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_value_that_is_set_comes_first_and_each_value_once() {
        let without_uring = Situation { uring: false, ..STREAMED };
        let one_core = Situation { threads: 1, processors: 1, ..STREAMED };
        let two_cores = Situation { threads: 2, processors: 2, ..STREAMED };
        for (setting, words, at, expected) in [
            ("threads", &[][..], &STREAMED, "8 4 7 16"),
            ("threads", &[], &two_cores, "2 1"),
            ("threads", &[], &one_core, "1 2"),
            ("io", &[], &STREAMED, "direct buffered uring"),
            ("io", &["--io", "buffered"], &without_uring, "buffered direct"),
            ("readers", &[], &STREAMED, "4 2 8 16"),
            ("readers", &["--readers", "1"], &STREAMED, "1 2 4"),
            ("readers", &["--readers", "200"], &STREAMED, "200 100"),
            ("look-ahead", &[], &STREAMED, "auto off"),
            ("look-ahead", &["--look-ahead", "6"], &STREAMED, "6 auto off"),
            ("expert-cache", &[], &STREAMED, "what is left 75x 50x"),
            ("expert-cache", &["--expert-cache", "25%"], &STREAMED, "25% 75x 50x"),
        ] {
            assert_eq!(tried(setting, words, at).unwrap(), expected, "{setting}");
        }
    }

    #[test]
    fn what_can_change_nothing_is_not_tried() {
        let resident = Situation { slots: 400, ..STREAMED };
        let dense = Situation { slots: 0, experts: 0, ..STREAMED };
        for setting in ["io", "readers", "look-ahead", "expert-cache"] {
            assert!(tried(setting, &[], &resident).unwrap_err().contains("every expert has a slot"));
            assert!(tried(setting, &[], &dense).unwrap_err().contains("no routed experts"));
        }
        assert!(tried("threads", &[], &dense).is_ok());
        let off = tried("look-ahead", &["--overlap", "off", "--look-ahead", "off"], &STREAMED);
        assert!(off.unwrap_err().contains("--overlap off"));
    }

    #[test]
    fn values_are_set_and_written_as_flags_take_them() {
        let mut args = engine(&[]);
        let size = CacheSize::Slots(75);
        for (value, written) in [
            (Value::Threads(3), Some(json!(3))),
            (Value::Readers(9), Some(json!(9))),
            (Value::Io(Access::Buffered), Some(json!("buffered"))),
            (Value::LookAhead(LookAhead::Off), Some(json!("off"))),
            (Value::ExpertCache(None), None),
            (Value::ExpertCache(Some(size)), Some(json!("75x"))),
        ] {
            value.apply(&mut args);
            assert_eq!(value.json(), written);
        }
        assert_eq!((args.threads, args.readers, args.io), (Some(3), 9, Access::Buffered));
        assert_eq!((args.look_ahead, args.expert_cache), (LookAhead::Off, Some(size)));
    }

    /// The spread of repeats around a median, with quartiles so far from it.
    fn spread(median: f64, half: f64, disturbed: bool) -> Spread {
        let at = [median - half, median - half, median, median + half, median + half];
        let sample = |seconds| Sample { seconds, cpu_share: None, paged: false, disturbed };
        Spread::of(&at.map(sample))
    }

    #[test]
    fn only_what_is_faster_by_more_than_both_spread_is_taken() {
        let noisy = |median, half| Some(spread(median, half, true));
        let quiet = |median, half| Some(spread(median, half, false));
        for (spreads, expected) in [
            (vec![quiet(1.0, 0.01), quiet(0.9, 0.01), quiet(0.8, 0.01)], 2),
            (vec![quiet(1.0, 0.01), quiet(1.1, 0.01)], 0),
            // Within the spread of either.
            (vec![quiet(1.0, 0.2), quiet(0.9, 0.01)], 0),
            (vec![quiet(1.0, 0.01), quiet(0.9, 0.2)], 0),
            // The fastest is unsure, the second is not.
            (vec![quiet(1.0, 0.01), quiet(0.8, 0.3), quiet(0.9, 0.01)], 2),
            // Less than 2 %.
            (vec![quiet(1.0, 0.001), quiet(0.985, 0.001)], 0),
            (vec![quiet(1.0, 0.001), quiet(0.979, 0.001)], 1),
            (vec![quiet(1.0, 0.01), noisy(0.5, 0.01)], 0),
            (vec![noisy(1.0, 0.01), quiet(0.5, 0.01)], 0),
            // One that could not be tried.
            (vec![quiet(1.0, 0.01), None, quiet(0.5, 0.01)], 2),
            (vec![None, quiet(0.5, 0.01)], 0),
            (vec![], 0),
        ] {
            assert_eq!(choose(&spreads), expected, "{spreads:?}");
        }
    }
}
