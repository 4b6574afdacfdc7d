//! The kernels of attention's gradients: one for the queries, one for keys and values. Both compute the
//! probabilities again.

use burn_cubecl::cubecl::{self, prelude::*};

use super::attend::{
    Sizes, across, before_gap, beyond_gap, draw_in_order, end_of_walk, factor_of, four, gap,
    is_near, load, place, product, put, row_of, seeing, task, words_of,
};
use super::cell::Columns;
use crate::cuts::AttentionPlan;

/// The gradient of the queries, and for each query the sum of the products of result and gradient.
/// Shapes as in `attend`; deltas: `[batch · heads, queries]`; gradient as the queries, or as all in one.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn attend_back_queries<F: Float>(
    inputs: &Sequence<Box<[F]>>,
    lengths: &[i32],
    stream: &[i32],
    out: &[F],
    d_out: &[F],
    moments: &[f32],
    deltas: &mut [f32],
    gradient: &mut [F],
    sizes: Sizes,
    batch: u32,
    #[comptime] plan: AttentionPlan,
    #[define(F)] _dtype: ElemType,
) {
    let vectors = comptime!(plan.vectors());
    let (sample, head) = task(sizes.heads);
    let query = CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X;
    let key_length = u32::cast_from(lengths[batch as usize + sample]);
    let query_length = seeing(u32::cast_from(lengths[sample]), key_length, &sizes, plan);
    let there = query < query_length && key_length > 0u32;
    let (queries, heads) = (sizes.queries, sizes.heads);
    let own = place(sample, head, query as usize, queries, heads, 0usize, plan);
    let q = row_of(&inputs[0], own, there, sizes.scale, plan);
    let begin = ((sample * queries as usize + query as usize) * heads as usize + head) * plan.size;
    let d = row_of(d_out, begin, there, 1.0f32.runtime(), plan);
    let result = row_of(out, begin, there, 1.0f32.runtime(), plan);
    let mut sum = Array::<Columns<f32>>::new(vectors);
    let mut delta = Columns::<f32>::new(0.0f32);
    #[unroll]
    for vector in 0..vectors {
        sum[vector] = Columns::<f32>::new(0.0f32);
        delta += d[vector] * result[vector];
    }
    let delta = across(delta);
    let mut largest = 0.0f32;
    let mut share = 0.0f32;
    let row = CUBE_POS_Y * queries + query;
    if there {
        largest = moments[row as usize];
        share = 1.0f32 / moments[(batch * heads * queries + row) as usize];
    }
    let mut words = Array::<u32>::new(4usize);
    let mut tile_k = Shared::<[Columns<f32>]>::new_slice(comptime!(plan.tile * plan.vectors()));
    let mut tile_v = Shared::<[Columns<f32>]>::new_slice(comptime!(plan.tile * plan.vectors()));
    let mut end = key_length;
    if comptime!(plan.causal) {
        end = end.min((CUBE_POS_X + 1) * CUBE_DIM_X);
    }
    let before = before_gap(end, &sizes, plan);
    let skipped = gap(before, &sizes, plan);
    let walked = end_of_walk(end, before, skipped, &sizes, plan);
    for step in range_stepped(0u32, walked, comptime!(plan.tile as u32)) {
        let first = beyond_gap(step, before, skipped, plan);
        load(inputs, &mut tile_k, &mut tile_v, sample, head, first, end, &sizes, plan);
        sync_cube();
        let mut last = end.min(first + comptime!(plan.tile as u32));
        if comptime!(plan.causal) {
            last = last.min(query + 1);
        }
        if there {
            for key in first..last {
                let at = (key - first) as usize;
                let mut p = (product(&q, &tile_k, at, plan) - largest).exp() * share;
                if comptime!(plan.windowed) {
                    p = select(is_near(query, key, &sizes), p, 0.0f32);
                }
                let mut dp = product(&d, &tile_v, at, plan);
                if comptime!(plan.dropped) {
                    draw_in_order(&mut words, stream, query, key);
                    dp *= factor_of(&words, key, &sizes);
                }
                let ds = p * (dp - delta) * sizes.scale;
                #[unroll]
                for vector in 0..vectors {
                    sum[vector] += tile_k[at * vectors + vector] * Columns::<f32>::new(ds);
                }
            }
        }
        sync_cube();
    }
    if query < queries {
        deltas[row as usize] = delta;
        #[unroll]
        for vector in 0..vectors {
            put(gradient, own, vector, sum[vector], plan.size);
        }
    }
}

