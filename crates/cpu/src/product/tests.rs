//! Every kernel on every level against the definition in `ops::packing`, bit for bit.
use super::{Outputs, Room, Shape, Weight, multiply};
use crate::level::Level;
use ops::packing::{self, Prepared, WeightRow};
use ops::{Activations, Packing, with_fma};
use proptest::prelude::*;

const PACKINGS: [Packing; 5] = [Packing::F32, Packing::Bf16, Packing::Int8, Packing::Int4, Packing::Mxfp4];
const MODES: [Activations; 3] = [Activations::Int15, Activations::Int8, Activations::Exact];

/// Scattered numbers.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// About 1 in size, either sign.
    fn number(&mut self) -> f32 {
        (self.bits() as f32 / 2_147_483_648.0) - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// A matrix of any bytes that its packing allows.
struct Stored {
    packing: Packing,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    /// `scale` gives the bytes of scales.
    fn new(
        packing: Packing,
        (rows, cols): (usize, usize),
        random: &mut Random,
        scale: impl Fn(u32) -> u8,
    ) -> Self {
        let layout = packing::layout(packing, rows as u32, cols as u32);
        let codes: Vec<u8> = match packing {
            Packing::F32 => random.numbers(rows * cols).iter().flat_map(|x| x.to_le_bytes()).collect(),
            Packing::Bf16 => {
                random.numbers(rows * cols).iter().flat_map(|x| x.to_le_bytes().split_off_upper()).collect()
            }
            Packing::Int8 => (0..layout.scales).map(|_| (random.bits() % 255 + 129) as u8).collect(),
            Packing::Int4 | Packing::Mxfp4 => (0..layout.scales).map(|_| random.bits() as u8).collect(),
        };
        let scales = (layout.scales..layout.bytes).map(|_| scale(random.bits())).collect();
        Stored { packing, rows, cols, codes, scales }
    }

    /// What the definition gives: \[inputs, rows\].
    fn expected(&self, x: &[f32], mode: Activations) -> Vec<f32> {
        let float = matches!(self.packing, Packing::F32 | Packing::Bf16);
        let mode = if float { Activations::Exact } else { mode };
        let layout = packing::layout(self.packing, 1, self.cols as u32);
        let row = |r: usize| {
            let codes = &self.codes[r * layout.code_row_bytes as usize..][..layout.code_row_bytes as usize];
            let scales =
                &self.scales[r * layout.scale_row_bytes as usize..][..layout.scale_row_bytes as usize];
            WeightRow::decode(self.packing, self.cols, codes, scales)
        };
        let rows: Vec<WeightRow> = (0..self.rows).map(row).collect();
        x.chunks_exact(self.cols)
            .map(|x| Prepared::new(x, mode))
            .flat_map(|x| rows.iter().map(move |row| with_fma(Dot(row, &x))).collect::<Vec<f32>>())
            .collect()
    }

    /// What the kernels give, computed in two parts, from bytes at odd addresses, into rows with gaps.
    fn found(&self, level: Level, x: &[f32], mode: Activations) -> Vec<f32> {
        let count = x.len() / self.cols;
        let moved = |bytes: &[u8], by: usize| [&vec![0xa5; by], bytes].concat();
        let (codes, scales) = (moved(&self.codes, 3), moved(&self.scales, 1));
        let weight = Weight::new(self.packing, self.rows as u32, self.cols as u32, &codes[3..], &scales[1..]);
        let mut room = Room::default();
        let shape = Shape::new(level, self.packing, mode, count, self.cols);
        let inputs = room.prepare(shape, x, self.cols);
        let stride = self.rows + 3;
        let mut y = vec![-7.0; count * stride];
        let cut = self.rows / 3;
        let (left, right) = Outputs::new(&mut y, count, self.rows, stride).split_at(cut);
        multiply(weight, 0..cut, inputs, left);
        multiply(weight, cut..self.rows, inputs, right);
        assert!(y.chunks_exact(stride).all(|row| row[self.rows..] == [-7.0; 3]), "numbers between rows");
        y.chunks_exact(stride).flat_map(|row| &row[..self.rows]).copied().collect()
    }

    fn check(&self, x: &[f32], mode: Activations) {
        let expected: Vec<u32> = self.expected(x, mode).iter().map(|y| bits(*y)).collect();
        for level in Level::available() {
            let found: Vec<u32> = self.found(level, x, mode).iter().map(|y| bits(*y)).collect();
            let first = (0..expected.len()).find(|i| found[*i] != expected[*i]);
            assert!(
                first.is_none(),
                "{level:?} {} {} {} x {}, {} inputs: number {first:?} is {:?}, expected {:?}",
                self.packing.name(),
                mode.name(),
                self.rows,
                self.cols,
                x.len() / self.cols,
                first.map(|i| f32::from_bits(found[i])),
                first.map(|i| f32::from_bits(expected[i])),
            );
        }
    }
}

trait UpperHalf {
    fn split_off_upper(self) -> [u8; 2];
}

impl UpperHalf for [u8; 4] {
    fn split_off_upper(self) -> [u8; 2] {
        [self[2], self[3]]
    }
}

/// A dot product in the oracle's own dispatch, so that a fused multiply-add is an instruction.
struct Dot<'a>(&'a WeightRow, &'a Prepared);

impl ops::Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "compiled for the instructions of the dispatch")]
    fn run(self) -> f32 {
        self.0.dot(self.1)
    }
}

