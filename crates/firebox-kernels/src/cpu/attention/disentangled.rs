//! Disentangled attention on a CPU: slices in, slices out, no tensor.
//!
//! A task is one head of one sample, on one thread, and in the backward pass one head of a few samples.
//! It walks over its queries in blocks of up to 64, whose scores of content and of distances lie in buffers
//! of its core, row by row. What keys say of distances, `[keys, rows of the table]`, is computed once
//! for a sample and lies there as well, so that a core has no more of the scores than one head's at any time.
//! The forward pass keeps of each query the largest score and one over the sum of the exponentials, from which the
//! backward pass computes the probabilities again.
//!
//! Products are made of the pieces of plain attention. Every left operand is rows of words, so that
//! vectors and tiles read the same. Of the table of distances only the rows that occur are read, from the first to the last.
//!
//! Results do not depend on the number of threads: tasks share nothing, and the gradient of the table is
//! summed up over samples in their order, within groups that depend on sizes alone and then over groups.

mod backward;
mod forward;
mod rows;

use super::super::compute::Compute;
use super::super::dropout::multiply_part_of;
use super::super::{BLOCK, CpuKernels, Mask, Shared};
use super::products::{Multiplier, Product};
use super::{Block, Cutter, Operand, Operands, Place, QUERIES, Target, pack};
pub(crate) use backward::disentangled_backward;
pub(crate) use forward::disentangled;

/// Sizes of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DisentangledSizes {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) heads: usize,
    /// Numbers of a query, key or value of one head.
    pub(crate) size: usize,
}

/// What is computed, in which type and with which instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisentangledRules {
    pub(crate) kernels: CpuKernels,
    /// Whether the operands of products are rounded to bf16.
    pub(crate) bf16: bool,
    /// What the sum of all terms is multiplied by; above 0.
    pub(crate) scale: f32,
    pub(crate) content_to_position: bool,
    pub(crate) position_to_content: bool,
    /// Of the probabilities, `[batch, head, query, key]` in row-major order.
    pub(crate) dropout: Option<Mask>,
}

/// The row of each distance, as a query sees it along its keys.
#[derive(Clone, Debug)]
pub(crate) struct DistanceTable {
    /// The first row that any distance has, and how many there are to the last.
    first: usize,
    count: usize,
    time: usize,
    /// From the farthest key before a query to the farthest after it, counted from the first row.
    turned: Vec<u32>,
}

impl DistanceTable {
    /// From the rows of the distances `query - key` from `1 - time` to `time - 1`, of which there are some.
    pub(crate) fn new(rows: &[u32]) -> Self {
        let first = rows.iter().copied().min().unwrap_or(0);
        let last = rows.iter().copied().max().unwrap_or(0);
        Self {
            first: first as usize,
            count: (last - first) as usize + 1,
            time: rows.len().div_ceil(2),
            turned: rows.iter().rev().map(|row| row - first).collect(),
        }
    }

    /// The rows that occur, as a part of the table.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }

    /// The rows of the first keys for this query.
    fn of_query(&self, query: usize, keys: usize) -> &[u32] {
        &self.turned[self.time - 1 - query..][..keys]
    }
}

/// One call of the operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisentangledCall<'a> {
    pub(crate) rules: &'a DisentangledRules,
    pub(crate) sizes: &'a DisentangledSizes,
    /// Valid steps of each sample; all if `None`.
    pub(crate) lengths: Option<&'a [usize]>,
    pub(crate) content: Operands<'a>,
    /// Queries and keys of the distances: a row for each of the table's, whatever the sample.
    pub(crate) positions: [Operand<'a>; 2],
    pub(crate) table: &'a DistanceTable,
}

/// One head of one sample.
#[derive(Clone, Copy)]
struct Head<'a> {
    call: &'a DisentangledCall<'a>,
    sample: usize,
    head: usize,
    /// Valid queries, and keys.
    length: usize,
}

impl<'a> Head<'a> {
    fn new(call: &'a DisentangledCall<'a>, sample: usize, head: usize) -> Self {
        let time = call.sizes.time;
        let length = call.lengths.map_or(time, |lengths| lengths[sample].min(time));
        Self { call, sample, head, length }
    }

    fn kernels(&self) -> CpuKernels {
        self.call.rules.kernels
    }

    /// Copies `count` rows of a sample from `first` on, and makes zeros of the rows up to `lanes`.
    fn gather(
        &self,
        from: Operand<'_>,
        [sample, first]: [usize; 2],
        [count, lanes]: [usize; 2],
        to: &mut [f32],
    ) {
        let size = self.call.sizes.size;
        let padded = size.next_multiple_of(BLOCK);
        let at = from.place.at(sample, first, self.head, size);
        pack::gather(&from.values[at..], from.place.row, size, 1.0, &mut to[..count * padded]);
        to[count * padded..lanes * padded].fill(0.0);
    }

