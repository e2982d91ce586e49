//! A result that threads fill side by side: each has some columns of all rows. It knows no product.
use crate::memory::Parts;
use std::marker::PhantomData;

/// Columns of a matrix of f32 whose rows lie `stride` numbers apart.
#[derive(Debug)]
pub struct Outputs<'a> {
    first: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a mutable borrow of its numbers, of which there is no other.
unsafe impl Send for Outputs<'_> {}
impl<'a> Outputs<'a> {
    /// All columns of a matrix.
    ///
    /// # Panics
    /// If it does not fit into `values`, or rows overlap.
    #[must_use]
    pub fn new(values: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        let fits = rows == 0 || (rows - 1) * stride + cols <= values.len() && (rows == 1 || stride >= cols);
        assert!(fits, "{rows} rows of {cols}, one every {stride}, in {} numbers", values.len());
        Outputs { first: values.as_mut_ptr(), rows, cols, stride, borrow: PhantomData }
    }

    /// Columns of rows that somebody else lends.
    ///
    /// # Safety
    /// These columns of all rows must be inside of numbers that are lent for `'a`, to the result alone.
    pub(crate) unsafe fn from_raw(first: *mut f32, rows: usize, cols: usize, stride: usize) -> Self {
        Outputs { first, rows, cols, stride, borrow: PhantomData }
    }

    /// The first `count` columns, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        assert!(count <= self.cols, "{count} of {} columns", self.cols);
        let right = Outputs { first: self.first.wrapping_add(count), cols: self.cols - count, ..self };
        (Outputs { cols: count, ..self }, right)
    }

    /// The same for a shorter time.
    #[must_use]
    pub fn borrow(&mut self) -> Outputs<'_> {
        Outputs { borrow: PhantomData, ..*self }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Numbers from a row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// The first column of the first row.
    pub(crate) fn start(&mut self) -> *mut f32 {
        self.first
    }

    /// These columns of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `new` checked that the row lies inside the borrowed numbers; nobody else has these columns.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.cols) }
    }
}

/// Groups of rows, each cut into pieces of some columns, for the pool: part `g * pieces + p` is piece p of group g.
pub(crate) struct Groups<'a> {
    whole: Outputs<'a>,
    /// Where each group begins, and where the last one ends.
    starts: &'a [u32],
    piece: usize,
}

impl<'a> Groups<'a> {
    /// Group g has the rows from `starts[g]` to `starts[g + 1]`; a piece has `piece` columns, the last one fewer.
    ///
    /// # Panics
    /// If groups overlap or end behind the last row.
    pub(crate) fn new(whole: Outputs<'a>, starts: &'a [u32], piece: usize) -> Self {
        let end = starts.last().map_or(0, |end| *end as usize);
        assert!(starts.is_sorted() && end <= whole.rows && piece > 0, "{starts:?} in {} rows", whole.rows);
        Groups { whole, starts, piece }
    }

    /// Pieces of a group.
    pub(crate) fn pieces(&self) -> usize {
        self.whole.cols.div_ceil(self.piece)
    }
}

// SAFETY: through a shared reference only `Parts::part` reaches numbers, whose caller takes each part once.
unsafe impl Sync for Groups<'_> {}

// SAFETY: groups share no rows, and pieces of a group no columns.
unsafe impl<'a> Parts for Groups<'a> {
    type Part = Outputs<'a>;

    fn count(&self) -> usize {
        self.starts.len().saturating_sub(1) * self.pieces()
    }

    unsafe fn part(&self, i: usize) -> Outputs<'a> {
        let (group, piece) = (i / self.pieces(), i % self.pieces());
        let (start, end) = (self.starts[group] as usize, self.starts[group + 1] as usize);
        let column = piece * self.piece;
        let cols = self.piece.min(self.whole.cols - column);
        let first = self.whole.first.wrapping_add(start * self.whole.stride + column);
        Outputs { first, rows: end - start, cols, stride: self.whole.stride, borrow: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_filled_side_by_side() {
        let mut values = [0.0; 11];
        let (mut left, mut right) = Outputs::new(&mut values[1..], 2, 3, 7).split_at(2);
        left.row_mut(1).copy_from_slice(&[1.0, 2.0]);
        right.row_mut(0)[0] = 3.0;
        right.row_mut(1)[0] = 4.0;
        assert_eq!(values, [0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0]);
    }

    #[test]
    fn groups_are_cut_into_pieces_that_share_nothing() {
        let mut values = [0.0; 21];
        let groups = Groups::new(Outputs::new(&mut values, 3, 5, 7), &[0, 2, 2, 3], 3);
        assert_eq!((groups.count(), groups.pieces()), (6, 2));
        for i in 0..6 {
            // SAFETY: each part once.
            let mut part = unsafe { groups.part(i) };
            for row in 0..part.rows() {
                part.row_mut(row).iter_mut().for_each(|value| *value += 1.0 + i as f32);
            }
        }
        let row = |a, b| [a, a, a, b, b, 0.0, 0.0];
        assert_eq!(values, [row(1.0, 2.0), row(1.0, 2.0), row(5.0, 6.0)].as_flattened());
    }

    #[test]
    #[should_panic(expected = "2 rows of 3, one every 7, in 9 numbers")]
    fn a_matrix_must_fit() {
        let _ = Outputs::new(&mut [0.0; 9], 2, 3, 7);
    }
}
