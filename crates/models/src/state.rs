//! What a sequence keeps between steps, outside the layers: recurrent state of fixed size, and rows of the latent
//! cache in blocks behind a table. Families say which fields they have ([`StateLayout`]); everything else is here.
mod snapshot;

use ops::{Buffer, Device, DeviceError, Ids, LATENT_BLOCK, LatentCache, NONE, Tensor};

/// A recurrent field of a layer: zeros at the start, moved on by every token, not to be rewound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedField {
    /// Such as `layer 4 state`.
    pub name: String,
    /// Shape.
    pub rows: u32,
    /// Shape.
    pub cols: u32,
}

/// A layer with a latent cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatentField {
    /// Such as `layer 3 latent`.
    pub name: String,
    /// Numbers of the latent part in a row.
    pub latent: u32,
    /// Numbers of the rope part in a row.
    pub rope: u32,
}

/// The fields of every sequence of one model.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StateLayout {
    /// Recurrent fields.
    pub fixed: Vec<FixedField>,
    /// Latent caches.
    pub latent: Vec<LatentField>,
}

impl StateLayout {
    /// Adds a recurrent field; its index.
    pub fn fixed(&mut self, name: String, rows: u32, cols: u32) -> usize {
        self.fixed.push(FixedField { name, rows, cols });
        self.fixed.len() - 1
    }

    /// Adds a latent cache; its index.
    pub fn latent(&mut self, name: String, latent: u32, rope: u32) -> usize {
        self.latent.push(LatentField { name, latent, rope });
        self.latent.len() - 1
    }

    /// Bytes of the recurrent fields of one sequence.
    #[must_use]
    pub fn fixed_bytes(&self) -> u64 {
        let bytes = |f: &FixedField| field_numbers(f).saturating_mul(4);
        self.fixed.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of one position in all latent caches together.
    #[must_use]
    pub fn latent_row_bytes(&self) -> u64 {
        let bytes = |f: &LatentField| (u64::from(f.latent) + u64::from(f.rope)) * 4;
        self.latent.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of the latent caches for `blocks` blocks; as of all of these sums the largest number if it is more.
    #[must_use]
    pub fn latent_bytes(&self, blocks: u32) -> u64 {
        self.latent_row_bytes().saturating_mul(u64::from(blocks) * u64::from(LATENT_BLOCK))
    }
}

/// Fields start at multiples of 64 bytes.
fn field_numbers(field: &FixedField) -> u64 {
    (u64::from(field.rows) * u64::from(field.cols)).next_multiple_of(16)
}

/// Whether a state can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It stands at its position.
    Ready,
    /// A failed step left it half moved: reset it and feed the ids again.
    NeedsRebuild,
}

/// One sequence's state. Give it back with [`StatePool::release`].
#[derive(Debug)]
#[must_use = "a state that is dropped keeps its memory; give it back to its pool"]
pub struct State {
    fixed: Buffer,
    table: Ids,
    blocks: Vec<u32>,
    position: u32,
    health: Health,
}

impl State {
    /// Tokens it has seen.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Whether it can be used.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    pub(crate) fn commit(&mut self, rows: u32) {
        self.position += rows;
    }

    pub(crate) fn spoil(&mut self) {
        self.health = Health::NeedsRebuild;
    }
}

fn new_table(device: &mut dyn Device, blocks: u32) -> Result<Ids, DeviceError> {
    let buffer = device.allocate(u64::from(blocks) * 4, "block table of a sequence")?;
    let filled = device.write(buffer, 0, bytemuck::cast_slice(&vec![NONE; blocks as usize]));
    if let Err(error) = filled {
        let _ = device.free(buffer);
        return Err(error);
    }
    Ok(Ids(Tensor::new(buffer, 0, 1, blocks)))
}

/// Why a state operation is refused.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A recurrent state has no past.
    #[error(
        "cannot go back to position {wanted} from {stands}: {field} is recurrent and keeps no past; \
         go back to 0 or restore a snapshot"
    )]
    CannotRewind {
        /// Asked for.
        wanted: u32,
        /// Where the state stands.
        stands: u32,
        /// The first recurrent field.
        field: String,
    },
    /// Forward is not back.
    #[error("cannot go back to position {wanted}: the state stands at {stands}")]
    NotReached {
        /// Asked for.
        wanted: u32,
        /// Where the state stands.
        stands: u32,
    },
    /// As many states as planned are alive.
    #[error("no room for another sequence: {most} were planned for and are alive")]
    TooMany {
        /// How many there may be.
        most: u32,
    },
    /// All blocks are taken.
    #[error("no room for position {wanted}: {reason}")]
    Full {
        /// Positions needed.
        wanted: u32,
        /// What is used up.
        reason: String,
    },
    /// A half-moved state is not worth keeping.
    #[error("the state was left half moved by a failed step; it can only be reset")]
    NeedsRebuild,
    /// Bytes that are no snapshot of this model.
    #[error("not a usable snapshot: {0}")]
    BadSnapshot(String),
}

