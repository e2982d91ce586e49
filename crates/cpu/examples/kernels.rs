//! Rates of the matrix kernels at Kimi K3's shapes beside what this machine can do at most.
//!
//! `cargo run --release -p cpu --example kernels -- [--threads N] [--rounds N] [--level NAME] [PARTS OF NAMES]`
//!
//! Every round measures each kernel between two measurements of its limit: the speed at which the same threads read
//! memory, or their fused multiply-adds. Printed are medians over the rounds of the ratio, with quartiles. Weights
//! lie in 1.2 GB, gone through before any byte comes again. Time is the processor time of each thread, so that
//! other work on the machine costs a measurement less of its worth; rates of threads are added.
#![expect(clippy::print_stdout, reason = "prints its table")]

use cpu::product::{Outputs, Room, Shape, Weight, multiply};
use cpu::{Level, limits};
use memmap2::{MmapMut, MmapOptions};
use ops::packing::layout;
use ops::{Activations, Packing};
use std::sync::Barrier;

const CODE_BYTES: usize = 1 << 30;
const SCALE_BYTES: usize = 1 << 27;
/// Bytes of weights that one measurement goes through, if it is one of reading.
const READ_BYTES: usize = 192 << 20;
/// Multiply-adds of one measurement, if it is one of arithmetic.
const MULTIPLY_ADDS: usize = 6 << 30;

fn main() {
    let settings = Settings::from_arguments();
    let memory = Memory::new();
    println!("{}, {} threads, {} rounds", settings.level.name(), settings.threads, settings.rounds);
    let ahead = best_read(&settings, &memory);
    let mut rows: Vec<(Row, Vec<f64>, Vec<f64>)> =
        rows().into_iter().filter(|row| settings.wants(row)).map(|row| (row, vec![], vec![])).collect();
    let mut start = 0;
    for _ in 0..settings.rounds {
        for (row, ratios, rates) in &mut rows {
            let limit = |start| match row.limit() {
                Limit::Reading => read_rate(&settings, &memory.codes, ahead, start),
                Limit::MultiplyAdds => fma_rate(&settings),
            };
            let before = limit(start);
            let rate = kernel_rate(&settings, &memory, row, &mut start);
            rates.push(rate);
            ratios.push(2.0 * rate / (before + limit(start)));
        }
    }
    for (row, ratios, rates) in &mut rows {
        let unit = if matches!(row.limit(), Limit::Reading) { "GB/s" } else { "GMAC/s" };
        let [low, middle, high] = quartiles(ratios);
        println!(
            "{:<44} {middle:.3} ({low:.3} to {high:.3})  {:7.1} {unit}",
            row.name(),
            quartiles(rates)[1] / 1e9
        );
    }
}

struct Settings {
    level: Level,
    threads: usize,
    rounds: usize,
    words: Vec<String>,
}

impl Settings {
    fn from_arguments() -> Self {
        let mut settings = Settings { level: Level::best(), threads: 1, rounds: 9, words: Vec::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next().and_then(|n| n.parse().ok()).expect("a number");
            match argument.as_str() {
                "--threads" => settings.threads = number(),
                "--rounds" => settings.rounds = number(),
                "--level" => {
                    let name = arguments.next().expect("a level");
                    settings.level = Level::available().find(|l| l.name() == name).expect("a level it has");
                }
                _ => settings.words.push(argument),
            }
        }
        settings
    }

    fn wants(&self, row: &Row) -> bool {
        let name = row.name();
        self.words.iter().all(|word| word.split(',').any(|part| name.contains(part)))
    }
}

/// What is compared with what.
enum Limit {
    Reading,
    MultiplyAdds,
}

/// One line of the table.
struct Row {
    packing: Packing,
    activations: Activations,
    shape: (usize, usize),
    inputs: usize,
}

impl Row {
    fn name(&self) -> String {
        let (outputs, cols) = self.shape;
        let (packing, mode) = (self.packing.name(), self.activations.name());
        format!("{packing}-{mode} {outputs}x{cols} rows {};", self.inputs)
    }

    fn limit(&self) -> Limit {
        if self.inputs < 16 { Limit::Reading } else { Limit::MultiplyAdds }
    }

    fn bytes(&self) -> usize {
        layout(self.packing, self.shape.0 as u32, self.shape.1 as u32).bytes as usize
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |packing, activations, shape, counts: &[usize]| {
        rows.extend(counts.iter().map(|&inputs| Row { packing, activations, shape, inputs }));
    };
    for activations in [Activations::Int15, Activations::Int8, Activations::Exact] {
        let counts = [1, 2, 3, 4, 6, 8, 16, 32, 128];
        add(Packing::Mxfp4, activations, (3072, 3584), &counts);
        add(Packing::Mxfp4, activations, (3584, 3072), &[1, 32]);
        add(Packing::Int4, activations, (12288, 7168), &counts);
        add(Packing::Int8, activations, (12288, 7168), &counts);
    }
    add(Packing::Bf16, Activations::Exact, (12288, 7168), &[1, 2, 4, 8, 16, 32, 128]);
    add(Packing::F32, Activations::Exact, (896, 7168), &[1, 2, 4, 8, 16, 32, 128]);
    rows
}

/// Numbers near 1 whichever packing reads them.
struct Memory {
    codes: MmapMut,
    scales: MmapMut,
}

impl Memory {
    fn new() -> Self {
        let mut random = 1_u64;
        let mut fill = |bytes: usize, pattern: fn(u64) -> u64| {
            let mut memory = pages(bytes, true);
            for place in memory.as_chunks_mut::<8>().0 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *place = pattern(random.rotate_left(29)).to_le_bytes();
            }
            memory
        };
        // Halves of a float, or floats, with a sign and an exponent a little below 0; any numbers of a packing.
        let codes = fill(CODE_BYTES, |bits| (bits & 0x83ff_83ff_83ff_83ff) | 0x3c00_3c00_3c00_3c00);
        // Scale bytes of MXFP4 from 112 to 127, any of the others.
        let scales = fill(SCALE_BYTES, |bits| (bits & 0x0f0f_0f0f_0f0f_0f0f) | 0x7070_7070_7070_7070);
        Memory { codes, scales }
    }
}

