//! Where each expert's bytes lie on disk and where they go in a slot. It knows names and numbers of bytes, not what they
//! stand for, and opens no file.

use crate::disk_reader::DIRECT_ALIGNMENT;
mod checks;

use checks::Checks;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// One routed expert of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId {
    /// The model's layer, counted from 0 as in the checkpoint.
    pub layer: u16,
    /// The expert within its layer.
    pub expert: u16,
}

impl fmt::Display for ExpertId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "layer {} expert {}", self.layer, self.expert)
    }
}

/// One of the byte ranges an expert is made of; the same for all experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceSpec {
    /// Its name within the expert, such as `w1.weight_scale`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The length of one of its rows; `bytes` is a multiple of it.
    pub row_bytes: u64,
    /// A byte that must not occur, such as 255 in ue8m0 scales, where it stands for NaN.
    pub forbidden: Option<u8>,
}

/// Pieces of a slot start at multiples of this many bytes.
pub const PIECE_ALIGNMENT: u64 = 16;

/// The pieces of an expert and where each lies in a slot: in order, each start rounded up to [`PIECE_ALIGNMENT`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertLayout {
    pieces: Vec<PieceSpec>,
    offsets: Vec<u64>,
    payload_bytes: u64,
}

impl ExpertLayout {
    /// Lays out `pieces` in the order given.
    ///
    /// # Errors
    /// [`CatalogError::NoPieces`], [`CatalogError::PieceSize`], [`CatalogError::PieceTwice`],
    /// [`CatalogError::ExpertTooLarge`].
    pub fn new(pieces: Vec<PieceSpec>) -> Result<Self, CatalogError> {
        let mut names = HashSet::new();
        let mut offsets = Vec::with_capacity(pieces.len());
        let mut end = 0_u64;
        for piece in &pieces {
            let PieceSpec { ref name, bytes, row_bytes, .. } = *piece;
            if bytes == 0 || row_bytes == 0 || !bytes.is_multiple_of(row_bytes) {
                return Err(CatalogError::PieceSize { piece: name.clone(), bytes, row_bytes });
            }
            if !names.insert(name) {
                return Err(CatalogError::PieceTwice { piece: name.clone() });
            }
            let start = end.next_multiple_of(PIECE_ALIGNMENT);
            offsets.push(start);
            end = start.saturating_add(bytes);
            if end > u64::from(u32::MAX) {
                return Err(CatalogError::ExpertTooLarge { piece: name.clone(), end });
            }
        }
        if pieces.is_empty() {
            return Err(CatalogError::NoPieces);
        }
        Ok(Self { pieces, offsets, payload_bytes: end })
    }

    /// The pieces in order.
    #[must_use]
    pub fn pieces(&self) -> &[PieceSpec] {
        &self.pieces
    }

    /// The number of the piece named `name`.
    #[must_use]
    pub fn piece(&self, name: &str) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.name == name)
    }

    /// Where piece `piece` starts, in bytes from the start of the payload.
    ///
    /// # Panics
    /// If there is no such piece.
    #[must_use]
    pub fn offset(&self, piece: usize) -> u64 {
        self.offsets[piece]
    }

    /// The bytes of piece `piece` in a payload.
    ///
    /// # Panics
    /// If there is no such piece.
    #[must_use]
    pub fn range(&self, piece: usize) -> Range<usize> {
        let start = self.offsets[piece];
        start as usize..(start + self.pieces[piece].bytes) as usize
    }

    /// Bytes from the start of the first piece to the end of the last.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Bytes that a slot wants: the payload and the blocks of its file that it begins and ends in, which a direct read
    /// brings along. In a smaller slot experts are read in parts and copied.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.payload_bytes + 2 * (DIRECT_ALIGNMENT - 1)
    }
}

/// Bytes that lie back to back in a file and in a slot, read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Number of the file.
    pub file: u32,
    /// Where the run starts in the file.
    pub file_offset: u64,
    /// Where it starts in the payload.
    pub payload_offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Where all experts lie: 12 bytes for each piece of each expert. Experts have indices: layer by layer, in order.
