//! A linear layer on rows of numbers, forward and backward, into memory of our own.

use rayon::prelude::*;

use super::product::{Matrix, Products};

/// Sizes of a linear layer on some rows, and how its products are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) products: Products,
    pub(crate) rows: usize,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

impl Linear {
    /// `y = x · weight + bias` for `x` of `[rows, input]` and a weight of `[input, output]`.
    pub(crate) fn forward(self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let x = Matrix::new(x, self.rows, self.input);
        self.products.product(x, Matrix::new(weight, self.input, self.output), bias)
    }

    /// `dx = dy · weightᵀ`
    pub(crate) fn input_gradient(self, weight: &[f32], dy: &[f32]) -> Vec<f32> {
        let weight = Matrix::new(weight, self.input, self.output).transposed();
        self.products.product(Matrix::new(dy, self.rows, self.output), weight, None)
    }

    /// `dweight = xᵀ · dy`
    pub(crate) fn weight_gradient(self, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let Self { products, rows, input, output } = self;
        let (x, dy) = (Matrix::new(x, rows, input), Matrix::new(dy, rows, output));
        if 4 * output >= input {
            return products.product(x.transposed(), dy, None);
        }
        // The wider operand is better the right one. Turned around, the result is small.
        let turned = products.product(dy.transposed(), x, None);
        let mut d = vec![0.0; input * output];
        for (column, values) in turned.chunks_exact(input.max(1)).enumerate() {
            for (row, value) in values.iter().enumerate() {
                d[row * output + column] = *value;
            }
        }
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
