//! A device that departs from the contract in one thing: the order of the sums of `mat_mul`.
use super::hand_on;
use crate::device::{Device, DeviceError, MemoryInfo, Submission, Ticket};
use crate::op::Op;
use crate::oracle::Oracle;
use crate::packing::{GROUP, Prepared, WeightRow};
use crate::tensor::{Activations, Buffer, Matrix, Packing, Tensor};
use memory::Slab;
use std::sync::Arc;
use std::time::Duration;

/// The oracle, but every `mat_mul` is a plain sum of products in f32 from the last column to the first, over the same
/// decoded weights and the same rounded activations. Within the tolerance of the op, not the same bits.
pub struct Reversed {
    oracle: Oracle,
}

impl Reversed {
    /// Turns the sums of an empty oracle.
    #[must_use]
    pub fn new(oracle: Oracle) -> Self {
        Reversed { oracle }
    }

    fn bytes(&mut self, buffer: Buffer, start: u64, bytes: u64) -> Result<Vec<u8>, DeviceError> {
        let mut into = vec![0; bytes as usize];
        let ticket = self.oracle.read_later(buffer, start, bytes)?;
        self.oracle.take(ticket, &mut into)?;
        Ok(into)
    }

    fn mat_mul(
        &mut self,
        out: Tensor,
        x: Tensor,
        weight: Matrix,
        activations: Activations,
    ) -> Result<(), DeviceError> {
        let (layout, cols) = (weight.layout(), weight.cols as usize);
        let floats = matches!(weight.packing, Packing::F32 | Packing::Bf16);
        let mode = if floats { Activations::Exact } else { activations };
        let inputs: Vec<Vec<f32>> =
            self.oracle.load(x).chunks_exact(cols).map(|row| values(&Prepared::new(row, mode))).collect();
        let mut result = vec![0.0; out.elements() as usize];
        for r in 0..u64::from(weight.rows) {
            let (codes, scales) = (layout.code_row_bytes, layout.scale_row_bytes);
            let codes = self.bytes(weight.buffer, weight.codes + r * codes, codes)?;
            let scales = self.bytes(weight.buffer, weight.scales + r * scales, scales)?;
            let row = WeightRow::decode(weight.packing, cols, &codes, &scales).values();
            for (t, input) in inputs.iter().enumerate() {
                let products = row.iter().zip(input).rev();
                result[t * weight.rows as usize + r as usize] = products.fold(0.0, |sum, (w, x)| sum + w * x);
            }
        }
        self.oracle.store(out, &result);
        Ok(())
    }
}

/// The numbers that prepared activations stand for.
fn values(x: &Prepared) -> Vec<f32> {
    match x {
        Prepared::Floats(values) => values.clone(),
        Prepared::Integers(row) => {
            let value = |(c, q): (usize, &i16)| {
                let power = f64::from(row.k[c / GROUP]).exp2();
                if row.finite[c / GROUP] { (f64::from(*q) * power) as f32 } else { f32::NAN }
            };
            row.q.iter().enumerate().map(value).collect()
        }
    }
}

impl Device for Reversed {
    fn name(&self) -> &'static str {
        "reversed oracle"
    }

    hand_on!(oracle: memory, allocate, adopt, free, write, copy, last, done, wait, read_later, take);

    fn submit(&mut self, ops: &[Op]) -> Result<Submission, DeviceError> {
        for op in ops {
            match *op {
                Op::MatMul { out, x, weight, activations } => self.mat_mul(out, x, weight, activations)?,
                _ => self.oracle.run(op),
            }
        }
        self.oracle.submit(&[])
    }
}
