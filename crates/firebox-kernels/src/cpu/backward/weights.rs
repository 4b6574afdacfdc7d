//! The gradient of the weights: rows of gate gradients and of what they were computed from wait until
//! there are as many as lie in the first cache, a hundred or so, and are then summed up.

use std::ops::Range;

use super::{Run, State, before};
use crate::cpu::BLOCK;
use crate::cpu::GATES;
use crate::cpu::amx::{self, Tiles};
use crate::cpu::block::{accumulate, for_row_tiles};
use crate::cpu::compute::{Compute, Split};
use crate::cpu::forward::prefetch;
use crate::cpu::lanes::{Lanes, turn};
use crate::cpu::pack::{STRIP, Strips};
use crate::cpu::simd::{Simd, pair};

/// Where the operands of a row that waits are: its input, and the hidden state before its step.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// Where its input begins.
    input: usize,
    /// Whether its state is an initial one, and not an output of the step before.
    initial: bool,
    /// Where its state begins among those.
    state: usize,
}

/// Notes where the inputs and the hidden states before step `t` are, of the same rows as the gradients of
/// its gates.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn note_operands<S: Simd>(run: &Run<'_>, t: usize, state: &mut State) {
    let Run { sizes, tile, direction, inputs, output, .. } = *run;
    let previous = before(run, t);
    let continued = previous.map_or(0, |t| tile.active(t));
    for (row, sample) in tile.samples[..tile.active(t)].iter().enumerate() {
        let input = sizes.input(*sample, t);
        let (initial, at) = match previous {
            Some(t) if row < continued => (false, sizes.output(*sample, t, direction)),
            _ => (true, sizes.state(*sample, direction)),
        };
        state.waiting.push(Waiting { input, initial, state: at });
        // SAFETY: the features are those that the caller vouches for.
        unsafe {
            prefetch::<S>(inputs.input, input, sizes.input);
            prefetch::<S>(if initial { inputs.hidden } else { output }, at, sizes.hidden);
        }
    }
}

/// Words of the operands of the waiting rows, the first half of them packed with the second half if
/// operands are pairs, strip by strip.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn fill_operands<S: Lanes, C: Compute>(run: &Run<'_>, state: &mut State) {
    let Run { sizes, inputs, output, .. } = *run;
    let (input, hidden) = (sizes.input, sizes.hidden);
    let first = Strips::new(&sizes).first_hidden();
    let words = state.waiting.len().div_ceil(C::PAIR);
    let room = state.room.div_ceil(C::PAIR);
    let tiled = state.tiles.is_some();
    let to = state.operands.get_mut();
    let rows = state.row.get_mut();
    let of = |row: &Waiting| {
        let states = if row.initial { inputs.hidden } else { output };
        (&inputs.input[row.input..][..input], &states[row.state..][..hidden])
    };
    let columns = tiled_columns(Strips::new(&sizes).count());
    for word in 0..words {
        let (x, h) = of(&state.waiting[word]);
        let second = state.waiting.get(word + words).filter(|_| C::PAIR > 1).map(of);
        let [to_x, to_h] = [0, first].map(|strip| strip * strip_size(room) + word * STRIP);
        let ones = match C::PAIR {
            1 => 1.0,
            _ => pair(1.0, if second.is_some() { 1.0 } else { 0.0 }),
        };
        if C::VERBATIM {
            copy_strips(x, &mut to[to_x..], room);
            copy_strips(h, &mut to[to_h..], room);
        } else {
            let at = if tiled { word % amx::TILE * columns } else { 0 };
            let parts = [
                (x, second.map(|(x, _)| x), 0, to_x),
                (h, second.map(|(_, h)| h), first * STRIP, to_h),
            ];
            for (low, high, column, strip) in parts {
                let at = if tiled { at + column } else { 0 };
                if C::PIECES > 1 {
                    // SAFETY: the features are those that the caller vouches for.
                    unsafe { cut_numbers::<S>(low, high, &mut rows[at..], amx::TILE * columns) };
                    continue;
                }
                let row = &mut rows[at..][..low.len()];
                // SAFETY: the features are those that the caller vouches for.
                unsafe { join_numbers::<S, C>(low, high, row) };
                if !tiled {
                    copy_strips(row, &mut to[strip..], room);
                }
            }
            if tiled {
                let (group, filled) = (word / amx::TILE * amx::TILE, word % amx::TILE + 1);
                for piece in 0..C::PIECES {
                    let rows = &mut rows[piece * amx::TILE * columns..][..amx::TILE * columns];
                    // One has no more bits than the first piece.
                    rows[at + first * STRIP + hidden] = if piece == 0 { ones } else { 0.0 };
                    if filled == amx::TILE || word + 1 == words {
                        // What fills the last group is multiplied, too.
                        rows[filled * columns..].fill(0.0);
                        let to = &mut to[group * C::PIECES + piece * amx::TILE..];
                        // SAFETY: as above.
                        unsafe { turn::<S>(rows, columns, to, tiled_row::<C>(room)) };
                    }
                }
                continue;
            }
        }
        to[(first + hidden / STRIP) * strip_size(room) + word * STRIP + hidden % STRIP] = ones;
    }
}

