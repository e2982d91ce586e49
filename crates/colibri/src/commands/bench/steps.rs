//! Steps of the loaded model: tokens one by one behind contexts of some length, and prompts. What they have to do is
//! counted in the warm-up and once more after the last repeat, op by op; between the two it changes little and evenly.
use super::record::{CacheFacts, OpShare, Profile, Row, Sections};
use crate::errors::Failure;
use crate::probe::floor::{PeakRates, Piece};
use crate::probe::samples::{Paging, Sample, Spread, Watch};
use crate::probe::tokens::Tokens;
use engine::{Engine, Session};
use models::{GuessSource, Logits, Section};
use ops::{Trace, Work};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use store::cache::CacheStatistics;
use store::routing::{LayerPicks, NO_PICK, RoutingStep};

/// Tokens before the first measured one of `decode`.
pub(crate) const DECODE_CONTEXT: u32 = 16;

/// Where guesses of the experts to come are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guessed {
    /// As `--look-ahead` says.
    AsSet,
    /// Nowhere.
    Nothing,
    /// From a run of the same tokens before, of whose picks this many thousandths are kept and the others replaced by experts
    /// that were not picked.
    Right(u16),
}

/// What an arm does in one repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Feeds so many tokens one by one, in a sequence that had `behind` tokens before the first repeat.
    Decode { part: &'static str, behind: u32, tokens: u32, guesses: Guessed },
    /// Feeds a prompt of so many tokens to an empty sequence, chunk by chunk.
    Prefill { tokens: u32 },
}

impl Task {
    /// The part of the record.
    pub(crate) fn part(self) -> &'static str {
        match self {
            Task::Decode { part, .. } => part,
            Task::Prefill { .. } => "prefill",
        }
    }

    /// Tokens of one repeat.
    pub(crate) fn tokens(self) -> u32 {
        match self {
            Task::Decode { tokens, .. } | Task::Prefill { tokens } => tokens,
        }
    }

    /// Positions that it needs for so many repeats: as many again may be disturbed, and two look at the ops.
    pub(crate) fn positions(self, repeats: u32) -> u64 {
        match self {
            Task::Decode { behind, tokens, .. } => {
                u64::from(behind) + u64::from(tokens) * u64::from(passes(repeats))
            }
            Task::Prefill { tokens } => tokens.into(),
        }
    }

    /// Its name, the same in every run.
    pub(crate) fn name(self) -> String {
        match self {
            Task::Decode { part, behind, guesses, .. } => match guesses {
                Guessed::AsSet => format!("{part}, {behind} tokens before"),
                Guessed::Nothing => format!("{part}, no guesses"),
                Guessed::Right(share) => format!("{part}, {:.1} % of guesses right", f64::from(share) / 10.0),
            },
            Task::Prefill { tokens } => format!("prefill, {tokens} tokens"),
        }
    }
}

/// Passes of a task at most: as many again may be disturbed, and two look at the ops.
fn passes(repeats: u32) -> u32 {
    2 * repeats + 2
}

/// Tokens that were fed before, each with what it picked in every layer.
type Script = VecDeque<(u32, RoutingStep)>;

/// A task with its sequence and what was seen.
pub(crate) struct Arm {
    task: Task,
    session: Option<Session>,
    /// What guesses are made of; empty where they come from elsewhere.
    script: Script,
    /// How often it was measured, the warm-up included.
    calls: u32,
    /// The passes whose ops were looked at: what these had to do, and what those of the last took (in the warm-up much is done
    /// for the first time).
    passes: u32,
    ops: BTreeMap<&'static str, ops::traced::Cost>,
    /// Of the repeats that count.
    sections: [Duration; 4],
    cache: CacheStatistics,
}

const SECTIONS: [Section; 4] = [Section::Attention, Section::Moe, Section::ExpertWait, Section::Head];

impl Arm {
    pub(crate) fn new(task: Task) -> Self {
        Arm {
            task,
            session: None,
            script: Script::new(),
            calls: 0,
            passes: 0,
            ops: BTreeMap::new(),
            sections: [Duration::ZERO; 4],
            cache: CacheStatistics::default(),
        }
    }

    /// Whether it is measured as the settings are.
    pub(crate) fn is_as_set(&self) -> bool {
        matches!(self.task, Task::Prefill { .. } | Task::Decode { guesses: Guessed::AsSet, .. })
    }

