//! Reading every byte of a checkpoint and looking for numbers that cannot be weights. Knows how numbers are stored, and no
//! more of a model than what its tensors are for.
use crate::errors::Failure;
use crate::progress;
use engine::EngineError;
use models::PartError;
use models::kimi_k3::KimiK3Config;
use models::kimi_k3::names::{Stored, role};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{Checkpoint, Dtype, Entry, StoreError};

/// What reading everything showed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Deep {
    /// Tensors that were read.
    pub(crate) tensors: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// What is wrong, tensor by tensor.
    pub(crate) faults: Vec<Fault>,
}

/// A damaged tensor.
#[derive(Debug, Serialize)]
pub(crate) struct Fault {
    pub(crate) tensor: String,
    pub(crate) file: String,
    pub(crate) what: String,
}

/// Bytes of one read: whole numbers of every type.
const READ_BYTES: u64 = 8 << 20;

/// Reads every tensor in the order of the files.
///
/// # Errors
/// Only that it was cancelled; what cannot be read is a fault.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    config: &KimiK3Config,
    cancel: &AtomicBool,
) -> Result<Deep, Failure> {
    let mut tensors: Vec<(&str, &Entry)> = checkpoint.under("").collect();
    tensors.sort_by_key(|(_, entry)| (entry.file, entry.offset));
    let bar = progress::bytes("reading", tensors.iter().map(|(_, entry)| entry.bytes).sum());
    let mut deep = Deep::default();
    let mut buffer = Vec::new();
    for (name, entry) in tensors {
        let check = Check::of(role(config, name).stored, entry.dtype);
        let mut bad = Bad::default();
        let mut unread = None;
        for start in (0..entry.bytes).step_by(READ_BYTES as usize) {
            if cancel.load(Ordering::Relaxed) {
                return Err(EngineError::Part(PartError::Cancelled).into());
            }
            buffer.resize(READ_BYTES.min(entry.bytes - start) as usize, 0);
            if let Err(error) = checkpoint.read_range(entry, start, &mut buffer) {
                unread = Some(error);
                break;
            }
            bad.look(check, start, &buffer);
            deep.bytes += buffer.len() as u64;
            bar.inc(buffer.len() as u64);
        }
        deep.tensors += 1;
        if let Some(what) = bad.words(check, unread.as_ref()) {
            deep.faults.push(Fault { tensor: name.into(), file: checkpoint.file_name(entry.file), what });
        }
    }
    bar.finish_and_clear();
    Ok(deep)
}

/// What makes a number bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Every byte may be.
    Nothing,
    /// Byte 255.
    Scale,
    /// All bits of the exponent, in so many bytes, little endian.
    Exponent { mask: u32, bytes: usize },
}

impl Check {
    fn of(stored: Stored, dtype: Dtype) -> Self {
        match (stored, dtype) {
            (Stored::Scales, Dtype::U8) => Check::Scale,
            (_, Dtype::F32) => Check::Exponent { mask: 0x7f80_0000, bytes: 4 },
            (_, Dtype::Bf16) => Check::Exponent { mask: 0x7f80, bytes: 2 },
            (_, Dtype::F16) => Check::Exponent { mask: 0x7c00, bytes: 2 },
            _ => Check::Nothing,
        }
    }
}

/// Bad numbers of one tensor.
#[derive(Debug, Default)]
struct Bad {
    count: u64,
    first: Option<u64>,
}

impl Bad {
    /// Looks at bytes that begin at byte `start` of the tensor.
    fn look(&mut self, check: Check, start: u64, bytes: &[u8]) {
        match check {
            Check::Nothing => {}
            Check::Scale => self.note(start, bytes.iter().map(|byte| *byte == 255)),
            Check::Exponent { mask, bytes: 2 } => {
                let number = |b: &[u8]| u32::from(u16::from_le_bytes([b[0], b[1]]));
                self.note(start / 2, bytes.chunks_exact(2).map(|b| number(b) & mask == mask));
            }
            Check::Exponent { mask, .. } => {
                let number = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                self.note(start / 4, bytes.chunks_exact(4).map(|b| number(b) & mask == mask));
            }
        }
    }

    fn note(&mut self, start: u64, bad: impl Iterator<Item = bool>) {
        for (index, _) in bad.enumerate().filter(|(_, bad)| *bad) {
            self.count += 1;
            self.first.get_or_insert(start + index as u64);
        }
    }

    fn words(&self, check: Check, unread: Option<&StoreError>) -> Option<String> {
        let what =
            if check == Check::Scale { "scale bytes of 255 (NaN)" } else { "numbers that are not finite" };
        let found = self.first.map(|first| format!("{} {what}, the first at element {first}", self.count));
        match (found, unread) {
            (found, None) => found,
            (None, Some(error)) => Some(error.to_string()),
            (Some(found), Some(error)) => Some(format!("{found}; {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(stored: Stored, dtype: Dtype, start: u64, bytes: &[u8]) -> Option<String> {
        let (check, mut bad) = (Check::of(stored, dtype), Bad::default());
        bad.look(check, start, bytes);
        bad.words(check, None)
    }

    #[test]
    fn what_is_not_finite_is_found_in_every_type() {
        let f32s = [1.0f32, f32::NAN, f32::MAX, f32::NEG_INFINITY].map(f32::to_le_bytes).concat();
        let found = words(Stored::Plain, Dtype::F32, 40, &f32s).unwrap();
        assert_eq!(found, "2 numbers that are not finite, the first at element 11");
        let bf16 = [0x3f80u16, 0x7f7f, 0x7f80].map(u16::to_le_bytes).concat();
        assert!(words(Stored::Plain, Dtype::Bf16, 0, &bf16).unwrap().contains("element 2"));
        let f16 = [0x7bffu16, 0xfc00].map(u16::to_le_bytes).concat();
        assert!(words(Stored::Plain, Dtype::F16, 0, &f16).unwrap().contains("element 1"));
        assert!(words(Stored::Scales, Dtype::U8, 5, &[254, 255]).unwrap().contains("element 6"));
        assert_eq!(words(Stored::Codes, Dtype::U8, 0, &[255]), None);
        assert_eq!(words(Stored::Plain, Dtype::F32, 0, &f32s[8..12]), None);
    }
}