/// From one column of the weights to the next where their operands lie in rows, for tiles of AMX: the words
/// of `rows` rows, and a line more, so that columns do not fall upon a few sets of the first cache.
fn tiled_row<C: Compute>(words: usize) -> usize {
    words.next_multiple_of(amx::TILE) * C::PIECES + BLOCK
}

/// Columns of the operands of so many strips for tiles: whole tiles.
pub(super) fn tiled_columns(strips: usize) -> usize {
    (strips * STRIP).next_multiple_of(amx::TILE)
}

/// Numbers of the operands of so many strips and rows for tiles, `[column, word]`.
pub(super) fn tiled_operands<C: Compute>(strips: usize, rows: usize) -> usize {
    tiled_columns(strips) * tiled_row::<C>(rows.div_ceil(C::PAIR))
}

/// Words of the numbers of two rows, or of one row and zeros.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn join_numbers<S: Simd, C: Compute>(low: &[f32], high: Option<&[f32]>, to: &mut [f32]) {
    match if C::PAIR == 1 { Some(low) } else { high } {
        // SAFETY: the caller's promise is the same.
        Some(high) => unsafe { C::join_rows::<S>(low, high, to) },
        None => low.iter().zip(to).for_each(|(low, to)| *to = C::join_one(*low, 0.0)),
    }
}

/// Words of the pieces of the numbers of two rows, or of one row and zeros, so many numbers apart.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn cut_numbers<S: Simd>(low: &[f32], high: Option<&[f32]>, to: &mut [f32], apart: usize) {
    let count = low.len();
    assert!(to.len() >= 2 * apart + count, "room for all pieces");
    let high = high.map(|high| &high[..count]);
    let mut at = 0;
    while at + S::LANES <= count {
        // SAFETY: `at + LANES` is within both, and within the room of each piece.
        unsafe {
            let second = match high {
                Some(high) => S::load(high.as_ptr().add(at)),
                None => S::splat(0.0),
            };
            Split::store::<S>(
                to.as_mut_ptr().add(at),
                S::load(low.as_ptr().add(at)),
                second,
                apart,
            );
        }
        at += S::LANES;
    }
    for at in at..count {
        let second = high.map_or(0.0, |high| high[at]);
        for piece in 0..Split::PIECES {
            to[piece * apart + at] = Split::piece(low[at], second, piece);
        }
    }
}

/// From one strip of `rows` rows to the next. With whole lines between them, the strips of a row do not
/// fall upon a few sets of the first cache.
pub(super) fn strip_size(rows: usize) -> usize {
    rows * STRIP + BLOCK
}

