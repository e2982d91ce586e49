//! The table of `docs/packing.md`: what each storage of dense matrices and each activations mode does to the logits of
//! the tiny model, teacher-forced over text that the model wrote itself. `cargo run --release -p engine --example
//! packing_errors -- data/k3-tiny`
#![allow(clippy::print_stdout, reason = "its table is its output")]

use engine::plan::Request;
use engine::{Engine, Limits, Sampling, Session, Streaming, Task, generate, plan};
use memory::CacheSize;
use models::{Dense, Family, LoadOptions, Logits, Tap};
use ops::{Activations, Oracle};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use store::{Checkpoint, Dtype};

const CHUNK: usize = 32;
/// Texts: prompt and seed.
const TEXTS: [(&str, u64); 4] =
    [("Once upon a time", 1), ("One day a fox", 2), ("The old king", 3), ("Emma", 4)];
/// Tokens of each.
const LENGTH: u32 = 160;
/// A router's last chosen and first rejected score nearer than this make a position one apart.
const CLOSE: f32 = 1e-4;

/// Logits and picks of one position.
struct Position {
    logits: Vec<f32>,
    picks: Vec<Vec<u32>>,
    /// Smallest distance between a chosen and a rejected expert over the layers.
    gap: f32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: packing_errors MODEL_DIRECTORY")?;
    let checkpoint = Checkpoint::open(&[directory.into()])?;
    let tokenizer = tokenizer(&checkpoint)?;
    let mut reference = load(&checkpoint, Dense::Bf16, Activations::Exact)?;
    let routers = Routers::read(&checkpoint)?;
    let mut texts = Vec::new();
    for (prompt, seed) in TEXTS {
        texts.push(write_text(
            &mut reference,
            &text::Tokenizer::encode(&tokenizer, &[text::Segment::Text(prompt)])?,
            seed,
        )?);
    }
    let expected = force(&mut reference, &texts, Some(&routers))?;
    let close = expected.iter().filter(|p| p.gap < CLOSE).count();
    println!("{} positions, {close} of them with a router gap below {CLOSE:e} (left out)\n", expected.len());
    println!(
        "| dense | activations | bits a weight | logits L2 median | p95 | KL median | p95 | router sets changed |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for dense in Dense::ALL {
        for activations in [Activations::Exact, Activations::Int15, Activations::Int8] {
            let mut engine = load(&checkpoint, dense, activations)?;
            let got = force(&mut engine, &texts, None)?;
            report(dense, activations, &expected, &got);
        }
    }
    Ok(())
}

fn tokenizer(checkpoint: &Checkpoint) -> Result<text::Tiktoken, Box<dyn Error>> {
    let file = |name| checkpoint.metadata_file(name, 64 << 20);
    let model = file("tiktoken.model")?.ok_or("no tiktoken.model")?;
    Ok(text::Tiktoken::from_bytes(&model, file("tokenizer_config.json")?.as_deref())?)
}

fn load(checkpoint: &Checkpoint, dense: Dense, activations: Activations) -> Result<Engine, Box<dyn Error>> {
    let family = Family::recognise(checkpoint)?;
    let request = Request {
        options: LoadOptions { activations, ..LoadOptions::default() },
        dense: Some(dense),
        context: Some(512),
        sequences: 1,
        chunk: Some(CHUNK as u32),
        expert_cache: Some(CacheSize::All),
        copies: 1,
    };
    let plan = plan(checkpoint, &family, &request, Limits::of_machine()?)?;
    let (device, reader) = (Box::new(Oracle::new(2)?), Arc::new(checkpoint.files()));
    Ok(Engine::load(checkpoint, &family, plan, device, Streaming::new(reader, 2), &mut |_| {})?)
}

/// The prompt and what the model makes of it.
fn write_text(engine: &mut Engine, prompt: &[u32], seed: u64) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut session = Session::new(engine)?;
    let sampling = Sampling { seed, ..Sampling::default() };
    let mut sampler = engine.sampler(sampling)?;
    let task = Task { prompt, max_tokens: LENGTH, stop: &[], cancel: None };
    let answer = generate(engine, &mut session, &task, &mut sampler, &mut |_| ControlFlow::Continue(()))?;
    session.close(engine)?;
    Ok([prompt, &answer.ids].concat())
}

