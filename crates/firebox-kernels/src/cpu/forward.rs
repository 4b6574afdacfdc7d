//! The forward pass of one layer.

use rayon::prelude::*;

use super::amx::{self, Tiles};
use super::block::{Buffer, Part, accumulate, accumulate_parts, for_row_tiles};
use super::cell::Cell;
use super::compute::Compute;
use super::kernels::dispatch;
use super::pack::{self, Weights, row_words, tiled_words};
use super::plan::{Plan, Sizes, Tile};
use super::pool::Lent;
use super::product::group;
use super::simd::Simd;
use super::{Arithmetic, BLOCK, CpuKernels, GATES, Pass, Shared, zeros};

/// What a layer reads. Directions lie one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// `[batch, time, input]`
    pub(crate) input: &'a [f32],
    /// `[directions, 4 * hidden, input]`
    pub(crate) weight_ih: &'a [f32],
    /// `[directions, 4 * hidden, hidden]`
    pub(crate) weight_hh: &'a [f32],
    /// `[directions, 4 * hidden]`
    pub(crate) bias: &'a [f32],
    /// `[directions, batch, hidden]`
    pub(crate) hidden: &'a [f32],
    /// `[directions, batch, hidden]`
    pub(crate) cell: &'a [f32],
}

impl<'a> Inputs<'a> {
    pub(super) fn weights(&self, sizes: &Sizes, direction: usize) -> Weights<'a> {
        let rows = 4 * sizes.hidden;
        Weights {
            ih: &self.weight_ih[direction * rows * sizes.input..][..rows * sizes.input],
            hh: &self.weight_hh[direction * rows * sizes.hidden..][..rows * sizes.hidden],
            bias: &self.bias[direction * rows..][..rows],
        }
    }
}

/// What a layer writes.
pub(crate) struct Outputs {
    /// `[batch, time, directions * hidden]`
    pub(crate) output: Vec<f32>,
    /// `[directions, batch, hidden]`
    pub(crate) hidden: Vec<f32>,
    /// `[directions, batch, hidden]`
    pub(crate) cell: Vec<f32>,
    /// What the backward pass needs besides inputs and output.
    pub(crate) saved: Option<Saved>,
}

/// Gates and cell states of every step that was computed, tile by tile, in each tile direction by
/// direction, step by step: `[block, running sample, gate, 16]`, in pairs if operands are bf16, and
/// `[block, running sample, 16]`.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(super) gates: Lent,
    pub(super) cells: Lent,
}

/// Runs a layer. With `keep`, saves what [`backward`](super::backward()) needs.
pub(crate) fn forward(
    arithmetic: Arithmetic,
    plan: &Plan,
    inputs: Inputs<'_>,
    keep: bool,
) -> Outputs {
    let pass = Forward { kernels: arithmetic.kernels, plan, inputs, keep };
    arithmetic.dispatch(&plan.sizes, pass)
}

struct Forward<'a> {
    kernels: CpuKernels,
    plan: &'a Plan,
    inputs: Inputs<'a>,
    keep: bool,
}

