//! What the kernels have in common: rows on their way into shared memory and back, products, and what a
//! team knows of its row.

use burn_cubecl::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn_cubecl::cubecl::{self, prelude::*};

use super::super::attend::place;
use super::super::cell::Columns;
use crate::cuts::{ALIGN, AttentionPlan, Strips};

/// Sums of a strip in the registers of tensor cores: its rows by tiles of columns.
pub(super) type Totals = Sequence<Matrix<f32>>;

/// Shared memory for rows of a head.
#[cube]
pub(super) fn tile<F: Float>(
    #[comptime] rows: usize,
    #[comptime] strips: Strips,
) -> Shared<[Columns<F>]> {
    Shared::<[Columns<F>]>::new_aligned_slice(
        comptime!(rows * strips.row_stride() / 4),
        comptime!(ALIGN),
    )
}

/// Shared memory for the scores of all strips and a block.
#[cube]
pub(super) fn scores(#[comptime] strips: Strips) -> Shared<[Columns<f32>]> {
    let count = comptime!(strips.rows() * strips.scores_stride() / 4);
    Shared::<[Columns<f32>]>::new_aligned_slice(count, comptime!(ALIGN))
}

/// Shared memory for what is multiplied in place of scores.
#[cube]
pub(super) fn shares<F: Float>(#[comptime] strips: Strips) -> Shared<[Columns<F>]> {
    let count = comptime!(strips.rows() * strips.shares_stride() / 4);
    Shared::<[Columns<F>]>::new_aligned_slice(count, comptime!(ALIGN))
}

/// Four numbers of a row, with zeros behind its end.
#[cube]
pub(super) fn four<F: Float, N: Size>(
    x: &[Vector<F, N>],
    begin: usize,
    vector: usize,
    #[comptime] size: usize,
) -> Columns<F> {
    let width = N::value().comptime();
    let mut numbers = Columns::<F>::new(F::new(0.0));
    #[unroll]
    for part in 0..comptime!(4 / width) {
        if vector * 4 + part * width < size {
            let read = x[(begin + vector * 4) / width + part];
            #[unroll]
            for lane in 0..width {
                numbers.insert(part * width + lane, read.extract(lane));
            }
        }
    }
    numbers
}

/// Writes four numbers of a row, as far as it goes.
#[cube]
fn put<F: Float, N: Size>(
    x: &mut [Vector<F, N>],
    begin: usize,
    vector: usize,
    numbers: Columns<f32>,
    #[comptime] size: usize,
) {
    let width = N::value().comptime();
    #[unroll]
    for part in 0..comptime!(4 / width) {
        if vector * 4 + part * width < size {
            let mut written = Vector::<F, N>::new(F::new(0.0));
            #[unroll]
            for lane in 0..width {
                written.insert(lane, F::cast_from(numbers.extract(part * width + lane)));
            }
            x[(begin + vector * 4) / width + part] = written;
        }
    }
}

/// Brings `count` rows of the head in hand from `first` on into shared memory, zeros from row `end` on. All
/// threads of the cube take part.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a place in four dimensions")]
pub(super) fn bring<F: Float, N: Size>(
    x: &[Vector<F, N>],
    to: &mut Shared<[Columns<F>]>,
    task: (usize, usize),
    first: u32,
    end: u32,
    rows: u32,
    heads: u32,
    #[comptime] part: usize,
    #[comptime] count: usize,
    #[comptime] plan: AttentionPlan,
    #[comptime] strips: Strips,
) {
    let vectors = comptime!(strips.padded() / 4);
    let stride = comptime!(strips.row_stride() / 4);
    for at in
        range_stepped(UNIT_POS as usize, comptime!(count * vectors), comptime!(strips.threads()))
    {
        let (row, vector) = (at / vectors, at % vectors);
        let mut numbers = Columns::<F>::new(F::new(0.0));
        if first as usize + row < end as usize {
            let begin = place(task.0, task.1, first as usize + row, rows, heads, part, plan);
            numbers = four(x, begin, vector, plan.size);
        }
        to[row * stride + vector] = numbers;
    }
}

