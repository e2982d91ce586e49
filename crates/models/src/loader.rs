//! From a checkpoint's tensors to weights on a device, a few megabytes at a time.
//!
//! A family's load function runs twice: first with a loader that only looks (everything is there, in the right shape;
//! the bytes are counted, which is the plan), then with one that reads. What was looked at is read ahead while the
//! processors pack what came before. It knows no family and no formula.
mod ahead;
mod packed;

use crate::LoadError;
use ahead::{Ahead, READERS, Span};
use half::bf16;
use ops::packing::{self, PackError};
use ops::{Buffer, Device, Matrix, Packing, Tensor};
pub use packed::{DenseMatrix, pack};
use rayon::prelude::*;
use std::collections::BTreeMap;
use store::reader::{ReadError, read_exact};
use store::{Checkpoint, Dtype, Entry, Mappings, StoreError};

/// How the matrices that tolerate it are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dense {
    /// As in the checkpoint (bf16, or f32 where it has that).
    Bf16,
    /// Packed to 8-bit codes.
    Int8,
    /// Packed to 4-bit codes.
    Int4,
}

impl Dense {
    /// From the most exact on.
    pub const ALL: [Dense; 3] = [Dense::Bf16, Dense::Int8, Dense::Int4];

    /// The name used in settings and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dense::Bf16 => "bf16",
            Dense::Int8 => "int8",
            Dense::Int4 => "int4",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Dense::ALL.into_iter().find(|dense| dense.name() == name)
    }

    /// What matrices are packed to, if they are.
    #[must_use]
    pub fn packing(self) -> Option<Packing> {
        match self {
            Dense::Bf16 => None,
            Dense::Int8 => Some(Packing::Int8),
            Dense::Int4 => Some(Packing::Int4),
        }
    }
}

/// Where matrices lie that need no work before they are computed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// In memory, read when the model is loaded.
    #[default]
    Ram,
    /// In their files, mapped: the system keeps of them what memory is left for, and reads the rest again.
    Mapped,
}

impl Residency {
    /// The name used in settings and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Residency::Ram => "ram",
            Residency::Mapped => "mapped",
        }
    }
}

/// Bytes and parameters of what is resident, by kind (`attention`, `router`, ...) and storage (`bf16`, `int4`, ...).
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// (kind, storage) to (parameters, bytes).
    pub rows: BTreeMap<(&'static str, &'static str), (u64, u64)>,
    /// Bytes of matrices that stay in their files, mapped; they are in no row.
    pub mapped: u64,
    /// The most bytes that buffers of the loader take at a time.
    pub buffers: u64,
    /// Matrices that are packed while they are loaded.
    pub packed: Vec<DenseMatrix>,
    /// What was not done as asked, in words.
    pub notes: Vec<String>,
    /// Bytes in the checkpoint of every tensor that was asked for, by full name.
    pub stored: BTreeMap<String, u64>,
}

impl Tally {
    /// Bytes of everything.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rows.values().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    fn needs_buffers(&mut self, bytes: u64) {
        self.buffers = self.buffers.max(bytes);
    }

    fn add(&mut self, kind: &'static str, storage: &'static str, parameters: u64, bytes: u64) {
        let row = self.rows.entry((kind, storage)).or_default();
        row.0 = row.0.saturating_add(parameters);
        row.1 = row.1.saturating_add(bytes);
    }
}

/// Reads weights by name.
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    target: Target<'a>,
    dense: Dense,
    /// What is mapped, if anything is to be.
    mappings: Option<Mappings>,
    prefix: String,
    tally: Tally,
}

/// Where weights go.
enum Target<'a> {
    /// Nowhere: look and count only. What would be read, in order.
    Nowhere(Vec<Span>),
    /// To a device; somebody hears how many bytes are resident so far.
    Device { device: &'a mut dyn Device, ahead: &'a Ahead<'a>, done: &'a mut dyn FnMut(u64) },
}

/// Bytes of a weight that are read at a time.
const LOAD_CHUNK_BYTES: u64 = 4 << 20;
/// Bytes that one thread looks through for numbers that are not finite.
const CHECK_BYTES: usize = 1 << 16;

