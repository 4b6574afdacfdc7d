//! Products of bf16, or of f32 in pieces, in the tiles of Intel's AMX: sixteen rows of a left operand by up to
//! four blocks of columns, 32 numbers of the inner size at a time.
//!
//! The packed operands of all kernels are made of words of two bf16, sixteen columns side by side, which is how
//! the tiles want them. Rust has no stable names for these instructions, so they are written in assembly.
//! Sums are f32, rounded to nearest even; denormals count as zero (Intel's manual, `TDPBF16PS`).

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod other;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use linux as system;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use other as system;

use super::compute::Compute;
use super::{BLOCK, CpuKernels, GATES};
pub(super) use system::{Tiles, assume, available};

/// Rows of a tile, and words of each.
pub(super) const TILE: usize = 16;

/// A part of a product: sixteen rows of `groups` times sixteen words, and as many rows of the packed operand. Of
/// numbers in three pieces a group is the sixteen words of each piece, the largest first.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    expect(dead_code, reason = "nothing reads it where there are no tiles")
)]
pub(super) struct Part {
    pub(super) a: *const f32,
    /// Numbers from one row of `a` to the next.
    pub(super) a_row: usize,
    pub(super) b: *const f32,
    /// Numbers from one row of `b` to the next.
    pub(super) b_row: usize,
    pub(super) groups: usize,
    /// What is read after this part, if it is to be brought nearer meanwhile: [`ahead`] numbers.
    pub(super) ahead: Option<*const f32>,
}

/// Numbers that a part of so many groups brings nearer: over sixteen times sixteen rows, what a panel of four blocks
/// has.
pub(super) fn ahead<C: Compute>(groups: usize) -> usize {
    groups * BLOCK * if C::PIECES > 1 { PIECES_LINES } else { PAIRS_LINES }
}

/// Lines that each group brings nearer: with four blocks, of a product of pairs one, of two of pieces one.
const PAIRS_LINES: usize = 4;
const PIECES_LINES: usize = 12;

impl Tiles {
    /// Groups whose rows of four blocks of columns the first cache holds, of words of `C`.
    pub(super) const fn in_cache<C: Compute>() -> usize {
        if C::PIECES > 1 { 2 } else { 8 }
    }

    /// The tiles of this thread, where these kernels multiply such operands with them.
    pub(super) fn of<C: Compute>(kernels: CpuKernels) -> Option<Self> {
        match kernels {
            CpuKernels::Amx if C::PAIR == 2 => Self::set_up(C::PIECES),
            _ => None,
        }
    }

    /// [`product`](Self::product) of up to sixteen rows: what `out` has behind them stays as it is, and
    /// a row's sums are taken in one order wherever it lies in a tile.
    ///
    /// # Safety
    /// As for `product`, but that `out` and `start` are valid for `rows` rows alone.
    pub(super) unsafe fn rows(
        &self,
        rows: usize,
        blocks: usize,
        parts: impl Iterator<Item = Part>,
        (out, out_row): (*mut f32, usize),
        start: Option<(*const f32, usize)>,
    ) {
        if rows == TILE {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.product(blocks, parts, (out, out_row), start) };
        }
        let width = blocks * BLOCK;
        let mut beside = [0.0; TILE * GATES];
        let beside = beside.as_mut_ptr();
        // SAFETY: the caller's promise, and sixteen rows of up to four blocks beside.
        unsafe {
            let copy = std::ptr::copy_nonoverlapping::<f32>;
            if let Some((start, row)) = start {
                (0..rows).for_each(|m| copy(start.add(m * row), beside.add(m * width), width));
            }
            let start = start.map(|_| (beside.cast_const(), width));
            self.product(blocks, parts, (beside, width), start);
            (0..rows).for_each(|m| copy(beside.add(m * width), out.add(m * out_row), width));
        }
    }
}

/// What sums start from that go on in their place.
pub(super) fn kept((out, row): (*mut f32, usize)) -> Option<(*const f32, usize)> {
    Some((out.cast_const(), row))
}

/// Words of a row that are multiplied in tiles; the rest is left to vectors.
pub(super) fn in_tiles(words: usize) -> usize {
    words / TILE * TILE
}
