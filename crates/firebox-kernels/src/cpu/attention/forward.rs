//! Attention forward.

use rayon::prelude::*;

use super::super::compute::{Bf16, Compute, F32};
use super::super::pool::Lent;
use super::super::{BLOCK, Shared, zeros};
use super::products::{Product, product};
use super::softmax::{Rows, softmax};
use super::{
    AttentionLengths, AttentionRules, AttentionSizes, Block, Cutter, KEYS_FORWARD, Normalisers,
    Operands, Place, QUERIES, Target, Task, pack,
};

/// Attention: `[batch, queries, heads · size]` from queries, keys and values.
pub(crate) fn attention(
    rules: &AttentionRules,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    operands: &Operands<'_>,
) -> (Vec<f32>, Normalisers) {
    let AttentionSizes { batch, queries, heads, size, .. } = *sizes;
    let mut out = zeros(batch * queries * heads * size);
    let mut normalisers = vec![[0.0; 2]; batch * heads * queries];
    let place = Place::dense(queries, heads * size);
    let shared = Shared::new(&mut out);
    let room = room(sizes);
    normalisers.par_chunks_mut(queries.max(1)).enumerate().for_each_init(
        || Lent::take(room),
        |buffer, (index, normalisers)| {
            let task = Task::new(index, rules, sizes, lengths, operands);
            let out = task.target(&shared, place);
            match rules.bf16 {
                true => run::<Bf16>(&task, buffer.get_mut(), &out, normalisers),
                false => run::<F32>(&task, buffer.get_mut(), &out, normalisers),
            }
        },
    );
    (out, normalisers)
}

/// Numbers of memory that a task needs.
fn room(sizes: &AttentionSizes) -> usize {
    let padded = sizes.size.next_multiple_of(BLOCK);
    let keys = sizes.keys.max(QUERIES) + 1;
    (3 * keys + 2 * QUERIES) * padded + KEYS_FORWARD * QUERIES + 8 * BLOCK
}

fn run<C: Compute>(
    task: &Task<'_>,
    buffer: &mut [f32],
    out: &Target<'_>,
    normalisers: &mut [[f32; 2]],
) {
    let (keys, padded) = (task.keys, task.padded());
    if task.queries == 0 || keys == 0 {
        return;
    }
    let (kernels, operands) = (task.rules.kernels, task.operands);
    let mut buffer = Cutter(buffer);
    let plain = buffer.cut(keys.max(QUERIES) * padded);
    let mut packed = Packed {
        keys: buffer.cut(keys * padded / C::PAIR),
        values: buffer.cut(keys.div_ceil(C::PAIR) * padded),
        queries: buffer.cut(padded / C::PAIR * QUERIES),
        scores: buffer.cut(KEYS_FORWARD * QUERIES),
        sums: buffer.cut(padded * QUERIES),
    };
    task.gather(operands.k, 0, keys, 1.0, plain);
    pack::along_rows::<C>(kernels, &plain[..keys * padded], packed.keys);
    task.gather(operands.v, 0, keys, 1.0, plain);
    pack::across_rows::<C>(kernels, &plain[..keys * padded], padded, 1, packed.values);
    for block in Block::all(task.queries) {
        task.gather(operands.q, block.first, block.count, task.rules.scale, plain);
        let rows = &plain[..block.count * padded];
        pack::transpose::<C>(kernels, rows, padded, block.lanes(), packed.queries);
        let rows = packed.walk::<C>(task, &block);
        let mut factors = [0.0; QUERIES];
        for query in 0..block.count {
            let inverse = 1.0 / rows.sum[query];
            normalisers[block.first + query] = [rows.max[query], inverse];
            factors[query] = task.dropout_scale() * inverse;
        }
        out.columns(block.first, packed.sums, block.lanes(), &factors[..block.count]);
    }
}

/// The operands of one task, and its results so far.
struct Packed<'a> {
    /// `[keys, words(padded)]`
    keys: &'a mut [f32],
    /// `[words(keys), padded]`
    values: &'a mut [f32],
    /// `[words(padded), lanes]`
    queries: &'a mut [f32],
    /// `[keys of a tile, lanes]`
    scores: &'a mut [f32],
    /// `[size, lanes]`: values weighted by exponentials.
    sums: &'a mut [f32],
}

impl Packed<'_> {
    /// All keys that a block of queries sees.
    fn walk<C: Compute>(&mut self, task: &Task<'_>, block: &Block) -> Rows {
        let (kernels, size, padded) = (task.rules.kernels, task.sizes.size, task.padded());
        let (words, lanes, blocks) = (padded / C::PAIR, block.lanes(), block.blocks());
        let mut rows = Rows::new();
        let mut first = 0;
        while let Some(tile) = task.tile(block, first, KEYS_FORWARD) {
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
            product::<C>(kernels, scores, keys, self.queries, self.scores);
            softmax::<C>(kernels, tile, self.scores, &mut rows);
            if first > 0 {
                for sums in self.sums[..size * lanes].chunks_exact_mut(lanes) {
                    sums.iter_mut().zip(&rows.factor).for_each(|(sum, factor)| *sum *= factor);
                }
            }
            let sums = Product {
                rows: size,
                blocks,
                count: C::words(tile.keys),
                a_row: 1,
                a_step: padded,
                b_row: lanes,
                out_row: lanes,
                add: first > 0,
            };
            let values = &self.values[first / C::PAIR * padded..];
            product::<C>(kernels, sums, values, self.scores, self.sums);
            first += tile.keys;
        }
        rows
    }
}