/// How much a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Positions a sequence can reach.
    pub context: u32,
    /// Sequences that can be alive together.
    pub sequences: u32,
    /// Positions of all of them together; whole blocks are given out.
    pub positions: u32,
}

/// The memory of all sequences of one model.
pub struct StatePool {
    layout: StateLayout,
    pools: Vec<Tensor>,
    free: Vec<u32>,
    blocks: u32,
    table_blocks: u32,
    context: u32,
    /// States that may be alive, and that are.
    most: u32,
    alive: u32,
    identity: [u8; 32],
}

impl StatePool {
    /// Room for as much as `capacity` says.
    ///
    /// `identity` names model, packing and numerics: a snapshot of another identity is refused.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn new(
        device: &mut dyn Device,
        layout: StateLayout,
        identity: [u8; 32],
        capacity: Capacity,
    ) -> Result<Self, DeviceError> {
        let Capacity { context, sequences, positions } = capacity;
        let table_blocks = context.div_ceil(LATENT_BLOCK).max(1);
        let blocks = positions.div_ceil(LATENT_BLOCK);
        let mut pools = Vec::new();
        for field in &layout.latent {
            let (rows, cols) = (blocks * LATENT_BLOCK, field.latent + field.rope);
            let bytes = u64::from(rows) * u64::from(cols) * 4;
            let buffer = device.allocate(bytes, &field.name)?;
            ops::clear(device, buffer, 0..bytes)?;
            pools.push(Tensor::new(buffer, 0, rows, cols));
        }
        let free = (0..blocks).rev().collect();
        Ok(StatePool {
            layout,
            pools,
            free,
            blocks,
            table_blocks,
            context,
            most: sequences,
            alive: 0,
            identity,
        })
    }

    /// The fields of a state.
    #[must_use]
    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// Blocks that no sequence holds.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free.len() as u32
    }

    /// An empty state.
    ///
    /// # Errors
    /// [`StateError::TooMany`], or the device's.
    pub fn create(&mut self, device: &mut dyn Device) -> Result<State, StateError> {
        if self.alive >= self.most {
            return Err(StateError::TooMany { most: self.most });
        }
        let fixed = device.allocate(self.layout.fixed_bytes(), "recurrent state of a sequence")?;
        let table = match new_table(device, self.table_blocks) {
            Ok(table) => table,
            Err(error) => {
                // The first error is the one to tell.
                let _ = device.free(fixed);
                return Err(error.into());
            }
        };
        self.alive += 1;
        Ok(State { fixed, table, blocks: Vec::new(), position: 0, health: Health::Ready })
    }

    /// Gives a state's memory back.
    ///
    /// # Errors
    /// What [`Device::free`] gives.
    pub fn release(&mut self, device: &mut dyn Device, state: State) -> Result<(), DeviceError> {
        self.free.extend(state.blocks.into_iter().rev());
        self.alive -= 1;
        let freed = device.free(state.fixed);
        device.free(state.table.0.buffer)?;
        freed
    }

    /// Back to position 0, whatever happened.
    ///
    /// # Errors
    /// What the device gives.
    pub fn reset(&mut self, device: &mut dyn Device, state: &mut State) -> Result<(), DeviceError> {
        // Until all of it is done it is no state.
        state.health = Health::NeedsRebuild;
        self.drop_blocks(device, state, 0)?;
        ops::clear(device, state.fixed, 0..self.layout.fixed_bytes())?;
        state.position = 0;
        state.health = Health::Ready;
        Ok(())
    }

    /// Back to an earlier position.
    ///
    /// # Errors
    /// [`StateError::CannotRewind`] where a recurrent field would have to know its past.
    pub fn truncate(
        &mut self,
        device: &mut dyn Device,
        state: &mut State,
        position: u32,
    ) -> Result<(), StateError> {
        if position == 0 {
            return Ok(self.reset(device, state)?);
        }
        if state.health == Health::NeedsRebuild {
            return Err(StateError::NeedsRebuild);
        }
        if position > state.position {
            return Err(StateError::NotReached { wanted: position, stands: state.position });
        }
        if position == state.position {
            return Ok(());
        }
        if let Some(field) = self.layout.fixed.first() {
            return Err(StateError::CannotRewind {
                wanted: position,
                stands: state.position,
                field: field.name.clone(),
            });
        }
        self.drop_blocks(device, state, position.div_ceil(LATENT_BLOCK) as usize)?;
        state.position = position;
        Ok(())
    }

    /// Room for positions up to `positions`; what the state holds does not move.
    ///
    /// # Errors
    /// [`StateError::Full`] when the context or the blocks of all sequences are used up; the state is as before.
    pub fn grow(
        &mut self,
        device: &mut dyn Device,
        state: &mut State,
        positions: u32,
    ) -> Result<(), StateError> {
        let full = |reason: String| Err(StateError::Full { wanted: positions, reason });
        if positions > self.context {
            let context = self.context;
            return full(format!(
                "the context was planned for {context} positions; ask for more with --context"
            ));
        }
        if self.layout.latent.is_empty() {
            return Ok(());
        }
        let (wanted, held) = (positions.div_ceil(LATENT_BLOCK), state.blocks.len() as u32);
        if wanted > held + self.free_blocks() {
            let (needed, free, all) = (wanted - held, self.free_blocks(), self.blocks);
            return full(format!(
                "{needed} blocks of {LATENT_BLOCK} positions are needed, {free} of {all} are free"
            ));
        }
        for _ in held..wanted {
            state.blocks.extend(self.free.pop());
        }
        if wanted > held {
            let added = &state.blocks[held as usize..];
            let written =
                device.write(state.table.0.buffer, u64::from(held) * 4, bytemuck::cast_slice(added));
            if let Err(error) = written {
                self.free.extend(state.blocks.drain(held as usize..).rev());
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn drop_blocks(
        &mut self,
        device: &mut dyn Device,
        state: &mut State,
        keep: usize,
    ) -> Result<(), DeviceError> {
        let keep = keep.min(state.blocks.len());
        let none = vec![NONE; state.blocks.len() - keep];
        device.write(state.table.0.buffer, keep as u64 * 4, bytemuck::cast_slice(&none))?;
        self.free.extend(state.blocks.drain(keep..).rev());
        Ok(())
    }

    /// Zeros into the latent rows of positions `from..to`; the position stays.
    ///
    /// # Errors
    /// What [`Device::write`] gives.
    pub fn clear(
        &self,
        device: &mut dyn Device,
        state: &State,
        from: u32,
        to: u32,
    ) -> Result<(), DeviceError> {
        for (pool, run) in self.runs(state, from, to) {
            ops::clear(device, pool.buffer, run)?;
        }
        Ok(())
    }

    /// Byte ranges of the pools that hold positions `from..to`: for each field, in order of position.
    fn runs(&self, state: &State, from: u32, to: u32) -> Vec<(Tensor, std::ops::Range<u64>)> {
        let mut runs = Vec::new();
        for pool in &self.pools {
            let row = u64::from(pool.cols) * 4;
            let mut position = from;
            while position < to {
                let end = to.min((position / LATENT_BLOCK + 1) * LATENT_BLOCK);
                let block = state.blocks[(position / LATENT_BLOCK) as usize];
                let first = u64::from(block * LATENT_BLOCK + position % LATENT_BLOCK);
                runs.push((*pool, first * row..(first + u64::from(end - position)) * row));
                position = end;
            }
        }
        runs
    }

    /// A recurrent field of a state.
    #[must_use]
    pub fn fixed_field(&self, state: &State, index: usize) -> Tensor {
        let before: u64 = self.layout.fixed[..index].iter().map(field_numbers).sum();
        let field = &self.layout.fixed[index];
        Tensor::new(state.fixed, before, field.rows, field.cols)
    }

    /// A latent cache of a state.
    #[must_use]
    pub fn latent_field(&self, state: &State, index: usize) -> LatentCache {
        LatentCache { pool: self.pools[index], table: state.table, latent: self.layout.latent[index].latent }
    }

    /// The latent rows of positions 0 up to the state's own: \[position, latent + rope\].
    ///
    /// # Errors
    /// What the device gives.
    pub fn latent_rows(
        &self,
        device: &mut dyn Device,
        state: &State,
        index: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let mut rows = Vec::new();
        for (pool, run) in self.runs(state, 0, state.position) {
            if pool == self.pools[index] {
                let mut part = vec![0f32; ((run.end - run.start) / 4) as usize];
                let ticket = device.read_later(pool.buffer, run.start, run.end - run.start)?;
                device.take(ticket, bytemuck::cast_slice_mut(&mut part))?;
                rows.extend(part);
            }
        }
        Ok(rows)
    }

    /// A second state that goes its own way from here.
    ///
    /// # Errors
    /// [`StateError::Full`], [`StateError::NeedsRebuild`], or the device's.
    pub fn fork(&mut self, device: &mut dyn Device, state: &State) -> Result<State, StateError> {
        if state.health == Health::NeedsRebuild {
            return Err(StateError::NeedsRebuild);
        }
        let mut twin = self.create(device)?;
        match self.copy_into(device, state, &mut twin) {
            Ok(()) => Ok(twin),
            Err(error) => {
                let _ = self.release(device, twin);
                Err(error)
            }
        }
    }

    fn copy_into(
        &mut self,
        device: &mut dyn Device,
        state: &State,
        twin: &mut State,
    ) -> Result<(), StateError> {
        self.grow(device, twin, state.position)?;
        device.copy((state.fixed, 0), (twin.fixed, 0), self.layout.fixed_bytes())?;
        let (from, to) = (self.runs(state, 0, state.position), self.runs(twin, 0, state.position));
        for ((pool, source), (_, target)) in from.into_iter().zip(to) {
            device.copy(
                (pool.buffer, source.start),
                (pool.buffer, target.start),
                source.end - source.start,
            )?;
        }
        twin.position = state.position;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
