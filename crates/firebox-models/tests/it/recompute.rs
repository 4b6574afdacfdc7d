//! Activation checkpointing in the zoo: losses and gradients are those of the ordinary pass, bit for
//! bit, with dropout, lengths and in every precision of the processor's kernels.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, GaussianNoise};
use firebox_models::{
    BertConfig, BiLstmAttentionConfig, BiLstmMaeConfig, CnnBiLstmConfig, Disentangled,
    MaskedConfig, PatchTransformerConfig, Pooling, Positions, Pretrain, PretrainBatch,
    StackedLstmConfig, TextAttention, TextEncoderConfig, TextHeadsConfig, TransformerConfig,
    Windowed, read_parameters,
};
use serde_json::json;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

fn noise(shape: [usize; 3]) -> Tensor<3> {
    let mut draws = Stream::new(2, "noise").draws();
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| draws.normal() as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The loss and the gradient of every parameter, as bits.
fn bits<M: Module>(model: &M, loss: Tensor<1>) -> Vec<Vec<u32>> {
    let all = some_bits(model, loss);
    assert!(all.iter().all(|one| !one.is_empty()), "every parameter learns");
    all
}

/// The same of a model of which not every parameter learns: nothing for one that does not.
fn some_bits<M: Module>(model: &M, loss: Tensor<1>) -> Vec<Vec<u32>> {
    struct Visitor(Gradients, Vec<Vec<u32>>);
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad_remove(&mut self.0).map(Tensor::into_data);
            let bits: Option<Vec<u32>> =
                gradient.map(|data| data.iter::<f32>().map(f32::to_bits).collect());
            self.1.push(bits.unwrap_or_default());
        }
    }
    let value = loss.clone().inner().into_data().iter::<f32>().map(f32::to_bits).collect();
    let mut visitor = Visitor(loss.backward(), vec![value]);
    model.visit(&mut visitor);
    visitor.1
}

#[test]
fn transformer() {
    let positions = Positions::Learned;
    let config =
        TransformerConfig { width: 16, heads: 4, feedforward: 24, positions, ..Default::default() };
    let model = config.init(Stream::new(1, "weights"), 3, 9, 4, &Device::flex()).unwrap();
    let (x, lengths) = (noise([5, 9, 3]), [9, 4, 1, 9, 7]);
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model.clone().in_precision(precision).recomputed(recomputed).train();
            let stream = Some(Stream::new(3, "dropout"));
            let logits = model.logits(x.clone(), Some(&lengths), stream);
            bits(&model, logits.square().mean())
        };
        assert!(run(true) == run(false), "{precision}");
    }
}

#[test]
fn bert() {
    let config = BertConfig {
        vocabulary: 30,
        positions: 8,
        width: 12,
        heads: 3,
        layers: 3,
        feedforward: 20,
        ..BertConfig::default()
    };
    let model = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap();
    let tokens: Vec<i64> = (0..4 * 8).map(|token| token * 7 % 30).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [4, 8]), &Device::flex());
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model.clone().in_precision(precision).recomputed(recomputed).train();
            let stream = Some(Stream::new(3, "dropout"));
            let logits = model.logits(tokens.clone(), Some(&[8, 2, 8, 5]), stream);
            bits(&model, logits.square().mean())
        };
        assert!(run(true) == run(false), "{precision}");
    }
}

/// Encoders of texts: with full attention, within a window, and with terms for distances, of whose vectors all layers'
/// gradients are summed up.
#[test]
fn text() {
    text_alike(TextAttention::Full);
    text_alike(TextAttention::Windowed(Windowed { reach: vec![0, 2, 9, 1] }));
    for shared_projection in [true, false] {
        let rule = Disentangled { farthest: 9, buckets: 4, ..Disentangled::default() };
        let rule = Disentangled { shared_projection, ..rule };
        text_alike(TextAttention::Disentangled(rule.clone()));
        let rule = Disentangled { position_to_content: false, buckets: 0, ..rule };
        text_alike(TextAttention::Disentangled(Disentangled { normalised: false, ..rule }));
    }
}

#[test]
fn a_text_of_one_token_sees_itself() {
    let config = TextEncoderConfig {
        attention: TextAttention::Windowed(Windowed { reach: vec![2, 2] }),
        vocabulary: 30,
        positions: 12,
        width: 12,
        heads: 3,
        layers: 2,
        feedforward: 20,
        ..TextEncoderConfig::default()
    };
    let encoder = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap();
    let encode = |tokens: &[i64]| {
        let shape = [2, tokens.len() / 2];
        let tokens = TensorData::new(tokens.to_vec(), shape);
        let tokens = Tensor::<2, Int>::from_data(tokens, &Device::flex());
        encoder.encode(tokens, Some(&[1, 1]), None).narrow(1, 0, 1).into_data()
    };
    let (alone, padded) = (encode(&[3, 4]), encode(&[3, 0, 4, 0]));
    alone.assert_approx_eq::<f32>(&padded, burn::tensor::Tolerance::absolute(1e-6));
}

