//! Two records side by side: for every row whether the second is faster or slower, or whether no difference is seen. A
//! difference is seen where chance alone would set the repeats of one so far apart from those of the other in less than
//! one case of a hundred (rank sum test of Mann and Whitney, both directions), and where the medians differ by 2 %.
use super::record::{Record, Row, VERSION};
use super::table::paragraph;
use crate::errors::Failure;
use crate::probe::samples::duration;
use crate::report::counted;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Chance that is not taken for a difference.
const CHANCE: f64 = 0.01;
/// Difference of medians that is none.
const ALIKE: f64 = 0.02;
/// Settings that say where results come from and how sure they are, not what was measured.
const NOT_COMPARED: [&str; 3] = ["model", "version", "repeats"];

/// What is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Faster,
    Slower,
    /// No difference seen.
    Same,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "no difference seen",
        }
    }
}

/// A row that both have.
#[derive(Clone, Debug, Serialize)]
struct Pair {
    part: String,
    name: String,
    /// Medians.
    a: f64,
    b: f64,
    /// b by a.
    ratio: f64,
    /// Of so large a distance without a cause.
    chance: f64,
    verdict: Verdict,
    disturbed: bool,
}

/// A record from a file.
///
/// # Errors
/// What cannot be read, and what is no record of this version.
pub(crate) fn read(path: &Path) -> Result<Record, Failure> {
    let bytes = fs::read(path).map_err(Failure::io("reading", path))?;
    let refused = |why: String| {
        let place = path.display();
        Failure::Usage(format!("--compare {place}: {why}; give a file that `colibri bench --json` printed"))
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
    match value.get("bench").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(refused(format!("its format is version {version}, expected {VERSION}")));
        }
        None => return Err(refused("the field `bench` is missing".into())),
    }
    serde_json::from_value(value).map_err(|error| refused(error.to_string()))
}

/// The comparison: its text, its JSON, and how many rows are slower.
pub(crate) struct Comparison {
    pub(crate) text: String,
    pub(crate) json: Value,
    pub(crate) slower: usize,
}

/// Compares b with a.
///
/// # Errors
/// Records of different machines, models or settings, unless `anyway`; records without a common row.
pub(crate) fn compare(a: &Record, b: &Record, anyway: bool) -> Result<Comparison, Failure> {
    let differences = differences(a, b);
    if !(differences.is_empty() || anyway) {
        return Err(Failure::Usage(format!(
            "--compare: the two differ in more than the program: {}; --anyway compares them",
            differences.join("; ")
        )));
    }
    let mut theirs: BTreeMap<(&str, &str), &Row> = b.rows.iter().map(|row| (key(row), row)).collect();
    let mut pairs = Vec::new();
    let mut only_a = Vec::new();
    for row in &a.rows {
        match theirs.remove(&key(row)) {
            Some(other) => pairs.push(pair(row, other)),
            None => only_a.push(row.name.as_str()),
        }
    }
    let only_b: Vec<&str> =
        b.rows.iter().filter(|row| theirs.contains_key(&key(row))).map(|row| row.name.as_str()).collect();
    if pairs.is_empty() {
        let asked = [&a.what, &b.what].map(|what| format!("`bench {what}`"));
        return Err(Failure::Usage(format!(
            "--compare: the two have no row in common: they are {} and {}",
            asked[0], asked[1]
        )));
    }
    let count = |verdict| pairs.iter().filter(|pair| pair.verdict == verdict).count();
    let (faster, slower) = (count(Verdict::Faster), count(Verdict::Slower));
    let mut text = String::new();
    for difference in &differences {
        text.push_str(&paragraph(&format!("note: different: {difference}")));
    }
    text.push_str(&table(&pairs));
    for (which, names) in [("the first", &only_a), ("the second", &only_b)] {
        for name in names {
            text.push_str(&paragraph(&format!("note: only {which} has: {name}")));
        }
    }
    let _ = writeln!(text, "{}: {faster} faster, {slower} slower", counted(pairs.len(), "row"));
    let json = json!({
        "compare": VERSION,
        "rows": pairs,
        "faster": faster,
        "slower": slower,
        "only_a": only_a,
        "only_b": only_b,
        "differences": differences,
    });
    Ok(Comparison { text, json, slower })
}

fn key(row: &Row) -> (&str, &str) {
    (&row.part, &row.name)
}

