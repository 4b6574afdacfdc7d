//! Gradients of attention. Scores are in units of ln 2, as in the forward pass.

use std::f32::consts::{LN_2, LOG2_E};

use rayon::prelude::*;

use super::super::BLOCK;
use super::super::compute::{Compute, Words, in_whole_words};
use super::super::pool::Lent;
use super::products::{Multiplier, Product};
use super::softmax::{Known, Tile, gradient};
use super::{
    AttentionLengths, AttentionRules, AttentionSizes, Block, Cutter, KEYS_BACKWARD, Normalisers,
    Operand, Operands, Place, QUERIES, Target, Task, Unfilled, pack,
};

/// What the forward pass left, and the gradient that arrives.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOutput<'a> {
    /// `[batch, queries, heads · size]`
    pub(crate) out: Operand<'a>,
    pub(crate) normalisers: &'a Normalisers,
    pub(crate) d_out: Operand<'a>,
}

/// Where the gradients of queries, keys and values go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GradientLayout {
    /// Each into a slice of its own, `[batch, rows, heads · size]`.
    Apart,
    /// All into one, `[batch, rows, 3 · heads · size]`, side by side.
    Packed,
}

/// Gradients of queries, keys and values, one slice each or one in all.
pub(crate) fn attention_backward(
    rules: &AttentionRules,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    operands: &Operands<'_>,
    output: AttentionOutput<'_>,
    layout: GradientLayout,
) -> Vec<Vec<f32>> {
    let AttentionSizes { batch, queries, keys, heads, size } = *sizes;
    let width = heads * size;
    let (counts, places) = match layout {
        GradientLayout::Apart => {
            let place = |rows| Place::dense(rows, width);
            let places = [(0, place(queries)), (1, place(keys)), (2, place(keys))];
            (vec![batch * queries * width, batch * keys * width, batch * keys * width], places)
        }
        GradientLayout::Packed => {
            assert_eq!(queries, keys, "rows that hold queries, keys and values");
            let place = |index| Place { offset: index * width, ..Place::dense(keys, 3 * width) };
            (vec![batch * keys * 3 * width], [0, 1, 2].map(|index| (0, place(index))))
        }
    };
    let mut buffers: Vec<_> = counts.iter().map(|count| Unfilled::new(*count)).collect();
    let shared: Vec<_> =
        buffers.iter_mut().zip(&counts).map(|(buffer, count)| buffer.shared(*count)).collect();
    let room = room(sizes);
    (0..sizes.batch * sizes.heads).into_par_iter().for_each_init(
        || Lent::take(room),
        |buffer, index| {
            let task = Task::new(index, rules, sizes, lengths, operands);
            let target = |index: usize, rows| {
                let (buffer, place) = places[index];
                task.target(&shared[buffer], place, rows)
            };
            let targets = [target(0, queries), target(1, keys), target(2, keys)];
            let at = index * sizes.queries;
            let normalisers = &output.normalisers[at..at + sizes.queries];
            in_whole_words!(Words::of(rules.kernels, rules.bf16), C => {
                run::<C>(&task, &output, normalisers, buffer.get_mut(), &targets);
            });
        },
    );
    drop(shared);
    let filled = buffers.into_iter().zip(counts);
    // SAFETY: every task has written all rows of its sample and head in all three gradients, and there
    // is a task for each; together their places are all of the buffers.
    filled.map(|(buffer, count)| unsafe { buffer.filled(count) }).collect()
}