/// The products of a plane's strip of `own` rows with all rows of a `block`, into its strip of `scores`.
#[cube]
pub(super) fn multiply_rows<F: Float>(
    own: &Shared<[Columns<F>]>,
    block: &Shared<[Columns<F>]>,
    scores: &mut Shared<[Columns<f32>]>,
    #[comptime] strips: Strips,
) {
    let (m, n, k) = comptime!((strips.shape.m, strips.shape.n, strips.shape.k));
    let stride = comptime!(strips.row_stride());
    let strip = UNIT_POS_Y as usize * m;
    let mut totals = zeros(comptime!(strips.block() / n), strips);
    for step in 0..comptime!(strips.padded() / k) {
        // SAFETY: both are loaded next.
        let mut rows =
            unsafe { Matrix::<F>::uninitialized(MatrixIdent::A, m, n, k, MatrixLayout::RowMajor) };
        let at = strip * stride + step * k;
        cmma::load(&mut rows, &own[at / 4..own.len()], comptime!(stride as u32));
        #[unroll]
        for column in 0..comptime!(strips.block() / n) {
            // SAFETY: as above.
            let mut others = unsafe {
                Matrix::<F>::uninitialized(MatrixIdent::B, m, n, k, MatrixLayout::ColMajor)
            };
            let at = column * n * stride + step * k;
            cmma::load(&mut others, &block[at / 4..block.len()], comptime!(stride as u32));
            let total = totals.index(column);
            cmma::execute(&rows, &others, total, total);
        }
    }
    put_down(&mut totals, scores, 0usize, strips);
}

/// Adds the product of a plane's strip of `shares` and a `block`.
#[cube]
pub(super) fn add_product<F: Float>(
    shares: &Shared<[Columns<F>]>,
    block: &Shared<[Columns<F>]>,
    totals: &Totals,
    #[comptime] strips: Strips,
) {
    let (m, n, k) = comptime!((strips.shape.m, strips.shape.n, strips.shape.k));
    let stride = comptime!(strips.row_stride());
    let shares_stride = comptime!(strips.shares_stride());
    let strip = UNIT_POS_Y as usize * m;
    for step in 0..comptime!(strips.block() / k) {
        // SAFETY: both are loaded next.
        let mut rows =
            unsafe { Matrix::<F>::uninitialized(MatrixIdent::A, m, n, k, MatrixLayout::RowMajor) };
        let at = strip * shares_stride + step * k;
        cmma::load(&mut rows, &shares[at / 4..shares.len()], comptime!(shares_stride as u32));
        #[unroll]
        for column in 0..comptime!(strips.columns()) {
            // SAFETY: as above.
            let mut others = unsafe {
                Matrix::<F>::uninitialized(MatrixIdent::B, m, n, k, MatrixLayout::RowMajor)
            };
            let at = step * k * stride + column * n;
            cmma::load(&mut others, &block[at / 4..block.len()], comptime!(stride as u32));
            let total = totals.index(column);
            cmma::execute(&rows, &others, total, total);
        }
    }
}