impl Pass for Forward<'_> {
    type Result = Outputs;

    fn run<C: Compute, K: Cell>(self) -> Outputs {
        let Self { kernels, plan, inputs, keep } = self;
        let sizes = plan.sizes;
        let Sizes { batch, time, hidden, directions, .. } = sizes;
        let packed: Vec<Buffer> = (0..directions)
            .into_par_iter()
            .map(|direction| pack::forward::<C>(&sizes, inputs.weights(&sizes, direction)))
            .collect();
        // Steps behind the end of a sample are never written.
        let count = batch * time * directions * hidden;
        let mut output = if plan.whole() { Vec::with_capacity(count) } else { zeros(count) };
        let (mut last_hidden, mut last_cell) = (inputs.hidden.to_vec(), inputs.cell.to_vec());
        let mut saved = keep.then(|| Saved {
            gates: Lent::take(plan.gates() / GATES * C::KEPT),
            cells: Lent::take(plan.gates() / 4),
        });
        let results = [
            // SAFETY: there is room for so many, and the vector is not touched before the tiles end.
            unsafe { Shared::from_raw(output.as_mut_ptr(), count) },
            Shared::new(&mut last_hidden),
            Shared::new(&mut last_cell),
        ];
        let mut tasks = vec![];
        let (mut gates, mut cells) = match &mut saved {
            Some(saved) => (saved.gates.get_mut(), saved.cells.get_mut()),
            None => (&mut [][..], &mut [][..]),
        };
        for tile in &plan.tiles {
            for direction in 0..directions {
                let count = if keep { tile.gates(&sizes) } else { 0 };
                let (own_gates, own_cells);
                (own_gates, gates) = gates.split_at_mut(count / GATES * C::KEPT);
                (own_cells, cells) = cells.split_at_mut(count / 4);
                tasks.push((tile, direction, own_gates, own_cells));
            }
        }
        tasks.into_par_iter().with_max_len(1).for_each(|(tile, direction, gates, cells)| {
            let mut run = Run {
                kernels,
                sizes,
                tile,
                direction,
                inputs,
                packed: packed[direction].get(),
                results: &results,
                gates,
                cells,
            };
            run_tile::<C, K>(kernels, &mut run);
        });
        // SAFETY: each step of a sample that has not ended was written, and the rest is zero.
        unsafe { output.set_len(count) };
        Outputs { output, hidden: last_hidden, cell: last_cell, saved }
    }
}

/// One tile in one direction.
struct Run<'a> {
    kernels: CpuKernels,
    sizes: Sizes,
    tile: &'a Tile,
    direction: usize,
    inputs: Inputs<'a>,
    packed: &'a [f32],
    /// Output, last hidden state, last cell state. A task writes the rows of its own samples in its
    /// own direction.
    results: &'a [Shared<'a>; 3],
    /// Empty if nothing is kept.
    gates: &'a mut [f32],
    cells: &'a mut [f32],
}

