//! R3: the zoo's Transformer on windows with one of three classes, with the peer's loss.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, Transformer, TransformerConfig};
use firebox_train::{Objective, Streams};

use super::{BenchConfig, Measured, Noise, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

const CLASSES: usize = 3;
/// Share of the target that is spread over all classes.
const SMOOTHING: f64 = 0.1;

pub(super) fn run(
    batch: usize,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let stream = Stream::new(1337, "weights");
    let model = TransformerConfig::default().init(stream, 4, 105, CLASSES, &device.device)?;
    let noise = Noise::normal(batch, config, [105, 4]).with_labels(CLASSES);
    time(model.in_precision(config.precision), &Classifying, noise, config, device)
}

/// Cross-entropy with smoothed labels, as `F.cross_entropy` computes it.
struct Classifying;

impl Objective<Transformer> for Classifying {
    fn loss(&self, model: &Transformer, batch: &Batch, streams: Streams) -> Loss {
        let samples = batch.len();
        let logits = model.logits(batch.inputs.clone(), None, streams.dropout);
        let logs = log_softmax(logits, 1);
        let labels = labels(batch, &logs.device().without_autodiff());
        let right = logs.clone().gather(1, labels.reshape([samples, 1])).sum();
        let all = logs.sum() / CLASSES as f64;
        let value = (right * (1.0 - SMOOTHING) + all * SMOOTHING) / -(samples as f64);
        Loss { value, weight: samples as f64, parts: vec![] }
    }
}

/// The labels of a batch, of which every sample has one: `[batch]`.
pub(super) fn labels(batch: &Batch, device: &Device) -> Tensor<1, Int> {
    let labels: Vec<i64> =
        batch.labels.iter().map(|label| i64::from(label.unwrap_or_default())).collect();
    let count = labels.len();
    Tensor::from_data(TensorData::new(labels, [count]), device)
}
