//! What a comparison with golden results saw, kind by kind, and whether it is within its limits. Knows no model.
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Whether the limit holds for all kinds, and all choices must be the same; else for `logits` and `argmax` only.
    strict: bool,
    kinds: BTreeMap<&'static str, Worst>,
    picks: Choices,
    argmax: Choices,
    greedy: Choices,
    /// Golden tensors that nothing here is compared with.
    unused: BTreeSet<String>,
}

/// The kind that is always held to the limit.
const LOGITS: &str = "logits";

/// All kinds of numbers that golden results may hold.
const KINDS: [&str; 11] = [
    LOGITS,
    "attention_input",
    "attention_output",
    "mlp_input",
    "mlp_output",
    "hidden",
    "router_weights",
    "kda_state",
    "kda_conv",
    "mla_latent",
    "mla_krope",
];

impl Comparison {
    /// The limits of `--activations exact`: two float32 engines are within 1e-6 of each other.
    pub(crate) fn exact() -> Self {
        Comparison {
            limit: 1e-5,
            strict: true,
            kinds: BTreeMap::new(),
            picks: Choices::default(),
            argmax: Choices::default(),
            greedy: Choices::default(),
            unused: BTreeSet::new(),
        }
    }

    /// The limits of `--activations int15`, whose rounding may turn a close choice.
    pub(crate) fn int15() -> Self {
        Comparison { limit: 5e-4, strict: false, ..Comparison::exact() }
    }