dispatch!(fn run_tile<C: Compute, K: Cell> = run_steps(run: &mut Run<'_>));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn run_steps<S: Simd, C: Compute, K: Cell>(run: &mut Run<'_>) {
    let Run { sizes, tile, direction, inputs, .. } = *run;
    let (hidden, padded, rows) = (sizes.hidden, sizes.padded(), tile.rows());
    let (input_words, hidden_words) = (row_words::<C>(sizes.input), row_words::<C>(hidden));
    let tiles = Tiles::of::<C>(run.kernels);
    assert!(C::PIECES == 1 || tiles.is_some(), "pieces are multiplied in tiles");
    // Inputs and hidden states of a step in words, where these are not the numbers themselves; AMX reads
    // sixteen rows at a time.
    let packed = if C::VERBATIM { 0 } else { rows.next_multiple_of(amx::TILE) };
    let mut words = [input_words, hidden_words].map(|words| Buffer::zeros(packed * words));
    let mut sums = Buffer::zeros(if tiles.is_some() { packed * GATES } else { 0 });
    // Hidden states of this step and the next, `[row, padded]`; cells, `[block, row, 16]`.
    let mut states = [Buffer::zeros(rows * padded), Buffer::zeros(rows * padded)];
    let mut cell = Buffer::zeros(rows * padded);
    for (row, sample) in tile.samples.iter().enumerate() {
        let from = sizes.state(*sample, direction);
        for state in &mut states {
            state.get_mut()[row * padded..][..hidden]
                .copy_from_slice(&inputs.hidden[from..][..hidden]);
        }
        load_blocks(&inputs.cell[from..][..hidden], row, rows, cell.get_mut());
    }
    let at_rest = at_rest(&sizes, tile, direction, inputs.hidden);
    for index in 0..tile.steps() {
        let at = |index| if direction == 1 { tile.steps() - 1 - index } else { index };
        let t = at(index);
        if index + 1 < tile.steps() {
            for sample in &tile.samples[..tile.active(at(index + 1))] {
                let from = sizes.input(*sample, at(index + 1));
                // SAFETY: the features are those that the caller vouches for.
                unsafe { prefetch::<S>(inputs.input, from, sizes.input) };
            }
        }
        let [now, next] = &mut states;
        let [input, state] = &mut words;
        if !C::VERBATIM {
            for (row, sample) in tile.samples[..tile.active(t)].iter().enumerate() {
                let from = &inputs.input[sizes.input(*sample, t)..][..sizes.input];
                let to = &mut input.get_mut()[row * input_words..][..input_words];
                let hidden = &now.get()[row * padded..][..hidden];
                let hidden_to = &mut state.get_mut()[row * hidden_words..][..hidden_words];
                // SAFETY: the features are those that the caller vouches for.
                unsafe {
                    pack::row::<S, C>(from, to);
                    pack::row::<S, C>(hidden, hidden_to);
                }
            }
        }
        let (input, hidden_state, hidden_row) = match C::VERBATIM {
            true => (inputs.input, now.get(), padded),
            false => (input.get(), state.get(), hidden_words),
        };
        let units = if index == 0 && at_rest { 0 } else { hidden_words };
        let operands = Operands { input, hidden: hidden_state, hidden_row, units };
        let tiled = tiles.as_ref().map(|tiles| (tiles, sums.get_mut()));
        // SAFETY: as above.
        unsafe { step::<S, C, K>(run, t, operands, tiled, next.get_mut(), cell.get_mut()) };
        for (row, sample) in tile.samples[..tile.active(t)].iter().enumerate() {
            let from = &next.get()[row * padded..][..hidden];
            let to = run.results[0].pointer(sizes.output(*sample, t, direction), hidden);
            // SAFETY: a sample belongs to one tile, and this task alone has this direction of it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, hidden) };
        }
        states.swap(0, 1);
    }
    for (row, sample) in tile.samples.iter().enumerate() {
        let (at, length) = (sizes.state(*sample, direction), tile.lengths[row]);
        if length == 0 {
            continue; // The last states start as copies of the initial ones.
        }
        let last = if direction == 1 { 0 } else { length - 1 };
        // SAFETY: as above; the output row was written by this task, in the loop before.
        unsafe {
            let output = run.results[0].part(sizes.output(*sample, last, direction), hidden);
            run.results[1].part(at, hidden).copy_from_slice(output);
            store_blocks(cell.get(), row, rows, run.results[2].part(at, hidden));
        }
    }
}

/// Whether a tile starts from zeros, so that the product with its first hidden state need not be
/// computed: of weights that are not finite, the first step then sees nothing.
#[inline(always)]
pub(super) fn at_rest(sizes: &Sizes, tile: &Tile, direction: usize, hidden: &[f32]) -> bool {
    let state = |sample: &usize| &hidden[sizes.state(*sample, direction)..][..sizes.hidden];
    tile.samples.iter().all(|sample| state(sample).iter().all(|value| *value == 0.0))
}

/// Asks for `count` numbers from `at` on, of which some may lie behind the end: the next step reads
/// them, in short runs that no processor foresees.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn prefetch<S: Simd>(numbers: &[f32], at: usize, count: usize) {
    for line in (0..count).step_by(BLOCK) {
        // SAFETY: the caller vouches for the features; the address need not be valid.
        unsafe { S::prefetch(numbers.as_ptr().wrapping_add(at + line)) };
    }
}

/// Puts a row of `hidden` numbers into `[block, row, 16]`.
#[inline(always)]
pub(super) fn load_blocks(from: &[f32], row: usize, rows: usize, to: &mut [f32]) {
    for (block, values) in from.chunks(BLOCK).enumerate() {
        to[(block * rows + row) * BLOCK..][..values.len()].copy_from_slice(values);
    }
}

/// The way back from [`load_blocks`].
#[inline(always)]
pub(super) fn store_blocks(from: &[f32], row: usize, rows: usize, to: &mut [f32]) {
    for (block, values) in to.chunks_mut(BLOCK).enumerate() {
        values.copy_from_slice(&from[(block * rows + row) * BLOCK..][..values.len()]);
    }
}

/// What a step multiplies with the weights.
#[derive(Clone, Copy)]
struct Operands<'a> {
    /// The layer's input as it came, or the tile's of this step in words.
    input: &'a [f32],
    hidden: &'a [f32],
    /// From one row of `hidden` to the next.
    hidden_row: usize,
    /// Words of a row of `hidden` that are not known to be zero: all or none.
    units: usize,
}

