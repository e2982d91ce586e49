//! The router: the picks without sorting all experts.

#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a function that enables the instructions is compiled for them"
)]

use crate::device::Machine;
use crate::elementwise::IsFinite;
use crate::level::Level;
use crate::math::sigmoid;
use crate::memory::{Cut, View, ViewMut};
use crate::simd::lanes::{Block, Kernel, LANES, Simd, load};
use ops::{NONE, Routing};

pub(crate) fn route(
    machine: &mut Machine,
    picks: ViewMut<'_, u32>,
    weights: ViewMut<'_, f32>,
    logits: View<'_, f32>,
    bias: Option<View<'_, f32>>,
    routing: Routing,
) {
    let (tokens, ranks, level) = (logits.rows(), picks.cols(), machine.level);
    let blocks = logits.cols().div_ceil(LANES);
    // Scores, choices and each block's largest choice, for every token.
    let room = 2 * blocks + blocks.div_ceil(LANES);
    let scratch = machine.scratch.blocks(tokens * room);
    let rows = Cut::Blocks(1, ranks.max(1));
    let parts = (
        (picks.cut(rows), weights.cut(rows)),
        ViewMut::from_slice(scratch, tokens, room).cut(Cut::Blocks(1, room)),
    );
    let cost = (tokens * (logits.cols() * 24 + ranks * 64)) as u64;
    machine.pool.each(cost, parts, |t, ((mut picks, mut weights), mut room)| {
        let (scores, rest) = room.row(0).split_at_mut(blocks);
        let (choices, largest) = rest.split_at_mut(blocks);
        let mut row =
            Row { logits: logits.row(t), bias: bias.map(|bias| bias.row(0)), scores, choices, largest };
        let (picks, weights) = (picks.row(0), weights.row(0));
        if row.choose(level, picks) {
            weigh(row.scores.as_flattened(), picks, weights, level, routing);
        } else {
            picks.fill(NONE);
            weights.fill(f32::NAN);
        }
    });
}

/// One token.
struct Row<'a> {
    logits: &'a [f32],
    bias: Option<&'a [f32]>,
    scores: &'a mut [Block],
    /// Scores plus bias; minus infinity where there is no expert or where it is taken.
    choices: &'a mut [Block],
    /// Number i is the largest of block i of the choices.
    largest: &'a mut [Block],
}

impl Row<'_> {
    /// Picks the largest choices, largest first, of equals the lower id; false if a number is not finite.
    fn choose(&mut self, level: Level, picks: &mut [u32]) -> bool {
        let experts = self.logits.len();
        level.run(Scores { row: self });
        if !level.run(IsFinite(self.logits)) || !level.run(IsFinite(&self.choices.as_flattened()[..experts]))
        {
            return false;
        }
        for pick in picks {
            *pick = level.run(TakeLargest { choices: self.choices, largest: self.largest }) as u32;
        }
        true
    }
}

/// Scores and choices of all experts.
struct Scores<'a, 'b> {
    row: &'a mut Row<'b>,
}

impl Kernel for Scores<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Row { logits, bias, scores, choices, largest } = self.row;
        let largest = largest.as_flattened_mut();
        largest.fill(f32::NEG_INFINITY);
        for (b, logits) in logits.chunks(LANES).enumerate() {
            let score = sigmoid(s, load(s, logits));
            s.store(score, &mut scores[b]);
            let bias = bias.map(|bias| load(s, &bias[b * LANES..][..logits.len()]));
            s.store(if let Some(bias) = bias { s.add(score, bias) } else { score }, &mut choices[b]);
            choices[b][logits.len()..].fill(f32::NEG_INFINITY);
            largest[b] = s.largest(s.load(&choices[b]));
        }
    }
}

/// Finds the largest choice, the first of equals, and takes it out.
struct TakeLargest<'a> {
    choices: &'a mut [Block],
    largest: &'a mut [Block],
}

impl Kernel for TakeLargest<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let mut tops = s.splat(f32::NEG_INFINITY);
        for largest in &*self.largest {
            tops = s.max_or(s.load(largest), tops);
        }
        let top = s.splat(s.largest(tops));
        let block = first_not_less(s, self.largest, top);
        let choices = &mut self.choices[block];
        let place = first_not_less(s, std::slice::from_ref(choices), top);
        choices[place] = f32::NEG_INFINITY;
        self.largest.as_flattened_mut()[block] = s.largest(s.load(choices));
        block * LANES + place
    }
}

/// The place of the first number that is not less than `top`; there is one.
#[inline(always)]
fn first_not_less<S: Simd>(s: S, numbers: &[Block], top: S::Floats) -> usize {
    for (b, block) in numbers.iter().enumerate() {
        let less = s.mask_bits(s.less(s.load(block), top));
        if less != 0xffff {
            return b * LANES + less.trailing_ones() as usize;
        }
    }
    0
}

/// The weights of the picks, and what is dropped of them.
fn weigh(scores: &[f32], picks: &mut [u32], weights: &mut [f32], level: Level, routing: Routing) {
    for (weight, pick) in weights.iter_mut().zip(&*picks) {
        *weight = scores[*pick as usize];
    }
    if routing.renormalize {
        let total = level.run(Sum(weights)) + 1e-20;
        for weight in &mut *weights {
            *weight /= total;
        }
    }
    for weight in &mut *weights {
        *weight *= routing.scale;
    }
    if routing.keep < 1.0 {
        drop_tail(picks, weights, routing.keep * level.run(Sum(weights)));
    }
}

/// Goes through the ranks by falling weight, equals by the lower rank, and drops those that are met when `enough` is held.
fn drop_tail(picks: &mut [u32], weights: &mut [f32], enough: f32) {
    let mut held = 0.0;
    let mut last: Option<(f32, usize)> = None;
    for _ in 0..weights.len() {
        let follows =
            |weight: f32, rank: usize| last.is_none_or(|(w, r)| weight < w || (weight == w && rank > r));
        let mut next: Option<(f32, usize)> = None;
        for (rank, &weight) in weights.iter().enumerate() {
            if follows(weight, rank) && next.is_none_or(|(heaviest, _)| weight > heaviest) {
                next = Some((weight, rank));
            }
        }
        let Some((weight, _)) = next else { return };
        if last.is_none() {
            held = weight;
        } else if held >= enough {
            break;
        } else {
            held += weight;
        }
        last = next;
    }
    let Some((weight, rank)) = last else { return };
    for r in 0..weights.len() {
        if weights[r] < weight || (weights[r] == weight && r > rank) {
            picks[r] = NONE;
            weights[r] = 0.0;
        }
    }
}

/// The contract's sum.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sum = s.splat(0.0);
        for block in self.0.chunks(LANES) {
            sum = s.add(sum, load(s, block));
        }
        s.fold(sum)
    }
}
