//! Matrices that products read where they lie: their rows or their columns in one piece each, at any distance.

/// A matrix by rows and columns, with the distance between two of each: one of them is 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `[rows, columns]`, row-major.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} × {columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// `[rows, columns]` at [`distances`], the first number in front.
    pub(crate) fn strided(
        values: &'a [f32],
        [rows, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
    ) -> Self {
        assert!(row_stride == 1 || column_stride == 1, "{row_stride} and {column_stride} apart");
        let behind = match rows * columns {
            0 => 0,
            _ => (rows - 1) * row_stride + (columns - 1) * column_stride + 1,
        };
        Self { values: &values[..behind], rows, columns, row_stride, column_stride }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// A pointer to the number at a row and a column, which may lie one behind the last.
    pub(super) fn at(&self, row: usize, column: usize) -> *const f32 {
        self.values.as_ptr().wrapping_add(row * self.row_stride + column * self.column_stride)
    }
}

/// From one row and from one column to the next, as products read a matrix of these sizes that lies so; `None` if
/// neither its rows nor its columns lie in one piece each, or if it runs backwards.
pub(crate) fn distances(
    [rows, columns]: [usize; 2],
    [row, column]: [isize; 2],
) -> Option<[usize; 2]> {
    // From a single row or column there is no way to the next.
    let column = if columns < 2 { 1 } else { usize::try_from(column).ok()? };
    let row = match rows {
        0 | 1 if column == 1 => columns,
        0 | 1 => 1,
        _ => usize::try_from(row).ok()?,
    };
    (row == 1 || column == 1).then_some([row, column])
}

/// Matrices of the same sizes and [`distances`].
#[derive(Clone, Debug)]
pub(crate) struct Matrices<'a> {
    pub(crate) values: &'a [f32],
    /// Where each begins.
    pub(crate) starts: Vec<usize>,
    /// `[rows, columns]`
    pub(crate) sizes: [usize; 2],
    pub(crate) strides: [usize; 2],
}

impl Matrices<'_> {
    pub(crate) fn transposed(mut self) -> Self {
        self.sizes.reverse();
        self.strides.reverse();
        self
    }

    pub(super) fn at(&self, index: usize) -> Matrix<'_> {
        let from = self.starts[index].min(self.values.len());
        Matrix::strided(&self.values[from..], self.sizes, self.strides)
    }
}
