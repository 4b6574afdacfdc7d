//! What it costs and saves that layers are computed again for their gradients: bytes held at most and
//! milliseconds of a forward and a backward pass, with and without.
//!
//! ```text
//! cargo run --release -p firebox-models --example recompute_step
//! ```

#![allow(clippy::unwrap_used, reason = "an example may")]

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{BertConfig, BiLstmMaeConfig, Pretrain, PretrainBatch, TransformerConfig};

#[path = "support/measure.rs"]
mod measure;

use measure::measure;

fn report(name: &str, step: impl Fn(bool)) {
    let (kept, again) = (measure(|| step(false)), measure(|| step(true)));
    println!(
        "{name:<34} {:>7.0} → {:>5.0} MiB ({:+.0} %)   {:>7.1} → {:>7.1} ms ({:+.0} %)",
        kept.0,
        again.0,
        100.0 * (again.0 / kept.0 - 1.0),
        kept.1,
        again.1,
        100.0 * (again.1 / kept.1 - 1.0)
    );
}

fn noise(shape: [usize; 3]) -> Tensor<3> {
    let mut draws = Stream::new(2, "noise").draws();
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| draws.normal() as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn main() {
    let (device, stream) = (Device::flex(), Some(Stream::new(3, "dropout")));
    let model = TransformerConfig::default();
    let model = model.init(Stream::new(1, "weights"), 4, 105, 3, &device).unwrap().train();
    let x = noise([128, 105, 4]);
    report("transformer, 3 layers, batch 128", |recomputed| {
        let logits = model.clone().recomputed(recomputed).logits(x.clone(), None, stream);
        let _ = logits.square().mean().backward();
    });

    let config =
        BertConfig { layers: 4, width: 256, heads: 4, feedforward: 1024, ..BertConfig::default() };
    let model = config.init(Stream::new(1, "weights"), &device).unwrap().train();
    let tokens: Vec<i64> = (0..16 * 128).map(|token| token * 7919 % 30_000).collect();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [16, 128]), &device);
    report("bert, 4 layers of 256, batch 16", |recomputed| {
        let logits = model.clone().recomputed(recomputed).logits(tokens.clone(), None, stream);
        let _ = logits.square().mean().backward();
    });

    let model = BiLstmMaeConfig::default();
    let model = model.init(Stream::new(1, "weights"), 4, &device).unwrap().train();
    let (inputs, lengths) = (noise([256, 105, 4]), vec![105; 256]);
    let indices: Vec<usize> = (0..256).collect();
    report("bilstm-mae, 2 layers, batch 256", |recomputed| {
        let batch = PretrainBatch { inputs: inputs.clone(), lengths: &lengths, indices: &indices };
        let model = model.clone().recomputed(recomputed);
        let loss = model.pretrain_loss(&batch, Stream::new(4, "masks"), stream);
        let _ = loss.value.backward();
    });
}
