//! Attention forward. Scores are in units of ln 2, so that exponentials are powers of two.

use std::f32::consts::LOG2_E;

use rayon::prelude::*;

use super::super::compute::{Compute, Words, in_whole_words};
use super::super::pool::Lent;
use super::super::{BLOCK, Shared};
use super::products::{Multiplier, Product};
use super::softmax::{Rows, softmax};
use super::{
    AttentionLengths, AttentionRules, AttentionSizes, Block, Cutter, KEYS_FORWARD, Normalisers,
    Operands, Place, QUERIES, Target, Task, Unfilled, pack,
};

/// Attention: `[batch, queries, heads · size]` from queries, keys and values.
pub(crate) fn attention(
    rules: &AttentionRules,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    operands: &Operands<'_>,
) -> (Vec<f32>, Normalisers) {
    let AttentionSizes { batch, queries, heads, size, .. } = *sizes;
    let count = batch * queries * heads * size;
    let mut out = Unfilled::new(count);
    let mut normalisers = vec![[0.0; 2]; batch * heads * queries];
    let place = Place::dense(queries, heads * size);
    let shared = out.shared(count);
    let room = room(sizes);
    normalisers.par_chunks_mut(queries.max(1)).enumerate().for_each_init(
        || Lent::take(room),
        |buffer, (index, normalisers)| {
            let task = Task::new(index, rules, sizes, lengths, operands);
            task.run(buffer.get_mut(), &task.target(&shared, place, queries), normalisers);
        },
    );
    // SAFETY: every task has written all rows of its sample and head, and there is a task for each.
    (unsafe { out.filled(count) }, normalisers)
}

/// The same by the calling thread alone, into every number of `out`.
pub(crate) fn attention_of(
    rules: &AttentionRules,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    operands: &Operands<'_>,
    out: &mut [f32],
) {
    let AttentionSizes { batch, queries, heads, size, .. } = *sizes;
    assert_eq!(out.len(), batch * queries * heads * size, "{sizes:?}");
    let place = Place::dense(queries, heads * size);
    let (shared, mut buffer) = (Shared::new(out), Lent::take(room(sizes)));
    let mut normalisers = vec![[0.0; 2]; queries];
    for index in 0..batch * heads {
        let task = Task::new(index, rules, sizes, lengths, operands);
        task.run(buffer.get_mut(), &task.target(&shared, place, queries), &mut normalisers);
    }
}

/// Numbers of memory that a task needs.
fn room(sizes: &AttentionSizes) -> usize {
    let padded = sizes.size.next_multiple_of(BLOCK);
    let keys = sizes.keys.max(QUERIES) + 1;
    (3 * keys + 3 * QUERIES) * padded + KEYS_FORWARD * QUERIES + 8 * BLOCK
}

impl Task<'_> {
    fn run(&self, buffer: &mut [f32], out: &Target<'_>, normalisers: &mut [[f32; 2]]) {
        let words = Words::of(self.rules.kernels, self.rules.bf16);
        in_whole_words!(words, C => run::<C>(self, buffer, out, normalisers));
    }
}

