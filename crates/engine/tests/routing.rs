//! Routing traces of real steps: what is in them, that the simulation counts what the engine counted, and what becomes of a
//! trace that cannot be written.
mod common;

use common::{Golden, Setup, feed, part, release, some_ids, step_bits};
use engine::{Engine, EngineError};
use models::{LookAhead, Part};
use ops::Oracle;
use ops::testing::Late;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::cache::CachePolicy;
use store::cache::simulate::{Known, Outcome, Requests, optimum, simulate};
use store::faulty_reader::FaultyReader;
use store::history::History;
use store::routing::{NO_PICK, RoutingTrace};

/// A file in memory that outlives its writer.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn trace(&self) -> RoutingTrace {
        RoutingTrace::parse(&self.0.lock().unwrap()).unwrap()
    }
}

fn traced(engine: &mut Engine) -> Memory {
    let file = Memory::default();
    engine.trace_routing(Box::new(file.clone())).unwrap();
    file
}

/// Two sequences: prompts in chunks, tokens one by one, and steps of both together.
fn work(engine: &mut Engine) {
    let (first, second) = (some_ids(1, 60), some_ids(2, 40));
    let mut states = [engine.create_state().unwrap(), engine.create_state().unwrap()];
    for chunk in [&first[..32], &first[32..37]] {
        feed(engine, &mut states[0], chunk).unwrap();
    }
    for token in first[37..].chunks(1) {
        feed(engine, &mut states[0], token).unwrap();
    }
    feed(engine, &mut states[1], &second[..17]).unwrap();
    for token in second[17..].chunks(1) {
        let mut parts: Vec<Part<'_>> = states.iter_mut().map(|state| part(state, token)).collect();
        step_bits(engine, &mut parts).unwrap();
    }
    for state in states {
        release(engine, state);
    }
}

/// The counts of the engine are those of the simulation to the last one, for every policy, with slots that make waves, on a
/// device that works late and with reads that come in any order.
#[test]
fn the_simulation_counts_what_the_engine_counted() {
    let mut first: Option<RoutingTrace> = None;
    for (seed, policy) in CachePolicy::ALL.into_iter().enumerate() {
        for slots in [16, 40, 100] {
            let reader = FaultyReader::new(common::readers::plain(&common::tiny()), seed as u64)
                .with_delays(Duration::from_micros(50));
            let mut setup = Setup::new().slots(slots).reader(Arc::new(reader)).policy(policy);
            setup.readers = 8;
            // Guesses come when they come.
            setup.look_ahead = LookAhead::Off;
            if slots == 40 {
                setup = setup.device(Late::new(Oracle::new(1).unwrap(), seed as u64));
            }
            let mut engine = setup.load();
            let file = traced(&mut engine);
            work(&mut engine);
            let counted = engine.cache_statistics();
            assert_eq!(engine.end_routing().unwrap(), file.0.lock().unwrap().len() as u64);
            let trace = file.trace();
            let requests = Requests::of(&trace);
            let simulated = simulate(policy, slots, &requests, Known::default());
            let counted = Outcome {
                hits: counted.hits,
                misses: counted.misses,
                bytes_read: counted.bytes_read,
                evictions: counted.evictions,
            };
            assert_eq!(simulated, counted, "{policy}, {slots} slots");
            // A step wants 32 experts of a sequence: with half as many slots LRU never finds one again.
            let none = slots == 16 && policy == CachePolicy::ALL[0];
            assert_eq!(counted.hits == 0, none, "{policy}, {slots} slots: {counted:?}");
            assert!(counted.evictions > 0, "{policy}, {slots} slots");
            assert!(optimum(slots, &requests).misses < counted.misses, "{policy}, {slots} slots");
            // What is picked does not depend on the cache.
            assert_eq!(first.get_or_insert_with(|| trace.clone()).steps, trace.steps);
        }
    }
}