    /// Its row.
    pub(crate) fn row(&self, seconds: Spread, rates: &PeakRates, streamed: bool) -> Row {
        let tokens = f64::from(self.task.tokens());
        let counted = f64::from(self.calls - self.passes.min(1)) * tokens;
        let work = self.ops.values().fold(Work::default(), |sum, cost| sum + cost.work);
        let pieces = f64::from(self.passes) * tokens;
        let disk = self.cache.bytes_read as f64 / counted * pieces;
        let piece = Piece::of(&work, disk, pieces);
        let [attention, moe, expert_wait, head] =
            self.sections.map(|section| section.as_secs_f64() / counted);
        let CacheStatistics { hits, misses, bytes_read, busy, .. } = self.cache;
        let drive_rate = (!busy.is_zero()).then(|| bytes_read as f64 / busy.as_secs_f64());
        let requests = hits + misses;
        let hit_rate = (requests > 0).then(|| hits as f64 / requests as f64);
        // Without guesses the reads of a layer wait for its router.
        let is_unguessed = matches!(self.task, Task::Decode { guesses: Guessed::Nothing, .. });
        let reads = rates.disk_bytes.filter(|_| is_unguessed).map(|rate| disk / pieces / rate);
        Row {
            in_turn: reads.map(|reads| attention + head + moe.max(reads)),
            sections: Some(Sections { attention, moe, expert_wait, head }),
            cache: streamed.then_some(CacheFacts { hits, misses, hit_rate, bytes_read, drive_rate }),
            ..Row::work(self.task.part(), self.task.name(), "token", seconds, piece, rates)
        }
    }

    /// Where its time goes when every op is waited for.
    pub(crate) fn profile(&self, rates: &PeakRates) -> Profile {
        let tokens = f64::from(self.task.tokens());
        let pieces = f64::from(self.passes) * tokens;
        let share = |(name, cost): (&&str, &ops::traced::Cost)| {
            let seconds = cost.time.as_secs_f64() / tokens;
            let floor = Piece::of(&cost.work, 0.0, pieces).floor(rates);
            let count = cost.count as f64 / pieces;
            OpShare { op: (*name).to_owned(), count, seconds, floor, ratio: floor.seconds / seconds }
        };
        let mut ops: Vec<OpShare> = self.ops.iter().map(share).collect();
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Profile { name: self.task.name(), ops }
    }
}

/// The engine and what feeds it.
pub(crate) struct Steps<'a> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) trace: Trace,
    pub(crate) tokens: Tokens,
    pub(crate) threads: usize,
    /// Of a layer.
    pub(crate) experts: u32,
    pub(crate) cancel: &'a AtomicBool,
}

/// Guesses for all layers of a step but the model's first, which nobody guesses: the picks, but for those of which chance takes an
/// expert that was not picked. The same in every run.
fn guesses_of(step: &RoutingStep, share: u16, experts: u32) -> Vec<(u32, Vec<u32>)> {
    let mut state = 1_u64;
    let mut below = |end: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(end)) as u32
    };
    let mut guess = |layer: &LayerPicks| {
        let picked: Vec<u32> =
            layer.picks.iter().filter(|pick| **pick != NO_PICK).map(|pick| u32::from(*pick)).collect();
        let others: Vec<u32> = (0..experts).filter(|expert| !picked.contains(expert)).collect();
        let one = |expert: &u32| match others.len() as u32 {
            0 => *expert,
            _ if below(1000) < u32::from(share) => *expert,
            count => others[below(count) as usize],
        };
        (u32::from(layer.layer), picked.iter().map(one).collect())
    };
    step.iter().filter(|layer| layer.layer > 0).map(&mut guess).collect()
}

