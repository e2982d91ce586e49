//! What a command says about itself: settings and plan before, figures after. Knows JSON and lines, no command.
use crate::args::EngineArgs;
use crate::errors::Failure;
use crate::load::{self, Model};
use crate::sampling::Decoding;
use crate::terminal::{Stream, harmless_json};
use engine::predict::{RoutedExperts, by_chance};
use engine::{Engine, Plan, show_bytes};
use memory::machine;
use models::{LookAheadStatistics, Section};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::time::Duration;
use store::cache::CacheStatistics;
use store::cache::governor::Governed;

/// Everything that is in force.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    numerics_version: u32,
    version: &'static str,
    model: Vec<String>,
    family: &'static str,
    device: &'static str,
    activations: &'static str,
    dense: &'static str,
    dense_residency: &'static str,
    /// The first layers only; None: all.
    layers: Option<u32>,
    #[serde(serialize_with = "decimal")]
    expert_top_p: f32,
    chunk: u32,
    context: u32,
    expert_cache: String,
    io: &'static str,
    mirror: Vec<String>,
    cache_policy: String,
    readers: u32,
    overlap: &'static str,
    look_ahead: String,
    check_experts: bool,
    governor: &'static str,
    threads: usize,
    #[serde(flatten)]
    decoding: Option<Decoding>,
}

/// An f32 with the digits that it was given in; as an f64 it would show digits that nobody wrote.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
pub(crate) fn decimal<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.to_string().parse().unwrap_or_else(|_| f64::from(*value)))
}

impl Settings {
    /// As planned; `decoding` where tokens are chosen.
    pub(crate) fn new(model: &Model, args: &EngineArgs, plan: &Plan, decoding: Option<Decoding>) -> Self {
        Settings {
            numerics_version: ops::NUMERICS_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            model: model.places.clone(),
            family: model.family.name(),
            device: args.device.name(),
            activations: plan.options.activations.name(),
            dense: plan.options.dense.name(),
            dense_residency: plan.options.residency.name(),
            layers: plan.options.layers,
            expert_top_p: plan.options.expert_top_p,
            chunk: plan.chunk,
            context: plan.context,
            expert_cache: args.expert_cache.map_or_else(|| "auto".to_owned(), |size| size.to_string()),
            io: args.io.name(),
            mirror: args.mirror.iter().map(|directory| directory.display().to_string()).collect(),
            cache_policy: args.cache_policy.to_string(),
            readers: args.readers,
            overlap: args.overlap.name(),
            look_ahead: args.look_ahead.to_string(),
            check_experts: args.check_experts.0,
            governor: args.governor.name(),
            threads: load::threads(args),
            decoding,
        }
    }

    /// Tokens are chosen in another way from now on.
    pub(crate) fn choose(&mut self, decoding: Decoding) {
        self.decoding = Some(decoding);
    }

    /// For people: `name value` pairs, with the flags' spelling of names, in lines that fit so many columns.
    pub(crate) fn lines(&self, columns: usize) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        let fields = value.as_object().into_iter().flatten();
        // What is not in force needs no word.
        let pairs = fields.filter(|(_, value)| !value.is_null()).map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Array(list) if list.is_empty() => "none".to_owned(),
                Value::Array(list) => {
                    // Texts may hold anything, also ends of lines: they stand between quotes.
                    let named = |v: &Value| v.as_str().filter(|_| name != "stop").map(str::to_owned);
                    let word = |v: &Value| named(v).unwrap_or_else(|| v.to_string());
                    list.iter().map(word).collect::<Vec<_>>().join(" ")
                }
                Value::Object(pairs) if pairs.is_empty() => "none".to_owned(),
                Value::Object(pairs) => {
                    pairs.iter().map(|(key, v)| format!("{key}={v}")).collect::<Vec<_>>().join(" ")
                }
                other => other.to_string(),
            };
            format!("{} {text}", name.replace('_', "-"))
        });
        wrapped("settings:", pairs, columns)
    }
}

/// A line for people, on standard error. That nobody reads it is no reason to stop.
pub(crate) fn tell(line: &str) {
    let _ = Stream::Error.write_line(line);
}

/// A heading and items with commas between them; lines after the first are indented. An item is never broken.
fn wrapped(heading: &str, items: impl Iterator<Item = String>, columns: usize) -> String {
    let mut text = heading.to_owned();
    let mut used = heading.chars().count();
    let mut items = items.peekable();
    while let Some(item) = items.next() {
        let item = if items.peek().is_some() { item + "," } else { item };
        let length = item.chars().count() + 1;
        if used + length > columns {
            text.push_str("\n ");
            used = 1;
        }
        text.push(' ');
        text.push_str(&item);
        used += length;
    }
    text
}

