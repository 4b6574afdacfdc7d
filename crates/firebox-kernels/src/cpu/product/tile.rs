//! A register tile: some rows by a panel's columns of a product, over one chunk of its inner size.

use super::pack::{group, words};
use super::part::{Activation, Out, PANEL, TILE, Task, ZEROS, chunk, copy_rows};
use crate::cpu::block::accumulate;
use crate::cpu::compute::{Compute, Split};
use crate::cpu::kernels::dispatch;
use crate::cpu::simd::Simd;
use crate::cpu::{BLOCK, Shared, gelu};

/// A register tile of the result and one chunk of its operands.
pub(super) struct Tile<'a, const M: usize> {
    /// Rows of the left operand.
    pub(super) a: [*const f32; M],
    /// Numbers from one word of a row to the next.
    pub(super) step: usize,
    /// Columns of the right operand, packed.
    pub(super) panel: &'a [f32],
    pub(super) words: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    /// Columns that exist.
    pub(super) width: usize,
    /// Whether nothing was kept of these sums yet, also by tiles of AMX, and whether this is the last chunk.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// Where the sums of words are, and the distance of their rows.
    pub(super) beside: (*mut f32, usize),
}

impl<const M: usize> Tile<'_, M> {
    /// # Safety
    /// That of [`Simd`]; the operands are valid for `words`, with `step` numbers between two words
    /// of `a` and `N` blocks in the panel; the tile lies in the rectangle of this thread, and its sums
    /// are valid if the result is one of words.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd, C: Compute, const N: usize>(&self, task: &Task<'_>) {
        let (columns, width) = (task.columns, self.width);
        let whole = width == N * BLOCK;
        // Where columns do not exist, or numbers become words, the tile is computed beside the result.
        let mut edge = std::mem::MaybeUninit::<[f32; TILE * PANEL]>::uninit();
        let beside = edge.as_mut_ptr().cast::<f32>();
        let (kept, kept_row) = task.kept([self.row, self.column], [M, width], self.beside);
        let words = matches!(task.out, Out::Words(..)) && self.ends;
        let (to, to_row) = if whole && !words { (kept, kept_row) } else { (beside, PANEL) };
        let addend = match (self.ends, task.addend) {
            (true, Some(addend)) => Some(&addend[self.row * columns + self.column..]),
            _ => None,
        };
        let (mut start, mut start_row): (*const f32, usize) = match (self.begins, task.bias) {
            (true, None) => (ZEROS.as_ptr(), 0),
            (true, Some(bias)) => (bias[self.column..][..width].as_ptr(), 0),
            (false, _) => (kept, kept_row),
        };
        if !whole || words {
            // SAFETY: the memory of the tile.
            unsafe { beside.write_bytes(0, TILE * PANEL) };
        }
        if !whole {
            // SAFETY: both places have `width` numbers in each of `M` rows.
            unsafe { copy_rows((start, start_row), (beside, PANEL), [M, width]) };
            (start, start_row) = (beside, PANEL);
        }
        // Added by vectors where there are whole ones, and with the copy from beside otherwise.
        let by_vector =
            addend.filter(|_| whole).map(|addend| addend[..(M - 1) * columns + width].as_ptr());
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
                if let Some(addend) = by_vector {
                    for (m, row) in acc.iter_mut().enumerate() {
                        for (n, value) in row.iter_mut().enumerate() {
                            let addend = addend.add(m * columns + n * BLOCK + lane);
                            *value = S::add(*value, S::load(addend));
                        }
                    }
                }
                for (m, row) in acc.into_iter().enumerate() {
                    for (n, value) in row.into_iter().enumerate() {
                        S::store(to.add(m * to_row + n * BLOCK + lane), value);
                    }
                }
            }
            lane += S::LANES;
        }
        if let (true, Out::Words(out, activation)) = (words, task.out) {
            // SAFETY: it is the tile's memory, and holds numbers.
            let tile = unsafe { &mut *beside.cast() };
            pack_tile::<C>(task.kernels, tile, Place::new::<C, M>(self, task, activation), out);
        } else if !whole {
            for row in 0..M {
                // SAFETY: as above.
                unsafe {
                    let from = std::slice::from_raw_parts_mut(beside.add(row * PANEL), width);
                    if let Some(addend) = addend {
                        let addend = &addend[row * columns..][..width];
                        from.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
                    }
                    std::ptr::copy_nonoverlapping(from.as_ptr(), kept.add(row * kept_row), width);
                }
            }
        }
    }
}

