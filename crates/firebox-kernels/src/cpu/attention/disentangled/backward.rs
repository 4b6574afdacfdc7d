//! Gradients of disentangled attention.

use std::ops::Range;

use rayon::prelude::*;

use super::super::super::compute::{Compute, Words, in_whole_words};
use super::super::super::pool::Lent;
use super::super::super::zeros;
use super::super::products::Multiplier;
use super::super::{AttentionOutput, Block, Place, QUERIES, Target, Unfilled, pack};
use super::rows::Known;
use super::{
    BLOCK, CpuKernels, Dims, DisentangledCall, DisentangledSizes, Head, SCORES, Scores, cut,
    in_words_of, most, multiply, room, rows,
};

/// Tasks, about: each has sums of its own for the table of distances.
const TASKS: usize = 128;

/// Gradients of queries, keys and values side by side, `[batch, time, 3 · heads · size]`, and of the queries
/// and keys of the [rows that occur](super::DistanceTable::range), `[rows, 2 · heads · size]`.
pub(crate) fn disentangled_backward(
    call: &DisentangledCall<'_>,
    output: AttentionOutput<'_>,
) -> [Vec<f32>; 2] {
    let DisentangledSizes { batch, time, heads, size } = *call.sizes;
    let width = heads * size;
    let count = batch * time * 3 * width;
    let mut buffer = Unfilled::new(count);
    let shared = buffer.shared(count);
    let samples = (batch * heads).div_ceil(TASKS);
    let table = call.table.count * size;
    let mut sums = zeros(batch.div_ceil(samples) * heads * 2 * table);
    let room = room(&parts(call));
    sums.par_chunks_mut(2 * table).enumerate().for_each_init(
        || Lent::take(room),
        |buffer, (index, sums)| {
            let first = index / heads * samples;
            let task = Task {
                call,
                head: index % heads,
                samples: first..batch.min(first + samples),
                output,
            };
            let place = |part: usize| {
                let place = Place::dense(time, 3 * width);
                Place { offset: part * width, ..place }
            };
            let targets = |head: &Head<'_>| [0, 1, 2].map(|part| head.target(&shared, place(part)));
            in_whole_words!(Words::of(call.rules.kernels, call.rules.bf16), C => {
                task.run::<C>(buffer.get_mut(), targets, sums);
            });
        },
    );
    // SAFETY: every task has written all rows of its samples and head in all three gradients, and there
    // is one for each sample and head; together their places are all of the buffer.
    [unsafe { buffer.filled(count) }, of_all_samples(call, &sums)]
}

/// The sums of all tasks, `[task, head, 2, rows, size]`, in their order, as `[rows, 2 · heads · size]`.
fn of_all_samples(call: &DisentangledCall<'_>, sums: &[f32]) -> Vec<f32> {
    let DisentangledSizes { heads, size, .. } = *call.sizes;
    let count = call.table.count;
    let mut all = zeros(count * 2 * heads * size);
    all.par_chunks_mut(2 * heads * size).enumerate().for_each(|(row, all)| {
        for (part, sums) in sums.chunks_exact(count * size).enumerate() {
            let (head, part) = (part / 2 % heads, part % 2);
            let all = &mut all[(part * heads + head) * size..][..size];
            all.iter_mut().zip(&sums[row * size..]).for_each(|(all, sum)| *all += sum);
        }
    });
    all
}

/// One head of some samples.
struct Task<'a> {
    call: &'a DisentangledCall<'a>,
    head: usize,
    samples: Range<usize>,
    output: AttentionOutput<'a>,
}

