//! Routed experts, read in their slots. Rows are gathered by expert, so that the weights of one are read once for all
//! the tokens that picked it; each step of all experts together is one piece of work for the threads.

use crate::device::Machine;
use crate::elementwise::glu_row;
use crate::level::Level;
use crate::linear::{PREPARE_COST, part_outputs};
use crate::memory::{Cut, View, ViewMut};
use crate::pool::Pool;
use crate::product::{Prepared, Room, Shape, Weight, multiply};
use crate::simd::outputs::{Groups, Outputs};
use memory::Slab;
use ops::{Activation, Activations, ExpertMatrices, Matrix, NONE};

/// What every expert does.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) experts: ExpertMatrices,
    pub(crate) activation: Activation,
    pub(crate) activations: Activations,
}

/// The experts of an op and who picked them, kept from op to op.
#[derive(Default)]
pub(crate) struct Gathered {
    experts: Vec<Expert>,
    /// Where the rows of each expert begin among the gathered rows, and where they end.
    starts: Vec<u32>,
    /// The row of the output that each gathered row is for.
    takers: Vec<u32>,
    /// For every expert of the table, its rows.
    counts: Vec<u32>,
    up: Vec<f32>,
    inner: Vec<f32>,
    results: Vec<f32>,
}

/// An expert that somebody picked.
#[derive(Clone, Copy)]
struct Expert {
    slot: u32,
    /// Where in the slot its bytes begin.
    payload: u32,
}

impl Gathered {
    /// Bytes it holds.
    pub(crate) fn bytes(&self) -> u64 {
        let floats = self.up.len() + self.inner.len() + self.results.len();
        let numbers = self.starts.capacity() + self.takers.capacity() + self.counts.capacity();
        (4 * (floats + numbers) + size_of::<Expert>() * self.experts.capacity()) as u64
    }

    /// Sorts the picks by expert, those without a slot left out.
    fn gather(&mut self, picks: View<'_, u32>, table: View<'_, u32>) {
        let slot = |id: u32| table.row(id as usize)[0];
        let all = || (0..picks.rows()).flat_map(|t| picks.row(t)).copied();
        let is_taken = |id: u32| id != NONE && slot(id) != NONE;
        self.counts.clear();
        self.counts.resize(table.rows(), 0);
        for id in all().filter(|id| is_taken(*id)) {
            self.counts[id as usize] += 1;
        }
        self.experts.clear();
        self.starts.clear();
        self.starts.push(0);
        let mut end = 0;
        for (id, count) in self.counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let [slot, payload] = *table.row(id) else { panic!("a table has two columns") };
            self.experts.push(Expert { slot, payload });
            // From here on, where the next row of the expert goes.
            (end, *count) = (end + *count, end);
            self.starts.push(end);
        }
        self.takers.clear();
        self.takers.resize(end as usize, 0);
        for (row, id) in all().enumerate().filter(|(_, id)| is_taken(*id)) {
            let place = &mut self.counts[id as usize];
            self.takers[*place as usize] = row as u32;
            *place += 1;
        }
    }
}

/// A vector of at least `count` numbers.
fn room(numbers: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if numbers.len() < count {
        numbers.resize(count, 0.0);
    }
    &mut numbers[..count]
}

