//! The bounds, the special values and the very bits of the elementary functions.
//!
//! The reference is f64 of the platform's library, whose own error is below 2^-28 ulp of f32. Dense samples run
//! always; all 2^32 inputs with `COLIBRI_TEST_EVERY_INPUT` set, as `cargo xtask full` does: a quarter of an hour of
//! processor time built for a processor with fma (`RUSTFLAGS=-Ctarget-cpu=native`), hours without.

use super::{EXP_HIGHEST, EXP_LOWEST, exp, log, sigmoid, softplus, tanh};

const CANONICAL_NAN: u32 = 0x7fc0_0000;
/// The smallest normal f32, 2^-126.
const MIN_NORMAL: f64 = f32::MIN_POSITIVE as f64;
/// Half an ulp (2^103) above the largest f32: what is not below rounds to infinity.
const OVERFLOW: f64 = f32::MAX as f64 + f64::from_bits((1023 + 103) << 52);
/// A prime, so that samples meet every pattern of low bits.
const STRIDE: usize = 4099;

struct Function {
    name: &'static str,
    ours: fn(f32) -> f32,
    exact: fn(f64) -> f64,
    /// Worst error over all inputs in ulp, as measured, rounded up to two digits.
    bound: f64,
    /// Whether results below 2^-126 are +0 by definition.
    flushes: bool,
    /// The hash of `sampled_bits`.
    hash: u64,
}

const FUNCTIONS: [Function; 5] = [
    Function {
        name: "exp",
        ours: exp,
        exact: f64::exp,
        bound: 1.02,
        flushes: true,
        hash: 0xc4d7_8a13_74c7_fe8b,
    },
    Function {
        name: "log",
        ours: log,
        exact: f64::ln,
        bound: 0.94,
        flushes: false,
        hash: 0x6c69_533f_c636_9dfc,
    },
    Function {
        name: "tanh",
        ours: tanh,
        exact: f64::tanh,
        bound: 1.5,
        flushes: false,
        hash: 0x85d6_c2e4_e2d6_00ed,
    },
    Function {
        name: "sigmoid",
        ours: sigmoid,
        exact: exact_sigmoid,
        bound: 2.41,
        flushes: true,
        hash: 0x6f28_d822_58ee_b652,
    },
    Function {
        name: "softplus",
        ours: softplus,
        exact: exact_softplus,
        bound: 1.87,
        flushes: true,
        hash: 0x86a9_b752_5856_e699,
    },
];

fn exact_sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

fn exact_softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Spacing of f32 numbers in the binade of v, which is finite and not 0.
fn ulp(v: f64) -> f64 {
    let exponent = ((v.to_bits() >> 52) & 0x7ff).max(1023 - 126);
    f64::from_bits((exponent - 23) << 52)
}

impl Function {
    /// The error at x in ulp. Where the rules fix the bits (NaN, zero, infinity, results below 2^-126), it is 0 if
    /// they are met and infinite if not.
    fn error(&self, x: f32) -> f64 {
        let got = (self.ours)(x);
        let exact = (self.exact)(f64::from(x));
        let fixed_bits = if exact.is_nan() {
            CANONICAL_NAN
        } else if self.flushes && exact < MIN_NORMAL {
            0
        } else if exact == 0.0 || exact.abs() >= OVERFLOW {
            (exact as f32).to_bits()
        } else {
            return (f64::from(got) - exact).abs() / ulp(exact);
        };
        if got.to_bits() == fixed_bits { 0.0 } else { f64::INFINITY }
    }

    fn assert_within_bound(&self, bits: u32) {
        let x = f32::from_bits(bits);
        let error = self.error(x);
        let (name, got, bound) = (self.name, (self.ours)(x), self.bound);
        assert!(
            error <= bound,
            "{name}({x:e} = {bits:#010x}) = {got:e}: {error} ulp, at most {bound} are documented"
        );
    }
}

/// Where a formula changes or ends, both signs: limits of the range, zeros, infinities, selects, range reductions.
fn special_points() -> Vec<u32> {
    let mut points = vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
    points.extend([EXP_LOWEST, EXP_HIGHEST, 0.5 * EXP_LOWEST, 103.972_08, 0.5625, 9.010_913]);
    // e^-|x| = 1/3 in softplus; 2^-24, below which a term vanishes beside 1.
    points.extend([3.0_f32.ln(), 16.635_532, 17.328_68]);
    // The middle between two multiples of ln 2 (exp), of half of it (tanh).
    points.extend((0..300).map(|k| (k as f32 + 0.5) * std::f32::consts::LN_2 * 0.5));
    // Powers of two and the ends of log's interval in every binade, subnormal ones included.
    let powers = (-149..=127).map(|k| f64::powi(2.0, k));
    points.extend(
        powers.flat_map(|power| [power as f32, (power * 2.0 / 3.0) as f32, (power * 4.0 / 3.0) as f32]),
    );
    points.iter().flat_map(|point| [point.to_bits(), (-point).to_bits()]).collect()
}

