//! Sixteen f32 lanes, the unit in which the numerics contract counts, on every instruction level: one register of
//! AVX-512, two of AVX2, four of NEON, or an array. Kernels are written once over [`Simd`] and run by [`Level::run`].
//!
//! A value of a type that implements [`Simd`] is the proof that the processor has the instructions: only this module
//! makes one, after [`Level::is_available`] said so. Every method is one rounded operation a lane, the same on all
//! levels; which NaN comes out is open.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod tests;

use crate::level::Level;

/// Lanes of every vector.
pub(crate) const LANES: usize = 16;

/// Sixteen numbers, or a part of a row that is as long.
pub(crate) type Block = [f32; LANES];

/// Vectors of sixteen lanes and what can be done with them.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type Floats: Copy;
    /// Sixteen i32.
    type Ints: Copy;
    /// Sixteen yes or no.
    type Mask: Copy;
    /// Whether 24 vectors fit the registers.
    const WIDE: bool;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::Floats;
    fn load(self, x: &Block) -> Self::Floats;
    fn store(self, x: Self::Floats, to: &mut Block);
    /// The first lanes from a slice of at most 16 numbers, the others +0.
    fn load_part(self, x: &[f32]) -> Self::Floats;
    /// The first lanes into a slice of at most 16 numbers.
    fn store_part(self, x: Self::Floats, to: &mut [f32]);

    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger one, and `b` if one of them is a NaN; of two zeros either.
    fn max_or(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a < b`; false for NaNs.
    fn less(self, a: Self::Floats, b: Self::Floats) -> Self::Mask;
    fn is_nan(self, a: Self::Floats) -> Self::Mask;
    fn select(self, mask: Self::Mask, yes: Self::Floats, no: Self::Floats) -> Self::Floats;
    /// The lanes that say yes, lane 0 in bit 0.
    fn mask_bits(self, mask: Self::Mask) -> u32;

    fn splat_int(self, x: i32) -> Self::Ints;
    fn bits(self, x: Self::Floats) -> Self::Ints;
    fn with_bits(self, x: Self::Ints) -> Self::Floats;
    /// Integers as numbers, rounded half to even.
    fn to_floats(self, x: Self::Ints) -> Self::Floats;
    fn add_int(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn sub_int(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `x << 23`.
    fn to_exponent(self, x: Self::Ints) -> Self::Ints;

    /// Asks for the line of memory at an address, which need not be one: it is a hint and reads nothing.
    fn prefetch(self, address: *const f32);

    /// The contract's fold of 16 vectors at once: number j of the result is the fold of `x[j]`.
    fn fold_all(self, x: [Self::Floats; LANES]) -> Self::Floats;

    /// Lane j of vector i is number `4 j + i`.
    #[inline(always)]
    fn split_4(self, x: &[Block; 4]) -> [Self::Floats; 4] {
        self.split_by(x.as_flattened())
    }
    /// Lane j of vector i is number `3 j + i`.
    #[inline(always)]
    fn split_3(self, x: &[Block; 3]) -> [Self::Floats; 3] {
        self.split_by(x.as_flattened())
    }
    /// The reverse of [`Simd::split_3`].
    #[inline(always)]
    fn join_3(self, x: [Self::Floats; 3], to: &mut [Block; 3]) {
        let mut lanes = [[0.0; LANES]; 3];
        for (x, lanes) in x.iter().zip(&mut lanes) {
            self.store(*x, lanes);
        }
        for (j, to) in to.as_flattened_mut().iter_mut().enumerate() {
            *to = lanes[j % 3][j / 3];
        }
    }

    /// Lane j of vector i is number `N j + i`.
    #[inline(always)]
    fn split_by<const N: usize>(self, x: &[f32]) -> [Self::Floats; N] {
        std::array::from_fn(|i| self.load(&std::array::from_fn(|j| x[N * j + i])))
    }

    /// `-|x|`
    #[inline(always)]
    fn minus_abs(self, x: Self::Floats) -> Self::Floats {
        self.with_bits(self.or(self.bits(x), self.splat_int(i32::MIN)))
    }
    /// The same without a sign.
    #[inline(always)]
    fn abs(self, x: Self::Floats) -> Self::Floats {
        self.with_bits(self.and(self.bits(x), self.splat_int(i32::MAX)))
    }
    /// The contract's fold: the upper half of the lanes onto the lower, four times.
    #[inline(always)]
    fn fold(self, x: Self::Floats) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        let eight: [f32; 8] = std::array::from_fn(|j| lanes[j] + lanes[j + 8]);
        let four: [f32; 4] = std::array::from_fn(|j| eight[j] + eight[j + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    /// The largest lane, of equal zeros either; lanes that are NaNs may be passed over.
    #[inline(always)]
    fn largest(self, x: Self::Floats) -> f32 {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        let eight: [f32; 8] = std::array::from_fn(|j| larger(lanes[j], lanes[j + 8]));
        let four: [f32; 4] = std::array::from_fn(|j| larger(eight[j], eight[j + 4]));
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
    }
}

/// A block, or what a row has of one.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, x: &[f32]) -> S::Floats {
    if let Some(x) = x.as_array() { s.load(x) } else { s.load_part(x) }
}

/// The reverse of [`load`].
#[inline(always)]
pub(crate) fn store<S: Simd>(s: S, x: S::Floats, to: &mut [f32]) {
    if let Some(to) = to.as_mut_array() { s.store(x, to) } else { s.store_part(x, to) }
}

/// Work that is written once for every level.
pub(crate) trait Kernel {
    /// What it gives.
    type Output;

    /// Does it. This and all that it calls with `simd` is to be `#[inline(always)]`, and closures are to be avoided.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

impl Level {
    /// Runs a kernel with the instructions of this level.
    ///
    /// # Panics
    /// If the processor lacks them.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Level::Portable => kernel.run(portable::Portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::AvxVnni => avx2::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::run(kernel),
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot => neon::run(kernel),
        }
    }
}