/// Puts each six numbers of a row into the next strip of `room` rows.
#[inline(always)]
fn copy_strips(from: &[f32], to: &mut [f32], room: usize) {
    let (whole, rest) = from.as_chunks::<STRIP>();
    let strips = to.chunks_mut(strip_size(room));
    for (values, strip) in whole.iter().zip(strips) {
        // Of a known size: a call into the C library for 24 bytes costs more than the copy.
        strip[..STRIP].copy_from_slice(values);
    }
    if !rest.is_empty() {
        to[whole.len() * strip_size(room)..][..rest.len()].copy_from_slice(rest);
    }
}

/// Adds the part of the waiting rows to the gradient of the weights. If they come from states `at_rest`,
/// which are zero, only inputs and biases have a part in it.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the lint does not see comments in the argument of a macro"
)]
pub(super) unsafe fn update_weights<S: Lanes, C: Compute>(
    run: &mut Run<'_>,
    state: &mut State,
    at_rest: bool,
) {
    let layout = Strips::new(&run.sizes);
    let (strips, fresh) = (layout.count(), std::mem::take(&mut state.fresh));
    // The bias lies in the last strip.
    let skipped = layout.first_hidden()..if at_rest && !fresh { strips - 1 } else { 0 };
    // SAFETY: the features are those that the caller vouches for.
    unsafe { fill_operands::<S, C>(run, state) };
    let (room, count) = (state.room, state.waiting.len());
    state.waiting.clear();
    let [_, gate_words] = &mut state.words;
    for block in 0..run.sizes.blocks() {
        let mut d_gates = &state.d_gates.get()[block * state.room * GATES..][..count * GATES];
        let operands = state.operands.get();
        if C::PIECES > 1 {
            // SAFETY: as above.
            unsafe { cut_rows::<S>(d_gates, gate_words.get_mut()) };
        } else if C::PAIR > 1 {
            // SAFETY: as above.
            unsafe { pair_rows::<S>(d_gates, GATES, gate_words.get_mut()) };
            d_gates = gate_words.get();
        }
        let (room, count) = (room.div_ceil(C::PAIR), count.div_ceil(C::PAIR));
        let d_weights = &mut run.d_weights[block * strips * STRIP * GATES..];
        if let Some(tiles) = &state.tiles {
            let d_weights = &mut d_weights[..strips * STRIP * GATES];
            let words = gate_words.get_mut();
            let whole = count.next_multiple_of(amx::TILE);
            let missing = (whole - count) * GATES;
            // The last group ends with words of nothing, in each piece.
            let last = words[..whole * C::PIECES * GATES].rchunks_exact_mut(amx::TILE * GATES);
            for piece in last.take(C::PIECES).filter(|_| missing > 0) {
                piece[amx::TILE * GATES - missing..].fill(0.0);
            }
            let part = |row: usize| amx::Part {
                a: operands[row * tiled_row::<C>(room)..].as_ptr(),
                a_row: tiled_row::<C>(room),
                b: words.as_ptr(),
                b_row: GATES,
                groups: whole / amx::TILE,
                ahead: None,
            };
            let skipped = skipped.start * STRIP..skipped.end * STRIP;
            // SAFETY: `tiled_operands` has whole tiles of columns, and the gates whole groups of words.
            unsafe { weights_in_tiles(tiles, part, skipped, d_weights, fresh) };
            continue;
        }
        for strip in (0..strips).filter(|strip| !skipped.contains(strip)) {
            let operands = &operands[strip * strip_size(room)..][..room * STRIP];
            let d_weights = &mut d_weights[strip * STRIP * GATES..][..STRIP * GATES];
            for_row_tiles!(S, layout.width(strip), row, M => {
                // SAFETY: `count` is at most `room`, for which the slices have room; `row + M` is
                // at most `STRIP`.
                unsafe {
                    let operands = operands.as_ptr().add(row);
                    let d_weights = d_weights.as_mut_ptr().add(row * GATES);
                    let d_gates = d_gates.as_ptr();
                    weights_tile::<S, C, M>(operands, d_gates, count, d_weights, fresh);
                }
            });
        }
    }
}