fn strided() -> impl Iterator<Item = u32> {
    (0..=u32::MAX).step_by(STRIDE)
}

#[test]
fn errors_stay_within_the_documented_bounds_on_a_dense_sample() {
    let stride = if std::env::var_os("COLIBRI_TEST_EVERY_INPUT").is_some() { 1 } else { STRIDE };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for bits in (0..=u32::MAX).step_by(stride).skip(thread).step_by(threads) {
                    for function in &FUNCTIONS {
                        function.assert_within_bound(bits);
                    }
                }
            });
        }
    });
}

#[test]
fn errors_stay_within_the_documented_bounds_around_special_points() {
    for point in special_points() {
        for offset in 0..257_u32 {
            let bits = point.wrapping_add(offset).wrapping_sub(128);
            for function in &FUNCTIONS {
                function.assert_within_bound(bits);
            }
        }
    }
}

#[test]
fn special_values_are_exact() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cases = [
        (
            exp as fn(f32) -> f32,
            "exp",
            [(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (88.75, inf), (-87.5, 0.0)],
        ),
        (log, "log", [(0.0, -inf), (-0.0, -inf), (inf, inf), (-inf, nan), (1.0, 0.0), (-1.0, nan)]),
        (tanh, "tanh", [(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (20.0, 1.0), (-20.0, -1.0)]),
        (sigmoid, "sigmoid", [(0.0, 0.5), (-0.0, 0.5), (inf, 1.0), (-inf, 0.0), (88.0, 1.0), (-88.0, 0.0)]),
        (
            softplus,
            "softplus",
            [(1e9, 1e9), (40.0, 40.0), (inf, inf), (-inf, 0.0), (-88.0, 0.0), (f32::MAX, f32::MAX)],
        ),
    ];
    for (function, name, pairs) in cases {
        for (x, expected) in pairs {
            assert_eq!(function(x).to_bits(), expected.to_bits(), "{name}({x})");
        }
        for payload in [0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff, 0xff80_0001, 0xffc0_0001, 0xffff_ffff_u32] {
            assert_eq!(function(f32::from_bits(payload)).to_bits(), CANONICAL_NAN, "{name}({payload:#x})");
        }
    }
    assert_eq!(softplus(0.0).to_bits(), std::f32::consts::LN_2.to_bits());
    assert_eq!(log(f32::from_bits(1)), -103.278_93);
    assert_eq!(exp(1.0), std::f32::consts::E);
}

#[test]
fn exp_and_log_never_fall() {
    let rising = |bits: &u32| if *bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    let mut inputs: Vec<u32> = special_points();
    inputs.extend(strided());
    let mut inputs: Vec<u32> = inputs.iter().flat_map(|bits| [*bits, bits.wrapping_add(1)]).collect();
    inputs.retain(|bits| !f32::from_bits(*bits).is_nan());
    inputs.sort_by_key(rising);
    for pair in inputs.windows(2) {
        let [lower, upper] = [f32::from_bits(pair[0]), f32::from_bits(pair[1])];
        assert!(exp(lower) <= exp(upper), "exp falls between {lower:e} and {upper:e}");
        assert!(lower < 0.0 || log(lower) <= log(upper), "log falls between {lower:e} and {upper:e}");
    }
}

#[test]
fn tanh_is_odd_and_starts_as_the_identity() {
    for bits in strided() {
        let x = f32::from_bits(bits);
        if x.is_nan() {
            continue;
        }
        assert_eq!(tanh(-x).to_bits(), (-tanh(x)).to_bits(), "tanh({x:e})");
        if x.abs() < f32::EPSILON * 2048.0 {
            assert_eq!(tanh(x).to_bits(), bits, "tanh({x:e})");
        }
    }
}

/// FNV-1a over the little-endian bytes of the results at every 4099th input.
fn sampled_bits(function: fn(f32) -> f32) -> u64 {
    strided()
        .flat_map(|bits| function(f32::from_bits(bits)).to_bits().to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

#[test]
fn the_bits_are_those_of_this_version_of_the_contract() {
    let found = FUNCTIONS.map(|function| (function.name, format!("{:#018x}", sampled_bits(function.ours))));
    let expected = FUNCTIONS.map(|function| (function.name, format!("{:#018x}", function.hash)));
    assert_eq!(found, expected, "the bits of ops::math changed: that needs a new NUMERICS_VERSION");
}