/// What gradients are computed from beside [`Scores`], and the gradients so far.
struct Gradients<'a> {
    /// `[words of keys, padded]`
    keys_across: &'a mut [f32],
    /// `[words, keys]`
    value_columns: &'a mut [f32],
    /// Queries and keys of distances, `[words of the table, padded]`.
    table_across: [&'a mut [f32]; 2],
    /// Of a block of the output and its gradient, `[queries, padded]`.
    out: &'a mut [f32],
    d_out: &'a mut [f32],
    /// `[queries, words]`
    d_out_words: &'a mut [f32],
    /// `[words of queries, padded]`
    queries_across: &'a mut [f32],
    d_out_across: &'a mut [f32],
    /// `[queries, keys]`
    d_scores: &'a mut [f32],
    /// `[keys, rows of the table]`
    d_of_keys: &'a mut [f32],
    /// `[queries, padded]`
    d_queries: &'a mut [f32],
    /// `[keys, padded]`
    d_keys: &'a mut [f32],
    d_values: &'a mut [f32],
    /// `[rows of the table, padded]`
    d_table: [&'a mut [f32]; 2],
    /// Room for a block of rows that became columns, and for words.
    turned: &'a mut [f32],
    words: &'a mut [f32],
    factors: &'a mut [f32],
}

/// Parts of the memory of [`Gradients`].
const GRADIENTS: usize = 19;

/// Sizes of the parts of a task's memory.
fn parts(call: &DisentangledCall<'_>) -> [usize; SCORES + GRADIENTS] {
    let [padded, keys, table] = most(call, call.sizes.time);
    let (block, longest) = (QUERIES * padded, QUERIES * keys.max(table));
    let of_keys = usize::from(call.rules.position_to_content) * keys * table;
    let (keys_across, table_across) = (keys * padded, table * padded);
    let mut parts = [0; SCORES + GRADIENTS];
    parts[..SCORES].copy_from_slice(&Scores::parts(call.rules, [padded, keys, table]));
    parts[SCORES..].copy_from_slice(&[
        keys_across,
        keys_across,
        table_across,
        table_across,
        block,
        block,
        block,
        block,
        block,
        QUERIES * keys,
        of_keys,
        block,
        keys_across,
        keys_across,
        table_across,
        table_across,
        longest,
        longest,
        keys + BLOCK,
    ]);
    parts
}

impl<'a> Gradients<'a> {
    fn new(parts: [&'a mut [f32]; GRADIENTS]) -> Self {
        let [
            keys_across,
            value_columns,
            query_table,
            key_table,
            out,
            d_out,
            d_out_words,
            queries_across,
            d_out_across,
            d_scores,
            d_of_keys,
            d_queries,
            d_keys,
            d_values,
            d_query_table,
            d_key_table,
            turned,
            words,
            factors,
        ] = parts;
        Self {
            keys_across,
            value_columns,
            table_across: [query_table, key_table],
            out,
            d_out,
            d_out_words,
            queries_across,
            d_out_across,
            d_scores,
            d_of_keys,
            d_queries,
            d_keys,
            d_values,
            d_table: [d_query_table, d_key_table],
            turned,
            words,
            factors,
        }
    }
}

impl Task<'_> {
    /// Gradients of this head's samples into `targets`, and of the table into `sums`, `[2, rows, size]`.
    fn run<'b, C: Compute>(
        &self,
        buffer: &mut [f32],
        targets: impl Fn(&Head<'_>) -> [Target<'b>; 3],
        sums: &mut [f32],
    ) {
        let kernels = self.call.rules.kernels;
        let multiplier = Multiplier::new::<C>(kernels);
        let mut parts = cut(buffer, parts(self.call)).into_iter();
        let mut next = || parts.next().unwrap_or_default();
        let mut scores = Scores::new(std::array::from_fn(|_| next()));
        let mut all = Gradients::new(std::array::from_fn(|_| next()));
        let first = Head::new(self.call, self.samples.start, self.head);
        let dims = Dims::new::<C>(&multiplier, &first);
        scores.pack_table::<C>(&first, &dims);
        for (from, across) in self.call.positions.into_iter().zip(&mut all.table_across) {
            first.gather_table(from, &dims, scores.plain);
            let rows = &scores.plain[..dims.table * dims.padded];
            let across = &mut across[..dims.table_words * dims.padded];
            pack::across_rows::<C>(kernels, rows, dims.padded, 1, across);
        }
        all.d_table.iter_mut().for_each(|d| d.fill(0.0));
        for sample in self.samples.clone() {
            let head = Head::new(self.call, sample, self.head);
            self.sample::<C>(&head, &multiplier, &mut scores, &mut all, &targets(&head));
        }
        let size = self.call.sizes.size;
        let rows = self.call.table.count * size;
        for (sums, d) in sums.chunks_exact_mut(rows).zip(&all.d_table) {
            let rows = sums.chunks_exact_mut(size).zip(d.chunks_exact(dims.padded));
            rows.for_each(|(sums, d)| sums.copy_from_slice(&d[..size]));
        }
    }

    fn sample<C: Compute>(
        &self,
        head: &Head<'_>,
        multiplier: &Multiplier,
        scores: &mut Scores<'_>,
        all: &mut Gradients<'_>,
        targets: &[Target<'_>; 3],
    ) {
        targets.iter().for_each(|target| target.clear(head.length));
        if head.length == 0 {
            return;
        }
        let (rules, kernels) = (self.call.rules, head.kernels());
        let dims = Dims::new::<C>(multiplier, head);
        let Dims { padded, keys, key_words, table, .. } = dims;
        scores.pack_keys::<C>(head, &dims, multiplier);
        head.gather_all(self.call.content.k, &dims, scores.plain);
        let rows = &scores.plain[..keys * padded];
        let across = &mut all.keys_across[..key_words * padded];
        pack::across_rows::<C>(kernels, rows, padded, 1, across);
        head.gather_all(self.call.content.v, &dims, scores.plain);
        let rows = &mut scores.plain[..keys * padded];
        pack::transpose::<C>(kernels, rows, keys, keys, all.value_columns);
        all.d_keys[..keys * padded].fill(0.0);
        all.d_values[..keys * padded].fill(0.0);
        if rules.position_to_content {
            all.d_of_keys[..keys * table].fill(0.0);
        }
        for block in Block::all(head.length) {
            scores.of_block::<C>(head, &dims, multiplier, &block);
            self.block::<C>(head, &dims, multiplier, &block, scores, all);
            targets[0].write(block.first, &all.d_queries[..block.count * padded], 1.0);
        }
        if rules.position_to_content {
            // Keys take the part that queries have in the other term.
            for block in Block::all(keys) {
                let d = &all.d_of_keys[block.first * table..][..block.lanes() * table];
                let of_rows = OfRows {
                    d,
                    lanes: block.lanes(),
                    table_across: all.table_across[0],
                    rows_across: &all.keys_across
                        [block.first / C::PAIR * padded..key_words * padded],
                    turned: all.turned,
                    words: all.words,
                };
                let d_rows = &mut all.d_keys[block.first * padded..];
                of_rows.add::<C>(kernels, multiplier, &dims, d_rows, all.d_table[0]);
            }
        }
        targets[1].write(0, &all.d_keys[..head.length * padded], 1.0);
        targets[2].write(0, &all.d_values[..head.length * padded], 1.0);
    }

    /// What a block of queries, whose scores are there, gives to all gradients.
    fn block<C: Compute>(
        &self,
        head: &Head<'_>,
        dims: &Dims,
        multiplier: &Multiplier,
        block: &Block,
        scores: &mut Scores<'_>,
        all: &mut Gradients<'_>,
    ) {
        let Dims { padded, keys, words, key_words, table, .. } = *dims;
        let (rules, kernels, lanes) = (self.call.rules, head.kernels(), block.lanes());
        let lane_words = multiplier.words::<C>(lanes);
        head.gather_block(self.output.out, block, all.out);
        head.gather_block(self.output.d_out, block, all.d_out);
        let (out, d_out) = (&all.out[..lanes * padded], &all.d_out[..lanes * padded]);
        let mut dots = [0.0; QUERIES];
        pack::negative_dots::<C>(kernels, out, d_out, padded, &mut dots);
        // The block of queries is where its scores were computed from.
        for (rows, across) in
            [(&*scores.plain, &mut *all.queries_across), (d_out, &mut *all.d_out_across)]
        {
            let across = &mut across[..lane_words * padded];
            pack::across_rows::<C>(kernels, &rows[..lanes * padded], padded, 1, across);
        }
        let d_out_words = in_words_of::<C>(kernels, d_out, [padded, words], all.d_out_words);
        let sizes = [lanes, words, keys];
        multiply::<C>(multiplier, sizes, d_out_words, all.value_columns, all.d_scores, false);
        self.softmax(head, dims, block, &dots, scores, all);

        let (p, d) = (&scores.scores[..lanes * keys], &all.d_scores[..lanes * keys]);
        for (from, across, to) in [
            (p, &*all.d_out_across, &mut *all.d_values),
            (d, &*all.queries_across, &mut *all.d_keys),
        ] {
            pack::turn(kernels, from, keys, all.turned);
            let turned = &all.turned[..keys * lanes];
            let turned = in_words_of::<C>(kernels, turned, [lanes, lane_words], all.words);
            multiply::<C>(multiplier, [keys, lane_words, padded], turned, across, to, true);
        }
        let d = in_words_of::<C>(kernels, d, [keys, key_words], all.words);
        let sizes = [lanes, key_words, padded];
        multiply::<C>(multiplier, sizes, d, all.keys_across, all.d_queries, false);
        if rules.content_to_position {
            // What the scores were computed from is read no more.
            let d = &mut scores.of_queries[..lanes * table];
            d.fill(0.0);
            for (row, d) in d.chunks_exact_mut(table).take(block.count).enumerate() {
                let places = self.call.table.of_query(block.first + row, head.length);
                rows::add_to_row(kernels, &all.d_scores[row * keys..], places, d);
            }
            let of_rows = OfRows {
                d,
                lanes,
                table_across: all.table_across[1],
                rows_across: all.queries_across,
                turned: all.turned,
                words: all.words,
            };
            of_rows.add::<C>(kernels, multiplier, dims, all.d_queries, all.d_table[1]);
        }
        if rules.position_to_content {
            for row in 0..block.count {
                let places = self.call.table.of_query(block.first + row, head.length);
                let to = &mut all.d_of_keys[..keys * table];
                rows::add_to_rows(kernels, &all.d_scores[row * keys..], table, places, to);
            }
        }
    }

    /// Of the scores of a block and the gradient of its probabilities, these and the gradient of the scores.
    fn softmax(
        &self,
        head: &Head<'_>,
        dims: &Dims,
        block: &Block,
        dots: &[f32; QUERIES],
        scores: &mut Scores<'_>,
        all: &mut Gradients<'_>,
    ) {
        let (kernels, keys, lanes) = (head.kernels(), dims.keys, block.lanes());
        let DisentangledSizes { time, heads, .. } = *self.call.sizes;
        let first = (head.sample * heads + head.head) * time + block.first;
        let normalisers = &self.output.normalisers[first..][..block.count];
        let mask = self.call.rules.dropout;
        for (row, (normaliser, dot)) in normalisers.iter().zip(dots).enumerate() {
            let known = Known { normaliser: *normaliser, dot: *dot, scale: self.call.rules.scale };
            let factors = head.factors(mask, block.first + row, keys, all.factors);
            let scores = &mut scores.scores[row * keys..][..keys];
            let d = &mut all.d_scores[row * keys..][..keys];
            rows::gradient(kernels, head.length, known, factors, scores, d);
        }
        // Sums over queries go over whole blocks.
        scores.scores[block.count * keys..lanes * keys].fill(0.0);
        all.d_scores[block.count * keys..lanes * keys].fill(0.0);
    }
}

/// The gradient of the product of some rows, queries or keys, with the table: `[rows, rows of the table]`.
struct OfRows<'a> {
    d: &'a [f32],
    lanes: usize,
    /// `[words of the table, padded]`
    table_across: &'a [f32],
    /// `[words of rows, padded]`
    rows_across: &'a [f32],
    turned: &'a mut [f32],
    words: &'a mut [f32],
}

impl OfRows<'_> {
    /// Adds what it gives to the gradients of the rows and of the table.
    fn add<C: Compute>(
        self,
        kernels: CpuKernels,
        multiplier: &Multiplier,
        dims: &Dims,
        d_rows: &mut [f32],
        d_table: &mut [f32],
    ) {
        let Self { d, lanes, table_across, rows_across, turned, words } = self;
        let Dims { padded, table, table_words, .. } = *dims;
        let lane_words = multiplier.words::<C>(lanes);
        let of_rows = in_words_of::<C>(kernels, d, [table, table_words], words);
        let sizes = [lanes, table_words, padded];
        multiply::<C>(multiplier, sizes, of_rows, table_across, d_rows, true);
        pack::turn(kernels, d, table, turned);
        let turned = &turned[..table * lanes];
        let of_table = in_words_of::<C>(kernels, turned, [lanes, lane_words], words);
        let sizes = [table, lane_words, padded];
        multiply::<C>(multiplier, sizes, of_table, rows_across, d_table, true);
    }
}
