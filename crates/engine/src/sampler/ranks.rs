//! The first ids of a row by rank (falling logit, equals by the lower id) without sorting the row. Knows no probability.
#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables instructions is compiled for them"
)]
use ops::{Kernel, with_fma};

/// Neighbours of which one maximum is kept.
const NEIGHBOURS: usize = 64;

/// Room for ranking rows; it is used again for every row.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks {
    /// The maximum of every [`NEIGHBOURS`] logits.
    tops: Vec<f32>,
    /// The same, to be put in order.
    ordered: Vec<u64>,
    /// Logit and id as one number each; ascending, they are in the order of ranks.
    keys: Vec<u64>,
}

/// A number for logit and id that rises with the rank. Both zeros are the same logit.
fn key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

fn id_of(key: u64) -> u32 {
    key as u32
}

fn logit_of(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending })
}

impl Ranks {
    /// Looks at a row of numbers, some of which may be minus infinity: their ids have no rank. The largest.
    pub(super) fn look(&mut self, row: &[f32]) -> f32 {
        self.tops.clear();
        self.tops.resize(row.len().div_ceil(NEIGHBOURS), f32::NEG_INFINITY);
        with_fma(Maxima { row, tops: &mut self.tops });
        self.tops.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The lowest id with the largest logit of the row looked at.
    pub(super) fn best(&self, row: &[f32], top: f32) -> u32 {
        let block = self.tops.iter().position(|t| *t == top).unwrap_or(0) * NEIGHBOURS;
        let within = row[block..].iter().position(|logit| *logit == top).unwrap_or(0);
        (block + within) as u32
    }

    /// Ranks the first `count` ids of the row looked at, or all if there are fewer.
    ///
    /// Where there are as many blocks of neighbours as ids wanted, the smallest of the `count` largest maxima is a logit
    /// that at least `count` ids reach, so all that are wanted reach it; blocks with a lower maximum have none of them.
    pub(super) fn rank(&mut self, row: &[f32], count: usize) {
        let enough = match count.checked_sub(1) {
            Some(last) if last < self.tops.len() => {
                self.ordered.clear();
                self.ordered.extend(self.tops.iter().map(|top| key(*top, 0)));
                logit_of(*self.ordered.select_nth_unstable(last).1)
            }
            _ => f32::NEG_INFINITY,
        };
        self.keys.clear();
        for (block, (top, logits)) in self.tops.iter().zip(row.chunks(NEIGHBOURS)).enumerate() {
            if *top >= enough {
                let ids = (block * NEIGHBOURS) as u32..;
                let ranked = logits.iter().zip(ids).filter(|(l, _)| **l >= enough && **l > f32::NEG_INFINITY);
                self.keys.extend(ranked.map(|(logit, id)| key(*logit, id)));
            }
        }
        if count < self.keys.len() {
            self.keys.select_nth_unstable(count);
            self.keys.truncate(count);
        }
        self.keys.sort_unstable();
    }

    /// How many are ranked.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The id of a rank.
    pub(super) fn id(&self, rank: usize) -> u32 {
        id_of(self.keys[rank])
    }

    /// The logits of the ranks.
    pub(super) fn logits(&self) -> impl Iterator<Item = f32> {
        self.keys.iter().map(|key| logit_of(*key))
    }
}

/// The maximum of every [`NEIGHBOURS`] numbers.
struct Maxima<'a> {
    row: &'a [f32],
    tops: &'a mut [f32],
}

impl Kernel for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (top, numbers) in self.tops.iter_mut().zip(self.row.chunks(NEIGHBOURS)) {
            let mut lanes = [f32::NEG_INFINITY; 16];
            let (blocks, rest) = numbers.as_chunks::<16>();
            for block in blocks {
                for (lane, number) in lanes.iter_mut().zip(block) {
                    *lane = if *number > *lane { *number } else { *lane };
                }
            }
            *top = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_logits_and_order() {
        let logits = [f32::MAX, 1.5, f32::MIN_POSITIVE, 0.0, -f32::MIN_POSITIVE, -1.5, f32::MIN];
        for pair in logits.windows(2) {
            assert!(key(pair[0], 7) < key(pair[1], 3), "{pair:?}");
        }
        for logit in logits {
            assert!(key(logit, 3) < key(logit, 7));
            assert_eq!((logit_of(key(logit, 7)), id_of(key(logit, 7))), (logit, 7));
        }
        assert_eq!(key(-0.0, 1), key(0.0, 1));
    }
}
