//! The backward pass of one layer: backpropagation through time, derived by hand.
//!
//! With `dh` and `dc` the gradients of a step's hidden and cell state,
//!
//! ```text
//! dc += dh ∘ o ∘ (1 - tanh²(c))         dc of the step before = dc ∘ f
//! di = dc ∘ g ∘ i ∘ (1 - i)             df = dc ∘ c_before ∘ f ∘ (1 - f)
//! dg = dc ∘ i ∘ (1 - g²)                do = dh ∘ tanh(c) ∘ o ∘ (1 - o)
//! dh of the step before = dgates W_hh   dx = dgates W_ih
//! dW_ih += dgatesᵀ x    dW_hh += dgatesᵀ h_before    db += dgates
//! ```

mod weights;

use rayon::prelude::*;

use super::amx::{self, Tiles};
use super::block::{Buffer, Part, accumulate_parts, for_row_tiles};
use super::cell::Cell;
use super::compute::Compute;
use super::forward::{Inputs, Saved, at_rest, load_blocks, prefetch, store_blocks};
use super::kernels::dispatch;
use super::lanes::Lanes;
use super::pack::{self, Strips, backward_columns, panel_width};
use super::plan::{Plan, Sizes, Tile};
use super::pool::Lent;
use super::product::group;
use super::simd::Simd;
use super::{Arithmetic, BLOCK, CpuKernels, GATES, Pass, Shared, each_task, zeros};
use weights::{Waiting, note_operands, strip_size, tiled_columns, tiled_operands, update_weights};

/// The gradients of what a layer wrote; `None` is zero.
pub(crate) struct OutputGradients<'a> {
    /// `[batch, time, directions * hidden]`
    pub(crate) output: Option<&'a [f32]>,
    /// Of the last states, each `[directions, batch, hidden]`.
    pub(crate) last: Option<(&'a [f32], &'a [f32])>,
}

/// The gradients of what a layer read, each in the shape of the input.
pub(crate) struct Gradients {
    pub(crate) input: Option<Vec<f32>>,
    pub(crate) weight_ih: Vec<f32>,
    pub(crate) weight_hh: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) hidden: Vec<f32>,
    pub(crate) cell: Vec<f32>,
}

/// Which gradients are needed besides those of the weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) input: bool,
    /// Those of the initial states; they are zero where they are not wanted.
    pub(crate) states: bool,
}

/// Words of rows, one row per sample and step, that are collected before the gradient of the weights is
/// brought up to date: as many as a first-level cache holds beside the rest. Of rows in pieces there are fewer.
const ROWS: usize = 128;

/// The gradients of a layer from its inputs, its `output` and what the forward pass saved.
pub(crate) fn backward(
    arithmetic: Arithmetic,
    plan: &Plan,
    inputs: Inputs<'_>,
    output: &[f32],
    saved: &Saved,
    d: &OutputGradients<'_>,
    wanted: Wanted,
) -> Gradients {
    let kernels = arithmetic.kernels;
    let pass = Backward { kernels, plan, inputs, output, saved, d, wanted };
    arithmetic.dispatch(&plan.sizes, pass)
}

struct Backward<'a> {
    kernels: CpuKernels,
    plan: &'a Plan,
    inputs: Inputs<'a>,
    output: &'a [f32],
    saved: &'a Saved,
    d: &'a OutputGradients<'a>,
    wanted: Wanted,
}

