//! The elementary functions of the numerics contract, sixteen at a time: step by step those of `ops::math`, where they
//! are explained. The tests compare them for every f32.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::simd::lanes::Simd;
use std::f32::consts::{LN_2, LOG2_E};

#[cfg(test)]
mod tests;

const ROUND: f32 = 12_582_912.0;
const LN_2_REST: f32 = f32::from_bits(0xb102_e308);
const EXP_LOWEST: f32 = f32::from_bits(0xc2ae_ac4f);
const EXP_HIGHEST: f32 = f32::from_bits(0x42b1_7217);

/// A polynomial, the highest power first, its coefficients as bits.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::Floats, coefficients: [u32; N]) -> S::Floats {
    let mut p = s.splat(f32::from_bits(coefficients[0]));
    for bits in &coefficients[1..] {
        p = s.fma(p, x, s.splat(f32::from_bits(*bits)));
    }
    p
}

/// e^x.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let shifted = s.fma(x, s.splat(LOG2_E), s.splat(ROUND));
    let n = s.sub_int(s.bits(shifted), s.splat_int(ROUND.to_bits().cast_signed()));
    let n_float = s.to_floats(n);
    let r = s.fma(n_float, s.splat(-LN_2_REST), s.fma(n_float, s.splat(-LN_2), x));
    let q = polynomial(s, r, [0x3ab5_279b, 0x3c09_1cc2, 0x3d2a_ac57, 0x3e2a_aa49, 0x3eff_fffe]);
    let power = s.add(s.splat(1.0), s.fma(q, s.mul(r, r), r));
    let scaled = s.with_bits(s.add_int(s.bits(power), s.to_exponent(n)));
    let scaled = s.select(s.less(x, s.splat(EXP_LOWEST)), s.splat(0.0), scaled);
    let scaled = s.select(s.less(s.splat(EXP_HIGHEST), x), s.splat(f32::INFINITY), scaled);
    s.select(s.is_nan(x), s.splat(f32::NAN), scaled)
}

/// log(1 + f) for -1/3 <= f <= 1/3.
#[inline(always)]
fn log_near_one<S: Simd>(s: S, f: S::Floats) -> S::Floats {
    let p = polynomial(
        s,
        f,
        [
            0xbe03_d5c7,
            0x3e0f_38d1,
            0xbdf9_9e02,
            0x3e0f_6a40,
            0xbe2a_ce18,
            0x3e4c_e82d,
            0xbe7f_ff7d,
            0x3eaa_aa83,
            (-0.5_f32).to_bits(),
        ],
    );
    s.fma(p, s.mul(f, f), f)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let magnitude = s.abs(x);
    let square = s.mul(magnitude, magnitude);
    let p = polynomial(s, square, [0xbbca_4938, 0x3cac_0d41, 0xbd5c_833c, 0x3e08_8630, 0xbeaa_aaa4]);
    let near = s.fma(p, s.mul(square, magnitude), magnitude);

    let t = exp(s, s.mul(s.splat(-2.0), magnitude));
    let far = s.fma(s.div(t, s.add(s.splat(1.0), t)), s.splat(-2.0), s.splat(1.0));

    let value = s.select(s.less(magnitude, s.splat(0.5625)), near, far);
    let sign = s.and(s.bits(x), s.splat_int(i32::MIN));
    let value = s.with_bits(s.or(s.bits(s.abs(value)), sign));
    s.select(s.is_nan(x), s.splat(f32::NAN), value)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let e = exp(s, s.minus_abs(x));
    let numerator = s.select(s.less(x, s.splat(0.0)), e, s.splat(1.0));
    let value = s.div(numerator, s.add(s.splat(1.0), e));
    s.select(s.is_nan(x), s.splat(f32::NAN), value)
}

/// log(1 + e^x).
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::Floats) -> S::Floats {
    let e = exp(s, s.minus_abs(x));
    let halved = s.less(s.splat(1.0 / 3.0), e);
    let f = s.select(halved, s.fma(e, s.splat(0.5), s.splat(-0.5)), e);
    let base = s.select(halved, s.splat(LN_2), s.splat(0.0));
    let positive = s.select(s.less(s.splat(0.0), x), x, s.splat(0.0));
    let value = s.add(positive, s.add(base, log_near_one(s, f)));
    s.select(s.is_nan(x), s.splat(f32::NAN), value)
}
