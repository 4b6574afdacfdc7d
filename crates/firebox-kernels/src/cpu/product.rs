//! Products of two matrices, in f32 or with operands rounded to bf16, into memory of the caller.
//!
//! The result is cut into rectangles, each computed by one thread over the whole inner size: chunks
//! of the right operand are packed into panels of 64 columns that stay in the core's first cache,
//! and register tiles of several rows walk over them. Every number of the result is summed up in
//! the same order however the result is cut, so that the number of threads changes no bit.
//!
//! The speed is that of the `gemm` crate in f32, and twice that in bf16 where the processor has
//! instructions for it.

use rayon::prelude::*;

use super::block::{accumulate, for_row_tiles};
use super::compute::{Bf16, Compute, F32};
use super::kernels::dispatch;
use super::pool::Lent;
use super::simd::{Simd, pair};
use super::{BLOCK, CpuKernels, Shared};

/// Words of the inner size that are packed at once: a panel of so many rows fits into 32 KiB.
const CHUNK: usize = 128;

/// Columns of a panel.
const PANEL: usize = 4 * BLOCK;

/// Rows of a transposed left operand that are packed side by side: whole vectors, whole register
/// tiles, and an odd number of cache lines, which spreads the lines over all sets of the cache.
const STRIP: usize = 48;

/// Rows of a register tile, at most.
const TILE: usize = 6;

/// Largest rectangle of the result that a thread computes at once, in rows and columns: with its
/// operands it fits into a core's second cache.
const RECTANGLE: [usize; 2] = [384, 256];

/// What a row of a tile starts from.
static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// Products of fewer multiplications run on the calling thread: waking another one costs more.
const SERIAL: usize = 1 << 17;

/// A matrix by rows and columns, with the distance between two of each. Rows may overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `[rows, columns]`, row-major.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} × {columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// `[rows, columns]` with `row_stride` numbers from the start of one row to the next, be it more
    /// than a row or less.
    pub(crate) fn strided(
        values: &'a [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        let end = if rows * columns == 0 { 0 } else { (rows - 1) * row_stride + columns };
        assert!(end <= values.len(), "{rows} rows of {columns}, {row_stride} apart");
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// A pointer to the number at a row and a column, which may lie one behind the last.
    fn at(&self, row: usize, column: usize) -> *const f32 {
        self.values.as_ptr().wrapping_add(row * self.row_stride + column * self.column_stride)
    }
}

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Products {
    pub(crate) kernels: CpuKernels,
    /// Whether the operands are rounded to bf16; sums are f32 either way.
    pub(crate) bf16: bool,
}

impl Products {
    /// `start + left · right` in memory of its own, `[left.rows, right.columns]`, with one start of a
    /// column or none.
    pub(crate) fn product(
        self,
        left: Matrix<'_>,
        right: Matrix<'_>,
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let count = left.rows * right.columns;
        let mut out = Vec::with_capacity(count);
        // SAFETY: there is room for `count` numbers, and the memory is nobody else's.
        self.run(left, right, bias, &unsafe { Shared::from_raw(out.as_mut_ptr(), count) });
        // SAFETY: every number of the result was written.
        unsafe { out.set_len(count) };
        out
    }

