//! A result that threads fill side by side: each has some columns of all rows. It knows no product.
use std::marker::PhantomData;
use std::ops::Range;

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
// SAFETY: a shared one gives no access but by `columns`, whose caller promises that no two overlap.
unsafe impl Sync for Outputs<'_> {}

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

    /// Some of the columns, beside others that somebody else has.
    ///
    /// # Safety
    /// As long as the result lives, no other of the same columns does, and `self` is used for nothing else.
    ///
    /// # Panics
    /// If there are no such columns.
    #[must_use]
    pub unsafe fn columns(&self, columns: Range<usize>) -> Outputs<'_> {
        let inside = columns.start <= columns.end && columns.end <= self.cols;
        assert!(inside, "columns {columns:?} of {}", self.cols);
        let first = self.first.wrapping_add(columns.start);
        Outputs { first, cols: columns.len(), rows: self.rows, stride: self.stride, borrow: PhantomData }
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
    #[should_panic(expected = "2 rows of 3, one every 7, in 9 numbers")]
    fn a_matrix_must_fit() {
        let _ = Outputs::new(&mut [0.0; 9], 2, 3, 7);
    }
}
