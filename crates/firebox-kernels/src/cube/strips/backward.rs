//! The gradients of attention on tensor cores. Both kernels compute the probabilities again.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::attend::{Sizes, across, factor_of, task, words_of};
use super::super::cell::Columns;
use super::parts::{
    add_product, bring, four, multiply_rows, own_begin, own_scores, own_vector, scores, shares,
    sum_of_team, tile, write_rows, zeros,
};
use crate::cuts::{AttentionPlan, Strips};

/// The gradient of the queries, and for each query the sum of the products of result and gradient. Shapes
/// as in `attend_back_queries` of a row a thread.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn attend_back_queries<F: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<F, N>]>>,
    lengths: &[i32],
    stream: &[i32],
    out: &[Vector<F, N>],
    d_out: &[Vector<F, N>],
    moments: &[f32],
    deltas: &mut [f32],
    gradient: &mut [Vector<F, N>],
    sizes: Sizes,
    batch: u32,
    #[comptime] strips: Strips,
    #[define(F)] _dtype: ElemType,
) {
    let plan = comptime!(strips.plan);
    let apart = comptime!(AttentionPlan { packed: false, ..plan });
    let (m, block, team) = comptime!((strips.shape.m, strips.block(), strips.team()));
    let rows = comptime!(strips.rows());
    let shares_stride = comptime!(strips.shares_stride());
    let task = task(sizes.heads);
    let query_length = u32::cast_from(lengths[task.0]);
    let key_length = u32::cast_from(lengths[batch as usize + task.0]);
    let (queries, keys, heads) = (sizes.queries, sizes.keys, sizes.heads);
    let first_query = CUBE_POS_X * comptime!(rows as u32);
    let strip = first_query + UNIT_POS_Y * comptime!(m as u32);
    let query = strip + UNIT_POS_X / comptime!(team as u32);

    let mut tile_q = tile::<F>(rows, strips);
    let mut tile_d = tile::<F>(rows, strips);
    let mut tile_k = tile::<F>(block, strips);
    let mut tile_v = tile::<F>(block, strips);
    let mut scores = scores(strips);
    let mut shares = shares::<F>(strips);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(strips.threads()));
    let mut factors = Shared::<[f32]>::new_slice(rows);
    let x = &inputs[0];
    bring(
        x,
        &mut tile_q,
        task,
        first_query,
        query_length,
        queries,
        heads,
        0usize,
        rows,
        plan,
        strips,
    );
    let end_d = query_length;
    bring(
        d_out,
        &mut tile_d,
        task,
        first_query,
        end_d,
        queries,
        heads,
        0usize,
        rows,
        apart,
        strips,
    );
    let mut totals = zeros(comptime!(strips.columns()), strips);
    sync_cube();

    // The keys that the cube sees, and those that the thread's query sees.
    let mut end = key_length;
    let mut last = key_length;
    if comptime!(plan.causal) {
        end = end.min(first_query + comptime!(rows as u32));
        last = last.min(query + 1);
    }
    if first_query >= query_length {
        end = 0u32.runtime();
    }
    if query >= query_length {
        last = 0u32.runtime();
    }
    let row = CUBE_POS_Y * queries + query;
    let mut largest = 0.0f32;
    let mut share = 0.0f32;
    let mut delta = Columns::<f32>::new(0.0f32);
    if last > 0 {
        largest = moments[row as usize];
        share = 1.0f32 / moments[(batch * heads * queries + row) as usize];
        let begin =
            ((task.0 * queries as usize + query as usize) * heads as usize + task.1) * plan.size;
        let own = (query - first_query) as usize * comptime!(strips.row_stride() / 4);
        for vector in
            range_stepped(UNIT_POS_X as usize % team, comptime!(plan.size.div_ceil(4)), team)
        {
            delta += Columns::<f32>::cast_from(tile_d[own + vector])
                * Columns::<f32>::cast_from(four(out, begin, vector, plan.size));
        }
    }
    let delta = across(delta);
    let delta = sum_of_team(delta, &mut scratch, strips);
    for first in range_stepped(0u32, end, comptime!(block as u32)) {
        let k = &inputs[comptime!(plan.which(1))];
        bring(k, &mut tile_k, task, first, end, keys, heads, 1usize, block, plan, strips);
        let v = &inputs[comptime!(plan.which(2))];
        bring(v, &mut tile_v, task, first, end, keys, heads, 2usize, block, plan, strips);
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
        sync_plane();
        if sees {
            multiply_rows(&tile_d, &tile_v, &mut scores, strips);
        }
        sync_plane();
        let mut words = Array::<u32>::new(4usize);
        let begin = first + own_begin(strips);
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
            let d_shares = scores[own_vector(vector, comptime!(strips.scores_stride()), strips)];
            let mut d_scores = Columns::<F>::new(F::new(0.0));
            #[unroll]
            for lane in 0..4usize {
                if key + (lane as u32) < last {
                    let score = products[vector].extract(lane) * sizes.scale;
                    let p = (score - largest).exp() * share;
                    let mut dp = d_shares.extract(lane);
                    if comptime!(plan.dropped) {
                        dp *= factor_of(&words, key + lane as u32, &sizes);
                    }
                    d_scores.insert(lane, F::cast_from(p * (dp - delta)));
                }
            }
            shares[own_vector(vector, shares_stride, strips)] = d_scores;
        }
        sync_plane();
        if sees {
            add_product(&shares, &tile_k, &totals, strips);
        }

        // Before the next block overwrites this one.
        sync_cube();
    }
    if query < queries && UNIT_POS_X as usize % team == 0 {
        deltas[row as usize] = delta;
    }
    let factor = select(last > 0, sizes.scale, 0.0f32);
    write_rows(
        &mut totals,
        &mut scores,
        &mut factors,
        factor,
        gradient,
        task,
        strip,
        queries,
        heads,
        0usize,
        plan,
        strips,
    );
}

