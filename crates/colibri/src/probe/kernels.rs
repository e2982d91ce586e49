//! Every matrix product of a model by itself, on the device that was asked for. Weights are numbers without meaning that
//! lie one matrix behind the other in one buffer, so that none is met again before all others were.
use super::floor::Piece;
use super::samples::{Paging, Sample, Watch};
use crate::errors::Failure;
use ops::packing::layout;
use ops::{Activations, Buffer, Device, Matrix, Op, Packing, Picked, Tensor};
use std::time::Duration;

/// Bytes of weights that one repeat goes through, if it is one of reading ...
const READ_BYTES: u64 = 192 << 20;
/// ... and its multiply-adds at most.
const MULTIPLY_ADDS: u64 = 6 << 30;
/// Ops of one repeat, at most.
const OPS_MOST: u64 = 1 << 14;
/// Every packing's scales are at most this part of its codes.
const SCALE_PART: u64 = 8;
/// Matrices and their scales begin at multiples of this.
const ALIGNMENT: u64 = 64;

/// A product of the model: one line of the table for each mode and number of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    packing: Packing,
    /// Outputs; of all heads together.
    rows: u32,
    cols: u32,
    /// Heads, each with its own part of the matrix; 1 for a plain product.
    heads: u32,
}

/// All products of a step, each once.
pub(crate) fn shapes(step: &[Op]) -> Vec<Shape> {
    let mut shapes: Vec<Shape> = step
        .iter()
        .flat_map(|op| {
            let heads = if let Op::HeadMatMul { heads, .. } = op { *heads } else { 1 };
            op.matrices().into_iter().map(move |Matrix { packing, rows, cols, .. }| Shape {
                packing,
                rows,
                cols,
                heads,
            })
        })
        .collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    shape: Shape,
    activations: Activations,
    inputs: u32,
    /// Outputs that are measured: all, unless the matrix is larger than the weights' memory.
    outputs: u32,
}

impl Kernel {
    /// Every shape with every mode in which it can be and each number of inputs.
    pub(crate) fn all(shapes: &[Shape], inputs: &[u32], bytes: u64) -> Vec<Kernel> {
        let mut kernels = Vec::new();
        for &shape in shapes {
            let is_float = matches!(shape.packing, Packing::F32 | Packing::Bf16);
            let modes = [Activations::Int15, Activations::Int8, Activations::Exact];
            let row = layout(shape.packing, 1, shape.cols).code_row_bytes;
            let most = (bytes / 2 / row / u64::from(shape.heads)).max(1) * u64::from(shape.heads);
            let outputs = u64::from(shape.rows).min(most) as u32;
            for &activations in if is_float { &modes[2..] } else { &modes } {
                kernels.extend(inputs.iter().map(|&inputs| Kernel { shape, activations, inputs, outputs }));
            }
        }
        kernels
    }

    /// One product of a matrix of this size, or of as many of its outputs as half of `bytes` bytes hold.
    pub(crate) fn of(
        (packing, activations, (rows, cols)): (Packing, Activations, (u32, u32)),
        inputs: u32,
        bytes: u64,
    ) -> Kernel {
        let most = (bytes / 2 / layout(packing, 1, cols).code_row_bytes).max(1);
        let shape = Shape { packing, rows, cols, heads: 1 };
        Kernel { shape, activations, inputs, outputs: u64::from(rows).min(most) as u32 }
    }

    /// How its weights are stored, and how many inputs meet them.
    pub(crate) fn kind(&self) -> (Packing, u32) {
        (self.shape.packing, self.inputs)
    }

    /// Its name, the same in every run.
    pub(crate) fn name(&self) -> String {
        let Shape { packing, rows, cols, heads } = self.shape;
        let size = match heads {
            1 => format!("{rows}x{cols}"),
            _ => format!("{heads} of {}x{cols}", rows / heads),
        };
        format!("{} {size} {}, {}", packing.name(), self.activations.name(), self.inputs)
    }

    /// Whether only a part of the matrix is measured.
    pub(crate) fn how(&self) -> Option<String> {
        let Kernel { outputs, shape, .. } = self;
        (*outputs < shape.rows).then(|| format!("{outputs} of {} outputs, for want of --bytes", shape.rows))
    }

    /// Numbers of its inputs and of its outputs.
    fn numbers(&self) -> [u64; 2] {
        let inputs = u64::from(self.inputs) * u64::from(self.shape.heads);
        [inputs * u64::from(self.shape.cols), u64::from(self.inputs) * u64::from(self.outputs)]
    }