/// Words in lines that fit so many columns; each line but the first begins with an indent, as wide as what stands before
/// the first. A word is never broken.
pub(crate) fn paragraph(text: &str, indent: usize, columns: usize) -> String {
    let (mut paragraph, next) = (String::new(), format!("\n{:indent$}", ""));
    for (number, line) in text.lines().enumerate() {
        if number > 0 {
            paragraph += &next;
        }
        let mut used = indent;
        for (place, word) in line.split(' ').enumerate() {
            let length = word.chars().count();
            if place > 0 && used + 1 + length > columns {
                paragraph += &next;
                used = indent;
            } else if place > 0 {
                paragraph.push(' ');
                used += 1;
            }
            paragraph += word;
            used += length;
        }
    }
    paragraph
}

/// Settings, planned memory and notes, before anything is loaded.
pub(crate) fn announce(settings: &Settings, plan: &Plan, model: &Model) {
    tell(&settings.lines(Stream::Error.columns()));
    let mapped = plan.dense.mapped;
    tell(match mapped {
        0 => "planned memory (weights are read, not mapped):",
        _ => "planned memory (most dense weights are mapped and not in it):",
    });
    for (what, bytes) in &plan.items {
        tell(&format!("{:>10}  {what}", show_bytes(*bytes)));
    }
    tell(&format!("{:>10}  in all", show_bytes(plan.bytes())));
    if mapped > 0 {
        tell(&format!(
            "{:>10}  of weights are mapped: kept as far as memory is left, read again beyond that",
            show_bytes(mapped)
        ));
    }
    if let Some(reads) = expected_reads(plan, model) {
        tell(&reads);
    }
    for note in model.checkpoint.notes().iter().chain(&model.notes).chain(&plan.notes) {
        tell(&format!("note: {note}"));
    }
    if plan.options.expert_top_p < 1.0 {
        tell(&format!(
            "note: lossy: --expert-top-p {} drops experts that the router chose",
            plan.options.expert_top_p
        ));
    }
}

/// What a token is to read, where experts come and go; `colibri plan` tells more.
fn expected_reads(plan: &Plan, model: &Model) -> Option<String> {
    let (slab, config) = (plan.slab.filter(|_| plan.is_streamed())?, &model.family.config);
    let traffic = by_chance(1.0, (config.ranks, config.experts), (slab.slots(), plan.experts));
    let layers = plan.experts / config.experts;
    let experts = RoutedExperts { layers, ranks: config.ranks, bytes_each: plan.expert_bytes };
    Some(format!(
        "a token asks for {} of experts; were they picked evenly, {:.1} % of them would be in their slots and {} come from disk",
        show_bytes(experts.bytes_asked(traffic) as u64),
        traffic.hit_rate * 100.0,
        show_bytes(experts.bytes_read(traffic) as u64)
    ))
}

/// What is written into every file of results: what changes numbers, and nothing else, so that equal numbers are equal
/// files.
pub(crate) fn file_metadata(settings: &Settings) -> HashMap<String, String> {
    let Settings { numerics_version, family, activations, dense, layers, expert_top_p, .. } = settings;
    let layers = layers.map_or("all".to_owned(), |layers| layers.to_string());
    let pairs = [
        ("numerics_version", numerics_version.to_string()),
        ("family", (*family).to_owned()),
        ("activations", (*activations).to_owned()),
        ("dense", (*dense).to_owned()),
        ("layers", layers),
        ("expert_top_p", expert_top_p.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// `1 token`, `2 tokens`.
pub(crate) fn counted(count: impl Display, what: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// That work begins now.
pub(crate) fn loaded(took: Duration) {
    tell(&format!("loaded in {:.2} s", took.as_secs_f64()));
}

/// One value on standard output, in one line.
pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    let line = format!("{value}\n");
    written(Stream::Output.put(&if Stream::Output.is_terminal() {
        harmless_json(&line)
    } else {
        line.into()
    }))
}

/// Text on standard output, at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    written(Stream::Output.write(text))
}

/// What it means that standard output could not be written to.
pub(crate) fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    outcome.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Io { what: "writing to standard output".into(), source },
    })
}

/// Tokens and how long they took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Pace {
    pub(crate) tokens: u32,
    pub(crate) seconds: f64,
}

impl Pace {
    /// Of a count and a time.
    pub(crate) fn of((tokens, time): (u32, Duration)) -> Self {
        Pace { tokens, seconds: time.as_secs_f64() }
    }

