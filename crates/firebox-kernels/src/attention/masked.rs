//! Attention with masks in place of lengths: the rows that a mask leaves are taken to the front of their
//! sample, attended to with lengths, and put back at their places. No kernel knows of masks.

use burn::tensor::Tensor;
use firebox_core::Stream;

use super::permutation::Permutation;
use super::{Attention, attention, attention_sizes, named, self_attention};
use crate::cpu::AttentionSizes;
use crate::operands::{Operand, listed, operand};

/// [`attention()`] with masks in place of lengths: padding on the left, gaps, whatever a tokenizer's
/// `attention_mask` leaves out.
///
/// True is a valid row, as in Hugging Face's `attention_mask`; PyTorch's `key_padding_mask` is the opposite.
/// Keys that a mask leaves out are not seen, and queries that one leaves out give zeros, as do all queries of
/// a sample without any valid key; both get no gradient and may hold anything.
///
/// The valid rows of each sample are taken to its front, in their order, before [`attention()`], and the
/// result goes back to their places: no scores are stored where none are without a mask, and padding is not
/// computed. That costs a pass through memory for each tensor whose mask has a valid row after one that is
/// not, one for the result if it is the queries', and the same for gradients; one more for a tensor whose rows do not
/// lie one after the other in memory, such as a part of another's columns. Any other mask is lengths:
/// nothing is copied, and the result is theirs to the bit. Dropout, a causal rule and a window count valid rows
/// alone: query `i` and key `j` of the stream are the sample's valid ones of these numbers, so that a gap
/// brings what is on both sides of it nearer. Source: the unpadding of
/// FlashAttention (`flash_attn/bert_padding.py`, Dao et al., "FlashAttention", 2022).
///
/// # Shapes
/// - q: `[batch, queries, heads · size]`, in any strides
/// - k, v: `[batch, keys, heads · size]`
/// - query_mask: `[batch, queries]` and key_mask: `[batch, keys]`, one row after the other; all rows are valid
///   if `None`
/// - the result: `[batch, queries, heads · size]`
///
/// # Panics
/// As [`attention()`], and if a mask has not an entry for each row. Under a causal rule, if masks differ so
/// that a valid query would see other keys by its number than by its place; with one mask for both it never
/// does. Within a window, if masks differ and the valid rows of one of them are not in front. The message holds the
/// shapes and types.
#[track_caller]
pub fn attention_masked(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    query_mask: Option<&[bool]>,
    key_mask: Option<&[bool]>,
    dropout: Option<Stream>,
    settings: &Attention,
) -> Tensor<3> {
    let sizes = attention_sizes(&q, &k, &v, settings);
    let AttentionSizes { batch, queries, keys, .. } = sizes;
    let operands = named([&q, &k, &v]);
    let of_queries = Kept::new("query", query_mask, [batch, queries], &operands);
    let of_keys = Kept::new("key", key_mask, [batch, keys], &operands);
    if settings.causal {
        check_causal(&sizes, [query_mask, key_mask], &operands);
    }
    if settings.sight(&sizes).window.is_some() {
        check_window([&of_queries, &of_keys], [query_mask, key_mask], &operands);
    }
    let attended = attention(
        of_queries.to_front(q),
        of_keys.to_front(k),
        of_keys.to_front(v),
        of_queries.lengths.as_deref(),
        of_keys.lengths.as_deref(),
        dropout,
        settings,
    );
    of_queries.to_their_places(attended)
}

/// [`self_attention`] with a mask in place of lengths, which means what it does in [`attention_masked`]. Under
/// a causal rule a step sees the valid ones up to itself, and within a window so many valid ones on each side.
///
/// # Shapes
/// - qkv: `[batch, time, 3 · heads · size]`, as in [`self_attention`]
/// - mask: `[batch, time]`, one sample after the other, true where a step is valid; all are if `None`
/// - the result: `[batch, time, heads · size]`
///
/// # Panics
/// As [`attention()`], and if the mask has not an entry for each step; the message holds the shape and type.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebox_kernels::{Attention, self_attention_masked};
///
/// let qkv = Tensor::<3>::ones([2, 4, 24], &Device::default());
/// // The first sample is padded on the left; of the second, a step is missing.
/// let mask = vec![false, false, true, true, true, false, true, true];
/// let out = self_attention_masked(qkv, Some(&mask), None, &Attention::new(2));
/// assert_eq!(out.dims(), [2, 4, 8]);
/// ```
#[track_caller]
pub fn self_attention_masked(
    qkv: Tensor<3>,
    mask: Option<&[bool]>,
    dropout: Option<Stream>,
    settings: &Attention,
) -> Tensor<3> {
    let [batch, time, _] = qkv.dims();
    let kept = Kept::new("sequence", mask, [batch, time], &[operand("qkv", &qkv)]);
    let attended = self_attention(kept.to_front(qkv), kept.lengths.as_deref(), dropout, settings);
    kept.to_their_places(attended)
}

