//! The machines of AArch64: NEON, and NEON with dot products of bytes.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]
#![allow(clippy::wildcard_imports, reason = "instructions are what this file is about")]

use super::machine::{Codes, Machine};
use std::arch::aarch64::*;
use std::arch::asm;

/// Methods of a machine, each one expression of intrinsics.
macro_rules! methods {
    ($(fn $name:ident($($a:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        fn $name(self, $($a: $type),*) -> $result {
            // SAFETY: NEON is part of the target, and these instructions follow no pointer but to arguments that are
            // large enough.
            unsafe { $body }
        }
    )* };
}

/// Methods that follow a pointer.
macro_rules! pointer_methods {
    ($(fn $name:ident($($a:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, $($a: $type),*) -> $result {
            // SAFETY: the caller promised that the bytes are there; NEON is part of the target.
            unsafe { $body }
        }
    )* };
}

/// `lane + sum of 4 products of signed bytes`. The intrinsic of this name is not stable yet.
///
/// # Safety
/// The processor must have dot products.
#[inline(always)]
unsafe fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has the instruction, which touches its registers only.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Both machines, which differ in how they sum products of few inputs.
macro_rules! machine_128 {
    ($name:ident, $codes:expr, { $($sums:tt)* }) => {
        #[derive(Clone, Copy)]
        #[doc = concat!("128-bit vectors: ", stringify!($name), ".")]
        pub(super) struct $name(());

        impl $name {
            /// # Safety
            /// The processor must have the instructions.
            pub(super) unsafe fn new() -> Self {
                $name(())
            }
        }

        impl Machine for $name {
            const LANES: usize = 4;
            const CODES: Codes = $codes;
            const MANY_REGISTERS: bool = true;
            type Int = int32x4_t;
            type Float = float32x4_t;
            /// The products of the lower and of the upper four words; neighbours are added at the end.
            type Wide = [int32x4_t; 2];

            pointer_methods! {
                fn load(from: *const u8) -> int32x4_t = vreinterpretq_s32_u8(vld1q_u8(from));
                fn store(to: *mut u8, a: int32x4_t) -> () = vst1q_u8(to, vreinterpretq_u8_s32(a));
                fn load_floats(from: *const f32) -> float32x4_t = vld1q_f32(from);
                fn store_floats(to: *mut f32, a: float32x4_t) -> () = vst1q_f32(to, a);
                fn widen_bytes(from: *const u8) -> int32x4_t = {
                    let bytes = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
                    vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
                };
                fn widen_words(from: *const u8) -> int32x4_t =
                    vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from))));
            }

            #[inline(always)]
            fn prefetch(self, line: *const u8) {
                // SAFETY: it only asks for the line, whatever the address.
                unsafe {
                    asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
                }
            }

            #[inline(always)]
            fn prefetch_later(self, line: *const u8) {
                // SAFETY: it only asks for the line, whatever the address.
                unsafe {
                    asm!("prfm pldl2keep, [{0}]", in(reg) line, options(nostack, readonly, preserves_flags));
                }
            }

            methods! {
                fn splat(number: i32) -> int32x4_t = vdupq_n_s32(number);
                fn table(bytes: &[i8; 16]) -> int32x4_t = vreinterpretq_s32_s8(vld1q_s8(bytes.as_ptr()));
                fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t = vandq_s32(a, b);
                fn xor(a: int32x4_t, b: int32x4_t) -> int32x4_t = veorq_s32(a, b);
                fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
                fn sub(a: int32x4_t, b: int32x4_t) -> int32x4_t = vsubq_s32(a, b);
                fn multiply(a: int32x4_t, b: int32x4_t) -> int32x4_t = vmulq_s32(a, b);
                fn multiply_words(a: int32x4_t, b: int32x4_t) -> int32x4_t =
                    vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
                fn shift_left(a: int32x4_t, bits: u32) -> int32x4_t = vshlq_s32(a, vdupq_n_s32(bits as i32));
                fn shift_right(a: int32x4_t, bits: u32) -> int32x4_t =
                    vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-(bits as i32))));
                fn shift_right_signed(a: int32x4_t, bits: u32) -> int32x4_t =
                    vshlq_s32(a, vdupq_n_s32(-(bits as i32)));
                fn low_nibbles(a: int32x4_t) -> int32x4_t = vandq_s32(a, vdupq_n_s32(0x0f0f_0f0f));
                fn high_nibbles(a: int32x4_t) -> int32x4_t =
                    vreinterpretq_s32_u8(vshrq_n_u8::<4>(vreinterpretq_u8_s32(a)));
                fn lookup(table: int32x4_t, indices: int32x4_t) -> int32x4_t =
                    vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(indices)));
                fn even_bytes(a: int32x4_t) -> int32x4_t =
                    vreinterpretq_s32_s16(vshrq_n_s16::<8>(vshlq_n_s16::<8>(vreinterpretq_s16_s32(a))));
                fn odd_bytes(a: int32x4_t) -> int32x4_t =
                    vreinterpretq_s32_s16(vshrq_n_s16::<8>(vreinterpretq_s16_s32(a)));
                fn int4_multipliers(fields: int32x4_t) -> int32x4_t = {
                    let size = vaddq_s32(vandq_s32(fields, vdupq_n_s32(7)), vdupq_n_s32(8));
                    let doubled = vandq_s32(vshrq_n_s32::<3>(fields), vdupq_n_s32(1));
                    // Minus one where the sign is set: x ^ -1 - -1 is -x.
                    let sign = vshrq_n_s32::<31>(vshlq_n_s32::<27>(fields));
                    vsubq_s32(veorq_s32(vshlq_s32(size, doubled), sign), sign)
                };
                fn wide_zero() -> [int32x4_t; 2] = [vdupq_n_s32(0); 2];
                fn dot_words(sums: [int32x4_t; 2], a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] = {
                    let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
                    [vmlal_s16(sums[0], vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sums[1], a, b)]
                };
                fn wide_sum(sums: [int32x4_t; 2]) -> int32x4_t = vpaddq_s32(sums[0], sums[1]);
                fn transpose(groups: [int32x4_t; 4]) -> [int32x4_t; 4] = {
                    let [a, b, c, d] = groups;
                    let pair = |x, y| [vtrn1q_s32(x, y), vtrn2q_s32(x, y)].map(|v| vreinterpretq_s64_s32(v));
                    let ([ab, ab_odd], [cd, cd_odd]) = (pair(a, b), pair(c, d));
                    [
                        vtrn1q_s64(ab, cd),
                        vtrn1q_s64(ab_odd, cd_odd),
                        vtrn2q_s64(ab, cd),
                        vtrn2q_s64(ab_odd, cd_odd),
                    ]
                    .map(|v| vreinterpretq_s32_s64(v))
                };
                fn group_sums(numbers: [int32x4_t; 4]) -> int32x4_t =
                    vpaddq_s32(vpaddq_s32(numbers[0], numbers[1]), vpaddq_s32(numbers[2], numbers[3]));
                fn to_floats(a: int32x4_t) -> float32x4_t = vcvtq_f32_s32(a);
                fn power_of_two(biased: int32x4_t) -> float32x4_t = {
                    let clamped = vminq_s32(vmaxq_s32(biased, vdupq_n_s32(1)), vdupq_n_s32(254));
                    vreinterpretq_f32_s32(vshlq_n_s32::<23>(clamped))
                };
                fn as_floats(bits: int32x4_t) -> float32x4_t = vreinterpretq_f32_s32(bits);
                fn to_bits(numbers: float32x4_t) -> int32x4_t = vreinterpretq_s32_f32(numbers);
                fn zeros() -> float32x4_t = vdupq_n_f32(0.0);
                fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
                fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
                fn nibble_floats(table: &[f32; 16], nibbles: int32x4_t, index: u32) -> float32x4_t = {
                    // The numbers as bytes, which all 16 are: those of the nibble in question in the lower bytes.
                    let small = vmovn_high_s32(
                        vmovn_s32(vcvtq_s32_f32(vld1q_f32(table.as_ptr()))),
                        vcvtq_s32_f32(vld1q_f32(table.as_ptr().add(4))),
                    );
                    let large = vmovn_high_s32(
                        vmovn_s32(vcvtq_s32_f32(vld1q_f32(table.as_ptr().add(8)))),
                        vcvtq_s32_f32(vld1q_f32(table.as_ptr().add(12))),
                    );
                    let bytes = vreinterpretq_u8_s8(vmovn_high_s16(vmovn_s16(small), large));
                    let shifted =
                        vshlq_u32(vreinterpretq_u32_s32(nibbles), vdupq_n_s32(-(4 * index as i32)));
                    let indices = vandq_u32(shifted, vdupq_n_u32(15));
                    let numbers = vreinterpretq_s32_u8(vqtbl1q_u8(bytes, vreinterpretq_u8_u32(indices)));
                    vcvtq_f32_s32(vshrq_n_s32::<24>(vshlq_n_s32::<24>(numbers)))
                };
                fn fold(lanes: [float32x4_t; 4]) -> f32 = {
                    let [a, b, c, d] = lanes;
                    let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
                    let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
                    vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
                };
            }

            #[inline(always)]
            fn mixed(self, a: int32x4_t) -> int32x4_t {
                a
            }

            #[inline(always)]
            fn unmixed(self, a: float32x4_t) -> float32x4_t {
                a
            }

            $($sums)*
        }
    };
}

machine_128!(NeonDot, Codes::SignedBytes, {
    methods! {
        fn dot_bytes(sums: int32x4_t, codes: int32x4_t, numbers: int32x4_t) -> int32x4_t =
            sdot(sums, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(numbers));
    }
});

machine_128!(Neon, Codes::Words, {
    fn dot_bytes(self, _sums: int32x4_t, _codes: int32x4_t, _numbers: int32x4_t) -> int32x4_t {
        unreachable!("this machine multiplies words")
    }
});
