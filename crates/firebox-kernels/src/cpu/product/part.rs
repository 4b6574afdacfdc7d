//! One rectangle of a product, computed by one thread.

use std::ops::Range;

use super::Matrix;
use super::ahead;
use super::pack::{
    Part, STRIP, chunks, group, in_rows, pack_left, pack_right, pack_strips, panel_blocks,
    turned_part, turned_right_part, words,
};
use super::tile::Tile;
use crate::cpu::amx::{self, Tiles, in_tiles};
use crate::cpu::block::{for_row_tiles, is_narrow};
use crate::cpu::compute::Compute;
use crate::cpu::kernels::dispatch;
use crate::cpu::pool::Lent;
use crate::cpu::simd::Simd;
use crate::cpu::{BLOCK, CpuKernels, Shared};

/// Words of the inner size that are multiplied at once: a panel of so many rows fits into 32 KiB.
const CHUNK: usize = 128;

/// The same of numbers in pieces: whole groups.
const PIECES_CHUNK: usize = 96;

/// Words of a row of a chunk, at most.
const LAST: usize = if CHUNK > PIECES_CHUNK { CHUNK } else { PIECES_CHUNK };

/// The same of panels of one block, which leaves room for rows of the left operand.
const NARROW_CHUNK: usize = 256;

/// Columns of a panel.
pub(super) const PANEL: usize = 4 * BLOCK;

/// Rows of a register tile, at most.
pub(super) const TILE: usize = 6;

/// Numbers of a page of memory.
const PAGE: usize = 1024;

/// Numbers of the inner size that are multiplied at once.
pub(super) fn chunk<C: Compute>(kernels: CpuKernels) -> usize {
    match C::PIECES {
        1 if is_narrow::<C>(kernels) => NARROW_CHUNK,
        1 => CHUNK * C::PAIR,
        _ => PIECES_CHUNK / C::PIECES * C::PAIR,
    }
}

/// What a row of a tile starts from.
pub(super) static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// A product, of which rectangles are computed.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) kernels: CpuKernels,
    pub(super) left: Left<'a>,
    pub(super) right: Right<'a>,
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    pub(super) bias: Option<&'a [f32]>,
    /// `[rows, columns]`, added to complete sums if the result is one of numbers.
    pub(super) addend: Option<&'a [f32]>,
    pub(super) out: Out<'a>,
}

impl Task<'_> {
    /// Where the sums of some rows and columns are kept from one chunk to the next, and the distance of rows:
    /// in the result, if it is one of numbers, else `beside`.
    pub(super) fn kept(
        &self,
        [row, column]: [usize; 2],
        [height, width]: [usize; 2],
        beside: (*mut f32, usize),
    ) -> (*mut f32, usize) {
        match self.out {
            Out::Numbers(out) => {
                let at = row * self.columns + column;
                (out.pointer(at, (height - 1) * self.columns + width), self.columns)
            }
            Out::Words(..) => beside,
        }
    }

    /// Whether tiles of AMX keep sums beside the result until they are complete: its rows lie whole pages apart, and
    /// would take turns in the same few places of the caches. The last chunk puts them into the result, so that it
    /// must have something for tiles.
    fn is_kept_aside<C: Compute>(&self) -> bool {
        let (tiled, size) =
            (self.kernels == CpuKernels::Amx && C::PAIR == 2, chunk::<C>(self.kernels));
        let last = self.inner - (self.inner - 1) / size * size;
        let moved = self.inner > size && in_tiles(words::<C>(last)) > 0;
        tiled && moved && self.columns.is_multiple_of(PAGE)
    }

    /// Whether complete sums are not yet the result.
    fn is_finished_by_vectors(&self) -> bool {
        self.addend.is_some() || matches!(self.out, Out::Words(..))
    }
}

