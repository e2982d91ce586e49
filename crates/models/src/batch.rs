//! What one step works on: parts of several sequences, each with its own fate.
use crate::state::State;
use std::sync::atomic::{AtomicBool, Ordering};
use store::cache::ExpertError;
use store::reader::ReadError;

/// Rows of a part.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Token ids; their embedding rows are read from the checkpoint.
    Ids(&'a [u32]),
    /// Hidden rows as they enter layer 0, `width` numbers each.
    Rows(&'a [f32]),
}

impl Input<'_> {
    /// Rows of a model of that width.
    #[must_use]
    pub fn rows(&self, width: usize) -> usize {
        match self {
            Input::Ids(ids) => ids.len(),
            Input::Rows(values) => values.len() / width,
        }
    }
}

/// Which rows of a part want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Logits {
    /// No row: a chunk of a prompt that goes on.
    #[default]
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

/// One sequence's share of a step.
pub struct Part<'a> {
    /// What enters.
    pub input: Input<'a>,
    /// Position of the first row; must be where the state stands.
    pub position: u32,
    /// What the sequence keeps; moved on if and only if the part succeeds.
    pub state: &'a mut State,
    /// Which rows want logits.
    pub logits: Logits,
    /// Layers whose rows are wanted, ascending.
    pub taps: &'a [u32],
    /// Set by another thread to stop the part between layers and while it waits for experts.
    pub cancel: Option<&'a AtomicBool>,
}

/// The rows of one layer of one part, each \[rows, width\].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tap {
    /// The layer.
    pub layer: u32,
    /// Input of attention, after its norm.
    pub attention_input: Vec<f32>,
    /// Output of attention, before the addition.
    pub attention_output: Vec<f32>,
    /// Input of the MLP or the experts, after its norm.
    pub mlp_input: Vec<f32>,
    /// Output of the MLP or the experts, before the addition.
    pub mlp_output: Vec<f32>,
    /// What leaves the layer.
    pub hidden: Vec<f32>,
    /// The router's picks, best first, \[rows, ranks\]; empty in a dense layer.
    pub picks: Vec<u32>,
    /// Their weights.
    pub weights: Vec<f32>,
}

/// What a part gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// \[wanted rows, vocabulary\]
    pub logits: Vec<f32>,
    /// One for each layer asked for.
    pub taps: Vec<Tap>,
}

/// Why a part of a step failed. The other parts finish with the bits they have alone.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// An expert that the part picked cannot be had.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// An embedding row cannot be read.
    #[error("the embedding of token {id} cannot be read")]
    Embedding {
        /// The token.
        id: u32,
        /// What happened to which file.
        source: ReadError,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} lies outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Ids from 0 to one less are valid.
        vocabulary: u32,
    },
    /// Weights that stay in their file could not be read there.
    #[error(
        "the weights in {file} could not be read from byte {offset} on: the drive failed, or the file was cut off; what was computed \
         of this step is dropped, and the file is tried again with the next one"
    )]
    Weights {
        /// The file.
        file: String,
        /// The first byte that did not come.
        offset: u64,
    },
    /// A number that is not finite appeared.
    #[error("{place}, position {position}: a number is not finite; the sequence cannot go on from here")]
    NotFinite {
        /// Where it was noticed.
        place: String,
        /// The first row concerned.
        position: u32,
    },
    /// The caller gave the part up.
    #[error("cancelled")]
    Cancelled,
    /// The part does not begin where its state ends.
    #[error("the part begins at position {asked}, its state stands at {stands}")]
    Position {
        /// What the part says.
        asked: u32,
        /// What the state says.
        stands: u32,
    },
    /// An earlier failure left the state half moved.
    #[error(
        "the state was left half moved by an earlier failure; reset it and feed the sequence's ids again"
    )]
    NeedsRebuild,
    /// No room for more positions.
    #[error("position {wanted} needs more room than is left: {reason}")]
    ContextFull {
        /// Positions after the part.
        wanted: u32,
        /// What is used up.
        reason: String,
    },
    /// Hidden rows that are not whole rows.
    #[error("{numbers} numbers are no whole rows of {width}")]
    Width {
        /// Numbers given.
        numbers: usize,
        /// Numbers in a row.
        width: u32,
    },
    /// Rows of a layer that is not there.
    #[error("rows of layer {layer} are wanted, layers 0 to {last} are loaded")]
    UnknownLayer {
        /// The layer.
        layer: u32,
        /// The last there is.
        last: u32,
    },
    /// A part without rows.
    #[error("a part has no rows")]
    Empty,
}

/// A part's rows in the step, and whether it still counts.
pub(crate) struct Standing<'a> {
    /// First row in the step.
    pub(crate) start: u32,
    /// Rows.
    pub(crate) rows: u32,
    /// Position of its first row.
    pub(crate) position: u32,
    /// Why it no longer counts.
    pub(crate) error: Option<PartError>,
    /// The caller's flag.
    pub(crate) cancel: Option<&'a AtomicBool>,
}

impl Standing<'_> {
    pub(crate) fn holds(&self, row: u32) -> bool {
        (self.start..self.start + self.rows).contains(&row)
    }

    fn notice_cancel(&mut self) {
        if self.error.is_none() && self.cancel.is_some_and(|c| c.load(Ordering::Relaxed)) {
            self.error = Some(PartError::Cancelled);
        }
    }
}

/// Looks at every part's flag; whether any part still counts.
pub(crate) fn any_alive(parts: &mut [Standing<'_>]) -> bool {
    parts.iter_mut().for_each(Standing::notice_cancel);
    parts.iter().any(|p| p.error.is_none())
}

/// Fails the part that owns a row because of a number that is not finite.
pub(crate) fn fail_not_finite(parts: &mut [Standing<'_>], row: u32, place: &str) {
    if let Some(part) = parts.iter_mut().find(|p| p.holds(row) && p.error.is_none()) {
        part.error =
            Some(PartError::NotFinite { place: place.into(), position: part.position + row - part.start });
    }
}
