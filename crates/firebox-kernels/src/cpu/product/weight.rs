//! A right operand that is packed once for the products of many threads, each of which multiplies
//! rows of its own: what layers are made of that keep their results in a core's cache.

use super::part::{Activation, Left, Out, Right, Task, multiply_part};
use super::tile::activate;
use super::{Matrix, Packing, Products, in_words, pack, rectangle};
use crate::cpu::compute::Compute;
use crate::cpu::pool::Lent;
use crate::cpu::{CpuKernels, Shared};

/// A packed weight of a linear layer, and its bias.
pub(crate) struct Weight<'a> {
    kernels: CpuKernels,
    packing: Packing,
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
    /// What [`Weight::pack`] and [`Weight::activated`] write, for this weight.
    Packed(&'a [f32]),
}

impl Products {
    /// Packs a weight of `[input, output]` by all threads, for products with so many rows; neither size may
    /// be 0.
    pub(crate) fn weight<'a>(
        self,
        rows: usize,
        weight: &[f32],
        bias: Option<&'a [f32]>,
        [input, output]: [usize; 2],
    ) -> Weight<'a> {
        assert!(input > 0 && output > 0, "a weight of {input} × {output}");
        assert!(bias.is_none_or(|bias| bias.len() == output), "a bias for {output} columns");
        let matrix = Matrix::new(weight, input, output);
        let packing = self.packing([rows, input, output]);
        let panels = in_words!(packing, C => pack::whole_right::<C>(self.kernels, matrix));
        Weight { kernels: self.kernels, packing, panels, bias, input, output }
    }
}

impl Weight<'_> {
    /// Room that so many rows of its input need when they are packed, in numbers.
    pub(crate) fn packed(&self, rows: usize) -> usize {
        rows * in_words!(self.packing, C => pack::words::<C>(self.input))
    }

    /// Rows of the input for several products: in `room`, if they are packed for them.
    pub(crate) fn pack<'b>(&self, rows: &'b [f32], room: &'b mut [f32]) -> Rows<'b> {
        if self.packing == Packing::F32 {
            return Rows::Numbers(rows);
        }
        let matrix = Matrix::new(rows, rows.len() / self.input, self.input);
        in_words!(self.packing, C => pack::rows::<C>(self.kernels, matrix, room));
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
    /// the left operand of the next weight.
    pub(crate) fn activated(
        &self,
        count: usize,
        rows: Rows<'_>,
        activation: Activation,
        next: &Weight<'_>,
        out: &mut [f32],
    ) {
        if self.packing == next.packing {
            return self.run(count, rows, None, Out::Words(&Shared::new(out), activation));
        }
        let mut numbers = Lent::take(count * self.output);
        let numbers = &mut numbers.get_mut()[..count * self.output];
        self.run(count, rows, None, Out::Numbers(&Shared::new(numbers)));
        activate(self.kernels, activation, numbers);
        let matrix = Matrix::new(numbers, count, self.output);
        in_words!(next.packing, C => pack::rows::<C>(self.kernels, matrix, out));
    }

    fn run(&self, rows: usize, left: Rows<'_>, addend: Option<&[f32]>, out: Out<'_>) {
        let task = Task {
            kernels: self.kernels,
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
        in_words!(self.packing, C => self.run_in::<C>(&task));
    }

    fn run_in<C: Compute>(&self, task: &Task<'_>) {
        let most = rectangle::<C>()[1];
        for first in (0..self.output).step_by(most) {
            let columns = first..self.output.min(first + most);
            multiply_part::<C>(self.kernels, task, [0..task.rows, columns]);
        }
    }
}
