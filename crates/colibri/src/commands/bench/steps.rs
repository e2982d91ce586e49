//! Steps of the loaded model: tokens one by one behind contexts of some length, and prompts. What they have to do is
//! counted in the warm-up and once more after the last repeat, op by op; between the two it changes little and evenly.
use super::floor::{Piece, Rates};
use super::record::{CacheFacts, OpShare, Profile, Row, Sections};
use super::samples::{Sample, Spread, Watch};
use crate::errors::Failure;
use engine::{Engine, Session};
use models::{Logits, Section};
use ops::{Trace, Work};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use store::cache::CacheStatistics;

/// Tokens before the first measured one of `decode`.
pub(crate) const DECODE_CONTEXT: u32 = 16;

/// What an arm does in one repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Feeds so many tokens one by one, in a sequence that had `behind` tokens before the first repeat.
    Decode { part: &'static str, behind: u32, tokens: u32 },
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
                u64::from(behind) + u64::from(tokens) * u64::from(2 * repeats + 2)
            }
            Task::Prefill { tokens } => tokens.into(),
        }
    }

    /// Its name, the same in every run.
    pub(crate) fn name(self) -> String {
        match self {
            Task::Decode { part, behind, .. } => format!("{part}, {behind} tokens before"),
            Task::Prefill { tokens } => format!("prefill, {tokens} tokens"),
        }
    }
}

/// Tokens to feed: those of a text over and over, or seeded random ones.
pub(crate) enum Tokens {
    Text { ids: Vec<u32>, next: usize },
    Random { state: u64, vocabulary: u32 },
}

impl Tokens {
    /// The next so many.
    pub(crate) fn take(&mut self, count: u32) -> Vec<u32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> u32 {
        match self {
            Tokens::Text { ids, next } => {
                let id = ids[*next % ids.len()];
                *next += 1;
                id
            }
            Tokens::Random { state, vocabulary } => {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((*state >> 33) % u64::from(*vocabulary)) as u32
            }
        }
    }
}

/// A task with its sequence and what was seen.
pub(crate) struct Arm {
    task: Task,
    session: Option<Session>,
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
            calls: 0,
            passes: 0,
            ops: BTreeMap::new(),
            sections: [Duration::ZERO; 4],
            cache: CacheStatistics::default(),
        }
    }

    /// Its row.
    pub(crate) fn row(&self, seconds: Spread, rates: &Rates, streamed: bool) -> Row {
        let tokens = f64::from(self.task.tokens());
        let counted = f64::from(self.calls - self.passes.min(1)) * tokens;
        let work = self.ops.values().fold(Work::default(), |sum, cost| sum + cost.work);
        let pieces = f64::from(self.passes) * tokens;
        let disk = self.cache.bytes_read as f64 / counted * pieces;
        let piece = Piece::of(&work, disk, pieces);
        let [attention, moe, expert_wait, head] =
            self.sections.map(|section| section.as_secs_f64() / counted);
        let CacheStatistics { hits, misses, bytes_read, .. } = self.cache;
        let requests = hits + misses;
        let hit_rate = (requests > 0).then(|| hits as f64 / requests as f64);
        Row {
            sections: Some(Sections { attention, moe, expert_wait, head }),
            cache: streamed.then_some(CacheFacts { hits, misses, hit_rate, bytes_read }),
            ..Row::work(self.task.part(), self.task.name(), "token", seconds, piece, rates)
        }
    }

    /// Where its time goes when every op is waited for.
    pub(crate) fn profile(&self, rates: &Rates) -> Profile {
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
    pub(crate) cancel: &'a AtomicBool,
}

impl Steps<'_> {
    /// Feeds what comes before the first repeat.
    pub(crate) fn prepare(&mut self, arm: &mut Arm) -> Result<(), Failure> {
        if let Task::Decode { behind, .. } = arm.task {
            let mut session = Session::new(self.engine)?;
            let ids = self.tokens.take(behind);
            self.prompt(&mut session, &ids)?;
            arm.session = Some(session);
        }
        Ok(())
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
        let ids = self.tokens.take(arm.task.tokens());
        Ok((Watch::start(), ids, session))
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
    fn texts_come_again_and_random_tokens_are_the_models() {
        let mut text = Tokens::Text { ids: vec![5, 6, 7], next: 0 };
        assert_eq!((text.take(2), text.take(3)), (vec![5, 6], vec![7, 5, 6]));
        let mut random = Tokens::Random { state: 1, vocabulary: 10 };
        let ids = random.take(1000);
        assert!(ids.iter().all(|id| *id < 10) && (0..10).all(|id| ids.contains(&id)));
    }

    #[test]
    fn a_task_says_how_far_it_goes() {
        let decode = Task::Decode { part: "decode", behind: 16, tokens: 8 };
        assert_eq!((decode.positions(7), decode.name()), (16 + 8 * 16, "decode, 16 tokens before".into()));
        let prefill = Task::Prefill { tokens: 64 };
        assert_eq!((prefill.positions(7), prefill.part()), (64, "prefill"));
    }
}
