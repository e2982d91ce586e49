//! The elementary functions of the numerics contract: `exp`, `log`, `tanh`, `sigmoid`, `softplus`.
//!
//! Each is one formula for every input: f32 add, subtract, multiply, fused multiply-add, IEEE division, integer
//! operations on the bits, compares and selects. There is no table, no loop, no early exit and no f64, so scalar
//! code, AVX2, AVX-512, NEON and a shader can follow it step by step and get the same bits. The order of the
//! operations is part of the contract: whoever changes it changes `NUMERICS_VERSION`.
//!
//! Common rules, which the tests assert over the whole f32 range:
//! - A NaN gives the one quiet NaN 0x7fc00000, whatever the payload; instruction sets differ in what they keep.
//! - A result of `exp`, `sigmoid` or `softplus` below 2^-126 (the smallest normal f32) is +0 by definition. No step
//!   then depends on whether the hardware keeps subnormal numbers, and no second scaling is paid for.
//! - Errors are in units in the last place of the exact result, the worst of all 2^32 inputs. They are printed by
//!   `RUSTFLAGS=-Ctarget-cpu=native cargo run --release -p ops --example math_errors`.
//!
//! Polynomials: weighted minimax fits of the relative error, found with 34 digits by Lawson's iteration (least
//! squares, the weights multiplied by the errors each time) on 120 Chebyshev nodes of the interval. Leading terms
//! known exactly (1 + r, f - f^2/2, x) are fixed first; then the lowest free coefficient is rounded to f32 and the
//! others are fitted again around it. They stand as bits where they are used, the highest power first.
//!
//! For ports: the rounded multiple of ln 2 is read out of the bits and converted, not found by adding a large
//! constant and subtracting it, so a compiler that reassociates floats finds nothing to cancel. A device that flushes
//! subnormal operands hands on x itself where |x| < 2^-12 in `tanh` (the formula returns x there) and needs no other
//! exception: `log` looks at bits, and in the other functions a subnormal step is lost beside a larger term.
//!
//! This file knows no slices and no instruction set; callers loop, and LLVM vectorises once the call is inlined.

#![expect(
    clippy::inline_always,
    reason = "without inlining into a function that enables fma, mul_add becomes a library call per element"
)]

use std::f32::consts::{LN_2, LOG2_E};

#[cfg(test)]
mod tests;

/// 1.5 * 2^23. Adding it to |v| < 2^22 rounds v to an integer, half to even, and leaves that integer in the low
/// bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// ln 2 minus its nearest f32.
const LN_2_REST: f32 = f32::from_bits(0xb102_e308);
/// The smallest f32 whose exponential is at least 2^-126.
const EXP_LOWEST: f32 = f32::from_bits(0xc2ae_ac4f);
/// The largest f32 whose exponential is finite.
const EXP_HIGHEST: f32 = f32::from_bits(0x42b1_7217);

/// e^x. Error at most 1.02 ulp; never falls as x rises.
///
/// `exp(-inf) = 0`, `exp(inf) = inf`, overflow gives infinity from 88.722839 on, results below 2^-126
/// (x < -87.336544) are +0.
///
/// With n = round(x / ln 2) and r = x - n ln 2, |r| <= 0.3467, e^x = 2^n e^r. ln 2 is taken in two parts; the first
/// subtraction is exact, the second rounds once. e^r = 1 + r + r^2 q(r) with q of degree 4 has a relative error of
/// 2^-28.2. e^r is a normal number in [0.707, 1.415], so 2^n is multiplied by adding n to its exponent field; within
/// the limits above that field stays between 1 and 254.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let n_float = n as f32;
    let r = n_float.mul_add(-LN_2_REST, n_float.mul_add(-LN_2, x));

    let q = f32::from_bits(0x3ab5_279b);
    let q = q.mul_add(r, f32::from_bits(0x3c09_1cc2));
    let q = q.mul_add(r, f32::from_bits(0x3d2a_ac57));
    let q = q.mul_add(r, f32::from_bits(0x3e2a_aa49));
    let q = q.mul_add(r, f32::from_bits(0x3eff_fffe));
    let power = 1.0 + q.mul_add(r * r, r);

    let scaled = f32::from_bits(power.to_bits().wrapping_add((n as u32) << 23));
    let scaled = if x < EXP_LOWEST { 0.0 } else { scaled };
    let scaled = if x > EXP_HIGHEST { f32::INFINITY } else { scaled };
    if x.is_nan() { f32::NAN } else { scaled }
}

