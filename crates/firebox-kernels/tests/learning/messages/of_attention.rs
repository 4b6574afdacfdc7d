//! What attention says of operands, lengths, masks and settings that do not go together.

use burn::nn::LayerNormConfig;
use burn::tensor::{Device, Tensor};
use firebox_kernels::{
    Activation, Attention, AttentionWindow, DisentangledAttention, DistanceRows, EncoderParameters,
    EncoderSettings, attention, attention_masked, disentangled_attention, encoder_layer,
    self_attention, self_attention_masked,
};

use super::{Case, HEADS, case, dense, disentangled, in_kernels, zeros};

/// On one thread, for which every batch is large enough.
fn encode(x: &Tensor<3>, lengths: Option<&[usize]>) {
    let (in_proj, out_proj) = (dense([4, 12], 12), dense([4, 4], 4));
    let (first, second) = (dense([5, 6], 6), dense([6, 4], 4));
    let norm = LayerNormConfig::new(4).init(&Device::flex());
    let parameters = EncoderParameters {
        in_proj: &in_proj,
        out_proj: &out_proj,
        feed: [&first, &second],
        norms: [&norm, &norm],
    };
    let settings = EncoderSettings {
        attention: HEADS,
        activation: Activation::Relu,
        epsilon: 1e-5,
        norm_first: false,
    };
    encoder_layer(x, lengths, &parameters, &settings);
}

/// Operands whose shapes do not fit, and what belongs to them.
pub(super) fn shapes() -> Vec<Case> {
    vec![
        case(
            "encoder_layer",
            || {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                pool.install(|| in_kernels(|| encode(&zeros([2, 3, 4]), None)));
            },
            &["feed-forward network", "[6, 4] ([rows, width])", "[5, 6] ([input, output])", "F32"],
        ),
        case(
            "encoder_layer",
            || {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                pool.install(|| in_kernels(|| encode(&zeros([2, 3, 4]), Some(&[3, 4]))));
            },
            &["sample 1", "sequence length 4", "x [2, 3, 4] in F32"],
        ),
        case(
            "attention",
            || {
                let (q, k, v) = (zeros([2, 3, 8]), zeros([2, 5, 8]), zeros([2, 4, 8]));
                attention(q, k, v, None, None, None, &HEADS);
            },
            &[
                "attention",
                "queries [2, 3, 8]",
                "keys [2, 5, 8]",
                "values [2, 4, 8]",
                "keys in F32",
            ],
        ),
        case(
            "self_attention",
            || drop(self_attention(zeros([2, 3, 8]), None, None, &HEADS)),
            &["self-attention of [2, 3, 8] ([batch, time, 3 · heads · size])", "in F32"],
        ),
        case(
            "self_attention",
            || drop(self_attention(zeros([2, 3, 15]), None, None, &HEADS)),
            &["2 heads of a width of 5", "qkv [2, 3, 15] in F32"],
        ),
        case(
            "self_attention",
            || drop(self_attention(zeros([2, 3, 12]), Some(&[3]), None, &HEADS)),
            &["1 sequence lengths", "qkv [2, 3, 12] in F32"],
        ),
        case(
            "self_attention",
            || drop(self_attention(zeros([2, 3, 12]), Some(&[3, 4]), None, &HEADS)),
            &["sample 1", "sequence length 4", "3 rows", "qkv [2, 3, 12] in F32"],
        ),
        case(
            "self_attention",
            || {
                let settings = Attention { dropout: 1.5, ..HEADS };
                self_attention(zeros([2, 3, 12]), None, None, &settings);
            },
            &["dropout probability 1.5", "qkv [2, 3, 12] in F32"],
        ),
        case(
            "attention",
            || {
                let x = || zeros([2, 3, 8]);
                attention(x(), x(), x(), None, Some(&[3, 4]), None, &HEADS);
            },
            &["sample 1", "key length 4", "queries [2, 3, 8] in F32", "keys [2, 3, 8] in F32"],
        ),
        case(
            "attention",
            || {
                let (q, k) = (zeros([2, 3, 8]), || zeros([2, 5, 8]));
                attention(q, k(), k(), Some(&[0, 4]), Some(&[5, 0]), None, &HEADS);
            },
            &["sample 1", "query length 4", "3 rows", "queries [2, 3, 8] in F32"],
        ),
        case(
            "attention_masked",
            || {
                let x = || zeros([2, 3, 8]);
                attention_masked(x(), x(), x(), None, Some(&[true; 5]), None, &HEADS);
            },
            &["a key mask of 5 entries", "keys [2, 3, 8] in F32"],
        ),
        case(
            "attention_masked",
            || {
                let (x, settings) = (|| zeros([1, 3, 8]), Attention { causal: true, ..HEADS });
                let mask = Some(&[false, true, true][..]);
                attention_masked(x(), x(), x(), None, mask, None, &settings);
            },
            &["causal attention with masks that differ", "keys [1, 3, 8] in F32"],
        ),
        case(
            "attention_masked",
            || {
                let window = Some(AttentionWindow { reach: 0, global: 0 });
                let (x, settings) = (|| zeros([1, 3, 8]), Attention { window, ..HEADS });
                let mask = Some(&[false, true, true][..]);
                attention_masked(x(), x(), x(), None, mask, None, &settings);
            },
            &["within a window with masks that differ", "keys [1, 3, 8] in F32"],
        ),
        case(
            "self_attention_masked",
            || drop(self_attention_masked(zeros([2, 3, 12]), Some(&[true; 5]), None, &HEADS)),
            &["a sequence mask of 5 entries", "qkv [2, 3, 12] in F32"],
        ),
        case(
            "self_attention_masked",
            || drop(self_attention_masked(zeros([2, 3, 8]), Some(&[true; 6]), None, &HEADS)),
            &["self-attention of [2, 3, 8] ([batch, time, 3 · heads · size])", "in F32"],
        ),
        case(
            "disentangled_attention",
            || disentangled(zeros([2, 3, 15]), zeros([5, 10]), 3),
            &[
                "disentangled attention with 2 heads",
                "qkv [2, 3, 15] in F32",
                "[batch, time, 3 · heads · size]",
            ],
        ),
        case(
            "disentangled_attention",
            || disentangled(zeros([2, 3, 12]), zeros([5, 6]), 3),
            &["qkv [2, 3, 12] in F32, positions [5, 6] in F32", "[rows, 8]", "[rows, 12]"],
        ),
        case(
            "disentangled_attention",
            || disentangled(zeros([2, 3, 12]), zeros([4, 8]), 3),
            &["positions [4, 8] in F32", "up to row 4", "have 4 rows"],
        ),
        case(
            "disentangled_attention",
            || disentangled(zeros([2, 3, 12]), zeros([5, 8]), 4),
            &["qkv [2, 3, 12] in F32", "distances of 4 steps", "qkv has 3"],
        ),
        case(
            "disentangled_attention",
            || {
                let distances = DistanceRows::new(3, |distance| (distance + 2) as usize);
                let (qkv, positions) = (zeros([2, 3, 12]), zeros([5, 8]));
                let settings = DisentangledAttention::new(2);
                disentangled_attention(qkv, positions, &distances, Some(&[3, 4]), None, &settings);
            },
            &["sample 1", "sequence length 4", "qkv [2, 3, 12] in F32"],
        ),
    ]
}
