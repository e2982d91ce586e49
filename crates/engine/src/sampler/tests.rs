//! Hand values of each rule, the order of the rules, and what is refused. Equality with the definition on any row is
//! tested in `tests/sampling.rs`.
use super::*;

const LOGITS: [f32; 4] = [1.0, 3.0, 3.0, 2.0];

fn sampler(sampling: &Sampling) -> Sampler {
    Sampler::new(sampling.clone(), LOGITS.len() as u32).unwrap()
}

/// The ids that are drawn at some of many positions, after `sequence`.
fn seen_after(sampling: &Sampling, sequence: &[u32]) -> Vec<u32> {
    let mut sampler = sampler(sampling);
    let mut draw = |position| {
        sampler.begin(sequence);
        sampler.next(&LOGITS, position).unwrap()
    };
    let mut ids: Vec<u32> = (0..500).map(&mut draw).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn seen(sampling: &Sampling) -> Vec<u32> {
    seen_after(sampling, &[])
}

fn greedy_after(sampling: Sampling, sequence: &[u32]) -> u32 {
    let mut sampler = sampler(&Sampling { temperature: 0.0, ..sampling });
    sampler.begin(sequence);
    sampler.next(&LOGITS, 5).unwrap()
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(greedy_after(Sampling::default(), &[]), 1);
    assert_eq!(argmax(&LOGITS), 1);
}

#[test]
fn draws_depend_on_seed_and_position_only_and_follow_the_shares() {
    let counts = |sampling: &Sampling| {
        let (mut counts, mut sampler) = ([0u32; 4], sampler(sampling));
        for position in 0..20_000 {
            counts[sampler.next(&LOGITS, position).unwrap() as usize] += 1;
        }
        counts
    };
    let sampling = Sampling { seed: 7, ..Sampling::default() };
    assert_eq!(counts(&sampling), counts(&sampling));
    assert_ne!(counts(&sampling), counts(&Sampling { seed: 8, ..sampling.clone() }));
    // exp(-2), 1, 1, exp(-1) over their sum 2.503: 5.4 %, 39.95 %, 39.95 %, 14.7 %.
    for (count, share) in counts(&sampling).iter().zip([0.054, 0.3995, 0.3995, 0.147]) {
        assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.015, "{count} of 20000, {share} expected");
    }
}

#[test]
fn the_draw_is_part_of_the_contract() {
    let draws =
        [(0, 0), (0, 1), (7, 0), (u64::MAX, u32::MAX)].map(|(seed, position)| uniform(seed, position));
    assert_eq!(draws.map(|u| u * 16_777_216.0), [4_727_170.0, 235_435.0, 7_648_683.0, 2_751_622.0]);
}

#[test]
fn cuts_leave_what_they_say() {
    let all = Sampling::default();
    assert_eq!(seen(&all), [0, 1, 2, 3]);
    assert_eq!(seen(&Sampling { top_k: 1, ..all.clone() }), [1]);
    assert_eq!(seen(&Sampling { top_k: 9, ..all.clone() }), [0, 1, 2, 3]);
    assert_eq!(seen(&Sampling { top_p: 0.39, ..all.clone() }), [1]);
    assert_eq!(seen(&Sampling { top_p: 0.41, ..all.clone() }), [1, 2]);
    assert_eq!(seen(&Sampling { min_p: 0.2, ..all }), [1, 2, 3]);
}

#[test]
fn bias_and_penalties_move_the_likeliest() {
    let none = Sampling::default;
    let biased = |id, bias| Sampling { logit_bias: [(id, bias)].into(), ..none() };
    assert_eq!(greedy_after(biased(0, 2.5), &[]), 0);
    assert_eq!(greedy_after(biased(0, 2.0), &[]), 0, "1 + 2 equals 3, and 0 is lower");
    assert_eq!(greedy_after(biased(1, -100.0), &[]), 2);
    // -100 is a number and no ban: where nothing else is near, such an id still comes.
    let others = [(0, -100.0), (1, -100.0), (2, -100.0), (3, -100.0)];
    assert_eq!(greedy_after(Sampling { logit_bias: others.into(), ..none() }, &[]), 1);

    assert_eq!(greedy_after(Sampling { repetition_penalty: 2.0, ..none() }, &[1]), 2);
    assert_eq!(greedy_after(Sampling { repetition_penalty: 2.0, ..none() }, &[1, 2]), 3);
    assert_eq!(greedy_after(Sampling { presence_penalty: 0.5, ..none() }, &[1, 1, 1]), 2);
    assert_eq!(greedy_after(Sampling { frequency_penalty: 0.5, ..none() }, &[1, 2, 2, 1, 2]), 1);
    // 3 - 0.75 * 2 = 1.5 for both, below the 2 of id 3.
    assert_eq!(greedy_after(Sampling { frequency_penalty: 0.75, ..none() }, &[1, 2, 2, 1]), 3);
}