impl Steps<'_> {
    /// Feeds what comes before the first repeat; where guesses are to be right, all that will be fed, to know its picks.
    pub(crate) fn prepare(&mut self, arm: &mut Arm, repeats: u32) -> Result<(), Failure> {
        let Task::Decode { behind, tokens, guesses, .. } = arm.task else { return Ok(()) };
        let before = self.tokens.take(behind);
        if let Guessed::Right(_) = guesses {
            self.engine.guess_from(GuessSource::Nothing);
            let mut session = self.behind(&before)?;
            for id in self.tokens.take(tokens * passes(repeats)) {
                let cancel = Some(self.cancel);
                let feed = |engine: &mut Engine| session.feed(engine, &[id], Logits::None, cancel);
                let (fed, picks) = self.engine.picks_of(feed);
                fed?;
                arm.script.push_back((id, picks));
            }
            session.close(self.engine)?;
            self.engine.guess_from(GuessSource::Routers);
        }
        arm.session = Some(self.behind(&before)?);
        Ok(())
    }

    /// A sequence that has seen some tokens.
    fn behind(&mut self, ids: &[u32]) -> Result<Session, Failure> {
        let mut session = Session::new(self.engine)?;
        self.prompt(&mut session, ids)?;
        Ok(session)
    }

    /// One repeat; the first one is the warm-up, in which ops are looked at.
    pub(crate) fn measure(&mut self, arm: &mut Arm) -> Result<Sample, Failure> {
        if arm.calls == 0 {
            return self.look(arm);
        }
        let clock = |engine: &Engine| SECTIONS.map(|section| engine.clock().spent(section));
        let (sections, cache) = (clock(self.engine), self.engine.cache_statistics());
        let (watch, ids, mut session) = self.begin(arm)?;
        self.feed(arm.task, &mut session, &ids)?;
        let waited = clock(self.engine)[2].saturating_sub(sections[2]);
        let sample = watch.stop(self.threads, waited);
        arm.session = Some(session);
        arm.calls += 1;
        for ((sum, after), before) in arm.sections.iter_mut().zip(clock(self.engine)).zip(sections) {
            *sum += after.saturating_sub(before);
        }
        let after = self.engine.cache_statistics();
        arm.cache.hits += after.hits - cache.hits;
        arm.cache.misses += after.misses - cache.misses;
        arm.cache.bytes_read += after.bytes_read - cache.bytes_read;
        arm.cache.busy += after.busy.saturating_sub(cache.busy);
        Ok(sample.per(arm.task.tokens().into()))
    }

    /// A repeat that does not count and says what the ops had to do.
    pub(crate) fn look(&mut self, arm: &mut Arm) -> Result<Sample, Failure> {
        let (watch, ids, mut session) = self.begin(arm)?;
        self.trace.look(true);
        let fed = self.feed(arm.task, &mut session, &ids);
        self.trace.look(false);
        let costs = self.trace.take();
        fed?;
        arm.session = Some(session);
        if arm.calls == 0 {
            arm.calls = 1;
        }
        arm.passes += 1;
        for (name, cost) in costs {
            let sum = arm.ops.entry(name).or_default();
            sum.count += cost.count;
            sum.time = cost.time;
            sum.work += cost.work;
        }
        Ok(watch.stop(self.threads, Duration::ZERO))
    }

    /// The sequence as it must be, and the tokens of the next repeat; the time runs from here on.
    fn begin(&mut self, arm: &mut Arm) -> Result<(Watch, Vec<u32>, Session), Failure> {
        let session = match (arm.task, arm.session.take()) {
            (Task::Decode { .. }, Some(session)) => session,
            (_, old) => {
                if let Some(old) = old {
                    old.close(self.engine)?;
                }
                Session::new(self.engine)?
            }
        };
        let (ids, source) = self.next_tokens(arm);
        self.engine.guess_from(source);
        let paging = Paging::beside(self.engine.plan().dense.mapped);
        Ok((Watch::start(paging), ids, session))
    }

    /// The tokens of the next repeat, and what is guessed while they are fed.
    fn next_tokens(&mut self, arm: &mut Arm) -> (Vec<u32>, GuessSource) {
        let count = arm.task.tokens();
        let share = match arm.task {
            Task::Decode { guesses: Guessed::Right(share), .. } => share,
            Task::Decode { guesses: Guessed::Nothing, .. } => {
                return (self.tokens.take(count), GuessSource::Nothing);
            }
            _ => return (self.tokens.take(count), GuessSource::Routers),
        };
        let steps: Vec<(u32, RoutingStep)> = arm.script.drain(..count as usize).collect();
        let ids = steps.iter().map(|(id, _)| *id).collect();
        let seen = steps.iter().flat_map(|(_, step)| guesses_of(step, share, self.experts));
        (ids, GuessSource::Given(seen.collect()))
    }

    fn feed(&mut self, task: Task, session: &mut Session, ids: &[u32]) -> Result<(), Failure> {
        match task {
            Task::Prefill { .. } => self.prompt(session, ids),
            Task::Decode { .. } => {
                for id in ids {
                    session.feed(self.engine, &[*id], Logits::Last, Some(self.cancel))?;
                }
                Ok(())
            }
        }
    }

    fn prompt(&mut self, session: &mut Session, ids: &[u32]) -> Result<(), Failure> {
        let chunk = self.engine.plan().chunk as usize;
        let chunks = ids.chunks(chunk);
        let last = chunks.len() - 1;
        for (i, ids) in chunks.enumerate() {
            let logits = if i == last { Logits::Last } else { Logits::None };
            session.feed(self.engine, ids, logits, Some(self.cancel))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_guesses_are_right() {
        let layer = |layer, first: u16| LayerPicks { layer, picks: (first..first + 100).collect() };
        let step = vec![layer(0, 0), layer(4, 100), layer(5, 900)];
        let right = |share| {
            let guesses = guesses_of(&step, share, 1000);
            assert_eq!(guesses.iter().map(|(layer, _)| *layer).collect::<Vec<_>>(), [4, 5]);
            guesses[0].1.iter().filter(|expert| (100..200).contains(*expert)).count()
        };
        assert_eq!((right(1000), right(0)), (100, 0));
        assert!((40..80).contains(&right(600)), "{}", right(600));
    }

    #[test]
    fn a_task_says_how_far_it_goes() {
        let decode = Task::Decode { part: "decode", behind: 16, tokens: 8, guesses: Guessed::AsSet };
        assert_eq!((decode.positions(7), decode.name()), (16 + 8 * 16, "decode, 16 tokens before".into()));
        let prefill = Task::Prefill { tokens: 64 };
        assert_eq!((prefill.positions(7), prefill.part()), (64, "prefill"));
    }
}
