//! A right operand that is packed once for the products of many threads, each of which multiplies
//! rows of its own: what layers are made of that keep their results in a core's cache.

use super::part::{Activation, Left, Out, Right, Task, multiply_part};
use super::{Matrix, Products, RECTANGLE, pack};
use crate::cpu::Shared;
use crate::cpu::compute::{Bf16, Compute, F32};
use crate::cpu::pool::Lent;

/// A packed weight of a linear layer, and its bias.
pub(crate) struct Weight<'a> {
    products: Products,
    panels: Lent,
    bias: Option<&'a [f32]>,
    pub(crate) input: usize,
    pub(crate) output: usize,
}

/// Rows that a weight is multiplied with.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// `[rows, input]`
    Numbers(&'a [f32]),
    /// What [`Weight::pack`] and [`Weight::activated`] write.
    Packed(&'a [f32]),
}

impl Products {
    /// Packs a weight of `[input, output]` by all threads; neither size may be 0.
    pub(crate) fn weight<'a>(
        self,
        weight: &[f32],
        bias: Option<&'a [f32]>,
        [input, output]: [usize; 2],
    ) -> Weight<'a> {
        assert!(input > 0 && output > 0, "a weight of {input} × {output}");
        assert!(bias.is_none_or(|bias| bias.len() == output), "a bias for {output} columns");
        let matrix = Matrix::new(weight, input, output);
        let panels = match self.bf16 {
            false => pack::whole_right::<F32>(self.kernels, matrix),
            true => pack::whole_right::<Bf16>(self.kernels, matrix),
        };
        Weight { products: self, panels, bias, input, output }
    }
}

impl Weight<'_> {
    /// Room that so many rows of its input need when they are packed, in numbers.
    pub(crate) fn packed(&self, rows: usize) -> usize {
        rows * match self.products.bf16 {
            false => pack::words::<F32>(self.input),
            true => pack::words::<Bf16>(self.input),
        }
    }

    /// Rows of the input for several products: in `room`, if they are packed for them.
    pub(crate) fn pack<'b>(&self, rows: &'b [f32], room: &'b mut [f32]) -> Rows<'b> {
        if !self.products.bf16 {
            return Rows::Numbers(rows);
        }
        let matrix = Matrix::new(rows, rows.len() / self.input, self.input);
        pack::rows::<Bf16>(self.products.kernels, matrix, room);
        Rows::Packed(room)
    }

    /// `bias + rows · weight + addend` into every number of `out`, `[rows, output]`, by the calling
    /// thread. The addend has the same shape.
    pub(in crate::cpu) fn multiply(
        &self,
        rows: Rows<'_>,
        addend: Option<&[f32]>,
        out: &Shared<'_>,
    ) {
        let count = out.len / self.output;
        assert!(addend.is_none_or(|addend| addend.len() == out.len), "a number for each");
        self.run(count, rows, addend, Out::Numbers(out));
    }

    /// `activation(bias + rows · weight)` of so many rows by the calling thread, packed as
    /// [`Weight::pack`] of the weight that is multiplied with it does, whatever the type.
    pub(crate) fn activated(
        &self,
        count: usize,
        rows: Rows<'_>,
        activation: Activation,
        out: &mut [f32],
    ) {
        self.run(count, rows, None, Out::Words(&Shared::new(out), activation));
    }

    fn run(&self, rows: usize, left: Rows<'_>, addend: Option<&[f32]>, out: Out<'_>) {
        let task = Task {
            kernels: self.products.kernels,
            left: match left {
                Rows::Numbers(values) => Left::Numbers(Matrix::new(values, rows, self.input)),
                Rows::Packed(words) => Left::Rows(words),
            },
            right: Right::Panels(self.panels.get()),
            rows,
            inner: self.input,
            columns: self.output,
            bias: self.bias,
            addend,
            out,
        };
        match self.products.bf16 {
            false => self.run_in::<F32>(&task),
            true => self.run_in::<Bf16>(&task),
        }
    }

    fn run_in<C: Compute>(&self, task: &Task<'_>) {
        for first in (0..self.output).step_by(RECTANGLE[1]) {
            let columns = first..self.output.min(first + RECTANGLE[1]);
            multiply_part::<C>(self.products.kernels, task, [0..task.rows, columns]);
        }
    }
}
