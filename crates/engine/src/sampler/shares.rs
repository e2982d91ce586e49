//! Shares of ranked logits, the cuts by them and the draw (docs/numerics.md, section 5), decided by as few ranks as
//! possible. Knows no ids and no seeds.
#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]
use ops::lanes::{self, LANES};
use ops::{Kernel, math, with_fma};

/// The share of a logit: e to its distance from the largest, divided by the temperature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) top: f32,
    pub(super) temperature: f32,
}

impl Share {
    #[inline(always)]
    fn of(self, logit: f32) -> f32 {
        math::exp((logit - self.top) / self.temperature)
    }

    /// The shares of some logits in their place.
    pub(super) fn replace(self, logits: &mut [f32]) {
        with_fma(Replace { share: self, logits });
    }

    /// Within what the contract's sum of the shares of a row lies, in whatever order its ids are ranked.
    ///
    /// A lane of that sum takes at most k = n / 16 + 4 rounded additions of numbers that are not negative, so it is
    /// within k e / (1 - k e) of the exact sum, relatively, with e = 2^-24. The sum here is of the same shares; in f64 its own
    /// error is far below the 2^-30 that is added.
    pub(super) fn bounds(self, row: &[f32]) -> Sum {
        let total = with_fma(Total { share: self, row });
        let most = (row.len().div_ceil(LANES) + 4) as f64 / f64::from(1 << 24);
        if most > 0.5 {
            return Sum { least: 0.0, most: f32::INFINITY };
        }
        let error = most / (1.0 - most) + f64::from(1 << 30).recip();
        let bound = |value: f64| value as f32;
        Sum { least: bound(total * (1.0 - error)).next_down(), most: bound(total * (1.0 + error)).next_up() }
    }
}

struct Replace<'a> {
    share: Share,
    logits: &'a mut [f32],
}

impl Kernel for Replace<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for logit in self.logits {
            *logit = self.share.of(*logit);
        }
    }
}

struct Total<'a> {
    share: Share,
    row: &'a [f32],
}

impl Kernel for Total<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut totals = [0.0f64; LANES];
        let (blocks, rest) = self.row.as_chunks::<LANES>();
        for block in blocks {
            for (total, logit) in totals.iter_mut().zip(block) {
                *total += f64::from(self.share.of(*logit));
            }
        }
        for (total, logit) in totals.iter_mut().zip(rest) {
            *total += f64::from(self.share.of(*logit));
        }
        totals.iter().sum()
    }
}

/// A sum that is known between two numbers, which may be one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    least: f32,
    most: f32,
}

impl Sum {
    /// The contract's sum of shares in order of rank.
    pub(super) fn of(shares: &[f32]) -> Self {
        let sum = lanes::sum(shares);
        Sum { least: sum, most: sum }
    }

    /// Times a factor that is not negative; rounding keeps the order of products.
    fn times(self, factor: f32) -> Self {
        Sum { least: self.least * factor, most: self.most * factor }
    }
}

/// The shares of the first ranks, largest first, and what is known of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares<'a> {
    pub(super) first: &'a [f32],
    /// Whether these are all there are.
    pub(super) whole: bool,
    /// Of all there are.
    pub(super) sum: Sum,
}

impl Shares<'_> {
    /// The rank that is drawn; None if more ranks must be known to tell. Of a whole it can always be told.
    pub(super) fn draw(self, top_p: f32, min_p: f32, uniform: f32) -> Option<usize> {
        if top_p >= 1.0 && min_p <= 0.0 {
            let last = self.whole.then(|| self.first.len() - 1);
            return first_past(self.first, self.sum.times(uniform), last);
        }
        let kept = self.kept(top_p, min_p)?;
        let shares = &self.first[..kept];
        first_past(shares, Sum::of(shares).times(uniform), Some(kept - 1))
    }

    /// How many ranks pass both cuts, at least one.
    fn kept(self, top_p: f32, min_p: f32) -> Option<usize> {
        let aim = self.sum.times(top_p);
        let least = min_p * self.first[0];
        let mut reached = 0.0;
        for (rank, share) in self.first.iter().enumerate() {
            if *share < least {
                return Some(rank.max(1));
            }
            reached += share;
            if top_p < 1.0 && reached >= aim.least {
                return (reached >= aim.most).then_some(rank + 1);
            }
        }
        self.whole.then_some(self.first.len())
    }
}

/// The first rank at which the running sum of shares is past `aim`, or `last` if there is none.
fn first_past(shares: &[f32], aim: Sum, last: Option<usize>) -> Option<usize> {
    let mut reached = 0.0;
    for (rank, share) in shares.iter().enumerate() {
        reached += share;
        if reached > aim.least {
            return (reached > aim.most).then_some(rank);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: [f32; 4] = [1.0, 0.5, 0.25, 0.125];

    fn shares(first: &[f32], whole: bool, (least, most): (f32, f32)) -> Shares<'_> {
        Shares { first, whole, sum: Sum { least, most } }
    }

    #[test]
    fn a_draw_is_told_only_where_it_is_certain() {
        let whole = shares(&FIRST, true, (1.875, 1.875));
        let part = shares(&FIRST, false, (1.9, 2.1));
        // Aims of 0.95 to 1.05 meet the end of the first share, 1.0.
        for (uniform, of_whole, of_part) in
            [(0.0, 0, Some(0)), (0.5, 0, None), (0.6, 1, Some(1)), (0.9, 2, None), (0.999, 3, None)]
        {
            assert_eq!(whole.draw(1.0, 0.0, uniform), Some(of_whole), "{uniform}");
            assert_eq!(part.draw(1.0, 0.0, uniform), of_part, "{uniform}");
        }
    }

    #[test]
    fn cuts_have_their_hand_values() {
        let whole = shares(&FIRST, true, (1.875, 1.875));
        let part = shares(&FIRST, false, (1.9, 2.1));
        for (top_p, min_p, of_whole, of_part) in [
            (1.0, 0.0, 4, None),
            (1.0, 0.2, 3, Some(3)),
            (1.0, 0.25, 3, Some(3)),
            (1.0, 1.0, 1, Some(1)),
            (0.5, 0.0, 1, None),
            (0.6, 0.0, 2, Some(2)),
            (0.6, 0.6, 1, Some(1)),
            (0.99, 0.0, 4, None),
            (0.99, 0.3, 2, Some(2)),
        ] {
            assert_eq!(whole.kept(top_p, min_p), Some(of_whole), "{top_p} {min_p}");
            assert_eq!(part.kept(top_p, min_p), of_part, "{top_p} {min_p}");
        }
    }

    /// Rows whose sums in lanes round badly: the bounds hold, in any order.
    #[test]
    fn bounds_hold_the_sum_in_lanes() {
        let share = Share { top: 0.0, temperature: 1.0 };
        for (count, spread) in [(1, 0.0), (100, 1.0), (30_000, 0.0), (30_000, 1e-4), (163_840, 20.0)] {
            let mut row: Vec<f32> = (0..count).map(|i| -spread * (i as f32 / count as f32)).collect();
            let Sum { least, most } = share.bounds(&row);
            share.replace(&mut row);
            for _ in 0..2 {
                let sum = lanes::sum(&row);
                assert!(least <= sum && sum <= most, "{count} {spread}: {least} {sum} {most}");
                assert!(most - least < sum * 0.002, "{count} {spread}: {least} {most}");
                row.reverse();
            }
        }
    }
}
