//! The result of attention on tensor cores.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::attend::{Sizes, factor_of, task, words_of};
use super::super::cell::Columns;
use super::parts::{
    add_product, bring, largest_of_team, multiply_rows, own_begin, own_scores, own_vector, scale,
    scores, shares, sum_of_team, tile, write_rows, zeros,
};
use crate::cuts::{AttentionPlan, Strips};

/// By how much a score may exceed the largest that was kept of its row: its exponential, at most 2,981,
/// is far from the largest number of f16.
pub(super) const SLACK: f32 = 8.0;

/// The result, and for each query a score that none exceeds by more than [`SLACK`] and the sum of the
/// exponentials beyond it. Shapes as in `attend` of a row a thread.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn attend<F: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<F, N>]>>,
    lengths: &[i32],
    stream: &[i32],
    out: &mut [Vector<F, N>],
    moments: &mut [f32],
    sizes: Sizes,
    batch: u32,
    #[comptime] strips: Strips,
    #[define(F)] _dtype: ElemType,
) {
    let plan = comptime!(strips.plan);
    let (m, block, team) = comptime!((strips.shape.m, strips.block(), strips.team()));
    let shares_stride = comptime!(strips.shares_stride());
    let task = task(sizes.heads);
    let query_length = u32::cast_from(lengths[task.0]);
    let key_length = u32::cast_from(lengths[batch as usize + task.0]);
    let (queries, keys, heads) = (sizes.queries, sizes.keys, sizes.heads);
    let first_query = CUBE_POS_X * comptime!(strips.rows() as u32);
    let strip = first_query + UNIT_POS_Y * comptime!(m as u32);
    let query = strip + UNIT_POS_X / comptime!(team as u32);

    let mut tile_q = tile::<F>(comptime!(strips.rows()), strips);
    let mut tile_k = tile::<F>(block, strips);
    let mut tile_v = tile::<F>(block, strips);
    let mut scores = scores(strips);
    let mut shares = shares::<F>(strips);
    let mut factors = Shared::<[f32]>::new_slice(comptime!(strips.rows()));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(strips.threads()));
    // The last block in which the largest score of a row has grown.
    let mut grown_at = Shared::<[u32]>::new_slice(1usize);
    grown_at[0] = 0u32;
    bring(
        &inputs[0],
        &mut tile_q,
        task,
        first_query,
        query_length,
        queries,
        heads,
        0usize,
        comptime!(strips.rows()),
        plan,
        strips,
    );
    let mut totals = zeros(comptime!(strips.columns()), strips);
    let mut largest = f32::min_value();
    let mut total = 0.0f32;

    // The keys that the cube sees, and those that the thread's query sees.
    let mut end = key_length;
    let mut last = key_length;
    if comptime!(plan.causal) {
        end = end.min(first_query + comptime!(strips.rows() as u32));
        last = last.min(query + 1);
    }
    if first_query >= query_length {
        end = 0u32.runtime();
    }
    if query >= query_length {
        last = 0u32.runtime();
    }
    for first in range_stepped(0u32, end, comptime!(block as u32)) {
        bring(
            &inputs[comptime!(plan.which(1))],
            &mut tile_k,
            task,
            first,
            end,
            keys,
            heads,
            1usize,
            block,
            plan,
            strips,
        );
        bring(
            &inputs[comptime!(plan.which(2))],
            &mut tile_v,
            task,
            first,
            end,
            keys,
            heads,
            2usize,
            block,
            plan,
            strips,
        );
        sync_cube();
        let mut sees = strip < query_length;
        if comptime!(plan.causal) {
            sees = sees && first < strip + comptime!(m as u32);
        }

        if sees {
            multiply_rows(&tile_q, &tile_k, &mut scores, strips);
        }
        sync_plane();
        let products = own_scores(&scores, strips);
        // All have been read before the sums may go through the same memory.
        sync_plane();
        let begin = first + own_begin(strips);
        let mut most = f32::min_value();
        #[unroll]
        for vector in 0..comptime!(strips.vectors()) {
            #[unroll]
            for lane in 0..4usize {
                let score = products[vector].extract(lane) * sizes.scale;
                if begin + comptime!((4 * vector + lane) as u32) < last && score > most {
                    most = score;
                }
            }
        }
        let most = largest_of_team(most, &mut scratch, strips);
        if first == 0 {
            largest = most;
        } else {
            let grown = most > largest + SLACK;
            if grown {
                grown_at[0] = first;
            }
            sync_cube();
            if grown_at[0] == first {
                let mut shrink = 1.0f32.runtime();
                if grown {
                    shrink = (largest - most).exp();
                    largest = most;
                }
                total *= shrink;
                scale(&mut totals, &mut scores, shrink, strips);
            }
        }
        let mut words = Array::<u32>::new(4usize);
        #[unroll]
        for vector in 0..comptime!(strips.vectors()) {
            let key = begin + comptime!(4 * vector as u32);
            if comptime!(plan.dropped && vector % 2 == 0) {
                let drawn = words_of(stream, query, key);
                #[unroll]
                for word in 0..4usize {
                    words[word] = drawn[word];
                }
            }
            let mut p = Columns::<F>::new(F::new(0.0));
            #[unroll]
            for lane in 0..4usize {
                if key + (lane as u32) < last {
                    let score = products[vector].extract(lane) * sizes.scale;
                    let mut e = (score - largest).exp();
                    total += e;
                    if comptime!(plan.dropped) {
                        // What is kept is multiplied once for all, at the end.
                        let kept = factor_of(&words, key + lane as u32, &sizes);
                        e = select(kept > 0.0f32, e, 0.0f32);
                    }
                    p.insert(lane, F::cast_from(e));
                }
            }
            shares[own_vector(vector, shares_stride, strips)] = p;
        }
        sync_plane();
        if sees {
            add_product(&shares, &tile_v, &totals, strips);
        }

        // Before the next block overwrites this one.
        sync_cube();
    }

    let total = sum_of_team(total, &mut scratch, strips);
    let mut factor = 0.0f32;
    if last > 0 {
        factor = 1.0f32 / total;
        if comptime!(plan.dropped) {
            factor *= sizes.kept;
        }
    }
    if query < queries && UNIT_POS_X as usize % team == 0 {
        let row = CUBE_POS_Y * queries + query;
        moments[row as usize] = largest;
        moments[(batch * heads * queries + row) as usize] = total;
    }
    let apart = comptime!(AttentionPlan { packed: false, ..plan });
    write_rows(
        &mut totals,
        &mut scores,
        &mut factors,
        factor,
        out,
        task,
        strip,
        queries,
        heads,
        0usize,
        apart,
        strips,
    );
}
