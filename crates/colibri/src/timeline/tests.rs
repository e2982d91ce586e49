use super::*;
use models::{Section, StepTimes, WaitFor};
use serde_json::Value;
use std::sync::mpsc::channel;
use store::ExpertId;
use store::cache::{ReadCause, ReadEnd};

/// A read of the first reader, in milliseconds.
fn read(origin: Instant, span: Range<u64>, expert: u16) -> Record {
    let at = |millis| origin + Duration::from_millis(millis);
    Record::Read(ReadSpan {
        drive: 1,
        reader: 0,
        span: at(span.start)..at(span.end),
        id: ExpertId { layer: 3, expert },
        place: (0, 77),
        bytes: 1000,
        retries: 2,
        cause: ReadCause::WantedGuess,
        end: ReadEnd::Part,
    })
}

fn parsed(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn reads_that_overlap_have_tracks_of_their_own_and_as_few_as_there_must_be() {
    let origin = Instant::now();
    let mut lines = Lines::new(origin, vec!["a \"name\"".into()]);
    // In the order in which they end: at most two at once.
    for (number, span) in [0..4, 2..6, 5..7, 6..9, 8..12, 9..13].into_iter().enumerate() {
        lines.add(&read(origin, span, number as u16));
    }
    lines.end(1);
    let events = parsed(lines.text());
    let reads: Vec<_> = events.iter().filter(|event| event["cat"] == "read").collect();
    let tracks: Vec<_> = reads.iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(tracks, [3, 4, 3, 4, 3, 4]);
    let names: Vec<_> =
        events.iter().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].clone()).collect();
    assert_eq!(names, ["engine", "device", "drive 1, reader 0", "drive 1, reader 0, read 2"]);
    let first = reads[0];
    assert_eq!((&first["ts"], &first["dur"]), (&0.0.into(), &4000.0.into()));
    assert_eq!(first["name"], "guess that became wanted");
    let facts = serde_json::json!({
        "layer": 3, "expert": 0, "file": "a \"name\"", "offset": 77, "bytes": 1000, "retries": 2, "end": "part"
    });
    assert_eq!(first["args"], facts);
}

#[test]
fn steps_waits_and_counters_are_named() {
    let origin = Instant::now();
    let mut lines = Lines::new(origin, Vec::new());
    let span = origin..origin + Duration::from_nanos(1_234_567);
    lines.add(&Record::Step { position: 9, parts: 1, rows: 2, span: span.clone() });
    let sent = ops::Sent { submission: ops::Submission(5), span: span.clone() };
    lines.add(&Record::Work(Work { section: Section::Head, layer: None, sent }));
    lines.add(&Record::Wait(Wait { what: WaitFor::Slots, layer: Some(4), span: span.clone() }));
    lines.add(&Record::UnderWay(UnderWay { drive: 0, at: span.end, reads: 5, guesses: 2 }));
    lines.add(&Record::Waiting(Waiting { drive: 0, at: span.end, demanded: 7, guessed: 1 }));
    lines.end(1);
    let events = parsed(lines.text());
    let named = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
    assert_eq!(named("step")["args"], serde_json::json!({"position": 9, "parts": 1, "rows": 2}));
    assert_eq!(named("step")["dur"], 1234.567);
    assert_eq!(named("head")["args"], serde_json::json!({"layer": null, "submission": 5}));
    assert_eq!(
        (&named("wait for slots")["tid"], &named("wait for slots")["args"]["layer"]),
        (&1.into(), &4.into())
    );
    let counts = serde_json::json!({"waited for": 3, "guesses": 2});
    assert_eq!(named("drive 0: reads under way")["args"], counts);
    assert_eq!(named("drive 0: reads that wait")["args"]["waited for"], 7);
}

#[test]
fn a_queue_that_is_full_loses_records_and_counts_them() {
    let (sender, entries) = channel();
    let recorder = Recorder::new(sender, 2);
    let counts = UnderWay { drive: 0, at: Instant::now(), reads: 0, guesses: 0 };
    for _ in 0..5 {
        recorder.under_way(&counts);
    }
    assert_eq!(recorder.lost.load(Ordering::Relaxed), 3);
    let file = tempfile::NamedTempFile::new().unwrap();
    recorder.closing.store(true, Ordering::Release);
    let bytes = Writer::new(file.reopen().unwrap(), Vec::new()).run(&recorder, &entries).unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(text.len() as u64, bytes);
    assert_eq!(parsed(&text).iter().filter(|event| event["ph"] == "C").count(), 2);
    // Nobody takes records any more: that is no loss.
    drop(entries);
    recorder.under_way(&counts);
    assert_eq!(recorder.lost.load(Ordering::Relaxed), 3);
}

/// The steps of a long prompt have far more records than the drives have between two looks of the writer.
#[test]
fn a_long_step_is_whole_or_counted_as_lost() {
    let (sender, entries) = channel();
    let recorder = Recorder::new(sender, RECORDS_MAX);
    let span = Instant::now()..Instant::now();
    let sent = ops::Sent { submission: ops::Submission(1), span: span.clone() };
    let work = vec![Work { section: Section::Moe, layer: Some(0), sent }; 110_000];
    let waits = vec![Wait { what: WaitFor::Experts, layer: Some(0), span: span.clone() }; 20_000];
    let times = StepTimes { span, work: &work, expert_waits: &waits, other_waits: &waits[..5] };
    for _ in 0..3 {
        recorder.step(&StepSpan { position: 0, parts: 1, rows: 1, times: times.clone() });
    }
    assert_eq!(recorder.lost.load(Ordering::Relaxed), 130_006, "all of the third");
    let file = tempfile::NamedTempFile::new().unwrap();
    recorder.closing.store(true, Ordering::Release);
    Writer::new(file.reopen().unwrap(), Vec::new()).run(&recorder, &entries).unwrap();
    assert_eq!(recorder.waiting.load(Ordering::Relaxed), 0);
    let events = parsed(&std::fs::read_to_string(file.path()).unwrap());
    let count = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
    assert_eq!(["step", "compute", "wait"].map(count), [2, 220_000, 40_010]);
}

#[test]
fn a_file_without_records_is_a_list_all_the_same() {
    let (sender, entries) = channel();
    let recorder = Recorder::new(sender, 1);
    recorder.closing.store(true, Ordering::Release);
    let file = tempfile::NamedTempFile::new().unwrap();
    Writer::new(file.reopen().unwrap(), Vec::new()).run(&recorder, &entries).unwrap();
    assert_eq!(parsed(&std::fs::read_to_string(file.path()).unwrap()).len(), 5);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let (sender, entries) = channel();
    let recorder = Recorder::new(sender, 8);
    recorder.under_way(&UnderWay { drive: 0, at: Instant::now(), reads: 0, guesses: 0 });
    let file = tempfile::NamedTempFile::new().unwrap();
    let unwritable = File::open(file.path()).unwrap();
    recorder.closing.store(true, Ordering::Release);
    Writer::new(unwritable, Vec::new()).run(&recorder, &entries).unwrap_err();
}
