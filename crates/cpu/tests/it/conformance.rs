//! The conformance suite on every instruction level of this processor and on several counts of threads: not a bit may
//! differ from the oracle.

use cpu::{Cpu, Level};
use ops::cases::{self, Size};
use ops::{Allowed, Device};

fn passes(level: Level, threads: usize, size: Size) {
    let device = Cpu::with_level(threads, level).unwrap();
    assert_eq!((device.level(), device.threads(), device.name()), (level, threads, "cpu"));
    let report = cases::run_sized(device, Allowed::Nothing, size)
        .unwrap_or_else(|error| panic!("{}, {threads} threads: {error}", level.name()));
    assert_eq!(report.ops.len(), 18);
    assert!(report.ops.values().all(|worst| worst.relative == 0.0 && worst.absolute == 0.0), "{report:?}");
}

#[test]
fn one_thread_equals_the_oracle_on_every_level() {
    for level in Level::available().skip(1) {
        passes(level, 1, Size::Quick);
    }
}

#[test]
fn two_threads_equal_the_oracle_on_every_level() {
    for level in Level::available().skip(1) {
        passes(level, 2, Size::Quick);
    }
}

#[test]
fn five_threads_equal_the_oracle_on_every_level() {
    for level in Level::available().skip(1) {
        passes(level, 5, Size::Quick);
    }
}

#[test]
fn portable_code_equals_the_oracle() {
    // Without fused multiply-adds in hardware the larger cases would take minutes.
    for threads in [1, 2, 5] {
        passes(Level::Portable, threads, Size::Small);
    }
}
