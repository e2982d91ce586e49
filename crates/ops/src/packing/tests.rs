//! Hand values, bounds and properties of the packings, against computations that share no code with them.

use super::*;
use crate::tensor::Activations;
use proptest::prelude::*;

/// Numbers that look like weights: sums of four uniform ones, scattered by a fixed generator.
fn bell(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..n).map(|_| (uniform() + uniform() + uniform() + uniform()) * 0.05).collect()
}

fn packed(packing: Packing, weights: &[f32], cols: usize) -> (Vec<u8>, Vec<u8>) {
    encode(packing, weights, cols as u32).expect("finite weights of usual size")
}

fn decoded(packing: Packing, row: &[f32]) -> WeightRow {
    let (codes, scales) = packed(packing, row, row.len());
    WeightRow::decode(packing, row.len(), &codes, &scales)
}

fn relative_rms(packing: Packing, weights: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let errors = decoded(packing, weights).values().into_iter().zip(weights).map(|(a, b)| square(a - b));
    (errors.sum::<f64>() / weights.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// Weights over a wide range of exponents, zeros among them.
fn weights(cols: usize) -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![1 => Just(0.0_f32), 9 => -1.0_f32..1.0];
    (prop::collection::vec(weight, cols), -40_i32..7)
        .prop_map(|(values, e)| values.into_iter().map(|v| v * power_of_two(e)).collect())
}

#[test]
fn layouts_have_hand_counted_sizes() {
    let sizes = |packing| {
        let layout = layout(packing, 3, 96);
        (layout.bytes, layout.scales, layout.code_row_bytes, layout.scale_row_bytes)
    };
    assert_eq!(sizes(Packing::F32), (1152, 1152, 384, 0));
    assert_eq!(sizes(Packing::Bf16), (576, 576, 192, 0));
    assert_eq!(sizes(Packing::Int8), (297, 288, 96, 3));
    assert_eq!(sizes(Packing::Int4), (162, 144, 48, 6));
    assert_eq!(sizes(Packing::Mxfp4), (153, 144, 48, 3));
}

#[test]
#[should_panic(expected = "int4 needs columns in groups of 32, found 40 columns")]
fn columns_come_in_groups() {
    let _ = layout(Packing::Int4, 1, 40);
}

#[test]
fn no_group_leaves_the_exact_integers() {
    let group = |factor: i16| GROUP as i64 * i64::from(CODE_MAX) * i64::from(factor);
    assert!(group(activations::INT15_MAX) < 1 << 31 && group(127) < 1 << 24);
    let multipliers = (0..int4::MULTIPLIERS as u16).map(int4::multiplier);
    let int4 = multipliers.flat_map(|m| int4::NUMBERS.map(|number| i32::from(number) * m));
    let int8 = (0..=u8::MAX).map(|scale| i32::from(int8::NUMBER_MAX) * int8::multiplier(scale));
    for code in int4.chain(int8).chain(mxfp4::CODES.map(i32::from)) {
        assert!(code.abs() <= CODE_MAX, "{code}");
    }
    // MXFP4 sums are exact in f32 too.
    assert!(GROUP as i32 * 12 * i32::from(activations::INT15_MAX) < 1 << 24);
}

#[test]
fn int4_has_hand_multipliers() {
    assert!(int4::NUMBERS.is_sorted_by(|a, b| a < b));
    assert_eq!(int4::NUMBERS[8], 0);
    let multipliers: Vec<i32> = (0..16).map(int4::multiplier).collect();
    assert_eq!(multipliers, [8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30]);
    assert!((0..16).all(|field| int4::multiplier(field + 16) == -int4::multiplier(field)));
    assert_eq!(int4::multipliers(0xfc00 | (0b1_0001 << 5) | 0b0_1010), [20, -9]);
}

#[test]
fn the_largest_sum_is_exact_before_it_is_rounded() {
    let x = |q: [i16; 32]| Prepared::Integers(IntegerRow { q: q.to_vec(), k: vec![0], finite: vec![true] });
    let row = |code| WeightRow::Codes { codes: vec![code; 32], exponents: vec![0] };
    // 32 * 1016 * 16256 has 24 significant bits and is an f32.
    assert_eq!(f64::from(row(1016).dot(&x([16256; 32]))), 32.0 * 1016.0 * 16256.0);
    // 32 * 127 * 16256 + 127 * (1 - 16256): sums rounded on the way would end elsewhere.
    let mut q = [16256; 32];
    q[0] = 1;
    let exact: i32 = 31 * 127 * 16256 + 127;
    assert_eq!(row(127).dot(&x(q)), exact as f32);
    assert_ne!(f64::from(exact as f32), f64::from(exact));
}

#[test]
fn int8_stores_even_and_odd_columns_apart() {
    // 160 columns: a full block and a last one of a single group. Every weight is its own code times 2^-3.
    let row: Vec<f32> = (0..160).map(|c| (if c % 8 == 0 { 127 } else { c % 64 }) as f32 * 0.125).collect();
    let (codes, scales) = packed(Packing::Int8, &row, 160);
    assert_eq!(codes[..4], [127, 2, 4, 6]);
    assert_eq!(codes[64..68], [1, 3, 5, 7]);
    assert_eq!(codes[4 * 15..4 * 15 + 4], [127, 58, 60, 62]);
    assert_eq!(codes[128..132], [127, 2, 4, 6]);
    assert_eq!(codes[144..148], [1, 3, 5, 7]);
    // 2^-3 = 8 * 2^-6.
    assert_eq!(scales, [(26 << 3); 5]);
    assert_eq!(WeightRow::decode(Packing::Int8, 160, &codes, &scales).values(), row);
}

#[test]
fn int8_takes_the_smallest_unit_that_reaches() {
    let scale = |largest: f32| {
        let mut row = [0.0; 32];
        (row[3], row[9]) = (-largest, largest / 2.0);
        let (codes, scales) = packed(Packing::Int8, &row, 32);
        (codes[17].cast_signed(), int8::multiplier(scales[0]), int8::exponent(scales[0]))
    };
    assert_eq!(scale(127.0 * 2.0), (-127, 8, -2));
    assert_eq!(scale(127.0 * 2.0 + 0.1), (-113, 9, -2));
    assert_eq!(scale(127.0 * 11.0 / 32.0), (-127, 11, -5));
    assert_eq!(scale(127.0 * 15.0 / 32.0), (-127, 15, -5));
    assert_eq!(scale(127.0 * 15.5 / 32.0), (-123, 8, -4));
    assert_eq!(scale(int8::WEIGHT_MAX), (-127, 15, -1));
    assert_eq!(scale(2_f32.powi(-29)), (-1, 8, -32));
    assert_eq!(scale(f32::MIN_POSITIVE), (0, 8, -32));
}

#[test]
fn int4_takes_a_multiplier_for_each_parity() {
    let row: Vec<f32> =
        (0..32).map(|c| f32::from(int4::NUMBERS[c / 2]) * [20.0, -13.0][c % 2] * 0.0625).collect();
    let (codes, scales) = packed(Packing::Int4, &row, 32);
    assert_eq!(u16::from_le_bytes([scales[0], scales[1]]), 0b0_1010 | (0b1_0101 << 5) | (56 << 10));
    let nibble_pairs: Vec<u8> = (0..16).map(|nibble| nibble | (nibble << 4)).collect();
    assert_eq!(codes, nibble_pairs);
    assert_eq!(decoded(Packing::Int4, &row).values(), row);
}

#[test]
fn zeros_stay_zeros() {
    for packing in [Packing::Int8, Packing::Int4] {
        let row = decoded(packing, &[0.0; 128]);
        assert_eq!(row.values(), [0.0; 128]);
        assert_eq!(row.dot(&Prepared::new(&[1e30; 128], Activations::Int15)), 0.0);
    }
}

#[test]
fn the_error_on_bell_shaped_weights_is_what_the_choice_was_made_for() {
    let weights = bell(32_768, 7);
    let (int8, int4) = (relative_rms(Packing::Int8, &weights), relative_rms(Packing::Int4, &weights));
    assert!(int8 < 0.0064, "int8: {int8}");
    assert!(int4 < 0.066, "int4: {int4}");
}

#[test]
fn weights_that_cannot_be_packed_are_named() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for packing in [Packing::Int8, Packing::Int4] {
            let mut weights = bell(3 * 64, 1);
            weights[64 + 37] = bad;
            weights[128] = bad;
            let error = encode(packing, &weights, 64).expect_err("not finite");
            assert_eq!((error.row, error.column), (1, 37));
            assert_eq!(error.value.to_bits(), bad.to_bits());
            assert!(error.to_string().contains("row 1, column 37 cannot be packed: weights must be finite"));
        }
    }
    for (packing, limit) in [(Packing::Int8, int8::WEIGHT_MAX), (Packing::Int4, int4::WEIGHT_MAX)] {
        let mut weights = vec![0.0; 32];
        weights[5] = -limit.next_up();
        let error = encode(packing, &weights, 32).expect_err("too large");
        assert_eq!((error.row, error.column, error.value), (0, 5, -limit.next_up()));
        assert!(error.to_string().contains("load the dense matrices as bf16"));
        weights[5] = -limit;
        assert!(encode(packing, &weights, 32).is_ok());
    }
}

