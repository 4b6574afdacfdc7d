//! The kernel of products of f32 by single threads: each cube has a tile of the result and each thread eight rows by eight
//! columns of it, whose sums stay in registers; what they are summed of comes through shared memory, a stage of which is
//! read from the device's memory while the one before is multiplied.
//!
//! Source: as for [`tiled`](super::tiled); Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra", 2008.

use burn_cubecl::cubecl::{self, prelude::*};

use super::tiled::{Place, Places, begin};
use crate::cuts::{ALIGN, ExactTile};

type Four = Vector<f32, Const<4>>;

/// What a thread brings of the operands: blocks of four by four.
type Ahead = Array<Four>;

/// Where a block of an operand lies in the tile.
#[derive(CubeType, Clone, Copy)]
struct Block {
    /// The first number of the sum, and of what is across it.
    deep: usize,
    outer: usize,
}

/// The block of an operand with this number. Neighbours among the threads read what lies beside each other.
#[cube]
fn block_of(number: usize, #[comptime] operand: usize, #[comptime] tile: ExactTile) -> Block {
    if comptime!(tile.along_sum(operand)) {
        let deep = comptime!(tile.inner() / 4);
        Block { deep: number % deep * 4, outer: number / deep * 4 }
    } else {
        let outer = comptime!(tile.outer(operand) / 4);
        Block { deep: number / outer * 4, outer: number % outer * 4 }
    }
}

/// Reads a block: four vectors along the runs that the operand lies in. `deep` and `outer` are where the tile begins, `size`
/// where the matrix ends in both.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a place in two dimensions, and its end")]
fn read(
    x: &[Four],
    ahead: &mut Ahead,
    number: usize,
    begin: usize,
    place: &Place,
    deep: usize,
    outer: usize,
    size: (usize, usize),
    #[comptime] slot: usize,
    #[comptime] operand: usize,
    #[comptime] tile: ExactTile,
) {
    let block = block_of(number, operand, tile);
    let (deep, outer) = (deep + block.deep, outer + block.outer);
    #[unroll]
    for of in 0..4usize {
        let (mut run, mut element, mut runs, mut length) = (deep + of, outer, size.0, size.1);
        if comptime!(tile.along_sum(operand)) {
            run = outer + of;
            element = deep;
            runs = size.1;
            length = size.0;
        }
        let at = (begin + run * place.stride as usize + element) / 4;
        let mut inside = true.runtime();
        if comptime!(!tile.whole) {
            inside = run < runs && element < length;
        }
        let mut numbers = Four::new(0.0f32);
        if inside {
            numbers = x[at];
        }
        ahead[comptime!(4 * slot + of)] = numbers;
    }
}

/// Puts a block into a stage of shared memory, where operands lie across the sum.
#[cube]
fn put(
    ahead: &Ahead,
    stages: &mut Shared<[Four]>,
    stage: usize,
    number: usize,
    #[comptime] slot: usize,
    #[comptime] operand: usize,
    #[comptime] tile: ExactTile,
) {
    let block = block_of(number, operand, tile);
    let stride = comptime!(tile.stride(operand));
    let to = stage * comptime!(tile.room(operand)) + block.deep * stride + block.outer / 4;
    #[unroll]
    for of in 0..4usize {
        let mut numbers = ahead[comptime!(4 * slot + of)];
        if comptime!(tile.along_sum(operand)) {
            #[unroll]
            for row in 0..4usize {
                let number = ahead[comptime!(4 * slot + row)].extract(of);
                numbers.insert(row, number);
            }
        }
        stages[to + of * stride] = numbers;
    }
}

