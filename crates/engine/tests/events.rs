//! What is told at each level while an engine is loaded and works, and that nothing is at the usual one.
mod common;

use common::readers::{extent, plain};
use common::{Setup, part, some_ids};
use std::fmt::{self, Write as _};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use store::Reader;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Everything that was told: level, crate, words and fields.
type Told = Vec<(Level, String, String)>;

/// Hears what is told at its level, in all threads.
struct Listener {
    level: Mutex<LevelFilter>,
    told: Mutex<Told>,
    /// How often it was asked for its opinion or told something.
    calls: AtomicU64,
}

static LISTENER: LazyLock<Arc<Listener>> = LazyLock::new(|| {
    let listener = Arc::new(Listener {
        level: Mutex::new(LevelFilter::OFF),
        told: Mutex::default(),
        calls: AtomicU64::new(0),
    });
    tracing::subscriber::set_global_default(Arc::clone(&listener)).unwrap();
    listener
});

/// One test listens at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Listens at a level from now on, as long as the guard is kept.
fn listen(level: LevelFilter) -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *LISTENER.level.lock().unwrap() = level;
    tracing::callsite::rebuild_interest_cache();
    LISTENER.told.lock().unwrap().clear();
    turn
}

fn told() -> Told {
    std::mem::take(&mut LISTENER.told.lock().unwrap())
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        *metadata.level() <= *self.level.lock().unwrap()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(*self.level.lock().unwrap())
    }

    fn event(&self, event: &Event<'_>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut words = Words(String::new());
        event.record(&mut words);
        let metadata = event.metadata();
        let place = metadata.target().split("::").next().unwrap().to_owned();
        self.told.lock().unwrap().push((*metadata.level(), place, words.0));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

/// How many of these words were told, and at which levels.
fn count(told: &Told, words: &str) -> (usize, Vec<Level>) {
    let these = told.iter().filter(|(.., text)| text.contains(words));
    let mut levels: Vec<Level> = these.clone().map(|(level, ..)| *level).collect();
    levels.dedup();
    (these.count(), levels)
}

const LAYERS: usize = 9;

#[test]
fn each_level_tells_its_part() {
    let ids = some_ids(7, 12);
    let work = |level| {
        let _turn = listen(level);
        let mut engine = Setup::new().slots(6).load();
        let mut state = engine.create_state().unwrap();
        for ids in ids.chunks(4) {
            engine.step(&mut [part(&mut state, ids)]).unwrap().pop().unwrap().unwrap();
        }
        told()
    };
    assert_eq!(work(LevelFilter::WARN), [], "nothing is worth a warning");

    let info = work(LevelFilter::INFO);
    for (words, place) in [
        ("a checkpoint is open", "store"),
        ("the plan is made", "engine"),
        ("dense weights are loaded", "engine"),
        ("experts can be had", "engine"),
    ] {
        assert_eq!(count(&info, words), (1, vec![Level::INFO]), "{words}: {info:?}");
        assert!(info.iter().any(|(_, from, text)| from == place && text.contains(words)), "{info:?}");
    }
    assert_eq!(info.len(), 4, "{info:?}");
    assert!(
        info.iter().any(|(.., text)| text.contains("dense=\"bf16\" context=256 chunk=64 slots=6")),
        "{info:?}"
    );

    let debug = work(LevelFilter::DEBUG);
    assert_eq!(count(&debug, "a step is done"), (3, vec![Level::DEBUG]));
    assert_eq!(count(&debug, "parts=1 rows=4 took="), (3, vec![Level::DEBUG]), "{debug:?}");
    assert_eq!(count(&debug, "opened").0, 12 + 3, "shards, both configs and the index");
    assert!(count(&debug, "a wave ends").0 > 0 && count(&debug, "a layer begins").0 == 0);

    let trace = work(LevelFilter::TRACE);
    let begun = trace.iter().skip_while(|(.., text)| !text.contains("experts can be had"));
    assert_eq!(begun.filter(|(.., text)| text.contains("a layer begins")).count(), 3 * LAYERS);
    assert_eq!(count(&trace, "experts are requested").0, 3 * (LAYERS - 1));
}

#[test]
fn nothing_is_asked_or_told_while_a_step_runs_at_the_usual_level() {
    let _turn = listen(LevelFilter::WARN);
    let mut engine = Setup::new().slots(6).load();
    let mut state = engine.create_state().unwrap();
    // The first one may meet events that were never met before.
    for _ in 0..2 {
        engine.step(&mut [part(&mut state, &[5])]).unwrap().pop().unwrap().unwrap();
    }
    let before = LISTENER.calls.load(Ordering::Relaxed);
    for _ in 0..5 {
        engine.step(&mut [part(&mut state, &[5])]).unwrap().pop().unwrap().unwrap();
    }
    assert_eq!(LISTENER.calls.load(Ordering::Relaxed), before);
}

/// Fails so often in this range of a file, then never.
struct Failing {
    reader: Arc<dyn Reader>,
    file: u32,
    range: std::ops::Range<u64>,
    times: AtomicU64,
}

impl Reader for Failing {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let touches =
            file == self.file && offset < self.range.end && self.range.start < offset + into.len() as u64;
        let left = |times: u64| times.checked_sub(1);
        if touches && self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(io::Error::other("the cable is loose"));
        }
        self.reader.read_at(file, offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.reader.file_name(file)
    }
}

#[test]
fn reads_that_are_repeated_or_fail_are_told() {
    let _turn = listen(LevelFilter::WARN);
    for (times, warnings, errors) in [(2, 2, 0), (u64::MAX, 3, 1)] {
        let setup = Setup::new().slots(6);
        let (file, range) = extent(&setup.checkpoint, 5, 0);
        let name = plain(&setup.checkpoint).file_name(file);
        let reader = Failing { reader: plain(&setup.checkpoint), file, range, times: AtomicU64::new(times) };
        let mut engine = setup.reader(Arc::new(reader)).load();
        let mut state = engine.create_state().unwrap();
        // All 32 experts of a layer are asked for, sooner or later.
        let mut failed = 0;
        for ids in some_ids(1, 256).chunks(64) {
            let outcome = engine.step(&mut [part(&mut state, ids)]).unwrap().pop().unwrap();
            if outcome.is_err() {
                failed = 1;
                break;
            }
        }
        let told = told();
        let repeated = count(&told, "a read failed and is repeated");
        assert_eq!(repeated, (warnings, vec![Level::WARN]), "{told:?}");
        assert!(
            told.iter().all(|(.., text)| !text.contains("repeated") || text.contains(&format!("{name:?}")))
        );
        assert!(told[0].2.contains("attempt=1") && told[0].2.contains("the cable is loose"), "{told:?}");
        assert_eq!((count(&told, "an expert could not be read").0, failed), (errors, errors), "{told:?}");
        assert_eq!(told.len(), warnings + errors, "{told:?}");
    }
}
