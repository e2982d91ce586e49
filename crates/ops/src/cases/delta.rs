//! Cases of `short_conv`, `decay_gate` and `delta_rule`: states that move on over several submissions' worth of tokens.
use super::Size;
use super::case::{Case, Recipe, Values};
use crate::op::{DecayFormula, Op};

/// How the tokens of a sequence come in.
const CHUNKS: [&[u32]; 4] = [&[5], &[1, 1, 3], &[2, 7, 1], &[1, 17]];

pub(super) fn recipes(size: Size) -> Vec<Recipe> {
    let limit = if size == Size::Small { 40 } else { u32::MAX };
    let mut list = Vec::new();
    for channels in [1, 3, 16, 33, 96, 1000, 12288].into_iter().filter(|channels| *channels <= limit) {
        for taps in [2, 3, 4, 5] {
            let name = format!("short_conv of {channels} channels with {taps} taps");
            list.push(Recipe::new(name, move |case| short_convs(case, channels, taps)));
        }
    }
    for (heads, width) in [(1, 1), (3, 16), (2, 33), (96, 128)].into_iter().filter(|(h, w)| h * w <= limit) {
        list.push(Recipe::new(format!("decay_gate of {heads} heads of {width}"), move |case| {
            decay_gates(case, heads, width);
        }));
    }
    list.push(Recipe::new("decay_gate with extreme decays".to_owned(), extreme_decays));
    let mut shapes = vec![(1, 1, 1), (2, 4, 4), (3, 16, 16), (2, 17, 15), (1, 32, 48), (4, 33, 7)];
    if size != Size::Small {
        shapes.extend([(2, 128, 128), (5, 64, 128), (96, 128, 128)]);
    }
    for (heads, keys, values) in shapes {
        let name = format!("delta_rule of {heads} heads of {keys} x {values}");
        list.push(Recipe::new(name, move |case| delta_rules(case, heads, keys, values)));
    }
    list
}

fn short_convs(case: &mut Case, channels: u32, width: u32) {
    let taps = case.input(channels, width, Values::Unit);
    for chunks in CHUNKS {
        let window = case.input(channels, width - 1, Values::Unit);
        for (i, &tokens) in chunks.iter().enumerate() {
            let x = case.either(i % 2 == 0, tokens, channels, Values::Scaled(3.0));
            let out = if i == 1 { case.output_view(tokens, channels) } else { case.output(tokens, channels) };
            case.push(Op::ShortConv { out, x, window, taps });
        }
    }
}

fn decay_gates(case: &mut Case, heads: u32, width: u32) {
    let a_log = case.input(1, heads, Values::Unit);
    let dt_bias = case.input(heads, width, Values::Unit);
    for formula in [DecayFormula::LowerBound(-5.0), DecayFormula::Softplus] {
        for tokens in [1, 2, 5] {
            let f = case.either(tokens == 1, tokens * heads, width, Values::Scaled(6.0));
            let out = case.output(tokens * heads, width);
            case.push(Op::DecayGate { out, f, a_log, dt_bias, formula });
        }
    }
}

/// Decays down to 0 and up to 1. A small one has the error of its logarithm times the logarithm's size, which no
/// tolerance of other devices covers.
fn extreme_decays(case: &mut Case) {
    case.has_subnormals();
    let (a_log, dt_bias) = (case.input(1, 3, Values::Scaled(3.0)), case.input(3, 40, Values::Unit));
    for formula in [DecayFormula::LowerBound(-5.0), DecayFormula::LowerBound(-60.0), DecayFormula::Softplus] {
        for size in [30.0, 1e4, 1e-30] {
            let (f, out) = (case.input(6, 40, Values::Scaled(size)), case.output(6, 40));
            case.push(Op::DecayGate { out, f, a_log, dt_bias, formula });
        }
    }
}

fn delta_rules(case: &mut Case, heads: u32, keys: u32, values: u32) {
    // The largest shape is a real layer's: one pass over its state is enough.
    let runs = if heads * keys * values > 1_000_000 { &[&[1, 2][..]] } else { &CHUNKS[..] };
    for chunks in runs {
        let state = case.input(heads * keys, values, Values::Unit);
        for (i, &tokens) in chunks.iter().enumerate() {
            let (rows, plain) = (tokens * heads, i % 2 == 0);
            // Keys and queries come out of norms: their length is about 1.
            let unit = Values::Scaled((3.0 / keys as f32).sqrt());
            let [q, k] = [(); 2].map(|()| case.either(plain, rows, keys, unit));
            let v = case.either(plain, rows, values, Values::Unit);
            let decay = case.input(rows, keys, Values::Positive);
            case.put(decay, 0, 0, 1.0);
            case.put(decay, rows - 1, keys - 1, 0.0);
            let beta = case.either(plain, tokens, heads, Values::Scaled(4.0));
            let out = case.output(rows, values);
            case.push(Op::DeltaRule { out, q, k, v, decay, beta, state });
        }
    }
}
