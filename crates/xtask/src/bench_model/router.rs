//! How popular each expert is. A router with random rows chooses all experts about equally often; real ones do
//! not, and how well a cache works depends on it. The correction bias of a router sets it without touching
//! the scores.
//!
//! The law: expert of rank r (from 1, in random order) is chosen by a share `p(r) = min(1, c * r^-skew)` of the
//! tokens, with c so that all shares add up to the number of choices. An expert is chosen when its score plus its
//! bias is among the highest, that is above some threshold T. Scores are `sigmoid(z)` with z nearly
//! N(0, deviation), because inputs are normed; so `bias(r) = T - Q(1 - p(r))`, Q the quantile of the scores.
//! T cancels out; it is set so that the biases have mean zero, and they stay within (-1, 1), the range
//! of scores. The share is an average over inputs: tokens of one text resemble each other and differ from it.

use super::random::Random;

/// How many scores stand for their distribution.
const SAMPLES: usize = 65_536;

/// Biases under which popularity follows the law above; `deviation` is that of the router's logits.
pub(crate) fn skewed_biases(
    experts: usize,
    top: usize,
    skew: f64,
    deviation: f32,
    random: &mut Random,
) -> Vec<f32> {
    let mut scores: Vec<f32> = (0..SAMPLES).map(|_| sigmoid(random.normal() * deviation)).collect();
    scores.sort_unstable_by(f32::total_cmp);
    let quantile = |share: f64| scores[((SAMPLES as f64 * share) as usize).min(SAMPLES - 1)];
    let by_rank: Vec<f32> = shares(experts, top, skew).iter().map(|share| -quantile(1.0 - share)).collect();
    let mean = by_rank.iter().sum::<f32>() / experts as f32;
    let mut biases = vec![0.0; experts];
    for (expert, bias) in random.permutation(experts).into_iter().zip(by_rank) {
        biases[expert] = bias - mean;
    }
    biases
}

/// p(1), p(2), ...: c is found by halving an interval that contains it.
fn shares(experts: usize, top: usize, skew: f64) -> Vec<f64> {
    let with =
        |c: f64| (1..=experts).map(|rank| (c * (rank as f64).powf(-skew)).min(1.0)).collect::<Vec<f64>>();
    let (mut low, mut high) = (0.0, (experts as f64).powf(skew) + 1.0);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if with(middle).iter().sum::<f64>() < top as f64 { low = middle } else { high = middle }
    }
    with(high)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_with_the_rank_and_add_up_to_the_choices() {
        let shares = shares(896, 16, 1.0);
        assert!((shares.iter().sum::<f64>() - 16.0).abs() < 1e-6);
        assert!((shares[99] / shares[199] - 2.0).abs() < 1e-9, "half as popular at twice the rank");
        assert!(shares.iter().all(|share| *share <= 1.0));
    }

    #[test]
    fn chosen_experts_follow_the_law() {
        const EXPERTS: usize = 128;
        const TOP: usize = 8;
        const TOKENS: usize = 4000;
        let mut random = Random::new(5);
        let biases = skewed_biases(EXPERTS, TOP, 0.8, 1.3, &mut random);
        assert!(biases.iter().all(|bias| bias.abs() < 1.0));
        let mut chosen = vec![0_usize; EXPERTS];
        for _ in 0..TOKENS {
            let mut scores: Vec<(f32, usize)> = biases
                .iter()
                .enumerate()
                .map(|(expert, bias)| (sigmoid(random.normal() * 1.3) + bias, expert))
                .collect();
            scores.sort_unstable_by(|left, right| right.0.total_cmp(&left.0));
            scores[..TOP].iter().for_each(|(_, expert)| chosen[*expert] += 1);
        }
        chosen.sort_unstable_by(|left, right| right.cmp(left));
        let expected = shares(EXPERTS, TOP, 0.8);
        for ranks in [0..4, 4..16, 16..64, 64..128] {
            let found = chosen[ranks.clone()].iter().sum::<usize>() as f64 / TOKENS as f64;
            let law = expected[ranks.clone()].iter().sum::<f64>();
            assert!((found / law - 1.0).abs() < 0.1, "ranks {ranks:?}: found {found:.3}, law {law:.3}");
        }
    }
}
