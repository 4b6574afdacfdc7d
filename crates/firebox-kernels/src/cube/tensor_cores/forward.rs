//! The forward pass of one layer on tensor cores.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::cell::{Columns, cell_after, hidden_after, kept};
use super::super::forward::{longest_of, time_of};
use super::product::{in_registers, in_shared, multiply};
use crate::cuts::{ALIGN, CoreTile, Pass};

/// The lengths of a tile's samples in shared memory; zero for those beyond the batch.
#[cube]
pub(super) fn shared_lengths(
    lengths: &[i32],
    first: usize,
    batch: usize,
    #[comptime] tile: CoreTile,
) -> Shared<[u32]> {
    let mut shared = Shared::<[u32]>::new_slice(comptime!(tile.samples()));
    for row in range_stepped(UNIT_POS as usize, comptime!(tile.samples()), CUBE_DIM as usize) {
        shared[row] = 0u32;
        if first + row < batch {
            shared[row] = u32::cast_from(lengths[first + row]);
        }
    }
    shared
}

/// Room for what is read ahead of four columns. It begins as a number that is not known before the launch:
/// the constant propagation of CubeCL 0.11.3 panics where a vector of zeros is cast.
#[cube]
pub(super) fn read_ahead<F: Float>(batch: usize, #[comptime] tile: CoreTile) -> Array<Columns<F>> {
    let mut ahead =
        Array::<Columns<F>>::new(comptime!(if tile.ahead() { tile.slots() } else { 1 }));
    if comptime!(tile.ahead()) {
        #[unroll]
        for slot in 0..comptime!(tile.slots()) {
            ahead[slot] =
                Columns::<F>::cast_from(Columns::<f32>::new(f32::cast_from(batch as u32)));
        }
    }
    ahead
}

/// Each cube walks a tile of samples in one direction (`CUBE_POS_Y`) through all steps.
///
/// # Shapes
/// - gates_x: `[directions, batch, time, units]` of four, bias included
/// - weights: `[directions, padded units before, padded units]` of four
/// - state, last: `[2, directions, batch, units]`, hidden then cell
/// - output: `[batch, time, directions * units]`
/// - gates (after their functions): as gates_x; cells: `[directions, batch, time, units]`; both are
///   written only where a step is valid, and not at all unless `keep`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn forward<F: Float>(
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
    #[comptime] tile: CoreTile,
    #[comptime] keep: bool,
    #[define(F)] _dtype: ElemType,
) {
    let (batch, time) = (batch as usize, time as usize);
    let units = comptime!(tile.units);
    let samples = comptime!(tile.samples());
    let directions = comptime!(tile.directions);
    let slots = comptime!(tile.slots());
    let h_stride = comptime!(tile.rows_stride(Pass::Forward));
    let sums_stride = comptime!(tile.sums_stride() / 4);
    let direction = CUBE_POS_Y as usize;
    let thread = UNIT_POS as usize;
    let threads = CUBE_DIM as usize;
    let first = CUBE_POS_X as usize * samples;
    let longest = longest_of(lengths, first, batch, samples);
    let length = shared_lengths(lengths, first, batch, tile);

    let mut h = Shared::<[F]>::new_aligned_slice(comptime!(samples * h_stride), ALIGN);
    let mut c = Shared::<[f32]>::new_slice(comptime!(samples * units));
    let mut sums =
        Shared::<[Columns<f32>]>::new_aligned_slice(comptime!(samples * sums_stride), ALIGN);
    let shared = in_shared::<F>(weights, tile);
    let registers = in_registers::<F>(weights, tile, Pass::Forward);
    sync_cube();

    for at in range_stepped(thread, comptime!(samples * h_stride), threads) {
        let (row, unit) = (at / h_stride, at % h_stride);
        h[at] = F::new(0.0f32);
        if first + row < batch && unit < units {
            let from = (direction * batch + first + row) * units + unit;
            let (h_0, c_0) = (state[from], state[from + directions * batch * units]);
            h[at] = F::cast_from(h_0);
            c[row * units + unit] = c_0;
            if length[row] == 0 {
                last[from] = h_0;
                last[from + directions * batch * units] = c_0;
            }
        }
    }
    sync_cube();

    let mut ahead = read_ahead::<F>(batch, tile);
    for n in 0..time {
        // Tiles whose samples have all ended skip the work, not the barriers.
        if n < longest {
            if comptime!(tile.ahead()) {
                #[unroll]
                for slot in 0..slots {
                    let pair = slot * threads + thread;
                    if pair < comptime!(samples * units) {
                        let (row, unit) = (pair / units, pair % units);
                        let length = length[row] as usize;
                        if n < length {
                            let t = time_of(n, length);
                            ahead[slot] = gates_x
                                [((direction * batch + first + row) * time + t) * units + unit];
                        }
                    }
                }
            }
            multiply::<F, F, Columns<f32>>(
                &h,
                weights,
                &shared,
                &registers,
                &mut sums,
                comptime!([1, 4]),
                tile,
                Pass::Forward,
            );
        }
        sync_cube();

        #[unroll(comptime!(tile.ahead()))]
        for slot in 0..slots {
            let pair = slot * threads + thread;
            if pair < comptime!(samples * units) {
                let (row, unit) = (pair / units, pair % units);
                let sample = first + row;
                let length = length[row] as usize;
                let column = direction * units + unit;
                if n < length {
                    let t = time_of(n, length);
                    let at = ((direction * batch + sample) * time + t) * units + unit;
                    let x = if comptime!(tile.ahead()) { ahead[slot] } else { gates_x[at] };
                    let sum = sums[row * sums_stride + unit] + Columns::<f32>::cast_from(x);
                    let after = kept(sum, tile.gru);
                    let c_next = cell_after(after, c[pair], tile.gru);
                    let h_next = hidden_after(after, c_next, tile.gru);
                    c[pair] = c_next;
                    h[row * h_stride + unit] = F::cast_from(h_next);
                    output[(sample * time + t) * (directions * units) + column] =
                        F::cast_from(h_next);
                    if comptime!(keep) {
                        gates[at] = Columns::<F>::cast_from(after);
                        cells[at] = c_next;
                    }
                    if n + 1 == length {
                        let to = (direction * batch + sample) * units + unit;
                        last[to] = h_next;
                        last[to + directions * batch * units] = c_next;
                    }
                } else if sample < batch {
                    output[(sample * time + n) * (directions * units) + column] = F::new(0.0f32);
                }
            }
        }
        sync_cube();
    }
}
