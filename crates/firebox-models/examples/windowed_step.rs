//! What a layer of a text encoder with windows costs: bytes held at most and milliseconds of a training step
//! (forward and backward, with dropout), of one whose layer is computed again, and of a pass without gradients.
//!
//! ```text
//! cargo run --release -p firebox-models --example windowed_step -- [time] [reach] [batch] [layers] [bf16]
//! ```
//!
//! Width and heads are those of Longformer's base model.

#![allow(clippy::unwrap_used, reason = "an example may")]

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_models::{TextAttention, TextEncoderConfig, Windowed};

#[path = "support/measure.rs"]
mod measure;

use measure::measure;

/// Prints the peak of the bytes held and the median of the milliseconds of a step.
fn report(name: &str, step: impl Fn()) {
    let (held, time) = measure(step);
    println!("{name:<28} {held:>7.0} MiB {time:>8.1} ms");
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let [time, reach, batch, layers] =
        [(0, 2048), (1, 256), (2, 1), (3, 1)].map(|(at, default)| number(at, default));
    let bf16 = std::env::args().any(|argument| argument == "bf16");
    let config = TextEncoderConfig {
        vocabulary: 100,
        positions: time,
        layers,
        attention: TextAttention::Windowed(Windowed { reach: vec![reach; layers] }),
        ..TextEncoderConfig::default()
    };
    let encoder = config.init(Stream::new(1, "weights"), &Device::flex()).unwrap();
    let encoder = encoder.in_precision(if bf16 { Precision::Bf16 } else { Precision::F32 });
    let tokens: Vec<i64> = (0..(batch * time) as i64).map(|token| token * 7 % 100).collect();
    let tokens = TensorData::new(tokens, [batch, time]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &Device::flex());
    let learning = encoder.clone().train();
    for (name, recomputed) in [("training", false), ("training, computed again", true)] {
        let encoder = learning.clone().recomputed(recomputed);
        report(name, || {
            let stream = Some(Stream::new(3, "dropout"));
            let _ = encoder.encode(tokens.clone(), None, stream).square().mean().backward();
        });
    }
    report("without gradients", || drop(encoder.encode(tokens.clone(), None, None)));
}