/// Where a task finds its left operand.
#[derive(Clone, Copy)]
pub(super) enum Left<'a> {
    /// As it came: it is packed by who computes a rectangle, or read where it is.
    Numbers(Matrix<'a>),
    /// Packed, `[chunk, row, word]`.
    Rows(&'a [f32]),
    /// Packed, `[chunk, strip, word, 48]`.
    Strips(&'a [f32]),
}

/// Where a task finds its right operand.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// As it came: it is packed by who computes a rectangle.
    Numbers(Matrix<'a>),
    /// Packed, `[chunk, panel, word, column]`.
    Panels(&'a [f32]),
}

/// Where the result goes. A rectangle is written by one thread.
#[derive(Clone, Copy)]
pub(super) enum Out<'a> {
    /// `[rows, columns]`
    Numbers(&'a Shared<'a>),
    /// After an activation, packed as the left operand of another product, `[chunk, row, word]`.
    Words(&'a Shared<'a>, Activation),
}

/// What stands between two linear layers of [`feed_forward`](crate::feed_forward).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// As [`gelu()`](crate::gelu()) computes it.
    Gelu,
    /// The rectifier.
    Relu,
}

/// Rows and columns of a part of the result.
pub(super) type Rectangle = [Range<usize>; 2];

/// Computes a rectangle of the result.
pub(super) fn multiply_part<C: Compute>(
    kernels: CpuKernels,
    task: &Task<'_>,
    rectangle: Rectangle,
) {
    let [rows, columns] = &rectangle;
    let mut room = Room::new::<C>(task, [rows.len(), columns.len()]);
    multiply_in::<C>(kernels, task, rectangle, &mut room);
}

dispatch!(
    /// [`multiply_part`] in memory for a task of these sizes, operands and place of the result, and for a rectangle that
    /// is as large at least.
    pub(super) fn multiply_in<C: Compute> = part(
        task: &Task<'_>,
        rectangle: Rectangle,
        room: &mut Room
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the lint does not see comments in the argument of a macro"
)]
unsafe fn part<S: Simd, C: Compute>(task: &Task<'_>, [rows, columns]: Rectangle, room: &mut Room) {
    room.check::<C>(task, [rows.len(), columns.len()]);
    let sums = room.sums.get_mut().as_mut_ptr();
    let mut tiled = Tiled::of::<C>(task.kernels, &mut room.tiled);
    let aside = task.is_kept_aside::<C>();
    for inner in chunks::<C>(task.kernels, task.inner) {
        let words = words::<C>(inner.len());
        // SAFETY: the features are those that the caller vouches for.
        let (panels, left) = unsafe {
            (
                panels::<S, C>(task, &inner, &columns, &mut room.panels),
                Operand::new::<S, C>(task, &inner, &rows, &mut room.operands),
            )
        };
        let [begins, ends] = [inner.start == 0, inner.end == task.inner];
        let mut next_rows = ahead::Rows::new::<C>(task, &rows, &columns, inner.end);
        let mut next_left = ahead::Packed::new::<C>(task, &rows, &columns, inner.end);
        let mut next_words = ahead::Lines::new(
            next_rows_packed::<C>(task, inner.end, &rows),
            rows.len() * columns.len().div_ceil(BLOCK),
        );
        let mut column = columns.start;
        while column < columns.end {
            let blocks = panel_blocks::<S, C>(columns.end - column);
            let (panel, behind) =
                panels[(column - columns.start) * words..].split_at(blocks * BLOCK * words);
            let width = (blocks * BLOCK).min(columns.end - column);
            let mut next_panel = ahead::Lines::new(
                match column + width < columns.end {
                    true => &behind[..panel.len().min(behind.len())],
                    false => next_chunk::<C>(task, inner.end, columns.start, panel.len()),
                },
                rows.len(),
            );
            // Tiles read the words of a row one after the other.
            let done = if left.stride.is_some() && tiled.is_some() { in_tiles(words) } else { 0 };
            let mut tiled = tiled.as_mut().filter(|_| done > 0);
            let group = if tiled.is_some() { GROUP } else { rows.len() };
            let whole = width == blocks * BLOCK;
            for first in (0..rows.len()).step_by(group.max(1)) {
                let group = first..rows.len().min(first + group);
                let beside = |row: usize| {
                    let at = row * columns.len() + column - columns.start;
                    (sums.wrapping_add(at), columns.len())
                };
                if let Some(tiled) = &mut tiled {
                    let here = rows.start + group.start..rows.start + group.end;
                    let size = [here.len(), width];
                    let result = task.kept([here.start, column], size, beside(group.start));
                    let kept = if aside { beside(group.start) } else { result };
                    let place = if ends { result } else { kept };
                    // Tiles add to the sums in their place, or beside it where not all columns exist.
                    let own = (tiled.sums.get_mut().as_mut_ptr(), blocks * BLOCK);
                    let to = if whole { place } else { own };
                    let bias = task.bias.map(|bias| bias[column..][..width].as_ptr());
                    // SAFETY: so many rows of the panel's width are there, in either place; a bias is one of them.
                    unsafe {
                        let mut start = match begins {
                            true => bias.map(|bias| (bias, 0)),
                            false => Some((kept.0.cast_const(), kept.1)),
                        };
                        if let (false, Some(from)) = (whole, start) {
                            copy_rows(from, own, size);
                            start = Some((own.0.cast_const(), own.1));
                        }
                        let panel = &panel[..blocks * BLOCK * words];
                        let panel = (panel, &mut next_panel);
                        tiled.multiply::<C>(&left, here, [done, words], panel, to, start);
                        if !whole {
                            copy_rows((own.0.cast_const(), own.1), place, size);
                        }
                    }
                    if done == words && !(ends && task.is_finished_by_vectors()) {
                        let count = group.len();
                        // SAFETY: as above.
                        unsafe {
                            next_rows.prefetch::<S>(count * blocks);
                            next_left.prefetch::<S>(count * blocks);
                            next_words.prefetch::<S>(count * blocks);
                            next_panel.prefetch::<S>(count);
                        }
                        continue;
                    }
                }
                for_row_tiles!(S, group.len(), row, M => {
                    // SAFETY: as above.
                    unsafe {
                        next_rows.prefetch::<S>(M * blocks);
                        next_left.prefetch::<S>(M * blocks);
                        next_words.prefetch::<S>(M * blocks);
                        next_panel.prefetch::<S>(M);
                    }
                    let row = group.start + row;
                    let tile = Tile {
                        a: left.rows::<M>(rows.start + row, words).map(|a| a.wrapping_add(done)),
                        step: left.step,
                        panel: &panel[done * blocks * BLOCK..],
                        words: words - done,
                        row: rows.start + row,
                        column,
                        width,
                        begins: begins && tiled.is_none(),
                        ends,
                        beside: beside(row),
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
            }
            column += width;
        }
    }
}

/// Memory of a rectangle, given back in the order in which the next one finds its own again: the pool
/// looks at the newest first, and panels fit where operands do.
pub(super) struct Room {
    /// Of the tiles of AMX, where these multiply: `[row, blocks of the panel, 16]`, where some of a panel's columns do
    /// not exist, and the last rows of an operand, with room for whole tiles of rows, `[16, LAST]`.
    tiled: [Lent; 2],
    /// Sums that are not yet complete, `[rows, columns]`, where they are not kept in the result.
    sums: Lent,
    /// The left operand of a chunk, if it is packed here.
    operands: Lent,
    /// The right operand of a chunk, if it is packed here.
    panels: Lent,
}

impl Room {
    /// For rectangles of so many rows and columns at most.
    pub(super) fn new<C: Compute>(task: &Task<'_>, most: [usize; 2]) -> Self {
        let [panels, operands, sums] = Self::sizes::<C>(task, most).map(Lent::take);
        let tiles = task.kernels == CpuKernels::Amx && C::PAIR == 2;
        let tiled = if tiles { [GROUP * PANEL, amx::TILE * LAST] } else { [0; 2] };
        Self { tiled: tiled.map(Lent::take), sums, operands, panels }
    }

    /// Numbers of panels, of operands and of sums.
    fn sizes<C: Compute>(task: &Task<'_>, [rows, columns]: [usize; 2]) -> [usize; 3] {
        let longest = words::<C>(task.inner.min(chunk::<C>(task.kernels)));
        let panels = match task.right {
            Right::Numbers(_) => longest * columns.next_multiple_of(PANEL),
            Right::Panels(_) => 0,
        };
        let operands = match task.left {
            Left::Numbers(left) if left.column_stride != 1 || !C::VERBATIM => {
                longest * rows.next_multiple_of(STRIP)
            }
            _ => 0,
        };
        let sums = match task.out {
            Out::Numbers(_) if !task.is_kept_aside::<C>() => 0,
            _ => rows * columns,
        };
        [panels, operands, sums]
    }

    /// Refuses a rectangle that is larger than the memory: sums are written through pointers.
    fn check<C: Compute>(&self, task: &Task<'_>, size: [usize; 2]) {
        let [panels, operands, sums] = Self::sizes::<C>(task, size);
        let held = [&self.panels, &self.operands, &self.sums].map(|lent| lent.get().len());
        assert!(held[0] >= panels && held[1] >= operands && held[2] >= sums, "{held:?}");
    }
}

/// Rows that tiles of AMX multiply before vectors take them up: of whole tiles, and whole register tiles.
const GROUP: usize = 48;

/// Copies rows of so many numbers from one place to another.
///
/// # Safety
/// Both are valid for `height` rows of `width` numbers, that many numbers apart, and do not overlap.
pub(super) unsafe fn copy_rows(
    (from, from_row): (*const f32, usize),
    (to, to_row): (*mut f32, usize),
    [height, width]: [usize; 2],
) {
    for row in 0..height {
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(row * from_row), to.add(row * to_row), width);
        }
    }
}

/// The part of a group of rows that tiles of AMX multiply, while a panel lies in the cache.
struct Tiled<'a> {
    tiles: Tiles,
    /// `[row, blocks of the panel, 16]`, where some of its columns do not exist.
    sums: &'a mut Lent,
    /// The last rows of an operand, and room for whole tiles of rows, `[16, LAST]`.
    last: &'a mut Lent,
    /// Words of a group.
    group: usize,
}

impl<'a> Tiled<'a> {
    fn of<C: Compute>(kernels: CpuKernels, [sums, last]: &'a mut [Lent; 2]) -> Option<Self> {
        let tiles = Tiles::of::<C>(kernels)?;
        Some(Self { tiles, sums, last, group: group::<C>() })
    }

    /// Multiplies the first words, `done` of them, of all `words`, of up to [`GROUP`] rows, of which each lies
    /// in one piece, with those of a panel, which has as many rows and is a whole number of blocks wide, and brings
    /// some of what comes `next` nearer.
    ///
    /// # Safety
    /// `out` is valid for these rows, that many numbers apart, of the panel's width, and so is what the sums start
    /// from, if anything.
    unsafe fn multiply<C: Compute>(
        &mut self,
        left: &Operand<'_>,
        rows: Range<usize>,
        [done, words]: [usize; 2],
        (panel, next): (&[f32], &mut ahead::Lines),
        (out, out_row): (*mut f32, usize),
        start: Option<(*const f32, usize)>,
    ) {
        let Some(stride) = left.stride else { unreachable!("strips are not multiplied in tiles") };
        let width = panel.len() / words;
        for first in rows.clone().step_by(amx::TILE) {
            let here = amx::TILE.min(rows.end - first);
            let at = (first - left.first) * stride;
            let (mut a, mut a_row) = (&left.values[at..][..(here - 1) * stride + words], stride);
            if here < amx::TILE {
                let last = self.last.get_mut();
                for row in 0..here {
                    last[row * LAST..][..done].copy_from_slice(&a[row * a_row..][..done]);
                }
                (a, a_row) = (&*last, LAST);
            }
            assert!(a.len() >= (amx::TILE - 1) * a_row + done && panel.len() >= done * width);
            let part = std::iter::once(amx::Part {
                a: a.as_ptr(),
                a_row,
                b: panel.as_ptr(),
                b_row: width,
                groups: done / self.group,
                ahead: next.take(amx::ahead::<C>(done / self.group)),
            });
            // SAFETY: sixteen rows of both, by the assertion, and those rows of the sums.
            unsafe {
                let row = first - rows.start;
                let start = start.map(|(start, start_row)| (start.add(row * start_row), start_row));
                let out = (out.add(row * out_row), out_row);
                self.tiles.rows(here, width / BLOCK, part, out, start);
            }
        }
    }
}

/// The panels of these columns for a chunk of the inner size.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn panels<'a, S: Simd, C: Compute>(
    task: &'a Task<'_>,
    inner: &Range<usize>,
    columns: &Range<usize>,
    room: &'a mut Lent,
) -> &'a [f32] {
    match task.right {
        Right::Panels(packed) => &packed[panel_start::<C>(task, inner.clone(), columns.start)..],
        Right::Numbers(right) => {
            let part = Part::of::<C>(inner.clone(), columns.clone());
            let to = Shared::new(room.get_mut());
            // SAFETY: the caller's promise is the same.
            unsafe {
                match right.column_stride {
                    1 => pack_right::<S, C>(right, &part, &to, 0),
                    _ => turned_right_part::<C>(task.kernels, right, &part, &to, 0),
                }
            }
            room.get()
        }
    }
}

