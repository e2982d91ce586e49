//! Buffers, and views of the numbers in them that several threads may use at once. All pointers of the device's
//! memory are in this file; what leaves it are slices that the borrow checker and the checks here keep apart.
//! It knows no op.

use crate::simd::outputs::Outputs;
use memory::{Fault, HostBuffer, MappedPart, Slab};
use ops::{Buffer, DeviceError, Ids, Matrix, Tensor};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// The device's name in errors.
pub(crate) const NAME: &str = "cpu";

/// A failure of the device, in words.
pub(crate) fn failed(reason: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME.into(), reason: reason.into() }
}

enum Allocation {
    Owned(Owned),
    Slots(Arc<Slab>),
    Mapped(MappedPart),
}

/// Bytes that are reached through `first` only, so that views of disjoint parts can live side by side.
struct Owned {
    first: NonNull<u8>,
    bytes: u64,
    _buffer: HostBuffer,
}

// SAFETY: the bytes are plain memory that the value owns; nothing in it belongs to a thread.
unsafe impl Send for Owned {}

/// All buffers by number; a freed one leaves its place empty.
#[derive(Default)]
pub(crate) struct Memory {
    buffers: Vec<Option<Allocation>>,
    pub(crate) allocated: u64,
}

impl Memory {
    /// A buffer of zeros.
    pub(crate) fn allocate(&mut self, bytes: u64, label: &str) -> Result<Buffer, DeviceError> {
        let mut buffer = HostBuffer::new(bytes).map_err(|error| DeviceError::OutOfMemory {
            device: NAME.into(),
            label: label.into(),
            bytes,
            reason: error.to_string(),
        })?;
        let first = NonNull::from(buffer.as_mut_slice()).cast();
        self.allocated += bytes;
        Ok(self.add(Allocation::Owned(Owned { first, bytes, _buffer: buffer })))
    }

    /// Slots of experts, read in place.
    pub(crate) fn adopt(&mut self, slab: &Arc<Slab>) -> Buffer {
        self.add(Allocation::Slots(Arc::clone(slab)))
    }

    /// A part of a mapped file, read in place.
    pub(crate) fn map(&mut self, part: &MappedPart) -> Buffer {
        self.add(Allocation::Mapped(part.clone()))
    }

    /// The first fault of a mapped file since the last call.
    pub(crate) fn fault(&mut self) -> Option<Fault> {
        self.buffers.iter().flatten().fold(None, |first, allocation| match allocation {
            Allocation::Mapped(part) => first.or(part.file().take_fault()),
            _ => first,
        })
    }

    fn add(&mut self, allocation: Allocation) -> Buffer {
        self.buffers.push(Some(allocation));
        Buffer(self.buffers.len() as u32 - 1)
    }

