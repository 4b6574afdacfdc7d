//! Two linear layers with an activation between them, whose results never leave a core's caches.
//! Gradients are not made here: training keeps what is between the layers.

use super::pool::Lent;
use super::product::{Activation, Rows, Weight};
use super::{Shared, in_order};

/// Rows that a thread takes at once, at most: what is between the layers stays near the core, and
/// weights are read from afar once for so many.
const ROWS: usize = 256;

/// Rows that are worth a task of their own: eight register tiles.
pub(super) const FEWEST: usize = 48;

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
    in_order(rows, [FEWEST, ROWS], |rows| {
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
