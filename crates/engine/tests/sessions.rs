//! Sessions and answers: what is kept of a sequence, when an answer ends, and that both equal a cold run.
mod common;

use common::devices::{Rigged, Strike};
use common::{Setup, assert_same, bits, some_ids};
use engine::{Answer, Engine, EngineError, Event, Finish, Sampling, Session, Task, generate};
use models::{Health, Logits, PartError};
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

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

fn answer(engine: &mut Engine, session: &mut Session, task: &Task<'_>) -> (Answer, Vec<u32>) {
    let mut heard = Vec::new();
    let mut on_event = |event| {
        if let Event::Token(id) = event {
            heard.push(id);
        }
    };
    let answer = generate(engine, session, task, &mut on_event).unwrap();
    (answer, heard)
}

#[test]
fn answers_end_when_they_should() {
    let mut engine = engine();
    let prompt = some_ids(4, 5);
    let mut session = Session::new(&mut engine).unwrap();
    let task = Task { prompt: &prompt, max_tokens: 6, sampling: GREEDY, stop: &[], cancel: None };
    let (whole, heard) = answer(&mut engine, &mut session, &task);
    assert_eq!((whole.finish, whole.ids.len(), whole.prefill.0, whole.decode.0), (Finish::Length, 6, 5, 5));
    assert_eq!(heard, whole.ids);
    // The last id was not fed: nobody asked what comes after it.
    assert_eq!(session.ids(), [&prompt[..], &whole.ids[..5]].concat());

    for max_tokens in [0, 1, 3] {
        let (short, _) = answer(&mut engine, &mut session, &Task { max_tokens, ..task.clone() });
        assert_eq!((short.finish, &short.ids[..]), (Finish::Length, &whole.ids[..max_tokens as usize]));
        assert_eq!(short.decode.0, max_tokens.saturating_sub(1));
    }

    for (at, stop) in whole.ids.iter().enumerate() {
        let first = whole.ids.iter().position(|id| id == stop).unwrap();
        let stops = [4095, *stop];
        let (stopped, heard) = answer(&mut engine, &mut session, &Task { stop: &stops, ..task.clone() });
        assert_eq!((stopped.finish, &stopped.ids[..]), (Finish::Stop, &whole.ids[..first]), "stop at {at}");
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
    let task = Task { prompt: &prompt[..6], max_tokens: 50, sampling: GREEDY, stop: &[], cancel: None };
    let (full, _) = answer(&mut engine, &mut session, &task);
    // Prompt and answer are 8 tokens; the last one needs no step.
    assert_eq!((full.finish, full.ids.len(), session.ids().len()), (Finish::Length, 2, 7));
    let (full, _) = answer(&mut engine, &mut session, &Task { prompt: &prompt[..8], ..task.clone() });
    assert_eq!((full.finish, full.ids.len()), (Finish::Length, 0));
    let error = generate(&mut engine, &mut session, &Task { prompt: &prompt, ..task.clone() }, &mut |_| {});
    assert!(matches!(error, Err(EngineError::TooLong { tokens: 9, context: 8, most: 4096 })), "{error:?}");
    let error = generate(&mut engine, &mut session, &Task { prompt: &[], ..task }, &mut |_| {});
    assert!(matches!(error, Err(EngineError::EmptyPrompt)), "{error:?}");
}

/// Long prompts go in in chunks of the plan, and nobody sees where they were cut.
#[test]
fn a_long_prompt_is_fed_in_chunks() {
    let prompt = some_ids(4, 11);
    let run = |chunk| {
        let mut setup = Setup::new();
        setup.request.chunk = chunk;
        let mut engine = setup.load();
        let mut session = Session::new(&mut engine).unwrap();
        let mut progress = Vec::new();
        let mut on_event = |event| {
            if let Event::Prefilled(done, all) = event {
                progress.push((done, all));
            }
        };
        let task = Task { prompt: &prompt, max_tokens: 3, sampling: GREEDY, stop: &[], cancel: None };
        let answer = generate(&mut engine, &mut session, &task, &mut on_event).unwrap();
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
    let task = Task { prompt: &prompt, max_tokens: 6, sampling: GREEDY, stop: &[], cancel: Some(&flag) };
    let (whole, _) = answer(&mut engine, &mut session, &task);

    // Between two tokens.
    let mut heard = 0;
    let stop_after_two = &mut |event| {
        heard += u32::from(matches!(event, Event::Token(_)));
        flag.store(heard == 2, Ordering::Relaxed);
    };
    let cut = generate(&mut engine, &mut session, &task, stop_after_two).unwrap();
    assert_eq!((cut.finish, &cut.ids[..]), (Finish::Cancelled, &whole.ids[..2]));

    // Before the first step, and inside a step.
    flag.store(true, Ordering::Relaxed);
    let (none, heard) = answer(&mut engine, &mut session, &task);
    assert_eq!((none.finish, none.ids.len(), heard.len()), (Finish::Cancelled, 0, 0));
    let shared = Arc::new(AtomicBool::new(false));
    controls.strike("rms_norm", 3, Strike::Raise(Arc::clone(&shared)));
    let (none, _) = answer(&mut engine, &mut session, &Task { cancel: Some(&shared), ..task.clone() });
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
