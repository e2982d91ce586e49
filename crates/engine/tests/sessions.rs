//! Sessions and answers: what is kept of a sequence, when an answer ends, and that both equal a cold run.
mod common;

use common::devices::{Rigged, Strike};
use common::{Setup, assert_same, bits, some_ids};
use engine::{Answer, Cancel, Engine, EngineError, Event, Finish, Sampling, Session, Task, generate};
use models::{Health, Logits, PartError, StateError};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn engine() -> Engine {
    Setup::new().load()
}

/// Syncs and feeds what is left; how much that was, and the last logits.
fn run(engine: &mut Engine, session: &mut Session, prompt: &[u32]) -> (usize, Vec<u32>) {
    session.sync(engine, prompt).unwrap();
    let rest = prompt[session.ids().len()..].to_vec();
    assert_eq!(session.state().position() as usize, session.ids().len());
    let output = session.feed(engine, &rest, Logits::Last, None).unwrap();
    assert_eq!(session.ids(), prompt);
    (rest.len(), bits(&output.logits))
}

fn cold(engine: &mut Engine, prompt: &[u32]) -> Vec<u32> {
    let mut session = Session::new(engine).unwrap();
    let (fed, logits) = run(engine, &mut session, prompt);
    assert_eq!(fed, prompt.len());
    session.close(engine).unwrap();
    logits
}

/// A recurrent state cannot go back, so that anything but an extension starts anew.
#[test]
fn sync_keeps_what_it_can() {
    let mut engine = engine();
    let ids = some_ids(1, 12);
    let mut edited = ids[..10].to_vec();
    edited[4] = (edited[4] + 1) % 3840;
    let mut session = Session::new(&mut engine).unwrap();
    let steps: [(&str, &[u32], usize); 7] = [
        ("a first prompt", &ids[..6], 6),
        ("an extension", &ids[..10], 4),
        ("by one", &ids[..11], 1),
        ("the same again", &ids[..11], 11),
        ("a shorter one", &ids[..3], 3),
        ("an edited one", &edited, 7),
        ("another one", &ids[6..], 6),
    ];
    for (what, prompt, left) in steps {
        // The edited prompt follows its own first three ids and keeps these.
        let (fed, logits) = run(&mut engine, &mut session, prompt);
        assert_eq!(fed, left, "{what}");
        assert_same(&logits, &cold(&mut engine, prompt), what);
    }
    let edited_inside = &edited[..];
    run(&mut engine, &mut session, &ids[..10]);
    let (fed, logits) = run(&mut engine, &mut session, edited_inside);
    assert_eq!(fed, 10, "an edit in the middle");
    assert_same(&logits, &cold(&mut engine, edited_inside), "an edit in the middle");
}

#[test]
fn sync_after_a_failure_starts_anew() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().device(device).load();
    let ids = some_ids(1, 6);
    let mut session = Session::new(&mut engine).unwrap();
    run(&mut engine, &mut session, &ids[..3]);
    controls.strike("residual_mix", 4, Strike::Poison { row: 0, rows: 3 });
    let error = session.feed(&mut engine, &ids[3..], Logits::Last, None).unwrap_err();
    assert!(matches!(error, EngineError::Part(PartError::NotFinite { position: 3, .. })), "{error:?}");
    assert_eq!((session.ids(), session.state().health()), (&ids[..3], Health::NeedsRebuild));
    let (fed, logits) = run(&mut engine, &mut session, &ids);
    assert_eq!(fed, 6);
    assert_same(&logits, &cold(&mut engine, &ids), "after the failure");
}

/// The likeliest tokens.
fn greedy(
    engine: &mut Engine,
    session: &mut Session,
    task: &Task<'_>,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<Finish>,
) -> Result<Answer, EngineError> {
    let mut sampler = engine.sampler(Sampling::greedy())?;
    generate(engine, session, task, &mut sampler, on_event)
}