/// How matrices and gains are stored, as in the release first ...
const FLOATS: [Dtype; 2] = [Dtype::Bf16, Dtype::F32];
/// ... and numbers of which all digits count.
const NUMBERS: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];

impl<'a> Loader<'a> {
    /// Runs `load` with a loader that only looks, then with one that reads onto `device`, if there is one. `done` hears how
    /// many bytes are resident so far.
    ///
    /// # Errors
    /// What `load` gives.
    pub fn run<T>(
        checkpoint: &Checkpoint,
        device: Option<&mut dyn Device>,
        (dense, residency): (Dense, Residency),
        prefix: &str,
        done: &mut dyn FnMut(u64),
        load: impl Fn(&mut Loader<'_>) -> Result<T, LoadError>,
    ) -> Result<(T, Tally), LoadError> {
        let mut looking = Loader::new(checkpoint, Target::Nowhere(Vec::new()), (dense, residency), prefix);
        let looked = load(&mut looking)?;
        let Target::Nowhere(spans) = looking.target else { unreachable!("a target stays what it is") };
        looking.tally.buffers = looking.tally.buffers.saturating_add(ahead::buffers(&spans));
        let Some(device) = device else { return Ok((looked, looking.tally)) };
        if let Some(missing) = checkpoint.absent() {
            return Err(StoreError::MissingShards(Box::new(missing.clone())).into());
        }
        drop(looked);
        let ahead = Ahead::new(checkpoint, spans, ahead::AHEAD_BYTES);
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| ahead.read());
            }
            let _closing = ahead.closing();
            let target = Target::Device { device, ahead: &ahead, done };
            let loaded = load(&mut Loader::new(checkpoint, target, (dense, residency), prefix))?;
            Ok((loaded, looking.tally))
        })
    }

    fn new(
        checkpoint: &'a Checkpoint,
        target: Target<'a>,
        (dense, residency): (Dense, Residency),
        prefix: &str,
    ) -> Self {
        let mappings = (residency == Residency::Mapped).then(|| Mappings::new(checkpoint.files()));
        Loader { checkpoint, target, dense, mappings, prefix: prefix.into(), tally: Tally::default() }
    }

    fn entry(&mut self, name: &str, dtypes: &[Dtype], shapes: &[&[u64]]) -> Result<Entry, LoadError> {
        let full_name = self.full_name(name);
        let entry = self.checkpoint.entry_any(&full_name, dtypes, shapes)?;
        self.tally.stored.insert(full_name, entry.bytes);
        Ok(entry)
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn allocate(&mut self, bytes: u64, name: &str) -> Result<Buffer, LoadError> {
        match &mut self.target {
            Target::Device { device, .. } => Ok(device.allocate(bytes, name)?),
            Target::Nowhere(_) => Ok(Buffer(0)),
        }
    }

    /// A tensor as a buffer where it lies in its file; None if nothing is to be mapped.
    fn map(&mut self, entry: &Entry, name: &str) -> Result<Option<Buffer>, LoadError> {
        let Some(mappings) = &mut self.mappings else { return Ok(None) };
        self.tally.mapped = self.tally.mapped.saturating_add(entry.bytes);
        match &mut self.target {
            Target::Device { device, .. } => Ok(Some(device.map(&mappings.part(entry)?, name)?)),
            Target::Nowhere(_) => Ok(Some(Buffer(0))),
        }
    }

    fn count(&mut self, kind: &'static str, storage: &'static str, parameters: u64, bytes: u64) {
        self.tally.add(kind, storage, parameters, bytes);
        if let Target::Device { done, .. } = &mut self.target {
            done(self.tally.bytes());
        }
    }

    /// Hands bytes of a tensor to `take`, with the device; notes them where nothing is read.
    fn read(
        &mut self,
        entry: &Entry,
        start: u64,
        bytes: u64,
        take: impl FnOnce(&[u8], &mut dyn Device) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let span = Span { entry: entry.clone(), start, bytes };
        match &mut self.target {
            Target::Nowhere(spans) => spans.push(span),
            Target::Device { device, ahead, .. } => {
                let buffer = ahead.next(&span)?;
                take(&buffer, &mut **device)?;
                ahead.give_back(buffer);
            }
        }
        Ok(())
    }

    /// A matrix \[rows, cols\] that may be packed.
    ///
    /// # Errors
    /// The store's, the device's, or a weight that is not finite.
    pub fn dense(
        &mut self,
        kind: &'static str,
        name: &str,
        rows: u32,
        cols: u32,
    ) -> Result<Matrix, LoadError> {
        if let Some(matrix) = self.already_packed(kind, name, (rows, cols))? {
            return Ok(matrix);
        }
        let entry = self.entry(name, &FLOATS, &[&[rows.into(), cols.into()]])?;
        match self.dense.packing() {
            Some(packing) if cols.is_multiple_of(packing::GROUP as u32) => {
                self.packed(kind, name, &entry, (rows, cols), packing)
            }
            Some(packing) => {
                let name_of = packing.name();
                self.tally.notes.push(format!(
                    "{}{name} stays as stored: its {cols} columns are no multiple of {}, which {name_of} needs",
                    self.prefix,
                    packing::GROUP
                ));
                self.stored(kind, name, &entry, (rows, cols))
            }
            None => self.stored(kind, name, &entry, (rows, cols)),
        }
    }

    /// A matrix \[rows, cols\] that stays as it is stored: its rounding would show.
    ///
    /// # Errors
    /// The store's or the device's.
    pub fn exact(
        &mut self,
        kind: &'static str,
        name: &str,
        rows: u32,
        cols: u32,
    ) -> Result<Matrix, LoadError> {
        let entry = self.entry(name, &FLOATS, &[&[rows.into(), cols.into()]])?;
        self.stored(kind, name, &entry, (rows, cols))
    }

    fn stored(
        &mut self,
        kind: &'static str,
        name: &str,
        entry: &Entry,
        (rows, cols): (u32, u32),
    ) -> Result<Matrix, LoadError> {
        let packing = if entry.dtype == Dtype::F32 { Packing::F32 } else { Packing::Bf16 };
        let mapped = self.map(entry, name)?;
        let buffer = mapped.map_or_else(|| self.allocate(entry.bytes, name), Ok)?;
        let full_name = self.full_name(name);
        for start in (0..entry.bytes).step_by(LOAD_CHUNK_BYTES as usize) {
            let bytes = LOAD_CHUNK_BYTES.min(entry.bytes - start);
            self.read(entry, start, bytes, |part, device| {
                check_finite(&full_name, start, part, entry.dtype)?;
                // What is mapped is read here only to be looked at.
                if mapped.is_none() { Ok(device.write(buffer, start, part)?) } else { Ok(()) }
            })?;
        }
        if mapped.is_none() {
            self.count(kind, packing.name(), u64::from(rows) * u64::from(cols), entry.bytes);
        }
        Ok(Matrix { buffer, codes: 0, scales: 0, rows, cols, packing })
    }

    fn packed(
        &mut self,
        kind: &'static str,
        name: &str,
        entry: &Entry,
        (rows, cols): (u32, u32),
        packing: Packing,
    ) -> Result<Matrix, LoadError> {
        let layout = packing::layout(packing, rows, cols);
        let buffer = self.allocate(layout.bytes, name)?;
        let matrix = Matrix { buffer, codes: 0, scales: layout.scales, rows, cols, packing };
        let row_bytes = entry.bytes / u64::from(rows);
        let step = (LOAD_CHUNK_BYTES / row_bytes.max(1)).clamp(1, rows.into()) as u32;
        let full_name = self.full_name(name);
        let (codes, scales) = (layout.code_row_bytes, layout.scale_row_bytes);
        self.tally.needs_buffers(u64::from(step) * (codes + scales) + threads() * u64::from(cols) * 4);
        self.tally.packed.push(DenseMatrix { name: full_name.clone(), rows, cols });
        let (mut code_room, mut scale_room) = (Vec::new(), Vec::new());
        for first in (0..rows).step_by(step as usize) {
            let (start, count) = (u64::from(first), u64::from(step.min(rows - first)));
            self.read(entry, start * row_bytes, count * row_bytes, |raw, device| {
                let rooms = (&mut code_room, &mut scale_room);
                pack(packing, cols, (raw, entry.dtype), rooms).map_err(|error| LoadError::Weight {
                    tensor: full_name.clone(),
                    reason: PackError { row: error.row + first as usize, ..error },
                })?;
                device.write(buffer, start * codes, &code_room)?;
                Ok(device.write(buffer, layout.scales + start * scales, &scale_room)?)
            })?;
        }
        self.count(kind, packing.name(), u64::from(rows) * u64::from(cols), layout.bytes);
        Ok(matrix)
    }

    /// A matrix made from a whole tensor by `rearrange`, kept in bf16 or f32 as stored.
    ///
    /// # Errors
    /// The store's or the device's.
    pub fn rearranged(
        &mut self,
        kind: &'static str,
        name: &str,
        stored: (u32, u32),
        (rows, cols): (u32, u32),
        source: impl Fn(u32, u32) -> (u32, u32) + Sync,
    ) -> Result<Matrix, LoadError> {
        let entry = self.entry(name, &FLOATS, &[&[stored.0.into(), stored.1.into()]])?;
        let packing = if entry.dtype == Dtype::F32 { Packing::F32 } else { Packing::Bf16 };
        let width = (entry.dtype.bits() / 8) as usize;
        let bytes = u64::from(rows) * u64::from(cols) * width as u64;
        let buffer = self.allocate(bytes, name)?;
        self.tally.needs_buffers(bytes);
        let full_name = self.full_name(name);
        self.read(&entry, 0, entry.bytes, |all, device| {
            check_finite(&full_name, 0, all, entry.dtype)?;
            let mut moved = vec![0; bytes as usize];
            moved.par_chunks_mut(cols as usize * width).enumerate().for_each(|(row, moved)| {
                for (col, number) in moved.chunks_exact_mut(width).enumerate() {
                    let (r, c) = source(row as u32, col as u32);
                    let at = (r as usize * stored.1 as usize + c as usize) * width;
                    number.copy_from_slice(&all[at..at + width]);
                }
            });
            Ok(device.write(buffer, 0, &moved)?)
        })?;
        self.count(kind, packing.name(), u64::from(rows) * u64::from(cols), bytes);
        Ok(Matrix { buffer, codes: 0, scales: 0, rows, cols, packing })
    }

    /// Numbers in f32, as `rows` rows of `cols`; `shapes` are the shapes the tensor may have in the file.
    ///
    /// # Errors
    /// The store's or the device's.
    pub fn numbers(
        &mut self,
        kind: &'static str,
        name: &str,
        (rows, cols): (u32, u32),
        shapes: &[&[u64]],
    ) -> Result<Tensor, LoadError> {
        let values = self.values_of(name, &NUMBERS, shapes, rows as usize * cols as usize)?;
        self.place(kind, name, (rows, cols), &values)
    }

    /// A vector of which the first `cols` numbers count and the rest is padding; or of the shape `other`.
    ///
    /// # Errors
    /// The store's or the device's.
    pub fn padded(
        &mut self,
        kind: &'static str,
        name: &str,
        cols: u32,
        other: &[u64],
    ) -> Result<Tensor, LoadError> {
        let full_name = format!("{}{name}", self.prefix);
        // Of an absent shard it is taken to be without padding.
        let stored = self
            .checkpoint
            .tensor(&full_name)
            .map_or_else(|| [u64::from(cols)].into(), |entry| entry.shape.clone());
        let longer = stored.len() == 1 && stored[0] >= u64::from(cols);
        let shape = if longer { &*stored } else { other };
        self.numbers(kind, name, (1, cols), &[shape, &[u64::from(cols)]])
    }

    /// A norm's gain: \[cols\].
    ///
    /// # Errors
    /// The store's or the device's.
    pub fn gain(&mut self, name: &str, cols: u32) -> Result<Tensor, LoadError> {
        let values = self.values(name, &[&[cols.into()]], cols as usize)?;
        self.place("norms", name, (1, cols), &values)
    }

    /// The first `count` numbers of a tensor; zeros if this loader only looks.
    ///
    /// # Errors
    /// The store's.
    pub fn values(&mut self, name: &str, shapes: &[&[u64]], count: usize) -> Result<Vec<f32>, LoadError> {
        self.values_of(name, &FLOATS, shapes, count)
    }

    fn values_of(
        &mut self,
        name: &str,
        dtypes: &[Dtype],
        shapes: &[&[u64]],
        count: usize,
    ) -> Result<Vec<f32>, LoadError> {
        let entry = self.entry(name, dtypes, shapes)?;
        let full_name = self.full_name(name);
        let mut values = vec![0.0; count];
        self.read(&entry, 0, entry.bytes, |stored, _| {
            check_finite(&full_name, 0, stored, entry.dtype)?;
            values = widen(stored, entry.dtype);
            values.truncate(count);
            Ok(())
        })?;
        Ok(values)
    }

    /// Numbers of the host's onto the device.
    ///
    /// # Errors
    /// The device's.
    pub fn place(
        &mut self,
        kind: &'static str,
        label: &str,
        (rows, cols): (u32, u32),
        values: &[f32],
    ) -> Result<Tensor, LoadError> {
        let bytes = values.len() as u64 * 4;
        let buffer = self.allocate(bytes, label)?;
        if let Target::Device { device, .. } = &mut self.target {
            device.write(buffer, 0, bytemuck::cast_slice(values))?;
        }
        self.count(kind, "f32", values.len() as u64, bytes);
        Ok(Tensor::new(buffer, 0, rows, cols))
    }
}

