//! Gradients of attention.

use rayon::prelude::*;

use super::super::compute::{Bf16, Compute, F32};
use super::super::pool::Lent;
use super::super::{BLOCK, Shared};
use super::products::{Product, product};
use super::softmax::{Known, Tile, gradient};
use super::{
    AttentionLengths, AttentionRules, AttentionSizes, Block, Cutter, KEYS_BACKWARD, Normalisers,
    Operand, Operands, Place, QUERIES, Target, Task, pack,
};

/// What the forward pass left, and the gradient that arrives.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOutput<'a> {
    /// `[batch, queries, heads · size]`
    pub(crate) out: Operand<'a>,
    pub(crate) normalisers: &'a Normalisers,
    pub(crate) d_out: Operand<'a>,
}

/// Gradients of queries, keys and values with the parts `buffers[i]` of `places[i]`, which name one
/// of `buffers`. What is padding is left as it is.
pub(crate) fn attention_backward(
    rules: &AttentionRules,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    operands: &Operands<'_>,
    output: AttentionOutput<'_>,
    buffers: &mut [&mut [f32]],
    places: [(usize, Place); 3],
) {
    let shared: Vec<_> = buffers.iter_mut().map(|buffer| Shared::new(buffer)).collect();
    let room = room(sizes);
    (0..sizes.batch * sizes.heads).into_par_iter().for_each_init(
        || Lent::take(room),
        |buffer, index| {
            let task = Task::new(index, rules, sizes, lengths, operands);
            let targets = places.map(|(buffer, place)| task.target(&shared[buffer], place));
            let at = index * sizes.queries;
            let normalisers = &output.normalisers[at..at + sizes.queries];
            match rules.bf16 {
                true => run::<Bf16>(&task, &output, normalisers, buffer.get_mut(), &targets),
                false => run::<F32>(&task, &output, normalisers, buffer.get_mut(), &targets),
            }
        },
    );
}

/// Numbers of memory that a task needs.
fn room(sizes: &AttentionSizes) -> usize {
    let padded = sizes.size.next_multiple_of(BLOCK);
    let keys = sizes.keys.max(QUERIES) + 1;
    (6 * keys + 8 * QUERIES) * padded + 3 * KEYS_BACKWARD * QUERIES + 16 * BLOCK
}

