//! Weights in the order in which the kernels read them, and gradients back in PyTorch's order.

use rayon::prelude::*;

use super::amx::in_tiles;
use super::block::Buffer;
use super::compute::{Compute, Split};
use super::plan::Sizes;
use super::product::{self, pack_row};
use super::simd::Simd;
use super::{BLOCK, GATES, Shared};

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

/// Numbers of a row from which on pieces are worth their packing: those of a group, which is padded with zeros.
const FEWEST_CUT: usize = 2 * BLOCK;

/// Whether a row of so many numbers is multiplied in pieces. Of these words, a shorter one is one of plain numbers.
fn is_cut<C: Compute>(count: usize) -> bool {
    C::PIECES > 1 && count >= FEWEST_CUT
}

/// Words of a row of so many numbers of the forward pass.
pub(super) fn row_words<C: Compute>(count: usize) -> usize {
    match C::PIECES {
        1 => C::words(count),
        _ if is_cut::<C>(count) => product::words::<C>(count),
        _ => count,
    }
}

/// How many of them tiles multiply, where there are tiles; the rest is left to vectors.
pub(super) fn tiled_words<C: Compute>(count: usize) -> usize {
    match C::PIECES {
        1 => in_tiles(C::words(count)),
        _ if is_cut::<C>(count) => row_words::<C>(count),
        _ => 0,
    }
}

/// Packs a row of the forward pass.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn row<S: Simd, C: Compute>(row: &[f32], words: &mut [f32]) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        match C::PIECES {
            1 => C::pack::<S>(row, words),
            _ if is_cut::<C>(row.len()) => pack_row::<S, C>(row, words),
            _ => words.copy_from_slice(row),
        }
    }
}

/// For the forward pass: for each block of units the biases, then for each word of input channels
/// and of hidden units the weights into the four columns of the block. `[blocks, 1 + words(input) +
/// words(hidden), gate, 16]`, with the words of [`row`]; units beyond the last are zero.
pub(super) fn forward<C: Compute>(sizes: &Sizes, weights: Weights<'_>) -> Buffer {
    let (input, hidden) = (sizes.input, sizes.hidden);
    let (input_words, hidden_words) = (row_words::<C>(input), row_words::<C>(hidden));
    let rows = 1 + input_words + hidden_words;
    let mut packed = Buffer::zeros(sizes.blocks() * rows * GATES);
    let panels = packed.get_mut().par_chunks_exact_mut(rows * GATES);
    panels.with_min_len(TASK / (rows * GATES)).enumerate().for_each(|(block, panel)| {
        let (biases, panel) = panel.split_at_mut(GATES);
        let (from_input, from_hidden) = panel.split_at_mut(input_words * GATES);
        let lanes = BLOCK.min(hidden - block * BLOCK);
        for gate in 0..4 {
            let (row, column) = (gate * hidden + block * BLOCK, gate * BLOCK);
            biases[column..][..lanes].copy_from_slice(&weights.bias[row..][..lanes]);
            let ih = &weights.ih[row * input..][..lanes * input];
            let hh = &weights.hh[row * hidden..][..lanes * hidden];
            turn::<C>(ih, input, from_input, column);
            turn::<C>(hh, hidden, from_hidden, column);
        }
    });
    packed
}

/// Words that are worth a thread of their own.
const TASK: usize = 1 << 15;

/// Makes up to sixteen rows of `count` numbers that many lanes, from `column` on, of rows of words.
fn turn<C: Compute>(from: &[f32], count: usize, to: &mut [f32], column: usize) {
    for (chunk, to) in to.chunks_mut(BLOCK * GATES).enumerate() {
        let first = chunk * BLOCK;
        let mut square = [[0.0; BLOCK]; BLOCK];
        for (row, words) in from.chunks_exact(count).zip(&mut square) {
            let words = &mut words[..to.len() / GATES];
            if is_cut::<C>(count) {
                let (group, piece) = (chunk / C::PIECES, chunk % C::PIECES);
                let mut numbers = [0.0; 2 * BLOCK];
                let row = &row[2 * group * BLOCK..];
                let here = row.len().min(2 * BLOCK);
                numbers[..here].copy_from_slice(&row[..here]);
                let (low, high) = numbers.split_at(BLOCK);
                for ((word, low), high) in words.iter_mut().zip(low).zip(high) {
                    *word = Split::piece(*low, *high, piece);
                }
                continue;
            }
            let low = &row[first..][..words.len()];
            if C::VERBATIM || C::PIECES > 1 {
                words.copy_from_slice(low);
                continue;
            }
            let high = &row[count.min(C::words(count) + first)..];
            for ((word, low), high) in words.iter_mut().zip(low).zip(high) {
                *word = C::join_one(*low, *high);
            }
            // The last word of an odd count has one number, and so has each that is no pair.
            for (word, low) in words.iter_mut().zip(low).skip(high.len()) {
                *word = C::join_one(*low, 0.0);
            }
        }
        for (index, to) in to.chunks_exact_mut(GATES).enumerate() {
            let turned = std::array::from_fn::<f32, BLOCK, _>(|lane| square[lane][index]);
            to[column..][..BLOCK].copy_from_slice(&turned);
        }
    }
}

/// Columns of the product of the backward pass: hidden units, then input channels if their gradient
/// is wanted, each rounded up to whole blocks.
pub(super) fn backward_columns(sizes: &Sizes, input: bool) -> usize {
    sizes.padded() + if input { sizes.input.next_multiple_of(BLOCK) } else { 0 }
}

