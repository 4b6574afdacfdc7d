//! The kernel of products on tensor cores: each cube has a tile of the result, whose sums stay in registers; what it is
//! summed of comes through shared memory, a stage of which is read from the device's memory while the one before is
//! multiplied.
//!
//! Source: the blocking of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008, with two
//! stages, as CUTLASS describes it for GPUs ("Efficient GEMM in CUDA").

use burn_cubecl::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout, MmaDefinition};
use burn_cubecl::cubecl::{self, prelude::*};

use crate::cuts::{ALIGN, ProductTile, Runs};

/// Where the operands of a product lie, in elements.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Places {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) inner: u32,
    /// Matrices along the last of two axes.
    pub(super) matrices: u32,
    /// Matrices that the same numbers are added to, and from these to the next.
    pub(super) alike: u32,
    pub(super) bias: u32,
    pub(super) left: Place,
    pub(super) right: Place,
}

/// Where an operand lies, in elements.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    /// From a run of numbers that lie beside each other to the next.
    pub(super) stride: u32,
    /// From a matrix to the next along both axes.
    pub(super) outer: u32,
    pub(super) matrix: u32,
}

/// Where a tile of an operand begins, and where its matrix ends.
#[derive(CubeType, Clone, Copy)]
struct Corner {
    /// Of the matrix, in elements.
    begin: usize,
    /// The first run and the first of its elements.
    run: usize,
    element: usize,
    /// Behind the last of both.
    runs: usize,
    length: usize,
}

/// Where the matrix of this cube begins.
#[cube]
pub(super) fn begin(place: &Place, matrices: u32) -> usize {
    let (outer, matrix) = (CUBE_POS_Z / matrices, CUBE_POS_Z % matrices);
    outer as usize * place.outer as usize + matrix as usize * place.matrix as usize
}

/// Whether a thread's vector of this slot is part of the operand, and which run and element of the tile it has.
#[cube]
fn own_of<N: Size>(
    slot: usize,
    corner: &Corner,
    #[comptime] runs: Runs,
    #[comptime] tile: ProductTile,
) -> (bool, usize, usize) {
    let width = N::value().comptime();
    let each = comptime!(runs.length / width);
    let at = slot * comptime!(tile.threads()) + UNIT_POS as usize;
    let (run, element) = (at / each, at % each * width);
    let mut inside = true.runtime();
    if comptime!(!tile.whole) {
        inside = corner.run + run < corner.runs && corner.element + element < corner.length;
    }
    if comptime!(!(runs.count * runs.length / width).is_multiple_of(tile.threads())) {
        inside = inside && run < comptime!(runs.count);
    }
    (inside, run, element)
}

/// Reads a thread's part of a tile.
#[cube]
fn read<F: Float, N: Size>(
    x: &[Vector<F, N>],
    ahead: &mut Array<Vector<F, N>>,
    corner: &Corner,
    stride: u32,
    #[comptime] runs: Runs,
    #[comptime] tile: ProductTile,
) {
    let width = N::value().comptime();
    #[unroll]
    for slot in 0..comptime!(runs.slots(width, tile.threads())) {
        let (inside, run, element) = own_of::<N>(slot, corner, runs, tile);
        let at = corner.begin + (corner.run + run) * stride as usize + corner.element + element;
        // What is outside is not taken from there.
        ahead[slot] = x[select(inside, at / width, 0usize)];
    }
}

/// Puts a thread's part of a tile into a stage of shared memory, zeros for what is outside.
#[cube]
fn put<F: Float, N: Size>(
    ahead: &Array<Vector<F, N>>,
    stages: &mut Shared<[Vector<F, N>]>,
    stage: usize,
    corner: &Corner,
    #[comptime] runs: Runs,
    #[comptime] tile: ProductTile,
) {
    let width = N::value().comptime();
    let threads = comptime!(tile.threads());
    #[unroll]
    for slot in 0..comptime!(runs.slots(width, threads)) {
        let (inside, run, element) = own_of::<N>(slot, corner, runs, tile);
        let mut numbers = ahead[slot];
        if !inside {
            numbers = Vector::<F, N>::new(F::new(0.0));
        }
        let to =
            (stage * comptime!(runs.room()) + run * comptime!(runs.stride()) + element) / width;
        let mut own = true.runtime();
        if comptime!(!(runs.count * runs.length / width).is_multiple_of(threads)) {
            own = run < comptime!(runs.count);
        }
        if own {
            stages[to] = numbers;
        }
    }
}

