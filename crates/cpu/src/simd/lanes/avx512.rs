//! Sixteen lanes in one register of AVX-512.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use super::{Block, Kernel, LANES, Simd};
use crate::level::Level;
use core::arch::x86_64::{
    __m512, __m512i, __mmask16, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_HINT_T1, _mm_prefetch, _mm512_add_epi32,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_ps, _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_or_si512,
    _mm512_permutex2var_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32,
    _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_epi32,
    _mm512_sub_ps, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
};

/// Proof that the processor has AVX-512 F, BW, DQ and VL. Made only by [`run`].
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Runs a kernel with AVX-512.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    assert!(Level::Avx512.is_available(), "the processor has no AVX-512");
    // SAFETY: the processor has the features.
    unsafe { run_enabled(kernel) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn run_enabled<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// A call of instructions in code that only a kernel run by [`run`] reaches.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: a value of type `Avx512`, without which nobody comes here, proves that the processor has the instruction.
        unsafe { $call }
    };
}

/// The lowest `count` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    debug_assert!(count <= LANES);
    ((1_u32 << count) - 1) as __mmask16
}

/// The upper half of each vector onto its lower half, the results side by side.
#[inline(always)]
fn eights(a: __m512, b: __m512) -> __m512 {
    op!(_mm512_add_ps(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b)
    ))
}

/// From two vectors that hold two halves each, quarters of four vectors.
#[inline(always)]
fn fours(a: __m512, b: __m512) -> __m512 {
    op!(_mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b)
    ))
}

/// In each quarter, numbers 2 and 3 onto 0 and 1: first those of `a`, then those of `b`.
#[inline(always)]
fn twos(a: __m512, b: __m512) -> __m512 {
    op!(_mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b)))
}

/// In each quarter, numbers 1 and 3 onto 0 and 2: first those of `a`, then those of `b`.
#[inline(always)]
fn ones(a: __m512, b: __m512) -> __m512 {
    op!(_mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b)))
}

impl Simd for Avx512 {
    type Floats = __m512;
    type Ints = __m512i;
    type Mask = __mmask16;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &Block) -> __m512 {
        // SAFETY: a block is 16 numbers; for the instruction see `op`.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut Block) {
        // SAFETY: a block is 16 numbers; for the instruction see `op`.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> __m512 {
        assert!(x.len() <= LANES, "a part has at most 16 numbers");
        // SAFETY: only the lanes that the slice has are read; for the instruction see `op`.
        unsafe { _mm512_maskz_loadu_ps(first(x.len()), x.as_ptr()) }
    }
    #[inline(always)]
    fn store_part(self, x: __m512, to: &mut [f32]) {
        assert!(to.len() <= LANES, "a part has at most 16 numbers");
        // SAFETY: only the lanes that the slice has are written; for the instruction see `op`.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), first(to.len()), x) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max_or(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn less(self, a: __m512, b: __m512) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn is_nan(self, a: __m512) -> __mmask16 {
        op!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a))
    }
    #[inline(always)]
    fn select(self, mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(mask, no, yes))
    }
    #[inline(always)]
    fn mask_bits(self, mask: __mmask16) -> u32 {
        mask.into()
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn bits(self, x: __m512) -> __m512i {
        op!(_mm512_castps_si512(x))
    }
    #[inline(always)]
    fn with_bits(self, x: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(x))
    }
    #[inline(always)]
    fn to_floats(self, x: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(x))
    }
    #[inline(always)]
    fn add_int(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_int(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn to_exponent(self, x: __m512i) -> __m512i {
        op!(_mm512_slli_epi32::<23>(x))
    }
    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        op!(_mm_prefetch::<_MM_HINT_T1>(address.cast()));
    }

    #[inline(always)]
    fn fold_all(self, x: [__m512; LANES]) -> __m512 {
        // The quarters of each belong to the vectors i, i + 4, i + 8 and i + 12. No closure and no loop: either may be
        // compiled by itself, without the instructions.
        let a = fours(eights(x[0], x[4]), eights(x[8], x[12]));
        let b = fours(eights(x[1], x[5]), eights(x[9], x[13]));
        let c = fours(eights(x[2], x[6]), eights(x[10], x[14]));
        let d = fours(eights(x[3], x[7]), eights(x[11], x[15]));
        ones(twos(a, b), twos(c, d))
    }

    #[inline(always)]
    fn split_4(self, x: &[Block; 4]) -> [__m512; 4] {
        let [a, b, c, d] = [self.load(&x[0]), self.load(&x[1]), self.load(&x[2]), self.load(&x[3])];
        op!({
            // In each quarter: the first two and the last two numbers of four channels, then each number of four channels.
            let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let parts = [
                _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
                _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
                _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
            ];
            // Channel 4 i + q lies in number i of quarter q.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            [
                _mm512_permutexvar_ps(order, parts[0]),
                _mm512_permutexvar_ps(order, parts[1]),
                _mm512_permutexvar_ps(order, parts[2]),
                _mm512_permutexvar_ps(order, parts[3]),
            ]
        })
    }

    #[inline(always)]
    fn split_3(self, x: &[Block; 3]) -> [__m512; 3] {
        let [a, b, c] = [self.load(&x[0]), self.load(&x[1]), self.load(&x[2])];
        op!({
            // Numbers 3 j + i below 32 come from a and b; the others, whatever stands here, from c.
            let ab = [
                _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0),
                _mm512_setr_epi32(1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0),
                _mm512_setr_epi32(2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0),
            ];
            let with_c = [
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31),
            ];
            [
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[0], b), with_c[0], c),
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[1], b), with_c[1], c),
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[2], b), with_c[2], c),
            ]
        })
    }

    #[inline(always)]
    fn join_3(self, x: [__m512; 3], to: &mut [Block; 3]) {
        let [a, b, c] = x;
        let joined = op!({
            // Number n is lane n / 3 of vector n % 3; those of c stand as 0 in the first step.
            let ab = [
                _mm512_setr_epi32(0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5),
                _mm512_setr_epi32(21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26),
                _mm512_setr_epi32(0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0),
            ];
            let with_c = [
                _mm512_setr_epi32(0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15),
                _mm512_setr_epi32(0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15),
                _mm512_setr_epi32(26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31),
            ];
            [
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[0], b), with_c[0], c),
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[1], b), with_c[1], c),
                _mm512_permutex2var_ps(_mm512_permutex2var_ps(a, ab[2], b), with_c[2], c),
            ]
        });
        for (x, to) in joined.into_iter().zip(to) {
            self.store(x, to);
        }
    }
}
