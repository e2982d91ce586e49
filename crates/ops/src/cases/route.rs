//! Cases of `route`: ties, biases, every count of picks, dropped tails.
//!
//! Picks are compared exactly even under a tolerance. So the scores of a case are either equal or far apart.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::math::sigmoid;
use crate::op::{Op, Routing};
use crate::tensor::Tensor;

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let mut list = Vec::new();
    let counts: &[u32] =
        if size == Size::Small { &[1, 2, 17] } else { &[1, 2, 3, 8, 16, 17, 64, 65, 384, 896] };
    for &experts in counts {
        list.push(Recipe::new(format!("route over {experts}"), move |case| routes(case, experts)));
        list.push(Recipe::new(format!("route over {experts} with ties"), move |case| ties(case, experts)));
    }
    list.push(Recipe::new("route with extreme logits".to_owned(), extreme));
    list
}

fn push(case: &mut Case, logits: Tensor, bias: Option<Tensor>, k: u32, routing: Routing) {
    let (picks, weights) = (case.output_ids(logits.rows, k), case.output(logits.rows, k));
    case.push(Op::Route { picks, weights, logits, bias, routing });
}

fn routings() -> [Routing; 5] {
    let all = Routing { renormalize: true, scale: 1.0, keep: 1.0 };
    [
        all,
        Routing { renormalize: false, scale: 2.5, ..all },
        Routing { scale: 2.827, keep: 0.9, ..all },
        Routing { renormalize: false, keep: 0.45, ..all },
        Routing { keep: 0.0, ..all },
    ]
}

fn routes(case: &mut Case, experts: u32) {
    for tokens in [1, 3, 32] {
        let logits = case.room(tokens, experts);
        for t in 0..tokens {
            let row = spread(case, experts);
            case.set(logits.rows_at(t, 1), &row);
        }
        for (i, k) in [1, 2, 4, 8, 16].into_iter().filter(|k| *k <= experts).enumerate() {
            push(case, logits, None, k, routings()[i]);
        }
        // One bias serves one row: with it the choice is another permutation.
        let row = logits.rows_at(tokens - 1, 1);
        let row_logits: Vec<f32> = case.words(row).iter().map(|w| f32::from_bits(*w)).collect();
        let choice = case.random.permutation(experts);
        let target = |e: usize| choice[e] as f32 / experts as f32;
        let bias: Vec<f32> = row_logits.iter().enumerate().map(|(e, l)| target(e) - sigmoid(*l)).collect();
        let bias = case.numbers(1, experts, &bias);
        for (i, routing) in routings().into_iter().enumerate() {
            push(case, row, Some(bias), experts.min(1 << i), routing);
        }
    }
}

/// Logits in -4..4, all different by at least 8 / experts, in random order.
fn spread(case: &mut Case, experts: u32) -> Vec<f32> {
    let order = case.random.permutation(experts);
    order.iter().map(|place| (*place as f32 + 0.5) / experts as f32 * 8.0 - 4.0).collect()
}

/// Logits of three values, biases of two: many experts are equal in both.
fn ties(case: &mut Case, experts: u32) {
    let draw = |case: &mut Case, count: u32, values: &[f32]| -> Vec<f32> {
        (0..count).map(|_| values[case.random.below(values.len() as u32) as usize]).collect()
    };
    let logits = draw(case, 5 * experts, &[-1.0, 0.0, 2.0]);
    let logits = case.numbers(5, experts, &logits);
    let bias = draw(case, experts, &[0.0, 3.0]);
    let bias = case.numbers(1, experts, &bias);
    for bias in [None, Some(bias)] {
        for k in [1, 3, 8, 16].into_iter().filter(|k| *k <= experts) {
            push(case, logits, bias, k, routings()[0]);
        }
        push(case, logits, bias, experts, routings()[2]);
    }
    let equal = case.input(2, experts, Values::Same(0.25));
    push(case, equal, None, experts.min(8), routings()[0]);
}

/// Scores of exactly 0 and 1, and both zeros as logits.
fn extreme(case: &mut Case) {
    let rows: [[f32; 6]; 4] = [
        [-200.0, 200.0, 0.0, -0.0, 200.0, -200.0],
        [-200.0; 6],
        [f32::MAX, f32::MIN, 1.0, 0.0, f32::MIN_POSITIVE, -1.0],
        [-0.0, 0.0, -0.0, 0.0, -0.0, 0.0],
    ];
    let logits = case.numbers(4, 6, rows.as_flattened());
    for routing in routings() {
        push(case, logits, None, 4, routing);
    }
}
