//! Cases of `append_latent` and `attend_latent`: positions around blocks, tables in any order, lists of positions.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::op::Op;
use crate::tensor::{Ids, LATENT_BLOCK, LatentCache, NONE};

/// Where a chunk of tokens starts, and its length.
const CHUNKS: [(u32, u32); 12] = [
    (0, 1),
    (0, 5),
    (15, 1),
    (63, 1),
    (63, 2),
    (64, 1),
    (65, 3),
    (100, 1),
    (126, 5),
    (129, 1),
    (60, 70),
    (300, 2),
];

/// Widths and heads of one layer.
#[derive(Clone, Copy)]
struct Shape {
    latent: u32,
    rope: u32,
    heads: u32,
}

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let shape = |latent, rope, heads| Shape { latent, rope, heads };
    let mut shapes = vec![shape(8, 0, 1), shape(16, 4, 2), shape(33, 7, 3)];
    if size != Size::Small {
        shapes.extend([shape(64, 0, 8), shape(512, 64, 2), shape(512, 0, 3), shape(128, 32, 16)]);
    }
    let chunks = if size == Size::Small { &CHUNKS[..7] } else { &CHUNKS };
    let mut list = Vec::new();
    for shape in shapes {
        for &(position, tokens) in chunks {
            for listed in [false, true] {
                let Shape { latent, rope, heads } = shape;
                let name = format!(
                    "attend_latent {latent} + {rope}, {heads} heads, {tokens} tokens at {position}{}",
                    if listed { ", listed" } else { "" }
                );
                list.push(Recipe::new(name, move |case| attend(case, shape, (position, tokens), listed)));
            }
        }
    }
    list
}

fn attend(case: &mut Case, shape: Shape, (position, tokens): (u32, u32), listed: bool) {
    let Shape { latent, rope, heads } = shape;
    let cache = cache(case, shape, position, tokens);
    let appended = case.view(tokens, latent, Values::Unit);
    let appended_rope = (rope > 0).then(|| case.view(tokens, rope, Values::Unit));
    case.push(Op::AppendLatent { latent: appended, rope: appended_rope, cache, position });
    let q = case.either(position % 2 == 0, tokens * heads, latent, Values::Scaled(2.0));
    let q_rope = (rope > 0).then(|| case.view(tokens * heads, rope, Values::Scaled(2.0)));
    let selected = listed.then(|| lists(case, position, tokens));
    let out =
        if listed { case.output_view(tokens * heads, latent) } else { case.output(tokens * heads, latent) };
    let scale = 1.0 / (latent as f32).sqrt();
    case.push(Op::AttendLatent { out, q, q_rope, cache, position, selected, heads, scale });
}

/// A cache with rows before `position`, its blocks in random order among others. What no token may see is NaN: the rest
/// of the pool, and the rope part of nothing.
fn cache(case: &mut Case, shape: Shape, position: u32, tokens: u32) -> LatentCache {
    let blocks = (position + tokens).div_ceil(LATENT_BLOCK);
    let mut table = case.random.permutation(blocks + 2);
    table.truncate(blocks as usize);
    let pool = case.room((blocks + 2) * LATENT_BLOCK, shape.latent + shape.rope);
    for p in 0..position {
        let row = table[(p / LATENT_BLOCK) as usize] * LATENT_BLOCK + p % LATENT_BLOCK;
        case.fill(pool.rows_at(row, 1), Values::Unit);
    }
    table.push(NONE);
    let table = case.ids(1, blocks + 1, &table);
    LatentCache { pool, table, latent: shape.latent }
}

/// Ascending positions for every token, at least one that it may see, some that it may not, padded with NONE.
fn lists(case: &mut Case, position: u32, tokens: u32) -> Ids {
    let length = 48;
    let mut ids = Vec::new();
    for token in 0..tokens {
        let own = position + token;
        let mut list = case.random.permutation(own + 3);
        list.truncate(length - 2);
        list.push(case.random.below(own + 1));
        list.sort_unstable();
        list.dedup();
        list.resize(length, NONE);
        ids.extend(list);
    }
    case.ids(tokens, length as u32, &ids)
}
