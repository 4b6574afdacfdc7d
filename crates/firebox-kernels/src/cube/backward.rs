//! The backward pass of one layer through time: the gradients of the gates and of the initial state.
//!
//! Those of the weights and of the input follow from them by matmuls, which need no kernel.

use burn_cubecl::cubecl::{self, prelude::*};

use super::cell::{Columns, d_cell_after, d_sums};
use super::forward::{longest_of, own_lengths, time_of};
use crate::cuts::Tile;

/// The walk of the forward pass in reverse, in the same tiles. What passes from step to step are the
/// gradients of `h` and `c` (each touched by its own thread alone) and, from phase to phase of a
/// step, those of the gates, which all threads read.
///
/// # Shapes
/// - d_output, output: `[batch, time, directions * units]`
/// - d_last, state, d_state: `[2, directions, batch, units]`, hidden then cell
/// - gates, d_gates (before their functions): `[directions, batch, time, units]` of four
/// - cells, previous (the hidden state before each step): `[directions, batch, time, units]`
/// - weights: `[directions, units, units before]` of four
///
/// d_gates and previous are zero where a step is padding.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn backward<F: Float, N: Size>(
    d_output: &[F],
    d_last: &[f32],
    output: &[F],
    gates: &[Columns<F>],
    cells: &[f32],
    weights: &[Columns<F>],
    state: &[f32],
    lengths: &[i32],
    d_gates: &mut [Columns<F>],
    previous: &mut [F],
    d_state: &mut [f32],
    batch: u32,
    time: u32,
    #[comptime] tile: Tile,
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

    let mut dh = Shared::<[Vector<f32, N>]>::new_slice(comptime!(units * groups));
    let mut dc = Shared::<[Vector<f32, N>]>::new_slice(comptime!(units * groups));
    let mut d_now = Shared::<[Columns<f32>]>::new_slice(comptime!(units * groups * rows));
    let mut resident = Shared::<[Columns<F>]>::new_slice(comptime!(tile.resident_weights()));
    if comptime!(tile.resident) {
        for at in range_stepped(UNIT_POS as usize, comptime!(units * units), CUBE_DIM as usize) {
            resident[at] = weights[direction * (units * units) + at];
        }
    }
    for unit in range_stepped(first_unit, units, threads) {
        let mut dh_n = Vector::<f32, N>::new(0.0f32);
        let mut dc_n = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for r in 0..rows {
            if own + r < batch {
                let at = (direction * batch + own + r) * units + unit;
                dh_n.insert(r, d_last[at]);
                dc_n.insert(r, d_last[at + directions * batch * units]);
            }
        }
        dh[unit * groups + group] = dh_n;
        dc[unit * groups + group] = dc_n;
    }
    sync_cube();

    for back in 0..time {
        let n = time - 1 - back;
        for unit in range_stepped(first_unit, units, threads) {
            let dh_n = dh[unit * groups + group];
            let mut dc_next = dc[unit * groups + group];
            #[unroll]
            for r in 0..rows {
                let length_r = length[r] as usize;
                let sample = own + r;
                let shared = (unit * groups + group) * rows + r;
                if n < length_r {
                    let t = time_of(n, length_r);
                    let at = ((direction * batch + sample) * time + t) * units + unit;
                    let out = (sample * time + t) * (directions * units) + direction * units + unit;
                    let kept = Columns::<f32>::cast_from(gates[at]);
                    let at_0 = (direction * batch + sample) * units + unit;
                    let mut h_before = F::cast_from(state[at_0]);
                    let mut c_before = state[at_0 + directions * batch * units];
                    if n > 0 {
                        let t = time_of(n - 1, length_r);
                        let at = ((direction * batch + sample) * time + t) * units + unit;
                        c_before = cells[at];
                        h_before = output
                            [(sample * time + t) * (directions * units) + direction * units + unit];
                    }

                    let cell = cells[at];
                    let dh_r = dh_n.extract(r) + f32::cast_from(d_output[out]);
                    let dc_r = d_cell_after(kept, cell, dh_r, dc_next.extract(r), tile.gru);
                    let d = d_sums(kept, cell, c_before, dh_r, dc_r, tile.gru);
                    dc_next.insert(r, dc_r * kept.extract(1usize));
                    d_now[shared] = d;
                    d_gates[at] = Columns::<F>::cast_from(d);
                    previous[at] = h_before;
                } else {
                    d_now[shared] = Columns::<f32>::new(0.0f32);
                    if sample < batch {
                        let at = ((direction * batch + sample) * time + n) * units + unit;
                        d_gates[at] = Columns::<F>::cast_from(Columns::<f32>::new(0.0f32));
                        previous[at] = F::new(0.0f32);
                    }
                }
            }
            dc[unit * groups + group] = dc_next;
        }
        sync_cube();

        // Tiles whose samples have all ended skip the work, not the barrier.
        if n < longest {
            for unit in range_stepped(first_unit, units, threads) {
                let mut sums = Array::<Columns<f32>>::new(rows);
                #[unroll]
                for r in 0..rows {
                    sums[r] = Columns::<f32>::new(0.0f32);
                }
                for j in 0..units {
                    let w = if comptime!(tile.resident) {
                        resident[j * units + unit]
                    } else {
                        weights[(direction * units + j) * units + unit]
                    };
                    let w = Columns::<f32>::cast_from(w);
                    #[unroll]
                    for r in 0..rows {
                        sums[r] += w * d_now[(j * groups + group) * rows + r];
                    }
                }
                let mut dh_next = dh[unit * groups + group];
                #[unroll]
                for r in 0..rows {
                    if n < length[r] as usize {
                        let sum = sums[r];
                        dh_next.insert(
                            r,
                            (sum.extract(0usize) + sum.extract(1usize))
                                + (sum.extract(2usize) + sum.extract(3usize)),
                        );
                    }
                }
                dh[unit * groups + group] = dh_next;
            }
        }
        sync_cube();
    }

    for unit in range_stepped(first_unit, units, threads) {
        let dh_0 = dh[unit * groups + group];
        let dc_0 = dc[unit * groups + group];
        #[unroll]
        for r in 0..rows {
            if own + r < batch {
                let at = (direction * batch + own + r) * units + unit;
                d_state[at] = dh_0.extract(r);
                d_state[at + directions * batch * units] = dc_0.extract(r);
            }
        }
    }
}
