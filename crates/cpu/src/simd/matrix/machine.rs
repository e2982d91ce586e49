//! The vector instructions that matrix kernels are made of, by one name on every processor. What each does is said
//! here; how, in the file of each machine. It knows no packing and no kernel.
//!
//! A value of a machine is proof that the processor has its instructions: [`super::dispatch`] alone makes one, after
//! asking. So all methods are safe but those that follow pointers.

/// How the codes of weights meet integer activations in kernels for few rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codes {
    /// As unsigned bytes, a constant added: `vpdpbusd` wants one factor unsigned.
    OffsetBytes,
    /// As signed bytes.
    SignedBytes,
    /// As 16-bit words, where the processor has no sums of byte products.
    Words,
}

/// Vectors of `LANES` 32-bit numbers, `2 LANES` 16-bit words, `4 LANES` bytes.
pub(crate) trait Machine: Copy {
    /// 32-bit numbers in a vector: 4, 8 or 16.
    const LANES: usize;
    /// Bytes in a vector.
    const BYTES: usize = 4 * Self::LANES;
    /// How codes meet integers.
    const CODES: Codes;
    /// Whether there are 32 registers and not 16.
    const MANY_REGISTERS: bool;
    /// An integer vector.
    type Int: Copy;
    /// A vector of f32.
    type Float: Copy;
    /// Running sums of products of words; [`Machine::wide_sum`] makes a vector of it.
    type Wide: Copy;

    /// `LANES` vectors from anywhere.
    ///
    /// # Safety
    /// `BYTES` bytes from `from` on must be readable.
    unsafe fn load(self, from: *const u8) -> Self::Int;
    /// # Safety
    /// `BYTES` bytes from `to` on must be writable.
    unsafe fn store(self, to: *mut u8, a: Self::Int);
    /// # Safety
    /// `LANES` numbers from `from` on must be readable.
    unsafe fn load_floats(self, from: *const f32) -> Self::Float;
    /// # Safety
    /// `LANES` numbers from `to` on must be writable.
    unsafe fn store_floats(self, to: *mut f32, a: Self::Float);
    /// `LANES` bytes, each widened to a 32-bit number.
    ///
    /// # Safety
    /// `LANES` bytes from `from` on must be readable.
    unsafe fn widen_bytes(self, from: *const u8) -> Self::Int;
    /// `LANES` words, each widened to a 32-bit number.
    ///
    /// # Safety
    /// `2 LANES` bytes from `from` on must be readable.
    unsafe fn widen_words(self, from: *const u8) -> Self::Int;
    /// Asks for a cache line that will be needed soon. Any address will do.
    fn prefetch(self, line: *const u8);
    /// The same for one that will be needed later: into the second cache only.
    fn prefetch_later(self, line: *const u8);

    /// The same number in every lane.
    fn splat(self, number: i32) -> Self::Int;
    /// The same 16 bytes in every 16 bytes.
    fn table(self, bytes: &[i8; 16]) -> Self::Int;
    /// Bits in both.
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Bits in one of both.
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lane by lane.
    fn add(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lane by lane.
    fn sub(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lane by lane, the lower 32 bits.
    fn multiply(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Word by word, the lower 16 bits.
    fn multiply_words(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lane by lane.
    fn shift_left(self, a: Self::Int, bits: u32) -> Self::Int;
    /// Lane by lane, zeros from above.
    fn shift_right(self, a: Self::Int, bits: u32) -> Self::Int;
    /// Lane by lane, the sign from above.
    fn shift_right_signed(self, a: Self::Int, bits: u32) -> Self::Int;
    /// The lower four bits of each byte.
    fn low_nibbles(self, a: Self::Int) -> Self::Int;
    /// The upper four bits of each byte.
    fn high_nibbles(self, a: Self::Int) -> Self::Int;
    /// By a table of 16 bytes, for indices 0 to 15.
    fn lookup(self, table: Self::Int, indices: Self::Int) -> Self::Int;
    /// The lower byte of each word, sign-extended to a word.
    fn even_bytes(self, a: Self::Int) -> Self::Int;
    /// The upper byte of each word, sign-extended to a word.
    fn odd_bytes(self, a: Self::Int) -> Self::Int;
    /// The multipliers that the lower five bits of each lane stand for (`ops::packing::int4::multiplier`).
    fn int4_multipliers(self, fields: Self::Int) -> Self::Int;

    /// `lane + sum of 4 products of bytes`; codes unsigned with [`Codes::OffsetBytes`], else signed. Machines with
    /// [`Codes::Words`] have none and panic.
    fn dot_bytes(self, sums: Self::Int, codes: Self::Int, numbers: Self::Int) -> Self::Int;
    /// No products yet.
    fn wide_zero(self) -> Self::Wide;
    /// `lane + sum of 2 products of words`.
    fn dot_words(self, sums: Self::Wide, a: Self::Int, b: Self::Int) -> Self::Wide;
    /// The running sums.
    fn wide_sum(self, sums: Self::Wide) -> Self::Int;

    /// Four vectors of groups of 16 bytes, transposed: lane i of vector m of the result is 32-bit number m of a group.
    /// Which group, [`Machine::mixed`] says.
    fn transpose(self, groups: [Self::Int; 4]) -> [Self::Int; 4];
    /// The order that [`Machine::transpose`] brings groups into: lane i of the result is the lane of `a` whose group
    /// is in lane i of a transposed vector.
    fn mixed(self, a: Self::Int) -> Self::Int;
    /// The inverse of [`Machine::mixed`].
    fn unmixed(self, a: Self::Float) -> Self::Float;
    /// The sums of 4 neighbours in four vectors, in order.
    fn group_sums(self, numbers: [Self::Int; 4]) -> Self::Int;

    /// Rounded half to even.
    fn to_floats(self, a: Self::Int) -> Self::Float;
    /// `2^(clamp(biased, 1, 254) - 127)`.
    fn power_of_two(self, biased: Self::Int) -> Self::Float;
    /// The bits of f32 numbers.
    fn as_floats(self, bits: Self::Int) -> Self::Float;
    /// The bits of f32 numbers, the other way.
    fn to_bits(self, numbers: Self::Float) -> Self::Int;
    /// All lanes +0.
    fn zeros(self) -> Self::Float;
    /// Lane by lane, rounded once.
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c` lane by lane, rounded once.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// The codes that nibble `index` (0 to 7) of each lane stands for. `table` holds the 16 codes as f32.
    fn nibble_floats(self, table: &[f32; 16], nibbles: Self::Int, index: u32) -> Self::Float;
    /// The sum of 16 lanes, the upper half onto the lower, in `16 / LANES` vectors.
    fn fold(self, lanes: [Self::Float; 4]) -> f32;
}