    /// Compares numbers, of which there are as many on both sides.
    pub(crate) fn numbers(&mut self, kind: &'static str, place: &str, got: &[f32], want: &[f32]) {
        debug_assert!(KINDS.contains(&kind), "{kind}");
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

    /// Notes whether the likeliest token is the same.
    pub(crate) fn argmax(&mut self, place: &str, got: u32, want: u32) {
        self.argmax.note((got != want).then(|| format!("{place}: token {got} instead of {want}")));
    }

    /// Notes whether a prompt is continued alike, or the first token that is not.
    pub(crate) fn greedy(&mut self, prompt: &str, different: Option<usize>) {
        self.greedy.note(different.map(|token| format!("{prompt} token {token}")));
    }

    /// Notes golden tensors that nothing is compared with.
    pub(crate) fn unused(&mut self, names: impl IntoIterator<Item = String>) {
        self.unused.extend(names);
    }

    /// Something with a limit was compared, and all of it is within.
    pub(crate) fn passed(&self) -> bool {
        let limited = |kind: &&&str| self.limit_of(kind).is_some();
        let within = |kind: &&str| !exceeds(self.kinds[*kind].relative, self.limit);
        let decisive = self.kinds.keys().filter(limited).count() as u64
            + self
                .choices()
                .iter()
                .filter(|(_, _, decides)| *decides)
                .map(|(_, c, _)| c.compared)
                .sum::<u64>();
        decisive > 0
            && self.kinds.keys().filter(limited).all(within)
            && self.choices().iter().all(|(_, choices, decides)| choices.different == 0 || !decides)
    }

    fn limit_of(&self, kind: &str) -> Option<f64> {
        (self.strict || kind == LOGITS).then_some(self.limit)
    }

    /// Choices by name, and whether they must be the same.
    fn choices(&self) -> [(&'static str, &Choices, bool); 3] {
        [
            ("router_picks", &self.picks, self.strict),
            ("argmax", &self.argmax, true),
            ("greedy_prompts", &self.greedy, self.strict),
        ]
    }

    /// Kinds that no golden file held.
    fn not_compared(&self) -> Vec<&'static str> {
        let kinds = KINDS.into_iter().filter(|kind| !self.kinds.contains_key(kind));
        let choices = self.choices().into_iter().filter(|(_, choices, _)| choices.compared == 0);
        kinds.chain(choices.map(|(name, ..)| name)).collect()
    }

    /// As an object.
    pub(crate) fn json(&self) -> Value {
        let kind = |(kind, worst): (&&'static str, &Worst)| {
            let mut value = json!(worst);
            value["limit"] = json!(self.limit_of(kind));
            ((*kind).to_owned(), value)
        };
        let mut all = json!({
            "passed": self.passed(),
            "tensors": self.kinds.iter().map(kind).collect::<serde_json::Map<_, _>>(),
            "not_compared": self.not_compared(),
            "unused_tensors": self.unused,
        });
        for (name, choices, _) in self.choices() {
            all[name] = json!(choices);
        }
        all
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<16} {:>8} {:>11} {:>10} {:>8}  worst at\n",
            "tensors", "compared", "relative L2", "absolute", "limit"
        );
        // Writing to a string cannot fail.
        for (kind, Worst { compared, relative, absolute, at }) in &self.kinds {
            let limit = self.limit_of(kind).map_or("-".to_owned(), |limit| format!("{limit:.0e}"));
            let _ = writeln!(
                text,
                "{kind:<16} {compared:>8} {relative:>11.2e} {absolute:>10.2e} {limit:>8}  {at}"
            );
        }
        for (name, Choices { compared, different, first }, decides) in self.choices() {
            let first = first.as_ref().map_or(String::new(), |place| format!(", first: {place}"));
            let free = if decides { "" } else { " (they may differ)" };
            let name = name.replace('_', " ");
            let _ =
                writeln!(text, "{name}: {} of {compared} are the same{first}{free}", compared - different);
        }
        let listed = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let unused: Vec<&str> = self.unused.iter().map(String::as_str).collect();
        let _ = writeln!(text, "not compared, for want of golden results: {}", listed(&self.not_compared()));
        let _ = writeln!(text, "golden tensors that nothing is compared with: {}", listed(&unused));
        let _ = writeln!(text, "{}", self.verdict());
        text
    }

    fn verdict(&self) -> &'static str {
        let nothing = self.choices().iter().all(|(_, choices, _)| choices.compared == 0);
        match self.passed() {
            true => "passed",
            false if self.kinds.is_empty() && nothing => "FAILED: nothing was compared",
            false => "FAILED: beyond the limits, or nothing that has a limit was compared",
        }
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
        loose.numbers("hidden", "a", &[2.0], &[1.0]);
        loose.picks("a", false);
        loose.greedy("a", Some(3));
        assert!(!loose.passed(), "nothing that has a limit was compared");
        loose.numbers("logits", "a", &[1.0], &[1.0]);
        loose.argmax("a", 5, 5);
        assert!(loose.passed());
        let mut turned = loose.clone();
        turned.argmax("b", 5, 6);
        assert!(!turned.passed() && turned.table().contains("b: token 5 instead of 6"), "{}", turned.table());
        loose.numbers("logits", "b", &[1.001], &[1.0]);
        assert!(!loose.passed());
        for different in [
            |c: &mut Comparison| c.numbers("hidden", "a", &[1.001], &[1.0]),
            |c: &mut Comparison| c.picks("a", false),
            |c: &mut Comparison| c.argmax("a", 1, 2),
            |c: &mut Comparison| c.greedy("a", Some(0)),
        ] {
            let mut strict = Comparison::exact();
            strict.numbers("logits", "a", &[1.0], &[1.0]);
            assert!(strict.passed());
            different(&mut strict);
            assert!(!strict.passed());
        }
    }

    #[test]
    fn what_was_not_compared_is_listed() {
        let mut comparison = Comparison::exact();
        assert!(comparison.table().contains("FAILED: nothing was compared"));
        for kind in KINDS.into_iter().filter(|kind| *kind != "kda_conv") {
            comparison.numbers(kind, "a", &[1.0], &[1.0]);
        }
        comparison.argmax("a", 1, 1);
        comparison.greedy("a", None);
        comparison.unused(["final_norm_out".to_owned()]);
        let json = comparison.json();
        assert_eq!(json["not_compared"], json!(["kda_conv", "router_picks"]));
        assert_eq!(json["unused_tensors"], json!(["final_norm_out"]));
        let table = comparison.table();
        assert!(table.contains("kda_conv, router_picks\n") && table.contains("final_norm_out\n"), "{table}");
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
