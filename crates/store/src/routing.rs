//! Routing traces: which experts every token picked in every layer, in a compact file that can be cut off anywhere.
//! They hold numbers of experts and no token, no text and no weight; what is concluded from them is decided elsewhere.
//!
//! All numbers are little-endian. The file begins with a head of 64 bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `COLIROUT` |
//! | 4 | version, 1 |
//! | 32 | identity of the model, as saved sessions have it |
//! | 2, 2, 2, 2 | number of the first layer with experts, layers from it on, experts in each, picks a token |
//! | 8 | bytes of an expert |
//! | 4 | the first bytes of the BLAKE3 hash of all before |
//!
//! A record follows for every step: bytes of its body (u32), the first four bytes of the body's BLAKE3 hash, the body. In a
//! body each number is a varint (seven bits a byte, the lowest first, bit 7 on all but the last) unless it is said
//! otherwise: how many layers; then for each its number counted from the first layer with experts, its rows, and the picks
//! row by row, each in as many bits as the count of experts needs, the lowest bit first, filled up to a whole byte. The count
//! of experts itself stands for no pick.

mod body;

use std::io::{self, Write};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"COLIROUT";
/// Of the files written here.
pub const VERSION: u32 = 1;
const HEAD_BYTES: usize = 64;
const HASH_BYTES: usize = 4;
/// Length and hash before each body.
const RECORD_HEAD_BYTES: usize = 8;
/// Stands for no pick, in the place of one: of a row that does not count, or a pick dropped.
pub const NO_PICK: u16 = u16::MAX;

/// What a trace is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingHead {
    /// Of the model.
    pub identity: [u8; 32],
    /// Number of the first layer with routed experts.
    pub first_layer: u16,
    /// Layers from there on.
    pub layers: u16,
    /// Experts in each; below [`NO_PICK`].
    pub experts_per_layer: u16,
    /// Picks a token and layer.
    pub ranks: u16,
    /// Bytes of one expert in a slot.
    pub expert_bytes: u64,
}

impl RoutingHead {
    /// Layers with experts.
    #[must_use]
    pub fn layers(&self) -> Range<u16> {
        self.first_layer..self.first_layer.saturating_add(self.layers)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.identity);
        for number in [self.first_layer, self.layers, self.experts_per_layer, self.ranks] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.expert_bytes.to_le_bytes());
        bytes.extend(hash(&bytes));
        bytes
    }
}

/// The picks of one layer in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerPicks {
    /// Number of the layer.
    pub layer: u16,
    /// Row after row, best first; as many a row as the head's ranks.
    pub picks: Vec<u16>,
}

impl LayerPicks {
    /// The experts that were asked for, each once, ascending.
    #[must_use]
    pub fn experts(&self) -> Vec<u16> {
        let mut experts: Vec<u16> = self.picks.iter().copied().filter(|pick| *pick != NO_PICK).collect();
        experts.sort_unstable();
        experts.dedup();
        experts
    }
}

/// One step: all layers with experts, or as many as it came to. It is a chunk of prompts, or a token of each sequence.
pub type RoutingStep = Vec<LayerPicks>;

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut first = [0; HASH_BYTES];
    first.copy_from_slice(&blake3::hash(bytes).as_bytes()[..HASH_BYTES]);
    first
}

/// Writes a trace step by step.
pub struct RoutingWriter {
    out: Box<dyn Write + Send>,
    head: RoutingHead,
    bytes: u64,
}

impl RoutingWriter {
    /// Begins a file.
    ///
    /// # Errors
    /// The system's.
    pub fn new(mut out: Box<dyn Write + Send>, head: RoutingHead) -> io::Result<Self> {
        let bytes = head.encode();
        out.write_all(&bytes)?;
        out.flush()?;
        Ok(Self { out, head, bytes: bytes.len() as u64 })
    }

    /// Adds a step, in one write, so that a file cut off by whatever ends the program lacks whole steps or the end of one.
    ///
    /// # Errors
    /// The system's.
    pub fn append(&mut self, step: &[LayerPicks]) -> io::Result<()> {
        let body = body::encode(&self.head, step);
        let length = u32::try_from(body.len()).map_err(|_| io::Error::other("a step of 4 GiB"))?;
        let mut record = length.to_le_bytes().to_vec();
        record.extend(hash(&body));
        record.extend(body);
        self.out.write_all(&record)?;
        self.out.flush()?;
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Why a file is no routing trace that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// Another kind of file.
    #[error(
        "it is no routing trace: it does not begin with COLIROUT; colibri run --trace-routing FILE writes one"
    )]
    Foreign,
    /// Of another version.
    #[error(
        "it is a routing trace of version {found}, but this program reads version {VERSION}; use the program that wrote it, or \
         write it anew with --trace-routing"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Cut off within its head.
    #[error(
        "it was cut off: {bytes} bytes are less than the {HEAD_BYTES} that a routing trace begins with; write it anew"
    )]
    NoHead {
        /// Its length.
        bytes: u64,
    },
    /// Damaged.
    #[error("it is damaged: {what} at byte {offset}; write it anew with --trace-routing")]
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

/// A trace that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingTrace {
    /// What it is of.
    pub head: RoutingHead,
    /// Its steps.
    pub steps: Vec<RoutingStep>,
    /// Bytes at its end that are no whole step and were left out: writing it was interrupted.
    pub cut: u64,
}

