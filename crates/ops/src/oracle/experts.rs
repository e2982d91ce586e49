//! Routed experts, read in their slots.
use super::elementwise::gated_units;
use super::linear::{MatrixBytes, prepare, product};
use super::memory::Memory;
use super::split::Split;
use crate::ops::Expert;
use crate::tensor::{Ids, Matrix, NONE, Tensor};

pub(super) fn experts(
    memory: &mut Memory,
    split: &Split,
    out: Tensor,
    x: Tensor,
    picks: Ids,
    table: Ids,
    expert: Expert,
) {
    let (ranks, width) = (picks.0.cols as usize, x.cols as usize);
    let (values, table) = (memory.load(x), memory.load_ids(table));
    let picks = memory.load_ids(picks);
    let slab = std::sync::Arc::clone(memory.slots(expert.experts.gate.buffer));
    let mut seen: Vec<u32> = picks.iter().copied().filter(|&p| p != NONE).collect();
    seen.sort_unstable();
    seen.dedup();
    for id in seen {
        let [slot, payload] = [table[id as usize * 2], table[id as usize * 2 + 1]];
        if slot == NONE {
            continue;
        }
        // All rows that picked this expert, in order.
        let takers: Vec<usize> = (0..picks.len()).filter(|&i| picks[i] == id).collect();
        let inputs: Vec<f32> =
            takers.iter().flat_map(|i| &values[i / ranks * width..][..width]).copied().collect();
        let bytes = slab.read(slot);
        let results = one_expert(split, &bytes[payload as usize..], &inputs, expert);
        for (row, result) in takers.iter().zip(results.chunks_exact(out.cols as usize)) {
            memory.store(out.rows_at(*row as u32, 1), result);
        }
    }
}

/// `W_down activation(W_gate x, W_up x)` for rows x.
fn one_expert(split: &Split, payload: &[u8], inputs: &[f32], expert: Expert) -> Vec<f32> {
    let Expert { experts, activation, activations } = expert;
    let apply = |values: &[f32], weight: Matrix| {
        let bytes = MatrixBytes {
            codes: &payload[weight.codes as usize..],
            scales: &payload[weight.scales as usize..],
        };
        product(split, bytes, weight, &prepare(values, weight, activations))
    };
    let (gate, up) = (apply(inputs, experts.gate), apply(inputs, experts.up));
    let inner = gated_units(split, &gate, &up, experts.gate.rows as usize, activation);
    apply(&inner, experts.down)
}