/// Where the panel of a column begins in a right operand that is packed as a whole.
fn panel_start<C: Compute>(task: &Task<'_>, inner: Range<usize>, column: usize) -> usize {
    let before = words::<C>(inner.start) * task.columns.next_multiple_of(BLOCK);
    before + column * words::<C>(inner.len())
}

/// The first `count` words that are read of the panels of the chunk that begins with `first`, if there
/// is one and it is packed.
fn next_chunk<'a, C: Compute>(
    task: &Task<'a>,
    first: usize,
    column: usize,
    count: usize,
) -> &'a [f32] {
    match task.right {
        Right::Panels(packed) if first < task.inner => {
            let inner = first..task.inner.min(first + chunk::<C>(task.kernels));
            let packed = &packed[panel_start::<C>(task, inner, column)..];
            &packed[..count.min(packed.len())]
        }
        _ => &[],
    }
}

/// The words of these rows of the chunk that begins with `first`, if there is one and they are packed.
fn next_rows_packed<'a, C: Compute>(
    task: &Task<'a>,
    first: usize,
    rows: &Range<usize>,
) -> &'a [f32] {
    match task.left {
        Left::Rows(packed) if first < task.inner => {
            let words_of_a_row =
                words::<C>(task.inner.min(first + chunk::<C>(task.kernels)) - first);
            let at = words::<C>(first) * task.rows + rows.start * words_of_a_row;
            &packed[at..][..rows.len() * words_of_a_row]
        }
        _ => &[],
    }
}

