//! A machine of plain Rust, 128 bits wide as NEON's is: for processors without a machine of their own, and so that
//! kernels for such vectors are tested everywhere. Nobody should have to wait for it.
#![expect(clippy::inline_always, reason = "kernels are inlined as a whole")]

use super::machine::{Codes, Machine};
use bytemuck::cast;

/// Arrays of 16 bytes.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// Lane by lane.
#[inline(always)]
fn map<const N: usize, A: Copy, B: Copy, C>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> C) -> [C; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// The words of a vector.
#[inline(always)]
fn words(a: [i32; 4]) -> [i16; 8] {
    cast(a)
}

/// The bytes of a vector.
#[inline(always)]
fn bytes(a: [i32; 4]) -> [i8; 16] {
    cast(a)
}

impl Machine for Portable {
    const LANES: usize = 4;
    const CODES: Codes = Codes::SignedBytes;
    const MANY_REGISTERS: bool = false;
    type Int = [i32; 4];
    type Float = [f32; 4];
    type Wide = [i32; 4];

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> [i32; 4] {
        // SAFETY: the caller promised that the bytes are there.
        unsafe { from.cast::<[i32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, a: [i32; 4]) {
        // SAFETY: the caller promised that the bytes are there.
        unsafe { to.cast::<[i32; 4]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_floats(self, from: *const f32) -> [f32; 4] {
        // SAFETY: the caller promised that the numbers are there.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_floats(self, to: *mut f32, a: [f32; 4]) {
        // SAFETY: the caller promised that the numbers are there.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn widen_bytes(self, from: *const u8) -> [i32; 4] {
        // SAFETY: the caller promised that the bytes are there.
        unsafe { from.cast::<[u8; 4]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn widen_words(self, from: *const u8) -> [i32; 4] {
        // SAFETY: the caller promised that the bytes are there.
        unsafe { from.cast::<[u16; 4]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    fn prefetch(self, _line: *const u8) {}
    #[inline(always)]
    fn prefetch_later(self, _line: *const u8) {}
    #[inline(always)]
    fn splat(self, number: i32) -> [i32; 4] {
        [number; 4]
    }
    #[inline(always)]
    fn table(self, bytes: &[i8; 16]) -> [i32; 4] {
        cast(*bytes)
    }
    #[inline(always)]
    fn and(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        map(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn xor(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        map(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        map(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        map(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn multiply(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        map(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn multiply_words(self, a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        cast(map(words(a), words(b), i16::wrapping_mul))
    }
    #[inline(always)]
    fn shift_left(self, a: [i32; 4], bits: u32) -> [i32; 4] {
        a.map(|a| a << bits)
    }
    #[inline(always)]
    fn shift_right(self, a: [i32; 4], bits: u32) -> [i32; 4] {
        a.map(|a| (a.cast_unsigned() >> bits).cast_signed())
    }
    #[inline(always)]
    fn shift_right_signed(self, a: [i32; 4], bits: u32) -> [i32; 4] {
        a.map(|a| a >> bits)
    }
    #[inline(always)]
    fn low_nibbles(self, a: [i32; 4]) -> [i32; 4] {
        a.map(|a| a & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn high_nibbles(self, a: [i32; 4]) -> [i32; 4] {
        a.map(|a| (a >> 4) & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn lookup(self, table: [i32; 4], indices: [i32; 4]) -> [i32; 4] {
        let table = bytes(table);
        cast(bytes(indices).map(|index| table[usize::from(index as u8 & 15)]))
    }
    #[inline(always)]
    fn even_bytes(self, a: [i32; 4]) -> [i32; 4] {
        cast(words(a).map(|word| (word << 8) >> 8))
    }
    #[inline(always)]
    fn odd_bytes(self, a: [i32; 4]) -> [i32; 4] {
        cast(words(a).map(|word| word >> 8))
    }
    #[inline(always)]
    fn int4_multipliers(self, fields: [i32; 4]) -> [i32; 4] {
        fields.map(|field| ops::packing::int4::multiplier(field as u16))
    }
    #[inline(always)]
    fn dot_bytes(self, sums: [i32; 4], codes: [i32; 4], numbers: [i32; 4]) -> [i32; 4] {
        let (codes, numbers) = (bytes(codes), bytes(numbers));
        let product = |i: usize| i32::from(codes[i]) * i32::from(numbers[i]);
        std::array::from_fn(|i| sums[i] + (4 * i..4 * i + 4).map(product).sum::<i32>())
    }
    #[inline(always)]
    fn wide_zero(self) -> [i32; 4] {
        [0; 4]
    }
    #[inline(always)]
    fn dot_words(self, sums: [i32; 4], a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        let (a, b) = (words(a), words(b));
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        std::array::from_fn(|i| sums[i] + product(2 * i) + product(2 * i + 1))
    }
    #[inline(always)]
    fn wide_sum(self, sums: [i32; 4]) -> [i32; 4] {
        sums
    }
    #[inline(always)]
    fn transpose(self, groups: [[i32; 4]; 4]) -> [[i32; 4]; 4] {
        std::array::from_fn(|m| groups.map(|group| group[m]))
    }
    #[inline(always)]
    fn mixed(self, a: [i32; 4]) -> [i32; 4] {
        a
    }
    #[inline(always)]
    fn unmixed(self, a: [f32; 4]) -> [f32; 4] {
        a
    }
    #[inline(always)]
    fn group_sums(self, numbers: [[i32; 4]; 4]) -> [i32; 4] {
        numbers.map(|four| four.iter().sum())
    }
    #[inline(always)]
    fn to_floats(self, a: [i32; 4]) -> [f32; 4] {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn power_of_two(self, biased: [i32; 4]) -> [f32; 4] {
        biased.map(|biased| f32::from_bits(biased.clamp(1, 254).cast_unsigned() << 23))
    }
    #[inline(always)]
    fn as_floats(self, bits: [i32; 4]) -> [f32; 4] {
        cast(bits)
    }
    #[inline(always)]
    fn to_bits(self, numbers: [f32; 4]) -> [i32; 4] {
        cast(numbers)
    }
    #[inline(always)]
    fn zeros(self) -> [f32; 4] {
        [0.0; 4]
    }
    #[inline(always)]
    fn mul(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn nibble_floats(self, table: &[f32; 16], nibbles: [i32; 4], index: u32) -> [f32; 4] {
        nibbles.map(|four| table[(four >> (4 * index)) as usize & 15])
    }
    #[inline(always)]
    fn fold(self, lanes: [[f32; 4]; 4]) -> f32 {
        let [a, b, c, d] = lanes;
        let (low, high) = (map(a, c, |a, c| a + c), map(b, d, |b, d| b + d));
        let four = map(low, high, |a, b| a + b);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}