fn pair(a: &Row, b: &Row) -> Pair {
    let (one, other) = (&a.seconds, &b.seconds);
    let (ratio, chance) = (other.median / one.median, chance(&one.samples, &other.samples));
    let verdict = match () {
        () if chance >= CHANCE => Verdict::Same,
        () if ratio <= 1.0 - ALIKE => Verdict::Faster,
        () if ratio >= 1.0 + ALIKE => Verdict::Slower,
        () => Verdict::Same,
    };
    Pair {
        part: a.part.clone(),
        name: a.name.clone(),
        a: one.median,
        b: other.median,
        ratio,
        chance,
        verdict,
        disturbed: one.disturbed || other.disturbed,
    }
}

fn table(pairs: &[Pair]) -> String {
    let mut text = String::new();
    let mut part = "";
    for pair in pairs {
        if pair.part != part {
            part = &pair.part;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{part:<35} {:>9} {:>9} {:>5} verdict", "first", "second", "by");
        }
        let _ = writeln!(
            text,
            "{:<35} {:>9} {:>9} {:>5.2} {}{}",
            pair.name,
            duration(pair.a),
            duration(pair.b),
            pair.ratio,
            pair.verdict.words(),
            if pair.disturbed { "!" } else { "" }
        );
    }
    text
}

/// What makes two records no measurements of the same thing, in words.
fn differences(a: &Record, b: &Record) -> Vec<String> {
    let fields = |record: &Record| {
        let mut all = Map::new();
        let mut add = |name: &str, value: Value| {
            for (key, value) in value.as_object().into_iter().flatten() {
                all.insert(format!("{name} {}", key.replace('_', "-")), value.clone());
            }
        };
        add("machine", json!(record.machine));
        let mut model = json!(record.model);
        // The same model may lie elsewhere.
        model.as_object_mut().map(|model| model.remove("places"));
        add("model", model);
        let mut settings = record.settings.clone();
        settings.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
        add("setting", Value::Object(settings));
        all
    };
    let (ours, theirs) = (fields(a), fields(b));
    let mut names: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), ToString::to_string);
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    differ.map(|name| format!("{name} {} and {}", shown(ours.get(name)), shown(theirs.get(name)))).collect()
}

/// The chance that samples of one and the same thing lie at least so far apart: two-sided rank sum test, exact for few
/// samples, else by the normal approximation. Ties count half.
fn chance(a: &[f64], b: &[f64]) -> f64 {
    let below =
        |x: &f64| b.iter().map(|y| if x < y { 1.0 } else { f64::from(u8::from(x == y)) / 2.0 }).sum::<f64>();
    let (m, n) = (a.len(), b.len());
    let pairs = (m * n) as f64;
    let sum: f64 = a.iter().map(below).sum();
    // The smaller of the two directions, rounded towards the middle.
    let extreme = sum.min(pairs - sum).ceil();
    let one_sided = if m * n <= 400 { exact(m, n, extreme as usize) } else { approximate(m, n, extreme) };
    (2.0 * one_sided).min(1.0)
}

/// The share of all orders of m and n things in which at most `limit` pairs are in the one direction.
fn exact(m: usize, n: usize, limit: usize) -> f64 {
    // counts[j][u]: orders of the first i and of j with u such pairs; the last of them all is one of either.
    let most = m * n;
    let mut counts = vec![vec![0.0_f64; most + 1]; n + 1];
    for row in &mut counts {
        row[0] = 1.0;
    }
    for _ in 0..m {
        let mut next = vec![vec![0.0_f64; most + 1]; n + 1];
        for j in 0..=n {
            for u in 0..=most {
                let last_is_a = if u >= j { counts[j][u - j] } else { 0.0 };
                let last_is_b = if j > 0 { next[j - 1][u] } else { 0.0 };
                next[j][u] = last_is_a + last_is_b;
            }
        }
        counts = next;
    }
    let all: f64 = counts[n].iter().sum();
    counts[n][..=limit.min(most)].iter().sum::<f64>() / all
}

fn approximate(m: usize, n: usize, limit: f64) -> f64 {
    let (m, n) = (m as f64, n as f64);
    let deviation = (m * n * (m + n + 1.0) / 12.0).sqrt();
    let z = (m * n / 2.0 - limit - 0.5).max(0.0) / deviation;
    // The tail of the normal distribution: Abramowitz and Stegun 26.2.17, error below 1e-7.
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum
}

#[cfg(test)]
mod tests;