/// A tile of the shape of an operand in a stage: `high` and `wide` are elements from the corner of the stage.
#[cube]
fn part<F: Float, N: Size>(
    stages: &Shared<[Vector<F, N>]>,
    stage: usize,
    high: usize,
    wide: usize,
    #[comptime] operand: usize,
    #[comptime] tile: ProductTile,
) -> Matrix<F> {
    let width = N::value().comptime();
    let (m, n, k) = comptime!((tile.shape.m, tile.shape.n, tile.shape.k));
    let turned = comptime!(tile.turned[operand]);
    let ident = comptime!(if operand == 0 { MatrixIdent::A } else { MatrixIdent::B });
    let layout = comptime!(if turned { MatrixLayout::ColMajor } else { MatrixLayout::RowMajor });
    let at = place_in(stage, high, wide, operand, tile);
    // SAFETY: loaded next.
    let mut matrix = unsafe { Matrix::<F>::uninitialized(ident, m, n, k, layout) };
    let stride = comptime!(tile.runs_of(operand).stride() as u32);
    cmma::load(&mut matrix, &stages[at / width..stages.len()], stride);
    matrix
}

/// Where an element lies in the stages of an operand.
#[cube]
fn place_in(
    stage: usize,
    high: usize,
    wide: usize,
    #[comptime] operand: usize,
    #[comptime] tile: ProductTile,
) -> usize {
    let runs = comptime!(tile.runs_of(operand));
    let stride = comptime!(runs.stride());
    let begin = stage * comptime!(runs.room());
    if comptime!(tile.turned[operand]) {
        begin + wide * stride + high
    } else {
        begin + high * stride + wide
    }
}

/// Four tiles of 8 by 8 of an operand in a stage, as `mma.m16n8k16` has them in registers: 16 by 16, down first. Thread
/// `8 · i + r` tells where run `r` of tile `i` begins; those that do not lie along the sum are turned on the way (PTX ISA,
/// "ldmatrix" and "Matrix Fragments for mma.m16n8k16").
#[cube]
fn registers_of<F: Float, N: Size>(
    multiplier: &MmaDefinition<F, F, f32>,
    stages: &Shared<[Vector<F, N>]>,
    stage: usize,
    high: usize,
    wide: usize,
    #[comptime] operand: usize,
    #[comptime] tile: ProductTile,
) -> Array<Vector<F, Const<2>>> {
    let width = N::value().comptime();
    let (of, run) = (UNIT_POS_X as usize / 8, UNIT_POS_X as usize % 8);
    let (mut high, mut wide) = (high + of % 2 * 8, wide + of / 2 * 8);
    let turned = comptime!(tile.turned[operand]);
    if turned {
        wide += run;
    } else {
        high += run;
    }
    let ident = comptime!(if operand == 0 { MatrixIdent::A } else { MatrixIdent::B });
    let at = place_in(stage, high, wide, operand, tile);
    let row = &stages[at / width..stages.len()];
    multiplier.load_matrix::<Vector<F, N>, Const<2>>(
        row,
        ident,
        4usize,
        comptime!((operand == 1) != turned),
    )
}

/// The corner of a plane's own part of a cube's tile.
#[cube]
fn own_corner(#[comptime] tile: ProductTile) -> (usize, usize) {
    let plane = UNIT_POS_Y as usize;
    let along = comptime!(tile.planes[1]);
    let [down, wide] = comptime!([tile.own[0] * tile.shape.m, tile.own[1] * tile.shape.n]);
    (plane / along * down, plane % along * wide)
}

