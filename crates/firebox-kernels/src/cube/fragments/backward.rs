//! The backward pass of one layer through time, register by register.

use burn_cubecl::cubecl::{self, prelude::*};

use super::super::cell::{Columns, d_cell_after, d_sums};
use super::super::forward::{longest_of, time_of};
use super::product::{
    Fragment, in_registers, in_shared, is_unit, length_of, lengths_of, multiply, pair_of, sum_of,
    sums_of,
};
use crate::cuts::{ALIGN, FragmentTile};

/// What a step reads of a thread's pairs, ahead of it.
#[derive(CubeType)]
struct Reads<F: Float> {
    kept: Array<Columns<F>>,
    cell: Array<f32>,
    c_before: Array<f32>,
    h_before: Array<F>,
    d_output: Array<F>,
}

/// Room for these. They begin as a number that is not known before the launch: the constant propagation of CubeCL 0.11.3
/// panics where a vector of zeros is cast.
#[cube]
fn room_for<F: Float>(any: f32, #[comptime] tile: FragmentTile) -> Reads<F> {
    let pairs = comptime!(tile.pairs());
    let mut reads = Reads::<F> {
        kept: Array::<Columns<F>>::new(pairs),
        cell: Array::<f32>::new(pairs),
        c_before: Array::<f32>::new(pairs),
        h_before: Array::<F>::new(pairs),
        d_output: Array::<F>::new(pairs),
    };
    #[unroll]
    for slot in 0..pairs {
        reads.kept[slot] = Columns::<F>::cast_from(Columns::<f32>::new(any));
        reads.cell[slot] = any;
        reads.c_before[slot] = any;
        reads.h_before[slot] = F::cast_from(any);
        reads.d_output[slot] = F::cast_from(any);
    }
    reads
}

/// Takes what was read, so that the next step can be.
#[cube]
fn take<F: Float>(ahead: &Reads<F>, now: &mut Reads<F>, #[comptime] tile: FragmentTile) {
    #[unroll]
    for slot in 0..comptime!(tile.pairs()) {
        now.kept[slot] = ahead.kept[slot];
        now.cell[slot] = ahead.cell[slot];
        now.c_before[slot] = ahead.c_before[slot];
        now.h_before[slot] = ahead.h_before[slot];
        now.d_output[slot] = ahead.d_output[slot];
    }
}

