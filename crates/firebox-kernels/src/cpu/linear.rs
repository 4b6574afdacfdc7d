//! A linear layer on rows of numbers, forward and backward, into memory of our own. Inputs and weights are read where
//! they lie, transposed ones, too.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::dropout::{Mask, relu_part, relu_part_backward};
use super::gelu::{dropout_add_part, gelu_part, gelu_part_backward};
use super::product::{Activation, After, Matrix, Products};
use super::{Shared, written};

/// Sizes of a linear layer on some rows, and how its products are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) products: Products,
    pub(crate) rows: usize,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

/// What the gradient of an activation is computed from.
#[derive(Clone, Debug)]
pub(crate) enum Before {
    /// Its result: that of a rectifier says all.
    Result,
    /// The numbers that it was applied to.
    Numbers(Vec<f32>),
}

impl Linear {
    /// `y = x · weight + bias` for `x` of `[rows, input]` and a weight of `[input, output]`, in all of these.
    pub(crate) fn forward(
        self,
        x: Matrix<'_>,
        weight: Matrix<'_>,
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        self.products.product(x, weight, bias)
    }

    /// `activation(x · weight + bias) · mask`, and what its gradient is computed from.
    pub(crate) fn activated(
        self,
        x: Matrix<'_>,
        weight: Matrix<'_>,
        bias: Option<&[f32]>,
        activation: Activation,
        mask: Option<Mask>,
    ) -> (Vec<f32>, Before) {
        let kernels = self.products.kernels;
        let product = |after: After<'_>| self.products.product_then(x, weight, bias, Some(after));
        match activation {
            Activation::Relu => {
                let y = product(&|first, part| relu_part(kernels, mask, first, part));
                (y, Before::Result)
            }
            Activation::Gelu => {
                let write = |y: &mut [MaybeUninit<f32>]| {
                    let shared = Shared::new(y);
                    product(&|first, part| {
                        // SAFETY: the same part of another matrix, which no other thread has.
                        let y = unsafe { shared.part(first, part.len()) };
                        gelu_part(kernels, mask, first, y.write_copy_of_slice(part));
                    })
                };
                // SAFETY: the parts of a result are all of it.
                let (y, x) = unsafe { written(self.rows * self.output, write) };
                (y, Before::Numbers(x))
            }
        }
    }

    /// `(x · weight + bias) · mask + addend`, the addend of the result's shape.
    pub(crate) fn added(
        self,
        x: Matrix<'_>,
        weight: Matrix<'_>,
        bias: Option<&[f32]>,
        mask: Option<Mask>,
        addend: &[f32],
    ) -> Vec<f32> {
        assert_eq!(addend.len(), self.rows * self.output, "a number for each");
        let kernels = self.products.kernels;
        let add = |first: usize, part: &mut [f32]| {
            dropout_add_part(kernels, mask, first, addend, part);
        };
        self.products.product_then(x, weight, bias, Some(&add))
    }

    /// The gradient of what an activation was applied to whose result, `y`, is this layer's input:
    /// `(dy · weightᵀ) · mask · activation'`.
    pub(crate) fn activated_input_gradient(
        self,
        weight: Matrix<'_>,
        dy: &[f32],
        y: &[f32],
        before: &Before,
        mask: Option<Mask>,
    ) -> Vec<f32> {
        assert_eq!(y.len(), self.rows * self.input, "a number for each");
        let kernels = self.products.kernels;
        let dy = Matrix::new(dy, self.rows, self.output);
        let bend = |first: usize, part: &mut [f32]| match before {
            Before::Result => relu_part_backward(mask, &y[first..][..part.len()], part),
            Before::Numbers(x) => gelu_part_backward(kernels, mask, first, x, part),
        };
        self.products.product_then(dy, weight.transposed(), None, Some(&bend))
    }

    /// `dx = dy · weightᵀ`
    pub(crate) fn input_gradient(self, weight: Matrix<'_>, dy: &[f32]) -> Vec<f32> {
        self.products.product(Matrix::new(dy, self.rows, self.output), weight.transposed(), None)
    }

    /// `dweight = xᵀ · dy`
    pub(crate) fn weight_gradient(self, x: Matrix<'_>, dy: &[f32]) -> Vec<f32> {
        let Self { products, rows, input, output } = self;
        let dy = Matrix::new(dy, rows, output);
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