fn go_on(_: Event) -> ControlFlow<Finish> {
    ControlFlow::Continue(())
}

fn answer(engine: &mut Engine, session: &mut Session, task: &Task<'_>) -> (Answer, Vec<u32>) {
    let mut heard = Vec::new();
    let mut on_event = |event| {
        if let Event::Token { id } = event {
            heard.push(id);
        }
        ControlFlow::Continue(())
    };
    let answer = greedy(engine, session, task, &mut on_event).unwrap();
    (answer, heard)
}

#[test]
fn answers_end_when_they_should() {
    let mut engine = engine();
    let prompt = some_ids(4, 5);
    let mut session = Session::new(&mut engine).unwrap();
    let task = Task { prompt: &prompt, max_tokens: 6, stop: &[], cancel: None };
    let (whole, heard) = answer(&mut engine, &mut session, &task);
    assert_eq!((whole.finish, whole.ids.len(), whole.prefill.0, whole.decode.0), (Finish::Length, 6, 5, 5));
    assert_eq!(heard, whole.ids);
    // The last id was not fed: nobody asked what comes after it.
    assert_eq!(session.ids(), [&prompt[..], &whole.ids[..5]].concat());

    for max_tokens in [0, 1, 3] {
        let (short, _) = answer(&mut engine, &mut session, &Task { max_tokens, ..task });
        assert_eq!((short.finish, &short.ids[..]), (Finish::Length, &whole.ids[..max_tokens as usize]));
        assert_eq!(short.decode.0, max_tokens.saturating_sub(1));
    }

    for (at, stop) in whole.ids.iter().enumerate() {
        let first = whole.ids.iter().position(|id| id == stop).unwrap();
        let stops = [4095, *stop];
        let (stopped, heard) = answer(&mut engine, &mut session, &Task { stop: &stops, ..task });
        assert_eq!((stopped.finish, &stopped.ids[..]), (Finish::Stop, &whole.ids[..first]), "stop at {at}");
        assert_eq!(stopped.stop_id, Some(*stop));
        assert_eq!(heard, stopped.ids);
    }
}

#[test]
fn an_answer_ends_with_the_context() {
    let mut setup = Setup::new();
    setup.request.context = Some(8);
    let mut engine = setup.load();
    let mut session = Session::new(&mut engine).unwrap();
    let prompt = some_ids(4, 9);
    let task = Task { prompt: &prompt[..6], max_tokens: 50, stop: &[], cancel: None };
    let (full, _) = answer(&mut engine, &mut session, &task);
    // Prompt and answer are 8 tokens; the last one needs no step.
    assert_eq!((full.finish, full.ids.len(), session.ids().len()), (Finish::Length, 2, 7));
    let (full, _) = answer(&mut engine, &mut session, &Task { prompt: &prompt[..8], ..task });
    assert_eq!((full.finish, full.ids.len()), (Finish::Length, 0));
    let error = greedy(&mut engine, &mut session, &Task { prompt: &prompt, ..task }, &mut go_on);
    assert!(matches!(error, Err(EngineError::TooLong { tokens: 9, context: 8, most: 4096 })), "{error:?}");
    let error = greedy(&mut engine, &mut session, &Task { prompt: &[], ..task }, &mut go_on);
    assert!(matches!(error, Err(EngineError::EmptyPrompt)), "{error:?}");
}

/// Long prompts go in in chunks of the plan, and nobody sees where they were cut.
#[test]
fn a_long_prompt_is_fed_in_chunks() {
    let prompt = some_ids(4, 11);
    let run = |chunk| {
        let mut setup = Setup::new();
        setup.request.chunk = Some(chunk);
        let mut engine = setup.load();
        let mut session = Session::new(&mut engine).unwrap();
        let mut progress = Vec::new();
        let mut on_event = |event| {
            if let Event::Prefilled(done, all) = event {
                progress.push((done, all));
            }
            ControlFlow::Continue(())
        };
        let task = Task { prompt: &prompt, max_tokens: 3, stop: &[], cancel: None };
        let answer = greedy(&mut engine, &mut session, &task, &mut on_event).unwrap();
        (answer.ids, progress)
    };
    let (ids, progress) = run(4);
    assert_eq!(progress, [(4, 11), (8, 11), (11, 11)]);
    assert_eq!(ids, run(64).0);
}

