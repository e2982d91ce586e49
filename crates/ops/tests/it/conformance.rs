//! The conformance suite itself: the oracle and a late oracle pass it, wrong devices do not, and it has every op.

use ops::cases::{self, Size};
use ops::testing::{Late, Poisoned, Reversed, WrongState};
use ops::{Allowed, DeviceError, Op, Oracle};

fn oracle() -> Oracle {
    Oracle::new(1).unwrap()
}

/// All ops by name, in the order of [`place`].
const NAMES: [&str; 18] = [
    "mat_mul",
    "head_mat_mul",
    "rms_norm",
    "l2_norm",
    "short_conv",
    "decay_gate",
    "delta_rule",
    "append_latent",
    "attend_latent",
    "residual_mix",
    "glu",
    "gate_mul",
    "route",
    "experts",
    "combine",
    "add",
    "copy",
    "finite",
];

/// An op's place in [`NAMES`]. A new op does not compile here until it has one, and then needs cases.
fn place(op: &Op) -> usize {
    match op {
        Op::MatMul { .. } => 0,
        Op::HeadMatMul { .. } => 1,
        Op::RmsNorm { .. } => 2,
        Op::L2Norm { .. } => 3,
        Op::ShortConv { .. } => 4,
        Op::DecayGate { .. } => 5,
        Op::DeltaRule { .. } => 6,
        Op::AppendLatent { .. } => 7,
        Op::AttendLatent { .. } => 8,
        Op::ResidualMix { .. } => 9,
        Op::Glu { .. } => 10,
        Op::GateMul { .. } => 11,
        Op::Route { .. } => 12,
        Op::Experts { .. } => 13,
        Op::Combine { .. } => 14,
        Op::Add { .. } => 15,
        Op::Copy { .. } => 16,
        Op::Finite { .. } => 17,
    }
}

#[test]
fn the_oracle_with_threads_passes_to_the_bit() {
    let report = cases::run(Oracle::new(4).unwrap(), Allowed::Nothing).unwrap_or_else(|e| panic!("{e}"));
    let ops: Vec<&str> = report.ops.keys().copied().collect();
    let mut names = NAMES.to_vec();
    names.sort_unstable();
    assert_eq!(ops, names);
    assert!(report.ops.values().all(|worst| worst.relative == 0.0 && worst.absolute == 0.0), "{report:?}");
}

#[test]
fn every_size_has_every_op() {
    for size in [Size::Small, Size::Quick, Size::Thorough] {
        let mut seen = [0_u32; NAMES.len()];
        for recipe in cases::list(size) {
            for op in &recipe.build(0).ops {
                assert_eq!(op.name(), NAMES[place(op)]);
                seen[place(op)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 2), "{size:?}: {seen:?}");
    }
}

#[test]
fn cases_that_are_said_to_be_finite_are() {
    for recipe in cases::list(Size::Quick) {
        let case = recipe.build(0);
        let words = case.run(&mut oracle()).unwrap();
        let mut is_finite = true;
        for operand in case
            .ops
            .iter()
            .filter(|op| op.name() != "append_latent")
            .flat_map(|op| op.writes().iter().filter(|o| o.kind == ops::Kind::F32).collect::<Vec<_>>())
        {
            let t = operand.tensor;
            for row in 0..u64::from(t.rows) {
                let start = (t.offset + row * u64::from(t.stride)) as usize;
                let numbers = &words[start..start + t.cols as usize];
                is_finite &= numbers.iter().all(|bits| f32::from_bits(*bits).is_finite());
            }
        }
        assert_eq!(is_finite, case.is_finite(), "{}", case.name());
    }
}

#[test]
fn a_late_device_passes_to_the_bit() {
    cases::run(Late::new(oracle(), 7), Allowed::Nothing).unwrap_or_else(|e| panic!("{e}"));
}

/// The op that the suite finds at fault.
fn culprit(result: Result<cases::Report, cases::CaseError>) -> &'static str {
    match result.expect_err("the device is wrong").source {
        DeviceError::Mismatch { op, .. } => op,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn another_order_of_sums_is_seen_and_is_within_the_tolerance() {
    let exactly = cases::run_sized(Reversed::new(oracle()), Allowed::Nothing, Size::Small);
    assert_eq!(culprit(exactly), "mat_mul");
    let about = cases::run(Reversed::new(oracle()), Allowed::Tolerance).unwrap_or_else(|e| panic!("{e}"));
    let worst = about.ops["mat_mul"];
    assert!(worst.relative > 0.0 && worst.relative < 1e-5, "{worst:?}");
    assert_eq!(about.ops["rms_norm"].relative, 0.0);
}

#[test]
fn a_wrong_state_is_seen() {
    for op in ["short_conv", "delta_rule", "append_latent"] {
        let result = cases::run_sized(WrongState::new(oracle(), op), Allowed::Nothing, Size::Small);
        assert_eq!(culprit(result), op);
    }
}

#[test]
fn a_poisoned_result_is_seen_in_every_op() {
    for op in NAMES.into_iter().filter(|op| *op != "finite") {
        for allowed in [Allowed::Nothing, Allowed::Tolerance] {
            // The third: of three groups of experts that fill one result it is the last.
            let device = Poisoned::new(oracle(), op, 3);
            assert_eq!(culprit(cases::run_sized(device, allowed, Size::Small)), op);
        }
    }
}

#[test]
fn an_error_names_the_case_the_op_and_the_operand() {
    let device = WrongState::new(oracle(), "delta_rule");
    let error = cases::run_sized(device, Allowed::Nothing, Size::Small).unwrap_err().to_string();
    for part in ["delta_rule of 1 heads of 1 x 1", "delta_rule departs from the oracle", "row 0, column 0"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_device_with_buffers_is_refused() {
    let mut device = oracle();
    ops::Device::allocate(&mut device, 4, "a buffer before the suite").unwrap();
    let error = cases::run_sized(device, Allowed::Nothing, Size::Small).unwrap_err().to_string();
    assert!(error.contains("starts on an empty device"), "{error}");
}