/// Which NaN comes out is not defined.
fn bits(y: f32) -> u32 {
    if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() }
}

/// Scales near 1, as weights have them.
fn usual(packing: Packing) -> impl Fn(u32) -> u8 {
    move |bits| match packing {
        Packing::Mxfp4 => (bits % 9 + 118) as u8,
        _ => bits as u8,
    }
}

#[test]
fn every_count_of_inputs_gives_the_defined_bits() {
    let mut random = Random(1);
    for packing in PACKINGS {
        for mode in MODES {
            let stored = Stored::new(packing, (27, 1120), &mut random, usual(packing));
            let x = random.numbers(33 * 1120);
            for count in 1..=33 {
                stored.check(&x[..count * 1120], mode);
            }
        }
    }
}

#[test]
fn odd_sizes_give_the_defined_bits() {
    let mut random = Random(2);
    for packing in PACKINGS {
        let float = matches!(packing, Packing::F32 | Packing::Bf16);
        let sizes: &[usize] = if float {
            &[1, 2, 15, 16, 17, 31, 33, 100, 513, 1025]
        } else {
            &[32, 64, 96, 128, 160, 480, 512, 544, 992, 1024, 1056]
        };
        for &cols in sizes {
            for rows in [1, 2, 3, 11, 12, 13, 25] {
                let stored = Stored::new(packing, (rows, cols), &mut random, usual(packing));
                for (count, mode) in [(1, 0), (3, 0), (9, 0), (1, 1), (5, 1), (1, 2), (2, 2), (10, 2)] {
                    stored.check(&random.numbers(count * cols), MODES[mode]);
                }
            }
        }
    }
}

#[test]
fn all_scale_bytes_and_sizes_of_activations_give_the_defined_bits() {
    let mut random = Random(3);
    for packing in [Packing::Int8, Packing::Int4, Packing::Mxfp4] {
        let any = |bits: u32| if packing == Packing::Mxfp4 { (bits % 255) as u8 } else { bits as u8 };
        let stored = Stored::new(packing, (40, 1056), &mut random, any);
        for exponent in [-149_i32, -140, -126, -110, -60, 0, 40, 90, 113, 120, 127] {
            let mut x = random.numbers(9 * 1056);
            for x in &mut x {
                *x = (f64::from(*x) * f64::from(exponent).exp2()) as f32;
            }
            for mode in MODES {
                stored.check(&x[..1056], mode);
                stored.check(&x, mode);
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_give_nan_in_their_own_rows() {
    let mut random = Random(4);
    for packing in PACKINGS {
        let stored = Stored::new(packing, (13, 544), &mut random, usual(packing));
        let mut x = random.numbers(11 * 544);
        for (row, value) in [(1, f32::NAN), (4, f32::INFINITY), (10, f32::NEG_INFINITY)] {
            x[row * 544 + 533] = value;
        }
        for mode in MODES {
            for rows in [0..1, 1..2, 3..6, 0..11] {
                stored.check(&x[rows.start * 544..rows.end * 544], mode);
            }
        }
    }
}

#[test]
fn zeros_of_either_sign_and_tiny_results_give_the_defined_bits() {
    let mut random = Random(5);
    for packing in PACKINGS {
        // The smallest scales, so that products underflow in `exact`.
        let stored = Stored::new(packing, (16, 544), &mut random, |bits| (bits % 3) as u8);
        for value in [0.0, -0.0, 1e-45, -1e-45, 1e-40, f32::MAX] {
            for count in [1, 2, 9] {
                for mode in MODES {
                    stored.check(&vec![value; 544 * count], mode);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bits_of_activations_give_the_defined_bits(
        seed in any::<u64>(), rows in 1_usize..30, groups in 1_usize..40, count in 1_usize..20,
        packing in 0_usize..5, mode in 0_usize..3, low in 0_u32..255, width in 1_u32..80,
    ) {
        let mut random = Random(seed);
        let packing = PACKINGS[packing];
        let float = matches!(packing, Packing::F32 | Packing::Bf16);
        let cols = if float { groups * 29 } else { groups * 32 };
        let any = |bits: u32| if packing == Packing::Mxfp4 { (bits % 255) as u8 } else { bits as u8 };
        let stored = Stored::new(packing, (rows, cols), &mut random, any);
        // Any mantissa and sign, exponents in a window.
        let number = |_| {
            let bits = random.bits();
            f32::from_bits((bits & 0x807f_ffff) | ((low + random.bits() % width).min(254) << 23))
        };
        let x: Vec<f32> = (0..count * cols).map(number).collect();
        stored.check(&x, MODES[mode]);
    }
}
