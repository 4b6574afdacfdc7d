//! Attention of text encoders whose scores are more than products of queries and keys: with terms for
//! distances. Composed of Burn's operations; all scores are stored.
//!
//! Attention to all and within a window is [`firebox_kernels::self_attention`]'s.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{dropout, rounded};

use super::config::Disentangled;

/// Finite, so that a query that sees nothing is not NaN.
const LOWEST: f32 = -1e30;

/// What all layers need to know of distances, made once for a batch.
#[derive(Clone, Debug)]
pub(super) struct Distances {
    /// Vectors of the distances, `[2 · span, width]`.
    pub(super) vectors: Tensor<2>,
    /// Row of each distance `query - key`, `[query, key]`.
    pub(super) rows: Tensor<2, Int>,
}

/// The row of the table for every pair of places, `[query, key]`.
pub(super) fn rows_of_distances(
    rule: &Disentangled,
    time: usize,
    device: &Device,
) -> Tensor<2, Int> {
    let places = 0..time as i64;
    let rows: Vec<i64> =
        places.clone().flat_map(|q| places.clone().map(move |k| rule.row(q - k))).collect();
    Tensor::from_data(TensorData::new(rows, [time, time]), device)
}

/// Queries, keys and values of all heads, each `[batch, head, time, size]`, scaled by nothing.
pub(super) fn heads(x: Tensor<2>, [batch, time, heads]: [usize; 3]) -> Tensor<4> {
    let [_, width] = x.dims();
    x.reshape([batch, time, heads, width / heads]).swap_dims(1, 2)
}

/// The inverse of [`heads`]: `[rows, width]`.
pub(super) fn rows(x: Tensor<4>) -> Tensor<2> {
    let [batch, heads, time, size] = x.dims();
    x.swap_dims(1, 2).reshape([batch * time, heads * size])
}

/// A product in this type, summed in f32.
pub(super) fn product(precision: Precision, a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    firebox_kernels::product(precision, rounded(a, precision), rounded(b, precision))
}

/// Scores of content and of distances, `[batch, head, query, key]`.
///
/// `positions` holds queries and keys of the distances, each `[1, head, 2 · span, size]`.
pub(super) fn disentangled_scores(
    precision: Precision,
    rule: &Disentangled,
    [q, k]: [Tensor<4>; 2],
    positions: [Tensor<4>; 2],
    rows: &Tensor<2, Int>,
) -> Tensor<4> {
    let [batch, heads, time, size] = q.dims();
    let terms = 1 + usize::from(rule.content_to_position) + usize::from(rule.position_to_content);
    let scale = ((size * terms) as f64).sqrt().recip();
    let rows = rows.clone().reshape([1, 1, time, time]).expand([batch, heads, time, time]);
    let [of_queries, of_keys] = positions.map(|x| x.swap_dims(2, 3));
    let (q, k) = (q * scale, k);
    let mut scores = product(precision, q.clone(), k.clone().swap_dims(2, 3));
    if rule.content_to_position {
        scores = scores + product(precision, q, of_keys).gather(3, rows.clone());
    }
    if rule.position_to_content {
        // The row for `query - key`, found from the key's side.
        let of_content = product(precision, k * scale, of_queries);
        scores = scores + of_content.gather(3, rows.swap_dims(2, 3)).swap_dims(2, 3);
    }
    scores
}

/// Softmax over the keys that are seen, with dropout, and the values weighted by it.
pub(super) fn weighted(
    precision: Precision,
    scores: Tensor<4>,
    hidden: Tensor<4, Bool>,
    values: Tensor<4>,
    rate: f64,
    stream: Option<Stream>,
) -> Tensor<4> {
    let shape = scores.dims();
    let p = softmax(scores.mask_fill(hidden.expand(shape), LOWEST), 3);
    product(precision, dropout(p, rate, stream), values)
}

/// Which keys no query sees, `[batch, 1, query, key]`: those after the text's end.
pub(super) fn hidden(
    [batch, time]: [usize; 2],
    lengths: Option<&[usize]>,
    device: &Device,
) -> Tensor<4, Bool> {
    let mut hidden = Vec::with_capacity(batch * time * time);
    for sample in 0..batch {
        let length = lengths.map_or(time, |lengths| lengths[sample]);
        for _ in 0..time {
            hidden.extend((0..time).map(|key| key >= length));
        }
    }
    let data = TensorData::new(hidden, [batch, 1, time, time]);
    Tensor::from_data(data, &device.clone().without_autodiff())
}