    /// Writes every number of `out`, whatever was there.
    fn run(self, left: Matrix<'_>, right: Matrix<'_>, bias: Option<&[f32]>, out: &Shared<'_>) {
        let (rows, inner, columns) = (left.rows, left.columns, right.columns);
        assert_eq!(inner, right.rows, "inner sizes of a product");
        assert_eq!(out.len, rows * columns, "a product of {rows} × {columns}");
        if let Some(bias) = bias {
            assert_eq!(bias.len(), columns, "a bias for {columns} columns");
        }
        if rows * columns == 0 {
            return;
        }
        if inner == 0 {
            return only_bias(bias, out);
        }
        let transposed;
        let right = match right.column_stride {
            1 => right,
            _ => {
                transposed = transpose(right);
                Matrix::strided(transposed.get(), inner, columns, columns)
            }
        };
        let task = Task { kernels: self.kernels, left, right, bias, out };
        let cuts = cuts([rows, columns], inner);
        let whole = [0..rows, 0..columns];
        let run = |rectangle| match self.bf16 {
            false => multiply_part::<F32>(task.kernels, &task, rectangle),
            true => multiply_part::<Bf16>(task.kernels, &task, rectangle),
        };
        if cuts == [1, 1] {
            return run(whole);
        }
        let part = |size: usize, unit: usize, index: usize, count: usize| {
            let at = |index: usize| (size.div_ceil(unit) * index / count * unit).min(size);
            at(index)..at(index + 1)
        };
        // Neighbours share rows of the left operand, which is usually the larger one.
        (0..cuts[0] * cuts[1]).into_par_iter().with_max_len(1).for_each(|index| {
            let (row, column) = (index / cuts[1], index % cuts[1]);
            run([part(rows, TILE, row, cuts[0]), part(columns, PANEL, column, cuts[1])]);
        });
    }
}

/// A product without an inner size.
fn only_bias(bias: Option<&[f32]>, out: &Shared<'_>) {
    for index in 0..out.len {
        let value = bias.map_or(0.0, |bias| bias[index % bias.len()]);
        // SAFETY: the index is within the memory, which nobody else uses.
        unsafe { out.pointer(index, 1).write(value) };
    }
}

/// Into how many parts the rows and the columns of a result are cut.
fn cuts([rows, columns]: [usize; 2], inner: usize) -> [usize; 2] {
    if rows * columns * inner.max(1) < SERIAL {
        return [1, 1];
    }
    let mut cuts = [rows.div_ceil(RECTANGLE[0]), columns.div_ceil(RECTANGLE[1])];
    // Whole rounds for all threads, where there are few.
    let threads = rayon::current_num_threads();
    let uneven = |cuts: [usize; 2]| {
        let parts = cuts[0] * cuts[1];
        parts < 4 * threads && !parts.is_multiple_of(threads)
    };
    if uneven(cuts) {
        let per_column = threads.div_ceil(cuts[1]).max(1);
        cuts[0] = cuts[0].next_multiple_of(per_column).min(rows.div_ceil(4 * TILE));
    }
    if uneven(cuts) && cuts[0] * cuts[1] < threads {
        cuts[1] = threads.div_ceil(cuts[0]).min(columns.div_ceil(PANEL)).max(cuts[1]);
    }
    if cuts[0] * cuts[1] < threads {
        cuts[0] = threads.div_ceil(cuts[1]).min(rows.div_ceil(TILE));
    }
    cuts
}

/// The same matrix, row-major, written by all threads.
fn transpose(matrix: Matrix<'_>) -> Lent {
    let Matrix { rows, columns, row_stride, .. } = matrix;
    assert_eq!(row_stride, 1, "a transposed matrix");
    let mut lent = Lent::take(rows * columns);
    let out = Shared::new(lent.get_mut());
    let blocks = columns.div_ceil(BLOCK);
    let block = |index: usize| {
        let columns_here = index * BLOCK..((index + 1) * BLOCK).min(columns);
        for first in (0..rows).step_by(BLOCK) {
            let rows_here = first..(first + BLOCK).min(rows);
            let mut square = [[0.0; BLOCK]; BLOCK];
            for (column, values) in columns_here.clone().zip(&mut square) {
                let from = &matrix.values[column * matrix.column_stride + first..];
                match from.first_chunk() {
                    Some(whole) if rows_here.len() == BLOCK => *values = *whole,
                    _ => values[..rows_here.len()].copy_from_slice(&from[..rows_here.len()]),
                }
            }
            for (lane, row) in rows_here.enumerate() {
                let at = row * columns + columns_here.start;
                // SAFETY: blocks of columns do not overlap, and each is written by one call.
                let to = unsafe { out.part(at, columns_here.len()) };
                let turned = std::array::from_fn::<f32, BLOCK, _>(|column| square[column][lane]);
                match to.first_chunk_mut() {
                    Some(whole) => *whole = turned,
                    None => to.copy_from_slice(&turned[..to.len()]),
                }
            }
        }
    };
    match rows * columns < SERIAL / 16 {
        true => (0..blocks).for_each(block),
        false => (0..blocks).into_par_iter().with_min_len(4).for_each(block),
    }
    lent
}

