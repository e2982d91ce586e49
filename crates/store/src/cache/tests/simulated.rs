//! What the simulation counts against what the cache counts, whatever the readers do.

use super::*;
use crate::cache::policy::Order;
use crate::cache::simulate::{Known, Outcome, Requests, forecast, optimum, simulate, simulate_parts};
use crate::routing::{LayerPicks, RoutingHead, RoutingStep, RoutingTrace};
use proptest::collection::vec;
use proptest::prelude::*;

fn trace(steps: &[Vec<Vec<u16>>]) -> RoutingTrace {
    let head = RoutingHead {
        identity: [1; 32],
        first_layer: 1,
        layers: 2,
        experts_per_layer: EXPERTS,
        ranks: 1,
        expert_bytes: PAYLOAD_BYTES,
    };
    let layer =
        |(number, picks): (usize, &Vec<u16>)| LayerPicks { layer: number as u16 + 1, picks: picks.clone() };
    let step = |layers: &Vec<Vec<u16>>| -> RoutingStep { layers.iter().enumerate().map(layer).collect() };
    RoutingTrace { head, steps: steps.iter().map(step).collect(), cut: 0 }
}

/// Asks for the experts of a step of every layer as a model does.
fn run(cache: &mut ExpertCache, trace: &RoutingTrace) {
    let mut last = 0;
    for layer in trace.steps.iter().flatten() {
        cache.retire(last);
        let ids: Vec<_> = layer.picks.iter().map(|expert| id(layer.layer, *expert)).collect();
        let mut request = cache.request(&ids);
        loop {
            match cache.next(&mut request, None) {
                Next::Arrived(arrivals) => {
                    last += 1;
                    for arrival in arrivals {
                        cache.release(arrival.result.unwrap(), last);
                    }
                }
                Next::NeedsSlots => cache.retire(last),
                Next::Finished => break,
                Next::TimedOut => panic!("there was no deadline"),
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Vec<Vec<u16>>>> {
    // Some experts are picked more often than others.
    let expert = prop_oneof![0..2_u16, 0..EXPERTS];
    vec(vec(vec(expert, 1..7), 1..3), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_simulation_counts_what_the_cache_counts(
        kind in 0..CachePolicy::ALL.len(),
        half_life in 1..50_u32,
        slots in 1..13_u32,
        readers in prop_oneof![Just(1_u32), Just(8)],
        shares in prop_oneof![Just(vec![]), vec(0.0..1.0_f64, 12)],
        pinned in any::<bool>(),
        steps in steps(),
    ) {
        let mut policy = CachePolicy::ALL[kind];
        match &mut policy.order {
            Order::Lru => {}
            Order::Lfu { half_life: named } | Order::Hybrid { half_life: named } => *named = half_life,
        }
        let trace = trace(&steps);
        let (cache, _) = cache(faulty().with_delays(Duration::from_micros(20)), slots, readers);
        let mut cache = cache.with_policy(policy);
        cache.expect(&shares);
        if pinned {
            cache.keep(&simulate::most_used(&shares).iter().map(|e| cache.catalog.id(*e)).collect::<Vec<_>>());
        }
        run(&mut cache, &trace);
        let CacheStatistics { hits, misses, bytes_read, evictions, .. } = cache.statistics();
        let known = Known { shares: &shares, pinned };
        let requests = Requests::of(&trace);
        let simulated = simulate(policy, slots, &requests, known);
        prop_assert_eq!(simulated, Outcome { hits, misses, bytes_read, evictions });
        // Nothing is better than the optimum, and it reads every expert once at least.
        let best = optimum(slots, &requests);
        prop_assert!(best.misses <= simulated.misses);
        let named = requests.shares().iter().filter(|share| **share > 0.0).count() as u64;
        prop_assert!(best.misses >= named && (slots < 12 || best.misses == named));
    }
}

/// Four experts in a circle and three slots: LRU always throws out the one that is wanted next.
#[test]
fn the_optimum_knows_what_lru_does_not() {
    let steps: Vec<Vec<Vec<u16>>> = (0..40_u16).map(|step| vec![vec![step % 4]]).collect();
    let requests = Requests::of(&trace(&steps));
    let lru = simulate("lru".parse().unwrap(), 3, &requests, Known::default());
    assert_eq!((lru.hits, lru.misses, lru.evictions), (0, 40, 37));
    // Of three requests from the fourth on it serves two from its slots.
    assert_eq!(optimum(3, &requests).misses, 3 + 37_u64.div_ceil(3));
    let known = Known { shares: &requests.shares(), pinned: true };
    let pinned = simulate("lru".parse().unwrap(), 3, &requests, known);
    assert_eq!(pinned.hits, 9, "one of four experts stays");
}

#[test]
fn a_forecast_repeats_what_it_knows() {
    let requests = Requests::of(&trace(&[vec![vec![0], vec![0]], vec![vec![1], vec![0]]]));
    let lru = "lru".parse().unwrap();
    assert_eq!(forecast(lru, 12, &requests, 0), None);
    assert_eq!(forecast(lru, 12, &requests, 2), Some(0.25));
    assert_eq!(forecast(lru, 12, &requests, 4), Some(5.0 / 8.0));
    let none = Requests::of(&trace(&[]));
    assert_eq!(forecast(lru, 12, &none, 4), None);
}

/// Two rows of a prompt, then tokens: what the prompt has brought the first token finds.
#[test]
fn prompts_and_tokens_are_counted_apart() {
    let steps = [vec![vec![0, 1], vec![2, 2]], vec![vec![1], vec![3]], vec![vec![1], vec![2]]];
    let parts = simulate_parts("lru".parse().unwrap(), 12, &Requests::of(&trace(&steps)));
    let outcome = |hits, misses| Outcome { hits, misses, bytes_read: misses * PAYLOAD_BYTES, evictions: 0 };
    assert_eq!((parts.chunks.requests, parts.chunks.outcome), (2, outcome(0, 3)));
    assert_eq!((parts.tokens.requests, parts.tokens.outcome), (4, outcome(3, 1)));
    let all = simulate("lru".parse().unwrap(), 12, &Requests::of(&trace(&steps)), Known::default());
    assert_eq!(all, outcome(3, 4));
}
