//! Operands of a product in the order in which register tiles read them.

use super::Matrix;
use super::part::ZEROS;
use crate::cpu::BLOCK;
use crate::cpu::compute::Compute;
use crate::cpu::simd::{Simd, pair};

/// Rows of a transposed left operand that are packed side by side: whole vectors, whole register
/// tiles, and an odd number of cache lines, which spreads the lines over all sets of the cache.
pub(super) const STRIP: usize = 48;

/// How many blocks wide the next panel is: four, two or one.
pub(super) fn panel_blocks(columns_left: usize) -> usize {
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
pub(super) unsafe fn pack_right<S: Simd, C: Compute>(
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
pub(super) unsafe fn pack_strips<S: Simd, C: Compute>(
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