    /// The rows of a block of this sample.
    fn gather_block(&self, from: Operand<'_>, block: &Block, to: &mut [f32]) {
        self.gather(from, [self.sample, block.first], [block.count, block.lanes()], to);
    }

    /// All valid rows of this sample.
    fn gather_all(&self, from: Operand<'_>, dims: &Dims, to: &mut [f32]) {
        self.gather(from, [self.sample, 0], [self.length, dims.keys], to);
    }

    /// The rows of the table that occur.
    fn gather_table(&self, from: Operand<'_>, dims: &Dims, to: &mut [f32]) {
        let table = self.call.table;
        self.gather(from, [0, table.first], [table.count, dims.table], to);
    }

    fn target<'b>(&self, shared: &'b Shared<'b>, place: Place) -> Target<'b> {
        let (sample, head) = (self.sample, self.head);
        let (size, rows) = (self.call.sizes.size, self.call.sizes.time);
        Target { shared, place, sample, head, size, rows }
    }

    /// What a mask multiplies the probabilities of a query by, in a part of `room`, which has room for as many as there
    /// are keys, in whole blocks, and one block more.
    fn factors<'b>(
        &self,
        mask: Option<Mask>,
        query: usize,
        keys: usize,
        room: &'b mut [f32],
    ) -> Option<&'b [f32]> {
        let mask = mask?;
        let DisentangledSizes { time, heads, .. } = *self.call.sizes;
        let first = ((self.sample * heads + self.head) * time + query) * time;
        // A block of the stream has four words.
        let before = first % 4;
        room[..before + keys].fill(1.0);
        multiply_part_of(
            self.kernels(),
            mask,
            (first - before) as u64,
            &mut room[..before + self.length],
        );
        Some(&room[before..before + keys])
    }
}

/// Sizes of a task's matrices, in whole blocks, and how many words their rows have.
#[derive(Clone, Copy)]
struct Dims {
    /// Numbers of a row.
    padded: usize,
    keys: usize,
    table: usize,
    words: usize,
    key_words: usize,
    table_words: usize,
}

impl Dims {
    fn new<C: Compute>(multiplier: &Multiplier, head: &Head<'_>) -> Self {
        let [padded, keys, table] = most(head.call, head.length);
        let words = |numbers| multiplier.words::<C>(numbers);
        let (key_words, table_words) = (words(keys), words(table));
        Self { padded, keys, table, words: words(padded), key_words, table_words }
    }
}

/// Numbers of a row, keys and rows of the table, in whole blocks, for samples of up to this length.
fn most(call: &DisentangledCall<'_>, length: usize) -> [usize; 3] {
    [call.sizes.size, length, call.table.count].map(|count| count.next_multiple_of(BLOCK))
}

/// Numbers of memory for parts of these sizes.
fn room(parts: &[usize]) -> usize {
    parts.iter().map(|part| part.next_multiple_of(BLOCK)).sum()
}

/// Parts of these sizes, for which there is [`room`].
fn cut<const N: usize>(buffer: &mut [f32], parts: [usize; N]) -> [&mut [f32]; N] {
    let mut buffer = Cutter(buffer);
    parts.map(|part| buffer.cut(part))
}

/// `a · b` into `out`, or added to it, for sizes `[rows, words of the inner size, columns]`.
fn multiply<C: Compute>(
    multiplier: &Multiplier,
    [rows, count, columns]: [usize; 3],
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    add: bool,
) {
    let blocks = columns / BLOCK;
    let (a_row, b_row, out_row) = (count, columns, columns);
    let product = Product { rows, blocks, count, a_row, a_step: 1, b_row, out_row, add };
    multiplier.product::<C>(product, a, b, out);
}

/// Rows as words for a sum over their numbers, in `room` unless they are that already. `widths` are the numbers and the
/// words of a row.
fn in_words_of<'a, C: Compute>(
    kernels: CpuKernels,
    rows: &'a [f32],
    widths: [usize; 2],
    room: &'a mut [f32],
) -> &'a [f32] {
    if C::VERBATIM {
        return rows;
    }
    let [numbers, words] = widths;
    let room = &mut room[..rows.len() / numbers * words];
    pack::along_rows::<C>(kernels, rows, widths, room);
    room
}

