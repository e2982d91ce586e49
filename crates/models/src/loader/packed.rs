//! Dense matrices that a container holds packed, taken as they are; and packing itself, which a conversion does as the loader
//! does. Knows no family and no file's layout.
use super::{LOAD_CHUNK_BYTES, Loader, widen_into};
use crate::LoadError;
use ops::packing::{self, PackError};
use ops::{Matrix, Packing};
use store::{Dtype, StoreError};

/// A matrix that is packed while it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseMatrix {
    /// The tensor's full name.
    pub name: String,
    /// Its rows.
    pub rows: u32,
    /// Its columns.
    pub cols: u32,
}

/// Packs whole rows of `cols` numbers of a tensor of type `dtype` into `rooms`, which become as large as their codes and scales
/// are. The bytes depend on the rows alone.
///
/// # Errors
/// The first weight that cannot be packed; its row is counted from the first one here.
pub fn pack(
    packing: Packing,
    cols: u32,
    (raw, dtype): (&[u8], Dtype),
    (codes, scales): (&mut Vec<u8>, &mut Vec<u8>),
) -> Result<(), PackError> {
    let row_bytes = (u64::from(cols) * dtype.bits() / 8) as usize;
    let sizes = packing::layout(packing, (raw.len() / row_bytes) as u32, cols);
    codes.resize(sizes.scales as usize, 0);
    scales.resize((sizes.bytes - sizes.scales) as usize, 0);
    let widen_row = |row: usize, into: &mut [f32]| {
        widen_into(&raw[row * row_bytes..][..row_bytes], dtype, into);
    };
    packing::encode_rows(packing, cols, (codes, scales), widen_row)
}

impl Loader<'_> {
    /// The matrix as a container holds it; None if it is not packed there.
    pub(super) fn already_packed(
        &mut self,
        kind: &'static str,
        name: &str,
        (rows, cols): (u32, u32),
    ) -> Result<Option<Matrix>, LoadError> {
        let full_name = self.full_name(name);
        let Some(packed) = self.checkpoint.packed(&full_name) else { return Ok(None) };
        let expected = self.dense.packing().filter(|packing| packing.name() == packed.packing);
        let Some(packing) = expected else {
            let (found, asked) = (packed.packing.clone(), self.dense.name());
            return Err(LoadError::PackedOtherwise { found, asked });
        };
        if (packed.rows, packed.cols) != (rows, cols) {
            let found = vec![packed.rows.into(), packed.cols.into()];
            let expected = vec![vec![rows.into(), cols.into()]];
            let path = self.checkpoint.file_name(self.checkpoint.find(&full_name)?.file);
            return Err(StoreError::WrongShape { tensor: full_name, path, found, expected }.into());
        }
        let layout = packing::layout(packing, rows, cols);
        let entry = self.checkpoint.require(&full_name, &[Dtype::U8], &[layout.bytes])?.clone();
        let matrix = |buffer| Matrix { buffer, codes: 0, scales: layout.scales, rows, cols, packing };
        if let Some(buffer) = self.map(&entry, name)? {
            return Ok(Some(matrix(buffer)));
        }
        let buffer = self.allocate(layout.bytes, name)?;
        for start in (0..layout.bytes).step_by(LOAD_CHUNK_BYTES as usize) {
            let bytes = LOAD_CHUNK_BYTES.min(layout.bytes - start);
            self.read(&entry, start, bytes, |part, device| Ok(device.write(buffer, start, part)?))?;
        }
        self.count(kind, packing.name(), u64::from(rows) * u64::from(cols), layout.bytes);
        Ok(Some(matrix(buffer)))
    }
}
