//! Log-probabilities of a row as the model gave it: before bias, mask, penalties, temperature and cuts, so that they
//! say what the model thinks and not how it was asked.
#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]
use super::ranks::Ranks;
use ops::lanes::{LANES, Lanes};
use ops::{Kernel, math, with_fma};

/// Log-probabilities beside a token that was taken: natural logarithms; minus infinity where f32 reaches no further.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token that was taken.
    pub taken: f32,
    /// The likeliest ids with theirs, best first, equals by the lower id; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of a row of finite logits, where `taken` was taken.
    pub(super) fn of(ranks: &mut Ranks, row: &[f32], taken: u32, count: u32) -> Self {
        let top = ranks.look(row);
        let total = math::log(with_fma(Total { row, top }));
        let logprob = |logit: f32| (logit - top) - total;
        ranks.rank(row, count as usize);
        let ids = (0..ranks.len()).map(|rank| ranks.id(rank));
        let top = ids.zip(ranks.logits()).map(|(id, logit)| (id, logprob(logit))).collect();
        Logprobs { taken: logprob(row[taken as usize]), top }
    }
}

/// The sum of e to each logit's distance from the largest, in order of ids, in lanes (docs/numerics.md, section 1).
struct Total<'a> {
    row: &'a [f32],
    top: f32,
}

impl Kernel for Total<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let mut lanes = Lanes::zero();
        let (blocks, rest) = self.row.as_chunks::<LANES>();
        for block in blocks {
            let mut shares = *block;
            for share in &mut shares {
                *share = math::exp(*share - self.top);
            }
            lanes.add_block(&shares);
        }
        let mut shares = [0.0; LANES];
        for (share, logit) in shares.iter_mut().zip(rest) {
            *share = math::exp(*logit - self.top);
        }
        if !rest.is_empty() {
            lanes.add_block(&shares);
        }
        lanes.fold()
    }
}
