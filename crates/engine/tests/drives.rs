//! Drives that stutter, hang or fail, and mirrors of them, under an engine with more than one sequence: the right bits, or the
//! named error of the part that needed the bytes, and nothing lost.
mod common;

use common::readers::{Switch, extent, plain};
use common::{Setup, alone, assert_same, feed, part, reset, some_ids, step_bits, tiny};
use engine::Engine;
use models::{PartError, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::cache::ExpertError;
use store::faulty_reader::{FaultyReader, Gate};
use store::reader::ReadError;
use store::{Checkpoint, MirroredReader, Reader};

/// So few that every step reads.
const SLOTS: u32 = 8;
const LENGTHS: [usize; 2] = [5, 3];

/// Two sequences, and the bits that each has alone on a sound drive.
struct Pair {
    engine: Engine,
    checkpoint: Checkpoint,
    disk: Arc<Switch>,
    ids: [Vec<u32>; 2],
    states: [State; 2],
    references: [Vec<u32>; 2],
}

impl Pair {
    fn new() -> Self {
        let checkpoint = tiny();
        let disk = Switch::new(plain(&checkpoint));
        let setup = Setup::new().slots(SLOTS).policy("lru".parse().unwrap()).reader(disk.clone());
        let mut engine = setup.load();
        let ids = [0, 1].map(|i| some_ids(i as u64 + 21, LENGTHS[i]));
        let references = [0, 1].map(|i: usize| alone(&mut engine, &ids[i]));
        let states = [0, 1].map(|_| engine.create_state().unwrap());
        Pair { engine, checkpoint, disk, ids, states, references }
    }

    fn faulty(&self) -> FaultyReader {
        FaultyReader::new(plain(&self.checkpoint), 5)
    }

    /// One step of both from their beginning, on this drive.
    fn step(
        &mut self,
        disk: Arc<dyn Reader>,
        cancel: [Option<&AtomicBool>; 2],
    ) -> [Result<Vec<u32>, PartError>; 2] {
        for state in &mut self.states {
            reset(&mut self.engine, state);
        }
        self.disk.set(disk);
        let mut parts: Vec<_> =
            self.states.iter_mut().zip(&self.ids).map(|(state, ids)| part(state, ids)).collect();
        for (part, cancel) in parts.iter_mut().zip(cancel) {
            part.cancel = cancel;
        }
        let outcomes = step_bits(&mut self.engine, &mut parts).unwrap();
        outcomes.try_into().unwrap()
    }

    fn assert_right(&mut self, disk: Arc<dyn Reader>, what: &str) {
        for (outcome, reference) in self.step(disk, [None; 2]).into_iter().zip(&self.references) {
            assert_same(&outcome.unwrap_or_else(|error| panic!("{what}: {error}")), reference, what);
        }
    }

    /// On a sound drive everything is as before.
    fn assert_recovered(&mut self, what: &str) {
        let sound = plain(&self.checkpoint);
        self.assert_right(sound, what);
    }

    /// A mirror that is a copy, file by file.
    fn mirrored(&self, primary: &Arc<FaultyReader>, mirror: &Arc<FaultyReader>) -> MirroredReader {
        let files = (0..self.checkpoint.files().list().len() as u32).map(Some).collect();
        let (primary, mirror) = (Arc::clone(primary), Arc::clone(mirror));
        MirroredReader::new(primary, mirror, files).with_patience(Duration::from_mins(1))
    }
}

/// File and bytes of an expert that one sequence picks and the other does not, with that sequence's number.
fn somebodys_expert(pair: &mut Pair) -> (usize, u32, std::ops::Range<u64>) {
    let layers = [5];
    let picks = [0, 1].map(|i: usize| {
        let mut state = pair.engine.create_state().unwrap();
        let mut part = part(&mut state, &pair.ids[i]);
        part.taps = &layers;
        let output = pair.engine.step(&mut [part]).unwrap().pop().unwrap().unwrap();
        common::release(&mut pair.engine, state);
        output.taps[0].picks.clone()
    });
    let only_first = |expert: &&u32| !picks[1].contains(expert);
    let expert = *picks[0].iter().find(only_first).expect("some expert is picked by one alone");
    let (file, bytes) = extent(&pair.checkpoint, 5, expert);
    (0, file, bytes)
}

#[test]
fn short_and_interrupted_reads_change_no_bit_and_are_no_failures() {
    let mut pair = Pair::new();
    let before = pair.engine.cache_statistics();
    let disk = Arc::new(pair.faulty().with_short_reads().with_interruptions());
    pair.assert_right(disk.clone(), "short and interrupted");
    assert!(disk.interruptions() > 10, "{} interruptions", disk.interruptions());
    let after = pair.engine.cache_statistics();
    assert!(disk.calls().len() as u64 > after.reads - before.reads + disk.interruptions(), "some were short");
    assert_eq!((after.retries, after.failed), (before.retries, before.failed));
}

#[test]
fn errors_of_a_mirror_alone_are_nobodys() {
    let mut pair = Pair::new();
    for (times, what) in [(1, "once"), (u64::MAX, "always")] {
        let primary = Arc::new(pair.faulty());
        let everywhere = (0..pair.checkpoint.files().list().len() as u32).map(|file| (file, 0..u64::MAX));
        let faulty =
            everywhere.fold(pair.faulty(), |reader, (file, bytes)| reader.failing_times(file, bytes, times));
        let mirror = Arc::new(faulty);
        let failed = pair.engine.cache_statistics().failed;
        let reader = Arc::new(pair.mirrored(&primary, &mirror));
        pair.assert_right(reader, what);
        assert!(!mirror.calls().is_empty() && primary.bytes() > 0, "{what}: both were asked");
        assert_eq!(pair.engine.cache_statistics().failed, failed, "{what}");
    }
}

#[test]
fn what_the_drive_cannot_read_comes_from_the_mirror_or_fails_by_name() {
    let mut pair = Pair::new();
    let (victim, file, bytes) = somebodys_expert(&mut pair);
    let failing = |pair: &Pair| Arc::new(pair.faulty().failing(file, bytes.clone()));
    let (primary, mirror) = (failing(&pair), Arc::new(pair.faulty()));
    let reader = Arc::new(pair.mirrored(&primary, &mirror));
    pair.assert_right(reader, "the mirror answers");
    let (primary, mirror) = (failing(&pair), failing(&pair));
    let reader = Arc::new(pair.mirrored(&primary, &mirror));
    for (number, outcome) in pair.step(reader, [None; 2]).into_iter().enumerate() {
        if number != victim {
            assert_same(&outcome.unwrap(), &pair.references[number], "the other goes on");
            continue;
        }
        let error = outcome.unwrap_err();
        let PartError::Expert(ExpertError::Read { source, .. }) = &error else { panic!("{error:?}") };
        assert!(matches!(&**source, ReadError::Failed { attempts: 4, .. }), "{source}");
    }
    pair.assert_recovered("both are sound again");
}

/// Reads hang until the gate opens. Who gives up meanwhile has given up; who waits has what it waited for.
#[test]
fn a_drive_that_hangs_keeps_nobody_from_giving_up_and_nobody_from_waiting() {
    let mut pair = Pair::new();
    let gate = Gate::closed();
    let disk = Arc::new(pair.faulty().with_gate(Arc::clone(&gate)));
    let flag = AtomicBool::new(false);
    let [given_up, waited] = std::thread::scope(|scope| {
        scope.spawn(|| {
            gate.wait_for(1);
            flag.store(true, Ordering::Relaxed);
            gate.open();
        });
        pair.step(disk, [Some(&flag), None])
    });
    assert!(matches!(given_up, Err(PartError::Cancelled)), "{given_up:?}");
    assert_same(&waited.unwrap(), &pair.references[1], "who waits");
    pair.assert_recovered("it hangs no longer");
}

/// One slot is enough for every sequence, whatever the drive does.
#[test]
fn one_slot_on_a_stuttering_drive() {
    let checkpoint = tiny();
    let faulty = FaultyReader::new(plain(&checkpoint), 9).with_short_reads().with_interruptions();
    let faulty = (0..checkpoint.files().list().len() as u32)
        .fold(faulty, |reader, file| reader.failing_once(file, 0..u64::MAX));
    let mut engine = Setup::new().slots(1).reader(Arc::new(faulty)).load();
    let ids = some_ids(3, 4);
    let expected = alone(&mut Setup::new().load(), &ids);
    let mut state = engine.create_state().unwrap();
    assert_same(&feed(&mut engine, &mut state, &ids).unwrap(), &expected, "one slot");
    let statistics = engine.cache_statistics();
    assert!(statistics.retries > 0 && statistics.failed == 0, "{statistics:?}");
}