impl Pass for Backward<'_> {
    type Result = Gradients;

    fn run<C: Compute, K: Cell>(self) -> Gradients {
        let Self { kernels, plan, inputs, output, saved, d, wanted } = self;
        let sizes = plan.sizes;
        let Sizes { batch, time, input, hidden, directions } = sizes;
        let packed: Vec<Buffer> = (0..directions)
            .into_par_iter()
            .map(|direction| {
                pack::backward::<C>(&sizes, inputs.weights(&sizes, direction), wanted.input)
            })
            .collect();
        // Steps behind the end of a sample are never written.
        let count = if wanted.input { batch * time * input } else { 0 };
        let mut d_input = if plan.whole() { Vec::with_capacity(count) } else { zeros(count) };
        let mut d_hidden = vec![0.0; directions * batch * hidden];
        let mut d_cell = vec![0.0; directions * batch * hidden];
        let results = [
            // SAFETY: there is room for so many, and the vector is not touched before the tiles end.
            unsafe { Shared::from_raw(d_input.as_mut_ptr(), count) },
            Shared::new(&mut d_hidden),
            Shared::new(&mut d_cell),
        ];
        let mut at = 0;
        let tasks: Vec<_> = plan
            .tiles
            .iter()
            .map(|tile| {
                let first = at;
                at += directions * tile.gates(&sizes);
                (tile, first)
            })
            .collect();
        let run_direction = |tile: &Tile, first: usize, direction: usize| {
            let count = tile.gates(&sizes);
            let first = first + direction * count;
            let mut d_weights = Lent::take(Strips::new(&sizes).gradient(&sizes));
            let mut run = Run {
                kernels,
                sizes,
                tile,
                direction,
                inputs,
                output,
                packed: packed[direction].get(),
                gates: &saved.gates.get()[first / GATES * C::KEPT..][..count / GATES * C::KEPT],
                cells: &saved.cells.get()[first / 4..][..count / 4],
                d,
                results: &results,
                wanted,
                d_weights: d_weights.get_mut(),
            };
            run_tile::<C, K>(kernels, &mut run);
            d_weights
        };
        // Both directions of a tile add to the same rows of the input's gradient: one after the other.
        let partial: Vec<Vec<Lent>> = tasks
            .into_par_iter()
            .with_max_len(1)
            .map(|(tile, first)| {
                (0..directions).map(|direction| run_direction(tile, first, direction)).collect()
            })
            .collect();
        // SAFETY: the first direction wrote each step of a sample that has not ended; the rest is zero.
        unsafe { d_input.set_len(count) };
        let mut gradients = Gradients {
            input: wanted.input.then_some(d_input),
            weight_ih: vec![0.0; directions * 4 * hidden * input],
            weight_hh: vec![0.0; directions * 4 * hidden * hidden],
            bias: vec![0.0; directions * 4 * hidden],
            hidden: d_hidden,
            cell: d_cell,
        };
        sum(&sizes, &partial, &mut gradients);
        gradients
    }
}

/// The sum of the tiles' gradients of the weights, in the order of the tiles. A task takes a block of
/// units.
fn sum(sizes: &Sizes, partial: &[Vec<Lent>], gradients: &mut Gradients) {
    let strips = Strips::new(sizes);
    let all = [&mut gradients.weight_ih, &mut gradients.weight_hh, &mut gradients.bias]
        .map(|values| Shared::new(values.as_mut_slice()));
    let tasks = sizes.directions * sizes.blocks();
    each_task(tasks, tasks * strips.block() * partial.len(), |task| {
        let (direction, block) = (task / sizes.blocks(), task % sizes.blocks());
        let mut total = Lent::take(strips.block());
        let mut tiles = partial
            .iter()
            .map(|tile| &tile[direction].get()[block * strips.block()..][..strips.block()]);
        let total = &mut total.get_mut()[..strips.block()];
        match tiles.next() {
            Some(first) => total.copy_from_slice(first),
            None => total.fill(0.0),
        }
        for part in tiles {
            for (total, part) in total.iter_mut().zip(part) {
                *total += part;
            }
        }
        // SAFETY: each block of units of a direction is one task's.
        unsafe { strips.unpack(block, total, direction * 4 * sizes.hidden, &all) };
    });
}

/// One tile in one direction.
struct Run<'a> {
    kernels: CpuKernels,
    sizes: Sizes,
    tile: &'a Tile,
    direction: usize,
    inputs: Inputs<'a>,
    output: &'a [f32],
    packed: &'a [f32],
    gates: &'a [f32],
    cells: &'a [f32],
    d: &'a OutputGradients<'a>,
    /// Gradients of the input, of the initial hidden state and of the initial cell state. A task
    /// writes the rows of its own samples.
    results: &'a [Shared<'a>; 3],
    wanted: Wanted,
    /// `[block, strip, 6, gate, 16]`
    d_weights: &'a mut [f32],
}