/// What a mask leaves of each sample.
struct Kept {
    /// Its valid rows, all if `None`.
    lengths: Option<Vec<usize>>,
    /// Takes them to the front, if they are not there.
    order: Option<Permutation>,
}

impl Kept {
    /// Of a mask for these operands.
    #[track_caller]
    fn new(
        what: &str,
        mask: Option<&[bool]>,
        [batch, rows]: [usize; 2],
        of: &[Operand<'_>],
    ) -> Self {
        let Some(mask) = mask else { return Self { lengths: None, order: None } };
        assert!(
            mask.len() == batch * rows,
            "attention over a batch of {batch} with {rows} rows a sample and a {what} mask of {} entries: \
             one is needed for each row, {} (of {})",
            mask.len(),
            batch * rows,
            listed(of.iter().copied())
        );
        let samples = || (0..batch).map(move |sample| &mask[sample * rows..][..rows]);
        let lengths: Vec<usize> =
            samples().map(|mask| mask.iter().filter(|valid| **valid).count()).collect();
        let in_front =
            samples().zip(&lengths).all(|(mask, length)| !mask[*length..].contains(&true));
        let order = (!in_front).then(|| Permutation::new(valid_first(mask, rows, of)));
        Self { lengths: Some(lengths), order }
    }

    fn to_front(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.order {
            Some(order) => order.permute(x),
            None => x,
        }
    }

    /// Back from the front. What the mask leaves out comes from after the valid rows, where attention has put
    /// zeros.
    fn to_their_places(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.order {
            Some(order) => order.inverse().permute(x),
            None => x,
        }
    }
}

/// The numbers of all rows, so many a sample, with the valid ones of each sample before its others.
fn valid_first(mask: &[bool], rows: usize, of: &[Operand<'_>]) -> Vec<u32> {
    assert!(
        i32::try_from(mask.len()).is_ok(),
        "attention with a mask of {} entries: it may have at most 2^31 - 1 (of {})",
        mask.len(),
        listed(of.iter().copied())
    );
    let mut order = Vec::with_capacity(mask.len());
    for (sample, mask) in mask.chunks_exact(rows).enumerate() {
        for wanted in [true, false] {
            let of = mask.iter().zip(sample * rows..).filter(|(valid, _)| **valid == wanted);
            order.extend(of.map(|(_, row)| row as u32));
        }
    }
    order
}

/// That each valid query sees the same keys by its number among the valid ones, by which the causal rule will
/// go, as by its place.
#[track_caller]
fn check_causal(
    sizes: &AttentionSizes,
    [query_mask, key_mask]: [Option<&[bool]>; 2],
    of: &[Operand<'_>],
) {
    let AttentionSizes { batch, queries, keys, .. } = *sizes;
    for sample in 0..batch {
        let is_query = |row: usize| query_mask.is_none_or(|mask| mask[sample * queries + row]);
        let is_key =
            |row: usize| row < keys && key_mask.is_none_or(|mask| mask[sample * keys + row]);
        let all = (0..keys).filter(|key| is_key(*key)).count();
        let (mut number, mut seen) = (0, 0);
        for query in 0..queries {
            seen += usize::from(is_key(query));
            number += usize::from(is_query(query));
            assert!(
                !is_query(query) || seen == number.min(all),
                "causal attention with masks that differ: query {query} of sample {sample} has {seen} \
                 valid keys up to it and would see {}, for it is valid query number {number} of its \
                 sample; give queries and keys the same mask, or leave the causal rule (of {})",
                number.min(all),
                listed(of.iter().copied())
            );
        }
    }
}

/// That the numbers of queries and keys among the valid ones count the same rows.
#[track_caller]
fn check_window(
    kept: [&Kept; 2],
    [query_mask, key_mask]: [Option<&[bool]>; 2],
    of: &[Operand<'_>],
) {
    let in_front = kept.iter().all(|kept| kept.order.is_none());
    assert!(
        in_front || query_mask == key_mask,
        "attention within a window with masks that differ, and valid rows of {} that are not in front: \
         distances, which count valid rows alone, would be those of different rows; give queries and keys the \
         same mask, or leave the window (of {})",
        match kept.map(|kept| kept.order.is_some()) {
            [true, true] => "both",
            [true, false] => "queries",
            _ => "keys",
        },
        listed(of.iter().copied())
    );
}
