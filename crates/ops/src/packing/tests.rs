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
    assert_eq!(sizes(Packing::Int8), (306, 288, 96, 6));
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
    let largest = |code: i64| GROUP as i64 * code.abs() * i64::from(activations::INT15_MAX);
    // MXFP4 sums are exact in f32 too, int4 and int8 sums in i32; a code of int8 may be shifted by three bits.
    assert!(mxfp4::CODES.iter().all(|code| largest(i64::from(*code)) < 1 << 24));
    let tables = (0..int4::TABLES).flat_map(int4::codes).map(i64::from);
    assert!(tables.chain([127 << int8::SHIFT_MAX]).all(|code| largest(code) < i64::from(i32::MAX)));
}

#[test]
fn int4_tables_ascend_through_zero() {
    for table in &int4::CODES {
        assert!(table.is_sorted_by(|a, b| a < b), "{table:?}");
        assert_eq!(table[8], 0);
    }
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
    assert_eq!(scales, [0, 130].repeat(5));
    assert_eq!(WeightRow::decode(Packing::Int8, 160, &codes, &scales).values(), row);
}

#[test]
fn int8_octets_shift_down_to_an_eighth() {
    let mut row = vec![0.0; 32];
    (row[0], row[8], row[16], row[24]) = (100.0, 50.0, 25.0, 1.0);
    let (codes, scales) = packed(Packing::Int8, &row, 32);
    assert_eq!(scales, [0b11_10_01_00, 133]);
    assert_eq!([codes[0], codes[4], codes[8], codes[12]], [100, 100, 100, 8]);
    let scale = u16::from_le_bytes([scales[0], scales[1]]);
    assert_eq!((int8::exponent(scale), int8::left_shifts(scale)), (-3, [3, 2, 1, 0]));
    assert_eq!(decoded(Packing::Int8, &row).values(), row);
}

#[test]
fn int8_reaches_the_ends_of_f32() {
    let mut row = vec![0.0; 64];
    (row[0], row[40]) = (-127.0 * power_of_two(120), f32::MIN_POSITIVE);
    assert_eq!(decoded(Packing::Int8, &row).values(), row);
    // The largest number of all is nearer to 64 * 2^122 than to 63 * 2^122, and fits the fields.
    row[0] = f32::MAX;
    let (codes, scales) = packed(Packing::Int8, &row, 64);
    assert_eq!((codes[0], scales[1]), (64, 255));
}

#[test]
fn int4_takes_a_table_for_each_parity() {
    // Even columns are table 15, odd columns table 16 (table 0 with its signs turned), both in units of 2^-4.
    let (even, odd) = (int4::codes(15), int4::codes(16));
    let row: Vec<f32> = (0..32).map(|c| f32::from([even, odd][c % 2][c / 2]) * 0.0625).collect();
    let (codes, scales) = packed(Packing::Int4, &row, 32);
    assert_eq!(u16::from_le_bytes([scales[0], scales[1]]), 15 | (16 << 5) | (52 << 10));
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
    let mut weights = vec![0.0; 32];
    weights[5] = -16256.002;
    let error = encode(Packing::Int4, &weights, 32).expect_err("too large");
    assert_eq!((error.row, error.column, error.value), (0, 5, -16256.002));
    assert!(error.to_string().contains("load the dense matrices as int8 or bf16"));
    assert!(encode(Packing::Int8, &weights, 32).is_ok());
    weights[5] = -int4::WEIGHT_MAX;
    assert!(encode(Packing::Int4, &weights, 32).is_ok());
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
    assert_eq!(mxfp4::find_nan(&[0, 254, 255, 255]), Some(2));
    assert_eq!(mxfp4::find_nan(&[0, 254]), None);
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

fn best_error_by_search(weights: &[f32; 32], unit: f64, parity: usize) -> f64 {
    let columns = || weights.iter().skip(parity).step_by(2).map(|w| f64::from(*w) / unit);
    let nearest = |w: f64, t: usize| {
        int4::codes(t).into_iter().map(|code| (f64::from(code) - w).powi(2)).fold(f64::INFINITY, f64::min)
    };
    (0..int4::TABLES).map(|t| columns().map(|w| nearest(w, t)).sum()).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn int8_is_within_half_a_unit_and_stable(row in weights(160)) {
        let (codes, scales) = packed(Packing::Int8, &row, 160);
        let values = WeightRow::decode(Packing::Int8, 160, &codes, &scales).values();
        for c in 0..160 {
            let scale = u16::from_le_bytes([scales[c / 32 * 2], scales[c / 32 * 2 + 1]]);
            let unit = 2_f64.powi(int8::exponent(scale) + int8::left_shifts(scale)[c % 32 / 8]);
            prop_assert!(f64::from((values[c] - row[c]).abs()) <= unit / 2.0, "column {c}");
        }
        prop_assert!(codes.iter().all(|code| code.cast_signed() >= -int8::CODE_MAX));
        prop_assert_eq!(packed(Packing::Int8, &values, 160), (codes, scales));
    }

    #[test]
    fn int4_finds_the_best_tables(row in weights(32)) {
        let group: &[f32; 32] = row.as_slice().try_into().expect("32 columns");
        let decoded = decoded(Packing::Int4, &row);
        let WeightRow::Codes { exponents, .. } = &decoded else { unreachable!() };
        let unit = 2_f64.powi(exponents[0]);
        let errors: Vec<f64> =
            decoded.values().iter().zip(&row).map(|(a, b)| (f64::from(a - b) / unit).powi(2)).collect();
        for parity in [0, 1] {
            let found: f64 = errors.iter().skip(parity).step_by(2).sum();
            let best = best_error_by_search(group, unit, parity);
            // The encoder measures errors from the middles of bins half a unit wide.
            prop_assert!(found <= best + 16.0 * (0.25 * best.sqrt() + 0.07), "{found} against {best}");
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
        // A group whose largest weight was rounded below 63.5 units is cut finer the second time.
        prop_assume!(exponent(&once) == exponent(&twice));
        prop_assert_eq!(once.values(), twice.values());
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
