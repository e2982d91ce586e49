//! Sixteen lanes as an array: what the others are compared with, and what unknown processors run.

#![expect(clippy::inline_always, reason = "vectors are to stay in registers from one operation to the next")]

use super::{Block, LANES, Simd};
use std::array::from_fn;

/// No instructions beyond the compiler's target.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Floats = [f32; LANES];
    type Ints = [i32; LANES];
    type Mask = [bool; LANES];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Block {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &Block) -> Block {
        *x
    }
    #[inline(always)]
    fn store(self, x: Block, to: &mut Block) {
        *to = x;
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Block {
        let mut block = [0.0; LANES];
        block[..x.len()].copy_from_slice(x);
        block
    }
    #[inline(always)]
    fn store_part(self, x: Block, to: &mut [f32]) {
        to.copy_from_slice(&x[..to.len()]);
    }
    #[inline(always)]
    fn add(self, a: Block, b: Block) -> Block {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Block, b: Block) -> Block {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Block, b: Block) -> Block {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Block, b: Block) -> Block {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Block, b: Block, c: Block) -> Block {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max_or(self, a: Block, b: Block) -> Block {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn less(self, a: Block, b: Block) -> [bool; LANES] {
        from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn is_nan(self, a: Block) -> [bool; LANES] {
        a.map(f32::is_nan)
    }
    #[inline(always)]
    fn select(self, mask: [bool; LANES], yes: Block, no: Block) -> Block {
        from_fn(|i| if mask[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn mask_bits(self, mask: [bool; LANES]) -> u32 {
        mask.iter().rev().fold(0, |bits, yes| bits << 1 | u32::from(*yes))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> [i32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    fn bits(self, x: Block) -> [i32; LANES] {
        x.map(|x| x.to_bits().cast_signed())
    }
    #[inline(always)]
    fn with_bits(self, x: [i32; LANES]) -> Block {
        x.map(|x| f32::from_bits(x.cast_unsigned()))
    }
    #[inline(always)]
    fn to_floats(self, x: [i32; LANES]) -> Block {
        x.map(|x| x as f32)
    }
    #[inline(always)]
    fn add_int(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_int(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn and(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn to_exponent(self, x: [i32; LANES]) -> [i32; LANES] {
        x.map(|x| x << 23)
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}
    #[inline(always)]
    fn fold_all(self, x: [Block; LANES]) -> Block {
        x.map(|x| self.fold(x))
    }
}