#[test]
fn a_cancelled_answer_keeps_what_it_has() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().device(device).load();
    let mut session = Session::new(&mut engine).unwrap();
    let prompt = some_ids(4, 5);
    let flag = AtomicBool::new(false);
    let task = Task { prompt: &prompt, max_tokens: 6, stop: &[], cancel: Some(Cancel::at_once(&flag)) };
    let (whole, _) = answer(&mut engine, &mut session, &task);

    // Between two tokens.
    let mut heard = 0;
    let stop_after_two = &mut |event| {
        heard += u32::from(matches!(event, Event::Token { .. }));
        flag.store(heard == 2, Ordering::Relaxed);
        ControlFlow::Continue(())
    };
    let cut = greedy(&mut engine, &mut session, &task, stop_after_two).unwrap();
    assert_eq!((cut.finish, &cut.ids[..]), (Finish::Cancelled, &whole.ids[..2]));

    // Before the first step, and inside a step.
    flag.store(true, Ordering::Relaxed);
    let (none, heard) = answer(&mut engine, &mut session, &task);
    assert_eq!((none.finish, none.ids.len(), heard.len()), (Finish::Cancelled, 0, 0));
    let shared = Arc::new(AtomicBool::new(false));
    controls.strike("rms_norm", 3, Strike::Raise(Arc::clone(&shared)));
    let (none, _) =
        answer(&mut engine, &mut session, &Task { cancel: Some(Cancel::at_once(&shared)), ..task });
    assert_eq!((none.finish, none.ids.len()), (Finish::Cancelled, 0));

    // And then the whole of it.
    flag.store(false, Ordering::Relaxed);
    let (again, _) = answer(&mut engine, &mut session, &task);
    assert_eq!((again.finish, again.ids), (Finish::Length, whole.ids));
}

#[test]
fn closing_gives_everything_back() {
    let mut engine = engine();
    let held = engine.states().1.memory().allocated;
    let blocks = engine.states().0.free_blocks();
    let mut session = Session::new(&mut engine).unwrap();
    run(&mut engine, &mut session, &some_ids(1, 3));
    assert!(engine.states().0.free_blocks() < blocks);
    session.close(&mut engine).unwrap();
    assert_eq!((engine.states().1.memory().allocated, engine.states().0.free_blocks()), (held, blocks));
}

/// The caller may end an answer at any event; the session has what was fed and goes on from there.
#[test]
fn the_caller_ends_an_answer() {
    let mut engine = Setup::new().load();
    let mut session = Session::new(&mut engine).unwrap();
    let prompt = some_ids(4, 5);
    let task = Task { prompt: &prompt, max_tokens: 6, stop: &[], cancel: None };
    let (whole, _) = answer(&mut engine, &mut session, &task);
    let mut heard = 0;
    let third = &mut |event| {
        heard += u32::from(matches!(event, Event::Token { .. }));
        if heard == 3 { ControlFlow::Break(Finish::Stop) } else { ControlFlow::Continue(()) }
    };
    let cut = greedy(&mut engine, &mut session, &task, third).unwrap();
    assert_eq!((cut.finish, &cut.ids[..], cut.stop_id), (Finish::Stop, &whole.ids[..3], None));
    assert_eq!(session.ids(), [&prompt[..], &whole.ids[..2]].concat());

    // What follows needs no more than what is new.
    let longer = [&prompt[..], &whole.ids[..3]].concat();
    let (rest, _) = answer(&mut engine, &mut session, &Task { prompt: &longer, max_tokens: 3, ..task });
    assert_eq!((rest.prefill.0, &rest.ids[..]), (1, &whole.ids[3..]));

    let at_prompt = &mut |_| ControlFlow::Break(Finish::Cancelled);
    let none = greedy(&mut engine, &mut session, &task, at_prompt).unwrap();
    assert_eq!((none.finish, none.ids.len(), none.prefill.0), (Finish::Cancelled, 0, 5));
    assert_eq!(session.ids(), prompt);
}

