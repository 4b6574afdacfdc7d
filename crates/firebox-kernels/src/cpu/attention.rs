//! Scaled dot-product attention on a CPU: slices in, slices out, no tensor.
//!
//! A task is one head of one sample, on one thread. It walks over its queries in blocks of up to 64,
//! and for each block over the keys in tiles whose scores stay in the core's first cache: no more of
//! the scores than that ever exists, and of keys that a rule hides from a whole block none are computed.
//! The forward pass keeps of each query the largest score and one
//! over the sum of the exponentials, and the backward pass computes the probabilities again from
//! these. Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao,
//! "FlashAttention-2", 2023.
//!
//! Scores are laid out by keys, a vector holding the scores of one key for 16 queries: softmax then
//! needs no sum within a vector. Tasks share nothing, so results are the same to the bit on any
//! number of threads. With few samples and heads some threads have nothing to do.

mod backward;
mod disentangled;
mod forward;
mod pack;
mod products;
mod sight;
mod softmax;

use std::mem::MaybeUninit;

use firebox_core::Stream;

use super::{BLOCK, CpuKernels, Shared};
pub(crate) use backward::{AttentionOutput, GradientLayout, attention_backward};
pub(crate) use disentangled::{
    DisentangledCall, DisentangledRules, DisentangledSizes, DistanceTable, disentangled,
    disentangled_backward,
};
pub(crate) use forward::{attention, attention_of};
pub use sight::AttentionWindow;
pub(crate) use sight::Sight;
use softmax::{Draws, Tile};

/// Queries of a block, at most.
const QUERIES: usize = 4 * BLOCK;
/// Keys whose random bits come from the same block of words.
const GROUP: usize = 8;
/// Keys of a tile in the forward pass, whose scores are 32 KiB.
const KEYS_FORWARD: usize = 128;
/// Keys of a tile in the backward pass, where scores and their gradient are 32 KiB.
const KEYS_BACKWARD: usize = 64;

/// Sizes of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionSizes {
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    /// Numbers of a query, key or value of one head.
    pub(crate) size: usize,
}

/// What is computed, in which type and with which instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionRules {
    pub(crate) kernels: CpuKernels,
    /// Whether the operands of products are rounded to bf16.
    pub(crate) bf16: bool,
    pub(crate) scale: f32,
    pub(crate) sight: Sight,
    pub(crate) dropout: Option<ProbabilityMask>,
}

/// Which probabilities are dropped, drawn for each sample and head from a substream of its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbabilityMask {
    pub(crate) stream: Stream,
    /// A probability is kept if its 16 bits are at least this.
    pub(crate) threshold: u16,
    /// What is kept is multiplied by this.
    pub(crate) scale: f32,
}

/// Valid queries and keys of each sample; all where `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttentionLengths {
    pub(crate) queries: Option<Vec<usize>>,
    pub(crate) keys: Option<Vec<usize>>,
}

/// Where the rows of each sample lie in a slice; the heads of a row lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the first number.
    pub(crate) offset: usize,
    /// From one sample to the next.
    pub(crate) sample: usize,
    /// From one row to the next.
    pub(crate) row: usize,
}

impl Place {
    /// `[batch, rows, width]` in row-major order.
    pub(crate) fn dense(rows: usize, width: usize) -> Self {
        Self { offset: 0, sample: rows * width, row: width }
    }

    fn at(&self, sample: usize, row: usize, head: usize, size: usize) -> usize {
        self.offset + sample * self.sample + row * self.row + head * size
    }
}

/// Rows to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) place: Place,
}

/// Queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands<'a> {
    pub(crate) q: Operand<'a>,
    pub(crate) k: Operand<'a>,
    pub(crate) v: Operand<'a>,
}

/// For each sample, head and query the largest score and one over the sum of the exponentials.
pub(crate) type Normalisers = Vec<[f32; 2]>;

/// Queries or keys, at most: positions are compared in f32, which holds the integers up to this.
pub(crate) const MOST_POSITIONS: usize = 1 << 24;

/// One sample and head.
#[derive(Clone, Copy)]
struct Task<'a> {
    rules: &'a AttentionRules,
    sizes: &'a AttentionSizes,
    operands: &'a Operands<'a>,
    sample: usize,
    head: usize,
    /// Valid ones, without those that see no key.
    queries: usize,
    keys: usize,
    draws: Option<Draws>,
}

impl<'a> Task<'a> {
    fn new(
        index: usize,
        rules: &'a AttentionRules,
        sizes: &'a AttentionSizes,
        lengths: &AttentionLengths,
        operands: &'a Operands<'a>,
    ) -> Self {
        let (sample, head) = (index / sizes.heads, index % sizes.heads);
        let valid = |lengths: &Option<Vec<usize>>, all: usize| {
            lengths.as_ref().map_or(all, |lengths| lengths[sample].min(all))
        };
        let draws = rules.dropout.map(|mask| Draws {
            stream: mask.stream.substream(index as u64),
            threshold: mask.threshold,
        });
        let keys = valid(&lengths.keys, sizes.keys);
        let queries = rules.sight.seeing(valid(&lengths.queries, sizes.queries), keys);
        Self { rules, sizes, operands, sample, head, queries, keys, draws }
    }

