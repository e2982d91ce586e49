//! What a comparison with golden results saw, kind by kind, and whether it is within its limits. Knows no model.
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The worst of one kind of tensor.
#[derive(Clone, Debug, Default, Serialize)]
struct Worst {
    compared: u64,
    /// Largest |got - want| / |want| in L2 of one tensor or row.
    relative: f64,
    /// Largest difference of one number.
    absolute: f64,
    /// Where `relative` was seen.
    at: String,
}

/// Choices that are the same or not.
#[derive(Clone, Debug, Default, Serialize)]
struct Choices {
    compared: u64,
    different: u64,
    /// The first that differs.
    first: Option<String>,
}

impl Choices {
    fn note(&mut self, difference: Option<String>) {
        self.compared += 1;
        if let Some(place) = difference {
            self.different += 1;
            self.first.get_or_insert(place);
        }
    }
}

/// Everything that was compared.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    limit: f64,
    /// Whether the limit holds for all kinds, and choices must be the same; else for `logits` only.
    strict: bool,
    kinds: BTreeMap<&'static str, Worst>,
    picks: Choices,
    greedy: Choices,
}

/// The kind that is always held to the limit.
const LOGITS: &str = "logits";

impl Comparison {
    /// The limits of `--activations exact`: two float32 engines are within 1e-6 of each other.
    pub(crate) fn exact() -> Self {
        Comparison {
            limit: 1e-5,
            strict: true,
            kinds: BTreeMap::new(),
            picks: Choices::default(),
            greedy: Choices::default(),
        }
    }

    /// The limits of `--activations int15`, whose rounding may turn a close choice.
    pub(crate) fn int15() -> Self {
        Comparison { limit: 5e-4, strict: false, ..Comparison::exact() }
    }

    /// Compares numbers, of which there are as many on both sides.
    pub(crate) fn numbers(&mut self, kind: &'static str, place: &str, got: &[f32], want: &[f32]) {
        let (relative, absolute) = distance(got, want);
        let worst = self.kinds.entry(kind).or_default();
        worst.compared += 1;
        if worst.compared == 1 || exceeds(relative, worst.relative) {
            worst.relative = relative;
            place.clone_into(&mut worst.at);
        }
        if exceeds(absolute, worst.absolute) {
            worst.absolute = absolute;
        }
    }

    /// Notes whether a router chose the same experts.
    pub(crate) fn picks(&mut self, place: &str, same: bool) {
        self.picks.note((!same).then(|| place.to_owned()));
    }

    /// Notes whether a prompt is continued alike, or the first token that is not.
    pub(crate) fn greedy(&mut self, prompt: &str, different: Option<usize>) {
        self.greedy.note(different.map(|token| format!("{prompt} token {token}")));
    }

    /// Within the limits; a comparison without logits proves nothing.
    pub(crate) fn passed(&self) -> bool {
        let within = self
            .kinds
            .iter()
            .all(|(kind, worst)| self.limit_of(kind).is_none_or(|limit| !exceeds(worst.relative, limit)));
        let same = self.picks.different == 0 && self.greedy.different == 0;
        self.kinds.contains_key(LOGITS) && within && (same || !self.strict)
    }

    fn limit_of(&self, kind: &str) -> Option<f64> {
        (self.strict || kind == LOGITS).then_some(self.limit)
    }

    /// As an object.
    pub(crate) fn json(&self) -> Value {
        let kind = |(kind, worst): (&&'static str, &Worst)| {
            let mut value = json!(worst);
            value["limit"] = json!(self.limit_of(kind));
            ((*kind).to_owned(), value)
        };
        json!({
            "passed": self.passed(),
            "tensors": self.kinds.iter().map(kind).collect::<serde_json::Map<_, _>>(),
            "router_picks": self.picks,
            "greedy_prompts": self.greedy,
        })
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<26} {:>8} {:>11} {:>10} {:>8}  worst at\n",
            "tensors", "compared", "relative L2", "absolute", "limit"
        );
        // Writing to a string cannot fail.
        for (kind, Worst { compared, relative, absolute, at }) in &self.kinds {
            let limit = self.limit_of(kind).map_or("-".to_owned(), |limit| format!("{limit:.0e}"));
            let _ = writeln!(
                text,
                "{kind:<26} {compared:>8} {relative:>11.2e} {absolute:>10.2e} {limit:>8}  {at}"
            );
        }
        let choices = [("router picks", &self.picks), ("greedy prompts", &self.greedy)];
        for (what, Choices { compared, different, first }) in choices {
            let first = first.as_ref().map_or(String::new(), |place| format!(", first: {place}"));
            let _ = writeln!(text, "{what}: {} of {compared} are the same{first}", compared - different);
        }
        let _ = writeln!(text, "{}", if self.passed() { "passed" } else { "FAILED: beyond the limits" });
        text
    }
}

/// Whether `a` is above `b`; NaN is above every number.
fn exceeds(a: f64, b: f64) -> bool {
    a > b || (a.is_nan() && !b.is_nan())
}

/// Relative L2 and largest absolute difference.
fn distance(got: &[f32], want: &[f32]) -> (f64, f64) {
    let (mut square, mut norm, mut absolute) = (0.0, 0.0, 0.0);
    for (got, want) in got.iter().zip(want).map(|(g, w)| (f64::from(*g), f64::from(*w))) {
        let difference = (got - want).abs();
        square += difference * difference;
        norm += want * want;
        if exceeds(difference, absolute) {
            absolute = difference;
        }
    }
    let relative = if square == 0.0 { 0.0 } else { (square / norm).sqrt() };
    (relative, absolute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_limit_decides() {
        let mut loose = Comparison::int15();
        loose.numbers("logits", "a", &[1.0], &[1.0]);
        loose.numbers("logits, router gap < 1e-4", "a", &[2.0], &[1.0]);
        loose.numbers("hidden", "a", &[2.0], &[1.0]);
        loose.picks("a", false);
        assert!(loose.passed());
        loose.numbers("logits", "b", &[1.001], &[1.0]);
        assert!(!loose.passed());
        let mut strict = Comparison::exact();
        strict.numbers("logits", "a", &[1.0], &[1.0]);
        assert!(strict.passed());
        strict.numbers("hidden", "a", &[1.001], &[1.0]);
        assert!(!strict.passed());
    }

    #[test]
    fn nothing_compared_and_numbers_that_are_none_do_not_pass() {
        assert!(!Comparison::exact().passed());
        let mut comparison = Comparison::exact();
        comparison.numbers("logits", "a", &[f32::NAN], &[1.0]);
        comparison.numbers("logits", "a", &[1.0], &[1.0]);
        assert!(!comparison.passed());
        let mut comparison = Comparison::int15();
        comparison.numbers("logits", "a", &[1.0], &[f32::NAN]);
        assert!(!comparison.passed());
    }

    #[test]
    fn distances_are_relative_to_what_is_wanted() {
        let (relative, absolute) = distance(&[3.0, 4.5], &[3.0, 4.0]);
        assert!((relative - 0.1).abs() < 1e-12 && absolute == 0.5);
        assert!(distance(&[1.0], &[0.0]).0.is_infinite());
    }
}