    pub(crate) fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        if let Allocation::Owned(owned) = self.get(buffer)? {
            self.allocated -= owned.bytes;
        }
        self.buffers[buffer.0 as usize] = None;
        Ok(())
    }

    fn get(&self, buffer: Buffer) -> Result<&Allocation, DeviceError> {
        self.buffers.get(buffer.0 as usize).and_then(Option::as_ref).ok_or_else(|| unknown(buffer))
    }

    /// Where `bytes` bytes of an owned buffer begin, if they lie inside.
    fn place(&self, buffer: Buffer, start: u64, bytes: u64) -> Result<NonNull<u8>, DeviceError> {
        let Allocation::Owned(owned) = self.get(buffer)? else { return Err(unknown(buffer)) };
        let end = start.saturating_add(bytes);
        if end > owned.bytes {
            let device = NAME.into();
            return Err(DeviceError::OutOfRange { device, buffer, start, end, bytes: owned.bytes });
        }
        // SAFETY: `start` is at most the buffer's size.
        Ok(unsafe { owned.first.add(start as usize) })
    }

    /// A range of bytes.
    pub(crate) fn range(&self, buffer: Buffer, start: u64, bytes: u64) -> Result<&[u8], DeviceError> {
        if let Allocation::Mapped(part) = self.get(buffer)? {
            let (all, end) = (part.as_slice(), start.saturating_add(bytes));
            return all.get(start as usize..end as usize).ok_or_else(|| DeviceError::OutOfRange {
                device: NAME.into(),
                buffer,
                start,
                end,
                bytes: part.bytes(),
            });
        }
        let first = self.place(buffer, start, bytes)?;
        // SAFETY: the range lies inside the buffer, whose bytes started as zeros. They are written only by methods that
        // borrow the memory mutably and by views that do so as long as they live.
        Ok(unsafe { slice::from_raw_parts(first.as_ptr(), bytes as usize) })
    }

    /// A range of bytes to write to.
    pub(crate) fn range_mut(
        &mut self,
        buffer: Buffer,
        start: u64,
        bytes: u64,
    ) -> Result<&mut [u8], DeviceError> {
        let first = self.place(buffer, start, bytes)?;
        // SAFETY: as in `range`, and the memory is borrowed mutably, so that no other range is lent.
        Ok(unsafe { slice::from_raw_parts_mut(first.as_ptr(), bytes as usize) })
    }

    /// Copies bytes from one place to another; the ranges do not overlap.
    pub(crate) fn copy(
        &mut self,
        from: (Buffer, u64),
        to: (Buffer, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let (source, target) = (self.place(from.0, from.1, bytes)?, self.place(to.0, to.1, bytes)?);
        // SAFETY: both ranges lie inside their buffers, and the memory is borrowed mutably. `copy` allows an overlap.
        unsafe { source.copy_to(target, bytes as usize) };
        Ok(())
    }

    /// Views for one op.
    pub(crate) fn access(&mut self) -> Access<'_> {
        Access { memory: self, lent: [None; LENT_MAX] }
    }
}

fn unknown(buffer: Buffer) -> DeviceError {
    DeviceError::UnknownHandle { device: NAME.into(), what: format!("{buffer:?}") }
}

/// More operands than any op has.
const LENT_MAX: usize = 12;

/// A tensor that is lent, and whether to be written.
type Lent = (Tensor, bool);

/// Lends tensors as views. A view to be written never overlaps another one.
pub(crate) struct Access<'m> {
    memory: &'m Memory,
    lent: [Option<Lent>; LENT_MAX],
}

/// Plain numbers of four bytes.
pub(crate) trait Number: Copy + Send + Sync + 'static {}
impl Number for f32 {}
impl Number for u32 {}

