//! A sequence's state as bytes: versioned, of one model only, with a checksum. It knows fields as numbers of bytes.
use super::{State, StateError, StatePool};
use crate::state::Health;
use ops::{Buffer, Device, DeviceError, NUMERICS_VERSION};

const SNAPSHOT_MAGIC: &[u8; 8] = b"COLIBRIS";
const SNAPSHOT_VERSION: u32 = 1;
/// Magic, version, numerics, identity, position.
const HEADER_BYTES: usize = 8 + 4 + 4 + 32 + 4;

impl StatePool {
    /// The state as bytes: header, recurrent fields, latent rows in order of position, checksum.
    ///
    /// # Errors
    /// [`StateError::NeedsRebuild`] or the device's.
    pub fn snapshot(&self, device: &mut dyn Device, state: &State) -> Result<Vec<u8>, StateError> {
        if state.health == Health::NeedsRebuild {
            return Err(StateError::NeedsRebuild);
        }
        let mut bytes = self.header(state.position);
        let mut read = |buffer: Buffer, range: std::ops::Range<u64>| -> Result<(), DeviceError> {
            let start = bytes.len();
            bytes.resize(start + (range.end - range.start) as usize, 0);
            let ticket = device.read_later(buffer, range.start, range.end - range.start)?;
            device.take(ticket, &mut bytes[start..])
        };
        read(state.fixed, 0..self.layout.fixed_bytes())?;
        for (pool, run) in self.runs(state, 0, state.position) {
            read(pool.buffer, run)?;
        }
        let check = blake3::hash(&bytes);
        bytes.extend(check.as_bytes());
        Ok(bytes)
    }

    fn header(&self, position: u32) -> Vec<u8> {
        let mut bytes = SNAPSHOT_MAGIC.to_vec();
        bytes.extend(SNAPSHOT_VERSION.to_le_bytes());
        bytes.extend(NUMERICS_VERSION.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(position.to_le_bytes());
        bytes
    }

    /// A state from the bytes of [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// [`StateError::BadSnapshot`] says what does not fit; [`StateError::Full`]; the device's.
    pub fn restore(&mut self, device: &mut dyn Device, bytes: &[u8]) -> Result<State, StateError> {
        let position = self.check_snapshot(bytes)?;
        let mut state = self.create(device)?;
        let filled = self.fill(device, &mut state, position, &bytes[HEADER_BYTES..bytes.len() - 32]);
        match filled {
            Ok(()) => Ok(state),
            Err(error) => {
                let _ = self.release(device, state);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        device: &mut dyn Device,
        state: &mut State,
        position: u32,
        payload: &[u8],
    ) -> Result<(), StateError> {
        self.grow(device, state, position)?;
        let (fixed, mut rows) = payload.split_at(self.layout.fixed_bytes() as usize);
        device.write(state.fixed, 0, fixed)?;
        for (pool, run) in self.runs(state, 0, position) {
            let (part, rest) = rows.split_at((run.end - run.start) as usize);
            device.write(pool.buffer, run.start, part)?;
            rows = rest;
        }
        state.position = position;
        Ok(())
    }

    fn check_snapshot(&self, bytes: &[u8]) -> Result<u32, StateError> {
        let bad = |what: String| Err(StateError::BadSnapshot(what));
        if bytes.len() < HEADER_BYTES + 32 || bytes[..8] != *SNAPSHOT_MAGIC {
            return bad("the bytes do not begin like one".into());
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if number(8) != SNAPSHOT_VERSION {
            return bad(format!(
                "version {} is not {SNAPSHOT_VERSION}; make it again from the ids",
                number(8)
            ));
        }
        if number(12) != NUMERICS_VERSION {
            return bad(format!("made with numerics v{}, this is v{NUMERICS_VERSION}", number(12)));
        }
        if bytes[16..48] != self.identity {
            return bad("made by another model, packing or activations mode".into());
        }
        let position = number(48);
        let expected = HEADER_BYTES as u64
            + self.layout.fixed_bytes()
            + self.layout.latent_row_bytes() * u64::from(position)
            + 32;
        if bytes.len() as u64 != expected {
            return bad(format!("{} bytes, {expected} expected for position {position}", bytes.len()));
        }
        let (content, check) = bytes.split_at(bytes.len() - 32);
        if blake3::hash(content).as_bytes() != check {
            return bad("the checksum does not fit: the bytes were damaged".into());
        }
        Ok(position)
    }
}
