//! The kernel of attention, and what it shares with those of its gradients: scores and probabilities
//! exist for one key and query at a time, in registers.
//!
//! Forward and for the gradient of queries, a thread has a query and walks over the keys, which its
//! cube loads into shared memory tile by tile; for the gradients of keys and values, a thread has a
//! key and walks over the queries. Source: Dao, "FlashAttention-2", 2023, without matrix units.

use burn_cubecl::cubecl::{self, prelude::*};

use super::cell::Columns;
use super::dropout::philox;
use crate::cuts::AttentionPlan;

/// Numbers that all kernels need.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) queries: u32,
    pub(super) keys: u32,
    pub(super) heads: u32,
    /// What scores are multiplied by.
    pub(super) scale: f32,
    /// A probability is kept if its 16 bits are at least this.
    pub(super) threshold: u32,
    /// What it is multiplied by then.
    pub(super) kept: f32,
    /// How far a query sees, and how many of the first keys all see; read within a window alone.
    pub(super) reach: u32,
    pub(super) global: u32,
}

/// The head in hand: the sample and the head within it.
#[cube]
pub(super) fn task(heads: u32) -> (usize, usize) {
    ((CUBE_POS_Y / heads) as usize, (CUBE_POS_Y % heads) as usize)
}

/// Where a row of queries (`part` 0), keys (1) or values (2) of the head in hand begins.
#[cube]
pub(super) fn place(
    sample: usize,
    head: usize,
    row: usize,
    rows: u32,
    heads: u32,
    #[comptime] part: usize,
    #[comptime] plan: AttentionPlan,
) -> usize {
    let width = heads as usize * plan.size;
    let row = sample * rows as usize + row;
    if comptime!(plan.packed) {
        (row * 3 + part) * width + head * plan.size
    } else {
        row * width + head * plan.size
    }
}

/// Four numbers of a row, with zeros behind its end.
#[cube]
pub(super) fn four<F: Float>(
    x: &[F],
    begin: usize,
    vector: usize,
    #[comptime] size: usize,
) -> Columns<f32> {
    let mut numbers = Columns::<f32>::new(0.0f32);
    #[unroll]
    for lane in 0..4usize {
        if vector * 4 + lane < size {
            numbers.insert(lane, f32::cast_from(x[begin + vector * 4 + lane]));
        }
    }
    numbers
}

/// Writes four numbers of a row, as far as it goes.
#[cube]
pub(super) fn put<F: Float>(
    x: &mut [F],
    begin: usize,
    #[comptime] vector: usize,
    numbers: Columns<f32>,
    #[comptime] size: usize,
) {
    #[unroll]
    for lane in 0..4usize {
        if comptime!(vector * 4 + lane < size) {
            x[begin + comptime!(vector * 4 + lane)] = F::cast_from(numbers.extract(lane));
        }
    }
}

#[cube]
pub(super) fn across(numbers: Columns<f32>) -> f32 {
    (numbers.extract(0usize) + numbers.extract(1usize))
        + (numbers.extract(2usize) + numbers.extract(3usize))
}

/// A row in registers, times a factor; zeros if it is not `there`.
#[cube]
pub(super) fn row_of<F: Float>(
    x: &[F],
    begin: usize,
    there: bool,
    factor: f32,
    #[comptime] plan: AttentionPlan,
) -> Array<Columns<f32>> {
    let mut row = Array::<Columns<f32>>::new(comptime!(plan.vectors()));
    #[unroll]
    for vector in 0..comptime!(plan.vectors()) {
        row[vector] = Columns::<f32>::new(0.0f32);
        if there {
            row[vector] = four(x, begin, vector, plan.size) * Columns::<f32>::new(factor);
        }
    }
    row
}

/// The product of a row in registers and row `at` of a tile.
#[cube]
pub(super) fn product(
    row: &Array<Columns<f32>>,
    tile: &Shared<[Columns<f32>]>,
    at: usize,
    #[comptime] plan: AttentionPlan,
) -> f32 {
    let mut sum = Columns::<f32>::new(0.0f32);
    #[unroll]
    for vector in 0..comptime!(plan.vectors()) {
        sum += row[vector] * tile[at * comptime!(plan.vectors()) + vector];
    }
    across(sum)
}

