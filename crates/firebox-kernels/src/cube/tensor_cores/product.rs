//! The product of a step: a tile of samples by the recurrent weights, or by their transpose.

use burn_cubecl::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn_cubecl::cubecl::{self, prelude::*};

use super::super::cell::Columns;
use crate::cuts::{ALIGN, CoreTile, Pass, Place};

/// The recurrent weights of a direction, `[padded units before, padded units]` of four, in shared
/// memory if they are to be kept there.
#[cube]
pub(super) fn in_shared<F: Float>(
    weights: &[Columns<F>],
    #[comptime] tile: CoreTile,
) -> Shared<[Columns<F>]> {
    let mut kept = Shared::<[Columns<F>]>::new_aligned_slice(
        comptime!(tile.shared_weights() / 4),
        comptime!(ALIGN),
    );
    if comptime!(tile.place == Place::Shared) {
        let padded = comptime!(tile.padded());
        let direction = CUBE_POS_Y as usize;
        let count = comptime!(padded * padded);
        for at in range_stepped(UNIT_POS as usize, count, CUBE_DIM as usize) {
            let to = at / padded * comptime!(tile.weights_stride() / 4) + at % padded;
            kept[to] = weights[direction * count + at];
        }
    }
    kept
}

/// The weights of a plane's own columns in its registers, if they are to be kept there: for each tile of
/// columns, those of each step of the sum.
#[cube]
pub(super) fn in_registers<F: Float>(
    weights: &[Columns<F>],
    #[comptime] tile: CoreTile,
    #[comptime] pass: Pass,
) -> Sequence<Sequence<Matrix<F>>> {
    let mut kept = Sequence::<Sequence<Matrix<F>>>::new();
    if comptime!(tile.place == Place::Registers) {
        #[unroll]
        for column in 0..comptime!(tile.own()) {
            let mut steps = Sequence::<Matrix<F>>::new();
            #[unroll]
            for step in 0..comptime!(tile.steps()) {
                let mut matrix = part::<F>(tile, pass);
                if has(column, tile) {
                    let direction = CUBE_POS_Y as usize;
                    load_part::<F>(&mut matrix, weights, direction, column, step, tile, pass);
                }
                steps.push(matrix);
            }
            kept.push(steps);
        }
    }
    kept
}

/// Where in its quarter a plane's tile of columns lies.
#[cube]
fn place_of(column: usize, #[comptime] tile: CoreTile) -> usize {
    UNIT_POS_Y as usize % comptime!(tile.quarter) * comptime!(tile.own()) + column
}

/// Whether a plane has this tile of columns: the last one of a quarter may have fewer than the others.
#[cube]
fn has(column: usize, #[comptime] tile: CoreTile) -> bool {
    if comptime!(tile.ragged()) {
        place_of(column, tile) < comptime!(tile.columns())
    } else {
        true.runtime()
    }
}

/// A tile of the weights, not yet read.
#[cube]
fn part<F: Float>(#[comptime] tile: CoreTile, #[comptime] pass: Pass) -> Matrix<F> {
    let layout = comptime!(match pass {
        Pass::Forward => MatrixLayout::RowMajor,
        Pass::Backward => MatrixLayout::ColMajor,
    });
    let (m, n, k) = comptime!((tile.shape.m, tile.shape.n, tile.shape.k));
    // SAFETY: every caller loads it next, or never uses it.
    unsafe { Matrix::<F>::uninitialized(MatrixIdent::B, m, n, k, layout) }
}

/// Reads the tile of a plane's `column` at a `step` of the sum, from the weights of a `direction`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a place in four dimensions")]
fn load_part<F: Float>(
    matrix: &mut Matrix<F>,
    weights: &[Columns<F>],
    direction: usize,
    column: usize,
    step: usize,
    #[comptime] tile: CoreTile,
    #[comptime] pass: Pass,
) {
    let padded = comptime!(tile.padded());
    let stride = comptime!(tile.weights_stride());
    let (n, k) = comptime!((tile.shape.n, tile.shape.k));
    let quarter = UNIT_POS_Y as usize / comptime!(tile.quarter);
    let start = direction * padded * stride;
    let column = place_of(column, tile) * n;
    let at = match comptime!(pass) {
        // Rows are the units before, columns the gates.
        Pass::Forward => start + step * k * stride + quarter * padded + column,
        // The transpose: a quarter of the gates is summed over, for the units before.
        Pass::Backward => start + column * stride + quarter * padded + step * k,
    };
    cmma::load(matrix, &weights[at / 4..weights.len()], comptime!(stride as u32));
}

