//! Kernels of matrix products, written once for machines of different widths. They follow pointers; `crate::product`
//! checks all ranges before it calls them. They know no tensor and no thread.
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is not compiled for the machine's instructions"
)]

mod dispatch;
mod few_exact;
mod few_rows;
mod floats;
mod form;
mod format;
pub mod limits;
mod machine;
mod meetings;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use dispatch::run;
pub(crate) use few_rows::Planes;
pub use form::Form;
pub(crate) use machine::{Codes, Machine};
pub(crate) use meetings::{FLOATS, WORDS, column_of_step, group_of_lane};

use crate::level::Level;
use crate::simd::outputs::Outputs;
use few_exact::FewExact;
use few_rows::FewRows;
use floats::{Bf16, F32, FewFloats, Floats, Number};
use format::{Format, Int4, Int8, Mxfp4};
use meetings::{Exact, Integers};
use ops::Packing;
use ops::packing::layout;
use tiles::Tiles;

/// Groups in a block of the numerics contract: one for each of its 16 lanes.
pub(crate) const GROUPS: usize = 16;
/// From this number of inputs on, f32 meets packed weights that were decoded once for all of them.
const MANY_FLOATS: usize = 3;
/// From which number of inputs on integers meet weights that were decoded once for all of them, by measurement:
/// where a weight needs no multiplier and vectors are wide, decoding it again for every two inputs costs little.
pub(crate) fn many_integers(level: Level, packing: Packing) -> usize {
    match packing {
        Packing::Mxfp4 if run(level, AskWide) => 16,
        _ => 5,
    }
}

/// Whether a vector has a lane for each group of a block.
struct AskWide;

impl Kernel for AskWide {
    type Output = bool;

    #[inline(always)]
    fn run<M: Machine>(self, _machine: M) -> bool {
        M::LANES == GROUPS
    }
}

/// Columns in a block.
pub(crate) const COLUMNS: usize = 512;

/// Work that is compiled for a machine. All code that it calls is to be `#[inline(always)]`.
pub(crate) trait Kernel {
    /// What it gives.
    type Output;

    /// Does the work.
    fn run<M: Machine>(self, machine: M) -> Self::Output;
}

/// Where things lie, in bytes. Whoever makes one promises that all bytes that it implies are there while it is used.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// The first of the weight rows to be multiplied.
    pub(crate) codes: *const u8,
    /// From a row to the next.
    pub(crate) code_row: usize,
    /// The scales of that row.
    pub(crate) scales: *const u8,
    /// From a row to the next.
    pub(crate) scale_row: usize,
    /// Inputs of a weight row.
    pub(crate) cols: usize,
    /// Weight rows.
    pub(crate) rows: usize,
    /// The first of the prepared inputs, at a multiple of 64.
    pub(crate) inputs: *const u8,
    /// From an input to the next, a multiple of 64.
    pub(crate) input_row: usize,
    /// Inputs.
    pub(crate) count: usize,
    /// What the first weight row gives for the first input.
    pub(crate) out: *mut f32,
    /// Numbers (not bytes) from what a weight row gives for an input to what it gives for the next.
    pub(crate) out_row: usize,
}

/// Bytes of weights that are asked for before they are needed: as many as the memory sends while it answers.
const AHEAD: usize = 6144;

/// How far ahead of the present place in a weight row memory is asked for, if some rows are read side by side and then
/// the same number of further rows.
#[derive(Clone, Copy)]
struct Ahead {
    /// Bytes from there on belong to the rows that come next.
    turn: usize,
    /// The distance before that place, and from there on.
    distances: [usize; 2],
    /// The distance of the scales of rows that come so much later: whole rows, since a row has few cache lines of them.
    scales: usize,
}

impl Ahead {
    fn new(rows: usize, job: &Job) -> Self {
        let row_bytes = job.code_row.max(1);
        let in_row = AHEAD / rows;
        let other_rows = (rows - 1) * row_bytes;
        let distance = in_row + in_row / row_bytes * other_rows;
        Ahead {
            turn: row_bytes - in_row % row_bytes,
            distances: [distance, distance + other_rows],
            scales: in_row.div_ceil(row_bytes) * rows * job.scale_row,
        }
    }

