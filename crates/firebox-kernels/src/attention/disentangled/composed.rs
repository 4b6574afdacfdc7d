//! Disentangled attention composed of Burn's own operations: for every device and float type,
//! differentiated by Burn, and the yardstick of the fused operation. All scores are stored.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use firebox_core::Stream;

use super::{DisentangledAttention, DisentangledSizes, DistanceRows};
use crate::attention::composed::{clear, softmax_of_seen};
use crate::dropout::dropout;
use crate::products::product_of_rounded;

/// The same as [`disentangled_attention`](super::disentangled_attention), on operands that fit and have numbers.
pub(super) fn attention(
    qkv: Tensor<3>,
    positions: Tensor<2>,
    distances: &DistanceRows,
    lengths: Option<&[usize]>,
    stream: Option<Stream>,
    sizes: DisentangledSizes,
    settings: &DisentangledAttention,
) -> Tensor<3> {
    let DisentangledSizes { batch, time, heads, size } = sizes;
    let width = heads * size;
    // Padding may hold NaN, which no later zero would take back out of a product.
    let qkv = clear(qkv, lengths);
    let part = |index: usize| {
        let part = qkv.clone().narrow(2, index * width, width);
        part.reshape([batch, time, heads, size]).swap_dims(1, 2)
    };
    let [rows, _] = positions.dims();
    let of_table = |index: usize| {
        let part = positions.clone().narrow(1, index * width, width);
        part.reshape([1, rows, heads, size]).swap_dims(1, 2)
    };
    let scores = scores([part(0), part(1)], [of_table(0), of_table(1)], distances, sizes, settings);
    let padded = lengths.filter(|lengths| lengths.iter().any(|length| *length < time));
    let p = match padded {
        Some(lengths) => {
            let hidden = hidden([batch, time], lengths, &scores.device().without_autodiff());
            softmax_of_seen(scores, hidden.expand([batch, heads, time, time]))
        }
        None => softmax(scores, 3),
    };
    let p = dropout(p, settings.dropout, stream);
    let out = product_of_rounded(settings.precision, p, part(2));
    clear(out.swap_dims(1, 2).reshape([batch, time, width]), lengths)
}

/// Scores of content and of distances, `[batch, head, query, key]`, from queries and keys, `[batch, head, time, size]`,
/// and those of distances, `[1, head, rows, size]`.
fn scores(
    [q, k]: [Tensor<4>; 2],
    positions: [Tensor<4>; 2],
    distances: &DistanceRows,
    sizes: DisentangledSizes,
    settings: &DisentangledAttention,
) -> Tensor<4> {
    let DisentangledSizes { batch, time, heads, size } = sizes;
    let times = |a: Tensor<4>, b: Tensor<4>| product_of_rounded(settings.precision, a, b);
    let rows = distances.pairs(&q.device().without_autodiff());
    let rows = rows.reshape([1, 1, time, time]).expand([batch, heads, time, time]);
    let [of_queries, of_keys] = positions.map(|x| x.swap_dims(2, 3));
    let scale = settings.scale(size);
    let q = q * scale;
    let mut scores = times(q.clone(), k.clone().swap_dims(2, 3));
    if settings.content_to_position {
        scores = scores + times(q, of_keys).gather(3, rows.clone());
    }
    if settings.position_to_content {
        // The row for `query - key`, found from the key's side.
        let of_content = times(k * scale, of_queries);
        scores = scores + of_content.gather(3, rows.swap_dims(2, 3)).swap_dims(2, 3);
    }
    scores
}

/// Which keys each query does not see, `[batch, 1, 1, key]`.
fn hidden([batch, time]: [usize; 2], lengths: &[usize], device: &Device) -> Tensor<4, Bool> {
    let hidden: Vec<bool> =
        lengths.iter().flat_map(|length| (0..time).map(move |key| key >= *length)).collect();
    Tensor::from_data(TensorData::new(hidden, [batch, 1, 1, time]), device)
}