    fn padded(&self) -> usize {
        self.sizes.size.next_multiple_of(BLOCK)
    }

    /// Copies `count` rows from `first` on, times `factor`.
    fn gather(&self, from: Operand<'_>, first: usize, count: usize, factor: f32, to: &mut [f32]) {
        let size = self.sizes.size;
        let at = from.place.at(self.sample, first, self.head, size);
        let to = &mut to[..count * self.padded()];
        pack::gather(&from.values[at..], from.place.row, size, factor, to);
    }

    /// The next tile of `block` from key `from` on, with at most `most` keys, or `None` if no key is
    /// left that a query of the block sees.
    fn tile(&self, block: &Block, from: usize, most: usize) -> Option<Tile> {
        let sight = self.rules.sight;
        let queries = block.first..block.first + block.count;
        let seen = sight.next(&queries, self.keys, from)?;
        let (first_key, keys) = (seen.start, seen.len().min(most));
        Some(Tile {
            first_key,
            keys,
            first_query: block.first,
            blocks: block.blocks(),
            edge: (!sight.all(&queries, &(first_key..first_key + keys))).then_some(sight),
            draws: self.draws,
        })
    }

    fn target<'b>(&self, shared: &'b Shared<'b>, place: Place, rows: usize) -> Target<'b> {
        let (sample, head, size) = (self.sample, self.head, self.sizes.size);
        Target { shared, place, sample, head, size, rows }
    }

    fn dropout_scale(&self) -> f32 {
        self.rules.dropout.map_or(1.0, |mask| mask.scale)
    }
}

/// Queries that are walked over together.
struct Block {
    first: usize,
    count: usize,
}

impl Block {
    fn all(queries: usize) -> impl Iterator<Item = Self> {
        (0..queries)
            .step_by(QUERIES)
            .map(move |first| Self { first, count: QUERIES.min(queries - first) })
    }

    /// In vectors of 16.
    fn blocks(&self) -> usize {
        self.count.div_ceil(BLOCK)
    }

    fn lanes(&self) -> usize {
        self.blocks() * BLOCK
    }
}

/// Rows of one sample and head that are written to, each once, in memory that need not hold numbers
/// yet.
struct Target<'a> {
    shared: &'a Shared<'a>,
    place: Place,
    sample: usize,
    head: usize,
    size: usize,
    /// All rows, padding among them.
    rows: usize,
}

impl Target<'_> {
    /// Writes rows from `first` on: those of `from`, `[rows, padded]`, times `factor`.
    fn write(&self, first: usize, from: &[f32], factor: f32) {
        let padded = self.size.next_multiple_of(BLOCK);
        for (row, from) in from.chunks_exact(padded).enumerate() {
            for (to, from) in self.row(first + row).iter_mut().zip(from) {
                to.write(from * factor);
            }
        }
    }

    /// Writes rows from `first` on: columns of `from`, `[padded, lanes]`, each times its factor.
    /// `room` is for 16 rows.
    fn write_columns(
        &self,
        kernels: CpuKernels,
        first: usize,
        from: &[f32],
        lanes: usize,
        factors: &[f32],
        room: &mut [f32],
    ) {
        let padded = self.size.next_multiple_of(BLOCK);
        let room = &mut room[..BLOCK * padded];
        for (block, factors) in factors.chunks(BLOCK).enumerate() {
            pack::transpose_back(kernels, from, lanes, block * BLOCK, room);
            for (index, (factor, from)) in factors.iter().zip(room.chunks_exact(padded)).enumerate()
            {
                for (to, from) in self.row(first + block * BLOCK + index).iter_mut().zip(from) {
                    to.write(from * factor);
                }
            }
        }
    }

    /// Writes zeros from row `first` on.
    fn clear(&self, first: usize) {
        for row in first..self.rows {
            for to in self.row(row) {
                to.write(0.0);
            }
        }
    }

    #[allow(clippy::mut_from_ref)]
    fn row(&self, row: usize) -> &mut [MaybeUninit<f32>] {
        let at = self.place.at(self.sample, row, self.head, self.size);
        let pointer = self.shared.pointer(at, self.size).cast();
        // SAFETY: `pointer` is valid for so many numbers, whatever they are. No two tasks have the same
        // sample and head, a task holds one row at a time, and places of different results do not
        // overlap.
        unsafe { std::slice::from_raw_parts_mut(pointer, self.size) }
    }
}

/// Memory that tasks fill.
struct Unfilled(Vec<f32>);

impl Unfilled {
    fn new(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    fn shared(&mut self, count: usize) -> Shared<'_> {
        assert!(self.0.capacity() >= count, "{count} numbers");
        // SAFETY: there is room for `count` numbers, and `self` is borrowed as long as the result lives.
        unsafe { Shared::from_raw(self.0.as_mut_ptr(), count) }
    }

    /// # Safety
    /// So many numbers have been written.
    unsafe fn filled(mut self, count: usize) -> Vec<f32> {
        // SAFETY: the caller's promise.
        unsafe { self.0.set_len(count) };
        self.0
    }
}

/// Cuts parts of whole blocks off one buffer.
struct Cutter<'a>(&'a mut [f32]);

impl<'a> Cutter<'a> {
    fn cut(&mut self, count: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(count.next_multiple_of(BLOCK));
        self.0 = rest;
        &mut part[..count]
    }
}
