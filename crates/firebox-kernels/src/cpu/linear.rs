//! Matrix products of rows with a weight, forward and backward, into memory of our own.
//!
//! The products are the `gemm` crate's, at 90 % of the processor's peak. Burn's CPU backend uses the
//! same, but copies each result once and makes the gradient of a bias on one thread.

use gemm::Parallelism;
use rayon::prelude::*;

use super::zeros;

/// A matrix by rows and columns, with the distance between two of each.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `[rows, columns]`, row-major.
    fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} × {columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = left · right`, or `out += left · right`.
fn multiply(left: Matrix<'_>, right: Matrix<'_>, add: bool, out: &mut [f32]) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(inner, right.rows, "inner sizes of a product");
    assert_eq!(out.len(), rows * columns, "a product of {rows} × {columns}");
    if inner == 0 || out.is_empty() {
        return;
    }
    // A thread costs more than a small product.
    let parallelism =
        if rows * columns * inner < 1 << 16 { Parallelism::None } else { Parallelism::Rayon(0) };
    // SAFETY: `Matrix::new` and the assertions tie every size to the length of its slice, and
    // `transposed` exchanges sizes and strides together, so no index leaves a slice; `out` is
    // borrowed mutably and therefore overlaps neither operand.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            columns as isize,
            add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Sizes of a linear layer on some rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) rows: usize,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

impl Linear {
    /// `y = x · weight + bias` for `x` of `[rows, input]` and a weight of `[input, output]`.
    pub(crate) fn forward(self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mut y = zeros(self.rows * self.output);
        if let Some(bias) = bias {
            y.par_chunks_mut(self.output.max(1) * ROWS).for_each(|rows| {
                rows.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
            });
        }
        let x = Matrix::new(x, self.rows, self.input);
        multiply(x, Matrix::new(weight, self.input, self.output), bias.is_some(), &mut y);
        y
    }

    /// `dx = dy · weightᵀ`
    pub(crate) fn input_gradient(self, weight: &[f32], dy: &[f32]) -> Vec<f32> {
        let mut dx = zeros(self.rows * self.input);
        let weight = Matrix::new(weight, self.input, self.output).transposed();
        multiply(Matrix::new(dy, self.rows, self.output), weight, false, &mut dx);
        dx
    }

    /// `dweight = xᵀ · dy`
    pub(crate) fn weight_gradient(self, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let mut d = zeros(self.input * self.output);
        let x = Matrix::new(x, self.rows, self.input).transposed();
        multiply(x, Matrix::new(dy, self.rows, self.output), false, &mut d);
        d
    }

    /// `dbias = Σ dy`, summed over blocks of rows and then over the blocks, in their order.
    pub(crate) fn bias_gradient(self, dy: &[f32]) -> Vec<f32> {
        let add = |mut sum: Vec<f32>, row: &[f32]| {
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            sum
        };
        let none = || vec![0.0; self.output];
        let blocks: Vec<_> = dy
            .par_chunks(self.output.max(1) * ROWS)
            .map(|rows| rows.chunks_exact(self.output.max(1)).fold(none(), add))
            .collect();
        blocks.iter().fold(none(), |sum, block| add(sum, block))
    }
}

/// Rows that a thread takes at once.
const ROWS: usize = 1024;
