//! One rectangle of a product, computed by one thread.

use super::Matrix;
use super::pack::{STRIP, pack_right, pack_strips, panel_blocks};
use crate::cpu::block::{accumulate, for_row_tiles};
use crate::cpu::compute::Compute;
use crate::cpu::kernels::dispatch;
use crate::cpu::pool::Lent;
use crate::cpu::simd::Simd;
use crate::cpu::{BLOCK, CpuKernels, Shared};

/// Words of the inner size that are packed at once: a panel of so many rows fits into 32 KiB.
const CHUNK: usize = 128;

/// Columns of a panel.
pub(super) const PANEL: usize = 4 * BLOCK;

/// Rows of a register tile, at most.
pub(super) const TILE: usize = 6;

/// What a row of a tile starts from.
pub(super) static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// A product, of which rectangles are computed.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) kernels: CpuKernels,
    pub(super) left: Matrix<'a>,
    /// Row-major.
    pub(super) right: Matrix<'a>,
    pub(super) bias: Option<&'a [f32]>,
    /// `[left.rows, right.columns]`; a rectangle is written by one thread.
    pub(super) out: &'a Shared<'a>,
}

/// Rows and columns of a part of the result.
pub(super) type Rectangle = [std::ops::Range<usize>; 2];

dispatch!(
    /// Computes a rectangle of the result.
    pub(super) fn multiply_part<C: Compute> = part(task: &Task<'_>, rectangle: Rectangle)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the lint does not see comments in the argument of a macro"
)]
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
