//! The oracle's buffers: zeroed memory of its own, or slots of experts and parts of mapped files read in place.
use crate::device::DeviceError;
use crate::tensor::{Buffer, Ids, Tensor};
use memory::{Fault, HostBuffer, MappedPart, Slab};
use std::sync::Arc;

pub(super) enum Allocation {
    Owned(HostBuffer),
    Slots(Arc<Slab>),
    Mapped(MappedPart),
}

/// All buffers by number; a freed one leaves its place empty.
#[derive(Default)]
pub(super) struct Memory {
    buffers: Vec<Option<Allocation>>,
    pub(super) allocated: u64,
}

pub(super) const NAME: &str = "oracle";

impl Memory {
    pub(super) fn add(&mut self, allocation: Allocation, bytes: u64) -> Buffer {
        self.allocated += bytes;
        self.buffers.push(Some(allocation));
        Buffer(self.buffers.len() as u32 - 1)
    }

    pub(super) fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        let bytes = match self.get(buffer)? {
            Allocation::Owned(memory) => memory.as_slice().len() as u64,
            Allocation::Slots(_) | Allocation::Mapped(_) => 0,
        };
        self.allocated -= bytes;
        self.buffers[buffer.0 as usize] = None;
        Ok(())
    }

    fn get(&self, buffer: Buffer) -> Result<&Allocation, DeviceError> {
        self.buffers.get(buffer.0 as usize).and_then(Option::as_ref).ok_or_else(|| unknown(buffer))
    }

    pub(super) fn slots(&self, buffer: Buffer) -> &Arc<Slab> {
        match self.get(buffer) {
            Ok(Allocation::Slots(slab)) => slab,
            _ => panic!("experts lie in an adopted slab; {buffer:?} is none"),
        }
    }

    /// The first fault of a mapped file since the last call.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.buffers.iter().flatten().fold(None, |first, allocation| match allocation {
            Allocation::Mapped(part) => first.or(part.file().take_fault()),
            _ => first,
        })
    }

    /// A range of an owned buffer or a mapped file, checked.
    pub(super) fn range(&self, buffer: Buffer, start: u64, bytes: u64) -> Result<&[u8], DeviceError> {
        let all = match self.get(buffer)? {
            Allocation::Owned(memory) => memory.as_slice(),
            Allocation::Mapped(part) => part.as_slice(),
            Allocation::Slots(_) => return Err(unknown(buffer)),
        };
        let end = start.saturating_add(bytes);
        all.get(start as usize..end as usize).ok_or(DeviceError::OutOfRange {
            device: NAME.into(),
            buffer,
            start,
            end,
            bytes: all.len() as u64,
        })
    }

    /// A range of an owned buffer to write to, checked.
    pub(super) fn range_mut(
        &mut self,
        buffer: Buffer,
        start: u64,
        bytes: u64,
    ) -> Result<&mut [u8], DeviceError> {
        self.range(buffer, start, bytes)?;
        match self.buffers[buffer.0 as usize].as_mut() {
            Some(Allocation::Owned(memory)) => {
                Ok(&mut memory.as_mut_slice()[start as usize..(start + bytes) as usize])
            }
            _ => Err(unknown(buffer)),
        }
    }

    fn numbers(&self, t: Tensor) -> &[u8] {
        let (start, end) = t.byte_range();
        self.range(t.buffer, start, end - start).unwrap_or_else(|e| panic!("{t:?}: {e}"))
    }

    /// The numbers of a tensor, row after row.
    pub(super) fn load(&self, t: Tensor) -> Vec<f32> {
        gather(bytemuck::cast_slice(self.numbers(t)), t)
    }

    /// The same for u32 numbers.
    pub(super) fn load_ids(&self, ids: Ids) -> Vec<u32> {
        gather(bytemuck::cast_slice(self.numbers(ids.0)), ids.0)
    }

    /// The numbers of a tensor without gaps, in place.
    pub(super) fn view(&self, t: Tensor) -> &[f32] {
        assert!(t.is_contiguous(), "{t:?} has gaps");
        bytemuck::cast_slice(self.numbers(t))
    }

    /// The same to write to.
    pub(super) fn view_mut(&mut self, t: Tensor) -> &mut [f32] {
        assert!(t.is_contiguous(), "{t:?} has gaps");
        let (start, end) = t.byte_range();
        let bytes = self.range_mut(t.buffer, start, end - start).unwrap_or_else(|e| panic!("{t:?}: {e}"));
        bytemuck::cast_slice_mut(bytes)
    }

    /// Puts numbers into a tensor, row after row.
    pub(super) fn store<N: bytemuck::Pod>(&mut self, t: Tensor, values: &[N]) {
        assert_eq!(values.len() as u64, t.elements(), "values for {t:?}");
        let (start, end) = t.byte_range();
        let bytes = self.range_mut(t.buffer, start, end - start).unwrap_or_else(|e| panic!("{t:?}: {e}"));
        let place: &mut [N] = bytemuck::cast_slice_mut(bytes);
        if values.is_empty() {
            return;
        }
        let stride = if t.rows > 1 { t.stride } else { t.cols } as usize;
        for (row, numbers) in place.chunks_mut(stride).zip(values.chunks_exact(t.cols as usize)) {
            row[..numbers.len()].copy_from_slice(numbers);
        }
    }

    /// Lends a state's numbers out for writing while other tensors are read.
    pub(super) fn update(&mut self, state: Tensor, body: impl FnOnce(&Self, &mut [f32])) {
        assert!(state.is_contiguous(), "{state:?} has gaps");
        let place = state.buffer.0 as usize;
        let Some(Allocation::Owned(mut memory)) = self.buffers[place].take() else {
            panic!("{state:?} names no buffer")
        };
        let (start, end) = state.byte_range();
        let bytes = &mut memory.as_mut_slice()[start as usize..end as usize];
        body(self, bytemuck::cast_slice_mut(bytes));
        self.buffers[place] = Some(Allocation::Owned(memory));
    }
}

fn gather<N: bytemuck::Pod>(numbers: &[N], t: Tensor) -> Vec<N> {
    if t.is_contiguous() {
        return numbers.to_vec();
    }
    let rows = numbers.chunks(t.stride as usize);
    rows.flat_map(|row| &row[..t.cols as usize]).copied().collect()
}

fn unknown(buffer: Buffer) -> DeviceError {
    DeviceError::UnknownHandle { device: NAME.into(), what: format!("{buffer:?}") }
}
