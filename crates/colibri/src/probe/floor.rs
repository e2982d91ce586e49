//! The least time that work could take on a machine, from its bytes and operations and what the machine can do in a second.
use ops::Work;
use serde::{Deserialize, Serialize};

/// What a machine can do in a second at most, as measured; a prediction needs the rates of products besides
/// (`engine::predict::Rates`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PeakRates {
    /// Threads of the first three.
    pub(crate) threads: usize,
    /// Bytes read from memory.
    pub(crate) read_bytes: f64,
    /// Operations in f32.
    pub(crate) floats: f64,
    /// Products of bytes.
    pub(crate) byte_products: f64,
    /// Bytes read from the model's disk; None where that was not measured.
    pub(crate) disk_bytes: Option<f64>,
}

/// What the time cannot be below.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Floor {
    /// For one piece of work.
    pub(crate) seconds: f64,
    /// What it comes from.
    pub(crate) bound: FloorBound,
}

/// Which of its times makes a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FloorBound {
    /// Bytes a second of memory.
    Memory,
    /// Operations a second.
    Compute,
    /// Bytes a second of the disk.
    Disk,
}

impl FloorBound {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FloorBound::Memory => "memory",
            FloorBound::Compute => "compute",
            FloorBound::Disk => "disk",
        }
    }
}

/// Work of one piece, as far as floors need it; shares of pieces make fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// Bytes of weights, read once.
    pub(crate) weight_bytes: f64,
    /// Bytes of states, read and written.
    pub(crate) state_bytes: f64,
    /// Bytes that come from disk.
    pub(crate) disk_bytes: f64,
    /// Operations in f32.
    pub(crate) floats: f64,
    /// Products of bytes.
    pub(crate) byte_products: f64,
    /// Multiply-adds of matrix products, whatever they are made of.
    pub(crate) multiply_adds: f64,
}

impl Piece {
    /// One of so many pieces that all of this is for.
    pub(crate) fn of(work: &Work, disk_bytes: f64, pieces: f64) -> Self {
        let each = |all: u64| all as f64 / pieces;
        Piece {
            weight_bytes: each(work.weights),
            state_bytes: each(work.state),
            disk_bytes: disk_bytes / pieces,
            floats: each(work.floats),
            byte_products: each(work.byte_products),
            multiply_adds: each(work.multiply_adds),
        }
    }

    /// The longest of three times: its bytes through memory, its operations one kind after the other (they share the
    /// processor), its bytes from disk. All three may happen at once, so their sum would be no floor.
    pub(crate) fn floor(&self, rates: &PeakRates) -> Floor {
        let memory = (self.weight_bytes + self.state_bytes) / rates.read_bytes;
        let compute = self.floats / rates.floats + self.byte_products / rates.byte_products;
        let disk = rates.disk_bytes.map_or(0.0, |rate| self.disk_bytes / rate);
        let times = [(memory, FloorBound::Memory), (compute, FloorBound::Compute), (disk, FloorBound::Disk)];
        let (seconds, bound) = times.into_iter().fold(times[0], |a, b| if b.0 > a.0 { b } else { a });
        Floor { seconds, bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: PeakRates = PeakRates {
        threads: 2,
        read_bytes: 100.0,
        floats: 1000.0,
        byte_products: 4000.0,
        disk_bytes: Some(10.0),
    };

    fn floor(work: Work, disk_bytes: f64) -> (f64, FloorBound) {
        let floor = Piece::of(&work, disk_bytes, 2.0).floor(&RATES);
        (floor.seconds, floor.bound)
    }

    #[test]
    fn the_longest_of_three_times() {
        // Two pieces of 500 bytes, 1500 operations and 8000 products.
        let work = Work { weights: 800, state: 200, floats: 3000, byte_products: 16_000, ..Work::default() };
        assert_eq!(floor(work, 0.0), (5.0, FloorBound::Memory));
        assert_eq!(floor(work, 140.0), (7.0, FloorBound::Disk));
        let work = Work { floats: 8000, ..work };
        assert_eq!(floor(work, 0.0), (6.0, FloorBound::Compute));
        // Activations stay in a cache, and multiply-adds only say what others would be.
        let work = Work { activations: 1_000_000, multiply_adds: 1_000_000, ..work };
        assert_eq!(floor(work, 0.0), (6.0, FloorBound::Compute));
    }

    #[test]
    fn a_disk_without_a_rate_is_no_floor() {
        let piece = Piece { disk_bytes: 1e9, weight_bytes: 50.0, ..Piece::default() };
        let floor = piece.floor(&PeakRates { disk_bytes: None, ..RATES });
        assert_eq!((floor.seconds, floor.bound), (0.5, FloorBound::Memory));
    }
}
