//! The products of attention: small matrices that lie in a core's cache.
//!
//! One operand is read number by number, in any order, and the other by whole vectors; both are made
//! of words (see `compute.rs`). Tiles of AMX read both by rows of words.

use super::super::amx::{self, Tiles};
use super::super::block::for_row_tiles;
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::simd::Simd;
use super::super::{BLOCK, CpuKernels};

/// Sizes of a product and the distances within its operands, all in numbers or words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: usize,
    /// Columns in blocks of 16.
    pub(super) blocks: usize,
    /// Words that are summed over.
    pub(super) count: usize,
    /// From one row of `a` to the next, and from one word of a row to the next.
    pub(super) a_row: usize,
    pub(super) a_step: usize,
    /// From one row of `b` to the next.
    pub(super) b_row: usize,
    /// From one row of the result to the next.
    pub(super) out_row: usize,
    /// Whether the result is added to what is there.
    pub(super) add: bool,
}

/// What multiplies: the vectors of this processor, or the tiles of this thread.
pub(super) struct Multiplier {
    pub(super) kernels: CpuKernels,
    tiles: Option<Tiles>,
}

impl Multiplier {
    pub(super) fn new<C: Compute>(kernels: CpuKernels) -> Self {
        Self { kernels, tiles: Tiles::of::<C>(kernels) }
    }

    /// Whether the left operands of all products must be rows of words, as many as
    /// [`words`](Self::words) says, with room for whole tiles of rows.
    pub(super) fn in_tiles(&self) -> bool {
        self.tiles.is_some()
    }

    /// Words of a sum over so many numbers: a whole number of groups, if there are tiles.
    pub(super) fn words<C: Compute>(&self, numbers: usize) -> usize {
        let words = C::words(numbers);
        if self.in_tiles() { words.next_multiple_of(amx::TILE) } else { words }
    }

    /// Words of rows for a sum over these rows, `[words, padded]` or, for tiles, turned: the steps from one
    /// number of a row to the next and from one word to the next, and where `word` begins.
    pub(super) fn across(&self, [words, padded]: [usize; 2], word: usize) -> ([usize; 2], usize) {
        if self.in_tiles() { ([words, 1], word) } else { ([1, padded], word * padded) }
    }

    /// `out[m][n] = Σ_k a[m · a_row + k · a_step] · b[k · b_row + n]`
    pub(super) fn product<C: Compute>(
        &self,
        product: Product,
        a: &[f32],
        b: &[f32],
        out: &mut [f32],
    ) {
        match &self.tiles {
            Some(tiles) => product_in_tiles(tiles, product, a, b, out),
            None => product_of_vectors::<C>(self.kernels, product, a, b, out),
        }
    }
}

/// The product of words in tiles.
fn product_in_tiles(tiles: &Tiles, product: Product, a: &[f32], b: &[f32], out: &mut [f32]) {
    let Product { rows, blocks, count, a_row, a_step, b_row, out_row, add } = product;
    if rows * blocks == 0 {
        return;
    }
    let columns = blocks * BLOCK;
    assert!(a_step == 1 && count > 0 && count.is_multiple_of(amx::TILE), "{product:?}");
    assert!(out.len() >= (rows - 1) * out_row + columns, "{product:?}: {} results", out.len());
    let last = (rows.next_multiple_of(amx::TILE) - 1) * a_row;
    assert!(a.len() >= last + count, "{product:?}: {} words on the left", a.len());
    assert!(b.len() >= (count - 1) * b_row + columns, "{product:?}: {} on the right", b.len());
    for first in (0..blocks).step_by(4) {
        let column = first * BLOCK;
        for row in (0..rows).step_by(amx::TILE) {
            let part = amx::Part {
                a: a[row * a_row..].as_ptr(),
                a_row,
                b: b[column..].as_ptr(),
                b_row,
                groups: count / amx::TILE,
                ahead: None,
            };
            let here = amx::TILE.min(rows - row);
            let to = (out[row * out_row + column..].as_mut_ptr(), out_row);
            // SAFETY: the assertions hold for these rows and columns, too.
            unsafe {
                let start = add.then_some(to).and_then(amx::kept);
                tiles.rows(here, (blocks - first).min(4), std::iter::once(part), to, start);
            }
        }
    }
}