    fn sizes(&self) -> ops::packing::Layout {
        layout(self.shape.packing, self.outputs, self.shape.cols)
    }

    /// The op on the weights from these places on.
    fn op(&self, desk: &Desk, codes: u64, scales: u64) -> Op {
        let Kernel { shape: Shape { packing, cols, heads, .. }, activations, inputs, outputs } = *self;
        let weight = Matrix { buffer: desk.weights, codes, scales, rows: outputs, cols, packing };
        let x = Tensor::new(desk.inputs, 0, inputs * heads, cols);
        let out = Tensor::new(desk.outputs, 0, inputs * heads, outputs / heads);
        if heads == 1 {
            Op::MatMul { out, x, weight, activations }
        } else {
            Op::HeadMatMul { out, x, weight, heads }
        }
    }

    /// What one product has to do.
    pub(crate) fn piece(&self, desk: &Desk) -> Piece {
        Piece::of(&self.op(desk, 0, 0).work(Picked::default()), 0.0, 1.0)
    }
}

/// A device with weights, inputs and a place for results.
pub(crate) struct Desk {
    device: Box<dyn Device>,
    weights: Buffer,
    inputs: Buffer,
    outputs: Buffer,
    bytes: u64,
    /// Where the codes of the next matrix begin.
    place: u64,
    threads: usize,
    /// A repeat does this part of what it does in a careful measurement.
    part: u64,
}

impl Desk {
    /// Bytes that it takes for `bytes` bytes of weights.
    pub(crate) fn bytes(kernels: &[Kernel], bytes: u64) -> u64 {
        let most = |which: usize| kernels.iter().map(|kernel| kernel.numbers()[which] * 4).max().unwrap_or(0);
        bytes + bytes / SCALE_PART + most(0) + most(1)
    }

    /// Fills the weights.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(
        mut device: Box<dyn Device>,
        kernels: &[Kernel],
        bytes: u64,
        threads: usize,
    ) -> Result<Self, Failure> {
        let most = |which: usize| kernels.iter().map(|kernel| kernel.numbers()[which]).max().unwrap_or(0);
        let weights = device.allocate(bytes + bytes / SCALE_PART, "weights to measure with")?;
        // Two halves of a float with an exponent a little below 0, or a float, or codes of any packing ...
        fill(&mut *device, weights, 0..bytes, |bits| (bits & 0x83ff_83ff_83ff_83ff) | 0x3c00_3c00_3c00_3c00)?;
        // ... and scales that keep results finite: of MXFP4 between 2^-15 and 1.
        let scales = bytes..bytes + bytes / SCALE_PART;
        fill(&mut *device, weights, scales, |bits| (bits & 0x0f0f_0f0f_0f0f_0f0f) | 0x7070_7070_7070_7070)?;
        let inputs = device.allocate(most(0) * 4, "inputs to measure with")?;
        let number = |i: u64| ((i * 37 % 101) as f32 - 50.0) / 17.0;
        let numbers: Vec<f32> = (0..most(0)).map(number).collect();
        device.write(inputs, 0, bytemuck::cast_slice(&numbers))?;
        let outputs = device.allocate(most(1) * 4, "results")?;
        ops::clear(&mut *device, outputs, 0..most(1) * 4)?;
        Ok(Desk { device, weights, inputs, outputs, bytes, place: 0, threads, part: 1 })
    }

    /// The same with short repeats, of so many parts of the work.
    pub(crate) fn hurried(self, part: u64) -> Self {
        Desk { part, ..self }
    }

    /// One repeat: the seconds of one product.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn measure(&mut self, kernel: &Kernel) -> Result<Sample, Failure> {
        let sizes = kernel.sizes();
        let (codes, scales) = (sizes.scales, sizes.bytes - sizes.scales);
        let work = kernel.op(self, 0, 0).work(Picked::default()).multiply_adds;
        let bytes = READ_BYTES.min(self.bytes);
        let count = (bytes / sizes.bytes).min(MULTIPLY_ADDS / work).min(OPS_MOST) / self.part;
        let count = count.max(1);
        let scale_bytes = self.bytes / SCALE_PART;
        let mut ops = Vec::with_capacity(count as usize);
        for _ in 0..count {
            if self.place + codes > self.bytes {
                self.place = 0;
            }
            let place = self.place;
            self.place = (place + codes).next_multiple_of(ALIGNMENT);
            // The same part of the scales' memory as of the codes'.
            let scale = (place / SCALE_PART).min(scale_bytes - scales) / ALIGNMENT * ALIGNMENT;
            ops.push(kernel.op(self, place, self.bytes + scale));
        }
        let watch = Watch::start(Paging::Any);
        let submission = self.device.submit(&ops)?;
        self.device.wait(submission, None)?;
        Ok(watch.stop(self.threads, Duration::ZERO).per(count as f64))
    }
}