/// The left operand's words for a chunk of the inner size.
struct Operand<'a> {
    values: &'a [f32],
    /// The first row that is there.
    first: usize,
    /// From one row to the next, where they are no strips.
    stride: Option<usize>,
    /// From one word of a row to the next.
    step: usize,
}

impl<'a> Operand<'a> {
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn new<S: Simd, C: Compute>(
        task: &'a Task<'_>,
        inner: &Range<usize>,
        rows: &Range<usize>,
        room: &'a mut Lent,
    ) -> Self {
        let (before, words) = (words::<C>(inner.start), words::<C>(inner.len()));
        let (values, first, stride) = match task.left {
            Left::Rows(packed) => (&packed[before * task.rows..], 0, Some(words)),
            Left::Strips(packed) => {
                (&packed[before * task.rows.next_multiple_of(STRIP)..], 0, None)
            }
            Left::Numbers(left) if left.column_stride == 1 && C::VERBATIM => {
                (&left.values[inner.start..], 0, Some(left.row_stride))
            }
            Left::Numbers(left) => {
                let part = Part::of::<C>(inner.clone(), rows.clone());
                let strips = !in_rows::<C>(task.kernels, &left);
                let to = Shared::new(room.get_mut());
                // SAFETY: the caller's promise is the same.
                unsafe {
                    match left.column_stride {
                        1 => pack_left::<S, C>(left, &part, &to, 0),
                        _ if strips => pack_strips::<S, C>(left, &part, &to, 0),
                        _ => turned_part::<C>(task.kernels, left, &part, &to, 0),
                    }
                }
                (room.get(), rows.start, (!strips).then_some(words))
            }
        };
        Self { values, first, stride, step: if stride.is_none() { STRIP } else { 1 } }
    }

    /// Where rows begin.
    #[inline(always)]
    fn rows<const M: usize>(&self, row: usize, words: usize) -> [*const f32; M] {
        let row = row - self.first;
        let mut rows = [std::ptr::null(); M];
        if let Some(stride) = self.stride {
            let first = self.values[row * stride..][..(M - 1) * stride + words].as_ptr();
            for (m, row) in rows.iter_mut().enumerate() {
                *row = first.wrapping_add(m * stride);
            }
            return rows;
        }
        for (m, to) in rows.iter_mut().enumerate() {
            let row = row + m;
            *to = self.values[row / STRIP * STRIP * words..][row % STRIP..].as_ptr();
        }
        rows
    }
}
