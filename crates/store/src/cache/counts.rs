//! How often experts are asked for, where what is long ago counts less. It knows experts by number and time by the number
//! of requests.

/// Counts of requests; one that is `half_life` steps old counts one half. A step is one pass through all layers.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    half_life: f64,
    /// Requests a step: one for each layer.
    layers: f64,
    /// Requests so far.
    requests: u64,
    /// For each expert t / half-life + log2(its count at step t), which does not change as time goes by.
    scores: Vec<f64>,
}

impl Counts {
    /// Of nothing, for experts of so many layers.
    pub(super) fn new(half_life: u32, layers: u32, experts: u32) -> Self {
        Self {
            half_life: f64::from(half_life),
            layers: f64::from(layers.max(1)),
            requests: 0,
            scores: vec![f64::NEG_INFINITY; experts as usize],
        }
    }

    /// Steps so far, the last one perhaps in part.
    pub(super) fn steps(&self) -> f64 {
        self.requests as f64 / self.layers
    }

    /// Steps so far in half-lives.
    fn age(&self) -> f64 {
        self.steps() / self.half_life
    }

    /// These experts are asked for in one request.
    pub(super) fn request(&mut self, experts: &[u32]) {
        self.requests += 1;
        let age = self.age();
        for &expert in experts {
            let score = &mut self.scores[expert as usize];
            *score = age + (1.0 + (*score - age).exp2()).log2();
        }
    }

    /// Requests of an expert, as they count now.
    #[cfg(test)]
    pub(super) fn count(&self, expert: u32) -> f64 {
        (self.scores[expert as usize] - self.age()).exp2()
    }

    /// The logarithm to base 2 of a count as it was at the beginning of time, which gives all experts the same order as their
    /// counts at any time; negative infinity for one that was never asked for.
    pub(super) fn score(&self, expert: u32) -> f64 {
        self.scores[expert as usize]
    }

    /// Gives an expert a count as if it had been asked for that often just now.
    pub(super) fn set(&mut self, expert: u32, count: f64) {
        self.scores[expert as usize] = self.age() + count.log2();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_half_after_a_half_life() {
        let mut counts = Counts::new(4, 2, 3);
        for step in 0..40 {
            counts.request(if step == 0 { &[0, 1] } else { &[1] });
            counts.request(&[2]);
        }
        assert_eq!(counts.steps(), 40.0);
        let age = (80.0 - 1.0) / 2.0;
        assert!((counts.count(0) / (-age / 4.0_f64).exp2() - 1.0).abs() < 1e-9);
        assert!(counts.score(2) > counts.score(1) && counts.score(1) > counts.score(0));
    }

    #[test]
    fn counts_can_be_known_before() {
        let mut known = Counts::new(8, 1, 2);
        known.set(0, 2.5);
        assert!((known.count(0) - 2.5).abs() < 1e-12);
        assert_eq!((known.count(1), known.score(1)), (0.0, f64::NEG_INFINITY));
        for _ in 0..8 {
            known.request(&[1]);
        }
        assert!((known.count(0) - 1.25).abs() < 1e-12, "half of it after a half-life");
    }
}
