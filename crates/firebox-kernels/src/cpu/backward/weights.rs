//! The gradient of the weights: rows of gate gradients and of what they were computed from wait until
//! there are a hundred of them, and are then summed up while they lie in cache.

use super::{Run, State, before};
use crate::cpu::BLOCK;
use crate::cpu::GATES;
use crate::cpu::block::{accumulate, for_row_tiles};
use crate::cpu::compute::Compute;
use crate::cpu::forward::prefetch;
use crate::cpu::pack::{STRIP, Strips};
use crate::cpu::simd::{Simd, pair};

/// Puts the inputs and the hidden states before step `t` beside the gradients of its gates.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn collect_operands<S: Simd>(run: &Run<'_>, t: usize, state: &mut State) {
    let Run { sizes, tile, direction, inputs, output, .. } = *run;
    let hidden = sizes.hidden;
    let strips = Strips::new(&sizes);
    let previous = before(run, t);
    let next = previous.and_then(|t| before(run, t));
    let continued = previous.map_or(0, |t| tile.active(t));
    let (room, waiting) = (state.room, state.waiting);
    let operands = state.operands.get_mut();
    for (row, sample) in tile.samples[..tile.active(t)].iter().enumerate() {
        let at = |strip: usize| strip * strip_size(room) + (waiting + row) * STRIP;
        let x = &inputs.input[sizes.input(*sample, t)..][..sizes.input];
        copy_strips(x, &mut operands[at(0)..], room);
        let h = match previous {
            Some(t) if row < continued => &output[sizes.output(*sample, t, direction)..][..hidden],
            _ => &inputs.hidden[sizes.state(*sample, direction)..][..hidden],
        };
        let first = strips.first_hidden();
        copy_strips(h, &mut operands[at(first)..], room);
        operands[at(first + hidden / STRIP) + hidden % STRIP] = 1.0;
        // SAFETY: the features are those that the caller vouches for.
        unsafe {
            if let Some(t) = previous {
                prefetch::<S>(inputs.input, sizes.input(*sample, t), sizes.input);
            }
            if let Some(t) = next {
                prefetch::<S>(output, sizes.output(*sample, t, direction), hidden);
            }
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
pub(super) unsafe fn update_weights<S: Simd, C: Compute>(
    run: &mut Run<'_>,
    state: &mut State,
    at_rest: bool,
) {
    let layout = Strips::new(&run.sizes);
    let (strips, fresh) = (layout.count(), std::mem::take(&mut state.fresh));
    // The bias lies in the last strip.
    let skipped = layout.first_hidden()..if at_rest && !fresh { strips - 1 } else { 0 };
    let (room, count) = (state.room, std::mem::take(&mut state.waiting));
    let [_, gate_words, operand_words] = &mut state.words;
    if C::PAIR > 1 {
        for strip in 0..strips {
            let from = &state.operands.get()[strip * strip_size(room)..][..count * STRIP];
            let to = &mut operand_words.get_mut()[strip * strip_size(room.div_ceil(2))..];
            // SAFETY: the features are those that the caller vouches for.
            unsafe { pair_rows::<S>(from, STRIP, to) };
        }
    }
    for block in 0..run.sizes.blocks() {
        let mut d_gates = &state.d_gates.get()[block * state.room * GATES..][..count * GATES];
        let mut operands = state.operands.get();
        if C::PAIR > 1 {
            // SAFETY: as above.
            unsafe { pair_rows::<S>(d_gates, GATES, gate_words.get_mut()) };
            (d_gates, operands) = (gate_words.get(), operand_words.get());
        }
        let (room, count) = (room.div_ceil(C::PAIR), count.div_ceil(C::PAIR));
        let d_weights = &mut run.d_weights[block * strips * STRIP * GATES..];
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
