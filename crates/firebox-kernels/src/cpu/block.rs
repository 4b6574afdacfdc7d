//! The register tile that every product of the LSTM is made of, and memory for packed operands.

use super::compute::Compute;
use super::simd::Simd;
use super::{BLOCK, CpuKernels};

/// One cache line: vectors that are loaded from a packed operand never cross two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; BLOCK]);

/// Memory for f32, aligned to cache lines.
#[derive(Default)]
pub(super) struct Buffer(Vec<Line>);

impl Buffer {
    /// At least `count` zeros.
    pub(super) fn zeros(count: usize) -> Self {
        Self(vec![Line([0.0; BLOCK]); count.div_ceil(BLOCK)])
    }

    /// Grows to `count` numbers if it has fewer; what they are is not said.
    pub(super) fn grow(&mut self, count: usize) {
        let lines = count.div_ceil(BLOCK).max(self.0.len());
        self.0.resize(lines, Line([0.0; BLOCK]));
    }

    /// Gives back what it has beyond `count` numbers.
    pub(super) fn shrink(&mut self, count: usize) {
        self.0.truncate(count.div_ceil(BLOCK));
        self.0.shrink_to_fit();
    }

    /// Numbers that fit without another allocation.
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity() * BLOCK
    }

    pub(super) fn get(&self) -> &[f32] {
        // SAFETY: a `Line` is sixteen f32 and nothing else, and the lines lie side by side.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * BLOCK) }
    }

    pub(super) fn get_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * BLOCK) }
    }
}

/// A part of a sum of products: `count` words of `M` rows, `step` numbers apart, and as many rows of
/// the packed operand `b`.
#[derive(Clone, Copy)]
pub(super) struct Part<const M: usize> {
    pub(super) a: [*const f32; M],
    pub(super) step: usize,
    pub(super) b: *const f32,
    pub(super) count: usize,
}

/// `acc[m][n] += Σ_k a[m][k * step] * b[k][n]` over `count` words, where row `k` of the packed
/// operand `b` is `N` blocks long.
///
/// # Safety
/// That of [`Simd`]; each pointer of `a` is valid for `(count - 1) * step + 1` numbers and `b` for
/// `count * N * BLOCK`, less the offset of this vector in its block.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, C: Compute, const M: usize, const N: usize>(
    acc: &mut [[S::Vector; N]; M],
    a: [*const f32; M],
    step: usize,
    b: *const f32,
    count: usize,
) {
    // SAFETY: the caller's promise is the same.
    unsafe { accumulate_parts::<S, C, M, N>(acc, 1, |_| Part { a, step, b, count }) }
}

/// The same over several parts. Where columns are computed one after the other, the sums of one stay in
/// registers over all parts.
///
/// # Safety
/// As for [`accumulate`], for each part.
#[inline(always)]
pub(super) unsafe fn accumulate_parts<S: Simd, C: Compute, const M: usize, const N: usize>(
    acc: &mut [[S::Vector; N]; M],
    parts: usize,
    part: impl Fn(usize) -> Part<M>,
) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        if S::APART {
            for n in 0..N {
                let mut column = [[S::splat(0.0)]; M];
                for (column, acc) in column.iter_mut().zip(&*acc) {
                    *column = [acc[n]];
                }
                for index in 0..parts {
                    let Part { a, step, b, count } = part(index);
                    let b = b.add(n * BLOCK);
                    add_products::<S, C, M, 1>(&mut column, a, step, b, N * BLOCK, count);
                }
                for (acc, column) in acc.iter_mut().zip(column) {
                    acc[n] = column[0];
                }
            }
        } else {
            for index in 0..parts {
                let Part { a, step, b, count } = part(index);
                add_products::<S, C, M, N>(acc, a, step, b, N * BLOCK, count);
            }
        }
    }
}

/// The same with `b_row` numbers from one row of `b` to the next.
///
/// # Safety
/// As for [`accumulate`].
#[inline(always)]
unsafe fn add_products<S: Simd, C: Compute, const M: usize, const N: usize>(
    acc: &mut [[S::Vector; N]; M],
    a: [*const f32; M],
    step: usize,
    b: *const f32,
    b_row: usize,
    count: usize,
) {
    for k in 0..count {
        // SAFETY: `k` is below `count`, for which the caller vouches.
        unsafe {
            let row = b.add(k * b_row);
            let mut columns = [S::splat(0.0); N];
            for (n, column) in columns.iter_mut().enumerate() {
                *column = S::load(row.add(n * BLOCK));
            }
            for m in 0..M {
                let x = S::splat(*a[m].add(k * step));
                for n in 0..N {
                    acc[m][n] = C::fma::<S>(x, columns[n], acc[m][n]);
                }
            }
        }
    }
}

/// Whether register tiles are one block of columns wide, and with them the panels of the right operand: each
/// then stays in the first cache while all rows walk over it. So it is where the vectors of a tile are
/// computed one after the other anyway; words of pairs are packed from two blocks.
pub(super) const fn narrow<S: Simd, C: Compute>() -> bool {
    S::APART && C::PAIR == 1
}

/// [`narrow`] with the vectors of these kernels.
pub(super) fn is_narrow<C: Compute>(kernels: CpuKernels) -> bool {
    C::PAIR == 1 && kernels.vectors() == CpuKernels::Avx2
}

/// How many of `left` rows the next register tile takes: no tile that is followed by a sliver.
#[inline(always)]
pub(super) fn next_rows<S: Simd>(left: usize) -> usize {
    let most = S::ROWS;
    if most == 6 && (left == 7 || left == 8) { 4 } else { left.min(most) }
}

/// Calls `$kernel::<S, M>($arguments, row)` for register tiles of `M` rows that cover `$rows` rows.
macro_rules! for_row_tiles {
    ($S:ty, $rows:expr, $row:ident, $M:ident => $call:expr) => {{
        let rows: usize = $rows;
        let mut $row = 0;
        while $row < rows {
            let taken = $crate::cpu::block::next_rows::<$S>(rows - $row);
            macro_rules! tile {
                ($count:literal) => {{
                    const $M: usize = $count;
                    $call
                }};
            }
            // Larger sizes are never taken, and so not compiled.
            match taken {
                6 if const { <$S as $crate::cpu::simd::Simd>::ROWS >= 6 } => tile!(6),
                5 if const { <$S as $crate::cpu::simd::Simd>::ROWS >= 5 } => tile!(5),
                4 if const { <$S as $crate::cpu::simd::Simd>::ROWS >= 4 } => tile!(4),
                3 if const { <$S as $crate::cpu::simd::Simd>::ROWS >= 3 } => tile!(3),
                2 => tile!(2),
                _ => tile!(1),
            }
            $row += taken;
        }
    }};
}
pub(super) use for_row_tiles;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::compute::{Bf16, F32};
    use crate::cpu::kernels::dispatch;

    dispatch!(fn ask<C: Compute> = answer(answered: &mut bool));

    /// # Safety
    /// None is needed.
    unsafe fn answer<S: Simd, C: Compute>(answered: &mut bool) {
        *answered = narrow::<S, C>();
    }

    #[test]
    fn panels_are_as_narrow_as_register_tiles() {
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let (mut f32, mut bf16) = (false, true);
            ask::<F32>(kernels, &mut f32);
            ask::<Bf16>(kernels, &mut bf16);
            assert_eq!([f32, bf16], [is_narrow::<F32>(kernels), is_narrow::<Bf16>(kernels)]);
        }
    }
}