/// The gradients of keys and values, in two tensors or as parts of all in one. Shapes as in
/// `attend_back_keys` of a row a thread.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn attend_back_keys<F: Float, N: Size>(
    inputs: &Sequence<Box<[Vector<F, N>]>>,
    lengths: &[i32],
    stream: &[i32],
    d_out: &[Vector<F, N>],
    moments: &[f32],
    deltas: &[f32],
    gradients: &mut Sequence<Box<[Vector<F, N>]>>,
    sizes: Sizes,
    batch: u32,
    #[comptime] strips: Strips,
    #[define(F)] _dtype: ElemType,
) {
    let plan = comptime!(strips.plan);
    let apart = comptime!(AttentionPlan { packed: false, ..plan });
    let (m, block, team) = comptime!((strips.shape.m, strips.block(), strips.team()));
    let rows = comptime!(strips.rows());
    let shares_stride = comptime!(strips.shares_stride());
    let task = task(sizes.heads);
    let query_length = u32::cast_from(lengths[task.0]);
    let key_length = u32::cast_from(lengths[batch as usize + task.0]);
    let (queries, keys, heads) = (sizes.queries, sizes.keys, sizes.heads);
    let first_key = CUBE_POS_X * comptime!(rows as u32);
    let strip = first_key + UNIT_POS_Y * comptime!(m as u32);
    let key = strip + UNIT_POS_X / comptime!(team as u32);

    let mut tile_k = tile::<F>(rows, strips);
    let mut tile_v = tile::<F>(rows, strips);
    let mut tile_q = tile::<F>(block, strips);
    let mut tile_d = tile::<F>(block, strips);
    let mut scores = scores(strips);
    let mut shares = shares::<F>(strips);
    let mut factors = Shared::<[f32]>::new_slice(rows);
    // Largest score, one over the sum, and delta of each query of the block.
    let mut of_query = Shared::<[f32]>::new_slice(comptime!(3 * block));
    // The random numbers of each query of the block, and of eight keys at a time of each strip.
    let mut drawn = Shared::<[u32]>::new_slice(comptime!(strips.planes * strips.words()));
    let k = &inputs[comptime!(plan.which(1))];
    bring(k, &mut tile_k, task, first_key, key_length, keys, heads, 1usize, rows, plan, strips);
    let v = &inputs[comptime!(plan.which(2))];
    bring(v, &mut tile_v, task, first_key, key_length, keys, heads, 2usize, rows, plan, strips);
    let mut d_keys = zeros(comptime!(strips.columns()), strips);
    let mut d_values = zeros(comptime!(strips.columns()), strips);

    let mut start = 0u32.runtime();
    if comptime!(plan.causal) {
        // Queries before the first key of the cube see none of its keys.
        start = first_key;
    }
    let mut end = query_length;
    if first_key >= key_length {
        end = 0u32.runtime();
    }
    for first in range_stepped(start, end, comptime!(block as u32)) {
        let q = &inputs[0];
        bring(q, &mut tile_q, task, first, end, queries, heads, 0usize, block, plan, strips);
        bring(d_out, &mut tile_d, task, first, end, queries, heads, 0usize, block, apart, strips);
        for at in range_stepped(UNIT_POS as usize, block, comptime!(strips.threads())) {
            if first as usize + at < end as usize {
                let row = CUBE_POS_Y as usize * queries as usize + first as usize + at;
                let half = batch as usize * heads as usize * queries as usize;
                of_query[at * 3] = moments[row];
                of_query[at * 3 + 1] = 1.0f32 / moments[half + row];
                of_query[at * 3 + 2] = deltas[row];
            }
        }
        let own_words = UNIT_POS_Y as usize * comptime!(strips.words());
        if comptime!(plan.dropped) {
            for at in range_stepped(
                UNIT_POS_X as usize,
                comptime!(m.div_ceil(8) * block),
                comptime!(strips.lanes),
            ) {
                let (group, query) = ((at / block) as u32, (at % block) as u32);
                let words = words_of(stream, first + query, strip + group * 8u32);
                #[unroll]
                for word in 0..4usize {
                    drawn[own_words + at * 4 + word] = words[word];
                }
            }
        }
        sync_cube();
        let mut sees = strip < key_length;
        if comptime!(plan.causal) {
            sees = sees && strip < first + comptime!(block as u32);
        }

        if sees {
            multiply_rows(&tile_k, &tile_q, &mut scores, strips);
        }
        sync_plane();
        let mut p = own_scores(&scores, strips);
        let mut kept = Array::<Columns<f32>>::new(comptime!(strips.vectors()));
        let begin = own_begin(strips);
        #[unroll]
        for vector in 0..comptime!(strips.vectors()) {
            let mut shares_now = Columns::<f32>::new(0.0f32);
            let mut kept_now = Columns::<f32>::new(1.0f32);
            #[unroll]
            for lane in 0..4usize {
                let at = begin + comptime!((4 * vector + lane) as u32);
                let query = first + at;
                let mut seen = query < query_length && key < key_length;
                if comptime!(plan.causal) {
                    seen = seen && key <= query;
                }
                if seen {
                    let at = at as usize;
                    let score = p[vector].extract(lane) * sizes.scale;
                    let share = (score - of_query[at * 3]).exp() * of_query[at * 3 + 1];
                    shares_now.insert(lane, share);
                    if comptime!(plan.dropped) {
                        let group = ((key - strip) / 8u32) as usize;
                        let words = own_words + (group * block + at) * 4;
                        let place = key % 8u32;
                        let word = drawn[words + (place / 2u32) as usize];
                        let bits = (word >> (16u32 * (place % 2u32))) & 0xFFFFu32;
                        kept_now.insert(lane, select(bits >= sizes.threshold, 1.0f32, 0.0f32));
                    }
                }
            }
            p[vector] = shares_now;
            kept[vector] = kept_now;
            shares[own_vector(vector, shares_stride, strips)] =
                Columns::<F>::cast_from(shares_now * kept_now);
        }
        sync_plane();
        if sees {
            add_product(&shares, &tile_d, &d_values, strips);
            multiply_rows(&tile_v, &tile_d, &mut scores, strips);
        }
        sync_plane();
        #[unroll]
        for vector in 0..comptime!(strips.vectors()) {
            let d_shares = scores[own_vector(vector, comptime!(strips.scores_stride()), strips)];
            let mut d_scores = Columns::<F>::new(F::new(0.0));
            #[unroll]
            for lane in 0..4usize {
                let at = begin + comptime!((4 * vector + lane) as u32);
                let mut seen = first + at < query_length && key < key_length;
                if comptime!(plan.causal) {
                    seen = seen && key <= first + at;
                }
                if seen {
                    let mut dp = d_shares.extract(lane);
                    if comptime!(plan.dropped) {
                        dp *= kept[vector].extract(lane) * sizes.kept;
                    }
                    let delta = of_query[at as usize * 3 + 2];
                    let d_score = p[vector].extract(lane) * (dp - delta);
                    d_scores.insert(lane, F::cast_from(d_score));
                }
            }
            shares[own_vector(vector, shares_stride, strips)] = d_scores;
        }
        sync_plane();
        if sees {
            add_product(&shares, &tile_q, &d_keys, strips);
        }

        // Before the next block overwrites this one.
        sync_cube();
    }
    let there = key < key_length;
    write_rows(
        &mut d_keys,
        &mut scores,
        &mut factors,
        select(there, sizes.scale, 0.0f32),
        &mut gradients[0],
        task,
        strip,
        keys,
        heads,
        1usize,
        plan,
        strips,
    );
    let mut kept = 1.0f32.runtime();
    if comptime!(plan.dropped) {
        kept = sizes.kept;
    }
    write_rows(
        &mut d_values,
        &mut scores,
        &mut factors,
        select(there, kept, 0.0f32),
        &mut gradients[comptime!(plan.which(1))],
        task,
        strip,
        keys,
        heads,
        2usize,
        plan,
        strips,
    );
}