#[derive(Debug)]
pub struct Catalog {
    layout: ExpertLayout,
    layers: Range<u16>,
    experts_per_layer: u16,
    /// Number of the file, for each piece of each expert.
    files: Vec<u32>,
    /// Offset in the file, for each piece of each expert.
    offsets: Vec<u64>,
    /// What experts are compared with, if they are.
    checks: Option<Checks>,
}

impl Catalog {
    /// How an expert is laid out.
    #[must_use]
    pub fn layout(&self) -> &ExpertLayout {
        &self.layout
    }

    /// Layers that have experts.
    #[must_use]
    pub fn layers(&self) -> Range<u16> {
        self.layers.clone()
    }

    /// Experts in each of these layers.
    #[must_use]
    pub fn experts_per_layer(&self) -> u16 {
        self.experts_per_layer
    }

    /// Experts of all layers.
    #[must_use]
    pub fn experts(&self) -> u32 {
        self.layers.len() as u32 * u32::from(self.experts_per_layer)
    }

    /// The index of an expert, below [`Catalog::experts`]; `None` if the model has no such expert.
    #[must_use]
    pub fn index(&self, id: ExpertId) -> Option<u32> {
        let known = self.layers.contains(&id.layer) && id.expert < self.experts_per_layer;
        let layer = || u32::from(id.layer - self.layers.start);
        known.then(|| layer() * u32::from(self.experts_per_layer) + u32::from(id.expert))
    }

    /// The expert with index `index`.
    ///
    /// # Panics
    /// If there is no such expert.
    #[must_use]
    pub fn id(&self, index: u32) -> ExpertId {
        assert!(index < self.experts(), "expert index {index} of {}", self.experts());
        let layer = self.layers.start + (index / u32::from(self.experts_per_layer)) as u16;
        ExpertId { layer, expert: (index % u32::from(self.experts_per_layer)) as u16 }
    }

    /// Where an expert starts on disk: file, then offset. Reads in this order move the head of a disk one way.
    pub(crate) fn disk_order(&self, index: u32) -> (u32, u64) {
        self.place(index, 0)
    }

    /// File and offset of one piece of an expert.
    pub(crate) fn place(&self, index: u32, piece: usize) -> (u32, u64) {
        let place = index as usize * self.layout.pieces.len() + piece;
        (self.files[place], self.offsets[place])
    }

    /// The reads that bring an expert: pieces that lie back to back both in the file and in the slot come in one. Those
    /// that lie back to back in the file only, in another order, stay apart: std has no stable `read_vectored_at`.
    ///
    /// # Panics
    /// If there is no such expert.
    pub fn runs(&self, index: u32) -> impl Iterator<Item = Run> + '_ {
        let count = self.layout.pieces.len();
        let single = move |piece: usize| {
            let (file, file_offset) = self.place(index, piece);
            let (payload_offset, bytes) = (self.layout.offsets[piece], self.layout.pieces[piece].bytes);
            Run { file, file_offset, payload_offset, bytes }
        };
        let mut next = 0;
        std::iter::from_fn(move || {
            if next == count {
                return None;
            }
            let mut run = single(next);
            next += 1;
            while next < count && continues(&run, &single(next)) {
                run.bytes += self.layout.pieces[next].bytes;
                next += 1;
            }
            Some(run)
        })
    }
}

fn continues(run: &Run, next: &Run) -> bool {
    next.file == run.file
        && next.file_offset == run.file_offset + run.bytes
        && next.payload_offset == run.payload_offset + run.bytes
}

/// No file has this number: the piece has not been placed yet.
const UNPLACED: u32 = u32::MAX;

/// Collects where pieces lie, in any order, and makes sure that each was told once.
#[derive(Debug)]
pub struct CatalogBuilder {
    catalog: Catalog,
}

