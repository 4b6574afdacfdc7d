//! Operands of a product in the order in which register tiles read them.
//!
//! With pairs, a word holds a number and the one a block further on, in groups of two blocks: vectors
//! of numbers become vectors of words wherever a part of the inner size begins. Of numbers in pieces, a group has
//! a block of words for each piece, and is filled up with zeros. Whole operands are packed chunk by chunk, so that
//! what a tile reads lies side by side.

use std::ops::Range;

use super::Matrix;
use super::part::{PANEL, ZEROS, chunk};
use crate::cpu::block::narrow;
use crate::cpu::compute::{Compute, Split};
use crate::cpu::kernels::dispatch;
use crate::cpu::lanes::Lanes;
use crate::cpu::pool::Lent;
use crate::cpu::simd::{Simd, pair};
use crate::cpu::{BLOCK, CpuKernels, Shared, each_task};

/// Rows of a transposed left operand that are packed side by side: whole vectors, whole register
/// tiles, and an odd number of cache lines, which spreads the lines over all sets of the cache.
pub(super) const STRIP: usize = 48;

/// Rows of a left operand that a thread packs at once.
const ROWS: usize = 64;

/// How many blocks wide the next panel is: four, two or one.
pub(super) fn panel_blocks<S: Simd, C: Compute>(columns_left: usize) -> usize {
    match columns_left.div_ceil(BLOCK) {
        _ if narrow::<S, C>() => 1,
        1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Words of so many numbers, of which the first begins a group.
#[inline(always)]
pub(in crate::cpu) fn words<C: Compute>(count: usize) -> usize {
    let numbers = C::PAIR * BLOCK;
    match C::PIECES {
        1 => count / numbers * BLOCK + (count % numbers).min(BLOCK),
        _ => count.div_ceil(numbers) * group::<C>(),
    }
}

/// Words of a group.
pub(in crate::cpu) const fn group<C: Compute>() -> usize {
    C::PIECES * BLOCK
}

/// The first number of a word, of its first piece; the second is a block further on.
#[inline(always)]
fn number<C: Compute>(word: usize) -> usize {
    word / group::<C>() * C::PAIR * BLOCK + word % group::<C>()
}

/// Parts of the inner size that are multiplied one after the other.
pub(super) fn chunks<C: Compute>(
    kernels: CpuKernels,
    inner: usize,
) -> impl Iterator<Item = Range<usize>> {
    let chunk = chunk::<C>(kernels);
    (0..inner).step_by(chunk).map(move |first| first..inner.min(first + chunk))
}

/// Some words of a chunk of the inner size, for all rows or columns of an operand in this range.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) inner: Range<usize>,
    pub(super) words: Range<usize>,
    pub(super) across: Range<usize>,
}

impl Part {
    /// All words of a chunk.
    pub(super) fn of<C: Compute>(inner: Range<usize>, across: Range<usize>) -> Self {
        Self { words: 0..words::<C>(inner.len()), inner, across }
    }

    /// All parts of an operand of so many rows or columns, a group of words each.
    fn all<C: Compute>(kernels: CpuKernels, inner: usize, across: usize) -> Vec<Self> {
        let groups = |inner: Range<usize>| {
            let all = words::<C>(inner.len());
            (0..all).step_by(group::<C>()).map(move |first| Self {
                inner: inner.clone(),
                words: first..all.min(first + group::<C>()),
                across: 0..across,
            })
        };
        chunks::<C>(kernels, inner).flat_map(groups).collect()
    }
}

/// Room for an operand of which each row or column is so long, and `across` are packed.
fn room<C: Compute>(inner: usize, across: usize) -> Lent {
    Lent::take(words::<C>(inner) * across)
}

/// The whole right operand, `[chunk, panel, word, blocks of the panel, 16]`, written by all threads.
/// Columns beyond the last, up to a whole block, are zero.
pub(super) fn whole_right<C: Compute>(kernels: CpuKernels, right: Matrix<'_>) -> Lent {
    let across = right.columns.next_multiple_of(BLOCK);
    let mut lent = room::<C>(right.rows, across);
    let to = Shared::new(lent.get_mut());
    let numbers = right.rows * right.columns;
    if right.column_stride == 1 {
        let parts = Part::all::<C>(kernels, right.rows, right.columns);
        each_task(parts.len(), numbers, |index| {
            let at = words::<C>(parts[index].inner.start) * across;
            right_part::<C>(kernels, right, &parts[index], &to, at);
        });
    } else {
        // Of a transposed one, columns are what lies in one piece.
        let chunks: Vec<_> = chunks::<C>(kernels, right.rows).collect();
        each_task(chunks.len() * right.columns.div_ceil(PANEL), numbers, |index| {
            let (panel, inner) = (index / chunks.len(), chunks[index % chunks.len()].clone());
            let columns = panel * PANEL..right.columns.min((panel + 1) * PANEL);
            let at = words::<C>(inner.start) * across + columns.start * words::<C>(inner.len());
            let part = Part::of::<C>(inner, columns);
            turned_right_part::<C>(kernels, right, &part, &to, at);
        });
    }
    lent
}

/// Whether the left operand is packed as rows, and not in strips: a transposed one for tiles of AMX alone,
/// which read the words of a row one after the other.
pub(super) fn in_rows<C: Compute>(kernels: CpuKernels, left: &Matrix<'_>) -> bool {
    left.column_stride == 1 || (C::PAIR == 2 && kernels == CpuKernels::Amx)
}

/// The whole left operand, written by all threads: `[chunk, row, word]`, or `[chunk, strip, word, 48]`
/// in [strips](in_rows), with rows beyond the last that are zero.
pub(super) fn whole_left<C: Compute>(kernels: CpuKernels, left: Matrix<'_>) -> Lent {
    let strips = !in_rows::<C>(kernels, &left);
    let across = if strips { left.rows.next_multiple_of(STRIP) } else { left.rows };
    let mut lent = room::<C>(left.columns, across);
    let to = Shared::new(lent.get_mut());
    let numbers = left.rows * left.columns;
    if left.column_stride != 1 {
        let parts = Part::all::<C>(kernels, left.columns, left.rows);
        each_task(parts.len(), numbers, |index| {
            let at = words::<C>(parts[index].inner.start) * across;
            match strips {
                true => strips_part::<C>(kernels, left, &parts[index], &to, at),
                false => turned_part::<C>(kernels, left, &parts[index], &to, at),
            }
        });
    } else {
        each_task(left.rows.div_ceil(ROWS), numbers, |index| {
            let rows = index * ROWS..left.rows.min((index + 1) * ROWS);
            for inner in chunks::<C>(kernels, left.columns) {
                let at = words::<C>(inner.start) * across + rows.start * words::<C>(inner.len());
                rows_part::<C>(kernels, left, &Part::of::<C>(inner, rows.clone()), &to, at);
            }
        });
    }
    lent
}

/// [`whole_left`] of rows by the calling thread alone, into the front of `packed`.
pub(super) fn rows<C: Compute>(kernels: CpuKernels, left: Matrix<'_>, packed: &mut [f32]) {
    rows_of::<C>(kernels, left, [0, left.rows], packed);
}

/// The same of rows from `first` on of as many as `all`.
pub(super) fn rows_of<C: Compute>(
    kernels: CpuKernels,
    left: Matrix<'_>,
    [first, all]: [usize; 2],
    packed: &mut [f32],
) {
    assert_eq!(left.column_stride, 1, "rows");
    let to = Shared::new(packed);
    for inner in chunks::<C>(kernels, left.columns) {
        let at = words::<C>(inner.start) * all + first * words::<C>(inner.len());
        rows_part::<C>(kernels, left, &Part::of::<C>(inner, 0..left.rows), &to, at);
    }
}

/// Words of a row or column that are packed at once, at least.
const fn step<C: Compute>() -> usize {
    if C::PIECES == 1 { 1 } else { group::<C>() }
}

dispatch!(
    /// Packs rows of the right operand into panels, from `at` on. Nobody else writes to them.
    fn right_part<C: Compute> = pack_right(right: Matrix<'_>, part: &Part, to: &Shared<'_>, at: usize)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn pack_right<S: Simd, C: Compute>(
    right: Matrix<'_>,
    part: &Part,
    to: &Shared<'_>,
    at: usize,
) {
    let Part { inner, words: some, across: columns } = part;
    let words = words::<C>(inner.len());
    // A chunk lies in the cache, and is written panel by panel; rows from afar are read as they lie.
    let height = if some.len() == words { words } else { step::<C>() };
    for word in some.clone().step_by(height.max(1)) {
        let mut column = columns.start;
        // Of narrow panels, as many at once as a wide one has blocks: a line of a row alone would be a way
        // from one page to the next.
        if narrow::<S, C>() {
            while column + PANEL <= columns.end {
                let at = at + (column - columns.start) * words + word * BLOCK;
                for row in 0..height {
                    let from = (inner.start + word + row) * right.row_stride + column;
                    let from = &right.values[from..][..PANEL];
                    for (block, from) in from.as_chunks::<BLOCK>().0.iter().enumerate() {
                        // SAFETY: a word of a panel is written once.
                        let to = unsafe { to.part(at + (block * words + row) * BLOCK, BLOCK) };
                        // SAFETY: the caller's promise is the same.
                        unsafe { C::pack::<S>(from, to) };
                    }
                }
                column += PANEL;
            }
        }
        while column < columns.end {
            let width = panel_blocks::<S, C>(columns.end - column) * BLOCK;
            let valid = width.min(columns.end - column);
            let at = at + (column - columns.start) * words + word * width;
            // SAFETY: the caller's promise is the same, and a word of a panel is written once.
            unsafe {
                let to = to.part(at, height * width);
                pack_block::<S, C>(right, inner, word, column..column + valid, width, to);
            }
            column += valid;
        }
    }
}

dispatch!(
    /// Packs columns of a transposed right operand into panels, from `at` on. Nobody else writes to them.
    pub(super) fn turned_right_part<C: Compute> = pack_turned_right(
        right: Matrix<'_>,
        part: &Part,
        to: &Shared<'_>,
        at: usize
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_turned_right<S: Lanes, C: Compute>(
    right: Matrix<'_>,
    part: &Part,
    to: &Shared<'_>,
    at: usize,
) {
    let Part { inner, words: some, across: columns } = part;
    assert_eq!(right.row_stride, 1, "a transposed matrix");
    let words = words::<C>(inner.len());
    let mut column = columns.start;
    while column < columns.end {
        let width = panel_blocks::<S, C>(columns.end - column) * BLOCK;
        let end = columns.end.min(column + width);
        let panel = at + (column - columns.start) * words;
        for first in (column..column + width).step_by(BLOCK) {
            // Columns behind the last stay zeros.
            let mut rows = [[0.0; PIECES * BLOCK]; BLOCK];
            for word in some.clone().step_by(group::<C>()) {
                let here = group::<C>().min(some.end - word);
                let numbers = number::<C>(word)..inner.len().min(number::<C>(word + group::<C>()));
                for (column, words) in (first..end).zip(&mut rows) {
                    let from = column * right.column_stride + inner.start;
                    let from = &right.values[from..][numbers.clone()];
                    // SAFETY: the caller's promise is the same.
                    unsafe { pack_row::<S, C>(from, &mut words[..here]) };
                }
                for piece in (0..here).step_by(BLOCK) {
                    // SAFETY: as above.
                    let turned =
                        unsafe { turn::<S>(&rows.as_flattened()[piece..], PIECES * BLOCK) };
                    for (word, from) in (word + piece..some.end).zip(&turned) {
                        let at = panel + word * width + first - column;
                        // SAFETY: a word of a panel is written once.
                        unsafe { to.part(at, BLOCK) }.copy_from_slice(from);
                    }
                }
            }
        }
        column = end;
    }
}

/// Pieces of a number, at most.
const PIECES: usize = 3;

/// Sixteen rows of sixteen, that many numbers apart, as columns.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn turn<S: Lanes>(rows: &[f32], row: usize) -> [[f32; BLOCK]; BLOCK] {
    assert!(rows.len() >= (BLOCK - 1) * row + BLOCK, "sixteen rows");
    let mut turned = [[0.0; BLOCK]; BLOCK];
    // SAFETY: the caller's promise is the same, and both are sixteen rows of sixteen.
    unsafe { S::transpose(rows.as_ptr(), row, turned.as_mut_ptr().cast(), BLOCK) };
    turned
}

dispatch!(
    /// Packs columns of a transposed left operand into strips, from `at` on. Nobody else writes to them.
    fn strips_part<C: Compute> = pack_strips(left: Matrix<'_>, part: &Part, to: &Shared<'_>, at: usize)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn pack_strips<S: Simd, C: Compute>(
    left: Matrix<'_>,
    part: &Part,
    to: &Shared<'_>,
    at: usize,
) {
    let Part { inner, words: some, across: rows } = part;
    let words = words::<C>(inner.len());
    // As in `pack_right`.
    let height = if some.len() == words { words } else { step::<C>() };
    for word in some.clone().step_by(height.max(1)) {
        for first in rows.clone().step_by(STRIP) {
            let valid = first..rows.end.min(first + STRIP);
            let at = at + (first - rows.start) * words + word * STRIP;
            // SAFETY: the caller's promise is the same, and a word of a strip is written once.
            unsafe {
                let to = to.part(at, height * STRIP);
                pack_block::<S, C>(left.transposed(), inner, word, valid, STRIP, to);
            }
        }
    }
}

/// Packs some columns of a row-major matrix, `[word, width]`, from a word on.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_block<S: Simd, C: Compute>(
    matrix: Matrix<'_>,
    inner: &Range<usize>,
    first: usize,
    columns: Range<usize>,
    width: usize,
    to: &mut [f32],
) {
    let zeros = &ZEROS[..columns.len()];
    let row = |index: usize| {
        let at = (inner.start + index) * matrix.row_stride + columns.start;
        &matrix.values[at..][..columns.len()]
    };
    if C::PIECES > 1 {
        let row = |index: usize| if index < inner.len() { row(index) } else { zeros };
        for (index, to) in to.chunks_exact_mut(width * group::<C>()).enumerate() {
            let first = number::<C>(first + index * group::<C>());
            for word in 0..BLOCK {
                let (low, high) = (row(first + word), row(first + BLOCK + word));
                // SAFETY: the caller's promise is the same.
                unsafe {
                    pack_pieces::<S>(low, high, &mut to[word * width..], [width, BLOCK * width])
                };
            }
        }
        return;
    }
    for (word, to) in to.chunks_exact_mut(width).enumerate() {
        let low = number::<C>(first + word);
        let high = if low + BLOCK < inner.len() { row(low + BLOCK) } else { zeros };
        // SAFETY: the caller's promise is the same.
        unsafe { pack_pair::<S, C>(row(low), high, to) };
    }
}

dispatch!(
    /// Packs columns of a transposed left operand as rows, each behind the one before it, from `at` on. Nobody
    /// else writes to them.
    pub(super) fn turned_part<C: Compute> = pack_turned(left: Matrix<'_>, part: &Part, to: &Shared<'_>, at: usize)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_turned<S: Lanes, C: Compute>(
    left: Matrix<'_>,
    part: &Part,
    to: &Shared<'_>,
    at: usize,
) {
    let Part { inner, words: some, across: rows } = part;
    assert_eq!(left.row_stride, 1, "a transposed matrix");
    let words = words::<C>(inner.len());
    // Words behind the last become columns that nobody takes.
    let mut packed = [[0.0; BLOCK]; PIECES * BLOCK];
    for word in some.clone().step_by(group::<C>()) {
        let here = group::<C>().min(some.end - word);
        for first in rows.clone().step_by(BLOCK) {
            let valid = first..rows.end.min(first + BLOCK);
            // SAFETY: the caller's promise is the same.
            unsafe {
                let to = packed[..here].as_flattened_mut();
                pack_block::<S, C>(left.transposed(), inner, word, valid.clone(), BLOCK, to);
            }
            for piece in (0..here).step_by(BLOCK) {
                // SAFETY: as above.
                let turned = unsafe { turn::<S>(packed[piece..].as_flattened(), BLOCK) };
                let here = BLOCK.min(here - piece);
                for (row, from) in valid.clone().zip(&turned) {
                    let at = at + (row - rows.start) * words + word + piece;
                    // SAFETY: a word of a row is written once.
                    let to = unsafe { to.part(at, here) };
                    match to.first_chunk_mut() {
                        Some(whole) => *whole = *from,
                        None => to.copy_from_slice(&from[..here]),
                    }
                }
            }
        }
    }
}

dispatch!(
    /// Packs rows of the left operand, each behind the one before it, from `at` on. Nobody else writes
    /// to them.
    fn rows_part<C: Compute> = pack_left(left: Matrix<'_>, part: &Part, to: &Shared<'_>, at: usize)
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn pack_left<S: Simd, C: Compute>(
    left: Matrix<'_>,
    part: &Part,
    to: &Shared<'_>,
    at: usize,
) {
    let Part { inner, words, across: rows } = part;
    for row in rows.clone() {
        let from = &left.values[row * left.row_stride + inner.start..][..inner.len()];
        // SAFETY: the caller's promise is the same, and a row is written once.
        unsafe {
            let to = to.part(at + (row - rows.start) * words.len(), words.len());
            pack_row::<S, C>(from, to);
        }
    }
}

/// Packs a row, or a part of one that begins with a group.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(in crate::cpu) unsafe fn pack_row<S: Simd, C: Compute>(row: &[f32], to: &mut [f32]) {
    if C::PAIR == 1 {
        // SAFETY: the caller's promise is the same.
        return unsafe { C::pack::<S>(row, to) };
    }
    let (groups, rest) = row.as_chunks::<{ 2 * BLOCK }>();
    if C::PIECES > 1 {
        let (words, last) = to.split_at_mut(groups.len() * group::<C>());
        for (group, words) in groups.iter().zip(words.as_chunks_mut::<{ PIECES * BLOCK }>().0) {
            // SAFETY: the caller's promise is the same.
            unsafe { pack_pieces::<S>(&group[..BLOCK], &group[BLOCK..], words, [BLOCK; 2]) };
        }
        if !rest.is_empty() {
            let mut group = [0.0; 2 * BLOCK];
            group[..rest.len()].copy_from_slice(rest);
            // SAFETY: as above.
            unsafe { pack_pieces::<S>(&group[..BLOCK], &group[BLOCK..], last, [BLOCK; 2]) };
        }
        return;
    }
    let (blocks, rest_words) = to.split_at_mut(groups.len() * BLOCK);
    for (group, block) in groups.iter().zip(blocks.as_chunks_mut::<BLOCK>().0) {
        // SAFETY: the caller's promise is the same.
        unsafe { C::join_rows::<S>(&group[..BLOCK], &group[BLOCK..], block) };
    }
    for (at, word) in rest_words.iter_mut().enumerate() {
        *word = pair(rest[at], rest.get(BLOCK + at).copied().unwrap_or(0.0));
    }
}

/// Packs the pieces of numbers, each beside that of `high`, and zeros behind them: `width` words of each, that
/// many `apart`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_pieces<S: Simd>(
    low: &[f32],
    high: &[f32],
    to: &mut [f32],
    [width, apart]: [usize; 2],
) {
    let count = low.len();
    let whole = count / S::LANES * S::LANES;
    assert!(high.len() == count && width >= count, "{count} numbers in {width}");
    assert!(to.len() >= (PIECES - 1) * apart + width, "room for all pieces");
    let first = to.as_mut_ptr();
    let to = |piece: usize, at: usize| first.wrapping_add(piece * apart + at);
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: the caller's promise, and `at + LANES` is within all rows.
        unsafe {
            let (low, high) = (S::load(low.as_ptr().add(at)), S::load(high.as_ptr().add(at)));
            for (piece, words) in Split::pieces::<S>(low, high).into_iter().enumerate() {
                S::store(to(piece, at), words);
            }
        }
    }
    if whole < width {
        let mut last = [[0.0; BLOCK]; 2];
        last[0][..count - whole].copy_from_slice(&low[whole..]);
        last[1][..count - whole].copy_from_slice(&high[whole..]);
        let mut words = [[0.0; BLOCK]; PIECES];
        // SAFETY: the caller's promise, and a block is as long as a vector or longer.
        unsafe {
            let [low, high] = [S::load(last[0].as_ptr()), S::load(last[1].as_ptr())];
            for (words, pieces) in words.iter_mut().zip(Split::pieces::<S>(low, high)) {
                S::store(words.as_mut_ptr(), pieces);
            }
        }
        for (piece, words) in words.iter().enumerate() {
            // SAFETY: the rest of the row.
            let rest = unsafe { std::slice::from_raw_parts_mut(to(piece, whole), width - whole) };
            let (first, zeros) = rest.split_at_mut((count - whole).min(width - whole));
            first.copy_from_slice(&words[..first.len()]);
            zeros.fill(0.0);
        }
    }
}

/// Packs numbers, with pairs each beside the one of `high`, and zeros behind them.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pack_pair<S: Simd, C: Compute>(low: &[f32], high: &[f32], to: &mut [f32]) {
    let (words, rest) = to.split_at_mut(low.len());
    // SAFETY: the caller's promise is the same.
    unsafe { C::join_rows::<S>(low, high, words) };
    rest.fill(0.0);
}