impl RoutingTrace {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// Bytes that are no trace of this version, or a damaged one. A last step that is not whole is no error:
    /// see [`RoutingTrace::cut`].
    pub fn parse(bytes: &[u8]) -> Result<Self, RoutingError> {
        let head = head(bytes)?;
        let (mut steps, mut place) = (Vec::new(), HEAD_BYTES);
        while let Some((length, wanted)) = record_head(&bytes[place..]) {
            let start = place + RECORD_HEAD_BYTES;
            let Some(body) = start.checked_add(length).and_then(|end| bytes.get(start..end)) else { break };
            let last = start + length == bytes.len();
            let damaged = |what: &str| RoutingError::Damaged { offset: place as u64, what: what.to_owned() };
            if hash(body) != wanted {
                // The system may have made room for the last bytes and not have written them.
                if last {
                    break;
                }
                return Err(damaged("the checksum of a step does not fit"));
            }
            steps.push(body::decode(&head, body).map_err(|what| damaged(&what))?);
            place = start + length;
        }
        Ok(Self { head, steps, cut: (bytes.len() - place) as u64 })
    }

    /// Rows of all steps, as the first layer of each saw them.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let ranks = u64::from(self.head.ranks.max(1));
        self.steps.iter().filter_map(|step| step.first()).map(|layer| layer.picks.len() as u64 / ranks).sum()
    }

    /// The same tokens with prompts in chunks of so many rows: steps of several rows that follow each other become one
    /// prompt, which is cut anew. Steps that did not come to all layers stay as they are.
    #[must_use]
    pub fn in_chunks(&self, rows: u32) -> Self {
        let mut steps: Vec<RoutingStep> = Vec::new();
        let mut prompt: Option<RoutingStep> = None;
        for step in &self.steps {
            let joins = self.is_chunk(step);
            match &mut prompt {
                Some(prompt) if joins => {
                    for (layer, more) in prompt.iter_mut().zip(step) {
                        layer.picks.extend(&more.picks);
                    }
                }
                _ => {
                    self.cut_into(prompt.take(), rows, &mut steps);
                    if joins {
                        prompt = Some(step.clone());
                    } else {
                        steps.push(step.clone());
                    }
                }
            }
        }
        self.cut_into(prompt, rows, &mut steps);
        Self { head: self.head.clone(), steps, cut: self.cut }
    }

    /// Rows of every chunk of a prompt.
    pub fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        let rows = |step: &RoutingStep| (step[0].picks.len() / usize::from(self.head.ranks.max(1))) as u64;
        self.steps.iter().filter(|step| self.is_chunk(step)).map(rows)
    }

    /// Whether a step has several rows, and the same in every layer.
    fn is_chunk(&self, step: &[LayerPicks]) -> bool {
        let ranks = usize::from(self.head.ranks);
        let length = step.first().map_or(0, |layer| layer.picks.len());
        let layers = self.head.layers();
        length > ranks
            && step.len() == layers.len()
            && step
                .iter()
                .zip(layers)
                .all(|(layer, number)| layer.layer == number && layer.picks.len() == length)
    }

    fn cut_into(&self, prompt: Option<RoutingStep>, rows: u32, steps: &mut Vec<RoutingStep>) {
        let Some(prompt) = prompt else { return };
        let picks = rows.max(1) as usize * usize::from(self.head.ranks);
        let length = prompt.first().map_or(0, |layer| layer.picks.len());
        for start in (0..length).step_by(picks) {
            let part = |layer: &LayerPicks| LayerPicks {
                layer: layer.layer,
                picks: layer.picks[start..length.min(start + picks)].to_vec(),
            };
            steps.push(prompt.iter().map(part).collect());
        }
    }
}

/// Length and hash of the next body, if they are there.
fn record_head(bytes: &[u8]) -> Option<(usize, [u8; HASH_BYTES])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (hash, _) = rest.split_first_chunk()?;
    Some((u32::from_le_bytes(*length) as usize, *hash))
}

fn head(bytes: &[u8]) -> Result<RoutingHead, RoutingError> {
    let cut = || RoutingError::NoHead { bytes: bytes.len() as u64 };
    if !MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())]) {
        return Err(RoutingError::Foreign);
    }
    let two = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let version = bytes.get(8..).and_then(<[u8]>::first_chunk).map(|four| u32::from_le_bytes(*four));
    match version {
        None => return Err(cut()),
        Some(VERSION) => {}
        Some(found) => return Err(RoutingError::Version { found }),
    }
    let (before, wanted) = bytes.get(..HEAD_BYTES).ok_or_else(cut)?.split_at(HEAD_BYTES - HASH_BYTES);
    let damaged = |what: &str| RoutingError::Damaged { offset: 0, what: what.to_owned() };
    if hash(before) != wanted {
        return Err(damaged("the checksum of its head does not fit"));
    }
    let identity = bytes.get(12..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
    let expert_bytes = bytes.get(52..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
    let head = RoutingHead {
        identity: *identity,
        first_layer: two(44).ok_or_else(cut)?,
        layers: two(46).ok_or_else(cut)?,
        experts_per_layer: two(48).ok_or_else(cut)?,
        ranks: two(50).ok_or_else(cut)?,
        expert_bytes: u64::from_le_bytes(*expert_bytes),
    };
    let RoutingHead { layers, experts_per_layer, ranks, .. } = head;
    if layers == 0
        || experts_per_layer == 0
        || experts_per_layer == NO_PICK
        || !(1..=experts_per_layer).contains(&ranks)
    {
        return Err(damaged(&format!(
            "{layers} layers of {experts_per_layer} experts with {ranks} picks a token cannot be"
        )));
    }
    Ok(head)
}

#[cfg(test)]
mod tests;