impl CatalogBuilder {
    /// Starts a catalog for `experts_per_layer` experts in each layer of `layers`.
    #[must_use]
    pub fn new(layout: ExpertLayout, layers: Range<u16>, experts_per_layer: u16) -> Self {
        let places = layers.len() * usize::from(experts_per_layer) * layout.pieces.len();
        let (files, offsets) = (vec![UNPLACED; places], vec![0; places]);
        Self { catalog: Catalog { layout, layers, experts_per_layer, files, offsets, checks: None } }
    }

    /// Tells that the piece named `piece` of expert `id` lies in file number `file` from byte `offset` on.
    ///
    /// # Errors
    /// [`CatalogError::UnknownExpert`], [`CatalogError::UnknownPiece`], [`CatalogError::PlacedTwice`],
    /// [`CatalogError::PlaceTooLarge`].
    pub fn place(&mut self, id: ExpertId, piece: &str, file: u32, offset: u64) -> Result<(), CatalogError> {
        let catalog = &mut self.catalog;
        let Some(index) = catalog.index(id) else {
            let (layers, experts) = (catalog.layers.clone(), catalog.experts_per_layer);
            return Err(CatalogError::UnknownExpert { id, layers, experts });
        };
        let Some(number) = catalog.layout.piece(piece) else {
            return Err(CatalogError::UnknownPiece { id, piece: piece.to_owned() });
        };
        if file == UNPLACED || offset.checked_add(catalog.layout.pieces[number].bytes).is_none() {
            return Err(CatalogError::PlaceTooLarge { id, piece: piece.to_owned(), file, offset });
        }
        let place = index as usize * catalog.layout.pieces.len() + number;
        if catalog.files[place] != UNPLACED {
            return Err(CatalogError::PlacedTwice { id, piece: piece.to_owned() });
        }
        catalog.files[place] = file;
        catalog.offsets[place] = offset;
        Ok(())
    }

    /// The catalog, if every piece of every expert was placed.
    ///
    /// # Errors
    /// [`CatalogError::Missing`] with the first piece that was not, and how many more.
    pub fn finish(self) -> Result<Catalog, CatalogError> {
        let Self { catalog } = self;
        let mut missing = catalog.files.iter().enumerate().filter(|(_, file)| **file == UNPLACED);
        let Some((place, _)) = missing.next() else {
            return Ok(catalog);
        };
        let count = catalog.layout.pieces.len();
        let id = catalog.id((place / count) as u32);
        let piece = catalog.layout.pieces[place % count].name.clone();
        Err(CatalogError::Missing { id, piece, others: missing.count() })
    }
}