/// A cancel that waits for the token leaves a session that goes on; in the prompt it does not wait.
#[test]
fn a_cancel_between_tokens_keeps_the_session() {
    let (device, controls) = Rigged::new();
    let mut engine = Setup::new().device(device).load();
    let mut session = Session::new(&mut engine).unwrap();
    let prompt = some_ids(4, 5);
    let task = Task { prompt: &prompt, max_tokens: 6, stop: &[], cancel: None };
    let (whole, _) = answer(&mut engine, &mut session, &task);

    let flag = Arc::new(AtomicBool::new(false));
    for (cancel, finished, health) in
        [(Cancel::between_tokens(&flag), 3, Health::Ready), (Cancel::at_once(&flag), 2, Health::NeedsRebuild)]
    {
        flag.store(false, Ordering::Relaxed);
        let mut heard = 0;
        // Raised inside the step that takes in the second token.
        let rig = &mut |event| {
            heard += u32::from(matches!(event, Event::Token { .. }));
            if heard == 2 {
                controls.strike("rms_norm", 3, Strike::Raise(Arc::clone(&flag)));
            }
            ControlFlow::Continue(())
        };
        let cut = greedy(&mut engine, &mut session, &Task { cancel: Some(cancel), ..task }, rig).unwrap();
        assert_eq!((cut.finish, &cut.ids[..]), (Finish::Cancelled, &whole.ids[..finished]), "{cancel:?}");
        assert_eq!(session.state().health(), health, "{cancel:?}");
    }

    flag.store(false, Ordering::Relaxed);
    controls.strike("rms_norm", 3, Strike::Raise(Arc::clone(&flag)));
    let task = Task { cancel: Some(Cancel::between_tokens(&flag)), ..task };
    let (none, _) = answer(&mut engine, &mut session, &task);
    assert_eq!((none.finish, none.ids.len()), (Finish::Cancelled, 0));
    assert_eq!(session.state().health(), Health::NeedsRebuild);
    flag.store(false, Ordering::Relaxed);
    let (again, _) = answer(&mut engine, &mut session, &task);
    assert_eq!((again.prefill.0, again.ids), (5, whole.ids));
}

#[test]
fn a_fork_keeps_the_ids_of_where_it_was_made() {
    let mut setup = Setup::new();
    setup.request.sequences = 2;
    let mut engine = setup.load();
    let ids = some_ids(1, 8);
    let mut session = Session::new(&mut engine).unwrap();
    run(&mut engine, &mut session, &ids[..5]);
    let mut before = session.fork(&mut engine).unwrap();
    run(&mut engine, &mut session, &ids);
    assert_eq!((before.ids(), session.ids()), (&ids[..5], &ids[..]));
    let other = [&ids[..5], &some_ids(2, 2)].concat();
    let (fed, logits) = run(&mut engine, &mut before, &other);
    assert_eq!(fed, 2);
    let error = session.fork(&mut engine).unwrap_err();
    assert!(matches!(error, EngineError::State(StateError::TooMany { most: 2 })), "{error:?}");
    session.close(&mut engine).unwrap();
    assert_same(&logits, &cold(&mut engine, &other), "the fork");
}

