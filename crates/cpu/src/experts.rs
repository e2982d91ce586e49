//! Routed experts, read in their slots.

use crate::device::Machine;
use crate::elementwise::glu_row;
use crate::linear::mat_mul;
use crate::memory::{View, ViewMut};
use memory::Slab;
use ops::{Activation, Activations, ExpertMatrices, Matrix, NONE};

/// What every expert does.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) experts: ExpertMatrices,
    pub(crate) activation: Activation,
    pub(crate) activations: Activations,
}

pub(crate) fn experts(
    machine: &mut Machine,
    mut out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    picks: View<'_, u32>,
    table: View<'_, u32>,
    slab: &Slab,
    task: Task,
) {
    let ranks = picks.cols();
    for id in 0..table.rows() as u32 {
        let [slot, payload] = *table.row(id as usize) else { panic!("a table has two columns") };
        let takers: Vec<usize> =
            (0..out.rows()).filter(|row| picks.row(row / ranks)[row % ranks] == id).collect();
        if slot == NONE || takers.is_empty() {
            continue;
        }
        let inputs: Vec<f32> = takers.iter().flat_map(|row| x.row(row / ranks)).copied().collect();
        let bytes = slab.read(slot);
        let results = one_expert(machine, &bytes[payload as usize..], &inputs, task);
        for (row, result) in takers.iter().zip(results.chunks_exact(out.cols())) {
            out.row(*row).copy_from_slice(result);
        }
    }
}

/// `W_down activation(W_gate x, W_up x)` for rows x.
fn one_expert(machine: &mut Machine, payload: &[u8], inputs: &[f32], task: Task) -> Vec<f32> {
    let gate = product(machine, payload, inputs, task.experts.gate, task.activations);
    let up = product(machine, payload, inputs, task.experts.up, task.activations);
    let mut inner = vec![0.0; gate.len()];
    glu_row(machine.level, &mut inner, &gate, &up, task.activation);
    product(machine, payload, &inner, task.experts.down, task.activations)
}

/// `W x` for rows x; the matrix lies in a payload.
fn product(
    machine: &mut Machine,
    payload: &[u8],
    values: &[f32],
    weight: Matrix,
    activations: Activations,
) -> Vec<f32> {
    let rows = values.len() / weight.cols as usize;
    let layout = weight.layout();
    let bytes = [(weight.codes, layout.code_row_bytes), (weight.scales, layout.scale_row_bytes)]
        .map(|(start, row)| &payload[start as usize..][..(row * u64::from(weight.rows)) as usize]);
    let mut result = vec![0.0; rows * weight.rows as usize];
    let out = ViewMut::from_slice(&mut result, rows, weight.rows as usize);
    mat_mul(machine, out, View::from_slice(values, rows, weight.cols as usize), bytes, weight, activations);
    result
}
