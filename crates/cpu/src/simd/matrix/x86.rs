//! The machines of x86-64: AVX-512 with VNNI, AVX2 with AVX-VNNI, AVX2 alone.
#![allow(clippy::wildcard_imports, reason = "instructions are what this file is about")]
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]

use super::machine::{Codes, Machine};
use std::arch::x86_64::*;

/// Methods of a machine, each one expression of intrinsics.
macro_rules! methods {
    ($(fn $name:ident($($a:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($a: $type),*) -> $result {
            // SAFETY: a machine's value is made only after its instructions were detected, and these follow no pointer
            // but to arguments that are large enough.
            unsafe { $body }
        }
    )* };
}

/// Methods that follow a pointer.
macro_rules! pointer_methods {
    ($(fn $name:ident($($a:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, $($a: $type),*) -> $result {
            // SAFETY: the caller promised that the bytes are there; the instructions were detected.
            unsafe { $body }
        }
    )* };
}

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor must have the instructions.
    pub(super) unsafe fn new() -> Self {
        Avx512(())
    }
}

/// The field of a signed multiplier, bit 4 clear and set.
const SIZES: [[i32; 16]; 2] = {
    let mut sizes = [[0; 16]; 2];
    let mut field = 0;
    while field < 16 {
        sizes[0][field] = ops::packing::int4::multiplier(field as u16);
        sizes[1][field] = -sizes[0][field];
        field += 1;
    }
    sizes
};

impl Machine for Avx512 {
    const LANES: usize = 16;
    const CODES: Codes = Codes::OffsetBytes;
    const MANY_REGISTERS: bool = true;
    type Int = __m512i;
    type Float = __m512;
    type Wide = __m512i;

    pointer_methods! {
        fn load(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        fn store(to: *mut u8, a: __m512i) -> () = _mm512_storeu_si512(to.cast(), a);
        fn load_floats(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        fn store_floats(to: *mut f32, a: __m512) -> () = _mm512_storeu_ps(to, a);
        fn widen_bytes(from: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        fn widen_words(from: *const u8) -> __m512i = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
    }

    #[inline(always)]
    fn wide_sum(self, sums: __m512i) -> __m512i {
        sums
    }

    methods! {
        fn prefetch(line: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(line.cast());
        fn prefetch_later(line: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(line.cast());
        fn splat(number: i32) -> __m512i = _mm512_set1_epi32(number);
        fn table(bytes: &[i8; 16]) -> __m512i = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()));
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        fn add(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn multiply(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        fn multiply_words(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi16(a, b);
        fn shift_left(a: __m512i, bits: u32) -> __m512i = _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits as i32));
        fn shift_right(a: __m512i, bits: u32) -> __m512i = _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits as i32));
        fn shift_right_signed(a: __m512i, bits: u32) -> __m512i =
            _mm512_sra_epi32(a, _mm_cvtsi32_si128(bits as i32));
        fn low_nibbles(a: __m512i) -> __m512i = _mm512_and_si512(a, _mm512_set1_epi8(15));
        fn high_nibbles(a: __m512i) -> __m512i =
            _mm512_and_si512(_mm512_srli_epi16::<4>(a), _mm512_set1_epi8(15));
        fn lookup(table: __m512i, indices: __m512i) -> __m512i = _mm512_shuffle_epi8(table, indices);
        fn even_bytes(a: __m512i) -> __m512i = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a));
        fn odd_bytes(a: __m512i) -> __m512i = _mm512_srai_epi16::<8>(a);
        fn int4_multipliers(fields: __m512i) -> __m512i = {
            // The permutation looks at five bits of an index and at no other.
            let [positive, negative] = [SIZES[0].as_ptr(), SIZES[1].as_ptr()].map(|p| _mm512_loadu_epi32(p));
            _mm512_permutex2var_epi32(positive, fields, negative)
        };
        fn dot_bytes(sums: __m512i, codes: __m512i, numbers: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(sums, codes, numbers);
        fn wide_zero() -> __m512i = _mm512_setzero_si512();
        fn dot_words(sums: __m512i, a: __m512i, b: __m512i) -> __m512i = _mm512_dpwssd_epi32(sums, a, b);
        fn transpose(groups: [__m512i; 4]) -> [__m512i; 4] = {
            let [a, b, c, d] = groups;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (upper_ab, upper_cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(upper_ab, upper_cd),
                _mm512_unpackhi_epi64(upper_ab, upper_cd),
            ]
        };
        fn mixed(a: __m512i) -> __m512i = _mm512_permutexvar_epi32(mix_512(), a);
        fn unmixed(a: __m512) -> __m512 = _mm512_permutexvar_ps(mix_512(), a); // a 4 x 4 transposition: its own inverse
        fn group_sums(numbers: [__m512i; 4]) -> __m512i = {
            let [a, b, c, d] = numbers;
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            _mm512_permutexvar_epi32(mix_512(), sums)
        };
        fn to_floats(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn power_of_two(biased: __m512i) -> __m512 = {
            let clamped = _mm512_min_epi32(_mm512_max_epi32(biased, _mm512_set1_epi32(1)), _mm512_set1_epi32(254));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(clamped))
        };
        fn as_floats(bits: __m512i) -> __m512 = _mm512_castsi512_ps(bits);
        fn to_bits(numbers: __m512) -> __m512i = _mm512_castps_si512(numbers);
        fn zeros() -> __m512 = _mm512_setzero_ps();
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn nibble_floats(table: &[f32; 16], nibbles: __m512i, index: u32) -> __m512 =
            // The permutation looks at four bits of an index and at no other.
            _mm512_permutexvar_ps(_mm512_srl_epi32(nibbles, _mm_cvtsi32_si128(4 * index as i32)), _mm512_loadu_ps(table.as_ptr()));
        fn fold(lanes: [__m512; 4]) -> f32 =
            fold_256(_mm512_castps512_ps256(lanes[0]), _mm512_extractf32x8_ps::<1>(lanes[0]));
    }
}

#[inline(always)]
unsafe fn mix_512() -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15) }
}

