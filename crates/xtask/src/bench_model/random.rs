//! Random numbers at the speed of a disk: a small generator, and pools of numbers made once from which pieces
//! are cut at random places. Everything is integer arithmetic, so a seed gives the same bytes on every machine.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// `SplitMix64` (Steele, Lea, Flood 2014): every seed is a good one.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A whole number in `0..limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// A number in `low..high`.
    pub(crate) fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.next() >> 40) as f32 / 16_777_216.0)
    }

    /// Nearly N(0, 1): the sum of twelve uniform numbers less six. It has no tail beyond 6.
    pub(crate) fn normal(&mut self) -> f32 {
        let mut sum = 0_i32;
        for _ in 0..3 {
            sum += self
                .next()
                .to_le_bytes()
                .chunks(2)
                .map(|pair| i32::from(pair[0]) | i32::from(pair[1]) << 8)
                .sum::<i32>();
        }
        (sum - 6 * 65_535) as f32 / 65_536.0
    }

    /// The numbers `0..count` in random order.
    pub(crate) fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// What a large tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pool {
    /// bf16 numbers of N(0, 2^exponent).
    Normal { exponent: i32 },
    /// Random bytes: two e2m1 codes each.
    Codes,
    /// Scale bytes: the base, one less or one more.
    Scales { base: u8 },
}

/// The pools; each is made when first asked for. Five to ten are in use: under 150 MB.
pub(crate) struct Pools {
    random: Random,
    normals: Vec<f32>,
    bytes: BTreeMap<Pool, Vec<u8>>,
}

/// Lengths are odd and near primes, so that pieces do not line up with the widths of tensors.
const NUMBERS: usize = 4_000_037;
const CODES: usize = 33_554_467;

impl Pools {
    pub(crate) fn new(seed: u64) -> Pools {
        let mut random = Random::new(seed);
        let normals = (0..NUMBERS).map(|_| random.normal()).collect();
        Pools { random, normals, bytes: BTreeMap::new() }
    }

    /// Writes `length` bytes of a pool, in pieces that start at random places.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn write(&mut self, pool: Pool, length: usize, into: &mut impl Write) -> io::Result<()> {
        let Pools { random, normals, bytes } = self;
        let source = bytes.entry(pool).or_insert_with(|| make(pool, normals, random));
        let unit = if matches!(pool, Pool::Normal { .. }) { 2 } else { 1 };
        let mut left = length;
        while left > 0 {
            let start = random.below(source.len() / unit) * unit;
            let piece = left.min(source.len() - start);
            into.write_all(&source[start..start + piece])?;
            left -= piece;
        }
        Ok(())
    }
}

/// All bytes of a pool.
fn make(pool: Pool, normals: &[f32], random: &mut Random) -> Vec<u8> {
    match pool {
        Pool::Normal { exponent } => {
            let scale = 2_f32.powi(exponent);
            // The upper half of an f32 is the number in bf16, rounded towards zero.
            normals
                .iter()
                .flat_map(|value| ((value * scale).to_bits() >> 16).to_le_bytes().into_iter().take(2))
                .collect()
        }
        Pool::Codes => (0..CODES.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(CODES).collect(),
        Pool::Scales { base } => (0..NUMBERS).map(|_| base - 1 + random.below(3) as u8).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(1);
        let values: Vec<f64> = (0..200_000).map(|_| f64::from(random.normal())).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn pools_fill_the_length_and_keep_numbers_whole() {
        let mut pools = Pools::new(7);
        let mut bytes = Vec::new();
        pools.write(Pool::Normal { exponent: -5 }, 9_000_000, &mut bytes).expect("memory takes all");
        assert_eq!(bytes.len(), 9_000_000);
        let values =
            bytes.chunks(2).map(|pair| f32::from_bits(u32::from(pair[0]) << 16 | u32::from(pair[1]) << 24));
        let largest = values.fold(0_f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 3.0 / 32.0 && largest < 6.0 / 32.0, "pieces begin at whole numbers: {largest}");
    }

    #[test]
    fn scales_stay_beside_their_base() {
        let mut bytes = Vec::new();
        Pools::new(7).write(Pool::Scales { base: 120 }, 10_000, &mut bytes).expect("memory takes all");
        for value in 119..=121 {
            assert!(bytes.contains(&value));
        }
        assert!(bytes.iter().all(|value| (119..=121).contains(value)));
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut order = Random::new(3).permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
