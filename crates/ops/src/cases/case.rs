//! One case: the contents of its buffers, its ops, and the means to write both down. It knows no op's meaning.
use crate::checked::Allowed;
use crate::device::{Device, DeviceError, Ticket};
use crate::op::Op;
use crate::packing;
use crate::tensor::{Buffer, Ids, Matrix, Packing, Tensor};
use memory::Slab;
use std::sync::Arc;

/// Between tensors and in the gaps of views: a NaN, so that whoever reads it shows it.
const GAP: u32 = 0x7fc0_dead;
/// What a result holds before it is written: no number that an op would give.
const UNWRITTEN: f32 = -1.234_567e29;
/// Tensors start at multiples of this many numbers, as in the arena of [`crate::Ops`].
const ALIGN: usize = 16;

/// How to make one case.
pub struct Recipe {
    name: String,
    write: Box<dyn Fn(&mut Case)>,
}

impl Recipe {
    pub(super) fn new(name: String, write: impl Fn(&mut Case) + 'static) -> Self {
        Recipe { name, write: Box::new(write) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The case, for a device whose next allocation is `Buffer(first)`.
    #[must_use]
    pub fn build(&self, first: u32) -> Case {
        let mut case = Case {
            name: self.name.clone(),
            ops: Vec::new(),
            finite: true,
            normal: true,
            first,
            arena: Vec::new(),
            weights: Vec::new(),
            slab: None,
            random: Random::named(&self.name),
        };
        (self.write)(&mut case);
        case
    }
}

/// The contents of three buffers (numbers, resident weights, slots of experts) and the ops that use them.
pub struct Case {
    name: String,
    /// What it runs, in order.
    pub ops: Vec<Op>,
    finite: bool,
    normal: bool,
    first: u32,
    arena: Vec<u32>,
    weights: Vec<u8>,
    slab: Option<Arc<Slab>>,
    pub(super) random: Random,
}

/// Running a case.
impl Case {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether all results are numbers. Only then do their bits mean something: which NaN comes out is not defined.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.finite
    }

    /// Whether the case says something about such a device. Subnormal numbers do not concern a device that is allowed a
    /// tolerance: it may take them for zero.
    #[must_use]
    pub fn suits(&self, allowed: Allowed) -> bool {
        self.normal || allowed == Allowed::Nothing
    }

    /// How many buffers it allocates.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        2 + u32::from(self.slab.is_some())
    }

    /// Allocates its buffers and fills them.
    ///
    /// # Errors
    /// The device's, and [`DeviceError::Failed`] if it does not number its buffers from 0 in the order of allocation.
    pub fn place<D: Device + ?Sized>(&self, device: &mut D) -> Result<(), DeviceError> {
        let buffers = [bytemuck::cast_slice(&self.arena), &self.weights];
        for (buffer, bytes) in (self.first..).map(Buffer).zip(buffers) {
            let found = device.allocate(bytes.len() as u64, &self.name)?;
            expect_number(device, found, buffer)?;
            device.write(buffer, 0, bytes)?;
        }
        if let Some(slab) = &self.slab {
            let found = device.adopt(slab, &self.name)?;
            expect_number(device, found, self.slab_buffer())?;
        }
        Ok(())
    }

    /// Asks for all numbers as they are after the work before.
    ///
    /// # Errors
    /// The device's.
    pub fn read_later<D: Device + ?Sized>(&self, device: &mut D) -> Result<Ticket, DeviceError> {
        device.read_later(self.arena_buffer(), 0, self.arena.len() as u64 * 4)
    }

    /// The numbers of a ticket of [`Case::read_later`], as words.
    ///
    /// # Errors
    /// The device's.
    pub fn take<D: Device + ?Sized>(&self, device: &mut D, ticket: Ticket) -> Result<Vec<u32>, DeviceError> {
        let mut words = vec![0; self.arena.len()];
        device.take(ticket, bytemuck::cast_slice_mut(&mut words))?;
        Ok(words)
    }

    /// Places it, runs all its ops in one submission, frees it; every number of its buffers afterwards.
    ///
    /// # Errors
    /// The device's.
    pub fn run<D: Device + ?Sized>(&self, device: &mut D) -> Result<Vec<u32>, DeviceError> {
        self.place(device)?;
        device.submit(&self.ops)?;
        let ticket = self.read_later(device)?;
        self.free(device)?;
        self.take(device, ticket)
    }

