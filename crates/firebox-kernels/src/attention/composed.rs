//! Attention composed of Burn's own operations: for every device and float type, differentiated by
//! Burn, and the yardstick of the fused operation. All scores are stored.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Tensor, TensorData};

use super::Attention;
use crate::cpu::{AttentionLengths, AttentionSizes, ProbabilityMask, Sight};
use crate::device::{constant_like, tied};
use crate::products::product_of_rounded;

/// The same as [`attention()`](super::attention()), on inputs that fit.
pub(super) fn attention(
    inputs: [Tensor<3>; 3],
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    mask: Option<ProbabilityMask>,
    settings: &Attention,
) -> Tensor<3> {
    let AttentionSizes { batch, queries, keys, heads, size } = *sizes;
    let [q, k, v] = inputs;
    if keys == 0 {
        // Zeros of the queries' graph, whatever these hold.
        return tied(tied(clear(q, Some(&vec![0; batch])), &k), &v);
    }
    let (of_queries, of_keys) = (&lengths.queries, &lengths.keys);
    // Padding may hold NaN, which no later zero would take back out of a product.
    let [q, k, v] = [(q, of_queries), (k, of_keys), (v, of_keys)].map(|(x, lengths)| {
        let [_, rows, _] = x.dims();
        let x = clear(x, lengths.as_deref());
        x.reshape([batch, rows, heads, size]).swap_dims(1, 2)
    });
    let q = q.mul_scalar(settings.scale(size));
    let scores = product_of_rounded(settings.precision, q, k.swap_dims(2, 3));
    let sight = settings.sight(sizes);
    let mut p = match hidden(&scores, sizes, lengths, sight) {
        Some(hidden) => softmax_of_seen(scores, hidden),
        None => softmax(scores, 3),
    };
    if let Some(mask) = mask {
        let factors = factors(&p, sizes, mask);
        p = p * factors;
    }
    let out = product_of_rounded(settings.precision, p, v);
    let out = out.swap_dims(1, 2).reshape([batch, queries, heads * size]);
    let seen: Vec<usize> = (0..batch)
        .map(|sample| {
            let of = |lengths: &Option<Vec<usize>>, all| {
                lengths.as_ref().map_or(all, |lengths: &Vec<usize>| lengths[sample])
            };
            match of(of_keys, keys).min(keys) {
                0 => 0,
                keys => sight.seeing(of(of_queries, queries), keys),
            }
        })
        .collect();
    clear(out, Some(&seen))
}

/// Softmax over the last axis, with weight on what is not hidden alone. Of scores in f16 it is taken in f32: there is no
/// room for a number in f16 below all that they may be. A row that sees nothing has weights of no use, and no NaN.
pub(super) fn softmax_of_seen(scores: Tensor<4>, hidden: Tensor<4, Bool>) -> Tensor<4> {
    const LOWEST: f32 = -1e30;
    if scores.dtype() != DType::F16 {
        return softmax(scores.mask_fill(hidden, LOWEST), 3);
    }
    let p = softmax(scores.cast(DType::F32).mask_fill(hidden.clone(), LOWEST), 3);
    // Where all that is seen is infinitely low, what is hidden would have all the weight.
    p.mask_fill(hidden, 0.0).cast(DType::F16)
}

/// Zero after each length.
pub(super) fn clear(x: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<3> {
    let [batch, rows, width] = x.dims();
    let Some(lengths) = lengths.filter(|lengths| lengths.iter().any(|length| *length < rows))
    else {
        return x;
    };
    let over: Vec<bool> =
        lengths.iter().flat_map(|length| (0..rows).map(move |row| row >= *length)).collect();
    let over = Tensor::<3, Bool>::from_data(TensorData::new(over, [batch, rows, 1]), &x.device());
    x.mask_fill(over.expand([batch, rows, width]), 0.0)
}

/// Which keys each query does not see, or `None` if all see all.
fn hidden(
    scores: &Tensor<4>,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    sight: Sight,
) -> Option<Tensor<4, Bool>> {
    let AttentionSizes { batch, queries, keys, heads, .. } = *sizes;
    let padded = lengths.keys.as_ref().filter(|of| of.iter().any(|length| *length < keys));
    if padded.is_none() && !sight.causal && sight.window.is_none() {
        return None;
    }
    let mut hidden = Vec::with_capacity(batch * queries * keys);
    for sample in 0..batch {
        let length = padded.map_or(keys, |lengths| lengths[sample]);
        for query in 0..queries {
            hidden.extend((0..keys).map(|key| key >= length || !sight.sees(query, key)));
        }
    }
    let data = TensorData::new(hidden, [batch, 1, queries, keys]);
    let hidden = Tensor::<4, Bool>::from_data(data, &scores.device());
    Some(hidden.expand([batch, heads, queries, keys]))
}

/// What each probability is multiplied by, made on the host.
fn factors(like: &Tensor<4>, sizes: &AttentionSizes, mask: ProbabilityMask) -> Tensor<4> {
    let AttentionSizes { batch, queries, keys, heads, .. } = *sizes;
    let mut factors = vec![0.0; batch * heads * queries * keys];
    for (task, factors) in factors.chunks_exact_mut(queries * keys).enumerate() {
        let stream = mask.stream.substream(task as u64);
        for (query, factors) in factors.chunks_exact_mut(keys).enumerate() {
            for (group, factors) in factors.chunks_mut(8).enumerate() {
                let words = stream.block(query as u64 + ((group as u64) << 32));
                for (place, factor) in factors.iter_mut().enumerate() {
                    let bits = (words[place / 2] >> (16 * (place % 2))) as u16;
                    *factor = if bits >= mask.threshold { mask.scale } else { 0.0 };
                }
            }
        }
    }
    constant_like(like, TensorData::new(factors, [batch, heads, queries, keys]))
}
