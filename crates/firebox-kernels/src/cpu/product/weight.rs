//! A right operand that is packed once for the products of many threads, each of which multiplies
//! rows of its own: what layers are made of that keep their results in a core's cache.

use std::sync::Arc;

use super::part::{Activation, Left, Out, Right, Task, multiply_part};
use super::tile::activate;
use super::{Matrix, Products, pack, rectangle, run};
use crate::cpu::amx::TILE;
use crate::cpu::batch_norm::{Affine, normalise_rows};
use crate::cpu::compute::{Compute, Words, in_words};
use crate::cpu::pool::Lent;
use crate::cpu::{CpuKernels, Shared};

/// A packed weight of a linear layer.
#[derive(Debug)]
pub(crate) struct Panels {
    kernels: CpuKernels,
    packing: Words,
    words: Lent,
    input: usize,
    output: usize,
}

impl Panels {
    /// The same, to be kept for longer than a step.
    pub(crate) fn kept(self) -> Self {
        Self { words: self.words.taken(), ..self }
    }

    #[cfg(test)]
    pub(crate) fn is_own(&self) -> bool {
        self.words.is_own()
    }

    /// Whether they are those of products with so many rows.
    pub(crate) fn fit(&self, products: Products, rows: usize) -> bool {
        let packing = products.packing([rows, self.input, self.output]);
        (self.kernels, self.packing) == (products.kernels, packing)
    }
}

/// A packed weight of a linear layer, and its bias.
pub(crate) struct Weight<'a> {
    panels: Arc<Panels>,
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
    pub(crate) fn panels(self, rows: usize, weight: Matrix<'_>) -> Panels {
        let (input, output) = (weight.rows, weight.columns);
        assert!(input > 0 && output > 0, "a weight of {input} × {output}");
        let packing = self.packing([rows, input, output]);
        let words = in_words!(packing, C => pack::whole_right::<C>(self.kernels, weight));
        Panels { kernels: self.kernels, packing, words, input, output }
    }
}

impl<'a> Weight<'a> {
    pub(crate) fn new(panels: Arc<Panels>, bias: Option<&'a [f32]>) -> Self {
        let (input, output) = (panels.input, panels.output);
        let length = bias.map_or(output, <[f32]>::len);
        assert!(length == output, "a bias of {length} numbers for {output} columns");
        Self { panels, bias, input, output }
    }
}

impl Weight<'_> {
    /// Room that so many rows of its input need when they are packed, in numbers.
    pub(crate) fn packed(&self, rows: usize) -> usize {
        rows * in_words!(self.panels.packing, C => pack::words::<C>(self.input))
    }

    /// Rows of the input for several products: in `room`, if they are packed for them.
    pub(crate) fn pack<'b>(&self, rows: &'b [f32], room: &'b mut [f32]) -> Rows<'b> {
        if self.panels.packing == Words::F32 {
            return Rows::Numbers(rows);
        }
        let matrix = Matrix::new(rows, rows.len() / self.input, self.input);
        in_words!(self.panels.packing, C => pack::rows::<C>(self.panels.kernels, matrix, room));
        Rows::Packed(room)
    }

    /// [`pack`](Self::pack) of normalised rows, those of a tile at a time, which are packed while they lie in the
    /// first cache.
    pub(in crate::cpu) fn pack_normalised<'b>(
        &self,
        rows: &[f32],
        norm: &Affine,
        rectify: bool,
        room: &'b mut [f32],
    ) -> Rows<'b> {
        let Panels { kernels, packing, .. } = *self.panels;
        if packing == Words::F32 {
            normalise_rows(kernels, rows, norm, rectify, room);
            return Rows::Numbers(room);
        }
        let all = rows.len() / self.input;
        let mut normal = Lent::take(TILE * self.input);
        for (index, rows) in rows.chunks(TILE * self.input).enumerate() {
            let normal = &mut normal.get_mut()[..rows.len()];
            normalise_rows(kernels, rows, norm, rectify, normal);
            let matrix = Matrix::new(normal, rows.len() / self.input, self.input);
            let place = [index * TILE, all];
            in_words!(packing, C => pack::rows_of::<C>(kernels, matrix, place, room));
        }
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
        if self.panels.packing == next.panels.packing {
            return self.run(count, rows, None, Out::Words(&Shared::new(out), activation));
        }
        let mut numbers = Lent::take(count * self.output);
        let numbers = &mut numbers.get_mut()[..count * self.output];
        self.run(count, rows, None, Out::Numbers(&Shared::new(numbers)));
        activate(self.panels.kernels, activation, numbers);
        let matrix = Matrix::new(numbers, count, self.output);
        in_words!(next.panels.packing, C => pack::rows::<C>(self.panels.kernels, matrix, out));
    }

    /// `bias + x · weight` by all threads, for `x` of `[rows, input]` that is not empty.
    pub(crate) fn product(&self, x: Matrix<'_>) -> Vec<f32> {
        let Panels { kernels, packing, words, .. } = &*self.panels;
        assert_eq!(x.columns, self.input, "inner sizes of a product");
        let count = x.rows * self.output;
        let mut out = Vec::with_capacity(count);
        // SAFETY: there is room for `count` numbers, and the memory is nobody else's.
        let shared = unsafe { Shared::from_raw(out.as_mut_ptr(), count) };
        let right = (Right::Panels(words.get()), self.output);
        in_words!(*packing, C => run::<C>(*kernels, x, right, self.bias, &shared, None));
        // SAFETY: every number of the result was written.
        unsafe { out.set_len(count) };
        out
    }

    fn run(&self, rows: usize, left: Rows<'_>, addend: Option<&[f32]>, out: Out<'_>) {
        let task = Task {
            kernels: self.panels.kernels,
            left: match left {
                Rows::Numbers(values) => Left::Numbers(Matrix::new(values, rows, self.input)),
                Rows::Packed(words) => Left::Rows(words),
            },
            right: Right::Panels(self.panels.words.get()),
            rows,
            inner: self.input,
            columns: self.output,
            bias: self.bias,
            addend,
            out,
        };
        in_words!(self.panels.packing, C => self.run_in::<C>(&task));
    }

    fn run_in<C: Compute>(&self, task: &Task<'_>) {
        let most = rectangle::<C>()[1];
        for first in (0..self.output).step_by(most) {
            let columns = first..self.output.min(first + most);
            multiply_part::<C>(self.panels.kernels, task, [0..task.rows, columns]);
        }
    }
}
