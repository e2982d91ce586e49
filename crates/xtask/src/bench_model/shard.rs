//! Writes tensors as one safetensors file: the header's length (u64, little endian), the header (JSON, names in
//! order, padded with spaces to 8 bytes), the data. Knows no model.

use super::random::Pools;
use super::tensors::{Fill, Tensor};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};

/// Writes the file and returns the bytes of its data.
///
/// # Errors
/// Those of the writer.
pub(crate) fn write(tensors: &[Tensor], pools: &mut Pools, into: &mut impl Write) -> io::Result<u64> {
    let (header, data_bytes) = header(tensors);
    into.write_all(&header)?;
    for tensor in tensors {
        match &tensor.fill {
            Fill::Values(values) => {
                for value in values {
                    into.write_all(&value.to_le_bytes())?;
                }
            }
            // 0x3F80 is 1.0 in bf16.
            Fill::Ones => into.write_all(&[0x80, 0x3F].repeat(tensor.bytes() / 2))?,
            Fill::Pool(pool) => pools.write(*pool, tensor.bytes(), into)?,
        }
    }
    into.flush()?;
    Ok(data_bytes)
}

/// Writes the header alone; a hole takes the place of the data. Returns the bytes of the data.
///
/// # Errors
/// Those of the file; one that cannot have holes may say that the disk is full.
pub(crate) fn write_sparse(tensors: &[Tensor], mut into: &File) -> io::Result<u64> {
    let (header, data_bytes) = header(tensors);
    into.write_all(&header)?;
    into.set_len(header.len() as u64 + data_bytes)?;
    Ok(data_bytes)
}

/// What stands before the data, and the length of all data.
fn header(tensors: &[Tensor]) -> (Vec<u8>, u64) {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.bytes();
        let entry =
            json!({ "dtype": tensor.dtype().0, "shape": tensor.shape, "data_offsets": [offset, end] });
        entries.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut header = Value::Object(entries).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = (header.len() as u64).to_le_bytes();
    ([&length, header.as_slice()].concat(), offset as u64)
}