/// Sums of nothing yet.
#[cube]
pub(super) fn zeros(#[comptime] columns: usize, #[comptime] strips: Strips) -> Totals {
    let (m, n, k) = comptime!((strips.shape.m, strips.shape.n, strips.shape.k));
    let mut totals = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..columns {
        totals.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            m,
            n,
            k,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    totals
}

/// The plane's strip of scores holds as many tiles of columns as a block has: puts those of a `chunk` of
/// the sums there.
#[cube]
fn put_down(
    totals: &mut Totals,
    scores: &mut Shared<[Columns<f32>]>,
    #[comptime] chunk: usize,
    #[comptime] strips: Strips,
) {
    let (m, n) = comptime!((strips.shape.m, strips.shape.n));
    let stride = comptime!(strips.scores_stride());
    let each = comptime!(strips.block() / n);
    let strip = UNIT_POS_Y as usize * m;
    let end = scores.len();
    #[unroll]
    for column in 0..each {
        let index = comptime!(chunk * each + column);
        if comptime!(index < totals.len()) {
            let at = strip * stride + column * n;
            cmma::store(
                &mut scores[at / 4..end],
                totals.index(index),
                comptime!(stride as u32),
                MatrixLayout::RowMajor,
            );
        }
    }
}

/// Multiplies each row of the sums by the factor of its team, through the plane's strip of scores.
#[cube]
pub(super) fn scale(
    totals: &mut Totals,
    scores: &mut Shared<[Columns<f32>]>,
    factor: f32,
    #[comptime] strips: Strips,
) {
    let (m, n) = comptime!((strips.shape.m, strips.shape.n));
    let stride = comptime!(strips.scores_stride());
    let each = comptime!(strips.block() / n);
    let strip = UNIT_POS_Y as usize * m;
    #[unroll]
    for chunk in 0..comptime!(strips.columns().div_ceil(each)) {
        // Threads whose rows have grown come here by another way than the others of their plane.
        sync_plane();
        put_down(totals, scores, chunk, strips);
        sync_plane();
        #[unroll]
        for vector in 0..comptime!(strips.vectors()) {
            let at = own_vector(vector, stride, strips);
            scores[at] *= Columns::<f32>::new(factor);
        }
        sync_plane();
        #[unroll]
        for column in 0..each {
            let index = comptime!(chunk * each + column);
            if comptime!(index < strips.columns()) {
                let at = strip * stride + column * n;
                cmma::load_with_layout(
                    totals.index_mut(index),
                    &scores[at / 4..scores.len()],
                    comptime!(stride as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }
    sync_plane();
}

/// Writes a plane's strip of rows from row `strip` on, each times its factor; zeros where that is zero.
/// All threads of the plane must get here.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a place in four dimensions")]
pub(super) fn write_rows<F: Float, N: Size>(
    totals: &mut Totals,
    scores: &mut Shared<[Columns<f32>]>,
    factors: &mut Shared<[f32]>,
    factor: f32,
    to: &mut [Vector<F, N>],
    task: (usize, usize),
    strip: u32,
    rows: u32,
    heads: u32,
    #[comptime] part: usize,
    #[comptime] plan: AttentionPlan,
    #[comptime] strips: Strips,
) {
    let (m, block) = comptime!((strips.shape.m, strips.block()));
    let stride = comptime!(strips.scores_stride() / 4);
    let own = UNIT_POS_Y as usize * m;
    if UNIT_POS_X as usize % comptime!(strips.team()) == 0 {
        factors[own + UNIT_POS_X as usize / comptime!(strips.team())] = factor;
    }
    #[unroll]
    for chunk in 0..comptime!(plan.size.div_ceil(block)) {
        // What was there has been read.
        sync_plane();
        put_down(totals, scores, chunk, strips);
        sync_plane();
        let vectors = comptime!((plan.size - chunk * block).min(block).div_ceil(4));
        for at in
            range_stepped(UNIT_POS_X as usize, comptime!(m * vectors), comptime!(strips.lanes))
        {
            let (row, vector) = (at / vectors, at % vectors);
            let to_row = strip as usize + row;
            if to_row < rows as usize {
                let factor = factors[own + row];
                let mut numbers =
                    scores[(own + row) * stride + vector] * Columns::<f32>::new(factor);
                // Not "unless it differs from zero", which SPIR-V takes for false of NaN.
                if factor == 0.0f32 {
                    numbers = Columns::<f32>::new(0.0f32);
                }
                let begin = place(task.0, task.1, to_row, rows, heads, part, plan);
                put(to, begin, vector + comptime!(chunk * block / 4), numbers, plan.size);
            }
        }
    }
    sync_plane();
}

/// Where a vector of a thread's own row lies in rows of `stride` numbers.
#[cube]
pub(super) fn own_vector(
    vector: usize,
    #[comptime] stride: usize,
    #[comptime] strips: Strips,
) -> usize {
    let team = comptime!(strips.team());
    let lane = UNIT_POS_X as usize;
    let row = UNIT_POS_Y as usize * comptime!(strips.shape.m) + lane / team;
    row * comptime!(stride / 4) + lane % team * comptime!(strips.vectors()) + vector
}

/// The first row of a block that a thread has of its row of scores.
#[cube]
pub(super) fn own_begin(#[comptime] strips: Strips) -> u32 {
    UNIT_POS_X % comptime!(strips.team() as u32) * comptime!(4 * strips.vectors() as u32)
}

/// A thread's part of its row of scores.
#[cube]
pub(super) fn own_scores(
    scores: &Shared<[Columns<f32>]>,
    #[comptime] strips: Strips,
) -> Array<Columns<f32>> {
    let mut numbers = Array::<Columns<f32>>::new(comptime!(strips.vectors()));
    #[unroll]
    for vector in 0..comptime!(strips.vectors()) {
        numbers[vector] = scores[own_vector(vector, comptime!(strips.scores_stride()), strips)];
    }
    numbers
}

/// The largest number of a team. All threads of the plane must get here; `scratch` has a number for each
/// thread of the cube. Through shared memory: not every device with tensor cores has operations of planes.
#[cube]
pub(super) fn largest_of_team(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] strips: Strips,
) -> f32 {
    let mut largest = value;
    if comptime!(strips.team() > 1) {
        let own = UNIT_POS as usize;
        scratch[own] = value;
        sync_plane();
        #[unroll]
        for of in 0..comptime!(strips.team()) {
            largest = largest.max(scratch[own - own % comptime!(strips.team()) + of]);
        }
        sync_plane();
    }
    largest
}

/// The sum over a team; otherwise as `largest_of_team`.
#[cube]
pub(super) fn sum_of_team(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] strips: Strips,
) -> f32 {
    let mut sum = value;
    if comptime!(strips.team() > 1) {
        let own = UNIT_POS as usize;
        scratch[own] = value;
        sync_plane();
        sum = 0.0f32.runtime();
        #[unroll]
        for of in 0..comptime!(strips.team()) {
            sum += scratch[own - own % comptime!(strips.team()) + of];
        }
        sync_plane();
    }
    sum
}