/// A product, of which rectangles are computed.
#[derive(Clone, Copy)]
struct Task<'a> {
    kernels: CpuKernels,
    left: Matrix<'a>,
    /// Row-major.
    right: Matrix<'a>,
    bias: Option<&'a [f32]>,
    /// `[left.rows, right.columns]`; a rectangle is written by one thread.
    out: &'a Shared<'a>,
}

type Rectangle = [std::ops::Range<usize>; 2];

dispatch!(
    /// Computes a rectangle of the result.
    fn multiply_part<C: Compute> = part(task: &Task<'_>, rectangle: Rectangle)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn part<S: Simd, C: Compute>(task: &Task<'_>, [rows, columns]: Rectangle) {
    let inner = task.left.columns;
    let chunk = CHUNK * C::PAIR;
    let longest = C::words(inner.min(chunk));
    let mut panels = Lent::take(longest * columns.len().next_multiple_of(PANEL));
    // Row-major operands of f32 are read where they are.
    let strips = task.left.column_stride != 1;
    let copies = strips || C::PAIR > 1;
    let room = if copies { rows.len().next_multiple_of(STRIP) } else { 0 };
    let mut operands = Lent::take(longest * room);
    let mut first = 0;
    loop {
        let count = (inner - first).min(chunk);
        let words = C::words(count);
        let packed = panels.get_mut();
        // SAFETY: the features are those that the caller vouches for.
        unsafe { pack_right::<S, C>(task.right, first..first + count, &columns, packed) };
        let to = operands.get_mut();
        match (strips, copies) {
            // SAFETY: as above.
            (true, _) => unsafe {
                pack_strips::<S, C>(task.left, &rows, first..first + count, to);
            },
            (false, true) => {
                for (row, to) in rows.clone().zip(to.chunks_exact_mut(words)) {
                    let from = &task.left.values[row * task.left.row_stride + first..][..count];
                    // SAFETY: as above.
                    unsafe { C::pack::<S>(from, to) };
                }
            }
            _ => (),
        }
        let last = first + count == inner;
        let mut ahead = Ahead::new(task, &rows, &columns, first + count);
        let mut column = columns.start;
        while column < columns.end {
            let blocks = panel_blocks(columns.end - column);
            let panel = &panels.get()[(column - columns.start) * words..][..blocks * BLOCK * words];
            let width = (blocks * BLOCK).min(columns.end - column);
            for_row_tiles!(S, rows.len(), row, M => {
                // SAFETY: as above.
                unsafe { ahead.prefetch::<S>(M * blocks) };
                let mut a = [std::ptr::null(); M];
                for (m, a) in a.iter_mut().enumerate() {
                    *a = match (strips, copies) {
                        (true, _) => {
                            let row = row + m;
                            operands.get()[row / STRIP * STRIP * words + row % STRIP..].as_ptr()
                        }
                        (false, true) => operands.get()[(row + m) * words..].as_ptr(),
                        (false, false) => task.left.at(rows.start + row + m, first),
                    };
                }
                let tile = Tile {
                    a,
                    step: if strips { STRIP } else { 1 },
                    panel,
                    words,
                    row: rows.start + row,
                    column,
                    width,
                    begins: first == 0,
                };
                // SAFETY: the operands were packed for these sizes, or lie in the left matrix.
                unsafe {
                    match blocks {
                        4 => tile.run::<S, C, 4>(task),
                        2 => tile.run::<S, C, 2>(task),
                        _ => tile.run::<S, C, 1>(task),
                    }
                }
            });
            column += width;
        }
        first += count;
        if last {
            break;
        }
    }
}

/// Rows of both operands that the next chunk of a product with a transposed operand is packed from:
/// they are brought nearer while this one is computed, because each is a short run of numbers far
/// from the last, which no processor foresees.
struct Ahead<'a> {
    task: &'a Task<'a>,
    /// First column of the rectangle in either operand's rows, and how many there are.
    left: [usize; 2],
    right: [usize; 2],
    rows: std::ops::Range<usize>,
    /// Share of a row that a block of a tile's row is worth, and what is left of it.
    share: f32,
    due: f32,
}