/// Pieces that do not make up experts.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// Experts of nothing.
    #[error("experts need at least one piece of bytes, but none was named")]
    NoPieces,
    /// A piece of no bytes or of rows that do not fill it.
    #[error("piece {piece} has {bytes} bytes, which are not one or more rows of {row_bytes} bytes")]
    PieceSize {
        /// The piece.
        piece: String,
        /// Its length.
        bytes: u64,
        /// Length of its rows.
        row_bytes: u64,
    },
    /// Two pieces of one name.
    #[error("an expert has two pieces named {piece}; each needs a name of its own")]
    PieceTwice {
        /// The piece.
        piece: String,
    },
    /// More bytes than fit into any slot.
    #[error("with piece {piece} an expert takes {end} bytes; more than 4294967295 are not supported")]
    ExpertTooLarge {
        /// The piece that is too much.
        piece: String,
        /// Bytes of the expert up to its end.
        end: u64,
    },
    /// A piece for an expert that the model does not have.
    #[error(
        "{id} is in the checkpoint, but the model has experts 0 to {experts} (excluded) in layers {layers:?}"
    )]
    UnknownExpert {
        /// The expert.
        id: ExpertId,
        /// Layers with experts.
        layers: Range<u16>,
        /// Experts in each.
        experts: u16,
    },
    /// A piece that experts do not have.
    #[error("{id} has a piece {piece}, which is none of those that experts are made of")]
    UnknownPiece {
        /// The expert.
        id: ExpertId,
        /// The piece.
        piece: String,
    },
    /// A file number or an offset that cannot be.
    #[error("{id} piece {piece}: file number {file}, offset {offset} is beyond all files")]
    PlaceTooLarge {
        /// The expert.
        id: ExpertId,
        /// The piece.
        piece: String,
        /// Number of the file.
        file: u32,
        /// Offset in it.
        offset: u64,
    },
    /// A piece that is there twice.
    #[error("{id} has its piece {piece} twice in the checkpoint; remove the file that does not belong to it")]
    PlacedTwice {
        /// The expert.
        id: ExpertId,
        /// The piece.
        piece: String,
    },
    /// Experts are to be compared with checksums that are not there.
    #[error(
        "{id} has no checksum to be compared with: experts have checksums in a container that `colibri convert` wrote whole, \
         not in a release and not in a thin one; leave --check-experts away, or convert the model"
    )]
    NoChecksum {
        /// The first expert without one.
        id: ExpertId,
    },
    /// Pieces that are not there.
    #[error(
        "{id} lacks its piece {piece} in the checkpoint ({others} other pieces are missing too); download it again"
    )]
    Missing {
        /// The first expert that lacks one.
        id: ExpertId,
        /// The first piece it lacks.
        piece: String,
        /// How many more are missing.
        others: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, bytes: u64) -> PieceSpec {
        PieceSpec { name: name.to_owned(), bytes, row_bytes: 1, forbidden: None }
    }

    fn id(layer: u16, expert: u16) -> ExpertId {
        ExpertId { layer, expert }
    }

    fn run(file: u32, file_offset: u64, payload_offset: u64, bytes: u64) -> Run {
        Run { file, file_offset, payload_offset, bytes }
    }

    /// The six pieces of K3's experts.
    fn k3() -> ExpertLayout {
        let sizes = [("w1", 3072, 1792), ("w2", 3584, 1536), ("w3", 3072, 1792)];
        let pieces = sizes.iter().flat_map(|&(name, rows, row_bytes)| {
            [("packed", row_bytes, None), ("scale", row_bytes / 16, Some(255))].map(
                |(kind, row_bytes, forbidden)| PieceSpec {
                    name: format!("{name}.weight_{kind}"),
                    bytes: rows * row_bytes,
                    row_bytes,
                    forbidden,
                },
            )
        });
        ExpertLayout::new(pieces.collect()).unwrap()
    }

    #[test]
    fn pieces_start_at_multiples_of_16() {
        let layout = ExpertLayout::new(vec![piece("a", 17), piece("b", 32), piece("c", 1)]).unwrap();
        assert_eq!([layout.offset(0), layout.offset(1), layout.offset(2)], [0, 32, 64]);
        assert_eq!(layout.payload_bytes(), 65);
        assert_eq!(layout.range(1), 32..64);
        assert_eq!((layout.piece("c"), layout.piece("d")), (Some(2), None));
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        let new = |pieces| ExpertLayout::new(pieces).unwrap_err();
        assert_eq!(new(vec![]), CatalogError::NoPieces);
        assert!(matches!(new(vec![piece("a", 0)]), CatalogError::PieceSize { .. }));
        assert!(matches!(
            new(vec![PieceSpec { row_bytes: 3, ..piece("a", 10) }]),
            CatalogError::PieceSize { .. }
        ));
        assert!(matches!(
            new(vec![PieceSpec { row_bytes: 0, ..piece("a", 10) }]),
            CatalogError::PieceSize { .. }
        ));
        assert!(matches!(new(vec![piece("a", 1), piece("a", 1)]), CatalogError::PieceTwice { .. }));
        assert!(matches!(
            new(vec![piece("a", 1), piece("b", u64::MAX)]),
            CatalogError::ExpertTooLarge { .. }
        ));
    }

    #[test]
    fn a_k3_expert_in_the_released_order_is_one_read() {
        let layout = k3();
        assert_eq!(layout.payload_bytes(), 17_547_264);
        let mut builder = CatalogBuilder::new(layout.clone(), 1..2, 1);
        for (number, piece) in layout.pieces().iter().enumerate().rev() {
            builder.place(id(1, 0), &piece.name, 3, 1001 + layout.offset(number)).unwrap();
        }
        let catalog = builder.finish().unwrap();
        assert_eq!(catalog.runs(0).collect::<Vec<_>>(), [run(3, 1001, 0, 17_547_264)]);
        assert_eq!(catalog.disk_order(0), (3, 1001));
    }

    #[test]
    fn the_whole_of_k3_takes_less_than_10_megabytes() {
        let layout = k3();
        let mut builder = CatalogBuilder::new(layout.clone(), 1..93, 896);
        for layer in 1..93 {
            for expert in 0..896 {
                for piece in layout.pieces() {
                    builder
                        .place(id(layer, expert), &piece.name, u32::from(layer), u64::from(expert) << 32)
                        .unwrap();
                }
            }
        }
        let catalog = builder.finish().unwrap();
        assert_eq!(catalog.experts(), 82_432);
        assert!(catalog.files.capacity() * 4 + catalog.offsets.capacity() * 8 < 10_000_000);
        for index in [0, 895, 896, 82_431] {
            assert_eq!(catalog.index(catalog.id(index)), Some(index));
        }
        assert_eq!(catalog.id(82_431), id(92, 895));
        assert_eq!([id(0, 0), id(93, 0), id(1, 896)].map(|id| catalog.index(id)), [None; 3]);
    }

    #[test]
    fn runs_break_where_file_or_slot_have_gaps() {
        // `b` does not follow `a` in the slot, because `a` ends at no multiple of 16.
        let layout =
            ExpertLayout::new(vec![piece("a", 17), piece("b", 32), piece("c", 5), piece("d", 4)]).unwrap();
        let mut builder = CatalogBuilder::new(layout, 0..1, 2);
        for (expert, places) in
            [[(0, 0), (0, 17), (0, 49), (0, 54)], [(0, 500), (1, 532), (1, 564), (2, 569)]].iter().enumerate()
        {
            for (name, &(file, offset)) in ["a", "b", "c", "d"].iter().zip(places) {
                builder.place(id(0, expert as u16), name, file, offset).unwrap();
            }
        }
        let catalog = builder.finish().unwrap();
        assert_eq!(
            catalog.runs(0).collect::<Vec<_>>(),
            [run(0, 0, 0, 17), run(0, 17, 32, 37), run(0, 54, 80, 4)]
        );
        assert_eq!(
            catalog.runs(1).collect::<Vec<_>>(),
            [run(0, 500, 0, 17), run(1, 532, 32, 37), run(2, 569, 80, 4)]
        );
    }

    #[test]
    fn missing_double_and_unknown_pieces_are_named() {
        let layout = ExpertLayout::new(vec![piece("a", 16), piece("b", 16)]).unwrap();
        let mut builder = CatalogBuilder::new(layout, 3..5, 2);
        builder.place(id(3, 0), "a", 0, 0).unwrap();
        builder.place(id(3, 1), "b", 0, 0).unwrap();
        let twice = builder.place(id(3, 1), "b", 1, 0).unwrap_err().to_string();
        assert!(twice.contains("layer 3 expert 1 has its piece b twice"), "{twice}");
        let unknown = builder.place(id(3, 1), "z", 1, 0).unwrap_err().to_string();
        assert!(unknown.contains("layer 3 expert 1 has a piece z"), "{unknown}");
        let expert = builder.place(id(5, 0), "a", 1, 0).unwrap_err().to_string();
        assert!(expert.contains("layer 5 expert 0") && expert.contains("layers 3..5"), "{expert}");
        let place = builder.place(id(4, 0), "a", 1, u64::MAX).unwrap_err();
        assert!(matches!(place, CatalogError::PlaceTooLarge { .. }));
        let missing = builder.finish().unwrap_err().to_string();
        assert!(missing.contains("layer 3 expert 0 lacks its piece b"), "{missing}");
        assert!(missing.contains("5 other pieces"), "{missing}");
    }
}
