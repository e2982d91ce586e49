//! Matrix products and experts in f64, over decoded weights and rounded activations.
use super::{dot, glu, numbers};
use crate::device::{Device, DeviceError};
use crate::ops::Expert;
use crate::oracle::Oracle;
use crate::packing::{GROUP, Prepared, WeightRow};
use crate::tensor::{Activations, Ids, Matrix, NONE, Packing, Tensor};

pub(super) fn mat_mul(
    oracle: &mut Oracle,
    x: Tensor,
    weight: Matrix,
    activations: Activations,
) -> Result<Vec<f64>, DeviceError> {
    let weights = resident(oracle, weight)?;
    let x = rounded(&oracle.load(x), weight, activations);
    Ok(product(&weights, &x, weight.cols as usize))
}

pub(super) fn head_mat_mul(
    oracle: &mut Oracle,
    x: Tensor,
    weight: Matrix,
    heads: u32,
) -> Result<Vec<f64>, DeviceError> {
    let weights = resident(oracle, weight)?;
    let (cols, outputs) = (weight.cols as usize, (weight.rows / heads) as usize);
    let x = numbers(oracle, x);
    let rows = x.chunks_exact(cols).enumerate();
    Ok(rows
        .flat_map(|(i, row)| {
            let head = i % heads as usize;
            product(&weights[head * outputs * cols..][..outputs * cols], row, cols)
        })
        .collect())
}

/// `W x` for every row of x.
fn product(weights: &[f64], x: &[f64], cols: usize) -> Vec<f64> {
    x.chunks_exact(cols).flat_map(|x| weights.chunks_exact(cols).map(move |row| dot(row, x))).collect()
}

/// The numbers of a resident matrix.
fn resident(oracle: &mut Oracle, weight: Matrix) -> Result<Vec<f64>, DeviceError> {
    let layout = weight.layout();
    let mut read = |start: u64, bytes: u64| {
        let mut into = vec![0; bytes as usize];
        let ticket = oracle.read_later(weight.buffer, start, bytes)?;
        oracle.take(ticket, &mut into).map(|()| into)
    };
    let codes = read(weight.codes, layout.code_row_bytes * u64::from(weight.rows))?;
    let scales = read(weight.scales, layout.scale_row_bytes * u64::from(weight.rows))?;
    Ok(decoded(weight, &codes, &scales))
}

fn decoded(weight: Matrix, codes: &[u8], scales: &[u8]) -> Vec<f64> {
    let layout = weight.layout();
    let row = |r: usize| {
        let codes = &codes[r * layout.code_row_bytes as usize..][..layout.code_row_bytes as usize];
        let scales = &scales[r * layout.scale_row_bytes as usize..][..layout.scale_row_bytes as usize];
        WeightRow::decode(weight.packing, weight.cols as usize, codes, scales).values()
    };
    (0..weight.rows as usize).flat_map(row).map(f64::from).collect()
}

/// Activations as the weight meets them: integers times powers of two where the packing and the mode say so.
fn rounded(x: &[f32], weight: Matrix, activations: Activations) -> Vec<f64> {
    let floats = matches!(weight.packing, Packing::F32 | Packing::Bf16);
    let mode = if floats { Activations::Exact } else { activations };
    let value = |row: &[f32]| match Prepared::new(row, mode) {
        Prepared::Floats(values) => values.into_iter().map(f64::from).collect::<Vec<_>>(),
        Prepared::Integers(row) => {
            let power = |c: usize| f64::from(row.k[c / GROUP]).exp2();
            let finite = |c: usize| if row.finite[c / GROUP] { 1.0 } else { f64::NAN };
            row.q.iter().enumerate().map(|(c, q)| f64::from(*q) * power(c) * finite(c)).collect()
        }
    };
    x.chunks_exact(weight.cols as usize).flat_map(value).collect()
}

pub(super) fn experts(
    oracle: &Oracle,
    out: Tensor,
    x: Tensor,
    (picks, table): (Ids, Ids),
    expert: Expert,
) -> Vec<f64> {
    let (ranks, width) = (picks.0.cols as usize, x.cols as usize);
    let mut result = numbers(oracle, out);
    let (x, table) = (oracle.load(x), oracle.load_ids(table));
    for (i, pick) in oracle.load_ids(picks).into_iter().enumerate().filter(|(_, pick)| *pick != NONE) {
        let [slot, payload] = [table[pick as usize * 2], table[pick as usize * 2 + 1]];
        if slot != NONE {
            let slots = oracle.slots(expert.experts.gate.buffer).read(slot);
            let row = one_expert(&slots[payload as usize..], &x[i / ranks * width..][..width], expert);
            result[i * out.cols as usize..][..row.len()].copy_from_slice(&row);
        }
    }
    result
}

fn one_expert(payload: &[u8], x: &[f32], expert: Expert) -> Vec<f64> {
    let Expert { experts, activation, activations } = expert;
    let apply = |weight: Matrix, x: &[f32]| {
        let (layout, rows) = (weight.layout(), u64::from(weight.rows));
        let codes = &payload[weight.codes as usize..][..(layout.code_row_bytes * rows) as usize];
        let scales = &payload[weight.scales as usize..][..(layout.scale_row_bytes * rows) as usize];
        product(&decoded(weight, codes, scales), &rounded(x, weight, activations), weight.cols as usize)
    };
    let (gate, up) = (apply(experts.gate, x), apply(experts.up, x));
    let inner: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| glu(activation, *g, *u) as f32).collect();
    apply(experts.down, &inner)
}