fn run<C: Compute>(
    task: &Task<'_>,
    output: &AttentionOutput<'_>,
    normalisers: &[[f32; 2]],
    buffer: &mut [f32],
    [dq, dk, dv]: &[Target<'_>; 3],
) {
    let (keys, padded) = (task.keys, task.padded());
    if task.queries == 0 || keys == 0 {
        return;
    }
    let (kernels, operands) = (task.rules.kernels, task.operands);
    let mut buffer = Cutter(buffer);
    let plain = buffer.cut(keys * padded);
    let mut packed = Packed {
        keys: buffer.cut(keys * padded / C::PAIR),
        keys_across: buffer.cut(keys.div_ceil(C::PAIR) * padded),
        values: buffer.cut(keys * padded / C::PAIR),
        d_keys: buffer.cut(keys * padded),
        d_values: buffer.cut(keys * padded),
        rows: [(); 3].map(|()| buffer.cut(QUERIES * padded)),
        queries: buffer.cut(padded / C::PAIR * QUERIES),
        queries_across: buffer.cut(QUERIES * padded),
        d_out: buffer.cut(padded / C::PAIR * QUERIES),
        d_out_across: buffer.cut(QUERIES * padded),
        d_queries: buffer.cut(padded * QUERIES),
        scores: buffer.cut(KEYS_BACKWARD * QUERIES),
        d_scores: buffer.cut(KEYS_BACKWARD * QUERIES),
        by_key: buffer.cut(KEYS_BACKWARD * QUERIES),
    };
    task.gather(operands.k, 0, keys, 1.0, plain);
    pack::along_rows::<C>(kernels, plain, packed.keys);
    pack::across_rows::<C>(kernels, plain, padded, 1, packed.keys_across);
    task.gather(operands.v, 0, keys, 1.0, plain);
    pack::along_rows::<C>(kernels, plain, packed.values);
    packed.d_keys.fill(0.0);
    packed.d_values.fill(0.0);
    for block in Block::all(task.queries) {
        let known = packed.pack::<C>(task, &block, output, normalisers);
        let mut first = 0;
        while let Some(tile) = task.tile(&block, first, KEYS_BACKWARD) {
            packed.tile::<C>(task, tile, &known);
            first += tile.keys;
        }
        let factors = [task.rules.scale; QUERIES];
        dq.columns(block.first, packed.d_queries, block.lanes(), &factors[..block.count]);
    }
    dk.rows(0, packed.d_keys, 1.0);
    dv.rows(0, packed.d_values, task.dropout_scale());
}

/// The operands of one task, and its results so far.
struct Packed<'a> {
    /// `[keys, words(padded)]`
    keys: &'a mut [f32],
    /// `[words(keys), padded]`
    keys_across: &'a mut [f32],
    /// `[keys, words(padded)]`
    values: &'a mut [f32],
    /// `[keys, padded]`
    d_keys: &'a mut [f32],
    d_values: &'a mut [f32],
    /// Of a block of queries, of its output and of the latter's gradient, `[queries, padded]`.
    rows: [&'a mut [f32]; 3],
    /// `[words(padded), lanes]`
    queries: &'a mut [f32],
    d_out: &'a mut [f32],
    /// `[words of queries, padded]`
    queries_across: &'a mut [f32],
    d_out_across: &'a mut [f32],
    /// `[size, lanes]`
    d_queries: &'a mut [f32],
    /// `[keys of a tile, lanes]`
    scores: &'a mut [f32],
    d_scores: &'a mut [f32],
    by_key: &'a mut [f32],
}

/// Words of a sum over the queries of so many blocks.
fn query_words<C: Compute>(blocks: usize) -> usize {
    blocks.div_ceil(C::PAIR) * BLOCK
}

impl Packed<'_> {
    /// Reads a block of queries with what is known of them.
    fn pack<C: Compute>(
        &mut self,
        task: &Task<'_>,
        block: &Block,
        output: &AttentionOutput<'_>,
        normalisers: &[[f32; 2]],
    ) -> Known {
        let (kernels, padded, lanes) = (task.rules.kernels, task.padded(), block.lanes());
        let scale = task.rules.scale;
        let from = [(task.operands.q, scale), (output.out, 1.0), (output.d_out, 1.0)];
        for (rows, (from, factor)) in self.rows.iter_mut().zip(from) {
            task.gather(from, block.first, block.count, factor, rows);
        }
        let [queries, out, d_out] = self.rows.each_ref().map(|rows| &rows[..block.count * padded]);
        pack::transpose::<C>(kernels, queries, padded, lanes, self.queries);
        pack::transpose::<C>(kernels, d_out, padded, lanes, self.d_out);
        let words = query_words::<C>(block.blocks()) * padded;
        for (rows, across) in
            [(queries, &mut *self.queries_across), (d_out, &mut *self.d_out_across)]
        {
            across[rows.len().min(words)..words].fill(0.0);
            pack::across_rows::<C>(kernels, rows, padded, BLOCK, &mut across[..words]);
        }
        let mut known = Known {
            max: [0.0; QUERIES],
            inverse: [0.0; QUERIES],
            dot: [0.0; QUERIES],
            scale: task.dropout_scale(),
        };
        for (query, [max, inverse]) in normalisers[block.first..][..block.count].iter().enumerate()
        {
            (known.max[query], known.inverse[query]) = (*max, *inverse);
        }
        pack::negative_dots(kernels, out, d_out, padded, &mut known.dot);
        self.d_queries.fill(0.0);
        known
    }

    /// Adds what a tile gives to all three gradients.
    fn tile<C: Compute>(&mut self, task: &Task<'_>, tile: Tile, known: &Known) {
        let (kernels, size, padded) = (task.rules.kernels, task.sizes.size, task.padded());
        let (words, lanes) = (padded / C::PAIR, tile.blocks * BLOCK);
        let scores = Product {
            rows: tile.keys,
            blocks: tile.blocks,
            count: words,
            a_row: words,
            a_step: 1,
            b_row: lanes,
            out_row: lanes,
            add: false,
        };
        let from = tile.first_key * words;
        product::<C>(kernels, scores, &self.keys[from..], self.queries, self.scores);
        product::<C>(kernels, scores, &self.values[from..], self.d_out, self.d_scores);
        gradient::<C>(kernels, tile, known, self.scores, self.d_scores, self.by_key);
        let over_queries = Product {
            rows: tile.keys,
            blocks: padded / BLOCK,
            count: query_words::<C>(tile.blocks),
            a_row: lanes,
            a_step: 1,
            b_row: padded,
            out_row: padded,
            add: true,
        };
        let from = tile.first_key * padded;
        let (d_values, d_keys) = (&mut self.d_values[from..], &mut self.d_keys[from..]);
        product::<C>(kernels, over_queries, self.scores, self.d_out_across, d_values);
        product::<C>(kernels, over_queries, self.d_scores, self.queries_across, d_keys);
        let over_keys = Product {
            rows: size,
            blocks: tile.blocks,
            count: C::words(tile.keys),
            a_row: 1,
            a_step: padded,
            b_row: lanes,
            out_row: lanes,
            add: true,
        };
        let d_scores = if C::PAIR == 1 { &*self.d_scores } else { &*self.by_key };
        let keys = &self.keys_across[tile.first_key / C::PAIR * padded..];
        product::<C>(kernels, over_keys, keys, d_scores, self.d_queries);
    }
}