/// Where the words of a complete tile go.
#[derive(Clone, Copy)]
struct Place {
    /// Rows and columns of the tile, without what its panel has beyond the last.
    rows: usize,
    width: usize,
    /// Where its first word goes, and the distance of rows.
    first: usize,
    of_a_row: usize,
    activation: Activation,
}

impl Place {
    fn new<C: Compute, const M: usize>(
        tile: &Tile<'_, M>,
        task: &Task<'_>,
        activation: Activation,
    ) -> Self {
        let size = chunk::<C>(task.kernels);
        let chunk = tile.column / size * size;
        let of_a_row = words::<C>((task.columns - chunk).min(size));
        let before = words::<C>(chunk) * task.rows + words::<C>(tile.column - chunk);
        let first = before + tile.row * of_a_row;
        Self { rows: M, width: tile.width, first, of_a_row, activation }
    }
}

dispatch!(
    /// Puts a complete tile where another product reads it.
    ///
    /// One function for tiles of all heights and widths: in each of them, its code would outweigh
    /// that of the product.
    fn pack_tile<C: Compute> = packed_tile(
        tile: &mut [f32; TILE * PANEL],
        place: Place,
        out: &Shared<'_>
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn packed_tile<S: Simd, C: Compute>(
    tile: &mut [f32; TILE * PANEL],
    place: Place,
    out: &Shared<'_>,
) {
    let Place { rows, width, first, of_a_row, activation } = place;
    let (blocks, count) = (width.div_ceil(BLOCK), words::<C>(width));
    for (row, numbers) in tile.chunks_exact_mut(PANEL).take(rows).enumerate() {
        if C::PIECES > 1 {
            // SAFETY: the rectangle is this thread's.
            let to = unsafe { out.part(first + row * of_a_row, count) };
            for (from, to) in numbers.chunks_exact(2 * BLOCK).zip(to.chunks_exact_mut(group::<C>()))
            {
                for lane in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: vectors end within blocks, of which a group has two, and three of words.
                    unsafe {
                        let low = activation.apply::<S>(S::load(from.as_ptr().add(lane)));
                        let high = activation.apply::<S>(S::load(from.as_ptr().add(BLOCK + lane)));
                        let pieces = Split::pieces::<S>(low, high);
                        for (piece, words) in pieces.into_iter().enumerate() {
                            S::store(to.as_mut_ptr().add(piece * BLOCK + lane), words);
                        }
                    }
                }
            }
            continue;
        }
        // SAFETY: vectors end within the row's blocks.
        unsafe {
            let from = numbers.as_mut_ptr();
            for block in (0..blocks).step_by(C::PAIR) {
                for lane in (0..BLOCK).step_by(S::LANES) {
                    let at = from.add(block * BLOCK + lane);
                    let low = activation.apply::<S>(S::load(at));
                    let mut high = S::splat(0.0);
                    if C::PAIR == 2 && block + 1 < blocks {
                        high = activation.apply::<S>(S::load(at.add(BLOCK)));
                    }
                    // Words are never ahead of the numbers that they are made of.
                    let to = from.add(block / C::PAIR * BLOCK + lane);
                    S::store(to, C::join::<S>(low, high));
                }
            }
        }
        // SAFETY: the rectangle is this thread's.
        let to = unsafe { out.part(first + row * of_a_row, count) };
        to.copy_from_slice(&numbers[..count]);
    }
}

dispatch!(
    /// Applies an activation to each number.
    pub(super) fn activate = activate_each(activation: Activation, numbers: &mut [f32])
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn activate_each<S: Simd>(activation: Activation, numbers: &mut [f32]) {
    for numbers in numbers.chunks_mut(S::LANES) {
        let mut lanes = [0.0; BLOCK];
        lanes[..numbers.len()].copy_from_slice(numbers);
        // SAFETY: the caller's promise is the same, and a block is as long as a vector or longer.
        unsafe {
            let y = activation.apply::<S>(S::load(lanes.as_ptr()));
            S::store(lanes.as_mut_ptr(), y);
        }
        numbers.copy_from_slice(&lanes[..numbers.len()]);
    }
}

impl Activation {
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, x: S::Vector) -> S::Vector {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match self {
                Self::Gelu => gelu::value::<S>(x),
                Self::Relu => S::clamp(x, 0.0, f32::INFINITY),
            }
        }
    }
}