/// Adds the product of a stage to a plane's sums.
#[cube]
fn add<F: Float, L: Size, R: Size>(
    left: &Shared<[Vector<F, L>]>,
    right: &Shared<[Vector<F, R>]>,
    totals: &Sequence<Sequence<Matrix<f32>>>,
    stage: usize,
    #[comptime] tile: ProductTile,
) {
    let (m, n, k) = comptime!((tile.shape.m, tile.shape.n, tile.shape.k));
    let [down, along] = comptime!(tile.own);
    let (first_row, first_column) = own_corner(tile);
    #[unroll]
    for step in 0..comptime!(tile.depth) {
        let mut rows = Sequence::<Matrix<F>>::new();
        #[unroll]
        for row in 0..down {
            rows.push(part::<F, L>(left, stage, first_row + row * m, step * k, 0usize, tile));
        }
        #[unroll]
        for column in 0..along {
            let columns =
                part::<F, R>(right, stage, step * k, first_column + column * n, 1usize, tile);
            #[unroll]
            for row in 0..down {
                let total = totals.index(column).index(row);
                cmma::execute(rows.index(row), &columns, total, total);
            }
        }
    }
}

/// The same with operands and sums in registers that are told one by one: of each tile of 16 by 16, two halves of 8 columns,
/// of which a thread has two numbers of one row and two of the eighth below.
#[cube]
fn add_by_hand<F: Float, L: Size, R: Size>(
    multiplier: &MmaDefinition<F, F, f32>,
    left: &Shared<[Vector<F, L>]>,
    right: &Shared<[Vector<F, R>]>,
    totals: &mut Array<Vector<f32, Const<2>>>,
    stage: usize,
    #[comptime] tile: ProductTile,
) {
    let [down, along] = comptime!(tile.own);
    let (first_row, first_column) = own_corner(tile);
    #[unroll]
    for step in 0..comptime!(tile.depth) {
        let mut rows = Sequence::<Array<Vector<F, Const<2>>>>::new();
        #[unroll]
        for row in 0..down {
            let (high, wide) = (first_row + row * 16, step * 16);
            rows.push(registers_of::<F, L>(multiplier, left, stage, high, wide, 0usize, tile));
        }
        #[unroll]
        for column in 0..along {
            let (high, wide) = (step * 16, first_column + column * 16);
            let both = registers_of::<F, R>(multiplier, right, stage, high, wide, 1usize, tile);
            #[unroll]
            for half in 0..2usize {
                let mut columns = Array::<Vector<F, Const<2>>>::new(2usize);
                columns[0] = both[comptime!(2 * half)];
                columns[1] = both[comptime!(2 * half + 1)];
                #[unroll]
                for row in 0..down {
                    let at = comptime!(((column * down + row) * 2 + half) * 2);
                    let mut total = Array::<Vector<f32, Const<2>>>::new(2usize);
                    total[0] = totals[at];
                    total[1] = totals[comptime!(at + 1)];
                    let sum = multiplier.execute(rows.index(row), &columns, &total);
                    totals[at] = sum[0];
                    totals[comptime!(at + 1)] = sum[1];
                }
            }
        }
    }
}

/// Puts a row of a plane's sums, 16 high, into its part of shared memory.
#[cube]
fn put_down_by_hand(
    totals: &Array<Vector<f32, Const<2>>>,
    sums: &mut Shared<[Vector<f32, Const<2>>]>,
    own_sums: usize,
    #[comptime] row: usize,
    #[comptime] tile: ProductTile,
) {
    let [down, along] = comptime!(tile.own);
    let stride = comptime!(tile.sums_stride());
    let lane = UNIT_POS_X as usize;
    let begin = own_sums + lane / 4 * stride + lane % 4 * 2;
    #[unroll]
    for column in 0..along {
        #[unroll]
        for half in 0..2usize {
            let at = comptime!(((column * down + row) * 2 + half) * 2);
            let to = begin + comptime!(column * 16 + half * 8);
            sums[to / 2] = totals[at];
            sums[(to + comptime!(8 * stride)) / 2] = totals[comptime!(at + 1)];
        }
    }
}