/// Logits and picks of every position of the texts.
fn force(
    engine: &mut Engine,
    texts: &[Vec<u32>],
    routers: Option<&Routers>,
) -> Result<Vec<Position>, Box<dyn Error>> {
    let layers: Vec<u32> = (0..engine.model().state_fields().len() as u32).collect();
    let vocabulary = engine.model().vocabulary() as usize;
    let mut positions = Vec::new();
    for ids in texts {
        let mut session = Session::new(engine)?;
        for ids in ids.chunks(CHUNK) {
            let mut part = session.part(ids, Logits::All, None);
            part.taps = &layers;
            let output = engine.step(&mut [part])?.pop().ok_or("no outcome")??;
            session.fed(ids);
            for (row, logits) in output.logits.chunks_exact(vocabulary).enumerate() {
                let picks = output.taps.iter().map(|tap| picks(tap, row, ids.len())).collect();
                let gap = routers.map_or(0.0, |r| r.gap(&output.taps, row, ids.len()));
                positions.push(Position { logits: logits.to_vec(), picks, gap });
            }
        }
        session.close(engine)?;
    }
    Ok(positions)
}

/// A row's picks in one layer, sorted.
fn picks(tap: &Tap, row: usize, rows: usize) -> Vec<u32> {
    let ranks = tap.picks.len() / rows;
    let mut picks = tap.picks[row * ranks..(row + 1) * ranks].to_vec();
    picks.sort_unstable();
    picks
}

/// The routers' weights and biases, for the scores that taps do not carry.
struct Routers(Vec<Option<(Vec<f32>, Vec<f32>)>>);

impl Routers {
    fn read(checkpoint: &Checkpoint) -> Result<Self, Box<dyn Error>> {
        let mut routers = Vec::new();
        for layer in 0..Family::recognise(checkpoint)?.config.layers() {
            let name =
                |part: &str| format!("language_model.model.layers.{layer}.block_sparse_moe.gate.{part}");
            let values = |name: &str| -> Result<Option<Vec<f32>>, Box<dyn Error>> {
                let Some(entry) = checkpoint.tensor(name) else { return Ok(None) };
                let packing = if entry.dtype == Dtype::F32 { ops::Packing::F32 } else { ops::Packing::Bf16 };
                Ok(Some(ops::packing::decode_floats(packing, &checkpoint.read_vec(entry)?)))
            };
            routers.push(values(&name("weight"))?.zip(values(&name("e_score_correction_bias"))?));
        }
        Ok(Routers(routers))
    }

    fn gap(&self, taps: &[Tap], row: usize, rows: usize) -> f32 {
        let gaps = self.0.iter().zip(taps).filter_map(|(router, tap)| {
            let (weight, bias) = router.as_ref()?;
            let (width, ranks) = (tap.mlp_input.len() / rows, tap.picks.len() / rows);
            let x = &tap.mlp_input[row * width..(row + 1) * width];
            let score = |(w, b): (&[f32], &f32)| ops::math::sigmoid(ops::lanes::dot(w, x)) + b;
            let mut scores: Vec<f32> = weight.chunks_exact(width).zip(bias).map(score).collect();
            scores.sort_by(|a, b| b.total_cmp(a));
            Some(scores[ranks - 1] - scores[ranks])
        });
        gaps.fold(f32::INFINITY, f32::min)
    }
}

fn report(dense: Dense, activations: Activations, expected: &[Position], got: &[Position]) {
    let pairs = || expected.iter().zip(got).filter(|(e, _)| e.gap >= CLOSE);
    let (l2_median, l2_high) = quantiles(pairs().map(|(e, g)| distance(&g.logits, &e.logits)).collect());
    let (kl_median, kl_high) = quantiles(pairs().map(|(e, g)| divergence(&e.logits, &g.logits)).collect());
    let sets = || pairs().flat_map(|(e, g)| e.picks.iter().zip(&g.picks)).filter(|(e, _)| !e.is_empty());
    let changed = sets().filter(|(e, g)| e != g).count() as f64 / sets().count() as f64;
    let packing = match dense {
        Dense::Bf16 => ops::Packing::Bf16,
        Dense::Int8 => ops::Packing::Int8,
        Dense::Int4 => ops::Packing::Int4,
    };
    let bits = ops::packing::layout(packing, 1, 128).bytes as f64 * 8.0 / 128.0;
    println!(
        "| {} | {} | {:.2} | {l2_median:.2e} | {l2_high:.2e} | {kl_median:.2e} | {kl_high:.2e} | {:.2} % |",
        dense.name(),
        activations.name(),
        bits,
        changed * 100.0,
    );
}

/// Median and 95th percentile.
fn quantiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() * 95 / 100])
}

/// `|a - b| / |b|`
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let d: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let n: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (d / n).sqrt()
}

/// Kullback-Leibler divergence of q from p, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|l| f64::from(l - top).exp()).sum();
    logits.iter().map(|l| f64::from(l - top) - total.ln()).collect()
}