impl<'a> Ahead<'a> {
    fn new(
        task: &'a Task<'a>,
        rows: &std::ops::Range<usize>,
        columns: &std::ops::Range<usize>,
        next: usize,
    ) -> Self {
        let end = if task.left.column_stride == 1 { next } else { task.left.columns };
        let next = next..end.min(next + 2 * CHUNK);
        let blocks = rows.len() * columns.len().div_ceil(BLOCK);
        Self {
            task,
            left: [rows.start, rows.len()],
            right: [columns.start, columns.len()],
            share: next.len() as f32 / blocks.max(1) as f32,
            rows: next,
            due: 0.0,
        }
    }

    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&mut self, blocks: usize) {
        self.due += self.share * blocks as f32;
        while self.due >= 1.0 && !self.rows.is_empty() {
            let row = self.rows.start;
            let left = self.task.left.at(self.left[0], row);
            let right = self.task.right.at(row, self.right[0]);
            for (at, count) in [(left, self.left[1]), (right, self.right[1])] {
                for line in (0..count).step_by(BLOCK) {
                    // SAFETY: the caller's promise is the same.
                    unsafe { S::prefetch(at.wrapping_add(line)) };
                }
            }
            self.rows.start += 1;
            self.due -= 1.0;
        }
    }
}

/// How many blocks wide the next panel is: four, two or one.
fn panel_blocks(columns_left: usize) -> usize {
    match columns_left.div_ceil(BLOCK) {
        1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Packs rows of the right operand into panels, `[panel, word, blocks of the panel, 16]`; columns
/// beyond the last are zero.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_right<S: Simd, C: Compute>(
    right: Matrix<'_>,
    inner: std::ops::Range<usize>,
    columns: &std::ops::Range<usize>,
    packed: &mut [f32],
) {
    let words = C::words(inner.len());
    let mut column = columns.start;
    while column < columns.end {
        let width = panel_blocks(columns.end - column) * BLOCK;
        let valid = width.min(columns.end - column);
        let panel = &mut packed[(column - columns.start) * words..][..width * words];
        for (word, to) in panel.chunks_exact_mut(width).enumerate() {
            let row = |index: usize| {
                &right.values[(inner.start + index) * right.row_stride + column..][..valid]
            };
            let second = word + words < inner.len();
            let high = if second { row(word + words) } else { &ZEROS[..valid] };
            // SAFETY: the caller's promise is the same.
            unsafe { pack_pair::<S, C>(row(word), high, to) };
        }
        column += valid;
    }
}

/// Packs columns of a transposed left operand, `[strip, word, 48]`; rows beyond the last are zero.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_strips<S: Simd, C: Compute>(
    left: Matrix<'_>,
    rows: &std::ops::Range<usize>,
    inner: std::ops::Range<usize>,
    packed: &mut [f32],
) {
    let words = C::words(inner.len());
    for first in rows.clone().step_by(STRIP) {
        let width = STRIP.min(rows.end - first);
        let strip = &mut packed[(first - rows.start) * words..][..STRIP * words];
        for (word, to) in strip.chunks_exact_mut(STRIP).enumerate() {
            let row = |index: usize| {
                &left.values[(inner.start + index) * left.column_stride + first..][..width]
            };
            let second = word + words < inner.len();
            let high = if second { row(word + words) } else { &ZEROS[..width] };
            // SAFETY: the caller's promise is the same.
            unsafe { pack_pair::<S, C>(row(word), high, to) };
        }
    }
}

