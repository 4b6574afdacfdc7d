//! What a recurrent cell does with the sums of its four columns, and the gradient of that: the same
//! as on the CPU (`cpu::cell`).
//!
//! An LSTM's columns are its gates: input, forget, cell, output. A GRU's are the reset gate, the
//! update gate, and the candidate's part from the input and part from the hidden state; its cell
//! state is its hidden state. The second column carries the cell state through the step in both.

use burn_cubecl::cubecl::{self, prelude::*};

/// The four columns of a unit, or the four weights that lead to them.
pub(super) type Columns<F> = Vector<F, Const<4>>;

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

/// The columns after their functions: what the gradient needs of them.
#[cube]
pub(super) fn kept(sums: Columns<f32>, #[comptime] gru: bool) -> Columns<f32> {
    let mut kept = sums;
    let first = sigmoid(sums.extract(0usize));
    kept.insert(0usize, first);
    kept.insert(1usize, sigmoid(sums.extract(1usize)));
    if comptime!(gru) {
        kept.insert(2usize, (sums.extract(2usize) + first * sums.extract(3usize)).tanh());
    } else {
        kept.insert(2usize, sums.extract(2usize).tanh());
        kept.insert(3usize, sigmoid(sums.extract(3usize)));
    }
    kept
}

/// The cell state after a step.
#[cube]
pub(super) fn cell_after(kept: Columns<f32>, before: f32, #[comptime] gru: bool) -> f32 {
    if comptime!(gru) {
        let candidate = kept.extract(2usize);
        candidate + kept.extract(1usize) * (before - candidate)
    } else {
        kept.extract(1usize) * before + kept.extract(0usize) * kept.extract(2usize)
    }
}

/// The hidden state after a step, from the cell state after it.
#[cube]
pub(super) fn hidden_after(kept: Columns<f32>, cell: f32, #[comptime] gru: bool) -> f32 {
    if comptime!(gru) { cell } else { kept.extract(3usize) * cell.tanh() }
}

/// The whole gradient of the cell state after a step. That of the state before it is this times the
/// second column.
#[cube]
pub(super) fn d_cell_after(
    kept: Columns<f32>,
    cell: f32,
    d_hidden: f32,
    d_cell: f32,
    #[comptime] gru: bool,
) -> f32 {
    if comptime!(gru) {
        d_cell + d_hidden
    } else {
        let tanh_c = cell.tanh();
        d_cell + d_hidden * kept.extract(3usize) * (1.0f32 - tanh_c * tanh_c)
    }
}

/// The gradients of the columns' sums, from the whole gradient of the cell state.
#[cube]
pub(super) fn d_sums(
    kept: Columns<f32>,
    cell: f32,
    before: f32,
    d_hidden: f32,
    d_cell: f32,
    #[comptime] gru: bool,
) -> Columns<f32> {
    let a = kept.extract(0usize);
    let b = kept.extract(1usize);
    let g = kept.extract(2usize);
    let last = kept.extract(3usize);
    let mut d = Columns::<f32>::new(0.0f32);
    if comptime!(gru) {
        let d_candidate = d_cell * (1.0f32 - b) * (1.0f32 - g * g);
        d.insert(0usize, d_candidate * last * a * (1.0f32 - a));
        d.insert(1usize, d_cell * (before - g) * b * (1.0f32 - b));
        d.insert(2usize, d_candidate);
        d.insert(3usize, d_candidate * a);
    } else {
        d.insert(0usize, d_cell * g * a * (1.0f32 - a));
        d.insert(1usize, d_cell * before * b * (1.0f32 - b));
        d.insert(2usize, d_cell * a * (1.0f32 - g * g));
        d.insert(3usize, d_hidden * cell.tanh() * last * (1.0f32 - last));
    }
    d
}
