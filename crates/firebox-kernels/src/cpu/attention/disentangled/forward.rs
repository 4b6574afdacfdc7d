//! Disentangled attention forward.

use rayon::prelude::*;

use super::super::super::compute::{Compute, Words, in_whole_words};
use super::super::super::pool::Lent;
use super::super::products::Multiplier;
use super::super::{Block, Normalisers, Place, QUERIES, Target, Unfilled, pack};
use super::{
    BLOCK, Dims, DisentangledCall, DisentangledSizes, Head, Mask, SCORES, Scores, cut, in_words_of,
    most, multiply, room, rows,
};

/// The result, `[batch, time, heads · size]`, with zeros after each length.
pub(crate) fn disentangled(call: &DisentangledCall<'_>) -> (Vec<f32>, Normalisers) {
    let DisentangledSizes { batch, time, heads, size } = *call.sizes;
    let count = batch * time * heads * size;
    let mut out = Unfilled::new(count);
    let mut normalisers = vec![[0.0; 2]; batch * heads * time];
    let place = Place::dense(time, heads * size);
    let shared = out.shared(count);
    let room = room(&parts(call));
    normalisers.par_chunks_mut(time.max(1)).enumerate().for_each_init(
        || Lent::take(room),
        |buffer, (index, normalisers)| {
            let head = Head::new(call, index / heads, index % heads);
            let target = head.target(&shared, place);
            in_whole_words!(Words::of(call.rules.kernels, call.rules.bf16), C => {
                run::<C>(&head, buffer.get_mut(), &target, normalisers);
            });
        },
    );
    // SAFETY: every task has written all rows of its sample and head, and there is a task for each.
    (unsafe { out.filled(count) }, normalisers)
}

/// Sizes of the parts of a task's memory.
fn parts(call: &DisentangledCall<'_>) -> [usize; SCORES + 4] {
    let [padded, keys, table] = most(call, call.sizes.time);
    let mut parts = [0; SCORES + 4];
    parts[..SCORES].copy_from_slice(&Scores::parts(call.rules, [padded, keys, table]));
    parts[SCORES..].copy_from_slice(&[
        keys * padded,
        QUERIES * keys,
        QUERIES * padded,
        keys + BLOCK,
    ]);
    parts
}

fn run<C: Compute>(
    head: &Head<'_>,
    buffer: &mut [f32],
    out: &Target<'_>,
    normalisers: &mut [[f32; 2]],
) {
    out.clear(head.length);
    if head.length == 0 {
        return;
    }
    let (rules, kernels) = (head.call.rules, head.kernels());
    let multiplier = Multiplier::new::<C>(kernels);
    let dims = Dims::new::<C>(&multiplier, head);
    let Dims { padded, keys, key_words, .. } = dims;
    let [scores @ .., values, words, sums, factors] = cut(buffer, parts(head.call));
    let mut scores = Scores::new(scores);
    scores.pack_table::<C>(head, &dims);
    scores.pack_keys::<C>(head, &dims, &multiplier);
    head.gather_all(head.call.content.v, &dims, scores.plain);
    let rows = &scores.plain[..keys * padded];
    pack::across_rows::<C>(kernels, rows, padded, 1, &mut values[..key_words * padded]);
    // With its factor each exponential would be rounded once more, in the same direction as others: where words
    // are rounded, it is one of the sums.
    let (mask, factor) = match rules.dropout.map(Mask::apart) {
        Some((mask, factor)) if !C::VERBATIM => (Some(mask), factor),
        _ => (rules.dropout, 1.0),
    };
    for block in Block::all(head.length) {
        scores.of_block::<C>(head, &dims, &multiplier, &block);
        let lanes = block.lanes();
        let known = &mut normalisers[block.first..][..block.count];
        let of_block = scores.scores[..lanes * keys].chunks_exact_mut(keys);
        for ((row, scores), known) in of_block.enumerate().zip(known) {
            rows::exponentials::<C>(kernels, head.length, rules.scale, scores, known);
            if let Some(factors) = head.factors(mask, block.first + row, keys, factors) {
                scores.iter_mut().zip(factors).for_each(|(p, factor)| *p *= factor);
            }
        }
        let p = &scores.scores[..lanes * keys];
        let p = in_words_of::<C>(kernels, p, [keys, key_words], words);
        multiply::<C>(&multiplier, [lanes, key_words, padded], p, values, sums, false);
        for (sums, [_, inverse]) in sums.chunks_exact_mut(padded).zip(&normalisers[block.first..]) {
            sums.iter_mut().for_each(|sum| *sum *= inverse * factor);
        }
        out.write(block.first, &sums[..block.count * padded], 1.0);
    }
}
