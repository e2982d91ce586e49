//! A case run as a whole, and its buffers compared with the oracle's, number by number. It knows no op's meaning, only
//! where each op writes.
use super::case::Case;
use crate::checked::Allowed;
use crate::device::{Device, DeviceError};
use crate::op::{Kind, Op, Operand};
use crate::oracle::Oracle;

/// Runs a case on both devices, all ops in one submission, and compares what is defined.
pub(super) fn whole_case<D: Device>(
    oracle: &mut Oracle,
    device: &mut D,
    case: &Case,
    allowed: Allowed,
) -> Result<(), DeviceError> {
    let found = case.run(device)?;
    let expected = case.run(oracle)?;
    untouched(device, case, &found)?;
    for op in &case.ops {
        for operand in op.writes().iter() {
            same(op, operand, (&found, &expected), Rule::of(op, case, allowed))?;
        }
    }
    Ok(())
}

/// Everything that no op writes is as it was.
fn untouched<D: Device>(device: &D, case: &Case, found: &[u32]) -> Result<(), DeviceError> {
    let mut written = vec![false; found.len()];
    for operand in case.ops.iter().flat_map(|op| op.writes().iter().collect::<Vec<_>>()) {
        for (_, _, at) in places(operand) {
            written[at] = true;
        }
    }
    let initial = case.initial();
    let stray = (0..found.len()).find(|&at| !written[at] && found[at] != initial[at]);
    stray.map_or(Ok(()), |at| {
        let reason = format!(
            "number {at} of the buffer belongs to no result, held {:#010x} and was changed to {:#010x}; results are {:?}",
            initial[at],
            found[at],
            case.ops.iter().flat_map(|op| op.writes().iter().collect::<Vec<_>>()).collect::<Vec<_>>(),
        );
        Err(DeviceError::Failed { device: device.name().to_owned(), reason })
    })
}

/// Row, column and place in the buffer of every number of an operand.
fn places(operand: Operand) -> impl Iterator<Item = (u32, u32, usize)> {
    let t = operand.tensor;
    let row = move |r| (0..t.cols).map(move |c| (r, c, (t.offset + u64::from(r * t.stride + c)) as usize));
    (0..t.rows).flat_map(row)
}

/// What makes two f32 numbers alike. Ids are always equal.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// The same bits.
    Bits,
    /// The same bits, or both some NaN.
    BitsOrNan,
    /// Both finite or both not; how large a difference is, is the business of [`crate::Checked`].
    Finiteness,
}

impl Rule {
    fn of(op: &Op, case: &Case, allowed: Allowed) -> Rule {
        // Ops without a tolerance have operands from the host or from others of their kind.
        if allowed == Allowed::Tolerance && op.tolerance() > 0.0 {
            Rule::Finiteness
        } else if case.is_finite() {
            Rule::Bits
        } else {
            Rule::BitsOrNan
        }
    }

    fn alike(self, kind: Kind, found: u32, expected: u32) -> bool {
        let [f, e] = [f32::from_bits(found), f32::from_bits(expected)];
        match self {
            Rule::BitsOrNan if kind == Kind::F32 && e.is_nan() => f.is_nan(),
            Rule::Finiteness if kind == Kind::F32 => f.is_finite() == e.is_finite(),
            _ => found == expected,
        }
    }
}

/// Compares one operand.
fn same(
    op: &Op,
    operand: Operand,
    (found, expected): (&[u32], &[u32]),
    rule: Rule,
) -> Result<(), DeviceError> {
    let different = places(operand).find(|&(_, _, at)| !rule.alike(operand.kind, found[at], expected[at]));
    different.map_or(Ok(()), |(row, col, at)| {
        let show = |bits: u32| match operand.kind {
            Kind::F32 => format!("{:e} ({bits:#010x})", f32::from_bits(bits)),
            Kind::U32 => format!("{bits}"),
        };
        let [f, e] = [found[at], expected[at]].map(|bits| f64::from(f32::from_bits(bits)));
        Err(DeviceError::Mismatch {
            op: op.name(),
            operand: format!(
                "{:?}, row {row}, column {col}: found {}, expected {},",
                operand.tensor,
                show(found[at]),
                show(expected[at])
            ),
            error: if operand.kind == Kind::F32 { ((f - e) / e).abs() as f32 } else { f32::INFINITY },
            limit: if rule == Rule::Finiteness { op.tolerance() } else { 0.0 },
            detail: format!("{op:?}"),
        })
    })
}
