//! The sampler equals its definition to the bit on any row, and a sequence gets the same ids in any chunks and company.
mod common;
#[path = "common/definition.rs"]
mod definition;

use common::{Setup, some_ids};
use engine::{Engine, Sampler, Sampling, Session, Task, TokenMask, TokenSet, generate};
use models::{Logits, PartError};
use proptest::prelude::*;
use std::ops::ControlFlow;

/// Rows longer than what the sampler ranks first, with equals and near equals.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let spread = prop::sample::select(&[0.0f32, 1e-6, 0.01, 1.0, 6.0, 30.0, 1e4, 3e38][..]);
    let steps = prop::sample::select(&[1u32, 3, 40, 2000, 1 << 23][..]);
    let length = prop_oneof![1..20usize, 500..530usize, 1000..4000usize];
    (spread, steps, length, any::<u64>()).prop_map(|(spread, steps, length, seed)| {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 % (2 * steps + 1)
        };
        // From -spread to spread; both zeros are among the numbers.
        (0..length).map(|_| (next() as f32 / steps as f32 - 1.0) * spread).collect()
    })
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    let of = |values: &'static [f32]| prop::sample::select(values);
    let cuts = (of(&[0.0, 0.01, 0.5, 1.0, 1.0, 1.3, 100.0]), of(&[1.0, 1.0, 0.999, 0.95, 0.5, 1e-3]));
    let counts =
        (prop::sample::select(&[0u32, 0, 1, 2, 50, 511, 512, 513, 5000][..]), of(&[0.0, 0.0, 0.05, 1.0]));
    let penalties = (of(&[1.0, 1.0, 1.3, 0.8]), of(&[0.0, 0.0, 0.6, -2.0]), of(&[0.0, 0.0, 0.2, -0.3]));
    let bias = prop::collection::btree_map(0u32..1000, -100f32..=100.0, 0..4);
    (cuts, counts, penalties, bias, any::<u64>()).prop_map(
        |((temperature, top_p), (top_k, min_p), (repetition, presence, frequency), logit_bias, seed)| {
            Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                seed,
                logit_bias,
                repetition_penalty: repetition,
                presence_penalty: presence,
                frequency_penalty: frequency,
                logprobs: None,
            }
        },
    )
}

/// Allows one id of `step`, from `first` on.
#[derive(Clone, Copy, Debug)]
struct Every {
    first: u32,
    step: u32,
}

impl Every {
    fn allows(self, id: u32) -> bool {
        id >= self.first && (id - self.first).is_multiple_of(self.step)
    }
}

impl TokenMask for Every {
    fn restrict(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        (0..allowed.vocabulary()).filter(|id| !self.allows(*id)).for_each(|id| allowed.remove(id));
        Ok(())
    }

    fn took(&mut self, id: u32) -> Result<(), String> {
        if self.allows(id) { Ok(()) } else { Err(format!("{id} is not allowed")) }
    }
}