#[test]
fn mxfp4_means_what_the_format_says() {
    // e2m1 from its bits: sign, two bits of exponent with bias 1, one of mantissa.
    let e2m1 = |n: u8| {
        let (exponent, mantissa) = (i32::from((n >> 1) & 3), f64::from(n & 1) / 2.0);
        let size = if exponent == 0 { mantissa } else { (1.0 + mantissa) * 2_f64.powi(exponent - 1) };
        if n & 8 == 0 { size } else { -size }
    };
    let bytes: Vec<u8> = (0..16).map(|n| n | ((15 - n) << 4)).collect();
    for scale in [0, 1, 120, 127, 254] {
        let row = WeightRow::decode(Packing::Mxfp4, 32, &bytes, &[scale]);
        let unit = 2_f64.powi(i32::from(scale) - 127);
        for (c, value) in row.values().into_iter().enumerate() {
            let nibble = (bytes[c / 2] >> (4 * (c % 2))) & 15;
            assert_eq!(value, (e2m1(nibble) * unit) as f32, "scale {scale}, nibble {nibble}");
        }
    }
}

#[test]
fn floats_are_read_little_endian() {
    assert_eq!(decode_floats(Packing::F32, &1.5_f32.to_le_bytes()), [1.5]);
    assert_eq!(decode_floats(Packing::Bf16, &[0xc0, 0x3f, 0x00, 0xc1]), [1.5, -8.0]);
}

