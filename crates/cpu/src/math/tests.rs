//! The functions of vectors against those of the contract, bit by bit: about a million inputs always; all 2^32 with
//! `COLIBRI_TEST_EVERY_INPUT` set, as `cargo xtask full` does.

use super::{exp, sigmoid, softplus, tanh};
use crate::level::Level;
use crate::simd::lanes::{Block, Kernel, LANES, Simd};
use std::array::from_fn;

/// A prime, so that samples have all kinds of exponents and mantissas.
const STRIDE: u64 = 4099;
const INPUTS: u64 = 1 << 32;

/// The functions of sixteen inputs, in the order of `NAMES`.
struct Functions<'a>(&'a Block);

impl Kernel for Functions<'_> {
    type Output = [Block; 4];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [Block; 4] {
        let x = s.load(self.0);
        let mut results = [[0.0; LANES]; 4];
        s.store(exp(s, x), &mut results[0]);
        s.store(tanh(s, x), &mut results[1]);
        s.store(sigmoid(s, x), &mut results[2]);
        s.store(softplus(s, x), &mut results[3]);
        results
    }
}

const NAMES: [&str; 4] = ["exp", "tanh", "sigmoid", "softplus"];

/// The first input of some from `start` on, every `stride`th, whose results differ.
fn first_difference(level: Level, inputs: std::ops::Range<u64>, stride: u64) -> Option<String> {
    for start in inputs.step_by((stride * LANES as u64) as usize) {
        let x: Block = from_fn(|j| f32::from_bits((start + j as u64 * stride) as u32));
        let found = level.run(Functions(&x));
        let expected = ops::with_fma(Defined(&x));
        for ((name, found), expected) in NAMES.iter().zip(&found).zip(&expected) {
            if let Some(j) = (0..LANES).find(|&j| found[j].to_bits() != expected[j].to_bits()) {
                let bits = x[j].to_bits();
                return Some(format!(
                    "{name}({bits:#010x}) on {level:?} is {:e}, not {:e}",
                    found[j], expected[j]
                ));
            }
        }
    }
    None
}

/// The same by definition.
struct Defined<'a>(&'a Block);

#[inline(always)]
fn apply(block: &mut Block, function: impl Fn(f32) -> f32) {
    for x in block {
        *x = function(*x);
    }
}

impl ops::Kernel for Defined<'_> {
    type Output = [Block; 4];

    #[inline(always)]
    fn run(self) -> [Block; 4] {
        let mut results = [*self.0; 4];
        let [exp, tanh, sigmoid, softplus] = &mut results;
        apply(exp, ops::math::exp);
        apply(tanh, ops::math::tanh);
        apply(sigmoid, ops::math::sigmoid);
        apply(softplus, ops::math::softplus);
        results
    }
}

#[test]
fn vectors_of_every_level_give_the_bits_of_the_contract() {
    let stride = if std::env::var_os("COLIBRI_TEST_EVERY_INPUT").is_some() { 1 } else { STRIDE };
    let parts = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    // Without fused multiply-adds in hardware the portable code takes hours; a smaller sample shows it as well.
    let strides = |level| if level == Level::Portable { stride.max(STRIDE * 31) } else { stride };
    for level in Level::available() {
        let differences: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..parts)
                .map(|part| {
                    let inputs = INPUTS / parts * part..INPUTS / parts * (part + 1);
                    scope.spawn(move || first_difference(level, inputs, strides(level)))
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(differences.is_empty(), "{differences:?}");
    }
}

#[test]
fn the_ends_of_every_branch_are_equal() {
    let ends = [
        0.0,
        f32::INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        0.5625,
        88.722_84,
        88.722_85,
        87.336_54,
        87.336_55,
        1.098_612_2,
        1.098_612_3,
        0.000_244_140_63,
        9.0,
        103.0,
    ];
    for sign in [1.0, -1.0] {
        for around in -3_i32..=3 {
            let x = ends.map(|end: f32| f32::from_bits((end * sign).to_bits().wrapping_add_signed(around)));
            for level in Level::available() {
                let (found, expected) = (level.run(Functions(&x)), ops::with_fma(Defined(&x)));
                let bits = |results: [Block; 4]| results.map(|block| block.map(f32::to_bits));
                assert_eq!(bits(found), bits(expected), "{level:?} at {x:?}");
            }
        }
    }
}
