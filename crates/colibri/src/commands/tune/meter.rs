//! Measures values of a setting in turn. Each visit loads the model as a run with that value would, feeds it tokens and
//! lets it go, so that at any moment there is one model in memory. Knows no setting.
use super::sweep::Value;
use crate::args::EngineArgs;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::probe::samples::{Paging, Sample, Spread, Watch};
use crate::probe::tokens::Tokens;
use crate::work::{Demand, Planned, Wanted, Work};
use engine::Limits;
use memory::pressure::{Gauge, MachineGauge};
use models::{Input, Logits, Section};
use std::sync::atomic::{AtomicBool, Ordering};
use store::cache::governor::short_memory;

/// Tokens before the measured ones: the cache and the threads have work by then.
const BEFORE: u32 = 16;
/// Turns of every value.
const TURNS: u32 = 2;

/// What measures.
pub(super) struct Meter<'a> {
    model: &'a Model,
    tokens: Tokens,
    /// Tokens of a repeat.
    count: u32,
    /// Repeats of a visit.
    repeats: u32,
    cancel: &'a AtomicBool,
    gauge: MachineGauge,
    /// Memory that is left to everything else.
    reserve: u64,
    /// Bytes of this process in swap at the beginning.
    swapped: Option<u64>,
}

/// What became of a value.
pub(super) struct Measured {
    pub(super) value: Value,
    samples: Vec<Sample>,
    /// Why it could not be tried.
    pub(super) failed: Option<String>,
}

impl Measured {
    /// Of its repeats, if it could be tried.
    pub(super) fn spread(&self) -> Option<Spread> {
        (self.failed.is_none() && !self.samples.is_empty()).then(|| Spread::of(&self.samples))
    }
}

impl<'a> Meter<'a> {
    /// For so many tokens in each of so many repeats.
    pub(super) fn new(
        model: &'a Model,
        tokens: Tokens,
        (count, repeats): (u32, u32),
        cancel: &'a AtomicBool,
    ) -> Result<Self, Failure> {
        Ok(Meter {
            model,
            tokens,
            count,
            repeats: repeats.div_ceil(TURNS),
            cancel,
            gauge: load::machine_gauge(),
            reserve: Limits::of_machine()?.reserve(),
            swapped: None,
        })
    }

    /// Positions that a visit needs.
    pub(super) fn positions(&self) -> usize {
        (BEFORE + self.count * (self.repeats + 1)) as usize
    }

    /// Measures all values in turn, and those of which most repeats were disturbed up to two turns more. That one other
    /// than the first cannot be tried is no failure.
    pub(super) fn in_turn(
        &mut self,
        values: Vec<Value>,
        engine: &EngineArgs,
    ) -> Result<Vec<Measured>, Failure> {
        let fresh = |value| Measured { value, samples: Vec::new(), failed: None };
        let mut all: Vec<Measured> = values.into_iter().map(fresh).collect();
        for turn in 0..2 * TURNS {
            for (place, measured) in all.iter_mut().enumerate() {
                let is_sure = measured.spread().is_some_and(|spread| !spread.disturbed);
                if measured.failed.is_some() || turn >= TURNS && is_sure {
                    continue;
                }
                let mut args = engine.clone();
                measured.value.apply(&mut args);
                match self.visit(&args) {
                    Ok(samples) => measured.samples.extend(samples),
                    Err(Stop::Value(failure)) if place > 0 && failure.kind() != "cancelled" => {
                        measured.failed = Some(failure.message());
                    }
                    Err(Stop::Value(failure) | Stop::All(failure)) => return Err(failure),
                }
            }
        }
        Ok(all)
    }

    fn visit(&mut self, args: &EngineArgs) -> Result<Vec<Sample>, Stop> {
        self.check_memory().map_err(Stop::All)?;
        let request = load::request(args, None, 1);
        let planned = Planned::new(self.model, args, Demand::new(request, self.positions()).quiet())?;
        let mut work = planned.load()?;
        let samples = self.repeats(&mut work, load::threads(args))?;
        let given_back = work.engine.governed().map_or(0, |governed| governed.given_back);
        drop(work);
        if given_back > 0 {
            return Err(Stop::All(short(&format!("{given_back} slots for experts had to be given back"))));
        }
        if samples.iter().filter(|sample| sample.paged).count() * 2 > samples.len() {
            return Err(Stop::All(short("the system paged in most repeats")));
        }
        self.check_memory().map_err(Stop::All)?;
        Ok(samples)
    }

    /// A prompt, a repeat that does not count, and those that do.
    fn repeats(&mut self, work: &mut Work, threads: usize) -> Result<Vec<Sample>, Failure> {
        let mut session = work.session()?;
        let before = self.tokens.take(BEFORE);
        let wanted = Wanted { logits: Logits::None, taps: &[], positions: None };
        work.feed(&mut session, Input::Ids(&before), wanted, &mut |_, _| Ok(()))?;
        let paging = Paging::beside(work.engine.plan().dense.mapped);
        let mut samples = Vec::new();
        for repeat in 0..=self.repeats {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Failure::Told { kind: "cancelled", message: "interrupted".into() });
            }
            let ids = self.tokens.take(self.count);
            let waited = work.engine.clock().spent(Section::ExpertWait);
            let watch = Watch::start(paging);
            for id in &ids {
                session.feed(&mut work.engine, &[*id], Logits::Last, Some(self.cancel))?;
            }
            let waited = work.engine.clock().spent(Section::ExpertWait).saturating_sub(waited);
            let sample = watch.stop(threads, waited).per(self.count.into());
            if repeat > 0 {
                samples.push(sample);
            }
        }
        session.close(&mut work.engine)?;
        Ok(samples)
    }

    /// Times in a machine that is short of memory say nothing about settings.
    fn check_memory(&mut self) -> Result<(), Failure> {
        let pressure = self.gauge.read();
        let before = *self.swapped.get_or_insert(pressure.swapped.unwrap_or(0));
        short_memory(&pressure, self.reserve, before).map_or(Ok(()), |why| Err(short(&why)))
    }
}

/// Why a visit ended.
enum Stop {
    /// The value could not be tried.
    Value(Failure),
    /// No value can be.
    All(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Value(failure)
    }
}

fn short(why: &str) -> Failure {
    Failure::Told {
        kind: "memory",
        message: format!(
            "memory is short, so times say nothing about settings: {why}; nothing was written; end other programs or \
             give a smaller --expert-cache, then tune again"
        ),
    }
}
