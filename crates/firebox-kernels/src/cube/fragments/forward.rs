//! The forward pass of one layer, register by register.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::cell::{Columns, cell_after, hidden_after, kept};
use super::super::forward::{longest_of, time_of};
use super::product::{
    Fragment, in_registers, in_shared, is_unit, length_of, lengths_of, multiply, pair_of, sum_of,
    sums_of,
};
use crate::cuts::{ALIGN, FragmentTile};

/// Each cube walks a tile of samples in one direction (`CUBE_POS_Y`) through all steps.
///
/// # Shapes
/// - gates_x: `[directions, batch, time, units]` of four, bias included
/// - weights: `[directions, steps, tiles of rows, lanes]` of eight
/// - state, last: `[2, directions, batch, units]`, hidden then cell
/// - output: `[batch, time, directions * units]`
/// - gates (after their functions): as gates_x; cells: `[directions, batch, time, units]`; both are written only where a
///   step is valid, and not at all unless `keep`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(in crate::cube) fn forward<F: Float>(
    gates_x: &[Columns<F>],
    weights: &[Fragment<F>],
    state: &[f32],
    lengths: &[i32],
    output: &mut [F],
    last: &mut [f32],
    gates: &mut [Columns<F>],
    cells: &mut [f32],
    batch: u32,
    time: u32,
    #[comptime] tile: FragmentTile,
    #[comptime] keep: bool,
    #[define(F)] _dtype: ElemType,
) {
    let (batch, time) = (batch as usize, time as usize);
    let units = comptime!(tile.units);
    let samples = comptime!(tile.samples());
    let directions = comptime!(tile.directions);
    let pairs = comptime!(tile.pairs());
    let stride = comptime!(tile.rows_stride());
    let room = comptime!(tile.rows_room());
    let direction = CUBE_POS_Y as usize;
    let states = comptime!(directions * units) * batch;
    let first = CUBE_POS_X as usize * samples;
    let longest = longest_of(lengths, first, batch, samples);
    let lengths = lengths_of(lengths, first, batch, tile);

    let mut h = Shared::<[Vector<F, Const<1>>]>::new_aligned_slice(room, comptime!(ALIGN));
    let shared = in_shared::<F>(weights, tile);
    let registers = in_registers::<F>(weights, tile);
    let mut sums = sums_of(tile);
    // What is added to the units has to be finite.
    for at in range_stepped(UNIT_POS as usize, room, CUBE_DIM as usize) {
        h[at] = Vector::<F, Const<1>>::new(F::new(0.0));
    }
    sync_cube();

    let mut c = Array::<f32>::new(pairs);
    let mut hidden = Array::<f32>::new(pairs);
    // It begins as a number that is not known before the launch: the constant propagation of CubeCL 0.11.3 panics where
    // a vector of zeros is cast.
    let mut ahead = Array::<Columns<F>>::new(pairs);
    let mut now = Array::<Columns<F>>::new(pairs);
    #[unroll]
    for slot in 0..pairs {
        let pair = pair_of(slot, tile);
        ahead[slot] = Columns::<F>::cast_from(Columns::<f32>::new(f32::cast_from(batch as u32)));
        c[slot] = 0.0f32;
        hidden[slot] = 0.0f32;
        if first + pair.row < batch && is_unit(pair.unit, tile) {
            let from = (direction * batch + first + pair.row) * units + pair.unit;
            hidden[slot] = state[from];
            c[slot] = state[from + states];
            h[pair.row * stride + pair.unit] =
                Vector::<F, Const<1>>::new(F::cast_from(hidden[slot]));
        }
    }
    read(gates_x, &mut ahead, &lengths, first, batch, time, 0usize, tile);
    sync_cube();

    for n in 0..longest {
        #[unroll]
        for slot in 0..pairs {
            now[slot] = ahead[slot];
        }
        read(gates_x, &mut ahead, &lengths, first, batch, time, n + 1, tile);
        multiply::<F, Const<1>>(&h, n % 2, weights, &shared, &registers, &mut sums, tile);
        let after = (n + 1) % 2 * samples;
        #[unroll]
        for slot in 0..pairs {
            let pair = pair_of(slot, tile);
            let length = length_of(&lengths, slot, tile);
            if n < length && is_unit(pair.unit, tile) {
                let sample = first + pair.row;
                let t = time_of(n, length);
                let at = ((direction * batch + sample) * time + t) * units + pair.unit;
                let mut sum = Columns::<f32>::cast_from(now[slot]);
                #[unroll]
                for column in 0..4usize {
                    let own = sum_of(&sums, slot, column, tile) + sum.extract(column);
                    sum.insert(column, own);
                }
                let kept = kept(sum, tile.gru);
                let c_next = cell_after(kept, c[slot], tile.gru);
                let h_next = hidden_after(kept, c_next, tile.gru);
                c[slot] = c_next;
                hidden[slot] = h_next;
                let rounded = F::cast_from(h_next);
                h[(after + pair.row) * stride + pair.unit] = Vector::<F, Const<1>>::new(rounded);
                output[(sample * time + t) * comptime!(directions * units)
                    + direction * units
                    + pair.unit] = rounded;
                if comptime!(keep) {
                    gates[at] = Columns::<F>::cast_from(kept);
                    cells[at] = c_next;
                }
            }
        }
        sync_cube();
    }

    #[unroll]
    for slot in 0..pairs {
        let pair = pair_of(slot, tile);
        let sample = first + pair.row;
        if sample < batch && is_unit(pair.unit, tile) {
            let to = (direction * batch + sample) * units + pair.unit;
            last[to] = hidden[slot];
            last[to + states] = c[slot];
            for t in length_of(&lengths, slot, tile)..time {
                output[(sample * time + t) * comptime!(directions * units)
                    + direction * units
                    + pair.unit] = F::new(0.0f32);
            }
        }
    }
}

/// Reads what step `n` adds to the sums of a thread's pairs, of samples that are longer.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a place in four dimensions")]
fn read<F: Float>(
    gates_x: &[Columns<F>],
    ahead: &mut Array<Columns<F>>,
    lengths: &Array<u32>,
    first: usize,
    batch: usize,
    time: usize,
    n: usize,
    #[comptime] tile: FragmentTile,
) {
    #[unroll]
    for slot in 0..comptime!(tile.pairs()) {
        let pair = pair_of(slot, tile);
        let length = length_of(lengths, slot, tile);
        if n < length && is_unit(pair.unit, tile) {
            let row = CUBE_POS_Y as usize * batch + first + pair.row;
            ahead[slot] =
                gates_x[(row * time + time_of(n, length)) * comptime!(tile.units) + pair.unit];
        }
    }
}