/// What is taken counts from the next token on, and a new beginning forgets it.
#[test]
fn penalties_count_prompt_and_answer() {
    let sampling = Sampling { presence_penalty: 2.0, ..Sampling::greedy() };
    let mut sampler = sampler(&sampling);
    for _ in 0..2 {
        sampler.begin(&[2]);
        let ids: Vec<u32> = (1..6).map(|position| sampler.next(&LOGITS, position).unwrap()).collect();
        // 2 stands at 1 from the start; 1 comes to stand there, 3 at 0, 0 at -1, and ids that came go no lower.
        assert_eq!(ids, [1, 3, 0, 1, 1]);
    }
}

/// Each pair of neighbouring rules, where the other order would leave other ids.
#[test]
fn the_rules_work_in_their_order() {
    let all = Sampling::default();
    // Bias before penalty: (1 + 4) / 2 is below 3, 1 / 2 + 4 would be above.
    let both = Sampling { logit_bias: [(0, 4.0)].into(), repetition_penalty: 2.0, ..Sampling::greedy() };
    assert_eq!(greedy_after(both, &[0]), 1);
    // Penalty before temperature: the gap of 2 that the penalty makes is divided by 100, so that min-p keeps all.
    let soft = Sampling { presence_penalty: 2.0, temperature: 100.0, min_p: 0.95, ..all.clone() };
    assert_eq!(seen_after(&soft, &[3]), [0, 1, 2, 3]);
    let hard = Sampling { temperature: 0.5, ..soft };
    assert_eq!(seen_after(&hard, &[3]), [1, 2]);
    // Penalty before top-k: the one that stays is not the one with the penalty.
    assert_eq!(seen_after(&Sampling { presence_penalty: 0.5, top_k: 1, ..all.clone() }, &[1]), [2]);
    // Temperature before top-p: at 0.1 the two likeliest have nearly all.
    let cold = Sampling { temperature: 0.1, top_p: 0.99, ..all.clone() };
    assert_eq!((seen(&cold), seen(&Sampling { temperature: 1.0, ..cold })), (vec![1, 2], vec![0, 1, 2, 3]));
    // top-k before top-p: 0.45 of the two that are left is one, of all four it would be two.
    assert_eq!(seen(&Sampling { top_k: 2, top_p: 0.45, ..all.clone() }), [1]);
    assert_eq!(seen(&Sampling { top_p: 0.45, ..all.clone() }), [1, 2]);
    // top-p and min-p look at the same shares: 0.81 of all is three ids, of those that min-p leaves it would be two.
    assert_eq!(seen(&Sampling { top_p: 0.81, min_p: 0.2, ..all }), [1, 2, 3]);
}

/// Allows the ids of each step in turn.
struct Script {
    steps: Vec<&'static [u32]>,
    taken: std::sync::Arc<std::sync::Mutex<Vec<u32>>>,
}

impl TokenMask for Script {
    fn restrict(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
        assert_eq!(*allowed, TokenSet::full(4), "every draw begins with all ids");
        let ids = self.steps.get(self.taken.lock().unwrap().len()).ok_or("the script is over")?;
        allowed.clear();
        ids.iter().for_each(|id| allowed.insert(*id));
        Ok(())
    }

    fn took(&mut self, id: u32) -> Result<(), String> {
        self.taken.lock().unwrap().push(id);
        Ok(())
    }
}

#[test]
fn a_mask_decides_what_may_come_and_hears_what_came() {
    for temperature in [0.0, 1.0] {
        let taken = std::sync::Arc::default();
        let steps: Vec<&[u32]> = vec![&[0], &[0, 3], &[0, 1, 2, 3], &[]];
        let mask = Script { steps, taken: std::sync::Arc::clone(&taken) };
        let sampling =
            Sampling { temperature, top_k: 1, logit_bias: [(0, -100.0)].into(), ..Sampling::default() };
        let mut sampler = sampler(&sampling).masked(Box::new(mask));
        let mut next = |position| sampler.next(&LOGITS, position);
        assert_eq!([next(7), next(8), next(9)], [Ok(0), Ok(3), Ok(1)]);
        let error = next(10).unwrap_err();
        assert_eq!(error, SamplingError::NoneAllowed { position: 10 });
        assert_eq!(error.to_string(), "after 10 tokens the constraint on the answer allows no token at all");
        assert_eq!(*taken.lock().unwrap(), [0, 3, 1]);
        taken.lock().unwrap().push(0);
        let error = next(11).unwrap_err().to_string();
        assert_eq!(error, "the constraint on the answer failed after 11 tokens: the script is over");
    }
}