/// What a tile carries from step to step.
struct State {
    /// `[row, column]`: the gradient of the hidden state, then that of the step's input.
    back: Buffer,
    columns: usize,
    /// `[block, row, 16]`: the gradient of the cell state.
    d_cell: Buffer,
    /// `[block, row, 16]`: the initial cell state.
    cell: Buffer,
    /// `[block, room, gate, 16]`: gradients of the gates that wait for their part in the gradient of the
    /// weights.
    d_gates: Lent,
    /// `[strip, word, 6]`, or `[column, word]` for tiles, each sixteen words piece by piece: words of inputs and
    /// hidden states of the same rows.
    operands: Lent,
    /// Words of one row of them, or of sixteen for tiles, piece by piece.
    row: Lent,
    /// Words of this step's gradients of the gates, `[block, row, pair of gates, piece, 16]`, for the product
    /// with the weights; and of the waiting rows of a block of `d_gates`, two and two, each sixteen of them piece by
    /// piece. Empty where the numbers themselves are the words.
    words: [Lent; 2],
    /// Rows that `d_gates` and `operands` have room for.
    room: usize,
    tiles: Option<Tiles>,
    /// Rows that wait.
    waiting: Vec<Waiting>,
    /// Whether nothing was yet put into the gradient of the weights, which is any numbers before.
    fresh: bool,
}