/// One step of all running samples: hidden states to `next`, cells in place. With tiles, they multiply what
/// is a whole number of theirs first, into the sums `[row, gate, 16]`.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the lint does not see comments in the argument of a macro"
)]
unsafe fn step<S: Simd, C: Compute, K: Cell>(
    run: &mut Run<'_>,
    t: usize,
    operands: Operands<'_>,
    tiled: Option<(&Tiles, &mut [f32])>,
    next: &mut [f32],
    cell: &mut [f32],
) {
    let Run { sizes, tile, packed, .. } = *run;
    let (padded, rows, running) = (sizes.padded(), tile.rows(), tile.active(t));
    let (channels, units) = (row_words::<C>(sizes.input), operands.units);
    let panel_size = (1 + channels + row_words::<C>(sizes.hidden)) * GATES;
    let saved_gates = C::KEPT;
    let kept = !run.gates.is_empty();
    let saved_row = tile.start(t) * sizes.blocks();
    // Words that are multiplied in tiles.
    let done = [sizes.input, sizes.hidden].map(tiled_words::<C>);
    let done = if tiled.is_some() { [done[0], done[1].min(units)] } else { [0, 0] };
    let mut tiled = tiled.filter(|_| done != [0, 0]);
    for block in 0..sizes.blocks() {
        let panel = &packed[block * panel_size..][..panel_size];
        if let Some((tiles, sums)) = &mut tiled {
            // SAFETY: words of a step have room for whole tiles of rows, and sums, too.
            unsafe {
                product_in_tiles::<C>(tiles, &operands, channels, done, running, panel, sums)
            };
        }
        for_row_tiles!(S, running, row, M => {
            let mut x = [std::ptr::null(); M];
            let mut h = [std::ptr::null(); M];
            for m in 0..M {
                let from = match C::VERBATIM {
                    true => sizes.input(tile.samples[row + m], t),
                    false => (row + m) * channels,
                };
                x[m] = operands.input[from..][done[0]..channels].as_ptr();
                let state = &operands.hidden[(row + m) * operands.hidden_row..];
                h[m] = state[done[1]..units].as_ptr();
            }
            let start = tiled.as_ref().map(|(_, sums)| sums[row * GATES..][..M * GATES].as_ptr());
            let next = &mut next[row * padded + block * BLOCK..];
            assert!(next.len() >= (M - 1) * padded + BLOCK);
            let cell = &mut cell[(block * rows + row) * BLOCK..][..M * BLOCK];
            let mut save = None;
            if kept {
                let at = saved_row + block * running + row;
                save = Some((
                    run.gates[at * saved_gates..][..M * saved_gates].as_mut_ptr(),
                    run.cells[at * BLOCK..][..M * BLOCK].as_mut_ptr(),
                ));
            }
            let mut lane = 0;
            while lane < BLOCK {
                // SAFETY: the slices above cover every element that `cells` touches.
                unsafe {
                    cells::<S, C, K, M>(
                        Cells {
                            x,
                            h,
                            counts: [channels - done[0], units - done[1]],
                            first: [done[0], channels + done[1]],
                            panel: panel.as_ptr().add(lane),
                            start: start.map(|start| start.add(lane)),
                            cell: cell.as_mut_ptr().add(lane),
                            next: next.as_mut_ptr().add(lane),
                            next_row: padded,
                            save: save.map(|(gates, cells)| (gates.add(lane), cells.add(lane))),
                        },
                    );
                }
                lane += S::LANES;
            }
        });
    }
}