/// The natural logarithm of x. Error at most 0.94 ulp, subnormal x included; never falls as x rises.
///
/// `log(0) = log(-0) = -inf`, `log(inf) = inf`, NaN for x < 0; `log(1) = +0`.
///
/// x = 2^n (1 + f) with 2/3 <= 1 + f < 4/3, so that n = 0 around x = 1 and nothing cancels there; then
/// log x = n ln 2 + log(1 + f). A subnormal x is its bits, read as an integer, times 2^-149. What the f32 ln 2 lacks
/// (2^-28.4 of it) is left out.
#[inline(always)]
#[must_use]
pub fn log(x: f32) -> f32 {
    const MIN_NORMAL: i32 = 0x0080_0000;
    const TWO_THIRDS: i32 = 0x3f2a_aaab;
    let bits = x.to_bits() as i32;
    let subnormal = bits < MIN_NORMAL;
    let normal_bits = if subnormal { (bits as f32).to_bits() as i32 } else { bits };
    let bias = if subnormal { 149 } else { 0 };

    let n = normal_bits.wrapping_sub(TWO_THIRDS) >> 23;
    let mantissa = f32::from_bits(normal_bits.wrapping_sub(n << 23) as u32);
    let value = ((n - bias) as f32).mul_add(LN_2, log_near_one(mantissa - 1.0));

    let value = if bits >= f32::INFINITY.to_bits() as i32 { f32::INFINITY } else { value };
    let value = if bits << 1 == 0 { f32::NEG_INFINITY } else { value };
    let invalid = x.is_nan() || bits < 0 && bits << 1 != 0;
    if invalid { f32::NAN } else { value }
}

/// log(1 + f) for -1/3 <= f <= 1/3, about 0.8 ulp: f - f^2/2 + f^3 p(f), p of degree 7, relative error 2^-27.7.
#[inline(always)]
fn log_near_one(f: f32) -> f32 {
    let p = f32::from_bits(0xbe03_d5c7);
    let p = p.mul_add(f, f32::from_bits(0x3e0f_38d1));
    let p = p.mul_add(f, f32::from_bits(0xbdf9_9e02));
    let p = p.mul_add(f, f32::from_bits(0x3e0f_6a40));
    let p = p.mul_add(f, f32::from_bits(0xbe2a_ce18));
    let p = p.mul_add(f, f32::from_bits(0x3e4c_e82d));
    let p = p.mul_add(f, f32::from_bits(0xbe7f_ff7d));
    let p = p.mul_add(f, f32::from_bits(0x3eaa_aa83));
    let p = p.mul_add(f, -0.5);
    p.mul_add(f * f, f)
}

/// The hyperbolic tangent of x. Error at most 1.50 ulp; odd to the bit, `tanh(-0) = -0`, `tanh(+-inf) = +-1`.
///
/// For |x| < 9/16: x + x^3 p(x^2), p of degree 4, relative error 2^-29.4; for |x| < 2^-12 that is x itself. Beyond:
/// with t = e^(-2|x|), 1 - 2t / (1 + t), where the quotient is below 1/2 and its errors count half. Both are
/// computed, one is selected, and the sign of x is put back as a bit.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = magnitude * magnitude;
    let p = f32::from_bits(0xbbca_4938);
    let p = p.mul_add(square, f32::from_bits(0x3cac_0d41));
    let p = p.mul_add(square, f32::from_bits(0xbd5c_833c));
    let p = p.mul_add(square, f32::from_bits(0x3e08_8630));
    let p = p.mul_add(square, f32::from_bits(0xbeaa_aaa4));
    let near = p.mul_add(square * magnitude, magnitude);

    let t = exp(-2.0 * magnitude);
    let far = (t / (1.0 + t)).mul_add(-2.0, 1.0);

    let value = if magnitude < 0.5625 { near } else { far };
    if x.is_nan() { f32::NAN } else { value.copysign(x) }
}

/// The logistic function 1 / (1 + e^-x). Error at most 2.41 ulp (1.50 for x >= 0); results below 2^-126 (x < -87.336544) are +0.
///
/// With e = e^-|x| <= 1, which cannot overflow: 1 / (1 + e) for x >= 0, e / (1 + e) for x < 0, so that small results
/// keep their relative precision.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    let value = numerator / (1.0 + e);
    if x.is_nan() { f32::NAN } else { value }
}

/// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). Error at most 1.87 ulp; results below 2^-126 (x < -87.336544) are +0,
/// `softplus(inf) = inf`.
///
/// With e = e^-|x| <= 1: log(1 + e) directly for e <= 1/3, else as ln 2 + log((1 + e) / 2); both meet the same
/// polynomial as `log`, and small results keep their relative precision.
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    const ONE_THIRD: f32 = 1.0 / 3.0;
    let e = exp(-x.abs());
    let halved = e > ONE_THIRD;
    let f = if halved { e.mul_add(0.5, -0.5) } else { e };
    let base = if halved { LN_2 } else { 0.0 };
    let positive = if x > 0.0 { x } else { 0.0 };
    let value = positive + (base + log_near_one(f));
    if x.is_nan() { f32::NAN } else { value }
}