/// `left · right`. Along the launch's third axis are the matrices, one behind the other in the result.
///
/// # Shapes
/// - left: `[rows, inner]` and right: `[inner, columns]`, each in runs of its rows or its columns, of matrices along two axes
/// - out: `[matrices, rows, columns]`
#[cube(launch_unchecked)]
pub(super) fn product<W: Size>(
    left: &[Four],
    right: &[Four],
    out: &mut [Vector<f32, W>],
    places: Places,
    #[comptime] tile: ExactTile,
) {
    let w = W::value().comptime();
    let (rows, columns, inner) =
        (places.rows as usize, places.columns as usize, places.inner as usize);
    let first_row = CUBE_POS_Y as usize * comptime!(tile.rows());
    let first_column = CUBE_POS_X as usize * comptime!(tile.columns());
    let thread = UNIT_POS as usize;
    let [lanes_down, lanes_along] = comptime!(ExactTile::LANES);
    let [plane_down, plane_along] = comptime!(ExactTile::PLANE);
    let lanes = comptime!(lanes_down * lanes_along);
    let (plane, lane) = (thread / lanes, thread % lanes);
    let planes_along = comptime!(tile.planes[1]);
    let down = plane / planes_along * plane_down + lane / lanes_along * 4;
    let along = plane % planes_along * plane_along + lane % lanes_along * 4;

    let mut lefts =
        Shared::<[Four]>::new_aligned_slice(comptime!(2 * tile.room(0)), comptime!(ALIGN));
    let mut rights =
        Shared::<[Four]>::new_aligned_slice(comptime!(2 * tile.room(1)), comptime!(ALIGN));
    let mut ahead = Ahead::new(comptime!(4 * tile.slots()));
    // Of each row, the sums of four columns and of four more, half a plane's tile behind.
    let mut sums = Array::<Four>::new(16usize);
    #[unroll]
    for at in 0..16usize {
        sums[at] = Four::new(0.0f32);
    }

    let (left_begin, right_begin) =
        (begin(&places.left, places.matrices), begin(&places.right, places.matrices));
    let steps = inner.div_ceil(comptime!(tile.inner()));
    // One turn more than there are steps: the first has nothing to multiply yet, the last nothing to read.
    for turn in 0..steps + 1 {
        let deep = turn * comptime!(tile.inner());
        if turn < steps {
            #[unroll]
            for slot in 0..comptime!(tile.slots()) {
                let number = slot * comptime!(tile.threads()) + thread;
                if number < comptime!(tile.blocks(0)) {
                    let size = (inner, rows);
                    read(
                        left,
                        &mut ahead,
                        number,
                        left_begin,
                        &places.left,
                        deep,
                        first_row,
                        size,
                        slot,
                        0usize,
                        tile,
                    );
                } else {
                    let (number, size) = (number - comptime!(tile.blocks(0)), (inner, columns));
                    read(
                        right,
                        &mut ahead,
                        number,
                        right_begin,
                        &places.right,
                        deep,
                        first_column,
                        size,
                        slot,
                        1usize,
                        tile,
                    );
                }
            }
        }
        if turn > 0 {
            let stage = (turn + 1) % 2;
            #[unroll]
            for step in 0..comptime!(tile.inner()) {
                let from =
                    stage * comptime!(tile.room(0)) + comptime!(step * tile.stride(0)) + down / 4;
                let high = lefts[from];
                let low = lefts[from + comptime!(plane_down / 2 / 4)];
                let from =
                    stage * comptime!(tile.room(1)) + comptime!(step * tile.stride(1)) + along / 4;
                let near = rights[from];
                let far = rights[from + comptime!(plane_along / 2 / 4)];
                #[unroll]
                for row in 0..4usize {
                    let number = Four::new(high.extract(row));
                    sums[comptime!(2 * row)] = fma(number, near, sums[comptime!(2 * row)]);
                    sums[comptime!(2 * row + 1)] = fma(number, far, sums[comptime!(2 * row + 1)]);
                    let number = Four::new(low.extract(row));
                    let at = comptime!(8 + 2 * row);
                    sums[at] = fma(number, near, sums[at]);
                    sums[comptime!(at + 1)] = fma(number, far, sums[comptime!(at + 1)]);
                }
            }
        }
        if turn < steps {
            #[unroll]
            for slot in 0..comptime!(tile.slots()) {
                let number = slot * comptime!(tile.threads()) + thread;
                if number < comptime!(tile.blocks(0)) {
                    put(&ahead, &mut lefts, turn % 2, number, slot, 0usize, tile);
                } else {
                    let number = number - comptime!(tile.blocks(0));
                    put(&ahead, &mut rights, turn % 2, number, slot, 1usize, tile);
                }
            }
        }
        sync_cube();
    }

    let matrix = CUBE_POS_Z as usize * rows;
    #[unroll]
    for at in 0..16usize {
        let (of, far) = comptime!((at / 2, at % 2));
        let row = first_row + down + comptime!(of / 4 * (plane_down / 2) + of % 4);
        let column = first_column + along + comptime!(far * (plane_along / 2));
        #[unroll]
        for part in 0..comptime!(4 / w) {
            let column = column + comptime!(part * w);
            let mut inside = true.runtime();
            if comptime!(!tile.whole) {
                inside = row < rows && column < columns;
            }
            if inside {
                let mut numbers = Vector::<f32, W>::new(0.0f32);
                #[unroll]
                for number in 0..w {
                    numbers.insert(number, sums[at].extract(comptime!(part * w + number)));
                }
                out[((matrix + row) * columns + column) / w] = numbers;
            }
        }
    }
}