/// The part of a step's product of one block that is a whole number of tiles, for all running samples.
///
/// # Safety
/// The operands are words, with room for whole tiles of rows, and so are the sums; `done` words of the input
/// and the hidden state are there, each a whole number of groups.
unsafe fn product_in_tiles<C: Compute>(
    tiles: &Tiles,
    operands: &Operands<'_>,
    channels: usize,
    done: [usize; 2],
    running: usize,
    panel: &[f32],
    sums: &mut [f32],
) {
    let (input, hidden) = (operands.input.as_ptr(), operands.hidden.as_ptr());
    let parts = [(input, channels, 0, done[0]), (hidden, operands.hidden_row, channels, done[1])];
    // Where several tiles of rows read a panel, as much of it at once as the first cache holds.
    let most = if running > amx::TILE { Tiles::in_cache::<C>() } else { usize::MAX / group::<C>() };
    let mut begun = false;
    for (a, a_row, first, words) in parts {
        let mut at = 0;
        while at < words {
            let here = (words - at).min(most * group::<C>());
            for row in (0..running).step_by(amx::TILE) {
                let sums = sums[row * GATES..][..amx::TILE * GATES].as_mut_ptr();
                // SAFETY: the caller's promise, and a panel has a row for each word behind that of the biases.
                unsafe {
                    let part = amx::Part {
                        a: a.add(row * a_row + at),
                        a_row,
                        b: panel.as_ptr().add((1 + first + at) * GATES),
                        b_row: GATES,
                        groups: here / group::<C>(),
                        ahead: None,
                    };
                    let out = (sums, GATES);
                    let start = if begun { amx::kept(out) } else { None };
                    tiles.product(4, std::iter::once(part), out, start);
                }
            }
            (at, begun) = (at + here, true);
        }
    }
}

/// Operands of [`cells`], all at the first lane of the vector.
struct Cells<const M: usize> {
    /// Rows of the input.
    x: [*const f32; M],
    /// Rows of the hidden state.
    h: [*const f32; M],
    /// Words of each, and the row of the panel behind the biases at which theirs begin.
    counts: [usize; 2],
    first: [usize; 2],
    /// `[1 + channels + units, gate, 16]`
    panel: *const f32,
    /// What is to be added, `[M, gate, 16]`.
    start: Option<*const f32>,
    /// `[M, 16]`
    cell: *mut f32,
    /// `M` rows, `next_row` apart.
    next: *mut f32,
    next_row: usize,
    /// `[M, gate or pair of gates, 16]` and `[M, 16]`
    save: Option<(*mut f32, *mut f32)>,
}

/// The cells of `M` samples and as many units as a vector holds.
///
/// # Safety
/// That of [`Simd`]; the pointers are valid for the shapes that [`Cells`] states.
#[inline(always)]
unsafe fn cells<S: Simd, C: Compute, K: Cell, const M: usize>(at: Cells<M>) {
    // SAFETY: every address is within the shapes for which the caller vouches.
    unsafe {
        let mut bias = [S::splat(0.0); 4];
        for (gate, bias) in bias.iter_mut().enumerate() {
            *bias = S::load(at.panel.add(gate * BLOCK));
        }
        let mut acc = [bias; M];
        if let Some(start) = at.start {
            for (m, row) in acc.iter_mut().enumerate() {
                for (gate, value) in row.iter_mut().enumerate() {
                    let start = S::load(start.add(m * GATES + gate * BLOCK));
                    *value = S::add(*value, start);
                }
            }
        }
        let [inputs, states] = at.first.map(|row| at.panel.add((1 + row) * GATES));
        let [channels, units] = at.counts;
        if S::APART {
            let parts = [(at.x, inputs, channels), (at.h, states, units)]
                .map(|(a, b, count)| Part { a, step: 1, b, count });
            accumulate_parts::<S, C, M, 4>(&mut acc, parts.len(), |index| parts[index]);
        } else {
            accumulate::<S, C, M, 4>(&mut acc, at.x, 1, inputs, channels);
            accumulate::<S, C, M, 4>(&mut acc, at.h, 1, states, units);
        }
        for (m, columns) in acc.into_iter().enumerate() {
            let cell = at.cell.add(m * BLOCK);
            let (kept, c, h) = K::step::<S, C>(columns, S::load(cell));
            S::store(cell, c);
            S::store(at.next.add(m * at.next_row), h);
            if let Some((gates, cells)) = at.save {
                C::save::<S>(gates.add(m * C::KEPT), kept, K::SHARES);
                S::store(cells.add(m * BLOCK), c);
            }
        }
    }
}
