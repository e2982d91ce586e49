//! Room that ops need beside their operands, kept from op to op: it grows in the first steps and then stays.
//! It knows no op.

use crate::experts::Gathered;
use crate::product::Room;
use crate::simd::lanes::{Block, LANES};

/// The device's own room.
#[derive(Default)]
pub(crate) struct Scratch {
    blocks: Vec<Block>,
    /// Activations prepared for a product.
    pub(crate) inputs: Room,
    /// Activations prepared for the second product of an expert.
    pub(crate) inner: Room,
    /// Experts and the rows that go through them.
    pub(crate) gathered: Gathered,
}

impl Scratch {
    /// Room for `count` blocks, which hold whatever was there.
    pub(crate) fn blocks(&mut self, count: usize) -> &mut [Block] {
        if self.blocks.len() < count {
            self.blocks.resize(count, [0.0; LANES]);
        }
        &mut self.blocks[..count]
    }

    /// Room for `count` numbers.
    pub(crate) fn numbers(&mut self, count: usize) -> &mut [f32] {
        &mut self.blocks(count.div_ceil(LANES)).as_flattened_mut()[..count]
    }

    /// Bytes it holds.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.len() * size_of::<Block>()) as u64
            + self.inputs.size()
            + self.inner.size()
            + self.gathered.bytes()
    }
}