/// Brings the keys from `first` on, and their values, into shared memory: as many as a tile has, of those
/// before `end`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "two tiles, and the place of what is in them")]
pub(super) fn load<F: Float>(
    inputs: &Sequence<Box<[F]>>,
    tile_k: &mut Shared<[Columns<f32>]>,
    tile_v: &mut Shared<[Columns<f32>]>,
    sample: usize,
    head: usize,
    first: u32,
    end: u32,
    sizes: &Sizes,
    #[comptime] plan: AttentionPlan,
) {
    let vectors = comptime!(plan.vectors());
    let (keys, heads) = (sizes.keys, sizes.heads);
    for at in range_stepped(
        UNIT_POS_X as usize,
        comptime!(plan.tile * plan.vectors()),
        comptime!(plan.threads),
    ) {
        let key = first as usize + at / vectors;
        if key < end as usize {
            let k = place(sample, head, key, keys, heads, 1usize, plan);
            let v = place(sample, head, key, keys, heads, 2usize, plan);
            tile_k[at] = four(&inputs[comptime!(plan.which(1))], k, at % vectors, plan.size);
            tile_v[at] = four(&inputs[comptime!(plan.which(2))], v, at % vectors, plan.size);
        }
    }
}

/// Whether a query sees a key within its window.
#[cube]
pub(super) fn is_near(query: u32, key: u32, sizes: &Sizes) -> bool {
    let reach = sizes.reach;
    key < sizes.global || (key + reach >= query && query + reach >= key)
}

/// Of so many queries those that see one of so many keys: within a window none far behind the last does.
#[cube]
pub(super) fn seeing(
    queries: u32,
    keys: u32,
    sizes: &Sizes,
    #[comptime] plan: AttentionPlan,
) -> u32 {
    let mut seeing = queries;
    if comptime!(plan.windowed) {
        seeing = queries.min(select(sizes.global == 0u32, keys + sizes.reach, queries));
    }
    seeing
}

/// Keys before those that a cube's queries need not walk over: whole tiles that hold the first ones, which all
/// see.
#[cube]
pub(super) fn before_gap(end: u32, sizes: &Sizes, #[comptime] plan: AttentionPlan) -> u32 {
    let mut first = end;
    if comptime!(plan.windowed) {
        let tile = comptime!(plan.tile as u32);
        first = (end.min(sizes.global) + comptime!(plan.tile as u32 - 1)) / tile * tile;
    }
    first
}

/// Keys that a cube's queries need not walk over, whole tiles between the first ones and those in reach.
#[cube]
pub(super) fn gap(first: u32, sizes: &Sizes, #[comptime] plan: AttentionPlan) -> u32 {
    let mut gap = 0u32.runtime();
    if comptime!(plan.windowed) {
        let tile = comptime!(plan.tile as u32);
        let own = CUBE_POS_X * CUBE_DIM_X;
        let near = (own.max(sizes.reach) - sizes.reach) / tile * tile;
        gap = near.max(first) - first;
    }
    gap
}

/// Keys up to which a cube's queries walk, without the gap.
#[cube]
pub(super) fn end_of_walk(
    end: u32,
    first: u32,
    gap: u32,
    sizes: &Sizes,
    #[comptime] plan: AttentionPlan,
) -> u32 {
    let mut walked = end;
    if comptime!(plan.windowed) {
        let near = end.min((CUBE_POS_X + 1u32) * CUBE_DIM_X + sizes.reach);
        walked = near.max(first + gap) - gap;
    }
    walked
}

/// The key at which a tile begins, from the keys walked over before it.
#[cube]
pub(super) fn beyond_gap(step: u32, first: u32, gap: u32, #[comptime] plan: AttentionPlan) -> u32 {
    let mut key = step;
    if comptime!(plan.windowed) {
        key = step + select(step >= first, gap, 0u32);
    }
    key
}

