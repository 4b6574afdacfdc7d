//! The forward pass of one layer: all steps of all directions in one launch.

use burn_cubecl::cubecl::{self, prelude::*};

use super::cell::{Columns, cell_after, hidden_after, kept};
use crate::cuts::Tile;

/// Where step `n` of a walk lies in time. The reverse direction starts at the last valid step.
/// Meant for `n < length` alone.
#[cube]
pub(super) fn time_of(n: usize, length: usize) -> usize {
    let mut t = n;
    if CUBE_POS_Y == 1 {
        t = length - 1 - n;
    }
    t
}

/// The longest length among the samples of a tile, and none beyond the batch.
#[cube]
pub(super) fn longest_of(
    lengths: &[i32],
    first: usize,
    batch: usize,
    #[comptime] samples: usize,
) -> usize {
    let mut longest = 0u32.runtime();
    for row in 0..samples {
        if first + row < batch {
            let length = u32::cast_from(lengths[first + row]);
            if length > longest {
                longest = length;
            }
        }
    }
    longest as usize
}

/// The lengths of a thread's own samples; zero for those beyond the batch.
#[cube]
pub(super) fn own_lengths(
    lengths: &[i32],
    first: usize,
    batch: usize,
    #[comptime] rows: usize,
) -> Array<u32> {
    let mut own = Array::<u32>::new(rows);
    #[unroll]
    for r in 0..rows {
        own[r] = 0u32.runtime();
        if first + r < batch {
            own[r] = u32::cast_from(lengths[first + r]);
        }
    }
    own
}

/// Each cube walks a tile of samples in one direction (`CUBE_POS_Y`) through all steps. A thread has
/// `N` samples and every `CUBE_DIM_X`-th unit, all four columns of each; the state of the tile is in
/// shared memory, in f32. `h` has two copies, so that one barrier a step is enough.
///
/// # Shapes
/// - gates_x: `[directions, batch, time, units]` of four, bias included
/// - weights: `[directions, units before, units]` of four
/// - state, last: `[2, directions, batch, units]`, hidden then cell
/// - output: `[batch, time, directions * units]`
/// - gates (after their functions): as gates_x; cells: `[directions, batch, time, units]`; both are
///   written only where a step is valid, and not at all unless `keep`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn forward<F: Float, N: Size>(
    gates_x: &[Columns<F>],
    weights: &[Columns<F>],
    state: &[f32],
    lengths: &[i32],
    output: &mut [F],
    last: &mut [f32],
    gates: &mut [Columns<F>],
    cells: &mut [f32],
    batch: u32,
    time: u32,
    #[comptime] tile: Tile,
    #[comptime] keep: bool,
    #[define(F)] _dtype: ElemType,
) {
    let (batch, time) = (batch as usize, time as usize);
    let units = comptime!(tile.units);
    let groups = comptime!(tile.groups);
    let rows = comptime!(tile.rows);
    let directions = comptime!(tile.directions);
    let direction = CUBE_POS_Y as usize;
    let group = UNIT_POS_Y as usize;
    let first_unit = UNIT_POS_X as usize;
    let threads = CUBE_DIM_X as usize;
    let first = CUBE_POS_X as usize * (groups * rows);
    let own = first + group * rows;
    let length = own_lengths(lengths, own, batch, rows);
    let longest = longest_of(lengths, first, batch, comptime!(groups * rows));

    let mut h = Shared::<[Vector<f32, N>]>::new_slice(comptime!(2 * units * groups));
    let mut c = Shared::<[Vector<f32, N>]>::new_slice(comptime!(units * groups));
    let mut resident = Shared::<[Columns<F>]>::new_slice(comptime!(tile.resident_weights()));
    if comptime!(tile.resident) {
        for at in range_stepped(UNIT_POS as usize, comptime!(units * units), CUBE_DIM as usize) {
            resident[at] = weights[direction * (units * units) + at];
        }
    }
    for unit in range_stepped(first_unit, units, threads) {
        let mut h_0 = Vector::<f32, N>::new(0.0f32);
        let mut c_0 = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for r in 0..rows {
            if own + r < batch {
                let at = (direction * batch + own + r) * units + unit;
                h_0.insert(r, state[at]);
                c_0.insert(r, state[at + directions * batch * units]);
            }
        }
        h[unit * groups + group] = h_0;
        c[unit * groups + group] = c_0;
    }
    sync_cube();

    for n in 0..time {
        let read = n % 2 * (units * groups);
        let write = (n + 1) % 2 * (units * groups);
        for unit in range_stepped(first_unit, units, threads) {
            // Tiles whose samples have all ended skip the work, not the barrier.
            if n < longest {
                let mut sums = Array::<Columns<f32>>::new(rows);
                #[unroll]
                for r in 0..rows {
                    sums[r] = Columns::<f32>::new(0.0f32);
                }
                for k in 0..units {
                    let w = if comptime!(tile.resident) {
                        resident[k * units + unit]
                    } else {
                        weights[(direction * units + k) * units + unit]
                    };
                    let w = Columns::<f32>::cast_from(w);
                    let h_k = h[read + k * groups + group];
                    #[unroll]
                    for r in 0..rows {
                        sums[r] += w * Columns::<f32>::new(h_k.extract(r));
                    }
                }

                let mut h_next = h[read + unit * groups + group];
                let mut c_next = c[unit * groups + group];
                #[unroll]
                for r in 0..rows {
                    let length_r = length[r] as usize;
                    if n < length_r {
                        let sample = own + r;
                        let t = time_of(n, length_r);
                        let at = ((direction * batch + sample) * time + t) * units + unit;
                        let sum = sums[r] + Columns::<f32>::cast_from(gates_x[at]);
                        let after = kept(sum, tile.gru);
                        let c_r = cell_after(after, c_next.extract(r), tile.gru);
                        let h_r = hidden_after(after, c_r, tile.gru);
                        c_next.insert(r, c_r);
                        h_next.insert(r, h_r);
                        output[(sample * time + t) * (directions * units)
                            + direction * units
                            + unit] = F::cast_from(h_r);
                        if comptime!(keep) {
                            gates[at] = Columns::<F>::cast_from(after);
                            cells[at] = c_r;
                        }
                    }
                }
                h[write + unit * groups + group] = h_next;
                c[unit * groups + group] = c_next;
            }
            #[unroll]
            for r in 0..rows {
                if own + r < batch && n >= length[r] as usize {
                    output[((own + r) * time + n) * (directions * units)
                        + direction * units
                        + unit] = F::new(0.0f32);
                }
            }
        }
        sync_cube();
    }

    let read = longest % 2 * (units * groups);
    for unit in range_stepped(first_unit, units, threads) {
        let h_n = h[read + unit * groups + group];
        let c_n = c[unit * groups + group];
        #[unroll]
        for r in 0..rows {
            if own + r < batch {
                let at = (direction * batch + own + r) * units + unit;
                last[at] = h_n.extract(r);
                last[at + directions * batch * units] = c_n.extract(r);
            }
        }
    }
}