    /// The distance at a place in a row.
    #[inline(always)]
    fn at(self, place: usize) -> usize {
        self.distances[usize::from(place >= self.turn)]
    }
}

/// Weight rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'w> {
    /// From the first row on.
    pub(crate) codes: &'w [u8],
    /// Likewise.
    pub(crate) scales: &'w [u8],
    /// How they are stored.
    pub(crate) packing: Packing,
    /// Inputs of a row.
    pub(crate) cols: usize,
}

/// What as many weight rows as `out` has columns give for as many inputs as it has rows; these lie `input_row` bytes apart.
///
/// # Panics
/// If a slice is too short, inputs lie at other places than multiples of 64, or the form is none in which inputs meet
/// the packing.
pub(crate) fn kernel(
    weights: Rows<'_>,
    level: Level,
    form: Form,
    (inputs, input_row): (&[u8], usize),
    out: &mut Outputs<'_>,
) {
    let Rows { codes, scales, packing, cols } = weights;
    let (rows, count) = (out.cols(), out.rows());
    let layout = layout(packing, rows as u32, cols as u32);
    assert!(codes.len() as u64 >= layout.scales && scales.len() as u64 >= layout.bytes - layout.scales);
    let form_bytes = form.bytes(level, cols);
    assert!(count == 0 || inputs.len() >= (count - 1) * input_row + form_bytes);
    assert!(inputs.as_ptr().addr().is_multiple_of(64) && input_row.is_multiple_of(64));
    let job = Job {
        codes: codes.as_ptr(),
        code_row: layout.code_row_bytes as usize,
        scales: scales.as_ptr(),
        scale_row: layout.scale_row_bytes as usize,
        cols,
        rows,
        inputs: inputs.as_ptr(),
        input_row,
        count,
        out: out.start(),
        out_row: out.stride(),
    };
    // SAFETY: the slices were found long enough, and `out` has a place for each result.
    unsafe { run_kernel(level, form, packing, job) };
}

/// # Safety
/// The weights, the inputs in their form and places for all results must be where the job says.
unsafe fn run_kernel(level: Level, form: Form, packing: Packing, job: Job) {
    // SAFETY: the caller promised what the kernels ask for.
    unsafe {
        match packing {
            Packing::F32 => floats::<F32>(level, form, job),
            Packing::Bf16 => floats::<Bf16>(level, form, job),
            Packing::Int8 => packed::<Int8>(level, form, job),
            Packing::Int4 => packed::<Int4>(level, form, job),
            Packing::Mxfp4 => packed::<Mxfp4>(level, form, job),
        }
    }
}

/// # Safety
/// As [`run_kernel`].
unsafe fn packed<F: Format>(level: Level, form: Form, job: Job) {
    // SAFETY: the caller promised what the kernels ask for.
    unsafe {
        match form {
            Form::Int15Planes => run(level, FewRows::<F, true>::new(job)),
            Form::Int8Planes => run(level, FewRows::<F, false>::new(job)),
            Form::Int15Words | Form::Int8Words => run(level, Tiles::<Integers<F>>::new(job)),
            Form::Transposed if job.count < MANY_FLOATS => run(level, FewExact::<F>::new(job)),
            Form::Transposed => run(level, Tiles::<Exact<F>>::new(job)),
            Form::Floats => panic!("packed weights meet {form:?}"),
        }
    }
}

/// # Safety
/// As [`run_kernel`].
unsafe fn floats<W: Number>(level: Level, form: Form, job: Job) {
    // SAFETY: the caller promised what the kernels ask for.
    unsafe {
        match form {
            Form::Floats if job.count < MANY_FLOATS => run(level, FewFloats::<W>::new(job)),
            Form::Floats => run(level, Tiles::<Floats<W>>::new(job)),
            _ => panic!("float weights meet {form:?}"),
        }
    }
}