/// What scores are computed from, and the scores of a block.
struct Scores<'a> {
    /// Rows before they are packed, `[keys, rows of the table or queries, padded]`.
    plain: &'a mut [f32],
    /// `[keys, words]`
    keys: &'a mut [f32],
    /// Keys as columns, `[words, keys]`.
    key_columns: &'a mut [f32],
    /// Queries and keys of distances as columns, `[words, rows of the table]`.
    positions: [&'a mut [f32]; 2],
    /// Keys times the queries of distances, `[keys, rows of the table]`.
    of_keys: &'a mut [f32],
    /// A block of queries, `[queries, words]`.
    queries: &'a mut [f32],
    /// Queries times the keys of distances, `[queries, rows of the table]`.
    of_queries: &'a mut [f32],
    /// `[queries, keys]`
    scores: &'a mut [f32],
}

/// Parts of the memory of [`Scores`].
const SCORES: usize = 9;

impl<'a> Scores<'a> {
    /// Sizes of its parts for [`most`] of these.
    fn parts(rules: &DisentangledRules, [padded, keys, table]: [usize; 3]) -> [usize; SCORES] {
        let [from_keys, from_queries] =
            [rules.position_to_content, rules.content_to_position].map(usize::from);
        [
            keys.max(table).max(QUERIES) * padded,
            keys * padded,
            padded * keys,
            from_keys * padded * table,
            from_queries * padded * table,
            from_keys * keys * table,
            QUERIES * padded,
            from_queries * QUERIES * table,
            QUERIES * keys,
        ]
    }

    fn new(parts: [&'a mut [f32]; SCORES]) -> Self {
        let [plain, keys, key_columns, first, second, of_keys, queries, of_queries, scores] = parts;
        let positions = [first, second];
        Self { plain, keys, key_columns, positions, of_keys, queries, of_queries, scores }
    }

    /// Reads the table, once for all samples.
    fn pack_table<C: Compute>(&mut self, head: &Head<'_>, dims: &Dims) {
        let Dims { padded, table, .. } = *dims;
        let rules = head.call.rules;
        let wanted = [rules.position_to_content, rules.content_to_position];
        let from = head.call.positions.into_iter().zip(wanted).zip(&mut self.positions);
        for ((from, _), columns) in from.filter(|((_, wanted), _)| *wanted) {
            head.gather_table(from, dims, self.plain);
            let rows = &mut self.plain[..table * padded];
            pack::transpose::<C>(rules.kernels, rows, table, table, columns);
        }
    }

    /// Reads the keys of a sample, and computes what they say of distances.
    fn pack_keys<C: Compute>(&mut self, head: &Head<'_>, dims: &Dims, multiplier: &Multiplier) {
        let Dims { padded, keys, table, words, .. } = *dims;
        let kernels = head.kernels();
        head.gather_all(head.call.content.k, dims, self.plain);
        let rows = &mut self.plain[..keys * padded];
        pack::along_rows::<C>(kernels, rows, [padded, words], &mut self.keys[..keys * words]);
        pack::transpose::<C>(kernels, rows, keys, keys, self.key_columns);
        if head.call.rules.position_to_content {
            let sizes = [keys, words, table];
            multiply::<C>(multiplier, sizes, self.keys, self.positions[0], self.of_keys, false);
        }
    }

    /// The scores of a block, without their factor, `[queries, keys]`: numbers after the last key and
    /// rows after the last query mean nothing, and are finite.
    fn of_block<C: Compute>(
        &mut self,
        head: &Head<'_>,
        dims: &Dims,
        multiplier: &Multiplier,
        block: &Block,
    ) {
        let Dims { padded, keys, table, words, .. } = *dims;
        let (rules, kernels, lanes) = (head.call.rules, head.kernels(), block.lanes());
        head.gather_block(head.call.content.q, block, self.plain);
        let queries = &mut self.queries[..lanes * words];
        pack::along_rows::<C>(kernels, &self.plain[..lanes * padded], [padded, words], queries);
        let sizes = [lanes, words, keys];
        multiply::<C>(multiplier, sizes, queries, self.key_columns, self.scores, false);
        if rules.content_to_position {
            let sizes = [lanes, words, table];
            let [_, position_keys] = &self.positions;
            multiply::<C>(multiplier, sizes, queries, position_keys, self.of_queries, false);
        }
        for (row, scores) in self.scores.chunks_exact_mut(keys).take(block.count).enumerate() {
            let scores = &mut scores[..head.length];
            let places = head.call.table.of_query(block.first + row, head.length);
            if rules.content_to_position {
                let from = &self.of_queries[row * table..][..table];
                rows::add_from_row(kernels, from, places, scores);
            }
            if rules.position_to_content {
                let from = &self.of_keys[..keys * table];
                rows::add_from_rows(kernels, from, table, places, scores);
            }
        }
    }
}