/// Writes seeded bits into bytes of a buffer.
fn fill(
    device: &mut dyn Device,
    buffer: Buffer,
    range: std::ops::Range<u64>,
    pattern: impl Fn(u64) -> u64,
) -> Result<(), Failure> {
    const CHUNK: u64 = 1 << 20;
    let mut random = range.start + 1;
    let mut chunk = vec![0_u64; (CHUNK / 8) as usize];
    let mut start = range.start;
    while start < range.end {
        for word in &mut chunk {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *word = pattern(random.rotate_left(29));
        }
        let bytes: &[u8] = bytemuck::cast_slice(&chunk);
        let count = CHUNK.min(range.end - start);
        device.write(buffer, start, &bytes[..count as usize])?;
        start += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::Oracle;

    const INT8: Shape = Shape { packing: Packing::Int8, rows: 64, cols: 96, heads: 1 };
    const HEADS: Shape = Shape { packing: Packing::Bf16, rows: 60, cols: 32, heads: 3 };

    #[test]
    fn every_product_is_named_once_and_measured() {
        let kernels = Kernel::all(&[INT8, HEADS], &[1, 3], 1 << 20);
        let names: Vec<String> = kernels.iter().map(Kernel::name).collect();
        let modes = ["int15, 1", "int15, 3", "int8, 1", "int8, 3", "exact, 1", "exact, 3"];
        let mut expected = modes.map(|mode| format!("int8 64x96 {mode}")).to_vec();
        expected.extend(["bf16 3 of 20x32 exact, 1".into(), "bf16 3 of 20x32 exact, 3".into()]);
        assert_eq!(names, expected);
        let oracle = Box::new(Oracle::new(1).unwrap());
        let mut desk = Desk::new(oracle, &kernels, 1 << 20, 1).unwrap();
        for kernel in &kernels {
            assert!(desk.measure(kernel).unwrap().seconds > 0.0);
            assert_eq!(kernel.how(), None);
        }
        let piece = kernels[1].piece(&desk);
        assert_eq!((piece.weight_bytes, piece.multiply_adds), (64.0 * 99.0, 3.0 * 64.0 * 96.0));
    }

    #[test]
    fn a_matrix_that_is_too_large_is_cut_and_says_so() {
        let large = Shape { packing: Packing::F32, rows: 6000, cols: 1024, heads: 3 };
        let kernels = Kernel::all(&[large], &[1], 1 << 20);
        // Half of the memory has 128 rows: 42 of each head.
        assert_eq!(kernels[0].outputs, 126);
        assert_eq!(kernels[0].how().unwrap(), "126 of 6000 outputs, for want of --bytes");
        let mut desk = Desk::new(Box::new(Oracle::new(1).unwrap()), &kernels, 1 << 20, 1).unwrap();
        desk.measure(&kernels[0]).unwrap();
    }

    #[test]
    fn results_are_finite_in_every_packing() {
        for packing in [Packing::Mxfp4, Packing::Int4, Packing::Int8, Packing::Bf16, Packing::F32] {
            let shape = Shape { packing, rows: 32, cols: 64, heads: 1 };
            let kernels = Kernel::all(&[shape], &[2], 1 << 20);
            let mut desk = Desk::new(Box::new(Oracle::new(1).unwrap()), &kernels, 1 << 20, 1).unwrap();
            for kernel in &kernels {
                desk.measure(kernel).unwrap();
                let ticket = desk.device.read_later(desk.outputs, 0, 64 * 4).unwrap();
                let mut numbers = [0.0_f32; 64];
                desk.device.take(ticket, bytemuck::cast_slice_mut(&mut numbers)).unwrap();
                assert!(numbers.iter().all(|n| n.is_finite() && *n != 0.0), "{}", kernel.name());
            }
        }
    }
}
