//! A byte buffer of fixed size for devices in host memory. It does not know what the bytes mean.

use crate::MemoryError;
use crate::region::advise_huge_pages;
use memmap2::{MmapMut, MmapOptions};
use std::fmt;

/// Bytes from which a buffer asks for large pages. A smaller one gains little, and its last page would be mostly idle.
const HUGE_FROM: u64 = 4 << 20;

/// Bytes that start as zeros, at a multiple of 64 (in fact of a page), and are committed when first touched. It cannot grow.
pub struct HostBuffer {
    /// `None` for a buffer of no bytes: there is nothing to map.
    mapping: Option<MmapMut>,
}

impl HostBuffer {
    /// A buffer of `bytes` zeros.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`] or [`MemoryError::Refused`] if the system does not give the memory.
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Ok(Self { mapping: None });
        }
        let length = isize::try_from(bytes).map_err(|_| MemoryError::TooLarge { bytes })? as usize;
        let mapping = MmapOptions::new().len(length).map_anon();
        let mapping = mapping.map_err(|source| MemoryError::Refused { bytes, source })?;
        if bytes >= HUGE_FROM {
            advise_huge_pages(&mapping);
        }
        Ok(Self { mapping: Some(mapping) })
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.as_slice().len() as u64
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.mapping.as_deref().unwrap_or_default()
    }

    /// The bytes, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.mapping.as_deref_mut().unwrap_or_default()
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HostBuffer").field("bytes", &self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable() {
        let mut buffer = HostBuffer::new(1001).unwrap();
        assert_eq!(buffer.bytes(), 1001);
        assert_eq!(buffer.as_slice().as_ptr() as usize % 64, 0);
        assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
        buffer.as_mut_slice()[1000] = 5;
        assert_eq!(buffer.as_slice()[1000], 5);
    }

    #[test]
    fn a_buffer_may_be_empty() {
        let mut buffer = HostBuffer::new(0).unwrap();
        assert_eq!(buffer.bytes(), 0);
        assert!(buffer.as_mut_slice().is_empty());
    }

    #[test]
    fn too_many_bytes_are_refused_by_name() {
        let error = HostBuffer::new(u64::MAX).unwrap_err();
        assert!(matches!(error, MemoryError::TooLarge { bytes: u64::MAX }), "{error}");
    }
}
