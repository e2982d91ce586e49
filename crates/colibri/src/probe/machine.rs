//! What this machine can do at most: reading memory, multiply-adds, products of bytes, reading the model's disk. All on the
//! same number of threads as the work that is compared with it. Knows no model but its files.
use super::disk::Disk;
use super::samples::{Paging, Sample, Watch, thread_time};
use crate::errors::Failure;
use cpu::{Level, limits};
use memmap2::{MmapMut, MmapOptions};
use memory::MemoryError;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes that all threads together read in one repeat, at least ...
const READ_BYTES: usize = 192 << 20;
/// ... and each of them: many threads do not begin at the same moment, and that must not count for much.
const READ_BYTES_EACH: usize = 64 << 20;
/// Rounds of arithmetic in one repeat: some tens of milliseconds.
const ROUNDS: usize = 8_000_000;
/// Distances at which memory is asked for before it is needed, in bytes; 0: not at all.
const AHEAD: [usize; 4] = [0, 1024, 4096, 8192];
/// What figures are for.
const GIGA: f64 = 1e9;

/// The size of the pages that memory is made of, as far as the system does what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Small,
    Large,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Reading memory.
    Read { pages: Pages, ahead: usize },
    /// Fused multiply-adds in f32.
    Floats,
    /// Products of bytes, as integer activations need them.
    Products,
    /// Reading the model's files; the threads are readers.
    Disk,
}

/// A limit on so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitArm {
    pub(crate) limit: Limit,
    pub(crate) threads: usize,
}

impl LimitArm {
    /// All ways to read and all arithmetic on so many threads.
    pub(crate) fn on(threads: usize) -> Vec<LimitArm> {
        let reads = [Pages::Large, Pages::Small]
            .into_iter()
            .flat_map(|pages| AHEAD.map(|ahead| Limit::Read { pages, ahead }));
        reads.chain([Limit::Floats, Limit::Products]).map(|limit| LimitArm { limit, threads }).collect()
    }

    /// What its seconds are for, 10^9 of it.
    pub(crate) fn unit(self) -> &'static str {
        match self.limit {
            Limit::Read { .. } | Limit::Disk => "GB",
            Limit::Floats => "GMAC",
            Limit::Products => "Gproduct",
        }
    }
}

/// This machine and the memory it is measured with.
pub(crate) struct Machine {
    level: Level,
    large: MmapMut,
    small: MmapMut,
    /// Where the next repeat begins to read.
    place: usize,
    pub(crate) disk: Option<Disk>,
}

impl Machine {
    /// Bytes that one takes for reading.
    pub(crate) fn bytes(bytes: u64) -> u64 {
        bytes + bytes / 2
    }

    /// A machine that reads through `bytes` bytes before any comes again.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(bytes: u64, disk: Option<Disk>) -> Result<Self, Failure> {
        let large = pages(bytes, Pages::Large)?;
        Ok(Machine { level: Level::best(), large, small: pages(bytes / 2, Pages::Small)?, place: 0, disk })
    }

    /// One repeat: the seconds of 10^9 bytes or operations.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn measure(&mut self, arm: LimitArm) -> Result<Sample, Failure> {
        let LimitArm { limit, threads } = arm;
        let level = self.level;
        match limit {
            Limit::Read { pages, ahead } => {
                let memory = if pages == Pages::Large { &self.large } else { &self.small };
                let share = (READ_BYTES / threads).max(READ_BYTES_EACH).min(memory.len() / threads);
                let start = self.place;
                self.place = self.place.wrapping_add(share);
                let part = memory.len() / threads;
                let sample = together(threads, |thread| {
                    let at = (start + part * thread) % (memory.len() - share + 1);
                    limits::read(level, &memory[at..at + share], ahead);
                });
                Ok(sample.per((share * threads) as f64 / GIGA))
            }
            Limit::Floats => {
                let sample = together(threads, |_| limits::fma_rounds(level, ROUNDS));
                Ok(sample.per(limits::fma_count(level, ROUNDS) as f64 * threads as f64 / GIGA))
            }
            Limit::Products => {
                let sample = together(threads, |_| limits::integer_rounds(level, ROUNDS));
                Ok(sample.per(limits::integer_count(level, ROUNDS) as f64 * threads as f64 / GIGA))
            }
            Limit::Disk => {
                let Some(disk) = &mut self.disk else {
                    unreachable!("a disk is measured where there is one")
                };
                let watch = Watch::start(Paging::Any);
                let begun = Instant::now();
                disk.read(threads as u32)?;
                // The readers wait for the disk; what else they need of the cores is little.
                let sample = watch.stop(threads, begun.elapsed());
                Ok(sample.per(disk.bytes(threads as u32) as f64 / GIGA))
            }
        }
    }
}

/// Memory that was written to, so that it is there.
fn pages(bytes: u64, size: Pages) -> Result<MmapMut, MemoryError> {
    let mapped = MmapOptions::new().len(bytes as usize).map_anon();
    let mut memory = mapped.map_err(|source| MemoryError::Refused { bytes, source })?;
    #[cfg(target_os = "linux")]
    {
        // A wish: what the system makes of it is seen in the figures.
        let advice =
            if size == Pages::Large { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage };
        let _ = memory.advise(advice);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = size;
    memory.fill(1);
    Ok(memory)
}

/// Runs `work(thread)` on all threads at once: from the first beginning to the last end. It is disturbed if a thread had no
/// core for more than a tenth of its time.
fn together(threads: usize, work: impl Fn(usize) + Sync) -> Sample {
    let barrier = Barrier::new(threads);
    let one = |thread| {
        barrier.wait();
        let (start, before) = (Instant::now(), thread_time());
        work(thread);
        let (end, after) = (Instant::now(), thread_time());
        let cpu: Option<Duration> = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        (start, end, cpu)
    };
    let spans: Vec<(Instant, Instant, Option<Duration>)> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let start = spans.iter().map(|span| span.0).min().unwrap_or_else(Instant::now);
    let end = spans.iter().map(|span| span.1).max().unwrap_or(start);
    let seconds = (end - start).as_secs_f64();
    let cpu: Option<Duration> = spans.iter().map(|span| span.2).sum();
    let cpu_share = cpu.map(|cpu| cpu.as_secs_f64() / (seconds * threads as f64));
    Sample { seconds, cpu_share, paged: false, disturbed: cpu_share.is_some_and(|share| share < 0.9) }
}