fn quantised(first: f32, rest: f32, mode: Activations) -> IntegerRow {
    let mut x = [rest; 32];
    x[0] = first;
    let Prepared::Integers(row) = Prepared::new(&x, mode) else { panic!("{mode:?} has integers") };
    row
}

#[test]
fn activations_have_hand_values() {
    let first = |x: f32, rest: f32, mode| {
        let row = quantised(x, rest, mode);
        (row.k[0], row.q[0], row.q[1])
    };
    assert_eq!(first(1.0, 0.25, Activations::Int15), (-13, 8192, 2048));
    assert_eq!(first(-16256.0, 0.5, Activations::Int15), (0, -16256, 0));
    assert_eq!(first(16256.5, 1.5, Activations::Int15), (0, 16256, 2));
    assert_eq!(first(16257.0, 3.0, Activations::Int15), (1, 8128, 2));
    assert_eq!(first(127.0, 2.5, Activations::Int8), (0, 127, 2));
    assert_eq!(first(127.5, 3.0, Activations::Int8), (1, 64, 2));
    assert_eq!(first(0.0, -0.0, Activations::Int15), (0, 0, 0));
    assert_eq!(first(f32::MAX, 1.0, Activations::Int15), (115, 8192, 0));
    assert_eq!(first(f32::from_bits(1), 0.0, Activations::Int15), (-126, 0, 0));
}

#[test]
fn non_finite_activations_make_every_product_nan() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mode in [Activations::Int15, Activations::Int8] {
            assert_eq!(quantised(bad, 1.0, mode).finite, [false]);
            let mut x = [1.0; 96];
            x[70] = bad;
            assert!(decoded(Packing::Int4, &bell(96, 2)).dot(&Prepared::new(&x, mode)).is_nan());
        }
    }
}

