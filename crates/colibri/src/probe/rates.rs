//! The rates that a prediction needs, measured in a second or, where other programs run, a few: reading memory, arithmetic, every kind of matrix
//! product of a step, the model's drives. Knows no plan.
use super::disk::Disk;
use super::kernels::{Desk, Kernel};
use super::machine::{Limit, LimitArm, Machine, Pages};
use super::samples::{Spread, in_turn};
use crate::args::EngineArgs;
use crate::errors::Failure;
use crate::{interrupt, load};
use engine::predict::{ProductRate, Rates, product_kinds};
use engine::show_bytes;
use ops::Op;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::{Access, Checkpoint};

/// Bytes that are gone through before any comes again: more than most processors' caches hold.
const BYTES: u64 = 512 << 20;
/// With fewer no figure means anything.
const BYTES_LEAST: u64 = 16 << 20;
/// The part of free memory that measuring may take.
const PART_OF_FREE: u64 = 4;
/// The fastest of so many repeats counts, because whatever else goes on on the machine only makes them slower; as long as
/// some have all been disturbed there are more of them ...
const ROUNDS: u32 = 5;
/// ... but none begins after this time.
const ENOUGH: Duration = Duration::from_secs(3);
/// Repeats are this much shorter than careful ones, to find a moment in which the cores are free.
const HURRY: u64 = 16;
/// Repeats of reading a drive, of which the fastest counts, too.
const REPEATS: u32 = 3;
/// Inputs that meet a matrix at once.
const INPUTS: [u32; 4] = [1, 4, 16, 64];
/// Of a machine of which only the drives are measured.
const NO_MEMORY: u64 = 2 * 4096;
/// How memory is read fastest on most machines.
const READ: Limit = Limit::Read { pages: Pages::Large, ahead: 4096 };

/// What was measured, and what has to be known of it.
pub(crate) struct Measured<T> {
    pub(crate) rate: T,
    pub(crate) notes: Vec<String>,
}

enum Turn {
    Limit(LimitArm),
    Product(Kernel),
}

/// How fast this machine computes steps like this one, with `free` bytes of memory not in use; the reason where there are
/// too few to measure with.
///
/// # Errors
/// The device's, or an interruption.
pub(crate) fn computing(
    args: &EngineArgs,
    step: &[Op],
    free: u64,
) -> Result<Result<Measured<Rates>, String>, Failure> {
    let bytes = (free / PART_OF_FREE).min(BYTES) / 4096 * 4096;
    if bytes < BYTES_LEAST {
        return Ok(Err(format!(
            "computing was not measured: {} of memory can be used, measuring takes {}",
            show_bytes(free),
            show_bytes(PART_OF_FREE * BYTES_LEAST)
        )));
    }
    let threads = load::threads(args);
    let kinds = product_kinds(step);
    let kernels = kinds.iter().flat_map(|kind| INPUTS.map(|inputs| Kernel::of(*kind, inputs, bytes)));
    let kernels: Vec<Kernel> = kernels.collect();
    let mut machine = Machine::new(bytes, None)?;
    let mut desk = Desk::new(load::device(args)?, &kernels, bytes, threads)?.hurried(HURRY);
    let limits = [READ, Limit::Floats, Limit::Products];
    let mut turns: Vec<Turn> =
        limits.map(|limit| Turn::Limit(LimitArm { limit, threads })).into_iter().collect();
    turns.extend(kernels.into_iter().map(Turn::Product));
    let mut seconds = vec![f64::INFINITY; turns.len()];
    let mut is_disturbed = vec![true; turns.len()];
    let (cancel, start) = (interrupt::stoppable(), Instant::now());
    let mut rounds = 0;
    while (rounds < ROUNDS || is_disturbed.contains(&true)) && start.elapsed() < ENOUGH {
        rounds += 1;
        for (place, turn) in turns.iter().enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Failure::Told { kind: "cancelled", message: "interrupted".into() });
            }
            let sample = match turn {
                Turn::Limit(arm) => machine.measure(*arm),
                Turn::Product(kernel) => desk.measure(kernel),
            }?;
            seconds[place] = seconds[place].min(sample.seconds);
            is_disturbed[place] &= sample.disturbed;
        }
    }
    let limit = |place: usize| 1e9 / seconds[place];
    let product = |(turn, seconds): (&Turn, &f64)| {
        let Turn::Product(kernel) = turn else { return None };
        let (packing, inputs) = kernel.kind();
        let multiply_adds = kernel.piece(&desk).multiply_adds / seconds;
        Some(ProductRate { packing, inputs, multiply_adds })
    };
    let rate = Rates {
        memory_bytes: limit(0),
        floats: limit(1),
        byte_products: limit(2),
        products: turns.iter().zip(&seconds).filter_map(product).collect(),
    };
    let mut notes = Vec::new();
    if is_disturbed.contains(&true) {
        notes.push(
            "other programs had the cores while computing was measured: seconds may be too many; end them and plan again"
                .to_owned(),
        );
    }
    Ok(Ok(Measured { rate, notes }))
}

/// Bytes a second that come from the drives of a model's shards as experts would; the reason where that cannot be measured.
///
/// # Errors
/// A read that failed, or an interruption.
pub(crate) fn drives(
    checkpoint: &Checkpoint,
    args: &EngineArgs,
) -> Result<Result<Measured<f64>, String>, Failure> {
    if checkpoint.shards().is_empty() {
        return Ok(Err("no shard is here to measure the drive with; --disk 7GB/s gives its rate".to_owned()));
    }
    let disk = match Disk::of(checkpoint, args.io)? {
        Ok(disk) => disk,
        Err(reason) => return Ok(Err(reason.to_owned())),
    };
    let mut notes: Vec<String> =
        disk.note().filter(|_| args.io != Access::Buffered).map(str::to_owned).into_iter().collect();
    match args.io {
        Access::Direct => {}
        Access::Buffered => notes.push(
            "the drive was measured through the system's file cache, as --io buffered reads".to_owned(),
        ),
        Access::Uring => notes.push(
            "the drive was measured with direct reads, as many at once as --io uring has under way"
                .to_owned(),
        ),
    }
    let mut machine = Machine::new(NO_MEMORY, Some(disk))?;
    let mut turns = [LimitArm { limit: Limit::Disk, threads: args.readers as usize }];
    let samples = in_turn(&mut turns, REPEATS, interrupt::stoppable(), |arm| machine.measure(*arm))?;
    Ok(Ok(Measured { rate: 1e9 / Spread::of(&samples[0]).least, notes }))
}