dispatch!(
    /// [`Multiplier::product`] by vectors.
    fn product_of_vectors<C: Compute> = product_panels(product: Product, a: &[f32], b: &[f32], out: &mut [f32])
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn product_panels<S: Simd, C: Compute>(
    product: Product,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    let Product { rows, blocks, count, a_row, a_step, b_row, out_row, .. } = product;
    if rows * blocks == 0 {
        return;
    }
    let columns = blocks * BLOCK;
    assert!(out.len() >= (rows - 1) * out_row + columns, "{product:?}: {} results", out.len());
    if count > 0 {
        let last = (rows - 1) * a_row + (count - 1) * a_step;
        assert!(a.len() > last, "{product:?}: {} words on the left", a.len());
        assert!(b.len() >= (count - 1) * b_row + columns, "{product:?}: {} on the right", b.len());
    }
    let mut first = 0;
    while first < blocks {
        let at = first * BLOCK;
        let (b, out) = (b.as_ptr().wrapping_add(at), out[at..].as_mut_ptr());
        macro_rules! panel {
            ($blocks:literal) => {
                // SAFETY: the assertions above hold for these columns, too.
                unsafe { panel::<S, C, $blocks>(product, a.as_ptr(), b, out) }
            };
        }
        match blocks - first {
            _ if S::APART => panel!(1),
            1 => panel!(1),
            2 => panel!(2),
            3 => panel!(3),
            _ => panel!(4),
        }
        first += if S::APART { 1 } else { 4 };
    }
}

/// All rows of `N` blocks of columns.
///
/// # Safety
/// That of [`Simd`]; `a` is valid for all that the product reads, `b` and `out` from the panel's first
/// column on.
#[inline(always)]
unsafe fn panel<S: Simd, C: Compute, const N: usize>(
    product: Product,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
) {
    let mut done = 0;
    // A single block of columns does not keep the multipliers busy with six rows.
    if N == 1 && S::ROWS == 6 && !S::APART {
        while product.rows - done >= 8 {
            // SAFETY: eight rows are left, and the caller vouches for all of them.
            unsafe { tile::<S, C, 8, N>(product, a, b, out, done) };
            done += 8;
        }
    }
    // SAFETY: as above, for the rows that are left.
    unsafe {
        for_row_tiles!(S, product.rows - done, row, M =>
            tile::<S, C, M, N>(product, a, b, out, done + row));
    }
}

/// `M` rows from `row` on.
///
/// # Safety
/// As for [`panel`], which has those rows.
#[inline(always)]
unsafe fn tile<S: Simd, C: Compute, const M: usize, const N: usize>(
    product: Product,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    row: usize,
) {
    let Product { count, a_row, a_step, b_row, out_row, add, .. } = product;
    for sub in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: rows below `row + M`, words below `count` and vectors of the panel's blocks are
        // those that the caller vouches for.
        unsafe {
            let (a, b) = (a.add(row * a_row), b.add(sub));
            let out = out.add(row * out_row + sub);
            let mut acc = [[S::splat(0.0); N]; M];
            if add {
                for (m, acc) in acc.iter_mut().enumerate() {
                    for (n, acc) in acc.iter_mut().enumerate() {
                        *acc = S::load(out.add(m * out_row + n * BLOCK));
                    }
                }
            }
            for k in 0..count {
                let (a, b) = (a.add(k * a_step), b.add(k * b_row));
                let mut columns = [S::splat(0.0); N];
                for (n, column) in columns.iter_mut().enumerate() {
                    *column = S::load(b.add(n * BLOCK));
                }
                for (m, acc) in acc.iter_mut().enumerate() {
                    let x = S::splat(*a.add(m * a_row));
                    for (n, acc) in acc.iter_mut().enumerate() {
                        *acc = C::fma::<S>(x, columns[n], *acc);
                    }
                }
            }
            for (m, acc) in acc.iter().enumerate() {
                for (n, acc) in acc.iter().enumerate() {
                    S::store(out.add(m * out_row + n * BLOCK), *acc);
                }
            }
        }
    }
}