#[test]
fn exponents_are_clamped_to_normal_powers() {
    let row = |e| WeightRow::Codes { codes: vec![1; 32], exponents: vec![e] };
    let x = |k| Prepared::Integers(IntegerRow { q: vec![1; 32], k: vec![k], finite: vec![true] });
    assert_eq!(row(-128).dot(&x(-126)), 32.0 * f32::MIN_POSITIVE);
    assert_eq!(row(126).dot(&x(10)), f32::INFINITY);
    assert_eq!(row(-128).dot(&Prepared::Floats(vec![1.0; 32])), 32.0 * f32::MIN_POSITIVE);
}

/// The contract column by column, in f64. Exact where all exponents lie within a few bits of each other, so that one
/// rounding to f32 a step is what a fused multiply-add gives.
fn by_the_words(codes: &[i16], exponents: &[i32], x: &IntegerRow) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for block in 0..codes.len().div_ceil(512) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            let columns = (0..codes.len()).filter(|c| c / 512 == block && (c % 512) / 32 == lane);
            let p: i128 = columns.clone().map(|c| i128::from(codes[c]) * i128::from(x.q[c])).sum();
            if let Some(first) = columns.clone().next() {
                let e = exponents[first / 32] + x.k[first / 32];
                *sum = (f64::from(p as f32) * 2_f64.powi(e) + f64::from(*sum)) as f32;
            }
        }
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

/// The smallest sum of squared errors in units that any multiplier leaves on the columns of one parity.
fn best_error_by_search(weights: &[f32], unit: f64, parity: usize) -> f64 {
    let columns = || weights.iter().skip(parity).step_by(2).map(|w| f64::from(*w) / unit);
    let nearest = |w: f64, m: i32| {
        int4::NUMBERS
            .map(|number| (f64::from(i32::from(number) * m) - w).powi(2))
            .into_iter()
            .fold(1e9, f64::min)
    };
    let multipliers = (0..int4::MULTIPLIERS as u16).map(int4::multiplier);
    multipliers.map(|m| columns().map(|w| nearest(w, m)).sum()).fold(1e9, f64::min)
}

