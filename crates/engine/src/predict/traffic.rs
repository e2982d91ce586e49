//! How many experts a step asks for and how many of them it finds: from traces of runs, or from chance.
use store::cache::CachePolicy;
use store::cache::simulate::{Part, Requests, simulate_parts};
use store::routing::RoutingTrace;

/// What steps of one kind ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Different experts that a step asks for in a layer, on average.
    pub experts: f64,
    /// The share of these that is in a slot.
    pub hit_rate: f64,
    /// Where the two come from.
    pub source: HitSource,
}

/// Where hits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitSource {
    /// Every expert has a slot.
    Resident,
    /// As if experts were picked evenly.
    Chance,
    /// What runs asked for.
    Traces,
}

impl HitSource {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HitSource::Resident => "resident",
            HitSource::Chance => "chance",
            HitSource::Traces => "traces",
        }
    }
}

/// A step of `rows` rows that picks `ranks` of a layer's `experts` for each, all equally often:
/// `experts (1 - (1 - ranks / experts)^rows)` different ones, of which the share of all experts that have slots is there.
#[must_use]
pub fn by_chance(rows: f64, (ranks, experts): (u32, u32), (slots, all): (u32, u32)) -> Traffic {
    let of_layer = f64::from(experts.max(1));
    let missed = (1.0 - f64::from(ranks) / of_layer).max(0.0).powf(rows);
    let (hit_rate, source) = if slots >= all {
        (1.0, HitSource::Resident)
    } else {
        (f64::from(slots) / f64::from(all), HitSource::Chance)
    };
    Traffic { experts: of_layer * (1.0 - missed), hit_rate, source }
}

/// What the prompts, in chunks of so many rows, and the single tokens of such runs ask for, each run from empty slots on.
/// None for what the traces have none of.
#[must_use]
pub fn from_traces(
    policy: CachePolicy,
    slots: u32,
    traces: &[RoutingTrace],
    chunk: u32,
) -> (Option<Traffic>, Option<Traffic>) {
    let (mut chunks, mut tokens) = (Part::default(), Part::default());
    for trace in traces {
        let parts = simulate_parts(policy, slots, &Requests::of(&trace.in_chunks(chunk)));
        for (sum, part) in [(&mut chunks, parts.chunks), (&mut tokens, parts.tokens)] {
            sum.requests += part.requests;
            sum.outcome.hits += part.outcome.hits;
            sum.outcome.misses += part.outcome.misses;
        }
    }
    (traffic(chunks), traffic(tokens))
}

/// Tokens of a chunk on average, where the prompts of such runs are cut into chunks of so many rows: short prompts do not
/// fill one. It is not rounded, so that what all chunks read divided by it is divided by all tokens. None without prompts.
#[must_use]
pub fn rows_of_chunks(traces: &[RoutingTrace], chunk: u32) -> Option<f64> {
    let (mut rows, mut chunks) = (0, 0);
    for trace in traces.iter().map(|trace| trace.in_chunks(chunk)) {
        rows += trace.chunks().sum::<u64>();
        chunks += trace.chunks().count() as u64;
    }
    (chunks > 0).then(|| rows as f64 / chunks as f64)
}

fn traffic(part: Part) -> Option<Traffic> {
    let hit_rate = part.outcome.hit_rate()?;
    let experts = (part.outcome.hits + part.outcome.misses) as f64 / part.requests as f64;
    Some(Traffic { experts, hit_rate, source: HitSource::Traces })
}