/// The words of the head in hand that decide on a query's key and the seven beside it.
#[cube]
pub(super) fn words_of(stream: &[i32], query: u32, key: u32) -> Array<u32> {
    let row = CUBE_POS_Y as usize * 2;
    let k_0 = u32::cast_from(stream[row]);
    let k_1 = u32::cast_from(stream[row + 1]);
    philox(query, key / 8u32, k_0, k_1)
}

/// Keeps the words of a query's key in `words`, for keys in their order from 0 on: they are drawn once for
/// eight of them.
#[cube]
pub(super) fn draw_in_order(words: &mut Array<u32>, stream: &[i32], query: u32, key: u32) {
    if key % 8u32 == 0u32 {
        let drawn = words_of(stream, query, key);
        #[unroll]
        for word in 0..4usize {
            words[word] = drawn[word];
        }
    }
}

/// What the probability of a key is multiplied by: the 16 bits number `key % 8` of the words.
#[cube]
pub(super) fn factor_of(words: &Array<u32>, key: u32, sizes: &Sizes) -> f32 {
    let place = key % 8u32;
    let word = words[(place / 2u32) as usize];
    let bits = (word >> (16u32 * (place % 2u32))) & 0xFFFFu32;
    select(bits >= sizes.threshold, sizes.kept, 0.0f32)
}

/// The result, and for each query the largest score and the sum of the exponentials.
///
/// # Shapes
/// - inputs: queries `[batch, queries, heads · size]`, keys and values `[batch, keys, heads · size]`, or
///   all in one `[batch, time, 3 · heads · size]`
/// - lengths: `[2, batch]`, of queries and of keys
/// - stream: the key of each head's stream, `[batch · heads, 2]`; not read unless dropped
/// - out: `[batch, queries, heads · size]`; moments: `[2, batch · heads, queries]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn attend<F: Float>(
    inputs: &Sequence<Box<[F]>>,
    lengths: &[i32],
    stream: &[i32],
    out: &mut [F],
    moments: &mut [f32],
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
    let there = query < query_length;
    let (queries, heads) = (sizes.queries, sizes.heads);
    let begin = place(sample, head, query as usize, queries, heads, 0usize, plan);
    let q = row_of(&inputs[0], begin, there, sizes.scale, plan);
    let mut sum = Array::<Columns<f32>>::new(vectors);
    #[unroll]
    for vector in 0..vectors {
        sum[vector] = Columns::<f32>::new(0.0f32);
    }
    let mut largest = f32::min_value();
    let mut total = 0.0f32;
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
                let mut score = product(&q, &tile_k, at, plan);
                if comptime!(plan.windowed) {
                    score = select(is_near(query, key, &sizes), score, f32::min_value());
                }
                if score > largest {
                    let shrink = (largest - score).exp();
                    total *= shrink;
                    #[unroll]
                    for vector in 0..vectors {
                        sum[vector] *= Columns::<f32>::new(shrink);
                    }
                    largest = score;
                }
                let mut p = (score - largest).exp();
                if comptime!(plan.windowed) {
                    p = select(is_near(query, key, &sizes), p, 0.0f32);
                }
                total += p;
                if comptime!(plan.dropped) {
                    draw_in_order(&mut words, stream, query, key);
                    p *= factor_of(&words, key, &sizes);
                }
                #[unroll]
                for vector in 0..vectors {
                    sum[vector] += tile_v[at * vectors + vector] * Columns::<f32>::new(p);
                }
            }
        }
        sync_cube();
    }
    if query < queries {
        // Of a query that sees nothing the sum is zero, and so is the result.
        let seen = there && key_length > 0u32;
        let share = select(seen, 1.0f32 / total, 0.0f32);
        let begin = (sample * queries as usize + query as usize) * heads as usize + head;
        #[unroll]
        for vector in 0..vectors {
            let mut numbers = Columns::<f32>::new(0.0f32);
            if seen {
                numbers = sum[vector] * Columns::<f32>::new(share);
            }
            put(out, begin * plan.size, vector, numbers, plan.size);
        }
        let row = CUBE_POS_Y * queries + query;
        moments[row as usize] = largest;
        moments[(batch * heads * queries + row) as usize] = total;
    }
}
