//! Sixteen lanes in four registers of NEON.

#![expect(clippy::inline_always, reason = "vectors are to stay in registers from one operation to the next")]

use super::{Block, Kernel, LANES, Simd};
use core::arch::aarch64::{
    float32x4_t, float32x4x3_t, int32x4_t, uint32x4_t, vabsq_f32, vaddq_f32, vaddq_s32, vandq_s32, vbslq_f32,
    vceqq_f32, vcgtq_f32, vcltq_f32, vcombine_f32, vcvtq_f32_s32, vdivq_f32, vdupq_n_f32, vdupq_n_s32,
    vfmaq_f32, vget_high_f32, vget_low_f32, vgetq_lane_u32, vld1q_f32, vld3q_f32, vld4q_f32, vmulq_f32,
    vmvnq_u32, vorrq_s32, vpaddq_f32, vreinterpretq_f32_s32, vreinterpretq_s32_f32, vshlq_n_s32, vst1q_f32,
    vst3q_f32, vsubq_f32, vsubq_s32,
};
use std::arch::asm;
use std::array::from_fn;

/// All AArch64 processors have NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

/// Runs a kernel with NEON, which the target enables everywhere.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

/// A call of instructions that all AArch64 processors have.
macro_rules! op {
    ($call:expr) => {
        // SAFETY: NEON is part of the target.
        unsafe { $call }
    };
}

/// An instruction on all four quarters.
macro_rules! all {
    ($call:ident($($x:ident),*)) => {
        op!([
            $call($($x[0]),*),
            $call($($x[1]),*),
            $call($($x[2]),*),
            $call($($x[3]),*),
        ])
    };
}

/// Four lanes four times.
type Floats = [float32x4_t; 4];
type Ints = [int32x4_t; 4];
type Mask = [uint32x4_t; 4];

