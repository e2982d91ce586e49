//! The forms in which activations meet weights, and their sizes. `crate::product::inputs` brings them about.
use super::limits::AskCodes;
use super::{COLUMNS, FLOATS, GROUPS, Planes, WORDS, run};
use crate::level::Level;

/// How prepared rows lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are, filled up with zeros to whole blocks of 16.
    Floats,
    /// `int15` in planes of bytes or words, for kernels of few rows.
    Int15Planes,
    /// `int8` likewise.
    Int8Planes,
    /// `int15` in pairs of words, one group a lane, for kernels of many rows.
    Int15Words,
    /// `int8` likewise.
    Int8Words,
    /// f32 for packed weights: one group a lane.
    Transposed,
}

impl Form {
    /// Bytes of a prepared row.
    pub(crate) fn bytes(self, level: Level, cols: usize) -> usize {
        let blocks = cols.div_ceil(COLUMNS);
        match self {
            Form::Floats => cols.next_multiple_of(GROUPS) * 4,
            Form::Int15Planes => blocks * Planes::block(run(level, AskCodes), true),
            Form::Int8Planes => blocks * Planes::block(run(level, AskCodes), false),
            Form::Int15Words | Form::Int8Words => blocks * (WORDS + 4 * GROUPS),
            Form::Transposed => blocks * FLOATS,
        }
    }
}
