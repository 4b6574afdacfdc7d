//! The backward pass of one layer through time on tensor cores.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::cell::{Columns, d_cell_after, d_sums};
use super::super::forward::{longest_of, time_of};
use super::forward::{read_ahead, shared_lengths};
use super::product::{in_registers, in_shared, multiply};
use crate::cuts::{ALIGN, CoreTile, Pass};

/// What a step reads of a sample and a unit.
#[derive(CubeType, Clone, Copy)]
struct Read<F: Float> {
    kept: Columns<F>,
    cell: f32,
    c_before: f32,
    h_before: F,
    d_output: F,
}

/// The walk of the forward pass in reverse, in the same tiles. What passes from step to step is the
/// gradient of `c`, in shared memory, and that of `h`, which is the product of the step after: at the last
/// step of a sample, that of its last state.
///
/// # Shapes
/// - d_output, output: `[batch, time, directions * units]`
/// - d_last, state, d_state: `[2, directions, batch, units]`, hidden then cell
/// - gates, d_gates (before their functions): `[directions, batch, time, units]` of four
/// - cells, previous (the hidden state before each step): `[directions, batch, time, units]`
/// - weights: `[directions, padded units before, padded units]` of four
///
/// d_gates and previous are zero where a step is padding.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn backward<F: Float>(
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
    #[comptime] tile: CoreTile,
    #[define(F)] _dtype: ElemType,
) {
    let (batch, time) = (batch as usize, time as usize);
    let units = comptime!(tile.units);
    let samples = comptime!(tile.samples());
    let directions = comptime!(tile.directions);
    let slots = comptime!(tile.slots());
    let d_stride = comptime!(tile.rows_stride(Pass::Backward) / 4);
    let sums_stride = comptime!(tile.sums_stride());
    let part = comptime!(tile.padded());
    let direction = CUBE_POS_Y as usize;
    let thread = UNIT_POS as usize;
    let threads = CUBE_DIM as usize;
    let first = CUBE_POS_X as usize * samples;
    let longest = longest_of(lengths, first, batch, samples);
    let length = shared_lengths(lengths, first, batch, tile);

    let mut d_now = Shared::<[Columns<F>]>::new_aligned_slice(comptime!(samples * d_stride), ALIGN);
    let mut dc = Shared::<[f32]>::new_slice(comptime!(samples * units));
    let mut sums = Shared::<[f32]>::new_aligned_slice(comptime!(samples * sums_stride), ALIGN);
    let shared = in_shared::<F>(weights, tile);
    let registers = in_registers::<F>(weights, tile, Pass::Backward);
    for at in range_stepped(thread, comptime!(samples * d_stride), threads) {
        let (row, unit) = (at / d_stride, at % d_stride);
        d_now[at] = Columns::<F>::cast_from(Columns::<f32>::new(0.0f32));
        if first + row < batch && unit < units {
            let from = (direction * batch + first + row) * units + unit;
            dc[row * units + unit] = d_last[from + directions * batch * units];
        }
    }
    sync_cube();

    let held = comptime!(if tile.ahead() { slots } else { 1 });
    let mut kept = read_ahead::<F>(batch, tile);
    let mut cell = Array::<f32>::new(held);
    let mut c_before = Array::<f32>::new(held);
    let mut h_before = Array::<F>::new(held);
    let mut d_out = Array::<F>::new(held);
    // The pass before the first step reads only.
    for back in 0..time + 1 {
        let n = time - back;
        if back > 0 {
            #[unroll(comptime!(tile.ahead()))]
            for slot in 0..slots {
                let pair = slot * threads + thread;
                if pair < comptime!(samples * units) {
                    let (row, unit) = (pair / units, pair % units);
                    let sample = first + row;
                    let length_r = length[row] as usize;
                    let mut d = Columns::<f32>::new(0.0f32);
                    if n < length_r {
                        let t = time_of(n, length_r);
                        let at = ((direction * batch + sample) * time + t) * units + unit;
                        let at_0 = (direction * batch + sample) * units + unit;
                        let slot = slot * comptime!(usize::from(tile.ahead()));
                        if comptime!(!tile.ahead()) {
                            let read = read_step::<F>(
                                d_output, output, gates, cells, state, batch, time, sample, unit,
                                n, length_r, tile,
                            );
                            kept[slot] = read.kept;
                            cell[slot] = read.cell;
                            c_before[slot] = read.c_before;
                            h_before[slot] = read.h_before;
                            d_out[slot] = read.d_output;
                        }
                        let mut dh = f32::cast_from(d_out[slot]);
                        if n + 1 < length_r {
                            let sum = row * sums_stride + unit;
                            dh += (sums[sum] + sums[sum + part])
                                + (sums[sum + 2 * part] + sums[sum + 3 * part]);
                        } else {
                            dh += d_last[at_0];
                        }
                        let gates = Columns::<f32>::cast_from(kept[slot]);
                        let dc_now = d_cell_after(gates, cell[slot], dh, dc[pair], tile.gru);
                        d = d_sums(gates, cell[slot], c_before[slot], dh, dc_now, tile.gru);
                        dc[pair] = dc_now * gates.extract(1usize);
                        d_gates[at] = Columns::<F>::cast_from(d);
                        previous[at] = h_before[slot];
                    } else if sample < batch {
                        let at = ((direction * batch + sample) * time + n) * units + unit;
                        d_gates[at] = Columns::<F>::cast_from(d);
                        previous[at] = F::new(0.0f32);
                    }
                    d_now[row * d_stride + unit] = Columns::<F>::cast_from(d);
                }
            }
        }
        sync_cube();

        if comptime!(tile.ahead()) && n > 0 {
            #[unroll]
            for slot in 0..slots {
                let pair = slot * threads + thread;
                if pair < comptime!(samples * units) {
                    let (row, unit) = (pair / units, pair % units);
                    let length_r = length[row] as usize;
                    if n - 1 < length_r {
                        let read = read_step::<F>(
                            d_output,
                            output,
                            gates,
                            cells,
                            state,
                            batch,
                            time,
                            first + row,
                            unit,
                            n - 1,
                            length_r,
                            tile,
                        );
                        kept[slot] = read.kept;
                        cell[slot] = read.cell;
                        c_before[slot] = read.c_before;
                        h_before[slot] = read.h_before;
                        d_out[slot] = read.d_output;
                    }
                }
            }
        }
        // Tiles whose samples have all ended skip the work, not the barriers.
        if n < longest {
            multiply::<F, Columns<F>, f32>(
                &d_now,
                weights,
                &shared,
                &registers,
                &mut sums,
                comptime!([4, 1]),
                tile,
                Pass::Backward,
            );
        }
        sync_cube();
    }

    for pair in range_stepped(thread, comptime!(samples * units), threads) {
        let (row, unit) = (pair / units, pair % units);
        if first + row < batch {
            let at = (direction * batch + first + row) * units + unit;
            let mut dh = d_last[at];
            if length[row] > 0 {
                let sum = row * sums_stride + unit;
                dh = (sums[sum] + sums[sum + part]) + (sums[sum + 2 * part] + sums[sum + 3 * part]);
            }
            d_state[at] = dh;
            d_state[at + directions * batch * units] = dc[pair];
        }
    }
}

