//! What the device's ops take at Kimi K3's shapes, beside what this machine could do at most.
//!
//! `cargo run --release -p cpu --example device_ops -- [--threads N] [--rounds N] [--level NAME] [PARTS OF NAMES]`
//!
//! Every round measures each row between two measurements of its limit: the same threads that only read memory, or only
//! do fused multiply-adds. Printed are medians over the rounds of the ratio, with quartiles, and of the time. Time is the
//! processor time of the process divided by its threads, so that other work on the machine costs a measurement less of
//! its worth; moments in which a thread looks for work count as work.
#![expect(clippy::print_stdout, reason = "prints its table")]

use cpu::{Cpu, Level, limits};
use memory::HostBuffer;
use ops::{
    Activation, Activations, Buffer, DecayFormula, Device, Ids, LatentCache, Matrix, Op, Packing, Routing,
    Tensor,
};
use std::time::Duration;

fn main() {
    let settings = Settings::from_arguments();
    println!("{}, {} threads, {} rounds", settings.level.name(), settings.threads, settings.rounds);
    let mut buffer = HostBuffer::new(512 << 20).expect("memory");
    buffer.as_mut_slice().fill(1);
    let memory = buffer.as_slice();
    let mut rows: Vec<Row> =
        ROWS.iter().filter(|(name, _)| settings.wants(name)).map(|(_, make)| make(&settings)).collect();
    for _ in 0..settings.rounds {
        for row in &mut rows {
            let before = row.work.seconds(&settings, memory);
            let time = row.measure() / settings.threads as f64;
            let after = row.work.seconds(&settings, memory);
            row.ratios.push(f64::midpoint(before, after) / time);
            row.times.push(time);
        }
    }
    for row in &mut rows {
        let [low, middle, high] = quartiles(&mut row.ratios);
        let time = quartiles(&mut row.times)[1] * 1e6;
        println!("{:<52} {middle:.3} ({low:.3} to {high:.3}) {time:9.2} us {}", row.name, row.unit);
    }
}

/// What a row has to do at least.
#[derive(Clone, Copy)]
enum Work {
    /// Bytes from and to memory.
    Bytes(f64),
    /// Multiply-adds.
    MultiplyAdds(f64),
}

impl Work {
    /// The least time on all threads.
    fn seconds(self, settings: &Settings, memory: &[u8]) -> f64 {
        let share = memory.len() / settings.threads;
        match self {
            Work::Bytes(bytes) => {
                let read = |ahead| {
                    on_all_threads(settings, |i| {
                        limits::read(settings.level, &memory[i * share..][..share], ahead);
                    })
                };
                let best = [0, 4096, 8192].map(read).into_iter().fold(f64::INFINITY, f64::min);
                bytes / (share * settings.threads) as f64 * best
            }
            Work::MultiplyAdds(count) => {
                let rounds = 2_000_000;
                let time = on_all_threads(settings, |_| limits::fma_rounds(settings.level, rounds));
                count / (limits::fma_count(settings.level, rounds) * settings.threads as u64) as f64 * time
            }
        }
    }
}

/// The mean processor time of the threads, each of which gets its number.
fn on_all_threads(settings: &Settings, work: impl Fn(usize) + Sync) -> f64 {
    let all = || {
        std::thread::scope(|scope| {
            for i in 0..settings.threads {
                let work = &work;
                scope.spawn(move || work(i));
            }
        });
    };
    seconds(all) / settings.threads as f64
}

/// One line of the table: ops that are run again and again, on other operands each time.
struct Row {
    name: String,
    unit: &'static str,
    work: Work,
    /// Units of work in one turn.
    units: f64,
    device: Cpu,
    turns: Vec<Vec<Op>>,
    next: usize,
    ratios: Vec<f64>,
    times: Vec<f64>,
}

impl Row {
    /// Processor time of a unit.
    fn measure(&mut self) -> f64 {
        let mut spent = 0.0;
        let mut units = 0.0;
        while spent < 0.05 {
            let ops = &self.turns[self.next % self.turns.len()];
            self.next += 1;
            spent += seconds(|| {
                self.device.submit(ops).expect("the device works");
            });
            units += self.units;
        }
        spent / units
    }
}

/// Numbers for operands, and operands for ops.
struct Bench {
    device: Cpu,
    turns: Vec<Vec<Op>>,
}

impl Bench {
    fn new(settings: &Settings) -> Self {
        Bench {
            device: Cpu::with_level(settings.threads, settings.level).expect("threads"),
            turns: Vec::new(),
        }
    }

