//! Weights in the order in which the kernels read them, and gradients back in PyTorch's order.

use super::block::Buffer;
use super::plan::Sizes;
use super::{BLOCK, GATES};

/// One direction's weights as PyTorch lays them out.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    /// `[4 * hidden, input]`
    pub(super) ih: &'a [f32],
    /// `[4 * hidden, hidden]`
    pub(super) hh: &'a [f32],
    /// `[4 * hidden]`
    pub(super) bias: &'a [f32],
}

/// For the forward pass: for each block of units the biases, then for each input channel and then
/// each hidden unit the weights into the four gates of the block. `[blocks, 1 + input + hidden,
/// gate, 16]`; units beyond the last are zero.
pub(super) fn forward(sizes: &Sizes, weights: Weights<'_>) -> Buffer {
    let (input, hidden) = (sizes.input, sizes.hidden);
    let mut packed = Buffer::zeros(sizes.blocks() * (1 + input + hidden) * GATES);
    let panels = packed.get_mut().chunks_exact_mut((1 + input + hidden) * GATES);
    for (block, panel) in panels.enumerate() {
        for gate in 0..4 {
            for lane in 0..BLOCK.min(hidden - block * BLOCK) {
                let row = gate * hidden + block * BLOCK + lane;
                let column = gate * BLOCK + lane;
                panel[column] = weights.bias[row];
                let from_input = &weights.ih[row * input..][..input];
                let from_hidden = &weights.hh[row * hidden..][..hidden];
                for (k, weight) in from_input.iter().chain(from_hidden).enumerate() {
                    panel[(1 + k) * GATES + column] = *weight;
                }
            }
        }
    }
    packed
}

/// Columns of the product of the backward pass: hidden units, then input channels if their gradient
/// is wanted, each rounded up to whole blocks.
pub(super) fn backward_columns(sizes: &Sizes, input: bool) -> usize {
    sizes.padded() + if input { sizes.input.next_multiple_of(BLOCK) } else { 0 }
}

/// Where the panel that starts with block `block` of columns begins, and how many blocks wide it
/// is: four, or one where fewer than four are left.
pub(super) fn panel_width(blocks_left: usize) -> usize {
    if blocks_left >= 4 { 4 } else { 1 }
}

/// For the backward pass: panels of four blocks of columns (then of one), in each a row for every
/// gate of every unit in the order `[block, gate, 16]`.
pub(super) fn backward(sizes: &Sizes, weights: Weights<'_>, with_input: bool) -> Buffer {
    let (input, hidden) = (sizes.input, sizes.hidden);
    let columns = backward_columns(sizes, with_input);
    let rows = sizes.blocks() * GATES;
    let mut packed = Buffer::zeros(rows * columns);
    let data = packed.get_mut();
    let mut first = 0;
    while first < columns {
        let width = panel_width((columns - first) / BLOCK) * BLOCK;
        let panel = &mut data[first * rows..][..width * rows];
        for (row, values) in panel.chunks_exact_mut(width).enumerate() {
            let (block, gate, lane) = (row / GATES, row % GATES / BLOCK, row % BLOCK);
            let unit = block * BLOCK + lane;
            if unit >= hidden {
                continue;
            }
            let row = gate * hidden + unit;
            for (value, column) in values.iter_mut().zip(first..) {
                if column < hidden {
                    *value = weights.hh[row * hidden + column];
                } else if (sizes.padded()..sizes.padded() + input).contains(&column) {
                    *value = weights.ih[row * input + column - sizes.padded()];
                }
            }
        }
        first += width;
    }
    packed
}

/// Operand rows of a weight gradient that are packed side by side.
pub(super) const STRIP: usize = 6;

/// Where the gradient of the weights keeps its columns: input channels in strips of six, then
/// hidden units, and after them the bias, as a weight whose input is always one.
#[derive(Clone, Copy)]
pub(super) struct Strips {
    input: usize,
    hidden: usize,
}

impl Strips {
    pub(super) fn new(sizes: &Sizes) -> Self {
        Self { input: sizes.input.div_ceil(STRIP), hidden: sizes.hidden }
    }

    pub(super) fn count(&self) -> usize {
        self.input + (self.hidden + 1).div_ceil(STRIP)
    }

    /// The first strip of the hidden units.
    pub(super) fn first_hidden(&self) -> usize {
        self.input
    }

    /// Floats of the gradient of one direction, `[blocks, strips, 6, gate, 16]`.
    pub(super) fn gradient(&self, sizes: &Sizes) -> usize {
        sizes.blocks() * self.count() * STRIP * GATES
    }

    /// Adds a packed gradient to one in PyTorch's layout.
    pub(super) fn unpack(&self, sizes: &Sizes, packed: &[f32], d: &mut WeightGradients<'_>) {
        let (input, hidden) = (sizes.input, sizes.hidden);
        for block in 0..sizes.blocks() {
            let panel = &packed[block * self.count() * STRIP * GATES..];
            let column = |index: usize| &panel[index * GATES..][..GATES];
            for gate in 0..4 {
                for lane in 0..BLOCK.min(hidden - block * BLOCK) {
                    let row = gate * hidden + block * BLOCK + lane;
                    let at = gate * BLOCK + lane;
                    for (k, weight) in d.ih[row * input..][..input].iter_mut().enumerate() {
                        *weight += column(k)[at];
                    }
                    let first = self.input * STRIP;
                    for (k, weight) in d.hh[row * hidden..][..hidden].iter_mut().enumerate() {
                        *weight += column(first + k)[at];
                    }
                    d.bias[row] += column(first + hidden)[at];
                }
            }
        }
    }
}

/// The gradients of one direction's weights, laid out as [`Weights`].
pub(super) struct WeightGradients<'a> {
    pub(super) ih: &'a mut [f32],
    pub(super) hh: &'a mut [f32],
    pub(super) bias: &'a mut [f32],
}