/// Packs numbers, with pairs each beside the one of `high`, and zeros behind them.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_pair<S: Simd, C: Compute>(low: &[f32], high: &[f32], to: &mut [f32]) {
    let count = low.len();
    assert!(high.len() == count && to.len() >= count);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: `at + LANES` is within all three slices.
        unsafe {
            let mut word = S::load(low.as_ptr().add(at));
            if C::PAIR == 2 {
                word = S::pair(word, S::load(high.as_ptr().add(at)));
            }
            S::store(to.as_mut_ptr().add(at), word);
        }
        at += S::LANES;
    }
    for at in at..count {
        to[at] = if C::PAIR == 2 { pair(low[at], high[at]) } else { low[at] };
    }
    to[count..].fill(0.0);
}

/// A register tile of the result and one chunk of its operands.
struct Tile<'a, const M: usize> {
    /// Rows of the left operand.
    a: [*const f32; M],
    /// Numbers from one word of a row to the next.
    step: usize,
    /// Columns of the right operand, packed.
    panel: &'a [f32],
    words: usize,
    row: usize,
    column: usize,
    /// Columns that exist.
    width: usize,
    /// Whether this is the first chunk.
    begins: bool,
}

impl<const M: usize> Tile<'_, M> {
    /// # Safety
    /// That of [`Simd`]; the operands are valid for `words`, with `step` numbers between two words
    /// of `a` and `N` blocks in the panel; the tile lies in the rectangle of this thread.
    #[inline(always)]
    unsafe fn run<S: Simd, C: Compute, const N: usize>(&self, task: &Task<'_>) {
        let (columns, width) = (task.right.columns, self.width);
        let at = self.row * columns + self.column;
        let out = task.out.pointer(at, (M - 1) * columns + width);
        let whole = width == N * BLOCK;
        // Where columns do not exist, the tile is computed beside the result.
        let mut edge = std::mem::MaybeUninit::<[f32; TILE * PANEL]>::uninit();
        let (mut to, mut to_row) = (out, columns);
        let start: (*const f32, usize) = match (self.begins, task.bias) {
            (true, None) => (ZEROS.as_ptr(), 0),
            (true, Some(bias)) => (bias[self.column..][..width].as_ptr(), 0),
            (false, _) => (out, columns),
        };
        let (mut start, mut start_row) = start;
        if !whole {
            let edge = edge.write([0.0; TILE * PANEL]).as_mut_ptr();
            for row in 0..M {
                // SAFETY: both places have `width` numbers in each of `M` rows.
                unsafe {
                    let from = start.add(row * start_row);
                    std::ptr::copy_nonoverlapping(from, edge.add(row * PANEL), width);
                }
            }
            (start, start_row, to, to_row) = (edge, PANEL, edge, PANEL);
        }
        let mut lane = 0;
        while lane < BLOCK {
            // SAFETY: both places have `M` rows of `N` blocks, and so have the operands.
            unsafe {
                let mut acc = [[S::splat(0.0); N]; M];
                for (m, row) in acc.iter_mut().enumerate() {
                    for (n, value) in row.iter_mut().enumerate() {
                        *value = S::load(start.add(m * start_row + n * BLOCK + lane));
                    }
                }
                let panel = self.panel.as_ptr().add(lane);
                accumulate::<S, C, M, N>(&mut acc, self.a, self.step, panel, self.words);
                for (m, row) in acc.into_iter().enumerate() {
                    for (n, value) in row.into_iter().enumerate() {
                        S::store(to.add(m * to_row + n * BLOCK + lane), value);
                    }
                }
            }
            lane += S::LANES;
        }
        if !whole {
            for row in 0..M {
                // SAFETY: as above.
                unsafe {
                    let from = to.add(row * PANEL);
                    std::ptr::copy_nonoverlapping(from, out.add(row * columns), width);
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use firebox_core::Stream;

    use super::*;

    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut draws = Stream::new(seed, "products").draws();
        (0..count).map(|_| draws.normal() as f32).collect()
    }

    /// As the operands of a product in bf16 are rounded.
    fn rounded(x: f32, bf16: bool) -> f64 {
        f64::from(if bf16 { f32::from_bits(pair(0.0, x).to_bits() & 0xffff_0000) } else { x })
    }

    /// The norm of the error over the norm of the result in float64.
    fn error(
        products: Products,
        sizes @ [rows, inner, columns]: [usize; 3],
        transposed: [bool; 2],
        biased: bool,
    ) -> f64 {
        let (a, b) = (noise(1, rows * inner), noise(2, inner * columns));
        let bias = noise(3, columns);
        let left = match transposed[0] {
            false => Matrix::new(&a, rows, inner),
            true => Matrix::new(&a, inner, rows).transposed(),
        };
        let right = match transposed[1] {
            false => Matrix::new(&b, inner, columns),
            true => Matrix::new(&b, columns, inner).transposed(),
        };
        let out = products.product(left, right, biased.then_some(&bias));
        let (mut square, mut norm) = (0.0, 1e-30);
        for row in 0..rows {
            for column in 0..columns {
                let mut exact = if biased { f64::from(bias[column]) } else { 0.0 };
                for k in 0..inner {
                    let a = if transposed[0] { a[k * rows + row] } else { a[row * inner + k] };
                    let b =
                        if transposed[1] { b[column * inner + k] } else { b[k * columns + column] };
                    exact += rounded(a, products.bf16) * rounded(b, products.bf16);
                }
                square += (f64::from(out[row * columns + column]) - exact).powi(2);
                norm += exact * exact;
            }
        }
        let error = (square / norm).sqrt();
        assert!(error.is_finite(), "{products:?} {sizes:?}");
        error
    }

    #[test]
    fn agrees_with_float64() {
        let mut sizes = vec![
            [1, 1, 1],
            [7, 0, 5],
            [6, 128, 64],
            [8, 129, 65],
            [13, 257, 47],
            [200, 300, 260],
            [400, 31, 3],
            [1, 1000, 90],
        ];
        let mut draws = Stream::new(5, "sizes").draws();
        sizes.extend((0..12).map(|_| [0, 1, 2].map(|_| 1 + draws.below(150) as usize)));
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                for (index, sizes) in sizes.iter().enumerate() {
                    let products = Products { kernels, bf16 };
                    for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                        let error = error(products, *sizes, transposed, index % 2 == 1);
                        assert!(error < 1e-6, "{products:?} {sizes:?} {transposed:?}: {error:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_may_overlap() {
        // A convolution of width 3 over 5 steps of 2 channels: windows that share two steps.
        let (x, w) = (noise(1, 14), noise(2, 6 * 3));
        let products = Products { kernels: CpuKernels::Portable, bf16: false };
        let windows = Matrix::strided(&x, 5, 6, 2);
        let y = products.product(windows, Matrix::new(&w, 6, 3), None);
        for t in 0..5 {
            for c in 0..3 {
                let exact: f32 = (0..6).map(|k| x[2 * t + k] * w[3 * k + c]).sum();
                assert!((y[3 * t + c] - exact).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn nan_reaches_its_row_alone() {
        let mut a = noise(1, 40 * 30);
        a[5 * 30 + 7] = f32::NAN;
        let b = noise(2, 30 * 20);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                let (a, b) = (Matrix::new(&a, 40, 30), Matrix::new(&b, 30, 20));
                let out = Products { kernels, bf16 }.product(a, b, None);
                for (row, values) in out.chunks(20).enumerate() {
                    assert!(values.iter().all(|value| value.is_nan() == (row == 5)), "{row}");
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (a, b) = (noise(1, 700 * 300), noise(2, 300 * 200));
        for bf16 in [false, true] {
            let results = [1, 2, 3, 7].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let kernels = *CpuKernels::available().last().expect("one");
                pool.expect("a pool").install(|| {
                    let (a, b) = (Matrix::new(&a, 700, 300), Matrix::new(&b, 300, 200));
                    Products { kernels, bf16 }.product(a, b, None)
                })
            });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