/// Fresh memory, in large pages if the system has them and `large` asks.
fn pages(bytes: usize, large: bool) -> MmapMut {
    let memory = MmapOptions::new().len(bytes).map_anon().expect("memory for the weights");
    #[cfg(target_os = "linux")]
    let _ = memory.advise(if large { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage });
    #[cfg(not(target_os = "linux"))]
    let _ = large;
    memory
}

/// Runs `work(thread)` on all threads at once; the sum of `amount / seconds` over threads.
fn rate(settings: &Settings, amount: f64, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(settings.threads);
    let one = |thread| {
        barrier.wait();
        let start = processor_seconds();
        work(thread);
        amount / (processor_seconds() - start)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.threads).map(|t| scope.spawn(move || one(t))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that measures")).sum()
    })
}

/// Seconds that this thread has run.
fn processor_seconds() -> f64 {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
    #[cfg(not(unix))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
    }
}

/// Bytes a second that all threads read, each its own part.
fn read_rate(settings: &Settings, memory: &[u8], ahead: usize, start: usize) -> f64 {
    let share = READ_BYTES / settings.threads;
    rate(settings, share as f64, |thread| {
        let at = (start + (memory.len() / settings.threads) * thread) % (memory.len() - share);
        limits::read(settings.level, &memory[at..at + share], ahead);
    })
}

/// Multiply-adds a second.
fn fma_rate(settings: &Settings) -> f64 {
    let rounds = 10_000_000;
    let amount = limits::fma_count(settings.level, rounds) as f64;
    rate(settings, amount, |_| limits::fma_rounds(settings.level, rounds))
}

/// Prints the limits, and gives the distance of prefetches with which reading was fastest.
fn best_read(settings: &Settings, memory: &Memory) -> usize {
    let mut small = pages(CODE_BYTES / 2, false);
    small.fill(1);
    let mut best = (0.0, 0);
    for ahead in [0, 512, 1024, 2048, 4096, 8192] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..settings.rounds {
            for (pages, rates) in [&memory.codes, &small].into_iter().zip(&mut rates) {
                rates.push(read_rate(settings, pages, ahead, round * READ_BYTES));
            }
        }
        let [large, small] = rates.map(|mut rates| quartiles(&mut rates)[1]);
        println!("read, prefetch {ahead:>4}: {:.1} GB/s, 4 KB pages {:.1}", large / 1e9, small / 1e9);
        if large > best.0 {
            best = (large, ahead);
        }
    }
    let mut fma: Vec<f64> = (0..settings.rounds).map(|_| fma_rate(settings)).collect();
    let rounds = 10_000_000;
    let amount = limits::integer_count(settings.level, rounds) as f64;
    let integers = |_| rate(settings, amount, |_| limits::integer_rounds(settings.level, rounds));
    let mut integers: Vec<f64> = (0..settings.rounds).map(integers).collect();
    let [fma, integers] = [&mut fma, &mut integers].map(|rates| quartiles(rates)[1] / 1e9);
    println!("f32 {fma:.0} GMAC/s, small integers {integers:.0} GMAC/s");
    best.1
}

/// Bytes or multiply-adds a second of a kernel, on matrices that follow each other from `start` on.
fn kernel_rate(settings: &Settings, memory: &Memory, row: &Row, start: &mut usize) -> f64 {
    let (outputs, cols) = row.shape;
    let shape = Shape::new(settings.level, row.packing, row.activations, row.inputs, cols);
    let x: Vec<f32> = (0..row.inputs * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
    let mut room = Room::default();
    let inputs = room.prepare(shape, &x, cols);
    let sizes = layout(row.packing, outputs as u32, cols as u32);
    let (codes, scales) = (sizes.scales as usize, (sizes.bytes - sizes.scales) as usize);
    let work = row.inputs * outputs * cols;
    let (matrices, amount) = match row.limit() {
        Limit::Reading => ((READ_BYTES / row.bytes()).max(1), row.bytes()),
        Limit::MultiplyAdds => ((MULTIPLY_ADDS / work).max(1), work),
    };
    let first = *start;
    *start += matrices * codes;
    let share = outputs / settings.threads;
    rate(settings, (matrices * amount / settings.threads) as f64, |thread| {
        let mut y = vec![0.0; row.inputs * share];
        for i in 0..matrices {
            let place = ((first + i * codes) % (CODE_BYTES - codes)) & !63;
            let scale_place = if scales == 0 { 0 } else { (place / 8 % (SCALE_BYTES - scales)) & !15 };
            let (codes, scales) = (&memory.codes[place..], &memory.scales[scale_place..]);
            let weight = Weight::new(row.packing, outputs as u32, cols as u32, codes, scales);
            let out = Outputs::new(&mut y, row.inputs, share, share);
            multiply(weight, thread * share..(thread + 1) * share, inputs, out);
        }
    })
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