/// Threads that pack.
fn threads() -> u64 {
    rayon::current_num_threads() as u64
}

/// Refuses numbers whose exponent is that of infinities and NaNs; `start` is the first byte's place in the tensor.
fn check_finite(tensor: &str, start: u64, bytes: &[u8], dtype: Dtype) -> Result<(), LoadError> {
    let bad = |bytes: &[u8]| match dtype {
        Dtype::Bf16 => bytes.as_chunks().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
        _ => bytes.as_chunks().0.iter().position(|b| u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000),
    };
    let width = (dtype.bits() / 8) as usize;
    let part = bytes.par_chunks(CHECK_BYTES).enumerate();
    let first = part.find_map_first(|(i, part)| Some(i * (CHECK_BYTES / width) + bad(part)?));
    let Some(at) = first else { return Ok(()) };
    Err(LoadError::NotFinite {
        tensor: tensor.to_owned(),
        element: start / width as u64 + at as u64,
        value: widen(&bytes[at * width..(at + 1) * width], dtype)[0],
    })
}

/// Stored numbers as f32; exact for both types.
pub(crate) fn widen(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / (dtype.bits() / 8) as usize];
    widen_into(bytes, dtype, &mut values);
    values
}

fn widen_into(bytes: &[u8], dtype: Dtype, into: &mut [f32]) {
    match dtype {
        Dtype::Bf16 => {
            for (value, b) in into.iter_mut().zip(bytes.as_chunks().0) {
                *value = bf16::from_le_bytes(*b).to_f32();
            }
        }
        _ => {
            for (value, b) in into.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*b);
            }
        }
    }
}

/// Embedding rows, read from the checkpoint by id and not kept.
pub struct Embedding {
    entry: Entry,
    files: std::sync::Arc<dyn store::Files>,
    width: u32,
}

impl Embedding {
    /// Finds the table \[vocabulary, width\].
    ///
    /// # Errors
    /// The store's.
    pub fn find(loader: &mut Loader<'_>, name: &str, vocabulary: u32, width: u32) -> Result<Self, LoadError> {
        let entry = loader.entry(name, &FLOATS, &[&[vocabulary.into(), width.into()]])?;
        Ok(Embedding { entry, files: loader.checkpoint.files(), width })
    }

    /// Appends the row of a token.
    ///
    /// # Errors
    /// The file with what happened to it.
    pub fn row(&self, id: u32, into: &mut Vec<f32>) -> Result<(), ReadError> {
        let row_bytes = u64::from(self.width) * self.entry.dtype.bits() / 8;
        let mut raw = vec![0; row_bytes as usize];
        let at = self.entry.offset + u64::from(id) * row_bytes;
        read_exact(&self.files, self.entry.file.0, at, &mut raw)?;
        into.extend(widen(&raw, self.entry.dtype));
        Ok(())
    }
}