    /// For people; nothing has no rate.
    fn words(self) -> String {
        let tokens = counted(self.tokens, "token");
        if self.tokens > 0 && self.seconds > 0.0 {
            format!("{tokens}, {:.2} tokens/s", f64::from(self.tokens) / self.seconds)
        } else {
            tokens
        }
    }
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    prefill: Pace,
    decode: Pace,
    seconds: Seconds,
    experts: ExpertStats,
    memory: MemoryStats,
}

#[derive(Debug, Serialize)]
struct Seconds {
    load: f64,
    attention: f64,
    moe: f64,
    expert_wait: f64,
    head: f64,
}

#[derive(Debug, Serialize)]
struct ExpertStats {
    hits: u64,
    /// Those that a guess had brought.
    hits_guessed: u64,
    misses: u64,
    /// Those that were on their way.
    misses_on_the_way: u64,
    /// None without requests: all experts are resident, or no layer has any.
    hit_rate: Option<f64>,
    /// For these requests and for guesses.
    bytes_read: u64,
    bytes_demanded: u64,
    bytes_guessed_used: u64,
    bytes_guessed_wasted: u64,
    guesses_read: u64,
    guesses_used: u64,
    guesses_wasted: u64,
    drives: u32,
    /// Share of prefill and decode in which a drive had something to read, the mean over drives; None without reads.
    disk_busy: Option<f64>,
    /// How many reads a drive had under way at once, the mean while it was busy, those on a guess among them; None without
    /// reads.
    reads_at_once: Option<f64>,
    /// Those of them that began as a guess.
    guesses_at_once: Option<f64>,
    /// The most reads at once on one drive.
    reads_at_once_most: u32,
    /// While loading, where all experts are to stay.
    preloaded_bytes: u64,
    slots: u32,
    /// While memory was short, in all.
    slots_given_back: u64,
    /// The fewest there were.
    slots_least: u32,
    /// None where experts do not come and go, or nothing was guessed.
    guesses: Option<GuessStats>,
}

/// How often guesses of the next layer's experts were right, whether they were read or not.
#[derive(Debug, Serialize)]
struct GuessStats {
    made: u64,
    right: u64,
    /// Of each rank, the most likely one first.
    precision: Vec<Option<f64>>,
    /// Ranks that are read at present.
    width: u32,
}

impl GuessStats {
    fn of(statistics: &LookAheadStatistics) -> Option<Self> {
        let LookAheadStatistics { ranks, width, .. } = statistics;
        let (right, made) = ranks.iter().fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1));
        let share = |&(right, made): &(u64, u64)| (made > 0).then(|| right as f64 / made as f64);
        let precision = ranks.iter().map(share).collect();
        (made > 0).then_some(GuessStats { made, right, precision, width: *width })
    }

    fn words(&self) -> String {
        format!(", {:.0} % of guesses right", self.right as f64 / self.made as f64 * 100.0)
    }
}