/// The walk of the forward pass in reverse, in the same tiles. What passes from step to step is the gradient of `c`, in
/// registers, and that of `h`, which is the product of the step after: at the last step of a sample, that of its last
/// state.
///
/// # Shapes
/// - d_output, output: `[batch, time, directions * units]`
/// - d_last, state, d_state: `[2, directions, batch, units]`, hidden then cell
/// - gates, d_gates (before their functions): `[directions, batch, time, units]` of four
/// - cells, previous (the hidden state before each step): `[directions, batch, time, units]`
/// - weights: `[directions, steps, tiles of rows, lanes]` of eight
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
    weights: &[Fragment<F>],
    state: &[f32],
    lengths: &[i32],
    d_gates: &mut [Columns<F>],
    previous: &mut [F],
    d_state: &mut [f32],
    batch: u32,
    time: u32,
    #[comptime] tile: FragmentTile,
    #[define(F)] _dtype: ElemType,
) {
    let (batch, time) = (batch as usize, time as usize);
    let units = comptime!(tile.units);
    let samples = comptime!(tile.samples());
    let pairs = comptime!(tile.pairs());
    let stride = comptime!(tile.rows_stride() / 4);
    let room = comptime!(tile.rows_room() / 4);
    let direction = CUBE_POS_Y as usize;
    let states = comptime!(tile.directions * units) * batch;
    let first = CUBE_POS_X as usize * samples;
    let longest = longest_of(lengths, first, batch, samples);
    let lengths = lengths_of(lengths, first, batch, tile);

    let mut d_now = Shared::<[Columns<F>]>::new_aligned_slice(room, comptime!(ALIGN));
    let shared = in_shared::<F>(weights, tile);
    let registers = in_registers::<F>(weights, tile);
    let mut sums = sums_of(tile);
    // What is added to the units has to be finite.
    for at in range_stepped(UNIT_POS as usize, room, CUBE_DIM as usize) {
        d_now[at] = Columns::<F>::new(F::new(0.0f32));
    }

    let mut dc = Array::<f32>::new(pairs);
    let any = f32::cast_from(batch as u32);
    let (mut ahead, mut now) = (room_for::<F>(any, tile), room_for::<F>(any, tile));
    #[unroll]
    for slot in 0..pairs {
        dc[slot] = 0.0f32;
        let pair = pair_of(slot, tile);
        let sample = first + pair.row;
        if sample < batch && is_unit(pair.unit, tile) {
            dc[slot] = d_last[(direction * batch + sample) * units + pair.unit + states];
            for n in length_of(&lengths, slot, tile)..time {
                let at = ((direction * batch + sample) * time + n) * units + pair.unit;
                d_gates[at] = Columns::<F>::new(F::new(0.0f32));
                previous[at] = F::new(0.0f32);
            }
        }
    }
    read::<F>(
        d_output, output, gates, cells, state, &mut ahead, &lengths, first, batch, time, longest,
        tile,
    );
    sync_cube();

    for back in 0..longest {
        let n = longest - 1 - back;
        let copy = n % 2;
        take(&ahead, &mut now, tile);
        if comptime!(tile.early) {
            read::<F>(
                d_output, output, gates, cells, state, &mut ahead, &lengths, first, batch, time, n,
                tile,
            );
        }
        #[unroll]
        for slot in 0..pairs {
            let pair = pair_of(slot, tile);
            let length = length_of(&lengths, slot, tile);
            if n < length && is_unit(pair.unit, tile) {
                let own = direction * batch + first + pair.row;
                let at = (own * time + time_of(n, length)) * units + pair.unit;
                let mut dh = f32::cast_from(now.d_output[slot]);
                if n + 1 < length {
                    dh += sum_of(&sums, slot, 0usize, tile);
                } else {
                    dh += d_last[own * units + pair.unit];
                }
                let kept = Columns::<f32>::cast_from(now.kept[slot]);
                let dc_now = d_cell_after(kept, now.cell[slot], dh, dc[slot], tile.gru);
                let d = d_sums(kept, now.cell[slot], now.c_before[slot], dh, dc_now, tile.gru);
                dc[slot] = dc_now * kept.extract(1usize);
                let d = Columns::<F>::cast_from(d);
                d_gates[at] = d;
                previous[at] = now.h_before[slot];
                d_now[(copy * samples + pair.row) * stride + pair.unit] = d;
            }
        }
        sync_cube();
        if comptime!(!tile.early) {
            read::<F>(
                d_output, output, gates, cells, state, &mut ahead, &lengths, first, batch, time, n,
                tile,
            );
        }
        multiply::<F, Const<4>>(&d_now, copy, weights, &shared, &registers, &mut sums, tile);
    }

    #[unroll]
    for slot in 0..pairs {
        let pair = pair_of(slot, tile);
        let sample = first + pair.row;
        if sample < batch && is_unit(pair.unit, tile) {
            let at = (direction * batch + sample) * units + pair.unit;
            let mut dh = d_last[at];
            if length_of(&lengths, slot, tile) > 0 {
                dh = sum_of(&sums, slot, 0usize, tile);
            }
            d_state[at] = dh;
            d_state[at + states] = dc[slot];
        }
    }
}

/// Reads what the step before `end`, if there is one, needs of samples that reach there. What was the cell before
/// the step after is its own.
#[cube]
#[allow(clippy::too_many_arguments, reason = "one for each buffer, and the place in them")]
fn read<F: Float>(
    d_output: &[F],
    output: &[F],
    gates: &[Columns<F>],
    cells: &[f32],
    state: &[f32],
    ahead: &mut Reads<F>,
    lengths: &Array<u32>,
    first: usize,
    batch: usize,
    time: usize,
    end: usize,
    #[comptime] tile: FragmentTile,
) {
    let units = comptime!(tile.units);
    let width = comptime!(tile.directions * units);
    let direction = CUBE_POS_Y as usize;
    #[unroll]
    for slot in 0..comptime!(tile.pairs()) {
        let pair = pair_of(slot, tile);
        let length = length_of(lengths, slot, tile);
        if end > 0 && end <= length && is_unit(pair.unit, tile) {
            let n = end - 1;
            let sample = first + pair.row;
            let own = direction * batch + sample;
            let column = direction * units + pair.unit;
            let t = time_of(n, length);
            let at = (own * time + t) * units + pair.unit;
            if end == length {
                ahead.cell[slot] = cells[at];
            } else {
                ahead.cell[slot] = ahead.c_before[slot];
            }
            ahead.kept[slot] = gates[at];
            ahead.d_output[slot] = d_output[(sample * time + t) * width + column];
            if n > 0 {
                let t = time_of(n - 1, length);
                ahead.c_before[slot] = cells[(own * time + t) * units + pair.unit];
                ahead.h_before[slot] = output[(sample * time + t) * width + column];
            } else {
                let from = own * units + pair.unit;
                ahead.c_before[slot] = state[from + comptime!(tile.directions * units) * batch];
                ahead.h_before[slot] = F::cast_from(state[from]);
            }
        }
    }
}
