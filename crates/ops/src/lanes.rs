//! Sums of f32 as the numerics contract defines them (docs/numerics.md, section 1): 16 lanes, one fused
//! multiply-add an element, one tree at the end.
//!
//! Element i goes to lane i mod 16, in ascending order; a last block that is not full is filled with +0; then the
//! upper half of the lanes is added onto the lower: 16, 8, 4, 2, 1. Plain arrays: inlined into a function that enables
//! `fma` with `avx2` or `avx512f` (or NEON), LLVM keeps the lanes in registers, so the definition is also the fast
//! form. One sum alone waits for the latency of its multiply-adds; a fast device runs several sums side by side.
//!
//! This file knows no packing, no tensor and no instruction set.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

/// Lanes of every reduction.
pub const LANES: usize = 16;

/// The 16 running sums of one reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub struct Lanes([f32; LANES]);

impl Lanes {
    /// All lanes +0: the start of every reduction.
    #[inline(always)]
    #[must_use]
    pub fn zero() -> Self {
        Self([0.0; LANES])
    }

    /// `lane_j = fma(a_j, b_j, lane_j)`: one block of a dot product.
    #[inline(always)]
    pub fn fma_block(&mut self, a: &[f32; LANES], b: &[f32; LANES]) {
        for j in 0..LANES {
            self.0[j] = a[j].mul_add(b[j], self.0[j]);
        }
    }

    /// `lane_j = lane_j + a_j`: one block of a plain sum.
    #[inline(always)]
    pub fn add_block(&mut self, a: &[f32; LANES]) {
        for (lane, a) in self.0.iter_mut().zip(a) {
            *lane += a;
        }
    }

    /// Adds the products of two slices. Called again it continues the same sum with further slices, whose elements
    /// count from lane 0 again.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    pub fn fma(&mut self, a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len(), "a dot product of slices of different lengths");
        let (a_blocks, a_rest) = a.as_chunks();
        let (b_blocks, b_rest) = b.as_chunks();
        for (a, b) in a_blocks.iter().zip(b_blocks) {
            self.fma_block(a, b);
        }
        if !a_rest.is_empty() {
            self.fma_block(&filled(a_rest), &filled(b_rest));
        }
    }

    /// Adds the elements of a slice; called again it continues the same sum, as in [`Lanes::fma`].
    #[inline(always)]
    pub fn add(&mut self, a: &[f32]) {
        let (blocks, rest) = a.as_chunks();
        for block in blocks {
            self.add_block(block);
        }
        if !rest.is_empty() {
            self.add_block(&filled(rest));
        }
    }

    /// The sum of the lanes: the upper half onto the lower, four times.
    ///
    /// `black_box` changes no value. It sends the lanes through memory once, so that LLVM, which starts vectorising
    /// from stores, sees 16 neighbours; from the tree below it would find pairs and quarters and split the loops that
    /// lead here (measured: four times slower).
    #[inline(always)]
    #[must_use]
    pub fn fold(self) -> f32 {
        let sixteen = std::hint::black_box(self.0);
        let eight: [f32; 8] = std::array::from_fn(|j| sixteen[j] + sixteen[j + 8]);
        let four: [f32; 4] = std::array::from_fn(|j| eight[j] + eight[j + 4]);
        let two = [four[0] + four[2], four[1] + four[3]];
        two[0] + two[1]
    }
}

impl From<[f32; LANES]> for Lanes {
    /// Lanes that were summed elsewhere, such as in packed kernels.
    #[inline(always)]
    fn from(lanes: [f32; LANES]) -> Self {
        Self(lanes)
    }
}

/// The last block of a slice, filled up with +0. `rest` is shorter than a block. Out of line: it has no arithmetic
/// that would want the caller's instruction set, and inlined it would bury the loops.
#[inline(never)]
fn filled(rest: &[f32]) -> [f32; LANES] {
    let mut block = [0.0; LANES];
    block[..rest.len()].copy_from_slice(rest);
    block
}

/// `sum_i a_i b_i`.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
#[must_use]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = Lanes::zero();
    lanes.fma(a, b);
    lanes.fold()
}

