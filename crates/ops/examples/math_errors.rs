//! Prints the worst error of each elementary function over all 2^32 inputs, and where it is:
//! `RUSTFLAGS=-Ctarget-cpu=native cargo run --release -p ops --example math_errors`
//! (a quarter of an hour of processor time; an argument N takes every Nth input only).
//!
//! The reference is f64 of the platform's library. What is not a normal number has exact bits by the rules at the head
//! of `math.rs`; the unit tests check those, this table leaves them out.
#![expect(clippy::print_stdout, reason = "an example prints its table")]

use ops::math;
use std::fmt;

/// A function, its reference, its name.
type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

const FUNCTIONS: [Function; 5] = [
    ("exp", math::exp, f64::exp),
    ("log", math::log, f64::ln),
    ("tanh", math::tanh, f64::tanh),
    ("sigmoid", math::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ("softplus", math::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
];

/// The largest error seen, in units in the last place of the exact result.
#[derive(Clone, Copy, Default)]
struct Worst {
    ulp: f64,
    input: f32,
}

impl Worst {
    fn of(self, other: Worst) -> Worst {
        if other.ulp > self.ulp { other } else { self }
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} ulp at {:e} ({:#010x})", self.ulp, self.input, self.input.to_bits())
    }
}

/// The error at x in ulp; 0 where the exact result is no normal f32.
fn error((_, ours, exact): Function, x: f32) -> f64 {
    let exact = exact(f64::from(x));
    let size = exact.abs();
    if !(f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&size) {
        return 0.0;
    }
    let binade = size.to_bits() & !((1 << 52) - 1);
    (f64::from(ours(x)) - exact).abs() / (f64::from_bits(binade) * 2.0_f64.powi(-23))
}

/// The worst of every `stride`th input from `first` on.
fn worst(function: Function, first: u32, stride: usize) -> Worst {
    let inputs = (first..=u32::MAX).step_by(stride).map(f32::from_bits);
    inputs.fold(Worst::default(), |worst, input| worst.of(Worst { ulp: error(function, input), input }))
}

fn main() {
    let every = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_usize).max(1);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("| function | worst error of every {every}. input |\n|---|---|");
    for function in FUNCTIONS {
        let all = std::thread::scope(|scope| {
            let start = |i| scope.spawn(move || worst(function, (i * every) as u32, threads * every));
            let workers: Vec<_> = (0..threads).map(start).collect();
            let results = workers.into_iter().map(|worker| worker.join().expect("a worker panicked"));
            results.fold(Worst::default(), Worst::of)
        });
        println!("| {} | {all} |", function.0);
    }
}