pub(crate) fn experts(
    machine: &mut Machine,
    out: ViewMut<'_, f32>,
    x: View<'_, f32>,
    picks: View<'_, u32>,
    table: View<'_, u32>,
    slab: &Slab,
    task: Task,
) {
    let Machine { level, pool, scratch } = machine;
    let level = *level;
    let gathered = &mut scratch.gathered;
    gathered.gather(picks, table);
    let Gathered { experts, starts, takers, up, inner, results, .. } = gathered;
    let (rows, ranks) = (takers.len(), picks.cols());
    let (gate_matrix, down) = (task.experts.gate, task.experts.down);
    let (middle, width) = (gate_matrix.rows as usize, down.rows as usize);
    let [up, inner] = [up, inner].map(|numbers| room(numbers, rows * middle));
    let results = room(results, rows * width);
    let groups = experts.len();
    let task_of = |i: usize, pieces: usize, piece: usize| (i / pieces, i % pieces * piece);

    let inputs = Inputs { starts, level, activations: task.activations, weight: gate_matrix };
    let inputs = inputs.prepare(pool, &mut scratch.inputs, |row| x.row(takers[row] as usize / ranks));
    let piece = part_outputs(middle, groups, pool.threads());
    let pieces = middle.div_ceil(piece);
    let cut = |numbers| Groups::new(Outputs::new(numbers, rows, middle, middle), starts, piece);
    // What the gate gives lies where the result of both will.
    let parts = (cut(&mut *inner), cut(&mut *up));
    let cost = 2 * (rows * middle * width) as u64;
    pool.each(cost, parts, |i, (mut inner, mut up)| {
        let (group, first) = task_of(i, pieces, piece);
        let slot = slab.read(experts[group].slot);
        let payload = &slot[experts[group].payload as usize..];
        let outputs = first..first + inner.cols();
        multiply(weight(payload, gate_matrix), outputs.clone(), inputs.of(group), inner.borrow());
        multiply(weight(payload, task.experts.up), outputs, inputs.of(group), up.borrow());
        for row in 0..inner.rows() {
            glu_row(level, inner.row_mut(row), up.row_mut(row), task.activation);
        }
    });

    let inner = &*inner;
    let inputs = Inputs { starts, level, activations: task.activations, weight: down };
    let inputs = inputs.prepare(pool, &mut scratch.inner, |row| &inner[row * middle..][..middle]);
    let piece = part_outputs(width, groups, pool.threads());
    let pieces = width.div_ceil(piece);
    let parts = Groups::new(Outputs::new(&mut *results, rows, width, width), starts, piece);
    pool.each(cost / 2, parts, |i, out| {
        let (group, first) = task_of(i, pieces, piece);
        let slot = slab.read(experts[group].slot);
        let payload = &slot[experts[group].payload as usize..];
        let outputs = first..first + out.cols();
        multiply(weight(payload, down), outputs, inputs.of(group), out);
    });
    scatter(out, results, takers);
}

/// How gathered rows meet a matrix of their experts.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    starts: &'a [u32],
    level: Level,
    activations: Activations,
    weight: Matrix,
}

/// Gathered rows, prepared: each in a place of the same size, though rows of experts with many of them have another
/// form than those of experts with few.
#[derive(Clone, Copy)]
struct PreparedGroups<'a> {
    inputs: Inputs<'a>,
    bytes: &'a [u8],
    distance: usize,
}

impl<'a> Inputs<'a> {
    fn shape(&self, group: usize) -> Shape {
        let rows = (self.starts[group + 1] - self.starts[group]) as usize;
        Shape::new(self.level, self.weight.packing, self.activations, rows, self.weight.cols as usize)
    }

    /// Prepares all rows; `x` gives them by number.
    fn prepare<'x>(
        self,
        pool: &mut Pool,
        room: &'a mut Room,
        x: impl Fn(usize) -> &'x [f32] + Sync,
    ) -> PreparedGroups<'a> {
        let groups = self.starts.len() - 1;
        let distance = (0..groups).map(|group| self.shape(group).row_bytes()).max().unwrap_or(0);
        let rows = self.starts[groups] as usize;
        let bytes = room.bytes(rows * distance);
        let places = ViewMut::from_slice(&mut *bytes, rows, distance);
        let cost = rows * self.weight.cols as usize * PREPARE_COST;
        pool.each(cost as u64, places.cut(Cut::Blocks(1, distance)), |row, mut place| {
            let group = self.starts.partition_point(|start| *start as usize <= row) - 1;
            let shape = self.shape(group);
            shape.fill(x(row), &mut place.row(0)[..shape.row_bytes()]);
        });
        PreparedGroups { inputs: self, bytes, distance }
    }
}

impl<'a> PreparedGroups<'a> {
    /// The rows of a group.
    fn of(&self, group: usize) -> Prepared<'a> {
        let start = self.inputs.starts[group] as usize * self.distance;
        Prepared::spaced(self.inputs.shape(group), &self.bytes[start..], self.distance)
    }
}

/// Puts gathered rows where they belong.
fn scatter(mut out: ViewMut<'_, f32>, results: &[f32], takers: &[u32]) {
    let width = out.cols();
    for (row, taker) in takers.iter().enumerate() {
        out.row(*taker as usize).copy_from_slice(&results[row * width..][..width]);
    }
}

/// A matrix in a payload.
fn weight(payload: &[u8], matrix: Matrix) -> Weight<'_> {
    let [codes, scales] = [matrix.codes, matrix.scales].map(|start| &payload[start as usize..]);
    Weight::new(matrix.packing, matrix.rows, matrix.cols, codes, scales)
}
