//! Operands of attention's products in the order in which they are read, and results back in theirs.
//!
//! The rows of one sample and head are first copied side by side, each filled up with zeros to whole
//! blocks of 16 (`[rows, padded]`), and everything else is made from that.

use super::super::BLOCK;
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::lanes::{self, Lanes};
use super::super::simd::{Simd, pair};

/// Copies rows of `size` numbers, `distance` apart in `from`, times `factor`.
pub(super) fn gather(from: &[f32], distance: usize, size: usize, factor: f32, to: &mut [f32]) {
    let padded = size.next_multiple_of(BLOCK);
    for (row, to) in to.chunks_exact_mut(padded).enumerate() {
        let (values, rest) = to.split_at_mut(size);
        let from = &from[row * distance..][..size];
        fetch(from.as_ptr().wrapping_add(size), size);
        values.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
        rest.fill(0.0);
    }
}

/// Asks for numbers to be brought into the second cache: those of the next head, which this thread
/// will most likely read next, while this one is computed.
#[inline(always)]
fn fetch(from: *const f32, count: usize) {
    for at in (0..count).step_by(BLOCK) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which no address can make fail.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from.wrapping_add(at);
    }
}

dispatch!(
    /// Words for a sum over the numbers of a row, which are paired with their neighbours: rows of as many
    /// words as a row needs, or more, which are zero.
    pub(super) fn along_rows<C: Compute> = words_along_rows(
        rows: &[f32],
        widths: [usize; 2],
        words: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn words_along_rows<S: Simd, C: Compute>(
    rows: &[f32],
    [padded, row_words]: [usize; 2],
    words: &mut [f32],
) {
    if C::PAIR == 1 {
        // SAFETY: the caller's promise is the same.
        return unsafe { C::pack::<S>(rows, &mut words[..rows.len()]) };
    }
    for (row, words) in rows.chunks_exact(padded).zip(words.chunks_exact_mut(row_words)) {
        let (words, rest) = words.split_at_mut(padded / 2);
        for (word, numbers) in words.iter_mut().zip(row.as_chunks::<2>().0) {
            *word = pair(numbers[0], numbers[1]);
        }
        rest.fill(0.0);
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
        // SAFETY: the caller's promise is the same.
        return unsafe { C::pack::<S>(rows, &mut words[..rows.len()]) };
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
    /// Rows of words as columns: `[rows, padded]` to `[padded, rows]`, of whole blocks both.
    pub(super) fn turn = turned_words(from: &[f32], padded: usize, to: &mut [f32])
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn turned_words<S: Lanes>(from: &[f32], padded: usize, to: &mut [f32]) {
    let rows = from.len() / padded;
    assert!(rows.is_multiple_of(BLOCK), "{rows} × {padded}");
    for row in (0..rows).step_by(BLOCK) {
        // SAFETY: the caller's promise is the same.
        unsafe { lanes::turn::<S>(&from[row * padded..], padded, &mut to[row..], rows) };
    }
}

/// Rows of words that [`transpose`] writes.
pub(super) fn transposed_rows<C: Compute>(padded: usize) -> usize {
    (padded / C::PAIR).next_multiple_of(BLOCK)
}

dispatch!(
    /// Rows as columns, as words for a sum over the numbers of a row: `[words(padded), lanes]`, and
    /// rows of zeros up to [`transposed_rows`]. The rows after the first `count` become columns of zeros.
    pub(super) fn transpose<C: Compute> = transposed_words(
        rows: &mut [f32],
        count: usize,
        lanes: usize,
        words: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn transposed_words<S: Lanes, C: Compute>(
    rows: &mut [f32],
    count: usize,
    lanes: usize,
    words: &mut [f32],
) {
    let padded = rows.len() / lanes;
    assert!(padded.is_multiple_of(BLOCK) && lanes.is_multiple_of(BLOCK), "{padded} × {lanes}");
    let height = transposed_rows::<C>(padded);
    assert!(words.len() >= height * lanes, "{} words", words.len());
    rows[count * padded..].fill(0.0);
    if C::PAIR == 1 && !C::VERBATIM {
        for at in (0..count * padded).step_by(S::LANES) {
            // SAFETY: rows are whole blocks, and vectors end within them.
            unsafe {
                let x = S::load(rows.as_ptr().add(at));
                S::store(rows.as_mut_ptr().add(at), C::join::<S>(x, x));
            }
        }
    }
    if C::PAIR == 2 {
        // The words of a row in the front of its place, a block at a time, each read before it is written.
        for row in rows.chunks_exact_mut(padded) {
            for at in (0..padded / 2).step_by(BLOCK) {
                let count = BLOCK.min(padded / 2 - at);
                let (mut numbers, mut words) = ([[0.0; 2]; BLOCK], [0.0; BLOCK]);
                numbers.as_flattened_mut()[..2 * count]
                    .copy_from_slice(&row[2 * at..][..2 * count]);
                for (word, [low, high]) in words.iter_mut().zip(numbers) {
                    *word = pair(low, high);
                }
                row[at..][..count].copy_from_slice(&words[..count]);
            }
            row[padded / 2..height].fill(0.0);
        }
    }
    for column in (0..lanes).step_by(BLOCK) {
        for number in (0..height).step_by(BLOCK) {
            // SAFETY: 16 rows of 16 numbers from there are within `rows` and `words`, as `height` is
            // not larger than `padded`.
            unsafe {
                let from = rows.as_ptr().add(column * padded + number);
                S::transpose(from, padded, words.as_mut_ptr().add(number * lanes + column), lanes);
            }
        }
    }
}

dispatch!(
    /// Transposes 16 columns from `column` on: `[numbers, lanes]` to `[16, numbers]`.
    pub(super) fn transpose_back = transposed_columns(
        from: &[f32],
        lanes: usize,
        column: usize,
        to: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn transposed_columns<S: Lanes>(from: &[f32], lanes: usize, column: usize, to: &mut [f32]) {
    let numbers = to.len() / BLOCK;
    assert!(numbers.is_multiple_of(BLOCK) && column + BLOCK <= lanes, "{numbers} × {lanes}");
    assert!(from.len() >= numbers * lanes, "{} numbers", from.len());
    for number in (0..numbers).step_by(BLOCK) {
        // SAFETY: 16 rows of 16 numbers from there are within `from` and `to`.
        unsafe {
            let from = from.as_ptr().add(number * lanes + column);
            S::transpose(from, lanes, to.as_mut_ptr().add(number), numbers);
        }
    }
}

dispatch!(
    /// Minus the product of each row of the output with that of its gradient, whose numbers are rounded if words are:
    /// the gradient of scores is the difference of this and of products with the same numbers, which for a query that
    /// sees one key are one and the same.
    pub(super) fn negative_dots<C: Compute> = row_dots(
        output: &[f32],
        gradient: &[f32],
        padded: usize,
        dots: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn row_dots<S: Simd, C: Compute>(
    output: &[f32],
    gradient: &[f32],
    padded: usize,
    dots: &mut [f32],
) {
    let rows = output.chunks_exact(padded).zip(gradient.chunks_exact(padded));
    for (dot, (output, gradient)) in dots.iter_mut().zip(rows) {
        // SAFETY: a row has whole blocks, and a vector ends within one.
        unsafe {
            let mut sum = S::splat(0.0);
            for at in (0..padded).step_by(S::LANES) {
                let mut d = S::load(gradient.as_ptr().add(at));
                if !C::VERBATIM {
                    d = S::rounded(d);
                }
                sum = S::fma(S::load(output.as_ptr().add(at)), d, sum);
            }
            let mut lanes = [0.0; BLOCK];
            S::store(lanes.as_mut_ptr(), sum);
            *dot = -lanes[..S::LANES].iter().sum::<f32>();
        }
    }
}
