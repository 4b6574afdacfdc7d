//! Activation checkpointing in the zoo takes less memory, as an allocator counts it. There is one test, because
//! all that a process does is counted.

#![allow(clippy::unwrap_used, reason = "a test may")]

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{
    BiLstmAttentionConfig, CnnBiLstmConfig, MaskedConfig, Pretrain, PretrainBatch,
    StackedLstmConfig, TextAttention, TextEncoderConfig, Windowed,
};
use serde_json::{Value, json};

#[path = "support/counting.rs"]
mod counting;

use counting::peak;

const SAMPLES: usize = 64;
const TIME: usize = 100;

/// A step whose layers are computed again, `step(true)`, holds less by a tenth at least.
fn saves(name: &str, step: impl Fn(bool)) {
    // The first step also makes what all later ones use.
    step(false);
    let [kept, again] = [false, true].map(|recomputed| peak(|| step(recomputed)));
    println!("{name}: {kept} bytes, {again} with layers that are computed again");
    assert!(10 * again < 9 * kept, "{name}: {kept} bytes and {again}");
}

fn noise(shape: [usize; 3]) -> Tensor<3> {
    let mut draws = Stream::new(2, "noise").draws();
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| draws.normal() as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The pre-training of an encoder under a mask.
fn masked(encoder: &Value) {
    let config: MaskedConfig = serde_json::from_value(json!({ "encoder": encoder })).unwrap();
    let model = config.init(Stream::new(1, "weights"), 4, TIME, &Device::flex()).unwrap().train();
    let (inputs, lengths) = (noise([SAMPLES, TIME, 4]), [TIME; SAMPLES]);
    let indices: Vec<usize> = (0..SAMPLES).collect();
    saves(&encoder.to_string(), |recomputed| {
        let batch = PretrainBatch { inputs: inputs.clone(), lengths: &lengths, indices: &indices };
        let model = model.clone().recomputed(recomputed);
        let stream = Some(Stream::new(3, "dropout"));
        let _ = model.pretrain_loss(&batch, Stream::new(4, "masks"), stream).value.backward();
    });
}

#[test]
fn layers_that_are_computed_again_hold_less() {
    for encoder in [
        json!({ "recurrent": { "hidden": 32, "layers": 3 } }),
        json!({ "recurrent": { "hidden": 32, "layers": 3, "cell": "gru" } }),
        json!({ "dilated": { "hidden": 32, "output": 32, "blocks": 6 } }),
        json!({ "transformer": { "width": 32, "heads": 2, "layers": 4, "feedforward": 64 } }),
        json!({ "cnn-bilstm": { "convolutions": [16], "hidden": 32, "layers": 3, "head": 16 } }),
        json!({ "bilstm-attention": { "hidden": 32, "layers": 3 } }),
        json!({ "stacked-lstm": { "hidden_1": 64, "hidden_2": 64 } }),
    ] {
        masked(&encoder);
    }
    let (device, weights) = (Device::flex(), Stream::new(1, "weights"));
    let (x, stream) = (noise([SAMPLES, TIME, 4]), Some(Stream::new(3, "dropout")));
    let config = StackedLstmConfig { hidden_1: 64, hidden_2: 64, ..StackedLstmConfig::default() };
    let model = config.init(weights, 4, 0, 3, &device).unwrap().train();
    saves("forecaster", |recomputed| {
        let model = model.clone().recomputed(recomputed);
        let _ = model.forecast(x.clone(), None, None, stream).square().mean().backward();
    });
    let convolutions = vec![16];
    let config = CnnBiLstmConfig {
        convolutions,
        hidden: 32,
        layers: 3,
        head: 16,
        ..CnnBiLstmConfig::default()
    };
    let model = config.init(weights, 4, 3, &device).unwrap().train();
    saves("classifier of clusters", |recomputed| {
        let model = model.clone().recomputed(recomputed);
        let _ = model.logits(x.clone(), None, None, stream).square().mean().backward();
    });
    let config = TextEncoderConfig {
        vocabulary: 50,
        positions: TIME,
        width: 32,
        heads: 2,
        layers: 3,
        feedforward: 64,
        attention: TextAttention::Disentangled(Default::default()),
        ..TextEncoderConfig::default()
    };
    let model = config.init(weights, &device).unwrap().train();
    let tokens: Vec<i64> = (0..SAMPLES * TIME).map(|token| token as i64 * 7 % 50).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [SAMPLES, TIME]), &device);
    saves("encoder of texts with distances", |recomputed| {
        let model = model.clone().recomputed(recomputed);
        let _ = model.encode(tokens.clone(), None, stream).square().mean().backward();
    });
    let config = BiLstmAttentionConfig { hidden: 32, layers: 3, ..Default::default() };
    let model = config.init(weights, 4, 3, &device).unwrap().train();
    saves("LSTM with attention", |recomputed| {
        let model = model.clone().recomputed(recomputed);
        let _ = model.logits(x.clone(), None, stream).square().mean().backward();
    });
    longformer();
}

/// Layers with windows, which store no scores either way.
fn longformer() {
    let (layers, heads, time) = (4, 8, 1024);
    let config = TextEncoderConfig {
        vocabulary: 30,
        positions: time,
        width: 32,
        heads,
        layers,
        feedforward: 64,
        attention: TextAttention::Windowed(Windowed { reach: vec![16; layers] }),
        ..TextEncoderConfig::default()
    };
    let encoder = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap().train();
    let tokens: Vec<i64> = (0..time as i64).map(|token| token * 7 % 30).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [1, time]), &Device::flex());
    let step = |recomputed| {
        let encoder = encoder.clone().recomputed(recomputed);
        let stream = Some(Stream::new(3, "dropout"));
        let _ = encoder.encode(tokens.clone(), None, stream).square().mean().backward();
    };
    saves("encoder of texts with windows", step);
    let (held, scores) = (peak(|| step(false)), 4 * heads * time * time);
    assert!(held < scores, "{held} bytes where the scores of one layer are {scores}");
}