/// One step's product of `rows`, `[samples, padded units]` or, on the way back, `[samples, padded
/// units]` of four. All threads of the cube must get here, and meet before and after.
///
/// # Sums
/// `[samples, 4 * padded units]`: each unit's four columns. On the way back four parts of a sum each,
/// beside each other for all units.
#[cube]
#[allow(clippy::too_many_arguments, reason = "the weights are in one of three places")]
pub(super) fn multiply<F: Float, R: CubePrimitive, S: CubePrimitive>(
    rows: &[R],
    global: &[Columns<F>],
    shared: &[Columns<F>],
    registers: &Sequence<Sequence<Matrix<F>>>,
    sums: &mut [S],
    #[comptime] vectors: [usize; 2],
    #[comptime] tile: CoreTile,
    #[comptime] pass: Pass,
) {
    let (m, n, k) = comptime!((tile.shape.m, tile.shape.n, tile.shape.k));
    let (tiles, own, steps) = comptime!((tile.tiles, tile.own(), tile.steps()));
    let rows_stride = comptime!(tile.rows_stride(pass));
    let sums_stride = comptime!(tile.sums_stride());
    let plane = UNIT_POS_Y as usize;
    let mut first = 0usize.runtime();
    if comptime!(pass == Pass::Backward) {
        first = plane / comptime!(tile.quarter) * comptime!(tile.padded());
    }

    let mut totals = Sequence::<Sequence<Matrix<f32>>>::new();
    #[unroll]
    for _ in 0..own {
        let mut rows = Sequence::<Matrix<f32>>::new();
        #[unroll]
        for _ in 0..tiles {
            rows.push(Matrix::<f32>::from_value(
                MatrixIdent::Accumulator,
                m,
                n,
                k,
                MatrixLayout::Undefined,
                0.0f32,
            ));
        }
        totals.push(rows);
    }
    #[unroll(comptime!(tile.place == Place::Registers))]
    for step in 0..steps {
        let mut samples = Sequence::<Matrix<F>>::new();
        #[unroll]
        for row in 0..tiles {
            // SAFETY: loaded next.
            let mut matrix = unsafe {
                Matrix::<F>::uninitialized(MatrixIdent::A, m, n, k, MatrixLayout::RowMajor)
            };
            let at = row * comptime!(m * rows_stride) + first + step * k;
            let from = &rows[at / comptime!(vectors[0])..rows.len()];
            cmma::load(&mut matrix, from, comptime!(rows_stride as u32));
            samples.push(matrix);
        }
        #[unroll]
        for column in 0..own {
            if has(column, tile) {
                if comptime!(tile.place == Place::Registers) {
                    #[unroll]
                    for row in 0..tiles {
                        let total = totals.index(column).index(row);
                        let weights = registers.index(column).index(step);
                        cmma::execute(samples.index(row), weights, total, total);
                    }
                } else {
                    let mut weights = part::<F>(tile, pass);
                    if comptime!(tile.place == Place::Shared) {
                        load_part::<F>(&mut weights, shared, 0, column, step, tile, pass);
                    } else {
                        let direction = CUBE_POS_Y as usize;
                        load_part::<F>(&mut weights, global, direction, column, step, tile, pass);
                    }
                    #[unroll]
                    for row in 0..tiles {
                        let total = totals.index(column).index(row);
                        cmma::execute(samples.index(row), &weights, total, total);
                    }
                }
            }
        }
    }
    let end = sums.len();
    let quarter = plane / comptime!(tile.quarter) * comptime!(tile.padded());
    #[unroll]
    for column in 0..own {
        if has(column, tile) {
            #[unroll]
            for row in 0..tiles {
                let at = row * comptime!(m * sums_stride) + quarter + place_of(column, tile) * n;
                cmma::store(
                    &mut sums[at / comptime!(vectors[1])..end],
                    totals.index(column).index(row),
                    comptime!(sums_stride as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }
}