/// The sum of 16 lanes in two vectors.
#[inline(always)]
unsafe fn fold_256(low: __m256, high: __m256) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Both machines with 256-bit vectors, which differ in how they sum products.
macro_rules! machine_256 {
    ($name:ident, $codes:expr, { $($sums:tt)* }) => {
        #[derive(Clone, Copy)]
        #[doc = concat!("256-bit vectors: ", stringify!($name), ".")]
        pub(super) struct $name(());

        impl $name {
            /// # Safety
            /// The processor must have the instructions.
            pub(super) unsafe fn new() -> Self {
                $name(())
            }
        }

        impl Machine for $name {
            const LANES: usize = 8;
            const CODES: Codes = $codes;
            const MANY_REGISTERS: bool = false;
            type Int = __m256i;
            type Float = __m256;
            type Wide = __m256i;

            pointer_methods! {
                fn load(from: *const u8) -> __m256i = _mm256_loadu_si256(from.cast());
                fn store(to: *mut u8, a: __m256i) -> () = _mm256_storeu_si256(to.cast(), a);
                fn load_floats(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
                fn store_floats(to: *mut f32, a: __m256) -> () = _mm256_storeu_ps(to, a);
                fn widen_bytes(from: *const u8) -> __m256i = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
                fn widen_words(from: *const u8) -> __m256i = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            }

            #[inline(always)]
            fn wide_sum(self, sums: __m256i) -> __m256i {
                sums
            }

            methods! {
                fn prefetch(line: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(line.cast());
                fn prefetch_later(line: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(line.cast());
                fn splat(number: i32) -> __m256i = _mm256_set1_epi32(number);
                fn table(bytes: &[i8; 16]) -> __m256i =
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
                fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
                fn xor(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
                fn add(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
                fn sub(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
                fn multiply(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
                fn multiply_words(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi16(a, b);
                fn shift_left(a: __m256i, bits: u32) -> __m256i =
                    _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits as i32));
                fn shift_right(a: __m256i, bits: u32) -> __m256i =
                    _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits as i32));
                fn shift_right_signed(a: __m256i, bits: u32) -> __m256i =
                    _mm256_sra_epi32(a, _mm_cvtsi32_si128(bits as i32));
                fn low_nibbles(a: __m256i) -> __m256i = _mm256_and_si256(a, _mm256_set1_epi8(15));
                fn high_nibbles(a: __m256i) -> __m256i =
                    _mm256_and_si256(_mm256_srli_epi16::<4>(a), _mm256_set1_epi8(15));
                fn lookup(table: __m256i, indices: __m256i) -> __m256i = _mm256_shuffle_epi8(table, indices);
                fn even_bytes(a: __m256i) -> __m256i = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a));
                fn odd_bytes(a: __m256i) -> __m256i = _mm256_srai_epi16::<8>(a);
                fn int4_multipliers(fields: __m256i) -> __m256i = {
                    let size = _mm256_add_epi32(_mm256_and_si256(fields, _mm256_set1_epi32(7)), _mm256_set1_epi32(8));
                    let doubled = _mm256_and_si256(_mm256_srli_epi32::<3>(fields), _mm256_set1_epi32(1));
                    let sign = _mm256_or_si256(_mm256_slli_epi32::<27>(fields), _mm256_set1_epi32(1));
                    _mm256_sign_epi32(_mm256_sllv_epi32(size, doubled), sign)
                };
                fn wide_zero() -> __m256i = _mm256_setzero_si256();
                fn transpose(groups: [__m256i; 4]) -> [__m256i; 4] = {
                    let [a, b, c, d] = groups;
                    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
                    let (upper_ab, upper_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
                    [
                        _mm256_unpacklo_epi64(ab, cd),
                        _mm256_unpackhi_epi64(ab, cd),
                        _mm256_unpacklo_epi64(upper_ab, upper_cd),
                        _mm256_unpackhi_epi64(upper_ab, upper_cd),
                    ]
                };
                // Vector q holds groups 2 q and 2 q + 1, of which one goes to the lower half.
                fn mixed(a: __m256i) -> __m256i =
                    _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
                fn unmixed(a: __m256) -> __m256 =
                    _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
                fn group_sums(numbers: [__m256i; 4]) -> __m256i = {
                    let [a, b, c, d] = numbers;
                    let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
                    let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
                    let sums = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
                    _mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
                };
                fn to_floats(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
                fn power_of_two(biased: __m256i) -> __m256 = {
                    let clamped = _mm256_min_epi32(_mm256_max_epi32(biased, _mm256_set1_epi32(1)), _mm256_set1_epi32(254));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(clamped))
                };
                fn as_floats(bits: __m256i) -> __m256 = _mm256_castsi256_ps(bits);
                fn to_bits(numbers: __m256) -> __m256i = _mm256_castps_si256(numbers);
                fn zeros() -> __m256 = _mm256_setzero_ps();
                fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
                fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
                fn nibble_floats(table: &[f32; 16], nibbles: __m256i, index: u32) -> __m256 = {
                    // A permutation looks at three bits of an index; the fourth, as the sign of a number, chooses.
                    let [low, high] = [table.as_ptr(), table.as_ptr().add(8)].map(|half| _mm256_loadu_ps(half));
                    let at = _mm256_srl_epi32(nibbles, _mm_cvtsi32_si128(4 * index as i32));
                    let upper = _mm256_castsi256_ps(_mm256_sll_epi32(nibbles, _mm_cvtsi32_si128(28 - 4 * index as i32)));
                    let [low, high] = [low, high].map(|half| _mm256_permutevar8x32_ps(half, at));
                    _mm256_blendv_ps(low, high, upper)
                };
                fn fold(lanes: [__m256; 4]) -> f32 = fold_256(lanes[0], lanes[1]);
            }

            $($sums)*
        }
    };
}

machine_256!(AvxVnni, Codes::OffsetBytes, {
    methods! {
        fn dot_bytes(sums: __m256i, codes: __m256i, numbers: __m256i) -> __m256i =
            _mm256_dpbusd_avx_epi32(sums, codes, numbers);
        fn dot_words(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpwssd_avx_epi32(sums, a, b);
    }
});

machine_256!(Avx2, Codes::Words, {
    methods! {
        fn dot_words(sums: __m256i, a: __m256i, b: __m256i) -> __m256i =
            _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
    }

    fn dot_bytes(self, _sums: __m256i, _codes: __m256i, _numbers: __m256i) -> __m256i {
        unreachable!("this machine multiplies words")
    }
});