proptest! {
    #[test]
    fn int8_is_within_half_a_unit(row in weights(160)) {
        let (codes, scales) = packed(Packing::Int8, &row, 160);
        let values = WeightRow::decode(Packing::Int8, 160, &codes, &scales).values();
        for c in 0..160 {
            let scale = scales[c / 32];
            let unit = f64::from(int8::multiplier(scale)) * exp2(int8::exponent(scale));
            let error = f64::from(values[c]) - f64::from(row[c]);
            prop_assert!(error.abs() <= unit * 0.500_001, "column {c}");
        }
        prop_assert!(codes.iter().all(|code| code.cast_signed() >= -int8::NUMBER_MAX));
        // Stored values are stored as they are, unless the largest was rounded into the reach of a smaller unit.
        let (again, scales_again) = packed(Packing::Int8, &values, 160);
        prop_assert!(scales_again != scales || again == codes);
    }

    #[test]
    fn int4_finds_the_best_multipliers(row in weights(32)) {
        let decoded = decoded(Packing::Int4, &row);
        let WeightRow::Codes { exponents, .. } = &decoded else { unreachable!() };
        let unit = exp2(exponents[0]);
        let square = |(a, b): (f32, &f32)| ((f64::from(a) - f64::from(*b)) / unit).powi(2);
        let errors: Vec<f64> = decoded.values().into_iter().zip(&row).map(square).collect();
        for parity in [0, 1] {
            let found: f64 = errors.iter().skip(parity).step_by(2).sum();
            let best = best_error_by_search(&row, unit, parity);
            // The encoder takes weights for the middles of bins 8 units wide, 4 units away at most: 16 of them move the
            // root of a sum by 16, twice; rounded squares add up to 2 * 16 * 16 below the root.
            prop_assert!(found.sqrt() <= best.sqrt() + 55.0, "{found} against {best}");
        }
    }

    #[test]
    fn int4_keeps_what_it_has_stored(row in weights(32)) {
        let once = decoded(Packing::Int4, &row);
        let twice = decoded(Packing::Int4, &once.values());
        let exponent = |row: &WeightRow| match row {
            WeightRow::Codes { exponents, .. } => exponents[0],
            WeightRow::Floats(_) => unreachable!(),
        };
        // A second exponent comes with other multipliers; under the same one only near neighbours can be taken.
        prop_assume!(exponent(&once) == exponent(&twice));
        let unit = exp2(exponent(&once));
        for parity in [0, 1] {
            let columns = |row: &WeightRow| row.values().into_iter().skip(parity).step_by(2).collect::<Vec<_>>();
            let square = |(a, b): (f32, f32)| ((f64::from(a) - f64::from(b)) / unit).powi(2);
            let moved: f64 = columns(&once).into_iter().zip(columns(&twice)).map(square).sum();
            prop_assert!(moved.sqrt() <= 55.0, "{moved}");
        }
    }

    #[test]
    fn activations_take_the_smallest_exponent(
        x in prop::collection::vec(-1.0_f32..1.0, 32), e in -120_i32..120, int8 in any::<bool>()
    ) {
        let x: Vec<f32> = x.into_iter().map(|v| v * power_of_two(e)).collect();
        let limit = if int8 { activations::INT8_MAX } else { activations::INT15_MAX };
        let row = IntegerRow::new(&x, limit);
        let k = row.k[0];
        let largest = |k: i32| {
            let sizes = x.iter().map(|v| (f64::from(*v) * 2_f64.powi(-k)).round_ties_even().abs());
            sizes.fold(0.0, f64::max)
        };
        prop_assert!(largest(k) <= f64::from(limit));
        prop_assert!(k == -126 || largest(k - 1) > f64::from(limit));
        for (x, q) in x.iter().zip(&row.q) {
            prop_assert_eq!(f64::from(*q), (f64::from(*x) * 2_f64.powi(-k)).round_ties_even());
        }
    }

    #[test]
    fn int15_splits_into_two_bytes(q in -16256_i16..=16256) {
        let (h, l) = activations::split(q);
        prop_assert_eq!(i32::from(q), 128 * i32::from(h) + i32::from(l));
        prop_assert!((-64..64).contains(&l));
    }

    #[test]
    fn dots_are_the_contract(
        row in prop::collection::vec(-1.0_f32..1.0, 1120),
        x in prop::collection::vec(-1.0_f32..1.0, 1120),
        int8 in any::<bool>(),
    ) {
        let mode = if int8 { Activations::Int8 } else { Activations::Int15 };
        let Prepared::Integers(input) = Prepared::new(&x, mode) else { unreachable!() };
        for packing in [Packing::Int8, Packing::Int4] {
            let weights = decoded(packing, &row);
            let WeightRow::Codes { codes, exponents } = &weights else { unreachable!() };
            let expected = by_the_words(codes, exponents, &input);
            prop_assert_eq!(weights.dot(&Prepared::Integers(input.clone())).to_bits(), expected.to_bits());
        }
    }

    #[test]
    fn modes_agree_within_their_rounding(row in weights(160), x in prop::collection::vec(-1.0_f32..1.0, 160)) {
        for packing in [Packing::Int8, Packing::Int4] {
            let weights = decoded(packing, &row);
            let products = || weights.values().into_iter().zip(&x).map(|(w, x)| f64::from(w) * f64::from(*x));
            let exact: f64 = products().sum();
            let scale: f64 = weights.values().iter().map(|w| f64::from(w.abs())).sum();
            // Half a unit of the largest activation, which is below 1: 2^-14 and 2^-7; f32 sums for the rest.
            for (mode, error) in [
                (Activations::Exact, 1e-6),
                (Activations::Int15, 6.2e-5),
                (Activations::Int8, 7.9e-3),
            ] {
                let found = f64::from(weights.dot(&Prepared::new(&x, mode)));
                prop_assert!((found - exact).abs() <= scale * error, "{mode:?}: {found} against {exact}");
            }
        }
    }
}
