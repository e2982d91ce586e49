//! What `bench` leaves: one object of JSON, read again by `--compare`. Its shape has a version.
use crate::probe::facts::MachineFacts;
use crate::probe::floor::{Floor, PeakRates, Piece};
use crate::probe::samples::Spread;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Of the shape below. It rises when a field changes its meaning or goes away.
pub(crate) const VERSION: u32 = 1;

/// Everything that was measured and in what circumstances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// [`VERSION`]
    pub(crate) bench: u32,
    /// What was asked for.
    pub(crate) what: String,
    /// Version of the program.
    pub(crate) version: String,
    /// This machine.
    pub(crate) machine: MachineFacts,
    /// The model.
    pub(crate) model: ModelFacts,
    /// Everything that was set or chosen.
    pub(crate) settings: Map<String, Value>,
    /// What the machine could do while each part was measured.
    pub(crate) limits: BTreeMap<String, PeakRates>,
    /// The figures.
    pub(crate) rows: Vec<Row>,
    /// Where the time of decode goes, op by op.
    pub(crate) profiles: Vec<Profile>,
    /// Whether a row is marked as disturbed.
    pub(crate) disturbed: bool,
    /// What was not done as asked, and what a reader has to know.
    pub(crate) notes: Vec<String>,
}

/// What tells models apart, as far as speed goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelFacts {
    pub(crate) places: Vec<String>,
    pub(crate) family: String,
    pub(crate) layers: u32,
    pub(crate) width: u32,
    pub(crate) experts: u32,
    pub(crate) experts_a_token: u32,
    pub(crate) vocabulary: u32,
    /// Of all tensors.
    pub(crate) bytes: u64,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The part it belongs to: a key of [`Record::limits`].
    pub(crate) part: String,
    /// What it is, the same in every run with these settings.
    pub(crate) name: String,
    /// What the seconds are for: a token, a product, 10^9 bytes.
    pub(crate) per: String,
    /// The repeats.
    pub(crate) seconds: Spread,
    /// How it was measured, if there was a choice.
    pub(crate) how: Option<String>,
    /// What one piece has to do; None for limits.
    pub(crate) work: Option<Piece>,
    /// The least time.
    pub(crate) floor: Option<Floor>,
    /// Floor by median.
    pub(crate) ratio: Option<f64>,
    /// Multiply-adds a second by the peak of multiply-adds in f32.
    pub(crate) of_f32_peak: Option<f64>,
    /// Where the time went; None for what is no step of a model.
    pub(crate) sections: Option<Sections>,
    /// The least time if nothing is guessed: attention, then the larger of reads and experts. None elsewhere.
    #[serde(default)]
    pub(crate) in_turn: Option<f64>,
    /// What was asked of the expert cache; None without such a cache, or where all experts are resident.
    pub(crate) cache: Option<CacheFacts>,
}

impl Row {
    /// A limit: it has no floor of its own.
    pub(crate) fn limit(part: &str, name: String, per: &str, seconds: Spread, how: Option<String>) -> Self {
        Row {
            part: part.to_owned(),
            name,
            per: per.to_owned(),
            seconds,
            how,
            work: None,
            floor: None,
            ratio: None,
            of_f32_peak: None,
            sections: None,
            in_turn: None,
            cache: None,
        }
    }

    /// Work with its floor by these rates.
    pub(crate) fn work(
        part: &str,
        name: String,
        per: &str,
        seconds: Spread,
        piece: Piece,
        rates: &PeakRates,
    ) -> Self {
        let (floor, median) = (piece.floor(rates), seconds.median);
        Row {
            work: Some(piece),
            floor: Some(floor),
            ratio: Some(floor.seconds / median),
            of_f32_peak: Some(piece.multiply_adds / rates.floats / median),
            ..Row::limit(part, name, per, seconds, None)
        }
    }
}

/// Seconds of one piece by section, over all repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sections {
    pub(crate) attention: f64,
    pub(crate) moe: f64,
    pub(crate) expert_wait: f64,
    pub(crate) head: f64,
}

/// Over all repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CacheFacts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// None without requests.
    pub(crate) hit_rate: Option<f64>,
    pub(crate) bytes_read: u64,
    /// Bytes a second of a drive, while at least one read of it was under way; None without reads.
    pub(crate) drive_rate: Option<f64>,
}

/// Ops that were run one by one, each waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// The row it belongs to.
    pub(crate) name: String,
    /// By the time they took, the longest first.
    pub(crate) ops: Vec<OpShare>,
}

/// All ops of one kind, for one piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpShare {
    pub(crate) op: String,
    pub(crate) count: f64,
    pub(crate) seconds: f64,
    pub(crate) floor: Floor,
    pub(crate) ratio: f64,
}