/// The gradients of keys and values, in two tensors or as parts of all in one. Shapes as in
/// `attend_back_queries`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn attend_back_keys<F: Float>(
    inputs: &Sequence<Box<[F]>>,
    lengths: &[i32],
    stream: &[i32],
    d_out: &[F],
    moments: &[f32],
    deltas: &[f32],
    gradients: &mut Sequence<Box<[F]>>,
    sizes: Sizes,
    batch: u32,
    #[comptime] plan: AttentionPlan,
    #[define(F)] _dtype: ElemType,
) {
    let vectors = comptime!(plan.vectors());
    let (sample, head) = task(sizes.heads);
    let key = CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X;
    let key_length = u32::cast_from(lengths[batch as usize + sample]);
    let query_length = seeing(u32::cast_from(lengths[sample]), key_length, &sizes, plan);
    let there = key < key_length;
    let (queries, keys, heads) = (sizes.queries, sizes.keys, sizes.heads);
    let own_k = place(sample, head, key as usize, keys, heads, 1usize, plan);
    let own_v = place(sample, head, key as usize, keys, heads, 2usize, plan);
    let one = 1.0f32.runtime();
    let k = row_of(&inputs[comptime!(plan.which(1))], own_k, there, one, plan);
    let v = row_of(&inputs[comptime!(plan.which(2))], own_v, there, one, plan);
    let mut dk = Array::<Columns<f32>>::new(vectors);
    let mut dv = Array::<Columns<f32>>::new(vectors);
    #[unroll]
    for vector in 0..vectors {
        dk[vector] = Columns::<f32>::new(0.0f32);
        dv[vector] = Columns::<f32>::new(0.0f32);
    }
    let mut tile_q = Shared::<[Columns<f32>]>::new_slice(comptime!(plan.tile * plan.vectors()));
    let mut tile_d = Shared::<[Columns<f32>]>::new_slice(comptime!(plan.tile * plan.vectors()));
    // Largest score, one over the sum, and delta of each query.
    let mut of_query = Shared::<[f32]>::new_slice(comptime!(3 * plan.tile));
    let mut start = 0u32.runtime();
    if comptime!(plan.causal) {
        // Queries before the first key of the cube see none of its keys.
        start = CUBE_POS_X * CUBE_DIM_X;
    }
    let mut stop = query_length;
    if comptime!(plan.windowed) {
        let own = CUBE_POS_X * CUBE_DIM_X;
        if own >= sizes.global {
            start = start.max(own.max(sizes.reach) - sizes.reach);
            stop = stop.min(own + CUBE_DIM_X + sizes.reach);
        }
    }
    for first in range_stepped(start, stop, comptime!(plan.tile as u32)) {
        for at in range_stepped(
            UNIT_POS_X as usize,
            comptime!(plan.tile * plan.vectors()),
            comptime!(plan.threads),
        ) {
            let query = first as usize + at / vectors;
            if query < query_length as usize {
                let q = place(sample, head, query, queries, heads, 0usize, plan);
                let d = ((sample * queries as usize + query) * heads as usize + head) * plan.size;
                tile_q[at] =
                    four(&inputs[0], q, at % vectors, plan.size) * Columns::<f32>::new(sizes.scale);
                tile_d[at] = four(d_out, d, at % vectors, plan.size);
            }
        }
        for at in range_stepped(UNIT_POS_X as usize, comptime!(plan.tile), comptime!(plan.threads))
        {
            let query = first as usize + at;
            if query < query_length as usize {
                let row = CUBE_POS_Y as usize * queries as usize + query;
                let half = batch as usize * heads as usize * queries as usize;
                of_query[at * 3] = moments[row];
                of_query[at * 3 + 1] = 1.0f32 / moments[half + row];
                of_query[at * 3 + 2] = deltas[row];
            }
        }
        sync_cube();
        let last = query_length.min(first + comptime!(plan.tile as u32));
        let mut from = first;
        if comptime!(plan.causal) {
            from = from.max(key);
        }
        if there {
            for query in from..last {
                let at = (query - first) as usize;
                let score = product(&k, &tile_q, at, plan);
                let mut p = (score - of_query[at * 3]).exp() * of_query[at * 3 + 1];
                if comptime!(plan.windowed) {
                    p = select(is_near(query, key, &sizes), p, 0.0f32);
                }
                let mut dp = product(&v, &tile_d, at, plan);
                let mut kept = p;
                if comptime!(plan.dropped) {
                    let words = words_of(stream, query, key);
                    let factor = factor_of(&words, key, &sizes);
                    dp *= factor;
                    kept *= factor;
                }
                let ds = p * (dp - of_query[at * 3 + 2]);
                #[unroll]
                for vector in 0..vectors {
                    dk[vector] += tile_q[at * vectors + vector] * Columns::<f32>::new(ds);
                    dv[vector] += tile_d[at * vectors + vector] * Columns::<f32>::new(kept);
                }
            }
        }
        sync_cube();
    }
    if key < keys {
        #[unroll]
        for vector in 0..vectors {
            put(&mut gradients[0], own_k, vector, dk[vector], plan.size);
            put(&mut gradients[comptime!(plan.which(1))], own_v, vector, dv[vector], plan.size);
        }
    }
}