/// How many blocks wide the next panel is: four, or what is left, but for five, which are three and two.
/// Of one block alone there are too few sums to keep a core busy.
pub(super) fn panel_width(blocks_left: usize) -> usize {
    match blocks_left {
        5 => 3,
        _ => blocks_left.min(4),
    }
}

/// For the backward pass: panels of up to four blocks of columns, in each a row for every
/// gate of every unit in the order `[block, gate, 16]`; with pairs, a row of words for the first two
/// gates of every unit of a block, then for the other two, and of each so many as there are pieces.
pub(super) fn backward<C: Compute>(
    sizes: &Sizes,
    weights: Weights<'_>,
    with_input: bool,
) -> Buffer {
    let columns = backward_columns(sizes, with_input);
    let words = C::gate_words();
    let rows = sizes.blocks() * words;
    let mut packed = Buffer::zeros(rows * columns);
    let data = packed.get_mut();
    let (hidden, input) = (sizes.hidden, if with_input { sizes.input } else { 0 });
    let parts = [(weights.hh, hidden, 0), (weights.ih, input, sizes.padded())];
    let mut first = 0;
    while first < columns {
        let width = panel_width((columns - first) / BLOCK) * BLOCK;
        let panel = &mut data[first * rows..][..width * rows];
        let rows = panel.par_chunks_exact_mut(width).with_min_len(TASK / width);
        rows.enumerate().for_each(|(row, values)| {
            let (block, lane) = (row / words, row % BLOCK);
            let (gate, piece) = (row % words / BLOCK / C::PIECES, row % words / BLOCK % C::PIECES);
            let unit = block * BLOCK + lane;
            if unit >= hidden {
                return;
            }
            for (weights, size, start) in parts {
                let here = first.max(start)..(first + width).min(start + size);
                if here.is_empty() {
                    continue;
                }
                let to = &mut values[here.start - first..here.end - first];
                let from = |gate: usize| {
                    &weights[(gate * hidden + unit) * size + here.start - start..][..to.len()]
                };
                let (low, high) = match C::PAIR {
                    1 => (from(gate), from(gate)),
                    _ => (from(2 * gate), from(2 * gate + 1)),
                };
                for ((word, low), high) in to.iter_mut().zip(low).zip(high) {
                    *word = match C::PIECES {
                        1 => C::join_one(*low, *high),
                        _ => Split::piece(*low, *high, piece),
                    };
                }
            }
        });
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
        Self { input: sizes.input, hidden: sizes.hidden }
    }

    pub(super) fn count(&self) -> usize {
        self.first_hidden() + (self.hidden + 1).div_ceil(STRIP)
    }

    /// The first strip of the hidden units.
    pub(super) fn first_hidden(&self) -> usize {
        self.input.div_ceil(STRIP)
    }

    /// Columns in a strip: six, or what is left in the last one of its kind.
    pub(super) fn width(&self, strip: usize) -> usize {
        match strip.checked_sub(self.first_hidden()) {
            None => (self.input - strip * STRIP).min(STRIP),
            Some(strip) => (self.hidden + 1 - strip * STRIP).min(STRIP),
        }
    }

    /// Floats of a block of units in the gradient of one direction, `[strips, 6, gate, 16]`.
    pub(super) fn block(&self) -> usize {
        self.count() * STRIP * GATES
    }

    /// Floats of the gradient of one direction, `[blocks, strips, 6, gate, 16]`.
    pub(super) fn gradient(&self, sizes: &Sizes) -> usize {
        sizes.blocks() * self.block()
    }

    /// Puts the gradient of a block's weights into PyTorch's layout: rows of the input's weights, of
    /// the hidden state's, and the biases, of units from `block * 16` on in each gate.
    ///
    /// # Safety
    /// Nobody else uses the rows of these units as long as this runs.
    pub(super) unsafe fn unpack(
        &self,
        block: usize,
        packed: &[f32],
        first_row: usize,
        [ih, hh, bias]: &[Shared<'_>; 3],
    ) {
        let Self { input, hidden } = *self;
        let (from_input, from_hidden) = packed.split_at(self.first_hidden() * STRIP * GATES);
        let lanes = BLOCK.min(hidden - block * BLOCK);
        for gate in 0..4 {
            let row = first_row + gate * hidden + block * BLOCK;
            let column = gate * BLOCK;
            // SAFETY: the rows of the units of a block, which the caller leaves to this call.
            unsafe {
                turn_back(from_input, column, ih.part(row * input, lanes * input), input);
                turn_back(from_hidden, column, hh.part(row * hidden, lanes * hidden), hidden);
                let biases = &from_hidden[hidden * GATES + column..][..lanes];
                bias.part(row, lanes).copy_from_slice(biases);
            }
        }
    }
}

/// Makes lanes of rows of gates, from `column` on, rows of `count` numbers.
fn turn_back(from: &[f32], column: usize, to: &mut [f32], count: usize) {
    for first in (0..count).step_by(BLOCK) {
        let here = BLOCK.min(count - first);
        let mut square = [[0.0; BLOCK]; BLOCK];
        for (index, lanes) in square[..here].iter_mut().enumerate() {
            lanes.copy_from_slice(&from[(first + index) * GATES + column..][..BLOCK]);
        }
        for (lane, row) in to.chunks_exact_mut(count).enumerate() {
            let turned = std::array::from_fn::<f32, BLOCK, _>(|index| square[index][lane]);
            match row[first..].first_chunk_mut() {
                Some(whole) => *whole = turned,
                None => row[first..].copy_from_slice(&turned[..here]),
            }
        }
    }
}