fn any_mask() -> impl Strategy<Value = Option<Every>> {
    prop_oneof![
        2 => Just(None),
        1 => (0u32..40, 1u32..200).prop_map(|(first, step)| Some(Every { first, step })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several draws in a row by one sampler, whose buffers and counts go on.
    #[test]
    fn the_sampler_is_its_definition(
        rows in prop::collection::vec(any_row(), 1..4),
        mut sampling in any_sampling(),
        mask in any_mask(),
        prompt in prop::collection::vec(0u32..1000, 0..30),
    ) {
        let vocabulary = rows.iter().map(Vec::len).min().unwrap();
        let known = vocabulary as u32;
        sampling.logit_bias.retain(|id, _| *id < known);
        let mask = mask.map(|mask| Every { first: mask.first % known, ..mask });
        let mut sequence: Vec<u32> = prompt.into_iter().map(|id| id % known).collect();
        let mut sampler = Sampler::new(sampling.clone(), known).unwrap();
        if let Some(mask) = mask {
            sampler = sampler.masked(Box::new(mask));
        }
        sampler.begin(&sequence);
        let allowed = |id| mask.is_none_or(|mask| mask.allows(id));
        for row in &rows {
            let row = &row[..vocabulary];
            let expected = definition::next(&sampling, row, &sequence, &allowed);
            let found = sampler.next(row, sequence.len() as u32).unwrap();
            prop_assert_eq!(found, expected);
            sequence.push(found);
        }
    }

    /// Log-probabilities of a row in f64, and the ids by the order of ranks.
    #[test]
    fn logprobs_are_near_the_exact_ones(row in any_row(), count in 0u32..=20) {
        let sampling = Sampling { logprobs: Some(count), ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, row.len() as u32).unwrap();
        let id = sampler.next(&row, 3).unwrap();
        let found = sampler.logprobs().unwrap();
        let top = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let total: f64 = row.iter().map(|l| (f64::from(*l) - top).exp()).sum();
        let close = |id: u32, logprob: f32| {
            let exact = (f64::from(row[id as usize]) - top) - total.ln();
            exact < -1e30 && logprob < -1e30 || (f64::from(logprob) - exact).abs() <= 1e-5 * (1.0 + exact.abs())
        };
        prop_assert!(close(id, found.taken));
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.sort_by(|a, b| row[*b as usize].partial_cmp(&row[*a as usize]).unwrap().then(a.cmp(b)));
        ids.truncate(count as usize);
        let likeliest: Vec<u32> = found.top.iter().map(|(id, _)| *id).collect();
        prop_assert_eq!(likeliest, ids);
        prop_assert!(found.top.iter().all(|(id, logprob)| close(*id, *logprob)));
    }
}

/// The whole vocabulary of Kimi K3, where most draws are decided by the first ranks and some by all.
#[test]
fn the_sampler_is_its_definition_on_long_rows() {
    let mut seed = 1u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / 16_777_216.0
    };
    for spread in [0.5, 8.0, 25.0] {
        let row: Vec<f32> = (0..163_840).map(|_| (uniform() + uniform() + uniform()) * spread).collect();
        for (top_p, min_p) in [(1.0, 0.0), (0.9, 0.0), (1.0, 0.01)] {
            let sampling = Sampling { top_p, min_p, ..Sampling::default() };
            let mut sampler = Sampler::new(sampling.clone(), 163_840).unwrap();
            for length in 0..3 {
                let expected = definition::next(&sampling, &row, &vec![0; length], &|_| true);
                assert_eq!(sampler.next(&row, length as u32), Ok(expected), "{spread} {sampling:?}");
            }
        }
    }
}

/// Pinned: the same on every platform, in every build.
#[test]
fn the_same_seed_gives_the_same_ids_everywhere() {
    let row = |turn: u32| -> Vec<f32> {
        let scattered = |id: u32| (id + 4096 * turn).wrapping_mul(0x9e37_79b9) >> 8;
        (0..4096).map(|id| scattered(id) as f32 / 2_097_152.0).collect()
    };
    for (index, ids) in PINNED.iter().enumerate() {
        let mut sampler = Sampler::new(busy(index), 4096).unwrap();
        sampler.begin(&[5, 9, 5]);
        let drawn = (0..8).map(|turn| sampler.next(&row(turn % 2), 3 + turn).unwrap());
        assert_eq!(drawn.collect::<Vec<_>>(), ids, "settings {index}");
    }
}

const PINNED: [[u32; 8]; 3] = [
    [1904, 2219, 1796, 3172, 3613, 57, 3389, 1182],
    [2118, 462, 2728, 3334, 1275, 2491, 1364, 2669],
    [542, 507, 1299, 159, 3469, 3999, 2289, 1887],
];

/// Settings under which every rule acts, another one for each sequence.
fn busy(index: usize) -> Sampling {
    Sampling {
        temperature: 1.5,
        top_k: [0, 40, 0][index],
        top_p: [0.98, 1.0, 1.0][index],
        min_p: [0.0, 0.0, 0.001][index],
        seed: 11 + index as u64,
        logit_bias: [(5, 3.0), (6 + index as u32, -8.0)].into(),
        repetition_penalty: 1.2,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        logprobs: Some(2),
    }
}

const ANSWER: usize = 12;

fn prompt(index: usize) -> Vec<u32> {
    // Ids come again, so that counts differ from one another.
    let ids = some_ids(index as u64 + 1, 5 + 3 * index);
    [&ids[..], &ids[..3], &ids[..1]].concat()
}

fn solo(engine: &mut Engine, index: usize) -> Vec<u32> {
    let mut session = Session::new(engine).unwrap();
    let mut sampler = engine.sampler(busy(index)).unwrap();
    let prompt = prompt(index);
    let task = Task { prompt: &prompt, max_tokens: ANSWER as u32, stop: &[], cancel: None };
    let go_on = &mut |_| ControlFlow::Continue(());
    let answer = generate(engine, &mut session, &task, &mut sampler, go_on).unwrap();
    assert_eq!((answer.ids.len(), answer.logprobs.len()), (ANSWER, ANSWER));
    session.close(engine).unwrap();
    answer.ids
}

/// Three sequences with penalties, fed together and in chunks of their own, get what each gets alone.
#[test]
fn company_and_chunks_change_no_choice() {
    let mut setup = Setup::new();
    setup.request.sequences = 3;
    let mut engine = setup.load();
    let alone: Vec<Vec<u32>> = (0..3).map(|index| solo(&mut engine, index)).collect();
    let plain =
        Sampling { repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, ..busy(0) };
    let mut sampler = engine.sampler(plain).unwrap();
    let mut session = Session::new(&mut engine).unwrap();
    let first = prompt(0);
    let task = Task { prompt: &first, max_tokens: ANSWER as u32, stop: &[], cancel: None };
    let go_on = &mut |_| ControlFlow::Continue(());
    let answer = generate(&mut engine, &mut session, &task, &mut sampler, go_on).unwrap();
    assert_ne!(answer.ids, alone[0], "the penalties change something");
    session.close(&mut engine).unwrap();

    for chunk in [1, 4] {
        let mut all: Vec<(Session, Sampler, Vec<u32>)> = (0..3)
            .map(|index| {
                let (session, mut sampler) =
                    (Session::new(&mut engine).unwrap(), engine.sampler(busy(index)).unwrap());
                let prompt = prompt(index);
                sampler.begin(&prompt);
                (session, sampler, prompt)
            })
            .collect();
        let ends: Vec<usize> = (0..3).map(|index| prompt(index).len() + ANSWER).collect();
        while all.iter().zip(&ends).any(|((.., ids), end)| ids.len() < *end) {
            let waiting = all.iter_mut().zip(&ends).filter(|((.., ids), end)| ids.len() < **end);
            let mut waiting: Vec<_> = waiting.map(|(sequence, _)| sequence).collect();
            let parts = waiting.iter_mut().map(|(session, _, ids)| {
                let seen = session.ids().len();
                session.part(&ids[seen..ids.len().min(seen + chunk)], Logits::Last, None)
            });
            let outputs = engine.step(&mut parts.collect::<Vec<_>>()).unwrap();
            for ((session, sampler, ids), output) in waiting.into_iter().zip(outputs) {
                let logits = output.unwrap_or_else(|error: PartError| panic!("{error}")).logits;
                let (seen, now) = (session.ids().len(), session.state().position() as usize);
                session.fed(&ids[seen..now]);
                if now == ids.len() {
                    ids.push(sampler.next(&logits, now as u32).unwrap());
                }
            }
        }
        for (index, (session, _, ids)) in all.into_iter().enumerate() {
            assert_eq!(ids[prompt(index).len()..], alone[index], "sequence {index} in chunks of {chunk}");
            session.close(&mut engine).unwrap();
        }
    }
}