fn run<C: Compute>(
    task: &Task<'_>,
    buffer: &mut [f32],
    out: &Target<'_>,
    normalisers: &mut [[f32; 2]],
) {
    let (keys, padded) = (task.keys, task.padded());
    if task.queries == 0 || keys == 0 {
        return out.clear(0);
    }
    out.clear(task.queries);
    let (kernels, operands) = (task.rules.kernels, task.operands);
    let multiplier = Multiplier::new::<C>(kernels);
    let (words, key_words) = (multiplier.words::<C>(padded), multiplier.words::<C>(keys));
    let mut buffer = Cutter(buffer);
    let plain = buffer.cut(keys.max(QUERIES) * padded);
    let mut packed = Packed {
        keys: buffer.cut(keys.next_multiple_of(BLOCK) * words),
        values: buffer.cut(key_words * padded),
        queries: buffer.cut(pack::transposed_rows::<C>(padded) * QUERIES),
        scores: buffer.cut(KEYS_FORWARD * QUERIES),
        sums: buffer.cut(padded * QUERIES),
    };
    task.gather(operands.k, 0, keys, 1.0, plain);
    pack::along_rows::<C>(kernels, &plain[..keys * padded], [padded, words], packed.keys);
    task.gather(operands.v, 0, keys, 1.0, plain);
    let values = &plain[..keys * padded];
    if multiplier.in_tiles() {
        let across = buffer.cut(key_words * padded);
        pack::across_rows::<C>(kernels, values, padded, 1, across);
        pack::turn(kernels, across, padded, packed.values);
    } else {
        pack::across_rows::<C>(kernels, values, padded, 1, packed.values);
    }
    for block in Block::all(task.queries) {
        task.gather(operands.q, block.first, block.count, task.rules.scale * LOG2_E, plain);
        let rows = &mut plain[..block.lanes() * padded];
        pack::transpose::<C>(kernels, rows, block.count, block.lanes(), packed.queries);
        let rows = packed.walk::<C>(task, &multiplier, &block);
        let mut factors = [0.0; QUERIES];
        for query in 0..block.count {
            let inverse = 1.0 / rows.sum[query];
            normalisers[block.first + query] = [rows.max[query], inverse];
            factors[query] = task.dropout_scale() * inverse;
        }
        let (first, lanes, factors) = (block.first, block.lanes(), &factors[..block.count]);
        out.write_columns(kernels, first, packed.sums, lanes, factors, plain);
    }
}

/// The operands of one task, and its results so far.
struct Packed<'a> {
    /// `[keys, words(padded)]`; rows and words are whole tiles where these multiply.
    keys: &'a mut [f32],
    /// `[words(keys), padded]`, or `[padded, words(keys)]` for tiles.
    values: &'a mut [f32],
    /// `[words(padded), lanes]`
    queries: &'a mut [f32],
    /// `[keys of a tile, lanes]`
    scores: &'a mut [f32],
    /// `[padded, lanes]`: values weighted by exponentials.
    sums: &'a mut [f32],
}

impl Packed<'_> {
    /// All keys that a block of queries sees.
    fn walk<C: Compute>(
        &mut self,
        task: &Task<'_>,
        multiplier: &Multiplier,
        block: &Block,
    ) -> Rows {
        let (kernels, size, padded) = (task.rules.kernels, task.sizes.size, task.padded());
        let (words, key_words) = (multiplier.words::<C>(padded), multiplier.words::<C>(task.keys));
        let (lanes, blocks) = (block.lanes(), block.blocks());
        let mut rows = Rows::new();
        let (mut from, mut add) = (0, false);
        while let Some(tile) = task.tile(block, from, KEYS_FORWARD) {
            let first = tile.first_key;
            let scores = Product {
                rows: tile.keys,
                blocks,
                count: words,
                a_row: words,
                a_step: 1,
                b_row: lanes,
                out_row: lanes,
                add: false,
            };
            let keys = &self.keys[first * words..];
            multiplier.product::<C>(scores, keys, self.queries, self.scores);
            softmax::<C>(kernels, tile, self.scores, &mut rows);
            if add {
                for sums in self.sums[..size * lanes].chunks_exact_mut(lanes) {
                    sums.iter_mut().zip(&rows.factor).for_each(|(sum, factor)| *sum *= factor);
                }
            }
            let (count, whole) = (C::words(tile.keys), multiplier.words::<C>(tile.keys));
            self.scores[count * lanes..whole * lanes].fill(0.0);
            let ([a_row, a_step], at) = multiplier.across([key_words, padded], first / C::PAIR);
            let sums = Product {
                rows: size,
                blocks,
                count: whole,
                a_row,
                a_step,
                b_row: lanes,
                out_row: lanes,
                add,
            };
            multiplier.product::<C>(sums, &self.values[at..], self.scores, self.sums);
            (from, add) = (first + tile.keys, true);
        }
        rows
    }
}