    fn buffer(&mut self, bytes: &[u8]) -> Buffer {
        let buffer = self.device.allocate(bytes.len() as u64, "bench").expect("memory");
        self.device.write(buffer, 0, bytes).expect("a buffer of that size");
        buffer
    }

    /// Scattered numbers in -1..1.
    fn tensor(&mut self, rows: u32, cols: u32) -> Tensor {
        let number = |i: u32| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0;
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| number(i).to_le_bytes()).collect();
        Tensor::new(self.buffer(&bytes), 0, rows, cols)
    }

    fn ids(&mut self, rows: u32, cols: u32, ids: impl Fn(u32) -> u32) -> Ids {
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| ids(i).to_le_bytes()).collect();
        Ids(Tensor::new(self.buffer(&bytes), 0, rows, cols))
    }

    fn row(self, name: &str, unit: &'static str, units: f64, work: Work) -> Row {
        let Bench { device, turns } = self;
        Row {
            name: name.to_owned(),
            unit,
            work,
            units,
            device,
            turns,
            next: 0,
            ratios: vec![],
            times: vec![],
        }
    }
}

type Make = fn(&Settings) -> Row;

/// Every row by name, and how to make it.
const ROWS: [(&str, Make); 9] = [
    ("attention core at 4096, one token", |s| attention(s, 1)),
    ("attention core at 4096, 32 tokens", |s| attention(s, 32)),
    ("KDA core, one token, 69 states", |s| kda(s, true)),
    ("KDA delta rule alone, one token, 69 states", |s| kda(s, false)),
    ("delta rule, 64 tokens", delta_chunk),
    ("route 896 to 16, one row", route),
    ("router f32 896 x 7168, one row", router_product),
    ("residual mix of 9 x 7168", residual_mix),
    ("situ of 16 x 3072", glu),
];

/// Scores, softmax and context of all heads; a unit is a position of a token.
fn attention(settings: &Settings, tokens: u32) -> Row {
    let (heads, latent, rope, context) = (96, 512, 64, 4096);
    let mut bench = Bench::new(settings);
    let (q, q_rope) = (bench.tensor(tokens * heads, latent), bench.tensor(tokens * heads, rope));
    let out = bench.tensor(tokens * heads, latent);
    for _ in 0..6 {
        let pool = bench.tensor(context, latent + rope);
        let cache = LatentCache { pool, table: bench.ids(1, context / 64, |i| i), latent };
        let position = context - tokens;
        let (q_rope, selected, scale) = (Some(q_rope), None, 0.07);
        bench.turns.push(vec![Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale }]);
    }
    let work = Work::MultiplyAdds(f64::from(heads * (2 * latent + rope)));
    let units = f64::from(context * tokens);
    bench.row(&format!("attention core at 4096, {tokens} tokens"), "a position", units, work)
}

/// Convolutions, norms, decay, delta rule and gated norm of one layer and token; the work is the state's bytes.
fn kda(settings: &Settings, all: bool) -> Row {
    let (heads, d) = (96, 128);
    let inner = heads * d;
    let mut bench = Bench::new(settings);
    let [x, f, gate] = [(); 3].map(|()| bench.tensor(1, inner));
    let [q, k, v, normed_q, normed_k, decay, o, gated] = [(); 8].map(|()| bench.tensor(1, inner));
    let (a_log, dt_bias, beta) = (bench.tensor(1, heads), bench.tensor(heads, d), bench.tensor(1, heads));
    let gain = bench.tensor(1, d);
    let formula = DecayFormula::LowerBound(-5.0);
    for _ in 0..69 {
        let state = bench.tensor(inner, d);
        let mut ops = Vec::new();
        for out in [q, k, v] {
            let (window, taps) = (bench.tensor(inner, 3), bench.tensor(inner, 4));
            ops.push(Op::ShortConv { out, x, window, taps });
        }
        let [q, k, v, q_out, k_out] = [q, k, v, normed_q, normed_k].map(|t| t.heads(d));
        let [f, decay, o] = [f, decay, o].map(|t| t.heads(d));
        ops.push(Op::L2Norm { out: q_out, x: q, eps: 1e-6, scale: 0.088 });
        ops.push(Op::L2Norm { out: k_out, x: k, eps: 1e-6, scale: 1.0 });
        ops.push(Op::DecayGate { out: decay, f, a_log, dt_bias, formula });
        ops.push(Op::DeltaRule { out: o, q: q_out, k: k_out, v, decay, beta, state });
        ops.push(Op::RmsNorm { out: q, x: o, gain, eps: 1e-5 });
        ops.push(Op::GateMul { out: gated, x: q.reshape(1, inner), gate });
        ops.retain(|op| all || op.name() == "delta_rule");
        bench.turns.push(ops);
    }
    let name = if all { "KDA core" } else { "KDA delta rule alone" };
    bench.row(
        &format!("{name}, one token, 69 states"),
        "a layer",
        1.0,
        Work::Bytes(f64::from(inner * d * 4 * 2)),
    )
}

