//! Sixteen lanes in two registers of AVX2: lanes 0 to 7 and 8 to 15.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use super::{Block, Kernel, LANES, Simd};
use crate::level::Level;
use core::arch::x86_64::{
    __m256, __m256i, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_HINT_T1, _mm_prefetch, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_si256, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps,
    _mm256_cvtepi32_ps, _mm256_div_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_movemask_ps,
    _mm256_mul_ps, _mm256_or_si256, _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_epi32, _mm256_sub_ps,
};

/// Proof that the processor has AVX2, FMA and F16C. Made only by [`run`].
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Runs a kernel with AVX2.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    assert!(Level::Avx2.is_available(), "the processor has no AVX2");
    // SAFETY: the processor has the features.
    unsafe { run_enabled(kernel) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run_enabled<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// A call of instructions in code that only a kernel run by [`run`] reaches.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: a value of type `Avx2`, without which nobody comes here, proves that the processor has the instruction.
        unsafe { $call }
    };
}

/// An instruction on both halves.
macro_rules! both {
    ($call:ident($($x:ident),*)) => {
        op!([$call($($x[0]),*), $call($($x[1]),*)])
    };
}

/// Eight lanes twice.
type Floats = [__m256; 2];
type Ints = [__m256i; 2];

/// The upper half of the lanes onto the lower half.
#[inline(always)]
fn eights(x: Floats) -> __m256 {
    op!(_mm256_add_ps(x[0], x[1]))
}

/// The same with what is left of two vectors, side by side.
#[inline(always)]
fn fours(a: __m256, b: __m256) -> __m256 {
    op!(_mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b)))
}

/// In each quarter, numbers 2 and 3 onto 0 and 1: first those of `a`, then those of `b`.
#[inline(always)]
fn twos(a: __m256, b: __m256) -> __m256 {
    op!(_mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b)))
}

/// In each quarter, numbers 1 and 3 onto 0 and 2: first those of `a`, then those of `b`.
#[inline(always)]
fn ones(a: __m256, b: __m256) -> __m256 {
    op!(_mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b)))
}

impl Simd for Avx2 {
    type Floats = Floats;
    type Ints = Ints;
    type Mask = Floats;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Floats {
        op!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &Block) -> Floats {
        // SAFETY: a block is 16 numbers; for the instruction see `op`.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, x: Floats, to: &mut Block) {
        // SAFETY: a block is 16 numbers; for the instruction see `op`.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Floats {
        let mut block = [0.0; LANES];
        block[..x.len()].copy_from_slice(x);
        self.load(&block)
    }
    #[inline(always)]
    fn store_part(self, x: Floats, to: &mut [f32]) {
        let mut block = [0.0; LANES];
        self.store(x, &mut block);
        to.copy_from_slice(&block[..to.len()]);
    }
    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        both!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        both!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        both!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        both!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        both!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max_or(self, a: Floats, b: Floats) -> Floats {
        both!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn less(self, a: Floats, b: Floats) -> Floats {
        op!([_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])])
    }
    #[inline(always)]
    fn is_nan(self, a: Floats) -> Floats {
        op!([_mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], a[0]), _mm256_cmp_ps::<_CMP_UNORD_Q>(a[1], a[1])])
    }
    #[inline(always)]
    fn select(self, mask: Floats, yes: Floats, no: Floats) -> Floats {
        both!(_mm256_blendv_ps(no, yes, mask))
    }
    #[inline(always)]
    fn mask_bits(self, mask: Floats) -> u32 {
        let [low, high] = both!(_mm256_movemask_ps(mask));
        low.cast_unsigned() | high.cast_unsigned() << 8
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Ints {
        op!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn bits(self, x: Floats) -> Ints {
        both!(_mm256_castps_si256(x))
    }
    #[inline(always)]
    fn with_bits(self, x: Ints) -> Floats {
        both!(_mm256_castsi256_ps(x))
    }
    #[inline(always)]
    fn to_floats(self, x: Ints) -> Floats {
        both!(_mm256_cvtepi32_ps(x))
    }
    #[inline(always)]
    fn add_int(self, a: Ints, b: Ints) -> Ints {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_int(self, a: Ints, b: Ints) -> Ints {
        both!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: Ints, b: Ints) -> Ints {
        both!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: Ints, b: Ints) -> Ints {
        both!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn to_exponent(self, x: Ints) -> Ints {
        op!([_mm256_slli_epi32::<23>(x[0]), _mm256_slli_epi32::<23>(x[1])])
    }
    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        op!(_mm_prefetch::<_MM_HINT_T1>(address.cast()));
    }

    #[inline(always)]
    fn fold_all(self, x: [Floats; LANES]) -> Floats {
        // The halves of each belong to the vectors i and i + 4. No closure and no loop: either may be compiled by itself,
        // without the instructions.
        let a = fours(eights(x[0]), eights(x[4]));
        let b = fours(eights(x[1]), eights(x[5]));
        let c = fours(eights(x[2]), eights(x[6]));
        let d = fours(eights(x[3]), eights(x[7]));
        let low = ones(twos(a, b), twos(c, d));
        let a = fours(eights(x[8]), eights(x[12]));
        let b = fours(eights(x[9]), eights(x[13]));
        let c = fours(eights(x[10]), eights(x[14]));
        let d = fours(eights(x[11]), eights(x[15]));
        [low, ones(twos(a, b), twos(c, d))]
    }
}
