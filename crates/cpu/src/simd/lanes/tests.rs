//! Every operation on every level against the array, on numbers of all kinds.

use super::portable::Portable;
use super::{Block, Kernel, LANES, Simd, load, store};
use crate::level::Level;
use std::array::from_fn;

/// Scattered bits: numbers of all sizes, subnormal ones, infinities and NaNs among them.
fn scattered(seed: u32) -> f32 {
    let kinds = [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 1, 0x8000_0001, 0x3f80_0000];
    let bits = seed.wrapping_mul(0x9e37_79b9) ^ (seed.wrapping_mul(0x85eb_ca6b) >> 13);
    f32::from_bits(if seed.is_multiple_of(5) { kinds[(bits >> 8) as usize % kinds.len()] } else { bits })
}

fn block(seed: u32) -> Block {
    from_fn(|j| scattered(seed * 97 + j as u32))
}

/// Numbers whose sums depend on their order.
fn sums(seed: u32) -> Block {
    from_fn(|j| {
        (scattered(seed * 1009 + j as u32).to_bits() >> 9) as f32 * if j % 3 == 0 { 1e-6 } else { -1.0 }
    })
}

/// What every operation gives, as words.
struct Everything(u32);

impl Kernel for Everything {
    type Output = Vec<Vec<u32>>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<Vec<u32>> {
        let words = |x: S::Floats| {
            let mut lanes = [0.0; LANES];
            s.store(x, &mut lanes);
            // Which NaN comes out is open.
            lanes.map(|x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).to_vec()
        };
        let [a, b, c] = [0, 1, 2].map(|i| block(3 * self.0 + i));
        let [x, y, z] = [a, b, c].map(|block| s.load(&block));
        let less = s.less(x, y);
        let mut results = vec![
            words(s.add(x, y)),
            words(s.sub(x, y)),
            words(s.mul(x, y)),
            words(s.div(x, y)),
            words(s.fma(x, y, z)),
            words(s.abs(x)),
            words(s.minus_abs(x)),
            words(s.select(less, x, z)),
            words(s.select(s.is_nan(x), y, z)),
            vec![s.mask_bits(less), s.mask_bits(s.is_nan(x))],
            words(s.to_floats(s.bits(x))),
            words(s.to_floats(s.add_int(s.bits(x), s.splat_int(12345)))),
            words(s.to_floats(s.sub_int(s.bits(x), s.bits(y)))),
            words(s.to_floats(s.and(s.bits(x), s.bits(y)))),
            words(s.to_floats(s.or(s.bits(x), s.bits(y)))),
            words(s.to_floats(s.to_exponent(s.bits(x)))),
            words(s.with_bits(s.bits(x))),
            words(s.splat(a[3])),
        ];
        // Of two zeros either may be the larger.
        let larger = s.max_or(x, y);
        results.push(words(s.add(larger, s.splat(0.0))));
        let folded: [Block; LANES] = from_fn(|i| sums(self.0 * 16 + i as u32));
        results.push(words(s.fold_all(folded.map(|block| s.load(&block)))));
        results.push(folded.iter().map(|block| s.fold(s.load(block)).to_bits()).collect());
        results.push(folded.iter().map(|block| s.largest(s.load(block)).to_bits()).collect());
        let four = [0, 1, 2, 3].map(|i| sums(self.0 + i));
        let three = [four[0], four[1], four[2]];
        results.extend(s.split_4(&four).map(words));
        results.extend(s.split_3(&three).map(words));
        let mut joined = [[0.0; LANES]; 3];
        s.join_3(s.split_3(&three), &mut joined);
        assert_eq!(joined, three);
        for count in 0..=LANES {
            let part = load(s, &four[0][..count]);
            results.push(words(part));
            let mut to = [7.0; LANES];
            store(s, part, &mut to[..count]);
            results.push(to.map(f32::to_bits).to_vec());
        }
        results
    }
}

#[test]
fn every_operation_is_the_same_on_every_level() {
    for seed in 0..200 {
        let expected = Everything(seed).run(Portable);
        for level in Level::available() {
            for (i, (found, expected)) in level.run(Everything(seed)).iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "result {i} on {level:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_fold_is_the_contracts() {
    for seed in 0..200 {
        let block = sums(seed);
        let expected = ops::lanes::Lanes::from(block).fold();
        assert_eq!(Portable.fold(block).to_bits(), expected.to_bits());
    }
}

#[test]
fn split_and_join_are_strides() {
    let numbers: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let four = numbers.as_chunks::<LANES>().0.try_into().unwrap();
    for (i, lanes) in Portable.split_4(four).iter().enumerate() {
        assert!(lanes.iter().enumerate().all(|(j, x)| *x == (4 * j + i) as f32));
    }
    let three = numbers[..48].as_chunks::<LANES>().0.try_into().unwrap();
    for (i, lanes) in Portable.split_3(three).iter().enumerate() {
        assert!(lanes.iter().enumerate().all(|(j, x)| *x == (3 * j + i) as f32));
    }
}