#[test]
fn dropout_behind_the_projection_of_attention_has_a_rate_of_its_own() {
    let encode = |dropout: f64, projection_dropout: Option<f64>, draws: bool| {
        let config = TextEncoderConfig {
            vocabulary: 30,
            positions: 12,
            width: 12,
            heads: 3,
            layers: 1,
            feedforward: 20,
            dropout,
            attention_dropout: 0.0,
            projection_dropout,
            ..TextEncoderConfig::default()
        };
        let encoder = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap();
        let tokens = TensorData::new((0..8_i64).collect::<Vec<_>>(), [2, 4]);
        let tokens = Tensor::<2, Int>::from_data(tokens, &Device::flex());
        let stream = draws.then(|| Stream::new(1, "dropout"));
        encoder.encode(tokens, None, stream).into_data().iter::<f32>().collect::<Vec<_>>()
    };
    let distance =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let plain = encode(0.0, None, false);
    assert!(distance(&encode(0.0, None, true), &plain) < 1e-5);
    assert!(distance(&encode(0.0, Some(0.5), true), &plain) > 1e-3);
    // The other masks are the same.
    let all = encode(0.5, None, true);
    assert!(distance(&encode(0.5, Some(0.5), true), &all) < 1e-5);
    assert!(distance(&encode(0.5, Some(0.0), true), &all) > 1e-3);
}

fn text_alike(attention: TextAttention) {
    let config = TextEncoderConfig {
        vocabulary: 30,
        positions: 12,
        width: 12,
        heads: 3,
        layers: 4,
        feedforward: 20,
        attention: attention.clone(),
        ..TextEncoderConfig::default()
    };
    let tokens: Vec<i64> = (0..4 * 8).map(|token| token * 7 % 30).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [4, 8]), &Device::flex());
    let encoder = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap();
    let heads =
        TextHeadsConfig { labels: 3, pooling: Pooling::Attention, dropout: 0.1, span: true };
    let model = heads.init(encoder, Stream::new(1, "heads"), &Device::flex()).unwrap();
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model.clone().in_precision(precision).recomputed(recomputed).train();
            let stream = Some(Stream::new(3, "dropout"));
            let scores = model.forward(tokens.clone(), Some(&[8, 2, 8, 5]), stream);
            let [first, last] = scores.span.unwrap();
            let seen = |scores: Tensor<2>| scores.narrow(1, 0, 2).square().mean();
            bits(&model, scores.labels.square().mean() + seen(first) + seen(last))
        };
        // Burn's own operations, the first variant, have their sums of gradients in another order.
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let [kept, again] = [false, true].map(|recomputed| kernels.force(|| run(recomputed)));
            assert!(kept == again, "{attention:?} {precision} {kernels:?}");
        }
    }
}

#[test]
fn bilstm_attention() {
    let config =
        BiLstmAttentionConfig { hidden: 5, layers: 3, attention: 4, head_hidden: 6, dropout: 0.3 };
    let model = config.init(Stream::new(1, "weights"), 3, 4, &Device::flex()).unwrap();
    let (x, lengths) = (noise([5, 9, 3]), [9, 4, 1, 9, 7]);
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model.clone().in_precision(precision).recomputed(recomputed).train();
            let stream = Some(Stream::new(3, "dropout"));
            let logits = model.logits(x.clone(), Some(&lengths), stream);
            bits(&model, logits.square().mean())
        };
        assert!(run(true) == run(false), "{precision}");
    }
}

/// Running statistics move once, too.
#[test]
fn cnn_bilstm() {
    let config = CnnBiLstmConfig {
        convolutions: vec![4, 6],
        hidden: 5,
        layers: 3,
        head: 7,
        embedding: 6,
        classifier: vec![5],
        ..CnnBiLstmConfig::default()
    };
    let model = config.init(Stream::new(1, "weights"), 3, 4, &Device::flex()).unwrap();
    let (x, lengths) = (noise([5, 17, 3]), [17, 4, 8, 17, 13]);
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model.clone().in_precision(precision).recomputed(recomputed).train();
            let stream = Some(Stream::new(3, "dropout"));
            let added = GaussianNoise { deviation: 0.1, stream: Stream::new(4, "noise") };
            let logits = model.logits(x.clone(), Some(&lengths), Some(added), stream);
            let learnt = some_bits(&model, logits.square().mean());
            let nothing = learnt.iter().filter(|one| one.is_empty()).count();
            assert_eq!(nothing, 2 * 4, "mean and variance of four normalisations");
            (learnt, read_parameters(&model))
        };
        assert!(run(true) == run(false), "{precision}");
    }
}

