//! The recurrent weights in the order of the threads that multiply by them.

use burn_cubecl::cubecl::{self, prelude::*};

use super::product::Fragment;
use crate::cuts::{FragmentTile, Pass};

/// Threads of a cube.
pub(in crate::cube) const THREADS: usize = 256;

/// Puts each [`Fragment`] together, zeros for units that are added.
///
/// # Shapes
/// - weights: `[directions, units, 4 gates, units before]`
/// - out: `[directions, steps, tiles of rows, lanes]` of eight
#[cube(launch_unchecked)]
pub(in crate::cube) fn by_lanes<F: Float>(
    weights: &[F],
    out: &mut [Fragment<F>],
    count: u32,
    #[comptime] tile: FragmentTile,
    #[define(F)] _dtype: ElemType,
) {
    let units = comptime!(tile.units);
    let tiles = comptime!(tile.high_tiles());
    let at = ABSOLUTE_POS;
    if at < count as usize {
        let (lane, own) = (at % 32, at / 32);
        let (of, step) = (own % tiles, own / tiles);
        let direction = step / comptime!(tile.steps());
        let column = step % comptime!(tile.steps()) * 16 + lane % 4 * 2;
        let mut fragment = Fragment::<F>::new(F::new(0.0));
        #[unroll]
        for number in 0..8usize {
            let below = comptime!(number / 2 % 2);
            let column = column + comptime!(number % 2 + number / 4 * 8);
            // The row and the column of the weights, and whether both are of the layer's units.
            let (row, column) = match comptime!(tile.pass) {
                // Two of the four gates of eight units.
                Pass::Forward => ((of / 2 * 8 + lane / 4) * 4 + of % 2 * 2 + below, column),
                // The transpose: sixteen units before.
                Pass::Backward => (column, of * 16 + lane / 4 + comptime!(8 * below)),
            };
            if row < comptime!(4 * units) && column < units {
                let from = (direction * comptime!(4 * units) + row) * units + column;
                fragment.insert(number, weights[from]);
            }
        }
        out[at] = fragment;
    }
}
