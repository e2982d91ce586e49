//! Prints the table of docs/op-errors.md: how far each op of the oracle is from its formula in f64, over the
//! conformance suite:
//! `cargo run --release -p ops --features testing --example op_errors`
#![expect(clippy::print_stdout, reason = "an example prints its table")]

use ops::cases::{self, Case, Size};
use ops::packing::{GROUP, Prepared};
use ops::testing::textbook;
use ops::{Activations, Allowed, Device, DeviceError, Kind, Op, Oracle, Packing};
use std::collections::BTreeMap;

/// Operands with larger numbers are left out: an absolute error says nothing beside them.
const LARGEST: f64 = 1000.0;

/// Errors of one kind of op.
#[derive(Default)]
struct Errors {
    operands: u64,
    numbers: u64,
    absolute_max: f64,
    absolute_sum: f64,
    relative_max: f64,
    relative_sum: f64,
}

impl Errors {
    fn add(&mut self, found: &[f32], exact: &[f64]) {
        let pairs = || found.iter().map(|f| f64::from(*f)).zip(exact).filter(|(f, _)| f.is_finite());
        let norm: f64 = pairs().map(|(_, e)| e * e).sum();
        if norm == 0.0 || exact.iter().any(|e| e.abs() > LARGEST) {
            return;
        }
        let squares: f64 = pairs().map(|(f, e)| (f - e) * (f - e)).sum();
        let relative = (squares / norm).sqrt();
        self.operands += 1;
        self.relative_max = self.relative_max.max(relative);
        self.relative_sum += relative;
        for (f, e) in pairs() {
            self.numbers += 1;
            self.absolute_max = self.absolute_max.max((f - e).abs());
            self.absolute_sum += (f - e).abs();
        }
    }

    fn print(&self, name: &str) {
        println!(
            "| {name} | {} | {:.1e} | {:.1e} | {:.1e} | {:.1e} |",
            self.numbers,
            self.absolute_max,
            self.absolute_sum / self.numbers as f64,
            self.relative_max,
            self.relative_sum / self.operands as f64
        );
    }
}

/// The rows of the table: ops, and products by packing and activations.
fn key(op: &Op) -> String {
    let packed = |packing: Packing, activations: Activations| match packing {
        Packing::F32 | Packing::Bf16 => packing.name().to_owned(),
        _ => format!("{} {}", packing.name(), activations.name()),
    };
    match op {
        Op::MatMul { weight, activations, .. } => {
            format!("{} {}", op.name(), packed(weight.packing, *activations))
        }
        Op::Experts { experts, activations, .. } => {
            format!("{} {}", op.name(), packed(experts.gate.packing, *activations))
        }
        _ => op.name().to_owned(),
    }
}

fn measure(case: &Case, errors: &mut BTreeMap<String, Errors>) -> Result<(), DeviceError> {
    let mut oracle = Oracle::new(1)?;
    case.place(&mut oracle)?;
    for op in &case.ops {
        let exact = textbook(&mut oracle, op)?;
        oracle.submit(std::slice::from_ref(op))?;
        for (operand, exact) in op.writes().iter().zip(exact).filter(|(o, _)| o.kind == Kind::F32) {
            errors.entry(key(op)).or_default().add(&oracle.load(operand.tensor), &exact);
        }
    }
    Ok(())
}

/// What rounding activations to integers costs before any sum: rows of 4096 numbers, uniform and bell-shaped.
fn print_rounding() {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    let flat: Vec<f32> = (0..4096).map(|_| uniform()).collect();
    let bell: Vec<f32> = (0..4096).map(|_| (0..12).map(|_| uniform()).sum::<f32>() * 0.5).collect();
    println!("\n| activations | uniform | bell-shaped |\n|---|---|---|");
    for mode in [Activations::Int15, Activations::Int8] {
        let [flat, bell] = [&flat, &bell].map(|row| {
            let Prepared::Integers(rounded) = Prepared::new(row, mode) else { return f64::NAN };
            let mut errors = Errors::default();
            let exact: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let power = |c: usize| f64::from(rounded.k[c / GROUP]).exp2();
            let found: Vec<f32> =
                rounded.q.iter().enumerate().map(|(c, q)| (f64::from(*q) * power(c)) as f32).collect();
            errors.add(&found, &exact);
            errors.relative_max
        });
        println!("| {} | {flat:.1e} | {bell:.1e} |", mode.name());
    }
}

fn main() -> Result<(), DeviceError> {
    let mut errors = BTreeMap::new();
    for recipe in cases::list(Size::Quick) {
        let case = recipe.build(0);
        // Squares of huge numbers are infinite in f32, and by definition their norm is 0.
        if case.is_finite() && case.suits(Allowed::Tolerance) && !case.name().contains("huge") {
            measure(&case, &mut errors)?;
        }
    }
    println!("| op | numbers | absolute, max | absolute, mean | relative, max | relative, mean |");
    println!("|---|---|---|---|---|---|");
    for (name, errors) in errors.iter().filter(|(_, errors)| errors.numbers > 0) {
        errors.print(name);
    }
    print_rounding();
    Ok(())
}
