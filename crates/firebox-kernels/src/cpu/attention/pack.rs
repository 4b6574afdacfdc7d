//! Operands of attention's products in the order in which they are read, and results back in theirs.
//!
//! The rows of one sample and head are first copied side by side, each filled up with zeros to whole
//! blocks of 16 (`[rows, padded]`), and everything else is made from that.

use super::super::BLOCK;
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::simd::Simd;

/// Copies rows of `size` numbers, `distance` apart in `from`, times `factor`.
pub(super) fn gather(from: &[f32], distance: usize, size: usize, factor: f32, to: &mut [f32]) {
    let padded = size.next_multiple_of(BLOCK);
    for (row, to) in to.chunks_exact_mut(padded).enumerate() {
        let (values, rest) = to.split_at_mut(size);
        let from = &from[row * distance..][..size];
        values.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
        rest.fill(0.0);
    }
}

dispatch!(
    /// Words for a sum over the numbers of a row, which are paired with their neighbours:
    /// `[rows, words(padded)]`.
    pub(super) fn along_rows<C: Compute> = words_along_rows(rows: &[f32], words: &mut [f32])
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn words_along_rows<S: Simd, C: Compute>(rows: &[f32], words: &mut [f32]) {
    match C::PAIR {
        1 => words[..rows.len()].copy_from_slice(rows),
        _ => {
            for (word, pair) in words.iter_mut().zip(rows.as_chunks::<2>().0) {
                *word = C::word(2, 0, |index| pair[index]);
            }
        }
    }
}

dispatch!(
    /// Words for a sum over rows, each of which is paired with the one `distance` further: groups of
    /// `distance` rows of words from groups of twice as many rows. Rows that are not there are zero.
    pub(super) fn across_rows<C: Compute> = words_across_rows(
        rows: &[f32],
        padded: usize,
        distance: usize,
        words: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn words_across_rows<S: Simd, C: Compute>(
    rows: &[f32],
    padded: usize,
    distance: usize,
    words: &mut [f32],
) {
    if C::PAIR == 1 {
        words[..rows.len()].copy_from_slice(rows);
        return;
    }
    for (index, words) in words.chunks_exact_mut(padded).enumerate() {
        let low = index / distance * 2 * distance + index % distance;
        let row = |index: usize| rows.get(index * padded..(index + 1) * padded);
        let (low, high) = (row(low), row(low + distance));
        for at in (0..padded).step_by(S::LANES) {
            // SAFETY: a row has whole blocks, and a vector ends within one.
            unsafe {
                let (mut a, mut b) = (S::splat(0.0), S::splat(0.0));
                if let Some(low) = low {
                    a = S::load(low.as_ptr().add(at));
                }
                if let Some(high) = high {
                    b = S::load(high.as_ptr().add(at));
                }
                S::store(words.as_mut_ptr().add(at), S::pair(a, b));
            }
        }
    }
}

dispatch!(
    /// Rows as columns, as words for a sum over the numbers of a row: `[words(padded), lanes]` from at
    /// most `lanes` rows; columns beyond the last row are zero.
    pub(super) fn transpose<C: Compute> = transposed_words(
        rows: &[f32],
        padded: usize,
        lanes: usize,
        words: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn transposed_words<S: Simd, C: Compute>(
    rows: &[f32],
    padded: usize,
    lanes: usize,
    words: &mut [f32],
) {
    let height = padded / C::PAIR;
    let words = &mut words[..height * lanes];
    if rows.len() < lanes * padded {
        words.fill(0.0);
    }
    for (column, row) in rows.chunks_exact(padded).enumerate() {
        for (word, numbers) in row.chunks_exact(C::PAIR).enumerate() {
            words[word * lanes + column] = match C::PAIR {
                1 => numbers[0],
                _ => C::word(2, 0, |index| numbers[index]),
            };
        }
    }
}

dispatch!(
    /// Minus the product of each row of `a` with that of `b`.
    pub(super) fn negative_dots = row_dots(a: &[f32], b: &[f32], padded: usize, out: &mut [f32])
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn row_dots<S: Simd>(a: &[f32], b: &[f32], padded: usize, out: &mut [f32]) {
    let rows = a.chunks_exact(padded).zip(b.chunks_exact(padded));
    for (out, (a, b)) in out.iter_mut().zip(rows) {
        // SAFETY: a row has whole blocks, and a vector ends within one.
        unsafe {
            let mut sum = S::splat(0.0);
            for at in (0..padded).step_by(S::LANES) {
                sum = S::fma(S::load(a.as_ptr().add(at)), S::load(b.as_ptr().add(at)), sum);
            }
            let mut lanes = [0.0; BLOCK];
            S::store(lanes.as_mut_ptr(), sum);
            *out = -lanes[..S::LANES].iter().sum::<f32>();
        }
    }
}