impl<'m> Access<'m> {
    /// The numbers of a tensor.
    pub(crate) fn read(&mut self, t: Tensor) -> Result<View<'m, f32>, DeviceError> {
        let first = self.lend(t, false)?;
        Ok(View::of(first, t))
    }

    /// The numbers of a tensor that may be missing.
    pub(crate) fn read_some(&mut self, t: Option<Tensor>) -> Result<Option<View<'m, f32>>, DeviceError> {
        t.map(|t| self.read(t)).transpose()
    }

    /// The numbers of several tensors.
    pub(crate) fn read_all<const N: usize>(
        &mut self,
        tensors: [Tensor; N],
    ) -> Result<[View<'m, f32>; N], DeviceError> {
        let mut views = [View::from_slice(&[], 0, 0); N];
        for (view, t) in views.iter_mut().zip(tensors) {
            *view = self.read(t)?;
        }
        Ok(views)
    }

    /// The same for ids.
    pub(crate) fn read_ids(&mut self, ids: Ids) -> Result<View<'m, u32>, DeviceError> {
        let first = self.lend(ids.0, false)?;
        Ok(View::of(first, ids.0))
    }

    /// The numbers of a tensor, to be written.
    pub(crate) fn write(&mut self, t: Tensor) -> Result<ViewMut<'m, f32>, DeviceError> {
        let first = self.lend(t, true)?;
        Ok(ViewMut(View::of(first, t)))
    }

    /// The same for ids.
    pub(crate) fn write_ids(&mut self, ids: Ids) -> Result<ViewMut<'m, u32>, DeviceError> {
        let first = self.lend(ids.0, true)?;
        Ok(ViewMut(View::of(first, ids.0)))
    }

    /// Codes and scales of a resident matrix. Weights are lent like tensors: no op writes them.
    pub(crate) fn matrix(&mut self, weight: Matrix) -> Result<[&'m [u8]; 2], DeviceError> {
        let layout = weight.layout();
        let rows = u64::from(weight.rows);
        let sizes = [(weight.codes, layout.code_row_bytes), (weight.scales, layout.scale_row_bytes)];
        let mut ranges: [&[u8]; 2] = [&[]; 2];
        for (range, (start, row_bytes)) in ranges.iter_mut().zip(sizes) {
            let bytes = rows * row_bytes;
            if bytes > 0 {
                let numbers =
                    Tensor::new(weight.buffer, start / 4, 1, (start % 4 + bytes).div_ceil(4) as u32);
                self.remember(numbers, false)?;
                // `remember` keeps them from being lent for writing as long as this access lives.
                *range = self.memory.range(weight.buffer, start, bytes)?;
            }
        }
        Ok(ranges)
    }

    /// The slots that an adopted buffer stands for.
    pub(crate) fn slots(&self, buffer: Buffer) -> Result<&'m Slab, DeviceError> {
        match self.memory.get(buffer)? {
            Allocation::Slots(slab) => Ok(slab),
            Allocation::Owned(_) | Allocation::Mapped(_) => {
                Err(failed(format!("{buffer:?} holds no slots of experts")))
            }
        }
    }

    /// Lends a tensor, and gives its first number.
    fn lend<N: Number>(&mut self, t: Tensor, to_write: bool) -> Result<NonNull<N>, DeviceError> {
        if t.rows > 1 && t.stride < t.cols {
            return Err(failed(format!("the rows of {t:?} overlap")));
        }
        self.remember(t, to_write)?;
        let (start, end) = t.byte_range();
        Ok(self.memory.place(t.buffer, start, end - start)?.cast())
    }

    fn remember(&mut self, t: Tensor, to_write: bool) -> Result<(), DeviceError> {
        let conflict = |lent: &&Lent| (lent.1 || to_write) && overlap(lent.0, t);
        if let Some((other, _)) = self.lent.iter().flatten().find(conflict) {
            return Err(failed(format!("{t:?} and {other:?} overlap in one op that writes one of them")));
        }
        match self.lent.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some((t, to_write)),
            None => return Err(failed(format!("an op with more than {LENT_MAX} operands: {t:?}"))),
        }
        Ok(())
    }
}

/// Whether two tensors may share a number. Columns of the same rows are told apart.
fn overlap(a: Tensor, b: Tensor) -> bool {
    let ((a_start, a_end), (b_start, b_end)) = (a.byte_range(), b.byte_range());
    if a.buffer != b.buffer || a_start >= b_end || b_start >= a_end {
        return false;
    }
    let stride = u64::from(a.stride);
    if a.rows <= 1 || b.rows <= 1 || a.stride != b.stride {
        return true;
    }
    let (a_column, b_column) = (a.offset % stride, b.offset % stride);
    let fits = |column: u64, t: Tensor| column + u64::from(t.cols) <= stride;
    let apart = a_column + u64::from(a.cols) <= b_column || b_column + u64::from(b.cols) <= a_column;
    !(fits(a_column, a) && fits(b_column, b) && apart)
}

/// Rows of numbers to read, each of `cols` numbers, one row every `stride` numbers.
pub(crate) struct View<'m, N> {
    first: NonNull<N>,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'m [N]>,
}

impl<N> Clone for View<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<N> Copy for View<'_, N> {}

// SAFETY: a view gives what `&[N]` gives.
unsafe impl<N: Sync> Send for View<'_, N> {}
// SAFETY: as above.
unsafe impl<N: Sync> Sync for View<'_, N> {}

