//! How long the choice of a token takes with a vocabulary of 163,840 ids, by the sampler and by the plain definition
//! that sorts everything: medians of interleaved runs, microseconds.
//! `cargo run --release -p engine --example sampler_speed`
#![expect(clippy::print_stdout, reason = "the figures are what it is for")]
#[path = "../tests/common/definition.rs"]
mod definition;

use engine::{Sampler, Sampling};
use std::error::Error;
use std::time::Instant;

const VOCABULARY: u32 = 163_840;
const RUNS: usize = 41;

/// Logits of a sum of four uniform numbers, about normal, times `spread`: the wider, the fewer are likely.
fn row(spread: f32, turn: u32) -> Vec<f32> {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(turn);
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..VOCABULARY).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1.732 * spread).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let all = Sampling::default();
    let penalties = Sampling { repetition_penalty: 1.1, presence_penalty: 0.5, ..all.clone() };
    let cases = [
        ("greedy", Sampling::greedy()),
        ("temperature 1", all.clone()),
        ("top-p 0.95", Sampling { top_p: 0.95, ..all.clone() }),
        ("top-k 50", Sampling { top_k: 50, ..all.clone() }),
        ("min-p 0.05", Sampling { min_p: 0.05, ..all.clone() }),
        ("top-k 50, penalties", Sampling { top_k: 50, ..penalties }),
        ("top-p 0.95, 20 logprobs", Sampling { top_p: 0.95, logprobs: Some(20), ..all }),
    ];
    println!("{:<26}{:>8}{:>14}{:>14}", "settings", "spread", "sampler us", "definition us");
    for (name, sampling) in cases {
        for spread in [1.0, 4.0, 8.0] {
            let mut sampler = Sampler::new(sampling.clone(), VOCABULARY)?;
            // The definition counts the sequence for each id, which is not what is compared.
            let history: Vec<u32> = (0..2000).map(|i| i * 7 % 1000).collect();
            let mut times = [Vec::new(), Vec::new()];
            for turn in 0..RUNS as u32 {
                let row = row(spread, turn);
                sampler.begin(&history);
                let start = Instant::now();
                let id = sampler.next(&row, 0)?;
                times[0].push(start.elapsed().as_secs_f64() * 1e6);
                let plain = sampling.repetition_penalty == 1.0;
                if plain {
                    let start = Instant::now();
                    let defined = definition::next(&sampling, &row, &[], &|_| true);
                    times[1].push(start.elapsed().as_secs_f64() * 1e6);
                    assert_eq!(id, defined);
                }
            }
            let [sampler, definition] = times;
            let definition =
                if definition.is_empty() { "-".into() } else { format!("{:.0}", median(definition)) };
            println!("{name:<26}{spread:>8}{:>14.0}{definition:>14}", median(sampler));
        }
    }
    Ok(())
}
