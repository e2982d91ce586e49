//! Records as lines of Chrome's "Trace Event Format": `X` is a span of a track, `C` a counter, `M` names a track; times are in
//! microseconds. Knows no file.
use super::Record;
use models::{Section, Wait, WaitFor, Work};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::ops::Range;
use std::time::{Duration, Instant};
use store::cache::{ReadCause, ReadEnd, ReadSpan, UnderWay, Waiting};

/// Tracks by number, in the order in which they are shown.
const ENGINE: u64 = 1;
const DEVICE: u64 = 2;
/// The first of those of readers.
const READERS: u64 = 3;

/// The lines that are not in the file yet.
pub(super) struct Lines {
    text: String,
    /// Whether there was a line already.
    begun: bool,
    /// What times are counted from.
    origin: Instant,
    /// Names of files as JSON has them.
    names: Vec<String>,
    /// Tracks of readers, by drive and number.
    readers: BTreeMap<(usize, u32), Vec<Lane>>,
    tracks: u64,
}

/// A track of a reader; a thread needs one, a ring one for every read that it has under way.
struct Lane {
    track: u64,
    /// When its last read ended.
    until: Instant,
}

impl Lines {
    pub(super) fn new(origin: Instant, names: Vec<String>) -> Self {
        let quoted = |name: String| serde_json::Value::String(name).to_string();
        let names = names.into_iter().map(quoted).collect();
        Lines { text: String::new(), begun: false, origin, names, readers: BTreeMap::new(), tracks: READERS }
    }

    /// What is to be written next.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// It was written, or cannot be.
    pub(super) fn forget(&mut self) {
        self.text.clear();
    }

    /// The end of a file that has so many bytes.
    pub(super) fn end(&mut self, bytes: u64) {
        if bytes == 0 {
            self.begun = false;
            self.begin();
        }
        self.text.push_str("\n]\n");
    }

    pub(super) fn add(&mut self, record: &Record) {
        match record {
            Record::Read(read) => self.read(read),
            Record::UnderWay(UnderWay { drive, at, reads, guesses }) => {
                let what = format_args!("drive {drive}: reads under way");
                self.counter(what, *at, [u64::from(reads - guesses), u64::from(*guesses)]);
            }
            Record::Waiting(Waiting { drive, at, demanded, guessed }) => {
                let what = format_args!("drive {drive}: reads that wait");
                self.counter(what, *at, [*demanded as u64, *guessed as u64]);
            }
            Record::Step { position, parts, rows, span } => {
                let facts = format_args!(r#""position":{position},"parts":{parts},"rows":{rows}"#);
                self.span(ENGINE, ("step", "step"), span, facts);
            }
            Record::Work(Work { section, layer, sent }) => {
                let (layer, number) = (Layer(*layer), sent.submission.0);
                let facts = format_args!(r#""layer":{layer},"submission":{number}"#);
                self.span(DEVICE, ("compute", section_name(*section)), &sent.span, facts);
            }
            Record::Wait(Wait { what, layer, span }) => {
                let name = match what {
                    WaitFor::Picks => "wait for picks",
                    WaitFor::Experts => "wait for experts",
                    WaitFor::Slots => "wait for slots",
                    WaitFor::Cache => "wait for the cache",
                };
                self.span(ENGINE, ("wait", name), span, format_args!(r#""layer":{}"#, Layer(*layer)));
            }
        }
    }

    fn read(&mut self, read: &ReadSpan) {
        let ReadSpan { id, place: (file, offset), bytes, retries, .. } = read;
        let name = match read.cause {
            ReadCause::Demand => "demand",
            ReadCause::Guess => "guess",
            ReadCause::WantedGuess => "guess that became wanted",
        };
        let end = match read.end {
            ReadEnd::Whole => "whole",
            ReadEnd::Part => "part",
            ReadEnd::Failed => "failed",
        };
        let track = self.track_of(read);
        let names = std::mem::take(&mut self.names);
        let file = names.get(*file as usize).map_or("null", String::as_str);
        let facts = format_args!(
            r#""layer":{},"expert":{},"file":{file},"offset":{offset},"bytes":{bytes},"retries":{retries},"end":"{end}""#,
            id.layer, id.expert
        );
        self.span(track, ("read", name), &read.span, facts);
        self.names = names;
    }

    /// A track of the reader on which nothing overlaps with this read: of those, the one that was busy last.
    fn track_of(&mut self, read: &ReadSpan) -> u64 {
        let lanes = self.readers.entry((read.drive, read.reader)).or_default();
        let free = lanes.iter_mut().filter(|lane| lane.until <= read.span.start);
        if let Some(lane) = free.max_by_key(|lane| lane.until) {
            lane.until = read.span.end;
            return lane.track;
        }
        let (track, number) = (self.tracks, lanes.len());
        lanes.push(Lane { track, until: read.span.end });
        self.tracks += 1;
        let more = if number == 0 { String::new() } else { format!(", read {}", number + 1) };
        self.name_track(track, &format!("drive {}, reader {}{more}", read.drive, read.reader));
        track
    }

    fn name_track(&mut self, track: u64, name: &str) {
        let fact = format_args!(r#""name":"{name}""#);
        self.line(format_args!(r#""ph":"M","name":"thread_name","pid":1,"tid":{track},"args":{{{fact}}}"#));
        let fact = format_args!(r#""sort_index":{track}"#);
        self.line(format_args!(
            r#""ph":"M","name":"thread_sort_index","pid":1,"tid":{track},"args":{{{fact}}}"#
        ));
    }

    fn span(
        &mut self,
        track: u64,
        (kind, name): (&str, &str),
        span: &Range<Instant>,
        facts: fmt::Arguments<'_>,
    ) {
        let (start, took) = (self.since_origin(span.start), span.end.saturating_duration_since(span.start));
        let (start, took) = (Micros(start), Micros(took));
        self.line(format_args!(
            r#""ph":"X","cat":"{kind}","name":"{name}","pid":1,"tid":{track},"ts":{start},"dur":{took},"args":{{{facts}}}"#
        ));
    }

    fn counter(&mut self, what: fmt::Arguments<'_>, at: Instant, [demanded, guessed]: [u64; 2]) {
        let at = Micros(self.since_origin(at));
        let facts = format_args!(r#""waited for":{demanded},"guesses":{guessed}"#);
        self.line(format_args!(r#""ph":"C","name":"{what}","pid":1,"ts":{at},"args":{{{facts}}}"#));
    }

    fn since_origin(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.origin)
    }

    /// Adds an object with these members.
    fn line(&mut self, members: fmt::Arguments<'_>) {
        if !self.begun {
            self.begin();
        }
        self.text.push_str(",\n");
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{{{members}}}");
    }

    fn begin(&mut self) {
        self.begun = true;
        self.text.push_str("[\n");
        self.text.push_str(r#"{"ph":"M","name":"process_name","pid":1,"args":{"name":"colibri"}}"#);
        self.name_track(ENGINE, "engine");
        self.name_track(DEVICE, "device");
    }
}

/// With three decimals: every nanosecond is there.
struct Micros(Duration);

impl Display for Micros {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(formatter, "{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

/// A number, or null.
struct Layer(Option<u32>);

impl Display for Layer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(layer) => layer.fmt(formatter),
            None => formatter.write_str("null"),
        }
    }
}

fn section_name(section: Section) -> &'static str {
    match section {
        Section::Attention => "attention",
        Section::Moe => "moe",
        // Nothing is submitted while experts are waited for.
        Section::ExpertWait => "expert wait",
        Section::Head => "head",
    }
}