impl Simd for Neon {
    type Floats = Floats;
    type Ints = Ints;
    type Mask = Mask;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Floats {
        op!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn load(self, x: &Block) -> Floats {
        let quarters = x.as_chunks::<4>().0;
        // SAFETY: a quarter is 4 numbers; for the instruction see `op`.
        from_fn(|i| unsafe { vld1q_f32(quarters[i].as_ptr()) })
    }
    #[inline(always)]
    fn store(self, x: Floats, to: &mut Block) {
        for (x, quarter) in x.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: a quarter is 4 numbers; for the instruction see `op`.
            unsafe { vst1q_f32(quarter.as_mut_ptr(), x) };
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
        all!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        all!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        all!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        all!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        all!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max_or(self, a: Floats, b: Floats) -> Floats {
        let larger = all!(vcgtq_f32(a, b));
        all!(vbslq_f32(larger, a, b))
    }
    #[inline(always)]
    fn less(self, a: Floats, b: Floats) -> Mask {
        all!(vcltq_f32(a, b))
    }
    #[inline(always)]
    fn is_nan(self, a: Floats) -> Mask {
        let is_number = all!(vceqq_f32(a, a));
        all!(vmvnq_u32(is_number))
    }
    #[inline(always)]
    fn select(self, mask: Mask, yes: Floats, no: Floats) -> Floats {
        all!(vbslq_f32(mask, yes, no))
    }
    #[inline(always)]
    fn mask_bits(self, mask: Mask) -> u32 {
        let quarter = |x: uint32x4_t| {
            op!({
                (vgetq_lane_u32::<0>(x) & 1)
                    | (vgetq_lane_u32::<1>(x) & 2)
                    | (vgetq_lane_u32::<2>(x) & 4)
                    | (vgetq_lane_u32::<3>(x) & 8)
            })
        };
        quarter(mask[0]) | quarter(mask[1]) << 4 | quarter(mask[2]) << 8 | quarter(mask[3]) << 12
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Ints {
        op!([vdupq_n_s32(x); 4])
    }
    #[inline(always)]
    fn bits(self, x: Floats) -> Ints {
        all!(vreinterpretq_s32_f32(x))
    }
    #[inline(always)]
    fn with_bits(self, x: Ints) -> Floats {
        all!(vreinterpretq_f32_s32(x))
    }
    #[inline(always)]
    fn to_floats(self, x: Ints) -> Floats {
        all!(vcvtq_f32_s32(x))
    }
    #[inline(always)]
    fn add_int(self, a: Ints, b: Ints) -> Ints {
        all!(vaddq_s32(a, b))
    }
    #[inline(always)]
    fn sub_int(self, a: Ints, b: Ints) -> Ints {
        all!(vsubq_s32(a, b))
    }
    #[inline(always)]
    fn and(self, a: Ints, b: Ints) -> Ints {
        all!(vandq_s32(a, b))
    }
    #[inline(always)]
    fn or(self, a: Ints, b: Ints) -> Ints {
        all!(vorrq_s32(a, b))
    }
    #[inline(always)]
    fn to_exponent(self, x: Ints) -> Ints {
        op!([
            vshlq_n_s32::<23>(x[0]),
            vshlq_n_s32::<23>(x[1]),
            vshlq_n_s32::<23>(x[2]),
            vshlq_n_s32::<23>(x[3])
        ])
    }
    #[inline(always)]
    fn prefetch(self, address: *const f32) {
        // There is no stable intrinsic.
        // SAFETY: it only asks for the line, whatever the address.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
        }
    }
    #[inline(always)]
    fn abs(self, x: Floats) -> Floats {
        all!(vabsq_f32(x))
    }

    /// The last two steps of the tree add neighbours, so that the numbers of a quarter are put in that order first.
    #[inline(always)]
    fn fold_all(self, x: [Floats; LANES]) -> Floats {
        // Numbers 0 to 3 of the four, then 0 + 2 and 1 + 3 of two vectors, then their sums of four vectors.
        let four = |x: Floats| op!(vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3])));
        from_fn(|i| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| four(x[4 * i + j]));
            op!(vpaddq_f32(twos(a, b), twos(c, d)))
        })
    }

    #[inline(always)]
    fn split_4(self, x: &[Block; 4]) -> [Floats; 4] {
        // SAFETY: each of the four loads takes 16 numbers, a block; for the instruction see `op`.
        let quarters: [_; 4] = from_fn(|i| unsafe { vld4q_f32(x[i].as_ptr()) });
        [
            from_fn(|i| quarters[i].0),
            from_fn(|i| quarters[i].1),
            from_fn(|i| quarters[i].2),
            from_fn(|i| quarters[i].3),
        ]
    }
    #[inline(always)]
    fn split_3(self, x: &[Block; 3]) -> [Floats; 3] {
        let quarters = x.as_flattened().as_chunks::<12>().0;
        // SAFETY: each of the four loads takes 12 numbers; for the instruction see `op`.
        let quarters: [_; 4] = from_fn(|i| unsafe { vld3q_f32(quarters[i].as_ptr()) });
        [from_fn(|i| quarters[i].0), from_fn(|i| quarters[i].1), from_fn(|i| quarters[i].2)]
    }
    #[inline(always)]
    fn join_3(self, x: [Floats; 3], to: &mut [Block; 3]) {
        for (i, to) in to.as_flattened_mut().as_chunks_mut::<12>().0.iter_mut().enumerate() {
            // SAFETY: the store writes 12 numbers; for the instruction see `op`.
            unsafe { vst3q_f32(to.as_mut_ptr(), float32x4x3_t(x[0][i], x[1][i], x[2][i])) };
        }
    }
}

/// Numbers 2 and 3 of each vector onto 0 and 1: first those of `a`, then those of `b`.
#[inline(always)]
fn twos(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    op!(vaddq_f32(
        vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
        vcombine_f32(vget_high_f32(a), vget_high_f32(b))
    ))
}