/// Numbers of memory that a task needs.
fn room(sizes: &AttentionSizes) -> usize {
    let padded = sizes.size.next_multiple_of(BLOCK);
    let keys = sizes.keys.max(QUERIES) + 1;
    (6 * keys + 10 * QUERIES) * padded + 3 * KEYS_BACKWARD * QUERIES + 16 * BLOCK
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
        return [dq, dk, dv].into_iter().for_each(|target| target.clear(0));
    }
    dq.clear(task.queries);
    dk.clear(keys);
    dv.clear(keys);
    let (kernels, operands) = (task.rules.kernels, task.operands);
    let multiplier = Multiplier::new::<C>(kernels);
    let (words, key_words) = (multiplier.words::<C>(padded), multiplier.words::<C>(keys));
    let key_rows = keys.next_multiple_of(BLOCK);
    let mut buffer = Cutter(buffer);
    let plain = buffer.cut(keys.max(BLOCK) * padded);
    let mut packed = Packed {
        keys: buffer.cut(key_rows * words),
        keys_across: buffer.cut(key_words * padded),
        values: buffer.cut(key_rows * words),
        d_keys: buffer.cut(keys * padded),
        d_values: buffer.cut(keys * padded),
        rows: [(); 3].map(|()| buffer.cut(QUERIES * padded)),
        queries: buffer.cut(pack::transposed_rows::<C>(padded) * QUERIES),
        queries_across: buffer.cut(QUERIES * padded),
        d_out: buffer.cut(pack::transposed_rows::<C>(padded) * QUERIES),
        d_out_across: buffer.cut(QUERIES * padded),
        d_queries: buffer.cut(padded * QUERIES),
        scores: buffer.cut(KEYS_BACKWARD * QUERIES),
        d_scores: buffer.cut(KEYS_BACKWARD * QUERIES),
        by_key: buffer.cut(KEYS_BACKWARD * QUERIES),
    };
    task.gather(operands.k, 0, keys, 1.0, plain);
    let rows = &plain[..keys * padded];
    pack::along_rows::<C>(kernels, rows, [padded, words], packed.keys);
    if multiplier.in_tiles() {
        let across = buffer.cut(key_words * padded);
        pack::across_rows::<C>(kernels, rows, padded, 1, across);
        pack::turn(kernels, across, padded, packed.keys_across);
    } else {
        pack::across_rows::<C>(kernels, rows, padded, 1, packed.keys_across);
    }
    task.gather(operands.v, 0, keys, 1.0, plain);
    pack::along_rows::<C>(kernels, &plain[..keys * padded], [padded, words], packed.values);
    packed.d_keys.fill(0.0);
    packed.d_values.fill(0.0);
    for block in Block::all(task.queries) {
        let known = packed.pack::<C>(task, &block, output, normalisers);
        let mut from = 0;
        while let Some(tile) = task.tile(&block, from, KEYS_BACKWARD) {
            packed.tile::<C>(task, &multiplier, tile, &known);
            from = tile.first_key + tile.keys;
        }
        let factors = [task.rules.scale; QUERIES];
        let (first, lanes, factors) = (block.first, block.lanes(), &factors[..block.count]);
        dq.write_columns(kernels, first, packed.d_queries, lanes, factors, plain);
    }
    // The queries that this was summed up from are larger by what makes units of ln 2.
    dk.write(0, packed.d_keys, LN_2);
    dv.write(0, packed.d_values, task.dropout_scale());
}

/// The operands of one task, and its results so far.
struct Packed<'a> {
    /// `[keys, words(padded)]`, as `values`; rows and words are whole tiles where these multiply.
    keys: &'a mut [f32],
    /// `[words(keys), padded]`, or `[padded, words(keys)]` for tiles.
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
    /// `[padded, lanes]`
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
        let scale = task.rules.scale * LOG2_E;
        let from = [(task.operands.q, scale), (output.out, 1.0), (output.d_out, 1.0)];
        for (rows, (from, factor)) in self.rows.iter_mut().zip(from) {
            task.gather(from, block.first, block.count, factor, rows);
        }
        let [queries, out, d_out] = self.rows.each_ref().map(|rows| &rows[..block.count * padded]);
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
        pack::negative_dots::<C>(kernels, out, d_out, padded, &mut known.dot);
        // Last, because rows become words in their places.
        let [queries, _, d_out] = &mut self.rows;
        for (rows, columns) in [(queries, &mut self.queries), (d_out, &mut self.d_out)] {
            let rows = &mut rows[..lanes * padded];
            pack::transpose::<C>(kernels, rows, block.count, lanes, columns);
        }
        self.d_queries.fill(0.0);
        known
    }

    /// Adds what a tile gives to all three gradients.
    fn tile<C: Compute>(
        &mut self,
        task: &Task<'_>,
        multiplier: &Multiplier,
        tile: Tile,
        known: &Known,
    ) {
        let (kernels, size, padded) = (task.rules.kernels, task.sizes.size, task.padded());
        let (words, key_words) = (multiplier.words::<C>(padded), multiplier.words::<C>(task.keys));
        let lanes = tile.blocks * BLOCK;
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
        multiplier.product::<C>(scores, &self.keys[from..], self.queries, self.scores);
        multiplier.product::<C>(scores, &self.values[from..], self.d_out, self.d_scores);
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
        multiplier.product::<C>(over_queries, self.scores, self.d_out_across, d_values);
        multiplier.product::<C>(over_queries, self.d_scores, self.queries_across, d_keys);
        let first = tile.first_key / C::PAIR;
        let ([a_row, a_step], at) = multiplier.across([key_words, padded], first);
        let (count, whole) = (C::words(tile.keys), multiplier.words::<C>(tile.keys));
        let over_keys = Product {
            rows: size,
            blocks: tile.blocks,
            count: whole,
            a_row,
            a_step,
            b_row: lanes,
            out_row: lanes,
            add: true,
        };
        let d_scores = if C::PAIR == 1 { &mut *self.d_scores } else { &mut *self.by_key };
        d_scores[count * lanes..whole * lanes].fill(0.0);
        multiplier.product::<C>(over_keys, &self.keys_across[at..], d_scores, self.d_queries);
    }
}
