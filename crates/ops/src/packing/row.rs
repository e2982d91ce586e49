//! One row of weights decoded, and its dot product with prepared activations: the contract of docs/numerics.md,
//! section 2, word for word. Nobody speeds this up; fast devices are compared with it.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per group"
)]

use super::activations::{IntegerRow, Prepared};
use super::{GROUP, decode_floats, int4, int8, layout, mxfp4, power_of_two};
use crate::lanes::{LANES, Lanes, dot};
use crate::tensor::Packing;
use std::hint::black_box;

/// A row of weights.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightRow {
    /// f32 or bf16, widened.
    Floats(Vec<f32>),
    /// `weight = code * 2^exponent`.
    Codes {
        /// One a column, in the order of the columns; at most [`super::CODE_MAX`] in size.
        codes: Vec<i16>,
        /// One for every group of 32 columns.
        exponents: Vec<i32>,
    },
}

impl WeightRow {
    /// Decodes the row of `cols` columns from its codes (or floats) and its scales.
    ///
    /// # Panics
    /// If the slices have not the lengths that [`layout`] gives.
    #[must_use]
    pub fn decode(packing: Packing, cols: usize, codes: &[u8], scales: &[u8]) -> Self {
        let sizes = layout(packing, 1, cols as u32);
        let expected = (sizes.code_row_bytes as usize, sizes.scale_row_bytes as usize);
        assert_eq!((codes.len(), scales.len()), expected, "bytes of a {} row of {cols}", packing.name());
        match packing {
            Packing::F32 | Packing::Bf16 => WeightRow::Floats(decode_floats(packing, codes)),
            Packing::Int8 => WeightRow::Codes {
                codes: (0..cols).map(|c| int8_code(c, cols, codes, scales)).collect(),
                exponents: scales.iter().map(|scale| int8::exponent(*scale)).collect(),
            },
            Packing::Int4 => WeightRow::Codes {
                codes: wide_scales(scales).zip(codes.as_chunks().0).flat_map(int4_codes).collect(),
                exponents: wide_scales(scales).map(int4::exponent).collect(),
            },
            Packing::Mxfp4 => WeightRow::Codes {
                codes: nibbles(codes).map(|nibble| mxfp4::CODES[nibble].into()).collect(),
                exponents: scales.iter().map(|scale| mxfp4::exponent(*scale)).collect(),
            },
        }
    }

    /// The weights as f32: exact, but for results below 2^-126.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        match self {
            WeightRow::Floats(values) => values.clone(),
            WeightRow::Codes { codes, exponents } => {
                let value = |(c, code): (usize, &i16)| f64::from(*code) * super::exp2(exponents[c / GROUP]);
                codes.iter().enumerate().map(value).map(|value| value as f32).collect()
            }
        }
    }

    /// The dot product with a row of activations.
    ///
    /// # Panics
    /// If the lengths differ, or if float weights meet integer activations.
    #[must_use]
    #[inline(always)]
    pub fn dot(&self, x: &Prepared) -> f32 {
        match (self, x) {
            (WeightRow::Floats(weights), Prepared::Floats(x)) => dot(weights, x),
            (WeightRow::Codes { codes, exponents }, Prepared::Floats(x)) => dot_floats(codes, exponents, x),
            (WeightRow::Codes { codes, exponents }, Prepared::Integers(x)) => {
                dot_integers(codes, exponents, x)
            }
            (WeightRow::Floats(_), Prepared::Integers(_)) => panic!("float weights meet float activations"),
        }
    }
}

/// `int15` and `int8`: the products of a group are summed as integers, `lane = fma(f32(p), 2^e, lane)`.
#[inline(always)]
fn dot_integers(codes: &[i16], exponents: &[i32], x: &IntegerRow) -> f32 {
    assert_eq!(codes.len(), x.q.len(), "columns of the weights and of the activations");
    if x.finite.contains(&false) {
        return f32::NAN;
    }
    let mut lanes = [0.0_f32; LANES];
    let (weights, inputs) = (codes.as_chunks::<GROUP>().0, x.q.as_chunks::<GROUP>().0);
    for (g, (codes, q)) in weights.iter().zip(inputs).enumerate() {
        let p = integer_dot(codes, q);
        let e = (exponents[g] + x.k[g]).clamp(-126, 127);
        let lane = &mut lanes[g % LANES];
        *lane = (p as f32).mul_add(power_of_two(e), *lane);
    }
    Lanes::from(lanes).fold()
}

/// The sum of a group's products: the same in any order.
#[inline(always)]
fn integer_dot(codes: &[i16; GROUP], q: &[i16; GROUP]) -> i32 {
    let mut sums = [0; 8];
    for (codes, q) in codes.as_chunks::<8>().0.iter().zip(q.as_chunks::<8>().0) {
        for ((sum, code), q) in sums.iter_mut().zip(codes).zip(q) {
            *sum += i32::from(*code) * i32::from(*q);
        }
    }
    // As in `Lanes::fold`: seen through, the final sum makes LLVM take the whole loop apart.
    black_box(sums).iter().sum()
}

/// `exact`: `p = fma(code, x, p)` over a group's columns in ascending order, `lane = fma(p, 2^e, lane)`.
#[inline(always)]
fn dot_floats(codes: &[i16], exponents: &[i32], x: &[f32]) -> f32 {
    assert_eq!(codes.len(), x.len(), "columns of the weights and of the activations");
    let mut lanes = [0.0_f32; LANES];
    let (weights, inputs) = (codes.as_chunks::<GROUP>().0, x.as_chunks::<GROUP>().0);
    for (g, (codes, x)) in weights.iter().zip(inputs).enumerate() {
        let p = codes.iter().zip(x).fold(0.0, |p, (code, x)| f32::from(*code).mul_add(*x, p));
        let lane = &mut lanes[g % LANES];
        *lane = p.mul_add(power_of_two(exponents[g].clamp(-126, 127)), *lane);
    }
    Lanes::from(lanes).fold()
}

/// Scales of two bytes each.
fn wide_scales(scales: &[u8]) -> impl Iterator<Item = u16> {
    scales.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

/// The nibbles of a row in the order of its columns.
fn nibbles(codes: &[u8]) -> impl Iterator<Item = usize> {
    codes.iter().flat_map(|byte| [usize::from(byte & 15), usize::from(byte >> 4)])
}

/// The code of one int8 column: number times multiplier.
fn int8_code(c: usize, cols: usize, numbers: &[u8], scales: &[u8]) -> i16 {
    let number = numbers[int8::position(c, cols)].cast_signed();
    i16::from(number) * int8::multiplier(scales[c / GROUP]) as i16
}

/// The codes of one int4 group in the order of its columns: number times multiplier.
fn int4_codes((scale, codes): (u16, &[u8; GROUP / 2])) -> impl Iterator<Item = i16> {
    let multipliers = int4::multipliers(scale).map(|multiplier| multiplier as i16);
    let code = move |(c, nibble): (usize, usize)| i16::from(int4::NUMBERS[nibble]) * multipliers[c % 2];
    nibbles(codes).enumerate().map(code)
}