/// The gradient of a block's weights, `[column, gate, 16]`, from tiles of sixteen columns but those that lie
/// within what is `skipped`.
///
/// # Safety
/// `part` gives valid operands for the sixteen columns from each multiple of sixteen on.
unsafe fn weights_in_tiles(
    tiles: &Tiles,
    part: impl Fn(usize) -> amx::Part,
    skipped: Range<usize>,
    d_weights: &mut [f32],
    fresh: bool,
) {
    for (index, out) in d_weights.chunks_mut(amx::TILE * GATES).enumerate() {
        let column = index * amx::TILE;
        if skipped.start <= column && column + amx::TILE <= skipped.end {
            continue;
        }
        let part = std::iter::once(part(column));
        // SAFETY: the caller's promise, and there is room for so many rows of four blocks.
        unsafe {
            let (rows, sums) = (out.len() / GATES, (out.as_mut_ptr(), GATES));
            let start = (!fresh).then_some(sums).and_then(amx::kept);
            tiles.rows(rows, 4, part, sums, start);
        }
    }
}

/// Packs the first half of the rows, of `width` numbers each, with the second half: row by row, the
/// numbers that are multiplied with each other stay side by side. A row without another one is
/// packed with zeros.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn pair_rows<S: Simd>(from: &[f32], width: usize, to: &mut [f32]) {
    let half = (from.len() / width).div_ceil(2) * width;
    let (low, high) = from.split_at(half);
    let to = &mut to[..half];
    let mut at = 0;
    while at + S::LANES <= high.len() {
        // SAFETY: `at + LANES` is within all three, of which `high` is the shortest.
        unsafe {
            let word = S::pair(S::load(low.as_ptr().add(at)), S::load(high.as_ptr().add(at)));
            S::store(to.as_mut_ptr().add(at), word);
        }
        at += S::LANES;
    }
    for (index, word) in to.iter_mut().enumerate().skip(at) {
        *word = pair(low[index], high.get(index).copied().unwrap_or(0.0));
    }
}

/// The same of rows of gates in pieces, each sixteen words piece by piece.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn cut_rows<S: Simd>(from: &[f32], to: &mut [f32]) {
    let half = (from.len() / GATES).div_ceil(2);
    for word in 0..half {
        let low = &from[word * GATES..][..GATES];
        let high = from.get((word + half) * GATES..(word + half + 1) * GATES);
        let place = word / amx::TILE * Split::PIECES * amx::TILE + word % amx::TILE;
        // SAFETY: the caller's promise is the same.
        unsafe { cut_numbers::<S>(low, high, &mut to[place * GATES..], amx::TILE * GATES) };
    }
}

/// `d_weights[m] += Σ_k operands[k][m] * d_gates[k]` for `M` columns of the weights, which count as zero
/// while they are `fresh`.
///
/// # Safety
/// That of [`Simd`]; `operands` is valid for `count` rows of six, `d_gates` for `count` and
/// `d_weights` for `M` rows of 64.
#[inline(always)]
unsafe fn weights_tile<S: Simd, C: Compute, const M: usize>(
    operands: *const f32,
    d_gates: *const f32,
    count: usize,
    d_weights: *mut f32,
    fresh: bool,
) {
    let mut lane = 0;
    while lane < BLOCK {
        // SAFETY: every address is within the shapes for which the caller vouches.
        unsafe {
            let mut acc = [[S::splat(0.0); 4]; M];
            let mut a = [operands; M];
            for (m, (a, row)) in a.iter_mut().zip(&mut acc).enumerate() {
                *a = operands.add(m);
                if !fresh {
                    for (n, value) in row.iter_mut().enumerate() {
                        *value = S::load(d_weights.add(m * GATES + n * BLOCK + lane));
                    }
                }
            }
            accumulate::<S, C, M, 4>(&mut acc, a, STRIP, d_gates.add(lane), count);
            for (m, row) in acc.into_iter().enumerate() {
                for (n, value) in row.into_iter().enumerate() {
                    S::store(d_weights.add(m * GATES + n * BLOCK + lane), value);
                }
            }
        }
        lane += S::LANES;
    }
}
