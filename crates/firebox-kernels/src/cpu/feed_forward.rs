//! Linear layers that follow one another, whose results never leave a core's caches: two with an activation
//! between them, or any number with normalisations. Gradients are not made here: training keeps what is
//! between the layers.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::amx::TILE;
use super::batch_norm::{Affine, normalise_rows};
use super::pool::Lent;
use super::product::{Activation, Rows, Weight};
use super::{CpuKernels, Shared, in_order, written};

/// Rows that a thread takes at once, at most, a multiple of [`TILE`]: what is between the layers stays near the core, and
/// weights are read from afar once for so many.
const ROWS: usize = 256;

/// Rows that are worth a task of their own: eight register tiles.
pub(super) const FEWEST: usize = 48;

/// Runs a task for each part of so many rows, of whole tiles but for the last.
fn in_groups(rows: usize, run: impl Fn(Range<usize>) + Sync) {
    let groups = [FEWEST, ROWS].map(|rows| rows / TILE);
    in_order(rows.div_ceil(TILE), groups, |part| run(part.start * TILE..rows.min(part.end * TILE)));
}

/// `second(activation(first(x)))` for rows of `x`, `[rows, first.input]`.
pub(crate) fn feed_forward(
    first: &Weight<'_>,
    activation: Activation,
    second: &Weight<'_>,
    x: &[f32],
) -> Vec<f32> {
    let rows = x.len() / first.input;
    let mut out = Vec::with_capacity(rows * second.output);
    // SAFETY: there is room for so many numbers, and the memory is nobody else's.
    let shared = unsafe { Shared::from_raw(out.as_mut_ptr(), rows * second.output) };
    in_groups(rows, |rows| {
        let count = rows.len() * second.output;
        let to = shared.pointer(rows.start * second.output, count);
        // SAFETY: parts do not overlap, and each is one task's.
        let to = unsafe { Shared::from_raw(to, count) };
        let x = &x[rows.start * first.input..rows.end * first.input];
        fed(first, activation, second, x, None, &to);
    });
    // SAFETY: every row was written.
    unsafe { out.set_len(rows * second.output) };
    out
}

/// The same of some rows by the calling thread, added to `addend` if there is one.
pub(super) fn fed(
    first: &Weight<'_>,
    activation: Activation,
    second: &Weight<'_>,
    x: &[f32],
    addend: Option<&[f32]>,
    out: &Shared<'_>,
) {
    let rows = x.len() / first.input;
    let mut packed = Lent::take(first.packed(rows));
    let mut between = Lent::take(second.packed(rows));
    let x = first.pack(x, packed.get_mut());
    first.activated(rows, x, activation, second, between.get_mut());
    second.multiply(Rows::Packed(between.get()), addend, out);
}

/// A linear layer and what follows it.
pub(crate) struct DenseLayer<'a> {
    pub(crate) weight: Weight<'a>,
    /// A normalisation by statistics that are known, and whether what is negative then becomes zero.
    pub(crate) norm: Option<(Affine, bool)>,
}

/// Whether so many rows leave no thread without work, or weights of so many numbers are read so fast that
/// threads are better not woken for each.
pub(crate) fn are_worth_a_task(rows: usize, weights: usize) -> bool {
    rows >= FEWEST * rayon::current_num_threads() || weights <= SMALL
}

/// Numbers of weights that stay in a core's own cache beside some rows.
const SMALL: usize = 1 << 17;

/// All layers one after the other, after a normalisation of their input if there is one, for rows of `x`,
/// `[rows, input of the first]`, of which there is at least one, as there is of layers.
pub(crate) fn dense_layers(
    kernels: CpuKernels,
    before: Option<&Affine>,
    layers: &[DenseLayer<'_>],
    x: &[f32],
) -> Vec<f32> {
    let (input, output) = (layers[0].weight.input, layers[layers.len() - 1].weight.output);
    let rows = x.len() / input;
    let write = |out: &mut [MaybeUninit<f32>]| {
        // SAFETY: the memory is nobody else's as long as this runs.
        let shared = unsafe { Shared::from_raw(out.as_mut_ptr().cast::<f32>(), out.len()) };
        in_groups(rows, |rows| {
            let count = rows.len() * output;
            let to = shared.pointer(rows.start * output, count);
            // SAFETY: parts do not overlap, and each is one task's.
            let to = unsafe { Shared::from_raw(to, count) };
            dense_rows(kernels, before, layers, &x[rows.start * input..rows.end * input], &to);
        });
    };
    // SAFETY: each row is some task's, which writes it.
    unsafe { written(rows * output, write) }.0
}

/// The same of some rows by the calling thread.
fn dense_rows(
    kernels: CpuKernels,
    before: Option<&Affine>,
    layers: &[DenseLayer<'_>],
    x: &[f32],
    out: &Shared<'_>,
) {
    let rows = x.len() / layers[0].weight.input;
    let most = |size: fn(&Weight<'_>, usize) -> usize| {
        Lent::take(layers.iter().map(|layer| size(&layer.weight, rows)).max().unwrap_or_default())
    };
    let mut packed = most(|weight, rows| weight.packed(rows));
    let mut sums = [0; 2].map(|_| most(|weight, rows| rows * weight.output));
    let [now, next] = &mut sums;
    let (mut now, mut next) = (now.get_mut(), next.get_mut());
    let mut norm = before.map(|affine| (affine, false));
    for (index, layer) in layers.iter().enumerate() {
        let weight = &layer.weight;
        let numbers = if index == 0 { x } else { &now[..rows * weight.input] };
        let room = &mut packed.get_mut()[..weight.packed(rows)];
        let operand = match norm {
            Some((affine, rectify)) => weight.pack_normalised(numbers, affine, rectify, room),
            None => weight.pack(numbers, room),
        };
        norm = layer.norm.as_ref().map(|(affine, rectify)| (affine, *rectify));
        if index + 1 == layers.len() && norm.is_none() {
            weight.multiply(operand, None, out);
        } else {
            weight.multiply(operand, None, &Shared::new(&mut next[..rows * weight.output]));
            std::mem::swap(&mut now, &mut next);
        }
    }
    if let Some((affine, rectify)) = norm {
        // SAFETY: the rows are this task's.
        let out = unsafe { out.part(0, out.len) };
        normalise_rows(kernels, &now[..out.len()], affine, rectify, out);
    }
}