dispatch!(fn run_tile<C: Compute, K: Cell> = run_steps(run: &mut Run<'_>));

// Compiled once for all cells, and not once more wherever they are called.
dispatch!(fn multiply<C: Compute> = product(run: &Run<'_>, t: usize, state: &mut State, needed: bool));
dispatch!(fn add_to_weights<C: Compute> = update_weights(run: &mut Run<'_>, state: &mut State, at_rest: bool));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn run_steps<S: Lanes, C: Compute, K: Cell>(run: &mut Run<'_>) {
    let Run { sizes, tile, direction, .. } = *run;
    let (hidden, rows) = (sizes.hidden, tile.rows());
    let mut state = start::<C>(run);
    let steps = tile.steps();
    // A part of its own for the first step saves a product with its state, and reads and writes the
    // gradient of the weights of the input once more: worth it where these are few.
    let at_rest = at_rest(&sizes, tile, direction, run.inputs.hidden) && 2 * sizes.input < hidden;
    for index in 0..steps {
        let t = if direction == 1 { index } else { steps - 1 - index };
        let first = index + 1 == steps;
        if (first && at_rest) || state.waiting.len() + tile.active(t) > state.room {
            add_to_weights::<C>(run.kernels, run, &mut state, false);
        }
        // SAFETY: the features are those that the caller vouches for.
        unsafe { gate_gradients::<S, C, K>(run, t, &mut state) };
        multiply::<C>(run.kernels, run, t, &mut state, !first || run.wanted.states);
        // SAFETY: as above.
        unsafe { note_operands::<S>(run, t, &mut state) };
        if run.wanted.input {
            input_gradient(run, t, &state);
        }
    }
    add_to_weights::<C>(run.kernels, run, &mut state, at_rest);
    if !run.wanted.states {
        return;
    }
    for (row, sample) in tile.samples.iter().enumerate() {
        let at = sizes.state(*sample, direction);
        // SAFETY: a sample belongs to one tile, and this task alone has this direction of it.
        unsafe {
            let d_hidden = run.results[1].part(at, hidden);
            d_hidden.copy_from_slice(&state.back.get()[row * state.columns..][..hidden]);
            store_blocks(state.d_cell.get(), row, rows, run.results[2].part(at, hidden));
        }
    }
}

fn start<C: Compute>(run: &Run<'_>) -> State {
    let Run { sizes, tile, direction, inputs, .. } = *run;
    let (hidden, padded, rows) = (sizes.hidden, sizes.padded(), tile.rows());
    let columns = backward_columns(&sizes, run.wanted.input);
    let room = match C::PIECES {
        1 => C::PAIR * ROWS,
        _ => 2 * Tiles::in_cache::<C>() * amx::TILE,
    };
    let room = room.max(rows);
    let strips = Strips::new(&sizes).count();
    let tiles = Tiles::of::<C>(run.kernels);
    assert!(C::PIECES == 1 || tiles.is_some(), "pieces are multiplied in tiles");
    let (operands, row) = match &tiles {
        Some(_) => {
            let columns = tiled_columns(strips);
            (tiled_operands::<C>(strips, room), C::PIECES * amx::TILE * columns)
        }
        None => (strips * strip_size(room.div_ceil(C::PAIR)), sizes.input.max(hidden)),
    };
    let mut state = State {
        back: Buffer::zeros(rows * columns),
        columns,
        d_cell: Buffer::zeros(rows * padded),
        cell: Buffer::zeros(rows * padded),
        d_gates: Lent::take(sizes.blocks() * room * GATES),
        operands: Lent::take(operands),
        row: Lent::take(row),
        // AMX reads sixteen rows at a time, behind the last as well.
        words: [
            (sizes.blocks() * rows + amx::TILE) * C::gate_words(),
            room.div_ceil(2).next_multiple_of(amx::TILE) * C::PIECES * GATES,
        ]
        .map(|count| Lent::take((C::PAIR - 1) * count)),
        room,
        tiles,
        waiting: Vec::with_capacity(room),
        fresh: true,
    };
    for (row, sample) in tile.samples.iter().enumerate() {
        let at = sizes.state(*sample, direction);
        load_blocks(&inputs.cell[at..][..hidden], row, rows, state.cell.get_mut());
        if let Some((d_hidden, d_cell)) = run.d.last {
            state.back.get_mut()[row * columns..][..hidden]
                .copy_from_slice(&d_hidden[at..][..hidden]);
            load_blocks(&d_cell[at..][..hidden], row, rows, state.d_cell.get_mut());
        }
    }
    state
}

/// The step that came before `t` in this direction, if there is one.
fn before(run: &Run<'_>, t: usize) -> Option<usize> {
    match run.direction {
        1 => (t + 1 < run.tile.steps()).then_some(t + 1),
        _ => t.checked_sub(1),
    }
}

/// The gradients of the gates of step `t` from those of its hidden and cell states; leaves in
/// `d_cell` what goes on to the step before.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn gate_gradients<S: Simd, C: Compute, K: Cell>(run: &Run<'_>, t: usize, state: &mut State) {
    let Run { sizes, tile, direction, gates, cells, .. } = *run;
    let (hidden, running, columns) = (sizes.hidden, tile.active(t), state.columns);
    let previous = before(run, t);
    let second = previous.and_then(|t| before(run, t));
    let back = state.back.get_mut();
    if let Some(d_output) = run.d.output {
        for (row, sample) in tile.samples[..running].iter().enumerate() {
            let from = &d_output[sizes.output(*sample, t, direction)..][..hidden];
            for (dh, d) in back[row * columns..][..hidden].iter_mut().zip(from) {
                *dh += d;
            }
            if let Some(previous) = previous {
                let next = sizes.output(*sample, previous, direction);
                // SAFETY: the features are those that the caller vouches for.
                unsafe { prefetch::<S>(d_output, next, hidden) };
            }
        }
    }
    // Samples that were already running at the step before; the others start at this one.
    let continued = previous.map_or(0, |t| tile.active(t)).min(running);
    let (d_cell, d_gates) = (state.d_cell.get_mut(), state.d_gates.get_mut());
    let (words, waiting) = (state.words[0].get_mut(), state.waiting.len());
    let (kept, gate_words) = (C::KEPT, C::gate_words());
    for block in 0..sizes.blocks() {
        let row_of = |t: usize| tile.start(t) * sizes.blocks() + block * tile.active(t);
        for row in 0..running {
            let at = row_of(t) + row;
            let before = match previous {
                Some(previous) if row < continued => {
                    &cells[(row_of(previous) + row) * BLOCK..][..BLOCK]
                }
                _ => &state.cell.get()[(block * tile.rows() + row) * BLOCK..][..BLOCK],
            };
            let rows = Rows {
                gates: &gates[at * kept..][..kept],
                cell: &cells[at * BLOCK..][..BLOCK],
                before,
                d_hidden: &back[row * columns + block * BLOCK..][..BLOCK],
                d_cell: &mut d_cell[(block * tile.rows() + row) * BLOCK..][..BLOCK],
                d_gates: &mut d_gates[(block * state.room + waiting + row) * GATES..][..GATES],
                units: (sizes.hidden - block * BLOCK).min(BLOCK),
                words: match C::PAIR {
                    1 => &mut [],
                    _ => &mut words[(block * tile.rows() + row) * gate_words..][..gate_words],
                },
            };
            // SAFETY: the features are those that the caller vouches for.
            unsafe {
                gate_gradients_of_row::<S, C, K>(rows);
                if let Some(next) = previous {
                    let at = row_of(next) + row;
                    prefetch::<S>(gates, at * kept, kept);
                    if let Some(t) = second {
                        prefetch::<S>(cells, (row_of(t) + row) * BLOCK, BLOCK);
                    }
                }
            }
        }
    }
}

/// One block of units of one sample: `[16]`, or `[gate, 16]` for gates.
struct Rows<'a> {
    /// As [`Compute::save`] kept them.
    gates: &'a [f32],
    cell: &'a [f32],
    before: &'a [f32],
    d_hidden: &'a [f32],
    d_cell: &'a mut [f32],
    /// Words, unless these are pairs.
    d_gates: &'a mut [f32],
    /// Units of the block that there are. The others are made of weights of zero, by which infinity is no number.
    units: usize,
    /// The same as words of two gates each, if operands are pairs.
    words: &'a mut [f32],
}

/// The units of a block, from 0 on.
static UNITS: [f32; BLOCK] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn gate_gradients_of_row<S: Simd, C: Compute, K: Cell>(rows: Rows<'_>) {
    let mut lane = 0;
    while lane < BLOCK {
        // SAFETY: `lane + LANES` is at most `BLOCK`, and the slices have the lengths of `Rows`.
        unsafe {
            let kept = C::restore::<S>(rows.gates.as_ptr().add(lane), K::SHARES);
            let (mut d_gates, d_before) = K::gradient::<S, C>(
                kept,
                S::load(rows.cell.as_ptr().add(lane)),
                S::load(rows.before.as_ptr().add(lane)),
                S::load(rows.d_hidden.as_ptr().add(lane)),
                S::load(rows.d_cell.as_ptr().add(lane)),
            );
            S::store(rows.d_cell.as_mut_ptr().add(lane), d_before);
            if rows.units < BLOCK {
                let unit = S::load(UNITS.as_ptr().add(lane));
                for d in &mut d_gates {
                    *d = S::where_small(unit, rows.units as f32, *d, S::splat(0.0));
                }
            }
            let out = rows.d_gates.as_mut_ptr().add(lane);
            for (gate, mut d) in d_gates.into_iter().enumerate() {
                if C::PAIR == 1 {
                    d = C::join::<S>(d, d);
                }
                S::store(out.add(gate * BLOCK), d);
            }
            if C::PAIR > 1 {
                C::save_words::<S>(rows.words.as_mut_ptr().add(lane), d_gates);
            }
        }
        lane += S::LANES;
    }
}

/// `[dh | dx] = dgates · [W_hh | W_ih]` for the running samples of step `t`; `dh` may be missing where it is
/// not `needed`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the lint does not see comments in the argument of a macro"
)]
unsafe fn product<S: Simd, C: Compute>(run: &Run<'_>, t: usize, state: &mut State, needed: bool) {
    let Run { sizes, tile, packed, .. } = *run;
    let (blocks, columns) = (sizes.blocks(), state.columns);
    let row_words = C::gate_words();
    let gate_rows = blocks * row_words;
    let (d_gates, block_rows) = match C::PAIR {
        1 => (&state.d_gates.get()[state.waiting.len() * GATES..], state.room),
        _ => (state.words[0].get(), tile.rows()),
    };
    let back = state.back.get_mut();
    let mut column = 0;
    while column < columns {
        let width = panel_width((columns - column) / BLOCK);
        if !needed && column + width * BLOCK <= sizes.padded() {
            column += width * BLOCK;
            continue;
        }
        let panel = &packed[column * gate_rows..][..width * BLOCK * gate_rows];
        if let Some(tiles) = &state.tiles {
            let active = tile.active(t);
            // Where several tiles of rows read a panel, as much of it at once as the first cache holds; a block of
            // gates is two groups.
            let most = if active > amx::TILE { Tiles::in_cache::<C>() / 2 } else { blocks };
            for first in (0..blocks).step_by(most) {
                for row in (0..active).step_by(amx::TILE) {
                    let operands = Product {
                        a: d_gates[(first * block_rows + row) * row_words..].as_ptr(),
                        a_block: block_rows * row_words,
                        blocks: most.min(blocks - first),
                        panel: panel[first * row_words * width * BLOCK..].as_ptr(),
                        out: back[row * columns + column..].as_mut_ptr(),
                        out_row: columns,
                    };
                    let size = [amx::TILE.min(active - row), width];
                    // SAFETY: the words have room for whole tiles of rows.
                    unsafe { product_in_tiles::<C>(tiles, size, operands, first > 0) };
                }
            }
            column += width * BLOCK;
            continue;
        }
        for_row_tiles!(S, tile.active(t), row, M => {
            let out = &mut back[row * columns + column..];
            assert!(out.len() >= (M - 1) * columns + width * BLOCK);
            assert!(d_gates.len() >= ((blocks - 1) * block_rows + row + M) * row_words);
            let operands = Product {
                a: d_gates[row * row_words..].as_ptr(),
                a_block: block_rows * row_words,
                blocks,
                panel: panel.as_ptr(),
                out: out.as_mut_ptr(),
                out_row: columns,
            };
            // SAFETY: the slice of the panel and the assertions cover every element it touches.
            unsafe {
                match width {
                    4 => product_tile::<S, C, M, 4>(operands),
                    3 => product_tile::<S, C, M, 3>(operands),
                    2 => product_tile::<S, C, M, 2>(operands),
                    _ => product_tile::<S, C, M, 1>(operands),
                }
            }
        });
        column += width * BLOCK;
    }
}

/// Operands of [`product_tile`].
struct Product {
    /// Block 0 of the first row; rows follow each other, blocks are `a_block` apart.
    a: *const f32,
    a_block: usize,
    blocks: usize,
    /// `[blocks * gate words, N * 16]`
    panel: *const f32,
    out: *mut f32,
    out_row: usize,
}

/// Up to sixteen rows by some blocks of columns, added to what is there if it has `begun`.
///
/// # Safety
/// The pointers are valid for the shapes that [`Product`] states, of words, with room for sixteen rows of `a`.
unsafe fn product_in_tiles<C: Compute>(
    tiles: &Tiles,
    [rows, width]: [usize; 2],
    at: Product,
    begun: bool,
) {
    let words = C::gate_words();
    let row = width * BLOCK;
    let parts = (0..at.blocks).map(|block| amx::Part {
        a: at.a.wrapping_add(block * at.a_block),
        a_row: words,
        b: at.panel.wrapping_add(block * words * row),
        b_row: row,
        groups: words / group::<C>(),
        ahead: None,
    });
    let out = (at.out, at.out_row);
    // SAFETY: the caller's promise.
    unsafe { tiles.rows(rows, width, parts, out, if begun { amx::kept(out) } else { None }) };
}

/// `M` rows by `N` blocks of columns.
///
/// # Safety
/// That of [`Simd`]; the pointers are valid for the shapes that [`Product`] states.
#[inline(always)]
unsafe fn product_tile<S: Simd, C: Compute, const M: usize, const N: usize>(at: Product) {
    let mut lane = 0;
    while lane < BLOCK {
        // SAFETY: every address is within the shapes for which the caller vouches.
        unsafe {
            let mut acc = [[S::splat(0.0); N]; M];
            let count = GATES / C::PAIR;
            accumulate_parts::<S, C, M, N>(&mut acc, at.blocks, |block| {
                let mut a = [at.a; M];
                for (m, a) in a.iter_mut().enumerate() {
                    *a = at.a.add(block * at.a_block + m * count);
                }
                let b = at.panel.add(block * count * N * BLOCK + lane);
                Part { a, step: 1, b, count }
            });
            for (m, row) in acc.into_iter().enumerate() {
                for (n, value) in row.into_iter().enumerate() {
                    S::store(at.out.add(m * at.out_row + n * BLOCK + lane), value);
                }
            }
        }
        lane += S::LANES;
    }
}

/// Writes the input's part of the product into the gradient of the input; a second direction adds its own.
#[inline(always)]
fn input_gradient(run: &Run<'_>, t: usize, state: &State) {
    let Run { sizes, tile, .. } = *run;
    let first = sizes.padded();
    for (row, sample) in tile.samples[..tile.active(t)].iter().enumerate() {
        let (at, count) = (sizes.input(*sample, t), sizes.input);
        let from = &state.back.get()[row * state.columns + first..][..count];
        if run.direction == 0 {
            let to = run.results[0].pointer(at, count);
            // SAFETY: a sample belongs to one tile, and one task runs both of its directions.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
            continue;
        }
        // SAFETY: as above; the direction before wrote the same numbers.
        let d_input = unsafe { run.results[0].part(at, count) };
        for (d, value) in d_input.iter_mut().zip(from) {
            *d += value;
        }
    }
}