/// What step `n` reads of a sample that is at least that long.
#[cube]
#[allow(clippy::too_many_arguments, reason = "one for each buffer, and the place in them")]
fn read_step<F: Float>(
    d_output: &[F],
    output: &[F],
    gates: &[Columns<F>],
    cells: &[f32],
    state: &[f32],
    batch: usize,
    time: usize,
    sample: usize,
    unit: usize,
    n: usize,
    length: usize,
    #[comptime] tile: CoreTile,
) -> Read<F> {
    let units = comptime!(tile.units);
    let directions = comptime!(tile.directions);
    let direction = CUBE_POS_Y as usize;
    let column = direction * units + unit;
    let width = comptime!(directions * units);
    let t = time_of(n, length);
    let at = ((direction * batch + sample) * time + t) * units + unit;
    let at_0 = (direction * batch + sample) * units + unit;
    let mut h_before = F::cast_from(state[at_0]);
    let mut c_before = state[at_0 + directions * batch * units];
    if n > 0 {
        let t = time_of(n - 1, length);
        c_before = cells[((direction * batch + sample) * time + t) * units + unit];
        h_before = output[(sample * time + t) * width + column];
    }
    Read::<F> {
        kept: gates[at],
        cell: cells[at],
        c_before,
        h_before,
        d_output: d_output[(sample * time + t) * width + column],
    }
}
