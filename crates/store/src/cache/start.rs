//! How the threads that read begin: so many for each drive, or one with a ring. What they do is not known here.

use super::ExpertCache;
use super::error::CacheError;
use super::fetch::{Fetcher, SLICE_BYTES};
use memory::{HostBuffer, Slab};

impl ExpertCache {
    /// Starts `readers` threads for each drive, or one with a ring of so many reads. On an error those that were started end with
    /// the cache.
    pub(super) fn start(&mut self, fetcher: &Fetcher, readers: u32) -> Result<(), CacheError> {
        for drive in 0..self.reader.drives() {
            let ring = self.reader.wants_ring(drive);
            if ring {
                try_ring(&self.slab)?;
                self.slab.pin_pages();
            }
            for number in 0..if ring { 1 } else { readers } {
                let fetcher = Fetcher { number, ..fetcher.clone() };
                // Taken from the system when it is first written, which most threads never do.
                let aside =
                    HostBuffer::new(SLICE_BYTES).map_err(|source| CacheError::Memory { readers, source })?;
                let thread = std::thread::Builder::new().name(format!("expert reader {drive}.{number}"));
                let started = thread.spawn(move || match ring {
                    #[cfg(target_os = "linux")]
                    true => fetcher.run_ring(drive, readers, aside),
                    _ => fetcher.run(drive, aside),
                });
                self.threads.push(started.map_err(|source| CacheError::Thread { readers, source })?);
            }
        }
        Ok(())
    }
}

/// Whether the kernel gives a ring: it may be too old, or forbid it.
#[cfg(target_os = "linux")]
fn try_ring(slab: &Slab) -> Result<(), CacheError> {
    crate::ring::Ring::<()>::new(slab, 1).map(|_| ()).map_err(|source| CacheError::Ring { source })
}

#[cfg(not(target_os = "linux"))]
fn try_ring(_slab: &Slab) -> Result<(), CacheError> {
    Err(CacheError::Ring { source: std::io::ErrorKind::Unsupported.into() })
}