/// `sum_i a_i`.
#[inline(always)]
#[must_use]
pub fn sum(a: &[f32]) -> f32 {
    let mut lanes = Lanes::zero();
    lanes.add(a);
    lanes.fold()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scattered value of about 1 with all its mantissa bits in use.
    fn value(i: usize) -> f32 {
        let scattered = (i as u32).wrapping_mul(0x9e37_79b9) >> 8;
        (scattered as f32).mul_add(1.0 / 8_388_608.0, -1.0)
    }

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| value(i * 7 + seed)).collect()
    }

    /// The words of the contract, element by element.
    fn by_the_words(a: &[f32], b: &[f32]) -> f32 {
        let mut lane = [0.0_f32; 16];
        for i in 0..a.len().next_multiple_of(16) {
            let at = |s: &[f32]| s.get(i).copied().unwrap_or(0.0);
            lane[i % 16] = at(a).mul_add(at(b), lane[i % 16]);
        }
        let eight: Vec<f32> = (0..8).map(|j| lane[j] + lane[j + 8]).collect();
        let four: Vec<f32> = (0..4).map(|j| eight[j] + eight[j + 4]).collect();
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[test]
    fn small_integers_give_hand_values() {
        let a: Vec<f32> = (1..=20).map(|i| i as f32).collect();
        assert_eq!(sum(&a), 210.0);
        assert_eq!(dot(&a, &a), 2870.0);
        assert_eq!(dot(&a, &[2.0; 20]), 420.0);
        assert_eq!(dot(&[], &[]).to_bits(), 0);
        assert_eq!(sum(&[]).to_bits(), 0);
    }

    #[test]
    fn the_order_is_lanes_then_halves() {
        // 1 and -2^24 share lane 0 only if element 16 comes back to it: 2^24 + 1 rounds to 2^24 there.
        let mut a = [0.0; 17];
        (a[0], a[1], a[16]) = (16_777_216.0, -16_777_216.0, 1.0);
        assert_eq!(sum(&a), 0.0);
        // In lane 2 the 1 meets lane 0 only in the fold, again after 2^24 has rounded it away or not: halves of 2
        // add lane 2 onto lane 0 before lane 1 is added.
        let mut b = [0.0; 16];
        (b[0], b[1], b[2]) = (16_777_216.0, -16_777_216.0, 1.0);
        assert_eq!(sum(&b), 0.0);
        // In lane 3 it meets lane 1 first, where the spacing below 2^24 is 1 and it is kept.
        let mut c = [0.0; 16];
        (c[0], c[1], c[3]) = (16_777_216.0, -16_777_216.0, 1.0);
        assert_eq!(sum(&c), 1.0);
    }

    #[test]
    fn products_are_fused() {
        // (1 + 2^-23)^2 - (1 + 2^-22) = 2^-46 only if the product is not rounded before it is added.
        let near_one = 1.0 + f32::EPSILON;
        let mut lanes = Lanes::zero();
        lanes.fma(&[1.0 + 2.0 * f32::EPSILON], &[-1.0]);
        lanes.fma(&[near_one], &[near_one]);
        assert_eq!(lanes.fold(), f32::EPSILON * f32::EPSILON);
    }

    #[test]
    fn every_length_follows_the_words() {
        for n in (0..100).chain([127, 128, 129, 1000]) {
            let (a, b) = (values(n, 1), values(n, 2));
            assert_eq!(dot(&a, &b).to_bits(), by_the_words(&a, &b).to_bits(), "n = {n}");
            assert_eq!(sum(&a).to_bits(), by_the_words(&a, &vec![1.0; n]).to_bits(), "n = {n}");
            assert_eq!(dot(&a, &a).to_bits(), by_the_words(&a, &a).to_bits(), "n = {n}");
        }
    }

    #[test]
    fn a_filled_block_turns_minus_zero_into_plus_zero() {
        // -1e-30 * 1e-30 underflows to -0 in lane 0; the +0 that fill the second block make it +0.
        let mut a = [0.0; 17];
        a[0] = -1e-30;
        let mut b = [0.0; 17];
        b[0] = 1e-30;
        let mut lanes = Lanes::zero();
        lanes.fma(&a[..1], &b[..1]);
        assert_eq!(lanes.0[0].to_bits(), (-0.0_f32).to_bits());
        lanes.fma(&[0.0], &[0.0]);
        assert_eq!(lanes.0[0].to_bits(), 0);
    }

    #[test]
    fn a_second_slice_starts_at_lane_zero_again() {
        let (a, b) = (values(21, 3), values(40, 4));
        let ones = [1.0; 40];
        let mut lanes = Lanes::zero();
        lanes.fma(&a, &ones[..21]);
        lanes.fma(&b, &ones);
        // The same as one slice in which the first part is filled up to whole blocks.
        let mut joined = a.clone();
        joined.resize(32, 0.0);
        joined.extend(&b);
        assert_eq!(lanes.fold().to_bits(), sum(&joined).to_bits());

        let mut sums = Lanes::zero();
        sums.add(&a);
        sums.add(&b);
        assert_eq!(sums, lanes);
    }

    #[test]
    #[should_panic(expected = "different lengths")]
    fn different_lengths_are_refused() {
        let _ = dot(&[1.0, 2.0], &[1.0]);
    }

    #[test]
    fn lanes_from_elsewhere_fold_alike() {
        let block: [f32; LANES] = std::array::from_fn(value);
        assert_eq!(Lanes::from(block).fold().to_bits(), sum(&block).to_bits());
    }
}