    /// Gives its buffers back.
    ///
    /// # Errors
    /// The device's.
    pub fn free<D: Device + ?Sized>(&self, device: &mut D) -> Result<(), DeviceError> {
        (0..self.buffers()).try_for_each(|i| device.free(Buffer(self.first + i)))
    }

    /// The words of its numbers before it runs.
    pub(super) fn initial(&self) -> &[u32] {
        &self.arena
    }

    fn arena_buffer(&self) -> Buffer {
        Buffer(self.first)
    }

    fn weights_buffer(&self) -> Buffer {
        Buffer(self.first + 1)
    }

    pub(super) fn slab_buffer(&self) -> Buffer {
        Buffer(self.first + 2)
    }
}

fn expect_number<D: Device + ?Sized>(device: &D, found: Buffer, expected: Buffer) -> Result<(), DeviceError> {
    if found == expected {
        return Ok(());
    }
    let reason = format!(
        "an allocation is {found:?}, expected {expected:?}: buffers are numbered from 0 in the order of allocation, and \
         the suite starts on an empty device"
    );
    Err(DeviceError::Failed { device: device.name().to_owned(), reason })
}

/// Writing a case.
impl Case {
    /// Says that some result is a NaN or an infinity.
    pub(super) fn has_no_finite_result(&mut self) {
        self.finite = false;
    }

    /// Says that some operand or result is subnormal.
    pub(super) fn has_subnormals(&mut self) {
        self.normal = false;
    }

    pub(super) fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Numbers in consecutive rows.
    pub(super) fn input(&mut self, rows: u32, cols: u32, values: Values) -> Tensor {
        let t = self.room(rows, cols);
        self.fill(t, values);
        t
    }

    /// Numbers in rows with gaps, at a place that is no multiple of anything.
    pub(super) fn view(&mut self, rows: u32, cols: u32, values: Values) -> Tensor {
        let t = self.room(rows, cols + 4).columns_at(1, cols);
        self.fill(t, values);
        t
    }

    /// One or the other: consecutive rows if `plain`.
    pub(super) fn either(&mut self, plain: bool, rows: u32, cols: u32, values: Values) -> Tensor {
        if plain { self.input(rows, cols, values) } else { self.view(rows, cols, values) }
    }

    /// Room for a result.
    pub(super) fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.input(rows, cols, Values::Same(UNWRITTEN))
    }

    /// Room for a result in rows with gaps.
    pub(super) fn output_view(&mut self, rows: u32, cols: u32) -> Tensor {
        self.view(rows, cols, Values::Same(UNWRITTEN))
    }

    /// Given numbers, row after row.
    pub(super) fn numbers(&mut self, rows: u32, cols: u32, numbers: &[f32]) -> Tensor {
        let t = self.room(rows, cols);
        self.set(t, numbers);
        t
    }

    /// Given ids, row after row.
    pub(super) fn ids(&mut self, rows: u32, cols: u32, ids: &[u32]) -> Ids {
        Ids(self.numbers(rows, cols, bytemuck::cast_slice(ids)))
    }

    /// Room for ids.
    pub(super) fn output_ids(&mut self, rows: u32, cols: u32) -> Ids {
        Ids(self.output(rows, cols))
    }

    /// Puts one number into a tensor.
    pub(super) fn put(&mut self, t: Tensor, row: u32, col: u32, number: f32) {
        self.set(t.rows_at(row, 1).columns_at(col, 1), &[number]);
    }

    /// Puts given numbers into a tensor, row after row.
    pub(super) fn set(&mut self, t: Tensor, numbers: &[f32]) {
        assert_eq!(numbers.len() as u64, t.elements(), "numbers of {t:?}");
        for (r, row) in numbers.chunks_exact(t.cols as usize).enumerate() {
            let at = t.offset as usize + r * t.stride as usize;
            self.arena[at..at + row.len()].copy_from_slice(bytemuck::cast_slice(row));
        }
    }

    /// The words of a tensor, row after row, before the case runs.
    pub(super) fn words(&self, t: Tensor) -> Vec<u32> {
        let row = |r: usize| t.offset as usize + r * t.stride as usize;
        (0..t.rows as usize).flat_map(|r| &self.arena[row(r)..row(r) + t.cols as usize]).copied().collect()
    }

    /// Room that holds [`GAP`] until something is put there.
    pub(super) fn room(&mut self, rows: u32, cols: u32) -> Tensor {
        // At least one gap follows every tensor, so that a write past its end is seen.
        let start = (self.arena.len() + 1).next_multiple_of(ALIGN);
        self.arena.resize(start + (rows * cols) as usize + 1, GAP);
        Tensor::new(self.arena_buffer(), start as u64, rows, cols)
    }

    pub(super) fn fill(&mut self, t: Tensor, values: Values) {
        let numbers: Vec<f32> = (0..t.elements()).map(|_| self.random.value(values)).collect();
        self.set(t, &numbers);
    }

    /// A resident weight matrix.
    pub(super) fn matrix(&mut self, packing: Packing, rows: u32, cols: u32, values: Values) -> Matrix {
        let mut bytes = std::mem::take(&mut self.weights);
        let matrix = self.stored(&mut bytes, packing, (rows, cols), values);
        self.weights = bytes;
        Matrix { buffer: self.weights_buffer(), ..matrix }
    }

    /// A weight matrix at the next multiple of 16 bytes, offsets from the start of `bytes`. MXFP4, which nobody encodes,
    /// has random codes, and scales as `values` says.
    pub(super) fn stored(
        &mut self,
        bytes: &mut Vec<u8>,
        packing: Packing,
        (rows, cols): (u32, u32),
        values: Values,
    ) -> Matrix {
        let layout = packing::layout(packing, rows, cols);
        bytes.resize(bytes.len().next_multiple_of(16), 0xaa);
        let start = bytes.len() as u64;
        if packing == Packing::Mxfp4 {
            bytes.extend((0..layout.scales).map(|_| self.random.bits() as u8));
            bytes.extend((layout.scales..layout.bytes).map(|_| self.random.scale_byte(values)));
        } else {
            let weights: Vec<f32> = (0..rows * cols).map(|_| self.random.value(values)).collect();
            bytes.extend(store(packing, &weights, cols));
        }
        Matrix { buffer: Buffer(0), codes: start, scales: start + layout.scales, rows, cols, packing }
    }

    /// Slots of experts, in order.
    pub(super) fn adopt_slots(&mut self, payloads: &[Vec<u8>]) {
        let bytes = payloads.iter().map(Vec::len).max().unwrap_or(0);
        let slab = Slab::new(payloads.len() as u32, bytes as u64).expect("memory for a few small slots");
        for (slot, payload) in payloads.iter().enumerate() {
            let mut place = slab.write(slot as u32).expect("nobody else has the slab yet");
            place[..payload.len()].copy_from_slice(payload);
        }
        self.slab = Some(slab);
    }
}