impl ExpertStats {
    fn words(&self) -> String {
        let guesses = self.guesses.as_ref().map_or_else(String::new, GuessStats::words);
        match self.hit_rate {
            Some(rate) => {
                let read = if self.guesses_read == 0 {
                    String::new()
                } else {
                    format!(
                        " ({} of it guessed and used, {} guessed in vain)",
                        show_bytes(self.bytes_guessed_used),
                        show_bytes(self.bytes_guessed_wasted)
                    )
                };
                let depth = self.reads_at_once.map(|reads| format!(" with {reads:.1} reads at once"));
                let busy = self.disk_busy.map_or(String::new(), |busy| {
                    format!(", disk busy {:.0} %{}", busy * 100.0, depth.unwrap_or_default())
                });
                let bytes = show_bytes(self.bytes_read);
                let given = if self.slots_given_back == 0 {
                    String::new()
                } else {
                    let (given, least) = (counted(self.slots_given_back, "slot"), self.slots_least);
                    format!(", {given} of {} given back ({least} were left at least)", self.slots)
                };
                format!("{:.1} % hits{guesses}, {bytes} read{read}{busy}{given}", rate * 100.0)
            }
            None if self.slots == 0 => "none in the layers in use".to_owned(),
            None => format!("all resident, {} read while loading", show_bytes(self.preloaded_bytes)),
        }
    }
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names of the answer's fields")]
struct MemoryStats {
    planned_bytes: u64,
    /// Weights that stay in their files, beside what is planned.
    mapped_bytes: u64,
    /// None where the system does not tell.
    peak_bytes: Option<u64>,
}

impl Stats {
    /// Of an engine that has worked; `before` is what its cache had counted when it was loaded.
    pub(crate) fn new(
        engine: &Engine,
        before: &CacheStatistics,
        load: Duration,
        prefill: Pace,
        decode: Pace,
    ) -> Self {
        let (cache, clock, plan) = (engine.cache_statistics(), engine.clock(), engine.plan());
        // Loading all experts counts as misses there; here only what tokens asked for does.
        let slots = plan.slab.map_or(0, |slab| slab.slots());
        let unchanged = Governed { slots_least: slots, ..Governed::default() };
        let governed = engine.governed().unwrap_or(unchanged);
        let (hits, misses) = (cache.hits - before.hits, cache.misses - before.misses);
        let requests = hits + misses;
        let (busy, worked) =
            (cache.busy.saturating_sub(before.busy).as_secs_f64(), prefill.seconds + decode.seconds);
        let bytes_read = cache.bytes_read - before.bytes_read;
        let disk_busy = (bytes_read > 0 && worked > 0.0)
            .then(|| (busy / worked / f64::from(cache.drives.max(1))).min(1.0));
        let at_once = |now: Duration, before: Duration| {
            (bytes_read > 0 && busy > 0.0).then(|| now.saturating_sub(before).as_secs_f64() / busy)
        };
        let spent = |section| clock.spent(section).as_secs_f64();
        Stats {
            prefill,
            decode,
            seconds: Seconds {
                load: load.as_secs_f64(),
                attention: spent(Section::Attention),
                moe: spent(Section::Moe),
                expert_wait: spent(Section::ExpertWait),
                head: spent(Section::Head),
            },
            experts: ExpertStats {
                hits,
                hits_guessed: cache.hits_guessed - before.hits_guessed,
                misses,
                misses_on_the_way: cache.misses_on_the_way - before.misses_on_the_way,
                hit_rate: (requests > 0).then(|| hits as f64 / requests as f64),
                bytes_read,
                bytes_demanded: cache.bytes_demanded - before.bytes_demanded,
                bytes_guessed_used: cache.bytes_guessed_used - before.bytes_guessed_used,
                bytes_guessed_wasted: cache.bytes_guessed_wasted - before.bytes_guessed_wasted,
                guesses_read: cache.guesses - before.guesses,
                guesses_used: cache.guesses_used - before.guesses_used,
                guesses_wasted: cache.guesses_wasted - before.guesses_wasted,
                drives: cache.drives,
                disk_busy,
                reads_at_once: at_once(cache.under_way, before.under_way),
                guesses_at_once: at_once(cache.guesses_under_way, before.guesses_under_way),
                reads_at_once_most: if bytes_read > 0 { cache.most_under_way } else { 0 },
                preloaded_bytes: before.bytes_read,
                slots,
                slots_given_back: governed.given_back,
                slots_least: governed.slots_least,
                guesses: engine.look_ahead_statistics().as_ref().and_then(GuessStats::of),
            },
            memory: MemoryStats {
                planned_bytes: plan.bytes(),
                mapped_bytes: plan.dense.mapped,
                peak_bytes: machine::peak_memory().ok(),
            },
        }
    }

    /// All of them in one line.
    pub(crate) fn summary(&self) -> String {
        let Stats { prefill, decode, seconds, experts, memory } = self;
        let peak = memory.peak_bytes.map_or("unknown".to_owned(), show_bytes);
        format!(
            "prefill {}; decode {}; seconds: attention {:.2}, moe {:.2}, \
             expert wait {:.2}, head {:.2}; experts: {}; memory: planned {}, peak {peak}",
            prefill.words(),
            decode.words(),
            seconds.attention,
            seconds.moe,
            seconds.expert_wait,
            seconds.head,
            experts.words(),
            show_bytes(memory.planned_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_wrapped_and_never_broken() {
        let items = || ["one 1", "two 2", "three a-long-word"].into_iter().map(str::to_owned);
        assert_eq!(wrapped("all:", items(), 80), "all: one 1, two 2, three a-long-word");
        assert_eq!(wrapped("all:", items(), 18), "all: one 1, two 2,\n  three a-long-word");
        assert_eq!(wrapped("all:", items(), 17), "all: one 1,\n  two 2,\n  three a-long-word");
        assert_eq!(wrapped("all:", items(), 0).lines().count(), 4);
    }

    #[test]
    fn words_are_wrapped_behind_an_indent() {
        assert_eq!(paragraph("one two three", 2, 80), "one two three");
        assert_eq!(paragraph("one two three", 2, 9), "one two\n  three");
        assert_eq!(paragraph("one two three", 2, 8), "one\n  two\n  three");
        assert_eq!(paragraph("one\n  two", 2, 80), "one\n    two", "lines of a table stay");
        assert_eq!(paragraph("", 2, 80), "");
    }
}