#[test]
fn a_saved_session_goes_on() {
    let (mut here, mut elsewhere) = (engine(), Setup::new().slots(9).load());
    let ids = some_ids(1, 60);
    let expected = cold(&mut here, &ids);
    let mut session = Session::new(&mut here).unwrap();
    for length in [0, 20, 55] {
        if length > 0 {
            run(&mut here, &mut session, &ids[..length]);
        }
        let bytes = session.save(&mut here).unwrap();
        let mut restored = Session::restore(&mut elsewhere, &bytes).unwrap();
        assert_eq!(restored.ids(), &ids[..length]);
        assert!(restored.save(&mut elsewhere).unwrap() == bytes);
        let (fed, logits) = run(&mut elsewhere, &mut restored, &ids);
        assert_eq!(fed, ids.len() - length);
        assert_same(&logits, &expected, &format!("from {length}"));
        restored.close(&mut elsewhere).unwrap();
    }
}

/// Every cut, a flip of a bit anywhere, and another model's session are refused, and nothing is kept of them.
#[test]
fn a_damaged_session_is_refused_by_name() {
    let mut engine = engine();
    let mut session = Session::new(&mut engine).unwrap();
    run(&mut engine, &mut session, &some_ids(1, 5));
    let bytes = session.save(&mut engine).unwrap();
    session.close(&mut engine).unwrap();
    let refusal = |engine: &mut Engine, bytes: &[u8]| {
        let blocks = engine.states().0.free_blocks();
        let error = Session::restore(engine, bytes).expect_err("a damaged session was taken").to_string();
        assert_eq!(engine.states().0.free_blocks(), blocks);
        error
    };
    let (ids_at, hash_at) = (16, 16 + 5 * 4);
    for (at, words) in [
        (0, "do not begin like one"),
        (8, "version"),
        (12, "checksum of its ids"),
        (ids_at, "checksum of its ids"),
        (hash_at, "checksum of its ids"),
        (hash_at + 32, "do not begin like one"),
        (hash_at + 200, "checksum does not fit"),
        (bytes.len() - 1, "checksum of its ids"),
    ] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let error = refusal(&mut engine, &damaged);
        assert!(error.contains(words), "byte {at}: {error}");
    }
    for end in (0..hash_at + 40).chain([bytes.len() - 1]) {
        let error = refusal(&mut engine, &bytes[..end]);
        assert!(error.starts_with("not a usable saved session: "), "cut at {end}: {error}");
    }
    let mut many = bytes.clone();
    many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refusal(&mut engine, &many).contains("cut off"));

    let mut other = Setup::new();
    other.request.options.activations = ops::Activations::Exact;
    let error = refusal(&mut other.load(), &bytes);
    assert!(error.contains("made by another model, packing or activations mode"), "{error}");
}

/// What a failure left half moved is not saved or forked; synced again it is whole.
#[test]
fn a_half_moved_session_is_not_kept() {
    let (device, controls) = Rigged::new();
    let mut setup = Setup::new();
    setup.request.sequences = 2;
    let mut engine = setup.device(device).load();
    let ids = some_ids(1, 6);
    let mut session = Session::new(&mut engine).unwrap();
    run(&mut engine, &mut session, &ids[..3]);
    controls.strike("residual_mix", 4, Strike::Poison { row: 0, rows: 3 });
    session.feed(&mut engine, &ids[3..], Logits::Last, None).unwrap_err();
    let errors = [session.save(&mut engine).map(drop), session.fork(&mut engine).map(drop)];
    for error in errors {
        assert!(matches!(error, Err(EngineError::State(StateError::NeedsRebuild))), "{error:?}");
    }
    run(&mut engine, &mut session, &ids);
    session.save(&mut engine).unwrap();
    // Ids that a step has taken in and nobody has noted.
    let outcome = engine.step(&mut [session.part(&ids[..1], Logits::None, None)]).unwrap().pop().unwrap();
    outcome.unwrap();
    assert!(session.save(&mut engine).is_err());
    session.fed(&ids[..1]);
    session.save(&mut engine).unwrap();
}