/// The bytes of a matrix: rows of codes (or floats), then rows of scales.
fn store(packing: Packing, weights: &[f32], cols: u32) -> Vec<u8> {
    match packing {
        Packing::F32 => bytemuck::cast_slice(weights).to_vec(),
        Packing::Bf16 => {
            weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_bits().to_le_bytes()).collect()
        }
        _ => {
            let (codes, scales) = packing::encode(packing, weights, cols).expect("the suite's weights fit");
            [codes, scales].concat()
        }
    }
}

/// What numbers a tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    /// Uniform in -1..1.
    Unit,
    /// Uniform in -x..x.
    Scaled(f32),
    /// Uniform in 0..1.
    Positive,
    /// Of sizes from 2^-20 to 2^20.
    Wide,
    /// Subnormal numbers of both signs.
    Subnormal,
    /// Always x.
    Same(f32),
}

/// A seeded source of numbers (splitmix64).
pub(super) struct Random(u64);

impl Random {
    /// Seeded by a name (FNV-1a).
    fn named(name: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..limit`.
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// The numbers `0..count` in random order.
    pub(super) fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut list: Vec<u32> = (0..count).collect();
        for i in (1..count).rev() {
            list.swap(i as usize, self.below(i + 1) as usize);
        }
        list
    }

    pub(super) fn value(&mut self, values: Values) -> f32 {
        let unit = (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0;
        match values {
            Values::Unit => unit,
            Values::Scaled(size) => unit * size,
            Values::Positive => unit.abs(),
            Values::Wide => unit * f32::from_bits((107 + self.below(41)) << 23),
            Values::Subnormal => f32::from_bits(self.below(0x0080_0000)).copysign(unit),
            Values::Same(number) => number,
        }
    }

    /// A ue8m0 scale for weights of that size; [`Values::Wide`] stands for every scale there is.
    fn scale_byte(&mut self, values: Values) -> u8 {
        match values {
            Values::Wide => self.below(255) as u8,
            Values::Subnormal => self.below(24) as u8,
            Values::Scaled(size) => {
                let exponent = i32::from((size.to_bits() >> 23) as u8);
                (exponent - 6 + self.below(8) as i32).clamp(0, 254) as u8
            }
            _ => 119 + self.below(10) as u8,
        }
    }
}
