//! The choice of a token by the words of docs/numerics.md, section 5: everything is sorted and nothing is clever. The
//! sampler must equal it to the bit.
use engine::Sampling;
use ops::{lanes, math};

/// The id that follows `sequence`, where only some ids may be `allowed`.
pub(crate) fn next(
    sampling: &Sampling,
    logits: &[f32],
    sequence: &[u32],
    allowed: &dyn Fn(u32) -> bool,
) -> u32 {
    let mut logits = logits.to_vec();
    for (id, bias) in &sampling.logit_bias {
        logits[*id as usize] += bias;
    }
    for (id, logit) in (0..).zip(&mut logits) {
        let count = sequence.iter().filter(|i| **i == id).count();
        if count > 0 {
            *logit = penalised(sampling, *logit, count as f32);
        }
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| allowed(*id)).collect();
    let logit = |id: u32| logits[id as usize];
    if sampling.temperature == 0.0 {
        return ids.into_iter().reduce(|best, id| if logit(id) > logit(best) { id } else { best }).unwrap();
    }
    ids.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k as usize);
    }
    let share = |id: &u32| math::exp((logit(*id) - logit(ids[0])) / sampling.temperature);
    let mut shares: Vec<f32> = ids.iter().map(share).collect();
    shares.truncate(kept(sampling, &shares));
    let aim = uniform(sampling.seed, sequence.len() as u64) * lanes::sum(&shares);
    let mut reached = 0.0;
    for (share, id) in shares.iter().zip(&ids) {
        reached += share;
        if reached > aim {
            return *id;
        }
    }
    ids[shares.len() - 1]
}

fn penalised(sampling: &Sampling, logit: f32, count: f32) -> f32 {
    let repetition = sampling.repetition_penalty;
    let logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
    let logit = (logit - sampling.frequency_penalty * count) - sampling.presence_penalty;
    logit.clamp(f32::MIN, f32::MAX)
}

fn kept(sampling: &Sampling, shares: &[f32]) -> usize {
    let mut kept = shares.len();
    if sampling.top_p < 1.0 {
        let aim = sampling.top_p * lanes::sum(shares);
        let mut reached = 0.0;
        let enough = shares.iter().position(|share| {
            reached += share;
            reached >= aim
        });
        kept = enough.map_or(kept, |last| last + 1);
    }
    let least = sampling.min_p * shares[0];
    let likely = shares.iter().take_while(|share| **share >= least).count();
    kept.min(likely).max(1)
}

fn uniform(seed: u64, position: u64) -> f32 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let z = mix(mix(seed.wrapping_add(GOLDEN)) ^ position.wrapping_mul(GOLDEN)) >> 40;
    z as f32 / 16_777_216.0
}