/// What is masked has no share and no rank, also where rounding would leave the last one.
#[test]
fn a_mask_comes_before_the_cuts() {
    struct Only;
    impl TokenMask for Only {
        fn restrict(&mut self, allowed: &mut TokenSet) -> Result<(), String> {
            allowed.remove(1);
            allowed.remove(2);
            Ok(())
        }
        fn took(&mut self, _: u32) -> Result<(), String> {
            Ok(())
        }
    }
    for (top_p, expected) in [(1.0, vec![0, 3]), (0.7, vec![3])] {
        let mut sampler = sampler(&Sampling { top_p, ..Sampling::default() }).masked(Box::new(Only));
        let mut ids: Vec<u32> = (0..200).map(|position| sampler.next(&LOGITS, position).unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids, expected);
    }
}

#[test]
fn logprobs_are_the_models_own() {
    // ln of 5.4 %, 39.95 %, 39.95 % and 14.7 %.
    let expected = [-2.917_576, -0.917_576, -0.917_576, -1.917_576];
    let close = |found: f32, id: u32| (found - expected[id as usize]).abs() < 1e-5;
    let odd = Sampling {
        temperature: 0.3,
        top_k: 1,
        logit_bias: [(3, 5.0), (0, -50.0)].into(),
        presence_penalty: 1.5,
        ..Sampling::default()
    };
    for sampling in [Sampling::default(), Sampling::greedy(), odd] {
        for count in [0, 1, 3, 20] {
            let mut sampler = sampler(&Sampling { logprobs: Some(count), ..sampling.clone() });
            assert_eq!(sampler.logprobs(), None);
            sampler.begin(&[1, 2]);
            let id = sampler.next(&LOGITS, 2).unwrap();
            let Logprobs { taken, top } = sampler.logprobs().unwrap();
            assert!(close(*taken, id), "{taken} for {id}");
            let ids: Vec<u32> = top.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, [1, 2, 3, 0][..4.min(count as usize)]);
            assert!(top.iter().all(|(id, logprob)| close(*logprob, *id)), "{top:?}");
        }
    }
    // Pinned bits: they are the same on every platform.
    let mut sampler = sampler(&Sampling { logprobs: Some(0), ..Sampling::greedy() });
    sampler.next(&LOGITS, 0).unwrap();
    assert_eq!(sampler.logprobs().unwrap().taken.to_bits(), PINNED);
}

/// Of -log(exp(-2) + 1 + 1 + exp(-1)) by the contract's functions.
const PINNED: u32 = 0xbf6a_e640;

#[test]
fn rows_that_are_none_are_refused() {
    for sampling in [Sampling::greedy(), Sampling::default()] {
        let mut sampler = sampler(&sampling);
        for (value, words) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let error = sampler.next(&[1.0, 2.0, value, value], 9).unwrap_err().to_string();
            assert!(error.contains(&format!("the logit of id 2 after 9 tokens is {words}")), "{error}");
        }
        let error = sampler.next(&LOGITS[..3], 0).unwrap_err().to_string();
        assert!(error.contains("3 logits, 4 expected"), "{error}");
        assert!(sampler.next(&[f32::MAX, f32::MIN, 0.0, -0.0], 0).is_ok());
    }
}

#[test]
fn settings_outside_their_range_are_refused_by_name() {
    let all = Sampling::default;
    for (sampling, words) in [
        (Sampling { temperature: -0.1, ..all() }, "temperature is -0.1"),
        (Sampling { temperature: f32::INFINITY, ..all() }, "temperature is inf"),
        (Sampling { top_p: 0.0, ..all() }, "top_p is 0"),
        (Sampling { top_p: f32::NAN, ..all() }, "top_p is NaN"),
        (Sampling { min_p: 1.5, ..all() }, "min_p is 1.5"),
        (
            Sampling { repetition_penalty: 0.0, ..all() },
            "repetition_penalty is 0; expected a number from 0.01 to 100",
        ),
        (
            Sampling { presence_penalty: 2.5, ..all() },
            "presence_penalty is 2.5; expected a number from -2 to 2",
        ),
        (Sampling { frequency_penalty: -2.5, ..all() }, "frequency_penalty is -2.5"),
        (
            Sampling { logit_bias: [(1, 100.5)].into(), ..all() },
            "logit_bias is 100.5; expected a number from -100 to 100",
        ),
        (Sampling { logit_bias: [(1, f32::NAN)].into(), ..all() }, "logit_bias is NaN"),
        (
            Sampling { logit_bias: [(4, 1.0)].into(), ..all() },
            "logit_bias names id 4; ids of this model are below 4",
        ),
        (Sampling { logprobs: Some(21), ..all() }, "logprobs is 21; expected at most 20"),
    ] {
        let error = Sampler::new(sampling, 4).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
