//! The router: which experts, with what weights.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use super::memory::Memory;
use super::{Kernel, with_fma};
use crate::lanes::sum;
use crate::math::sigmoid;
use crate::op::Routing;
use crate::tensor::{Ids, NONE, Tensor};
use std::cmp::Ordering;

pub(super) fn route(
    memory: &mut Memory,
    picks: Ids,
    weights: Tensor,
    logits: Tensor,
    bias: Option<Tensor>,
    routing: Routing,
) {
    let (experts, ranks) = (logits.cols as usize, weights.cols as usize);
    let values = memory.load(logits);
    let bias = bias.map(|b| memory.load(b));
    let (mut ids, mut shares) = (Vec::new(), Vec::new());
    let scores = with_fma(Scores(&values));
    for (row, scores) in values.chunks_exact(experts).zip(scores.chunks_exact(experts)) {
        let (row_ids, row_shares) = route_row(row, scores, bias.as_deref(), ranks, routing);
        ids.extend(row_ids);
        shares.extend(row_shares);
    }
    memory.store(picks.0, &ids);
    memory.store(weights, &shares);
}

/// The sigmoid of every logit.
struct Scores<'a>(&'a [f32]);

impl Kernel for Scores<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run(self) -> Vec<f32> {
        let mut scores = self.0.to_vec();
        for score in &mut scores {
            *score = sigmoid(*score);
        }
        scores
    }
}

fn route_row(
    logits: &[f32],
    scores: &[f32],
    bias: Option<&[f32]>,
    ranks: usize,
    routing: Routing,
) -> (Vec<u32>, Vec<f32>) {
    let choice: Vec<f32> = match bias {
        Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
        None => scores.to_vec(),
    };
    if !logits.iter().chain(&choice).all(|c| c.is_finite()) {
        return (vec![NONE; ranks], vec![f32::NAN; ranks]);
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| descending(choice[a as usize], choice[b as usize]).then(a.cmp(&b)));
    order.truncate(ranks);
    let mut shares: Vec<f32> = order.iter().map(|&e| scores[e as usize]).collect();
    if routing.renormalize {
        let total = sum(&shares) + 1e-20;
        for share in &mut shares {
            *share /= total;
        }
    }
    for share in &mut shares {
        *share *= routing.scale;
    }
    drop_tail(&mut order, &mut shares, routing.keep);
    (order, shares)
}

/// Larger first; both are finite, and the two zeros are equal.
fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// Keeps the fewest of the heaviest picks, at least one, that hold the share `keep` of the row's weight.
fn drop_tail(picks: &mut [u32], shares: &mut [f32], keep: f32) {
    if keep >= 1.0 {
        return;
    }
    let enough = keep * sum(shares);
    let mut by_weight: Vec<usize> = (0..shares.len()).collect();
    by_weight.sort_by(|&a, &b| descending(shares[a], shares[b]).then(a.cmp(&b)));
    let mut held = shares[by_weight[0]];
    for rank in by_weight.into_iter().skip(1) {
        if held >= enough {
            picks[rank] = NONE;
            shares[rank] = 0.0;
        } else {
            held += shares[rank];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route_row(
        logits: &[f32],
        bias: Option<&[f32]>,
        ranks: usize,
        routing: Routing,
    ) -> (Vec<u32>, Vec<f32>) {
        super::route_row(logits, &with_fma(Scores(logits)), bias, ranks, routing)
    }

    const ALL: Routing = Routing { renormalize: true, scale: 1.0, keep: 1.0 };

    #[test]
    fn ties_go_to_the_lower_id_and_weights_are_unbiased() {
        let (ids, weights) = route_row(&[0.0, 0.0, 0.0, 0.0], Some(&[0.0, 0.0, 0.0, 0.25]), 3, ALL);
        assert_eq!(ids, [3, 0, 1]);
        assert_eq!(weights, [1.0 / 3.0; 3]);
    }

    #[test]
    fn a_row_that_is_not_finite_picks_none() {
        let (picks, weights) = route_row(&[0.0, f32::NAN], None, 1, ALL);
        assert!(picks == [NONE] && weights[0].is_nan());
    }

    #[test]
    fn the_tail_past_the_share_is_dropped() {
        // sigmoid(30) = 1, sigmoid(0) = 0.5: shares 0.5, 0.25, 0.25.
        let (ids, weights) = route_row(&[0.0, 30.0, 0.0], None, 3, Routing { keep: 0.7, ..ALL });
        assert_eq!((ids, weights), (vec![1, 0, NONE], vec![0.5, 0.25, 0.0]));
        let (ids, _) = route_row(&[0.0, 30.0, 0.0], None, 3, Routing { keep: 0.5, ..ALL });
        assert_eq!(ids, [1, NONE, NONE]);
    }
}