/// The delta rule over a chunk; multiply-adds are those of both products and the update.
fn delta_chunk(settings: &Settings) -> Row {
    let (heads, d, tokens) = (96, 128, 64);
    let mut bench = Bench::new(settings);
    let [q, k, v, decay, out] = [(); 5].map(|()| bench.tensor(tokens * heads, d));
    let (beta, state) = (bench.tensor(tokens, heads), bench.tensor(heads * d, d));
    bench.turns.push(vec![Op::DeltaRule { out, q, k, v, decay, beta, state }]);
    let work = Work::MultiplyAdds(f64::from(heads * d * d) * 3.0);
    bench.row("delta rule, 64 tokens", "a token", f64::from(tokens), work)
}

fn route(settings: &Settings) -> Row {
    let mut bench = Bench::new(settings);
    let (logits, bias) = (bench.tensor(1, 896), Some(bench.tensor(1, 896)));
    let (picks, weights) = (bench.ids(1, 16, |_| 0), bench.tensor(1, 16));
    let routing = Routing { renormalize: true, scale: 2.8, keep: 1.0 };
    bench.turns.push(vec![Op::Route { picks, weights, logits, bias, routing }; 100]);
    bench.row("route 896 to 16, one row", "a row", 100.0, Work::MultiplyAdds(896.0 * 24.0))
}

fn router_product(settings: &Settings) -> Row {
    let (rows, cols) = (896, 7168);
    let mut bench = Bench::new(settings);
    let (x, out) = (bench.tensor(1, cols), bench.tensor(1, rows));
    for _ in 0..20 {
        let buffer = bench.tensor(rows, cols).buffer;
        let weight = Matrix { buffer, codes: 0, scales: 0, rows, cols, packing: Packing::F32 };
        bench.turns.push(vec![Op::MatMul { out, x, weight, activations: Activations::Exact }]);
    }
    bench.row("router f32 896 x 7168, one row", "a row", 1.0, Work::Bytes(f64::from(rows * cols * 4)))
}

fn residual_mix(settings: &Settings) -> Row {
    let (width, count) = (7168, 8);
    let mut bench = Bench::new(settings);
    let (running, snapshots) = (bench.tensor(1, width), bench.tensor(count, width));
    let (weight, out) = (bench.tensor(1, width), bench.tensor(1, width));
    bench.turns.push(vec![Op::ResidualMix { out, running, snapshots, count, weight, eps: 1e-6 }; 20]);
    let work = Work::MultiplyAdds(f64::from((count + 1) * width) * 3.0);
    bench.row("residual mix of 9 x 7168", "a row", 20.0, work)
}

fn glu(settings: &Settings) -> Row {
    let mut bench = Bench::new(settings);
    let [out, gate, up] = [(); 3].map(|()| bench.tensor(16, 3072));
    let activation = Activation::Situ { beta: 4.0, linear_beta: 25.0 };
    bench.turns.push(vec![Op::Glu { out, gate, up, activation }; 10]);
    // About as many operations as its functions have.
    bench.row("situ of 16 x 3072", "a number", 16.0 * 3072.0 * 10.0, Work::MultiplyAdds(90.0))
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
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--threads" => settings.threads = value().parse().expect("--threads: a number"),
                "--rounds" => settings.rounds = value().parse().expect("--rounds: a number"),
                "--level" => {
                    let name = value();
                    let found = Level::available().find(|level| level.name() == name);
                    settings.level = found.unwrap_or_else(|| panic!("--level: this processor has no {name}"));
                }
                _ => settings.words.push(argument),
            }
        }
        settings
    }

    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }
}

/// Processor time that the process spends on something.
fn seconds(work: impl FnOnce()) -> f64 {
    let before = processor_time();
    work();
    processor_time().saturating_sub(before).as_secs_f64()
}

#[cfg(unix)]
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(not(unix))]
fn processor_time() -> Duration {
    // Without processor times the clock on the wall has to do.
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(numbers: &mut [f64]) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| numbers[(numbers.len() - 1) * quarter / 4])
}
