//! What the tests share: an oracle with an arena, seeded numbers, the distance from f64.

use ops::packing::{encode, layout};
use ops::testing::textbook;
use ops::{Buffer, Device, Ids, Kind, Matrix, Op, Oracle, Packing, Tensor};

/// An oracle and a place for numbers and weights on it.
pub(crate) struct Desk {
    pub(crate) oracle: Oracle,
    arena: Buffer,
    used: u64,
    random: u64,
}

/// Numbers that fit.
const ARENA: u64 = 1 << 21;

impl Desk {
    pub(crate) fn new(threads: usize, seed: u64) -> Desk {
        let mut oracle = Oracle::new(threads).unwrap();
        let arena = oracle.allocate(ARENA * 4, "the numbers of a test").unwrap();
        Desk { oracle, arena, used: 0, random: seed }
    }

    pub(crate) fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        let t = Tensor::new(self.arena, self.used, rows, cols);
        self.used += t.elements().next_multiple_of(16);
        assert!(self.used <= ARENA, "the arena of a test is full");
        t
    }

    pub(crate) fn numbers(&mut self, rows: u32, cols: u32, numbers: &[f32]) -> Tensor {
        let t = self.output(rows, cols);
        self.oracle.store(t, numbers);
        t
    }

    pub(crate) fn ids(&mut self, rows: u32, cols: u32, ids: &[u32]) -> Ids {
        Ids(self.numbers(rows, cols, bytemuck::cast_slice(ids)))
    }

    /// Uniform in -size..size (xorshift64*).
    pub(crate) fn draw(&mut self, count: u32, size: f32) -> Vec<f32> {
        let mut next = || {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next() * size).collect()
    }

    pub(crate) fn random(&mut self, rows: u32, cols: u32, size: f32) -> Tensor {
        let numbers = self.draw(rows * cols, size);
        self.numbers(rows, cols, &numbers)
    }

    /// Weights of about 0.1; of MXFP4 random codes.
    pub(crate) fn matrix(&mut self, packing: Packing, rows: u32, cols: u32) -> Matrix {
        let weights = self.draw(rows * cols, 0.1);
        let sizes = layout(packing, rows, cols);
        let random_byte = |w: &f32| (w.to_bits() >> 3) as u8;
        let bytes: Vec<u8> = match packing {
            Packing::F32 => bytemuck::cast_slice(&weights).to_vec(),
            Packing::Bf16 => {
                weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_bits().to_le_bytes()).collect()
            }
            Packing::Int8 | Packing::Int4 => {
                let (codes, scales) = encode(packing, &weights, cols).unwrap();
                [codes, scales].concat()
            }
            Packing::Mxfp4 => {
                let mut bytes: Vec<u8> =
                    weights.iter().map(random_byte).take(sizes.scales as usize).collect();
                bytes.extend(weights.iter().rev().map(|w| 118 + random_byte(w) % 8));
                bytes.truncate(sizes.bytes as usize);
                bytes
            }
        };
        let room = self.output(1, (bytes.len() as u32).div_ceil(4));
        let codes = room.offset * 4;
        self.oracle.write(room.buffer, codes, &bytes).unwrap();
        Matrix { buffer: room.buffer, codes, scales: codes + sizes.scales, rows, cols, packing }
    }

    pub(crate) fn bits(&self, t: Tensor) -> Vec<u32> {
        self.oracle.load_ids(Ids(t))
    }

    /// Runs an op; the worst distance of what it wrote from the textbook.
    pub(crate) fn error(&mut self, op: Op) -> f64 {
        error(&mut self.oracle, &op)
    }
}

/// Runs an op; the largest relative L2 distance of an operand from the textbook. Ids must be equal.
pub(crate) fn error(oracle: &mut Oracle, op: &Op) -> f64 {
    let expected = textbook(oracle, op).unwrap();
    oracle.run(op);
    let mut worst: f64 = 0.0;
    for (operand, expected) in op.writes().iter().zip(expected) {
        let found: Vec<f64> = match operand.kind {
            Kind::F32 => oracle.load(operand.tensor).into_iter().map(f64::from).collect(),
            Kind::U32 => oracle.load_ids(Ids(operand.tensor)).into_iter().map(f64::from).collect(),
        };
        if operand.kind == Kind::U32 {
            assert_eq!(found, expected, "{op:?}");
        }
        worst = worst.max(distance(&found, &expected));
    }
    worst
}

/// `|a - b| / |b|` in L2, `|a - b|` if b is 0; numbers that are not finite must be so on both sides and count for
/// nothing.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b).filter(|(a, b)| a.is_finite() || b.is_finite()) {
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    if norm == 0.0 { difference.sqrt() } else { (difference / norm).sqrt() }
}