/// Where every expert stays, the same is traced.
#[test]
fn a_resident_model_traces_the_golden_picks() {
    let golden: serde_json::Value =
        serde_json::from_slice(&std::fs::read(common::data("k3-tiny/golden/golden.json")).unwrap()).unwrap();
    let prompt = &golden["prompts"][0];
    let name = prompt["name"].as_str().unwrap();
    let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
    let wanted: Vec<u16> = Golden::open(name).ids("router_ids").into_iter().map(|id| id as u16).collect();
    for slots in [None, Some(24)] {
        let mut setup = Setup::new();
        setup.request.options.activations = ops::Activations::Exact;
        if let Some(slots) = slots {
            setup = setup.slots(slots);
        }
        let mut engine = setup.load();
        let file = traced(&mut engine);
        let mut state = engine.create_state().unwrap();
        feed(&mut engine, &mut state, &ids).unwrap();
        let trace = file.trace();
        assert_eq!((trace.steps.len(), trace.rows(), trace.cut), (1, ids.len() as u64, 0));
        // Golden: position, layer, rank.
        for (number, layer) in trace.steps[0].iter().enumerate() {
            assert_eq!(layer.layer as usize, number + 1);
            for (position, picks) in layer.picks.chunks_exact(4).enumerate() {
                let start = (position * 8 + number) * 4;
                let mut golden = wanted[start..start + 4].to_vec();
                let mut picks = picks.to_vec();
                golden.sort_unstable();
                picks.sort_unstable();
                assert_eq!(picks, golden, "position {position}, layer {}", layer.layer);
            }
        }
        assert!(trace.steps[0].iter().all(|layer| !layer.picks.contains(&NO_PICK)));
    }
}

/// A disk that is full.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_trace_that_cannot_be_written_stops_no_step() {
    let wanted = common::alone(&mut Setup::new().slots(20).load(), &some_ids(1, 20));
    let mut engine = Setup::new().slots(20).load();
    let error = engine.trace_routing(Box::new(Full(10))).unwrap_err();
    assert!(
        matches!(error, EngineError::Routing(_)) && error.to_string().contains("cannot be written"),
        "{error}"
    );
    engine.trace_routing(Box::new(Full(100))).unwrap();
    let got = common::alone(&mut engine, &some_ids(1, 20));
    common::assert_same(&got, &wanted, "with a full disk");
    assert_eq!(engine.end_routing().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(engine.end_routing().unwrap(), 0, "there is none any more");
}

#[test]
fn layers_without_experts_have_no_routing() {
    let mut setup = Setup::new();
    setup.request.options.layers = Some(1);
    let error = setup.load().trace_routing(Box::new(Memory::default())).unwrap_err();
    assert!(matches!(error, EngineError::NoExperts), "{error}");
}

/// What is known from before, right or wrong, changes no number, and the simulation knows what it does.
#[test]
fn a_history_counts_steps_and_changes_no_number() {
    let ids = some_ids(1, 40);
    let wanted = common::alone(&mut Setup::new().slots(40).load(), &ids);
    let run = |earlier: Option<&History>| {
        let mut setup = Setup::new().slots(40);
        setup.look_ahead = LookAhead::Off;
        let mut engine = setup.load();
        engine.begin_history(earlier);
        let file = traced(&mut engine);
        let mut state = engine.create_state().unwrap();
        let mut bits = feed(&mut engine, &mut state, &ids[..20]).unwrap();
        for token in ids[20..].chunks(1) {
            bits.extend(feed(&mut engine, &mut state, token).unwrap());
        }
        common::assert_same(&bits, &wanted, "with a history");
        let requests = Requests::of(&file.trace());
        let shares = earlier.map(History::shares).unwrap_or_default();
        let known = Known { shares: &shares, pinned: false };
        let counted = engine.cache_statistics();
        let simulated = simulate(CachePolicy::default(), 40, &requests, known);
        assert_eq!((simulated.hits, simulated.misses), (counted.hits, counted.misses));
        let history = engine.take_history().unwrap();
        assert_eq!(engine.take_history(), None, "it was taken");
        for (counted, share) in history.shares().iter().zip(requests.shares()) {
            assert!((counted - share).abs() < 1e-2, "{counted} {share}");
        }
        history
    };
    let first = run(None);
    run(Some(&first));
    let mut wrong = Setup::new().slots(40).load().empty_history().unwrap();
    wrong.add_step((0..256).filter(|expert| first.shares()[*expert as usize] == 0.0));
    run(Some(&wrong));
}

#[test]
fn experts_that_stay_have_no_history() {
    let mut engine = Setup::new().load();
    engine.begin_history(None);
    common::alone(&mut engine, &some_ids(1, 5));
    assert_eq!((engine.empty_history(), engine.take_history()), (None, None));
}