impl<'m, N> View<'m, N> {
    fn of(first: NonNull<N>, t: Tensor) -> Self {
        let (rows, cols, stride) = (t.rows as usize, t.cols as usize, t.stride as usize);
        View { first, rows, cols, stride, lifetime: PhantomData }
    }

    /// Consecutive rows of a slice.
    pub(crate) fn from_slice(numbers: &'m [N], rows: usize, cols: usize) -> Self {
        assert!(rows * cols <= numbers.len(), "{rows} x {cols} in {} numbers", numbers.len());
        View { first: NonNull::from(numbers).cast(), rows, cols, stride: cols, lifetime: PhantomData }
    }

    /// Count of rows.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    #[inline]
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> &'m [N] {
        assert!(r < self.rows, "row {r} of {}", self.rows);
        // SAFETY: row `r` lies inside of what was lent; nothing there is written during `'m`.
        unsafe { slice::from_raw_parts(self.first.as_ptr().add(r * self.stride), self.cols) }
    }

    /// Whether rows follow each other without gaps.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }

    /// The numbers as one row; only for rows without gaps.
    pub(crate) fn flat(self) -> Self {
        assert!(self.is_contiguous(), "rows with gaps are no single row");
        View { rows: 1, cols: self.rows * self.cols, stride: self.rows * self.cols, ..self }
    }

    /// Some rows and some columns of them.
    pub(crate) fn block(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let skipped =
            if rows.is_empty() || cols.is_empty() { 0 } else { rows.start * self.stride + cols.start };
        // SAFETY: the first number of a block that is not empty lies inside of what was lent.
        let first = unsafe { self.first.add(skipped) };
        View { first, rows: rows.len(), cols: cols.len(), ..self }
    }

    /// Rows `first`, `first + step`, and so on.
    pub(crate) fn every(self, first: usize, step: usize) -> Self {
        assert!(first < step, "row {first} of every {step}");
        let rows = self.rows.saturating_sub(first).div_ceil(step);
        let from = if rows == 0 { 0 } else { first };
        let part = self.block(from..self.rows, 0..self.cols);
        View { rows, stride: self.stride * step, ..part }
    }
}

/// Rows of numbers to write; the only way to them.
pub(crate) struct ViewMut<'m, N>(View<'m, N>);

// SAFETY: a view to write gives what `&mut [N]` gives, which may go to another thread.
unsafe impl<N: Send> Send for ViewMut<'_, N> {}

impl<'m, N> ViewMut<'m, N> {
    /// Consecutive rows of a slice.
    pub(crate) fn from_slice(numbers: &'m mut [N], rows: usize, cols: usize) -> Self {
        assert!(rows * cols <= numbers.len(), "{rows} x {cols} in {} numbers", numbers.len());
        let first = NonNull::from(numbers).cast();
        ViewMut(View { first, rows, cols, stride: cols, lifetime: PhantomData })
    }

    /// Count of rows.
    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.0.rows
    }

    /// Numbers in a row.
    #[inline]
    pub(crate) fn cols(&self) -> usize {
        self.0.cols
    }

    /// Row `r`.
    #[inline]
    pub(crate) fn row(&mut self, r: usize) -> &mut [N] {
        assert!(r < self.0.rows, "row {r} of {}", self.0.rows);
        // SAFETY: row `r` lies inside of what was lent, this view is the only way to it, and it is borrowed mutably. Rows
        // do not overlap: `Access::lend` and `from_slice` see to it.
        unsafe { slice::from_raw_parts_mut(self.0.first.as_ptr().add(r * self.0.stride), self.0.cols) }
    }

    /// Whether rows follow each other without gaps.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.0.is_contiguous()
    }

    /// The numbers as one row; only for rows without gaps.
    pub(crate) fn flat(self) -> Self {
        ViewMut(self.0.flat())
    }

    /// The same for a shorter time.
    pub(crate) fn borrow(&mut self) -> ViewMut<'_, N> {
        ViewMut(self.0)
    }

    /// Cuts it into parts for the pool.
    pub(crate) fn cut(self, cut: Cut) -> Pieces<'m, N> {
        let (rows, cols) = (self.0.rows, self.0.cols);
        let count = match cut {
            _ if rows == 0 || cols == 0 => 0,
            Cut::Blocks(r, c) => rows.div_ceil(r) * cols.div_ceil(c),
            Cut::Every(step) => step.min(rows),
        };
        Pieces { whole: self, cut, count }
    }
}