#[test]
fn stacked_lstm() {
    let (x, lengths) = (noise([5, 9, 3]), [9, 4, 1, 9, 7]);
    let statics = noise([5, 1, 2]).reshape([5, 2]);
    for hidden_2 in [5, 0] {
        let config =
            StackedLstmConfig { hidden_1: 6, hidden_2, dense: 4, ..StackedLstmConfig::default() };
        let model = config.init(Stream::new(1, "weights"), 3, 2, 4, &Device::flex()).unwrap();
        for precision in PRECISIONS {
            let run = |recomputed| {
                let model = model.clone().in_precision(precision).recomputed(recomputed).train();
                let stream = Some(Stream::new(3, "dropout"));
                let (x, statics) = (x.clone(), Some(statics.clone()));
                let forecast = model.forecast(x, Some(&lengths), statics, stream);
                bits(&model, forecast.square().mean())
            };
            assert!(run(true) == run(false), "{hidden_2} {precision}");
        }
    }
}

/// A masked model's pre-training, with its layers kept and computed again.
fn masked_alike<M: Pretrain + Module>(model: impl Fn(Precision, bool) -> M) {
    masked_alike_by(model, bits);
}

/// The same, with what is compared.
fn masked_alike_by<M: Pretrain + Module>(
    model: impl Fn(Precision, bool) -> M,
    bits: fn(&M, Tensor<1>) -> Vec<Vec<u32>>,
) {
    let lengths = [15, 15, 3, 8, 15, 1];
    let (inputs, indices) = (noise([6, 15, 4]), &[0, 1, 2, 3, 4, 5]);
    let batch = PretrainBatch { inputs, lengths: &lengths, indices };
    for precision in PRECISIONS {
        let run = |recomputed| {
            let model = model(precision, recomputed);
            let stream = Some(Stream::new(3, "dropout"));
            bits(&model, model.pretrain_loss(&batch, Stream::new(4, "masks"), stream).value)
        };
        assert!(run(true) == run(false), "{precision}");
    }
}

#[test]
fn patch_transformer() {
    let config = PatchTransformerConfig {
        patch: 3,
        width: 16,
        heads: 4,
        layers: 2,
        feedforward: 24,
        ..PatchTransformerConfig::default()
    };
    let model = config.init(Stream::new(1, "weights"), 4, &Device::flex()).unwrap();
    masked_alike(|precision, recomputed| {
        model.clone().in_precision(precision).recomputed(recomputed).train()
    });
}

/// Every encoder under a mask. Some come with a head, of which nothing is learnt here.
#[test]
fn masked() {
    for encoder in [
        json!({ "recurrent": { "hidden": 4, "layers": 3 } }),
        json!({ "recurrent": { "hidden": 4, "layers": 3, "cell": "gru" } }),
        json!({ "recurrent": { "hidden": 4, "layers": 2, "bidirectional": false } }),
        json!({ "dilated": { "hidden": 4, "output": 6, "blocks": 3 } }),
        json!({ "transformer": { "width": 8, "heads": 2, "layers": 2, "feedforward": 8 } }),
        json!({ "cnn-bilstm": { "convolutions": [4, 6], "hidden": 4, "head": 8 } }),
        json!({ "bilstm-attention": { "hidden": 4, "attention": 4, "head_hidden": 4 } }),
        json!({ "stacked-lstm": { "hidden_1": 4, "hidden_2": 6, "dense": 4 } }),
    ] {
        let config: MaskedConfig = serde_json::from_value(json!({ "encoder": encoder })).unwrap();
        let model = config.init(Stream::new(1, "weights"), 4, 15, &Device::flex()).unwrap();
        let built = |precision, recomputed| {
            model.clone().in_precision(precision).recomputed(recomputed).train()
        };
        masked_alike_by(built, some_bits);
    }
}

#[test]
fn bilstm_mae() {
    let config =
        BiLstmMaeConfig { hidden: 6, layers: 3, decoder_hidden: 5, ..BiLstmMaeConfig::default() };
    let model = config.init(Stream::new(1, "weights"), 4, &Device::flex()).unwrap();
    masked_alike(|precision, recomputed| {
        model.clone().in_precision(precision).recomputed(recomputed).train()
    });
}
