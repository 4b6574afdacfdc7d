//! Weights in the order in which the kernels read them, and gradients back in PyTorch's order.

use super::block::Buffer;
use super::compute::Compute;
use super::plan::Sizes;
use super::simd::pair;
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

/// For the forward pass: for each block of units the biases, then for each word of input channels
/// and of hidden units the weights into the four columns of the block. `[blocks, 1 + words(input) +
/// words(hidden), gate, 16]`; units beyond the last are zero.
pub(super) fn forward<C: Compute>(sizes: &Sizes, weights: Weights<'_>) -> Buffer {
    let (input, hidden) = (sizes.input, sizes.hidden);
    let (input_words, hidden_words) = (C::words(input), C::words(hidden));
    let rows = 1 + input_words + hidden_words;
    let mut packed = Buffer::zeros(sizes.blocks() * rows * GATES);
    let panels = packed.get_mut().chunks_exact_mut(rows * GATES);
    for (block, panel) in panels.enumerate() {
        for gate in 0..4 {
            for lane in 0..BLOCK.min(hidden - block * BLOCK) {
                let row = gate * hidden + block * BLOCK + lane;
                let column = gate * BLOCK + lane;
                panel[column] = weights.bias[row];
                let from_input = &weights.ih[row * input..][..input];
                let from_hidden = &weights.hh[row * hidden..][..hidden];
                for word in 0..input_words {
                    let weight = C::word(input, word, |index| from_input[index]);
                    panel[(1 + word) * GATES + column] = weight;
                }
                for word in 0..hidden_words {
                    let weight = C::word(hidden, word, |index| from_hidden[index]);
                    panel[(1 + input_words + word) * GATES + column] = weight;
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
/// gate of every unit in the order `[block, gate, 16]`; with pairs, a row of words for the first two
/// gates of every unit of a block, then for the other two.
pub(super) fn backward<C: Compute>(
    sizes: &Sizes,
    weights: Weights<'_>,
    with_input: bool,
) -> Buffer {
    let columns = backward_columns(sizes, with_input);
    let words = GATES / C::PAIR;
    let rows = sizes.blocks() * words;
    let mut packed = Buffer::zeros(rows * columns);
    let data = packed.get_mut();
    let weight = |gate: usize, unit: usize, column: usize| {
        let row = gate * sizes.hidden + unit;
        if column < sizes.hidden {
            weights.hh[row * sizes.hidden + column]
        } else if (sizes.padded()..sizes.padded() + sizes.input).contains(&column) {
            weights.ih[row * sizes.input + column - sizes.padded()]
        } else {
            0.0
        }
    };
    let mut first = 0;
    while first < columns {
        let width = panel_width((columns - first) / BLOCK) * BLOCK;
        let panel = &mut data[first * rows..][..width * rows];
        for (row, values) in panel.chunks_exact_mut(width).enumerate() {
            let (block, gate, lane) = (row / words, row % words / BLOCK, row % BLOCK);
            let unit = block * BLOCK + lane;
            if unit >= sizes.hidden {
                continue;
            }
            for (value, column) in values.iter_mut().zip(first..) {
                *value = match C::PAIR {
                    1 => weight(gate, unit, column),
                    _ => pair(weight(2 * gate, unit, column), weight(2 * gate + 1, unit, column)),
                };
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
