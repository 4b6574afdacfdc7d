//! What a product reads next is brought nearer while it computes: rows that are packed later, which
//! are short runs of numbers far from each other, and panels, which come from beyond the second cache.

use std::ops::Range;

use super::Matrix;
use super::part::{Left, Right, Task, chunk};
use crate::cpu::BLOCK;
use crate::cpu::compute::Compute;
use crate::cpu::simd::Simd;

/// Lines or rows, of which each block or row of a tile is worth a share.
struct Due {
    left: Range<usize>,
    /// In units of 2^-16.
    share: usize,
    due: usize,
    /// Those that were taken before they were due.
    early: usize,
}

impl Due {
    /// All of them over so many blocks or rows.
    fn new(all: Range<usize>, blocks: usize) -> Self {
        Self { share: (all.len() << 16) / blocks.max(1), left: all, due: 0, early: 0 }
    }

    /// Those that are due after so many more blocks or rows.
    #[inline(always)]
    fn after(&mut self, blocks: usize) -> Range<usize> {
        self.due += self.share * blocks;
        let (first, due) = (self.left.start, self.due >> 16);
        self.due &= 0xffff;
        let done = self.early.min(due);
        self.early -= done;
        self.left.start = self.left.end.min(first + due - done);
        first..self.left.start
    }

    /// So many, due or not, if there are.
    #[inline(always)]
    fn take(&mut self, count: usize) -> Option<usize> {
        let first = self.left.start;
        (self.left.len() >= count).then(|| {
            self.left.start += count;
            self.early += count;
            first
        })
    }
}

/// Rows of both operands that the next chunk of a product with a transposed left operand is packed from; a
/// transposed right operand lies in long pieces that need no help.
pub(super) struct Rows<'a> {
    /// An operand, its first column within the rectangle and how many there are.
    operands: [Option<(Matrix<'a>, Range<usize>)>; 2],
    due: Due,
}

impl<'a> Rows<'a> {
    pub(super) fn new<C: Compute>(
        task: &Task<'a>,
        rows: &Range<usize>,
        columns: &Range<usize>,
        next: usize,
    ) -> Self {
        let left = match task.left {
            Left::Numbers(left) if left.column_stride != 1 => {
                Some((left.transposed(), rows.clone()))
            }
            _ => None,
        };
        let right = match (task.left, task.right) {
            (Left::Numbers(left), Right::Numbers(_)) if left.column_stride == 1 => None,
            (_, Right::Numbers(right)) if right.column_stride == 1 => {
                Some((right, columns.clone()))
            }
            _ => None,
        };
        let none = left.is_none() && right.is_none();
        let end = if none { next } else { task.inner.min(next + chunk::<C>(task.kernels)) };
        let blocks = rows.len() * columns.len().div_ceil(BLOCK);
        Self { operands: [left, right], due: Due::new(next..end, blocks) }
    }

    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&mut self, blocks: usize) {
        for row in self.due.after(blocks) {
            for (matrix, columns) in self.operands.iter().flatten() {
                let at = matrix.at(row, columns.start);
                for line in (0..columns.len()).step_by(BLOCK) {
                    // SAFETY: the caller's promise is the same; the address need not be valid.
                    unsafe { S::prefetch(at.wrapping_add(line)) };
                }
            }
        }
    }
}

/// Rows of the left operand that are packed next: of the next chunk, or of the next rows after the last.
pub(super) struct Packed<'a> {
    left: Option<Matrix<'a>>,
    columns: Range<usize>,
    due: Due,
}

impl<'a> Packed<'a> {
    pub(super) fn new<C: Compute>(
        task: &Task<'a>,
        rows: &Range<usize>,
        columns: &Range<usize>,
        next: usize,
    ) -> Self {
        let left = match task.left {
            Left::Numbers(left) if left.column_stride == 1 && !C::VERBATIM => Some(left),
            _ => None,
        };
        let (rows, first) = match next < task.inner {
            true => (rows.clone(), next),
            false => (rows.end..task.rows.min(rows.end + rows.len()), 0),
        };
        let end = task.inner.min(first + chunk::<C>(task.kernels));
        let rows = if left.is_some() { rows } else { 0..0 };
        let blocks = rows.len() * columns.len().div_ceil(BLOCK);
        Self { left, columns: first..end, due: Due::new(rows, blocks) }
    }

    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&mut self, blocks: usize) {
        let Some(left) = self.left else { return };
        for row in self.due.after(blocks) {
            for column in self.columns.clone().step_by(BLOCK) {
                // SAFETY: the caller's promise is the same; the address need not be valid.
                unsafe { S::prefetch(left.at(row, column)) };
            }
        }
    }
}

/// Packed words that are read next: the panel after this one, or the rows of the next chunk.
pub(super) struct Lines {
    at: *const f32,
    due: Due,
}

impl Lines {
    /// `next` is read after so many blocks or rows.
    pub(super) fn new(next: &[f32], blocks: usize) -> Self {
        Self { at: next.as_ptr(), due: Due::new(0..next.len().div_ceil(BLOCK), blocks) }
    }

    /// Where the next so many numbers begin, for who brings them nearer themselves; `None` if there are fewer.
    #[inline(always)]
    pub(super) fn take(&mut self, numbers: usize) -> Option<*const f32> {
        let line = self.due.take(numbers / BLOCK)?;
        Some(self.at.wrapping_add(line * BLOCK))
    }

    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&mut self, blocks: usize) {
        for line in self.due.after(blocks) {
            // SAFETY: the caller's promise is the same; the address need not be valid.
            unsafe { S::prefetch(self.at.wrapping_add(line * BLOCK)) };
        }
    }
}