/// `W` sums that lie beside each other, from a multiple of `W` on.
#[cube]
fn summed<W: Size>(sums: &Shared<[Vector<f32, Const<2>>]>, at: usize) -> Vector<f32, W> {
    let width = W::value().comptime();
    let mut numbers = Vector::<f32, W>::new(0.0f32);
    if comptime!(width == 1) {
        let pair = sums[at / 2];
        let first = at % 2 == 0;
        numbers.insert(0usize, select(first, pair.extract(0usize), pair.extract(1usize)));
    } else {
        #[unroll]
        for of in 0..comptime!(width / 2) {
            let pair = sums[at / 2 + of];
            numbers.insert(comptime!(2 * of), pair.extract(0usize));
            numbers.insert(comptime!(2 * of + 1), pair.extract(1usize));
        }
    }
    numbers
}

/// `left · right`, and a number added to each column if so compiled; sums are f32. Along the launch's third axis are the
/// matrices, one behind the other in the result.
///
/// # Shapes
/// - left: `[rows, inner]` and right: `[inner, columns]`, each in runs of its rows or its columns, of matrices along two axes
/// - bias: `[matrices / alike, columns]`, not read unless so compiled
/// - out: `[matrices, rows, columns]`
#[cube(launch_unchecked)]
pub(super) fn product<F: Float, T: Float, L: Size, R: Size, W: Size>(
    left: &[Vector<F, L>],
    right: &[Vector<F, R>],
    bias: &[Vector<T, W>],
    out: &mut [Vector<T, W>],
    places: Places,
    #[comptime] tile: ProductTile,
    #[define(F)] _of: ElemType,
    #[define(T)] _to: ElemType,
) {
    let (m, n, k) = comptime!((tile.shape.m, tile.shape.n, tile.shape.k));
    let [down, along] = comptime!(tile.own);
    let (l, r, w) = (L::value().comptime(), R::value().comptime(), W::value().comptime());
    let (left_runs, right_runs) = comptime!((tile.runs_of(0), tile.runs_of(1)));
    let (rows, columns, inner) =
        (places.rows as usize, places.columns as usize, places.inner as usize);
    let first_row = CUBE_POS_Y as usize * comptime!(tile.rows());
    let first_column = CUBE_POS_X as usize * comptime!(tile.columns());

    let mut lefts = Shared::<[Vector<F, L>]>::new_aligned_slice(
        comptime!(2 * left_runs.room() / l),
        comptime!(ALIGN),
    );
    let mut rights = Shared::<[Vector<F, R>]>::new_aligned_slice(
        comptime!(2 * right_runs.room() / r),
        comptime!(ALIGN),
    );
    let mut sums = Shared::<[Vector<f32, Const<2>>]>::new_aligned_slice(
        comptime!(tile.sums_room() / 2),
        comptime!(ALIGN),
    );
    let mut left_ahead = Array::<Vector<F, L>>::new(comptime!(left_runs.slots(l, tile.threads())));
    let mut right_ahead =
        Array::<Vector<F, R>>::new(comptime!(right_runs.slots(r, tile.threads())));

    let multiplier = MmaDefinition::<F, F, f32>::new(16usize, 8usize, 16usize);
    let count = comptime!(if tile.by_hand { along * down * 4 } else { 1 });
    let mut by_hand = Array::<Vector<f32, Const<2>>>::new(count);
    #[unroll]
    for at in 0..count {
        by_hand[at] = Vector::<f32, Const<2>>::new(0.0f32);
    }
    let mut totals = Sequence::<Sequence<Matrix<f32>>>::new();
    #[unroll]
    for _ in 0..comptime!(if tile.by_hand { 0 } else { along }) {
        let mut column = Sequence::<Matrix<f32>>::new();
        #[unroll]
        for _ in 0..down {
            column.push(Matrix::<f32>::from_value(
                MatrixIdent::Accumulator,
                m,
                n,
                k,
                MatrixLayout::Undefined,
                0.0f32,
            ));
        }
        totals.push(column);
    }

    let (left_begin, right_begin) =
        (begin(&places.left, places.matrices), begin(&places.right, places.matrices));
    let steps = inner.div_ceil(comptime!(tile.inner()));
    // One turn more than there are steps: the first has nothing to multiply yet, the last nothing to read.
    for turn in 0..steps + 1 {
        let at = turn * comptime!(tile.inner());
        let left_corner = corner(left_begin, (first_row, at), (rows, inner), 0usize, tile);
        let right_corner = corner(right_begin, (at, first_column), (inner, columns), 1usize, tile);
        if turn < steps {
            read(left, &mut left_ahead, &left_corner, places.left.stride, left_runs, tile);
            read(right, &mut right_ahead, &right_corner, places.right.stride, right_runs, tile);
        }
        if turn > 0 {
            let stage = (turn + 1) % 2;
            if comptime!(tile.by_hand) {
                add_by_hand::<F, L, R>(&multiplier, &lefts, &rights, &mut by_hand, stage, tile);
            } else {
                add::<F, L, R>(&lefts, &rights, &totals, stage, tile);
            }
        }
        if turn < steps {
            put(&left_ahead, &mut lefts, turn % 2, &left_corner, left_runs, tile);
            put(&right_ahead, &mut rights, turn % 2, &right_corner, right_runs, tile);
        }
        sync_cube();
    }

    let (down_own, along_own) = own_corner(tile);
    let (own_row, own_column) = (first_row + down_own, first_column + along_own);
    let stride = comptime!(tile.sums_stride());
    let own_sums = UNIT_POS_Y as usize * comptime!(m * stride);
    let matrix = CUBE_POS_Z as usize * rows;
    let own_bias = (CUBE_POS_Z / places.alike) as usize * places.bias as usize;
    let end = sums.len();
    #[unroll]
    for row in 0..down {
        if comptime!(tile.by_hand) {
            put_down_by_hand(&by_hand, &mut sums, own_sums, row, tile);
        } else {
            #[unroll]
            for column in 0..along {
                cmma::store(
                    &mut sums[(own_sums + column * n) / 2..end],
                    totals.index(column).index(row),
                    comptime!(stride as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
        sync_cube();
        let vectors = comptime!(along * n / w);
        for at in range_stepped(UNIT_POS_X as usize, comptime!(m * vectors), comptime!(tile.lanes))
        {
            let (high, wide) = (at / vectors, at % vectors * w);
            let (to_row, to_column) = (own_row + row * m + high, own_column + wide);
            let mut inside = true.runtime();
            if comptime!(!tile.whole) {
                inside = to_row < rows && to_column < columns;
            }
            if inside {
                let mut numbers = summed::<W>(&sums, own_sums + high * stride + wide);
                if comptime!(tile.biased) {
                    numbers += Vector::<f32, W>::cast_from(bias[(own_bias + to_column) / w]);
                }
                out[((matrix + to_row) * columns + to_column) / w] =
                    Vector::<T, W>::cast_from(numbers);
            }
        }
        sync_cube();
    }
}

/// Where a tile of an operand begins whose corner is at a row and column, in a matrix of so many.
#[cube]
fn corner(
    begin: usize,
    at: (usize, usize),
    size: (usize, usize),
    #[comptime] operand: usize,
    #[comptime] tile: ProductTile,
) -> Corner {
    if comptime!(tile.turned[operand]) {
        Corner { begin, run: at.1, element: at.0, runs: size.1, length: size.0 }
    } else {
        Corner { begin, run: at.0, element: at.1, runs: size.0, length: size.1 }
    }
}