impl ViewMut<'_, f32> {
    /// As a place for kernels of matrix products.
    pub(crate) fn outputs(&mut self) -> Outputs<'_> {
        let View { first, rows, cols, stride, .. } = self.0;
        // SAFETY: this view is the only way to its numbers, it is borrowed mutably, and its rows do not overlap.
        unsafe { Outputs::from_raw(first.as_ptr(), rows, cols, stride) }
    }
}

/// How to cut numbers into parts that do not overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// Blocks of this many rows and columns (fewer at the ends), a row of blocks after the other.
    Blocks(usize, usize),
    /// Part i has rows i, i + n, i + 2 n and so on.
    Every(usize),
}

impl Cut {
    /// Rows and columns of block `i` of something of `rows` rows and `cols` columns.
    pub(crate) fn block(size: (usize, usize), i: usize, rows: usize, cols: usize) -> [Range<usize>; 2] {
        let across = cols.div_ceil(size.1);
        let (row, col) = (i / across * size.0, i % across * size.1);
        [row..rows.min(row + size.0), col..cols.min(col + size.1)]
    }
}

/// Numbers to write, cut into parts.
pub(crate) struct Pieces<'m, N> {
    whole: ViewMut<'m, N>,
    cut: Cut,
    count: usize,
}

#[cfg(test)]
impl<'m, N: Send + Sync> Pieces<'m, N> {
    /// All parts.
    fn all(self) -> Vec<ViewMut<'m, N>> {
        // SAFETY: each number is taken once, and `self` is used up.
        (0..self.count).map(|i| unsafe { self.part(i) }).collect()
    }
}

// SAFETY: through a shared reference only `Parts::part` reaches numbers, whose caller takes each part once.
unsafe impl<N: Send> Sync for Pieces<'_, N> {}

/// What the pool hands out: numbered parts, each to one thread.
///
/// # Safety
/// Parts of different numbers share nothing that one of them may write.
pub(crate) unsafe trait Parts: Sync {
    /// One of them.
    type Part;

    /// How many.
    fn count(&self) -> usize;

    /// Part `i`, below the count.
    ///
    /// # Safety
    /// Each number is asked for at most once in the life of `self`.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

// SAFETY: blocks of a grid and residues of row numbers are disjoint, and rows do not overlap.
unsafe impl<'m, N: Send + Sync> Parts for Pieces<'m, N> {
    type Part = ViewMut<'m, N>;

    fn count(&self) -> usize {
        self.count
    }

    unsafe fn part(&self, i: usize) -> ViewMut<'m, N> {
        let view = self.whole.0;
        ViewMut(match self.cut {
            Cut::Blocks(rows, cols) => {
                let [rows, cols] = Cut::block((rows, cols), i, view.rows, view.cols);
                view.block(rows, cols)
            }
            Cut::Every(step) => view.every(i, step),
        })
    }
}

/// Numbers without anything to write.
// SAFETY: nothing is handed out.
unsafe impl Parts for usize {
    type Part = ();

    fn count(&self) -> usize {
        *self
    }

    unsafe fn part(&self, _: usize) {}
}

// SAFETY: both halves keep their own promise.
unsafe impl<A: Parts, B: Parts> Parts for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count(), "parts that go together are as many");
        self.0.count()
    }

    unsafe fn part(&self, i: usize) -> Self::Part {
        // SAFETY: the caller asks for each number once.
        unsafe { (self.0.part(i), self.1.part(i)) }
    }
}

#[cfg(test)]
mod tests;
